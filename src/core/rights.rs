//! Who may do what on the management cluster: the operator, the provider, the user. One table, from which `deploy/` and
//! `docs/rights.md` are generated; the e2e tests run the operator with nothing else.

use crate::api::{GROUP, INFRASTRUCTURE_GROUP};

/// A bundle of rights that is bound as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// What the operator needs everywhere.
    Operator,
    /// The operator's way to Secrets: everywhere, or in chosen namespaces.
    Secrets,
    /// The operator acts as ServiceAccounts: everywhere, or in chosen namespaces.
    Impersonation,
    /// What the operator needs in its own namespace.
    OwnNamespace,
    /// What the operator needs where node images are built by Jobs.
    ImageJobs,
    /// Sees our kinds.
    Viewer,
    /// Holds ClusterStacks and Clusters.
    User,
    /// Holds sources, templates and credentials.
    Provider,
}

impl Role {
    /// All, in the order of the page.
    pub const ALL: &'static [Self] = &[
        Self::Operator,
        Self::Secrets,
        Self::Impersonation,
        Self::OwnNamespace,
        Self::ImageJobs,
        Self::Viewer,
        Self::User,
        Self::Provider,
    ];

    /// Name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator | Self::OwnNamespace => "clusterstack-operator",
            Self::Secrets => "clusterstack-operator-secrets",
            Self::Impersonation => "clusterstack-operator-impersonation",
            Self::ImageJobs => "clusterstack-image-jobs",
            Self::Viewer => "clusterstack-viewer",
            Self::User => "clusterstack-user",
            Self::Provider => "clusterstack-provider",
        }
    }

    /// What it is for.
    pub fn about(self) -> &'static str {
        match self {
            Self::Operator => "What the operator needs in the whole cluster.",
            Self::Secrets => {
                "The operator's way to Secrets. Bound to the cluster; to narrow it, bind it by RoleBindings in the namespaces \
                 of providers, of ClusterStacks and of Clusters instead. Changes of Secrets are then seen once a minute, those of \
                 sources when they are polled next."
            }
            Self::Impersonation => {
                "The operator applies as the ServiceAccount that a ClusterStack of the same namespace names. Bound to the \
                 cluster; to narrow it, bind it by RoleBindings in the namespaces of ClusterStacks instead."
            }
            Self::OwnNamespace => "What the operator needs in its own namespace.",
            Self::ImageJobs => {
                "What the operator needs in a provider's namespace for executor Job: bind it there, namespace by namespace. \
                 It may make Jobs there, and so run pods as any ServiceAccount of that namespace: keep it to the providers' \
                 namespaces."
            }
            Self::Viewer => "Sees all of our kinds with their status; part of Kubernetes' own role view.",
            Self::User => {
                "Holds ClusterStacks and Clusters in a namespace; part of Kubernetes' own role edit. It reads no Secret and \
                 writes no source, no template, no release and no status."
            }
            Self::Provider => {
                "Holds sources, templates and their Secrets: bind it by a RoleBinding in the provider's own namespace. Part \
                 of Kubernetes' own role admin."
            }
        }
    }

    /// Kubernetes' own role that it becomes a part of.
    pub fn aggregates_to(self) -> Option<&'static str> {
        match self {
            Self::Viewer => Some("view"),
            Self::User => Some("edit"),
            Self::Provider => Some("admin"),
            _ => None,
        }
    }

    /// Its rights.
    pub fn rights(self) -> impl Iterator<Item = &'static Right> {
        RIGHTS.iter().filter(move |right| right.role == self)
    }
}

/// A right: on what, to do what, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The bundle that it is in.
    pub role: Role,
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Resources in the plural, with a subresource as in RBAC.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// What it is needed for.
    pub why: &'static str,
}

impl Right {
    /// Whether it is what lets this request through: `resource` with its subresource as in RBAC.
    pub fn allows(&self, group: &str, resource: &str, verb: &str) -> bool {
        let is = |list: &[&str], word: &str| list.iter().any(|one| *one == word || *one == "*");
        self.group == group && is(self.resources, resource) && is(self.verbs, verb)
    }
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
const CLUSTER_API: &str = "cluster.x-k8s.io";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const EVENTS: &str = "events.k8s.io";

/// The templates of the infrastructures that ClusterClasses are commonly written for.
const INFRASTRUCTURE_TEMPLATES: &[&str] = &[
    "dockerclustertemplates",
    "dockermachinepooltemplates",
    "dockermachinetemplates",
    "devclustertemplates",
    "devmachinepooltemplates",
    "devmachinetemplates",
    "openstackclustertemplates",
    "openstackmachinetemplates",
    "hetznerclustertemplates",
    "hcloudmachinetemplates",
    "hetznerbaremetalmachinetemplates",
    "metal3clustertemplates",
    "metal3machinetemplates",
    "vsphereclustertemplates",
    "vspheremachinetemplates",
    "proxmoxclustertemplates",
    "proxmoxmachinetemplates",
];

/// What a chart's object goes through: read, applied by server-side apply, watched for drift, pruned.
const APPLIED: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

const fn right(
    role: Role,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    why: &'static str,
) -> Right {
    Right { role, group, resources, verbs, why }
}

/// All rights.
pub const RIGHTS: &[Right] = &[
    // Our own kinds.
    right(
        Role::Operator,
        GROUP,
        &["clusterstacks"],
        &["get", "list", "watch", "patch"],
        "reads them, sets its finalizer",
    ),
    right(
        Role::Operator,
        GROUP,
        &["clusterstackreleases"],
        &["get", "list", "watch", "create", "patch", "delete"],
        "subscribes releases and collects them",
    ),
    right(Role::Operator, GROUP, &["clusterstacksources"], READ, "reads them, also those of other namespaces"),
    right(
        Role::Operator,
        GROUP,
        &["clusteraddons"],
        &["get", "list", "watch", "create", "patch", "delete"],
        "one for each Cluster of a class of ours",
    ),
    right(
        Role::Operator,
        GROUP,
        &["clusterupgradeplans"],
        &["list", "create", "patch", "delete"],
        "says what an upgrade would do",
    ),
    right(
        Role::Operator,
        GROUP,
        &["operatorshards"],
        &["list", "create", "patch", "delete"],
        "each replica says in one what it works on; those of replicas that are gone go",
    ),
    right(
        Role::Operator,
        GROUP,
        &[
            "clusterstacks/status",
            "clusterstackreleases/status",
            "clusterstacksources/status",
            "clusteraddons/status",
            "clusterupgradeplans/status",
            "operatorshards/status",
        ],
        &["patch"],
        "the status is the operator's word",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleases"],
        &["get", "list", "watch", "create"],
        "made of the template for each release; the built-in provider prepares it",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleasetemplates"],
        READ,
        "says how and where to node images are built",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE_GROUP,
        &["providernodeimagereleases"],
        &["get", "list", "watch", "create", "patch", "delete"],
        "one for each node image",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleases/status"],
        &["patch"],
        "the status is the operator's word",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE_GROUP,
        &["providernodeimagereleases/status"],
        &["update"],
        "checkpoints of builds",
    ),
    // Cluster API's.
    right(Role::Operator, CLUSTER_API, &["clusterclasses"], APPLIED, "what the class charts bring"),
    right(Role::Operator, CONTROL_PLANE, &["kubeadmcontrolplanetemplates"], APPLIED, "what the class charts bring"),
    right(Role::Operator, BOOTSTRAP, &["kubeadmconfigtemplates"], APPLIED, "what the class charts bring"),
    right(
        Role::Operator,
        INFRASTRUCTURE,
        INFRASTRUCTURE_TEMPLATES,
        &["create", "patch", "delete"],
        "what the class charts bring; templates of other infrastructures come by aggregation",
    ),
    right(Role::Operator, CLUSTER_API, &["clusters"], READ, "which releases are in use; which Clusters get addons"),
    right(
        Role::Operator,
        CLUSTER_API,
        &["clusters"],
        &["patch"],
        "dry runs of upgrades for ClusterUpgradePlans, nothing else; without it they say that it could not be tried",
    ),
    right(Role::Operator, CLUSTER_API, &["machines"], &["list", "watch"], "which releases are in use"),
    right(
        Role::Operator,
        CLUSTER_API,
        &["machinedeployments", "machinepools"],
        &["list"],
        "which machines an upgrade would replace",
    ),
    right(
        Role::Operator,
        CONTROL_PLANE,
        &["*"],
        READ,
        "control planes in values of addons, and what was cloned from a template",
    ),
    right(
        Role::Operator,
        INFRASTRUCTURE,
        &["*"],
        READ,
        "infrastructures in values of addons, and what was cloned from a template",
    ),
    right(Role::Operator, BOOTSTRAP, &["*"], &["list"], "what was cloned from a template"),
    right(
        Role::Operator,
        "runtime.cluster.x-k8s.io",
        &["extensionconfigs"],
        &["get", "list", "create", "patch", "delete"],
        "registers its runtime hooks, and removes what it registered by an earlier name",
    ),
    right(
        Role::Operator,
        "admissionregistration.k8s.io",
        &["validatingwebhookconfigurations"],
        &["get", "list", "create", "patch", "delete"],
        "registers its admission webhook, and removes what it registered by an earlier name",
    ),
    // Kubernetes' own.
    right(
        Role::Operator,
        "apiextensions.k8s.io",
        &["customresourcedefinitions"],
        &["list", "watch"],
        "learns when a kind comes",
    ),
    right(
        Role::Operator,
        "apiregistration.k8s.io",
        &["apiservices"],
        &["list"],
        "leaves out kinds whose API server is down where it looks for its objects",
    ),
    right(
        Role::Operator,
        "",
        &["namespaces"],
        &["get"],
        "which namespaces a source allows, whether one is going, and which cluster it is (kube-system)",
    ),
    right(Role::Operator, "", &["configmaps"], READ, "values of addons"),
    right(
        Role::Operator,
        "",
        &["serviceaccounts"],
        &["get"],
        "whether the ServiceAccount of a ClusterStack is there when it is deleted",
    ),
    right(Role::Operator, EVENTS, &["events"], &["create", "patch"], "says what it does"),
    // Secrets.
    right(
        Role::Secrets,
        "",
        &["secrets"],
        READ,
        "credentials of sources and destinations, kubeconfigs of workload clusters, values of addons; watched by metadata",
    ),
    right(
        Role::Secrets,
        "",
        &["secrets"],
        &["create", "update", "delete"],
        "what random functions of charts draw from is kept in one beside the ClusterStack or Cluster",
    ),
    right(
        Role::Impersonation,
        "",
        &["serviceaccounts"],
        &["impersonate"],
        "applies, reads and deletes what releases bring as the ServiceAccount that the ClusterStack names",
    ),
    // The operator's own namespace.
    right(
        Role::OwnNamespace,
        "coordination.k8s.io",
        &["leases"],
        &["get", "list", "watch", "create", "update", "delete"],
        "replicas share the work, and one leads",
    ),
    right(
        Role::OwnNamespace,
        "",
        &["secrets"],
        &["get", "create", "update"],
        "the certificates of its runtime hooks and its webhook",
    ),
    right(
        Role::OwnNamespace,
        "",
        &["configmaps"],
        &["get", "list", "watch", "patch"],
        "the settings of all replicas (`--settings`), and which were good last",
    ),
    // Jobs of node images.
    right(Role::ImageJobs, "batch", &["jobs"], &["get", "list", "create", "patch", "delete"], "one for each build"),
    right(Role::ImageJobs, "", &["pods"], &["list", "delete"], "how far it is"),
    right(Role::ImageJobs, "", &["pods/log"], &["get"], "what it says"),
    right(Role::ImageJobs, "", &["configmaps"], &["list", "create", "delete"], "what it has to do"),
    right(Role::ImageJobs, "", &["events"], &["list"], "why its pod does not start"),
    // People.
    right(
        Role::Viewer,
        GROUP,
        &[
            "clusterstacks",
            "clusterstackreleases",
            "clusterstacksources",
            "clusteraddons",
            "clusterupgradeplans",
            "operatorshards",
        ],
        READ,
        "what there is, and how it is",
    ),
    right(
        Role::Viewer,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleases", "providerclusterstackreleasetemplates", "providernodeimagereleases"],
        READ,
        "how node images are",
    ),
    right(Role::User, GROUP, &["clusterstacks"], WRITE, "subscribes releases"),
    right(
        Role::User,
        GROUP,
        &["clusteraddons"],
        &["get", "list", "watch", "update", "patch"],
        "values of addons, and asking for their tests",
    ),
    right(
        Role::User,
        GROUP,
        &["clusterstackreleases", "clusterstacksources", "clusterupgradeplans"],
        READ,
        "what there is, and how it is",
    ),
    right(
        Role::User,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleases", "providernodeimagereleases"],
        READ,
        "how node images are",
    ),
    right(Role::User, CLUSTER_API, &["clusters"], WRITE, "makes Clusters of the classes"),
    right(
        Role::User,
        CLUSTER_API,
        &["clusterclasses", "machines", "machinedeployments", "machinepools", "machinesets"],
        READ,
        "which classes there are, and how the Clusters are",
    ),
    right(Role::User, EVENTS, &["events"], READ, "what the operator says"),
    right(Role::User, "", &["events"], READ, "the same, as kubectl reads it"),
    right(Role::Provider, GROUP, &["clusterstacksources"], WRITE, "what is offered, and to whom"),
    right(
        Role::Provider,
        INFRASTRUCTURE_GROUP,
        &["providerclusterstackreleasetemplates"],
        WRITE,
        "how and where to node images are built",
    ),
    right(
        Role::Provider,
        GROUP,
        &["clusterstacks", "clusterstackreleases", "clusteraddons", "clusterupgradeplans"],
        READ,
        "what became of it in the same namespace",
    ),
    right(Role::Provider, INFRASTRUCTURE_GROUP, &["providerclusterstackreleases"], READ, "how node images are"),
    right(
        Role::Provider,
        INFRASTRUCTURE_GROUP,
        &["providernodeimagereleases"],
        &["get", "list", "watch", "patch"],
        "how node images are; cancels and retries builds",
    ),
    right(Role::Provider, "", &["secrets"], WRITE, "credentials of sources and destinations"),
    right(Role::Provider, "batch", &["jobs"], READ, "builds by Jobs"),
    right(Role::Provider, "", &["pods", "pods/log"], READ, "builds by Jobs, and what they say"),
    right(Role::Provider, EVENTS, &["events"], READ, "what the operator says"),
    right(Role::Provider, "", &["events"], READ, "the same, as kubectl reads it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a role has this right.
    fn may(role: Role, group: &str, resource: &str, verb: &str) -> bool {
        role.rights().any(|right| right.allows(group, resource, verb))
    }

    #[test]
    fn people_get_what_the_design_gives_them_and_nothing_else() {
        let templates = "providerclusterstackreleasetemplates";
        for (who, group, resource, verb, expected) in [
            (Role::User, GROUP, "clusterstacks", "create", true),
            (Role::User, CLUSTER_API, "clusters", "create", true),
            (Role::User, GROUP, "clusterstackreleases", "list", true),
            (Role::User, GROUP, "clusterstackreleases", "patch", false),
            (Role::User, GROUP, "clusterstackreleases", "delete", false),
            (Role::User, GROUP, "clusterstackreleases/status", "patch", false),
            (Role::User, GROUP, "clusterstacks/status", "update", false),
            (Role::User, GROUP, "clusterstacksources", "patch", false),
            (Role::User, INFRASTRUCTURE_GROUP, templates, "patch", false),
            (Role::User, INFRASTRUCTURE_GROUP, "providernodeimagereleases", "create", false),
            (Role::User, "", "secrets", "get", false),
            (Role::Viewer, "", "secrets", "get", false),
            (Role::Viewer, GROUP, "clusterstacks", "patch", false),
            (Role::Provider, GROUP, "clusterstacksources", "create", true),
            (Role::Provider, INFRASTRUCTURE_GROUP, templates, "update", true),
            (Role::Provider, "", "secrets", "create", true),
            (Role::Provider, GROUP, "clusterstacks", "create", false),
            (Role::Provider, INFRASTRUCTURE_GROUP, "providernodeimagereleases", "create", false),
            (Role::Provider, "", "pods", "create", false),
        ] {
            assert_eq!(may(who, group, resource, verb), expected, "{who:?} {verb} {resource}.{group}");
        }
    }

    #[test]
    fn nobody_writes_a_status_but_the_operator_and_it_can_not_widen_its_own_rights() {
        for right in RIGHTS {
            assert!(right.role == Role::Operator || !right.resources.iter().any(|one| one.ends_with("/status")));
            assert!(!right.verbs.contains(&"*"), "{right:?}");
            assert!(!right.verbs.iter().any(|verb| ["escalate", "bind"].contains(verb)), "{right:?}");
            assert_ne!(right.group, "rbac.authorization.k8s.io", "{right:?}");
            let reads = right.verbs.iter().all(|verb| READ.contains(verb));
            assert!(reads || !right.resources.contains(&"*"), "{right:?}");
            assert!(!right.why.is_empty());
        }
        for (resource, verb) in [("pods", "create"), ("serviceaccounts/token", "create"), ("pods/exec", "create")] {
            assert!(Role::ALL.iter().all(|role| !may(*role, "", resource, verb)), "{verb} {resource}");
        }
    }

    #[test]
    fn each_role_has_rights_and_no_right_is_there_twice() {
        for role in Role::ALL {
            assert!(role.rights().count() > 0, "{role:?}");
        }
        for (at, right) in RIGHTS.iter().enumerate() {
            for other in RIGHTS[at + 1..].iter().filter(|other| other.role == right.role) {
                let twice = right.verbs.iter().any(|verb| {
                    right.resources.iter().any(|resource| {
                        other.group == right.group && other.resources.contains(resource) && other.verbs.contains(verb)
                    })
                });
                assert!(!twice, "{right:?} and {other:?}");
            }
        }
    }
}
