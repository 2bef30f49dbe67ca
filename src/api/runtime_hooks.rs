//! Wire types of Cluster API's runtime hooks, `hooks.runtime.cluster.x-k8s.io/v1alpha1`: what it asks, what it is answered.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Group and version of the hooks.
pub const API_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
/// Group of the kind `ExtensionConfig`, by which Cluster API is told whom to call.
pub const EXTENSION_GROUP: &str = "runtime.cluster.x-k8s.io";
/// The kind by which Cluster API is told whom to call.
pub const EXTENSION_KIND: &str = "ExtensionConfig";
/// The hook that asks for the others.
pub const DISCOVERY: &str = "Discovery";
/// How long Cluster API waits for an answer, in seconds: its own default. Answers take less than one; the rest is for a busy
/// network, for a deletion whose call is not answered in time goes on at once.
pub const TIMEOUT_SECONDS: i32 = 10;

/// A hook that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuntimeHook {
    /// A new Cluster's API server answers. It can't block.
    AfterControlPlaneInitialized,
    /// A Cluster is to get another version of Kubernetes. It can block.
    BeforeClusterUpgrade,
    /// A Cluster has got it. From Cluster API 1.14 it can block, before it can't.
    AfterClusterUpgrade,
    /// A Cluster is to be deleted. It can block.
    BeforeClusterDelete,
    /// Which versions of Kubernetes lie on the way to the one that a Cluster asks for; of classes that name our handler.
    GenerateUpgradePlan,
}

impl RuntimeHook {
    /// Every hook that is served.
    pub const ALL: [Self; 5] = [
        Self::AfterControlPlaneInitialized,
        Self::BeforeClusterUpgrade,
        Self::AfterClusterUpgrade,
        Self::BeforeClusterDelete,
        Self::GenerateUpgradePlan,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AfterControlPlaneInitialized => "AfterControlPlaneInitialized",
            Self::BeforeClusterUpgrade => "BeforeClusterUpgrade",
            Self::AfterClusterUpgrade => "AfterClusterUpgrade",
            Self::BeforeClusterDelete => "BeforeClusterDelete",
            Self::GenerateUpgradePlan => "GenerateUpgradePlan",
        }
    }

    /// The name of its handler: a DNS label, the last part of its path.
    pub fn handler(self) -> &'static str {
        match self {
            Self::AfterControlPlaneInitialized => "after-control-plane-initialized",
            Self::BeforeClusterUpgrade => "before-cluster-upgrade",
            Self::AfterClusterUpgrade => "after-cluster-upgrade",
            Self::BeforeClusterDelete => "before-cluster-delete",
            Self::GenerateUpgradePlan => "generate-upgrade-plan",
        }
    }

    /// What Cluster API does when nobody answers. Only an upgrade waits for us: all else goes on.
    pub fn failure_policy(self) -> FailurePolicy {
        match self {
            Self::BeforeClusterUpgrade => FailurePolicy::Fail,
            _ => FailurePolicy::Ignore,
        }
    }

    /// Whether its answer has a field `retryAfterSeconds`.
    pub fn is_retried(self) -> bool {
        !matches!(self, Self::AfterControlPlaneInitialized | Self::GenerateUpgradePlan)
    }

    /// The hook of a path `<hook in lower case>/<handler>`.
    pub fn of_path(hook: &str, handler: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str().to_lowercase() == hook && one.handler() == handler)
    }
}

/// What Cluster API does when a handler does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum FailurePolicy {
    /// It goes on.
    Ignore,
    /// It tries again until there is an answer.
    Fail,
}

/// What Cluster API asks, reduced to what is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookRequest {
    /// Group and version.
    #[serde(default)]
    pub api_version: String,
    /// Name of the hook with `Request`.
    #[serde(default)]
    pub kind: String,
    /// The Cluster; none in Discovery.
    #[serde(default)]
    pub cluster: Option<Value>,
    /// The version of Kubernetes that the Cluster is to get; in BeforeClusterUpgrade and GenerateUpgradePlan.
    #[serde(default)]
    pub to_kubernetes_version: Option<String>,
    /// The version of its control plane; in GenerateUpgradePlan.
    #[serde(default)]
    pub from_control_plane_kubernetes_version: Option<String>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HookResponse {
    /// Group and version.
    pub api_version: &'static str,
    /// Name of the hook with `Response`.
    pub kind: String,
    /// `Success`; a `Failure` ends the work of Cluster API on the Cluster with an error, for a while.
    pub status: &'static str,
    /// Why it waits.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When to ask again, in seconds; 0 goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<i32>,
    /// In GenerateUpgradePlan, the versions that the control plane goes through; workers are left to Cluster API.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_plane_upgrades: Vec<UpgradeStep>,
    /// In Discovery, who is to be called for what.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<Handler>,
}

/// A version of Kubernetes on the way to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpgradeStep {
    /// The version, with its `v`.
    pub version: String,
}

/// A handler of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Handler {
    /// Its name.
    pub name: &'static str,
    /// Its hook.
    pub request_hook: GroupVersionHook,
    /// How long its answer may take.
    pub timeout_seconds: i32,
    /// What is done when there is none.
    pub failure_policy: FailurePolicy,
}

/// A hook with its group and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupVersionHook {
    /// Group and version.
    pub api_version: &'static str,
    /// Name.
    pub hook: &'static str,
}

impl HookResponse {
    /// Which hooks are served.
    pub fn discovery() -> Self {
        let handler = |hook: RuntimeHook| Handler {
            name: hook.handler(),
            request_hook: GroupVersionHook { api_version: API_VERSION, hook: hook.as_str() },
            timeout_seconds: TIMEOUT_SECONDS,
            failure_policy: hook.failure_policy(),
        };
        let handlers = RuntimeHook::ALL.into_iter().map(handler).collect();
        Self { handlers, retry_after_seconds: None, ..Self::success(DISCOVERY) }
    }

    /// The hook is done with.
    pub fn done(hook: RuntimeHook) -> Self {
        Self { retry_after_seconds: hook.is_retried().then_some(0), ..Self::success(hook.as_str()) }
    }

    /// It is to be called again after `seconds`; what it waits for.
    pub fn wait(hook: RuntimeHook, message: String, seconds: i32) -> Self {
        Self { message, retry_after_seconds: hook.is_retried().then_some(seconds), ..Self::success(hook.as_str()) }
    }

    /// The versions that a control plane goes through.
    pub fn upgrade_plan(versions: Vec<String>) -> Self {
        let control_plane_upgrades = versions.into_iter().map(|version| UpgradeStep { version }).collect();
        Self { control_plane_upgrades, ..Self::success(RuntimeHook::GenerateUpgradePlan.as_str()) }
    }

    /// There is no answer; why. Cluster API asks again with growing pauses.
    pub fn failure(hook: RuntimeHook, message: String) -> Self {
        Self { status: "Failure", message, ..Self::success(hook.as_str()) }
    }

    fn success(hook: &str) -> Self {
        Self {
            api_version: API_VERSION,
            kind: format!("{hook}Response"),
            status: "Success",
            message: String::new(),
            retry_after_seconds: None,
            control_plane_upgrades: Vec::new(),
            handlers: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_have_the_fields_that_cluster_api_decodes() {
        let json = |response| serde_json::to_value(response).unwrap();
        assert_eq!(
            json(HookResponse::wait(RuntimeHook::BeforeClusterUpgrade, "cni".into(), 10)),
            json!({
                "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "BeforeClusterUpgradeResponse",
                "status": "Success", "message": "cni", "retryAfterSeconds": 10,
            })
        );
        let done = json(HookResponse::done(RuntimeHook::AfterControlPlaneInitialized));
        assert_eq!(done.get("retryAfterSeconds"), None);
        assert_eq!(json(HookResponse::done(RuntimeHook::BeforeClusterDelete))["retryAfterSeconds"], 0);
        assert_eq!(
            json(HookResponse::upgrade_plan(vec!["v1.33.5".into(), "v1.34.7".into()])),
            json!({
                "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "GenerateUpgradePlanResponse",
                "status": "Success", "controlPlaneUpgrades": [{"version": "v1.33.5"}, {"version": "v1.34.7"}],
            })
        );
        let failure = json(HookResponse::failure(RuntimeHook::GenerateUpgradePlan, "no image".into()));
        assert_eq!((&failure["status"], &failure["message"]), (&json!("Failure"), &json!("no image")));
    }

    #[test]
    fn only_an_upgrade_fails_when_nobody_answers() {
        let discovery = serde_json::to_value(HookResponse::discovery()).unwrap();
        let policies: Vec<(&str, &str)> = discovery["handlers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["requestHook"]["hook"].as_str().unwrap(), one["failurePolicy"].as_str().unwrap()))
            .collect();
        assert_eq!(
            policies,
            [
                ("AfterControlPlaneInitialized", "Ignore"),
                ("BeforeClusterUpgrade", "Fail"),
                ("AfterClusterUpgrade", "Ignore"),
                ("BeforeClusterDelete", "Ignore"),
                ("GenerateUpgradePlan", "Ignore"),
            ]
        );
        assert_eq!(discovery["kind"], "DiscoveryResponse");
    }

    #[test]
    fn paths_name_a_hook_and_its_handler() {
        let hook = RuntimeHook::BeforeClusterUpgrade;
        assert_eq!(RuntimeHook::of_path("beforeclusterupgrade", "before-cluster-upgrade"), Some(hook));
        assert_eq!(RuntimeHook::of_path("beforeclusterupgrade", "after-cluster-upgrade"), None);
        assert_eq!(RuntimeHook::of_path("beforeclustercreate", "before-cluster-create"), None);
    }
}
