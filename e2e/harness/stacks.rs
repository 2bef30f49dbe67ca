//! Class charts of tests, and Clusters that use them.

use serde_json::{Value, json};

/// API version of Cluster API's core objects.
pub(crate) const CLUSTER_API: &str = "cluster.x-k8s.io/v1beta1";
/// API version of the docker provider's objects.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";

/// A ClusterClass with its two templates, named like the release.
pub(crate) const CLASS: &str = r"
apiVersion: cluster.x-k8s.io/v1beta1
kind: ClusterClass
metadata:
  name: {{ .Release.Name }}-{{ .Chart.Version }}
spec:
  infrastructure:
    ref:
      apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
      kind: DockerClusterTemplate
      name: {{ .Release.Name }}-{{ .Chart.Version }}
  workers:
    machineDeployments:
    - class: default
      template:
        bootstrap:
          ref: {apiVersion: bootstrap.cluster.x-k8s.io/v1beta1, kind: KubeadmConfigTemplate, name: none}
        infrastructure:
          ref:
            apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
            kind: DockerMachineTemplate
            name: {{ .Release.Name }}-{{ .Chart.Version }}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerClusterTemplate
metadata:
  name: {{ .Release.Name }}-{{ .Chart.Version }}
spec:
  template:
    spec: {}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: DockerMachineTemplate
metadata:
  name: {{ .Release.Name }}-{{ .Chart.Version }}
spec:
  template:
    spec:
      customImage: kindest/node:{{ .Chart.Version }}
---
";

/// A ClusterClass of machines that Cluster API's development provider plays in memory, named like the release.
pub(crate) const IN_MEMORY: &str = r#"
{{- define "ref" }}
          apiVersion: {{ .group }}.cluster.x-k8s.io/v1beta2
          kind: {{ .kind }}
          name: {{ .name }}
{{- end }}
{{- define "soon" }}
            provisioning: {startupDuration: 1s, startupJitter: "0"}
{{- end }}
{{- $name := printf "%s-%s" .Release.Name .Chart.Version }}
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata:
  name: {{ $name }}
spec:
  infrastructure:
    templateRef:
      {{- template "ref" dict "group" "infrastructure" "kind" "DevClusterTemplate" "name" $name }}
  controlPlane:
    templateRef:
      {{- template "ref" dict "group" "controlplane" "kind" "KubeadmControlPlaneTemplate" "name" $name }}
    machineInfrastructure:
      templateRef:
        {{- template "ref" dict "group" "infrastructure" "kind" "DevMachineTemplate" "name" $name }}
  workers:
    machineDeployments:
    - class: default
      bootstrap:
        templateRef:
          {{- template "ref" dict "group" "bootstrap" "kind" "KubeadmConfigTemplate" "name" $name }}
      infrastructure:
        templateRef:
          {{- template "ref" dict "group" "infrastructure" "kind" "DevMachineTemplate" "name" (printf "%s-worker" $name) }}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevClusterTemplate
metadata:
  name: {{ $name }}
spec:
  template:
    spec:
      backend:
        inMemory: {}
{{- range list $name (printf "%s-worker" $name) }}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: DevMachineTemplate
metadata:
  name: {{ . }}
spec:
  template:
    spec:
      backend:
        inMemory:
          vm: {{- template "soon" }}
          node: {{- template "soon" }}
          apiServer: {{- template "soon" }}
          etcd: {{- template "soon" }}
{{- end }}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlaneTemplate
metadata:
  name: {{ $name }}
spec:
  template:
    spec:
      kubeadmConfigSpec:
        clusterConfiguration:
          apiServer:
            certSANs: [localhost]
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata:
  name: {{ $name }}
spec:
  template:
    spec:
      joinConfiguration:
        nodeRegistration:
          criSocket: unix:///var/run/containerd/containerd.sock
---
"#;

/// A ConfigMap named like the release.
pub(crate) const SETTINGS: &str = r"
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-{{ .Chart.Version }}
data:
  color: {{ .Values.color }}
  size: large
---
";

/// A Cluster of a ClusterClass of its own namespace.
pub(crate) fn cluster(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": CLUSTER_API,
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {"topology": {"class": class, "version": "v1.34.7"}},
    })
}

/// An object that Cluster API cloned from a template for a Cluster.
pub(crate) fn cluster_of(cluster: &str, kind: &str, name: &str, cloned_from: &str) -> Value {
    let spec = if kind.ends_with("Template") { json!({"template": {"spec": {}}}) } else { json!({}) };
    json!({
        "apiVersion": INFRASTRUCTURE,
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"cluster.x-k8s.io/cluster-name": cluster},
            "annotations": {"cluster.x-k8s.io/cloned-from-name": cloned_from},
        },
        "spec": spec,
    })
}
