//! YAML as Helm and Kubernetes read and write it (YAML 1.1 types by `sigs.k8s.io/yaml`).
