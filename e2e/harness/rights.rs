//! The rights that operators of tests have: what `deploy/` ships, and what the charts of tests need, added as
//! administrators would add it.

use std::path::{Path, PathBuf};
use std::process::Command;

use clusterstack::api::AGGREGATE_LABEL;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::control_plane::{ROOT, run};
use super::wait::{check, wait_for};
use super::world::World;

/// Namespace and name of the operator's ServiceAccount, as `deploy/` has them.
pub(crate) const OPERATOR: (&str, &str) = ("clusterstack-system", "clusterstack");

/// What the operator does with the objects of charts.
const APPLIED: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];

/// The kinds that charts of tests bring, beside those of Cluster API: group and resources.
const CHARTS: &[(&str, &[&str])] = &[
    ("", &["configmaps", "persistentvolumeclaims", "secrets", "services"]),
    ("rbac.authorization.k8s.io", &["clusterroles"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("openstack.k-orc.cloud", &["images"]),
];

/// Applies what `deploy/` ships, and makes a kubeconfig beside the administrator's: of the operator's ServiceAccount.
pub(super) async fn ship(client: &Client, kubeconfig: &Path, directory: &Path, aggregates: bool) -> PathBuf {
    let (namespace, name) = OPERATOR;
    let object: Namespace = made(json!({"metadata": {"name": namespace}}));
    match Api::all(client.clone()).create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other.expect("namespace")),
    }
    for file in ["operator-rights.yaml", "people-rights.yaml"] {
        let apply = ["apply", "--server-side", "--force-conflicts", "-f"];
        run(Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(apply).arg(shipped(file)));
    }
    apply_cluster_role(client, &document::<ClusterRole>("image-job-rights.yaml", "ClusterRole")).await;
    let rules: Vec<Value> = CHARTS
        .iter()
        .map(|(group, resources)| json!({"apiGroups": [group], "resources": resources, "verbs": APPLIED}))
        .collect();
    add(client, "e2e-charts", &json!(rules), aggregates).await;

    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await.expect("no token");
    let mut config = Kubeconfig::read_from(kubeconfig).expect("unreadable kubeconfig");
    for user in &mut config.auth_infos {
        let token = answer.status.as_ref().expect("no token").token.clone();
        user.auth_info = serde_json::from_value(json!({"token": token})).expect("no user");
    }
    let path = directory.join("operator.kubeconfig");
    std::fs::write(&path, serde_json::to_string(&config).expect("no JSON")).expect("no kubeconfig");
    path
}

/// Adds rights to the operator's, and waits until they count.
pub(super) async fn add(client: &Client, name: &str, rules: &Value, aggregates: bool) {
    let labels = json!({AGGREGATE_LABEL: "true"});
    let role = made(json!({"metadata": {"name": name, "labels": labels}, "rules": rules}));
    apply_cluster_role(client, &role).await;
    if !aggregates {
        // Nobody gathers roles here.
        let binding: ClusterRoleBinding = made(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": OPERATOR.1, "namespace": OPERATOR.0}],
        }));
        let params = PatchParams::apply("e2e").force();
        Api::<ClusterRoleBinding>::all(client.clone()).patch(name, &params, &Patch::Apply(&binding)).await.expect(name);
    }
    for rule in role.rules.unwrap_or_default() {
        let group = rule.api_groups.unwrap_or_default().concat();
        for resource in rule.resources.unwrap_or_default() {
            for verb in &rule.verbs {
                wait_for(format!("the operator to be allowed to {verb} {resource}.{group}"), || async {
                    let may = may(client, &operator(), ("", &group, &resource), verb).await;
                    check(may, "not allowed")
                })
                .await;
            }
        }
    }
}

/// The operator's user.
fn operator() -> String {
    format!("system:serviceaccount:{}:{}", OPERATOR.0, OPERATOR.1)
}

/// Whether a user has a right, in all namespaces if none is given: on namespace, group and resource.
pub(crate) async fn may(
    client: &Client,
    user: &str,
    (namespace, group, resource): (&str, &str, &str),
    verb: &str,
) -> bool {
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        groups: Some(vec!["system:authenticated".to_owned()]),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await.expect("no answer");
    answer.status.is_some_and(|status| status.allowed)
}

/// The Role of the operator's own namespace in another one: tests have one for each operator that takes part in an
/// election.
pub(super) async fn own_namespace(client: &Client, namespace: &str) {
    let params = PatchParams::apply("e2e").force();
    let name = OPERATOR.1.to_owned() + "-operator";
    let mut role: Role = document("operator-rights.yaml", "Role");
    let mut binding: RoleBinding = document("operator-rights.yaml", "RoleBinding");
    role.metadata.namespace = Some(namespace.to_owned());
    binding.metadata.namespace = Some(namespace.to_owned());
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    roles.patch(&name, &params, &Patch::Apply(&role)).await.expect("Role");
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    bindings.patch(&name, &params, &Patch::Apply(&binding)).await.expect("RoleBinding");
}

impl World {
    /// Adds rights on kinds of a group to the operator's, as somebody does who installs charts or a provider; they go with
    /// the world.
    pub(crate) async fn add_rights(&self, group: &str, resources: &[&str]) {
        let name = format!("e2e-{}-{}", resources.join("-"), if group.is_empty() { "core" } else { group });
        self.add_rules(&name, &json!([{"apiGroups": [group], "resources": resources, "verbs": APPLIED}])).await;
    }

    /// The same by rules, in a role of this name.
    pub(crate) async fn add_rules(&self, name: &str, rules: &Value) {
        for kind in ["ClusterRole", "ClusterRoleBinding"] {
            self.remove_at_end("rbac.authorization.k8s.io/v1", kind, name);
        }
        add(&self.client, name, rules, self.plane.collects_garbage()).await;
    }

    /// Lets the operator make Jobs in the test's namespace, by the binding that `deploy/` ships.
    pub(crate) async fn allow_image_jobs(&self) {
        let mut binding: RoleBinding = document("image-job-rights.yaml", "RoleBinding");
        binding.metadata.namespace = Some(self.namespace.clone());
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &self.namespace);
        bindings.create(&PostParams::default(), &binding).await.expect("RoleBinding");
    }
}

/// A file of `deploy/`.
fn shipped(file: &str) -> PathBuf {
    Path::new(ROOT).join("deploy").join(file)
}

/// The last document of a kind in a file of `deploy/`.
fn document<T: DeserializeOwned>(file: &str, kind: &str) -> T {
    let text = std::fs::read_to_string(shipped(file)).expect("no such file");
    let all = clusterstack::core::yaml::parse_all(&text).expect("no YAML");
    let found = all.into_iter().rev().find(|document| document.value["kind"] == kind).expect("no such document");
    made(found.value)
}

fn made<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("no such object")
}

async fn apply_cluster_role(client: &Client, role: &ClusterRole) {
    let name = role.metadata.name.clone().unwrap_or_default();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(role)).await.expect("ClusterRole");
}
