//! Where releases come from, and what must hold of them: shared by `ClusterStack` and `ClusterStackSource`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where releases come from: exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.git) ? 1 : 0) + (has(self.github) ? 1 : 0) + (has(self.gitlab) ? 1 : 0) + (has(self.oci) ? 1 : 0) + (has(self.directory) ? 1 : 0) == 1").message("exactly one source is needed: git, github, gitlab, oci or directory"))]
pub struct Source {
    /// Tags of a Git repository; the tree of a tag is the release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// Releases on GitHub and their assets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub github: Option<GithubSource>,
    /// Releases on GitLab and their links and packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gitlab: Option<GitlabSource>,
    /// Tags of an OCI repository; each file of the release is a layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciSource>,
    /// A directory with one directory per release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectorySource>,
}

/// A Git repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    /// `https://…`, `ssh://…` or, where the operator's flags allow it, `file://…`.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Where the stack lies in the tree; may contain `{provider}`, `{name}` and `{kubernetesVersion}` (as `1-30`).
    /// Without it the usual places are tried: `stacks/<provider>/<name>`, `providers/<provider>/<name>/<major>-<minor>`,
    /// `providers/<provider>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Secret of this namespace with `username` and `password` (or `token`), or `identity` and `known_hosts` for ssh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt` (authorities that sign the server's certificate), and `tls.crt` and
    /// `tls.key` (our own certificate), for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `address` of a proxy, and its `username` and `password`, for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A repository on GitHub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.url) != (has(self.owner) && has(self.repo))").message("either url, or owner and repo"))]
pub struct GithubSource {
    /// `https://github.com/<owner>/<repo>`, instead of `owner` and `repo`; of another host it is a GitHub Enterprise
    /// server, whose API is at `/api/v3` unless `apiUrl` says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub url: Option<String>,
    /// Organisation or user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    pub owner: String,
    /// Repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    pub repo: String,
    /// API of a GitHub Enterprise server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub api_url: Option<String>,
    /// Secret of this namespace with `token`, or `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `address` of a proxy, and its `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A project on GitLab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitlabSource {
    /// Server; `https://gitlab.com` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
    /// `group/name`.
    #[schemars(length(min = 1, max = 512))]
    pub project: String,
    /// Secret of this namespace with `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `address` of a proxy, and its `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A repository in an OCI registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OciSource {
    /// `host[:port]/path`, with or without `oci://`.
    #[schemars(length(min = 1, max = 2048))]
    pub repository: String,
    /// Secret of this namespace with `username` and `password` (or `token`), or of type
    /// `kubernetes.io/dockerconfigjson`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `ca.crt`, and `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<SecretReference>,
    /// Secret of this namespace with `address` of a proxy, and its `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<SecretReference>,
    /// Allow plain http, which anybody on the way can read and change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// A directory that the operator can read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectorySource {
    /// Its absolute path, below a root that the operator's flags allow.
    #[schemars(length(min = 1, max = 4096))]
    pub path: String,
}

/// A Secret of the object's own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A ClusterStackSource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace; the object's own without it. Another one must allow this namespace in `allowedNamespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,
}

/// Who may tell the operator to look at the source now: `POST /hook/<namespace>/<name>` at `--receiver-bind-address`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receiver {
    /// Secret of this namespace with `token`, by which the sender signs, or which it sends.
    pub secret_ref: SecretReference,
}

/// What must be signed, and by whom. Each part that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.git) || has(self.cosign) || has(self.checksums)").message("verify needs git, cosign or checksums"))]
pub struct Verify {
    /// Signatures of tags and commits: for source `git`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitVerification>,
    /// Signatures of cosign: for source `oci`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cosign: Option<CosignVerification>,
    /// A file of checksums with a detached signature among the assets: for sources `github`, `gitlab` and `directory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksums: Option<ChecksumVerification>,
}

/// What of a Git repository must be signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitVerification {
    /// `Tag` (the default), `Commit` or `TagAndCommit`.
    #[serde(default)]
    pub mode: GitVerificationMode,
    /// Secret of this namespace with public keys: armored OpenPGP keys under any key, SSH keys under keys that end in
    /// `.pub`, or `allowed_signers` (ssh-keygen(1)).
    pub secret_ref: SecretReference,
}

/// What must be signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum GitVerificationMode {
    /// The tag object.
    #[default]
    Tag,
    /// The commit that the tag names.
    Commit,
    /// Both.
    TagAndCommit,
}

/// Signatures that cosign made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.matchOIDCIdentity) || has(self.secretRef)").message("cosign needs secretRef with public keys, or matchOIDCIdentity and a secretRef with trusted_root.json"))]
pub struct CosignVerification {
    /// Secret of this namespace with public keys under keys that end in `.pub`; for keyless signatures with
    /// `trusted_root.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Whose keyless signature counts: any one of these.
    #[serde(default, rename = "matchOIDCIdentity", skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 32))]
    pub match_oidc_identity: Vec<OidcIdentity>,
}

/// An identity of a keyless signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OidcIdentity {
    /// Regular expression (RE2) for the issuer. It may match a part: `^` and `$` hold it to the whole.
    #[schemars(length(min = 1, max = 1024))]
    pub issuer: String,
    /// Regular expression (RE2) for the subject: an address of mail, or a workflow's URL. It may match a part.
    #[schemars(length(min = 1, max = 1024))]
    pub subject: String,
}

/// A file of checksums with a detached signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChecksumVerification {
    /// The file; `SHA256SUMS` without it. Its signature lies beside it: `.asc`, `.sig` or `.gpg` (OpenPGP), `.sig` (SSH),
    /// `.minisig` (minisign).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub file: Option<String>,
    /// Secret of this namespace with public keys, as for Git; keys of minisign end in `.pub` too.
    pub secret_ref: SecretReference,
}

/// Which digest a release must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// Version: `v2`, or `v0-sha.abc`.
    #[schemars(length(max = 64), regex(pattern = r"^v(0|[1-9][0-9]{0,17})(-[a-zA-Z0-9]+[.-][a-zA-Z0-9]+)?$"))]
    pub version: String,
    /// What `status.artifact` must say of it: its digest `sha256:…`, or its revision (a Git commit or the digest of an
    /// OCI manifest).
    #[schemars(length(min = 40, max = 71), regex(pattern = r"^(sha256:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{64})$"))]
    pub digest: String,
}

/// Who decides that a new release is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// The operator.
    #[default]
    Automatic,
    /// A human.
    Manual,
}
