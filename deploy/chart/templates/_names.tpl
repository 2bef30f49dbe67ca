{{- define "clusterstack.name" -}}
{{ .Values.fullnameOverride | default "clusterstack" }}
{{- end }}

{{- define "clusterstack.selector" -}}
app.kubernetes.io/name: clusterstack
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "clusterstack.labels" -}}
{{ include "clusterstack.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: clusterstack
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "clusterstack.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "clusterstack.kind" -}}
{{ .Values.kind | default (ternary "StatefulSet" "Deployment" (ne .Values.storage.size "")) }}
{{- end }}

{{- define "clusterstack.subjects" -}}
subjects:
- kind: ServiceAccount
  name: {{ include "clusterstack.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* Helm hands whole numbers of a file on as floats, which print with an exponent. */}}
{{- define "clusterstack.text" -}}
{{- if not (kindIs "float64" .) -}}
{{ . }}
{{- else if eq (floor .) . -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end }}
{{- end }}
