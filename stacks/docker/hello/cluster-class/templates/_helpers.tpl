{{/* Name of the ClusterClass, which is the release's: docker-hello-1-34-v1. */}}
{{- define "class.name" -}}
{{ .Release.Name }}-{{ .Chart.Version }}
{{- end }}

{{/*
Reference to a template of this release. Takes a list: the root, the API group's first word, kind, suffix of the name.
*/}}
{{- define "class.ref" -}}
{{- $root := index . 0 -}}
ref:
  apiVersion: {{ index . 1 }}.cluster.x-k8s.io/v1beta1
  kind: {{ index . 2 }}
  name: {{ include "class.name" $root }}-{{ index . 3 }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}

{{- define "class.healthCheck" -}}
maxUnhealthy: {{ .Values.healthCheck.maxUnhealthy | quote }}
unhealthyConditions:
  - type: Ready
    status: Unknown
    timeout: {{ .Values.healthCheck.timeout }}
  - type: Ready
    status: "False"
    timeout: {{ .Values.healthCheck.timeout }}
{{- end }}

{{- define "class.nodeRegistration" -}}
nodeRegistration:
  criSocket: unix:///var/run/containerd/containerd.sock
  kubeletExtraArgs:
    {{- toYaml .Values.kubeletExtraArgs | nindent 4 }}
{{- end }}
