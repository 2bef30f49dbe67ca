//! The rules, by ids that stay.

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, but not as most would want.
    Warning,
    /// The release would not work.
    Error,
}

/// A rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in reports; never changes.
    pub id: &'static str,
    /// How bad its findings are.
    pub severity: Severity,
    /// What it asks for.
    pub about: &'static str,
}

const fn error(id: &'static str, about: &'static str) -> Rule {
    Rule { id, severity: Severity::Error, about }
}

const fn warning(id: &'static str, about: &'static str) -> Rule {
    Rule { id, severity: Severity::Warning, about }
}

/// All rules, in the order in which a stack is looked at.
pub const RULES: &[Rule] = &[
    error("csctl", "csctl.yaml is there and names provider, stack and Kubernetes version"),
    error("name-length", "the names of releases fit where Helm and Kubernetes put them"),
    warning("name-dash", "provider and name hold no dash, so that the Go operator can read release names"),
    error("metadata", "metadata.yaml, where it lies in Git, can be read and does not contradict csctl.yaml"),
    error("file-case", "no two files differ in upper and lower case alone: no archive holds both"),
    error("class-chart", "there is a chart in cluster-class"),
    warning("chart-name", "Chart.yaml of the class carries the name that the Go operator looks for"),
    error("chart-version", "Chart.yaml has a version on a line of its own, for the release's to be put there"),
    error("chart-load", "charts can be loaded"),
    error("dependency", "dependencies of charts lie in their charts/"),
    error("values-schema", "the default values meet values.schema.json"),
    error("render", "charts render with their default values"),
    warning(
        "value-misfit",
        "values have the types of the defaults that they replace, and what enables a chart is true or false",
    ),
    warning("hook-unknown", "hooks of charts are of events that Helm knows: an object with another is left out"),
    error("class", "the class chart renders a ClusterClass"),
    warning("class-name", "the ClusterClass is called like the release, so that Clusters find it by its name"),
    error("class-reference", "the ClusterClass refers to templates that the chart renders"),
    error("addon-config", "clusteraddon.yaml can be read and knows its hooks"),
    error("stage-condition", "conditions of stages are CEL over the objects that they name"),
    error("stage-deletion", "no stage of BeforeClusterDelete deletes what a cluster needs to its end: its CNI or CCM"),
    error("stage-chart", "each stage has a chart"),
    warning("chart-stage", "each chart in cluster-addon is of a stage"),
    warning("no-addon", "a stack has addons"),
    error("addon-values", "values of addons render for a Cluster and are a map"),
    warning("values-unread", "with stages there is no cluster-addon-values.yaml, which only a single chart reads"),
    warning("empty-render", "each addon renders something"),
    error("node-images", "the list of node images can be read, and each step of an image can be carried out"),
    error("image-checksum", "what is downloaded for an image has a checksum, or is verified by the next step"),
    warning(
        "image-unverified",
        "what the list of another provider has downloaded has a checksum, for the built-in provider",
    ),
    error("image-name", "some destination takes the name of an image"),
    warning("image-name-narrow", "every destination takes the name of an image"),
    warning("image-command", "commands of images may run beside the operator, not in a Job of the provider's alone"),
    error("object", "each rendered document is an object with a name"),
    error("object-twice", "no object is rendered twice"),
    warning("object-in-stages", "no object is applied by two stages"),
    warning("object-namespace", "objects of the class are in the namespace of its ClusterStack"),
    error("kind-version", "custom resources are rendered in a version that is served"),
    warning("kind-unknown", "kinds of the class are Kubernetes' own or known from --crds"),
    error("object-schema", "custom resources meet the schema of their kind"),
    error("server", "the API server of --server takes the objects in a dry run"),
    warning("server-later", "objects that the API server could not judge before others are there"),
];
