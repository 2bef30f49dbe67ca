//! From a source's spec to the source: Secrets are read, the kind is chosen, and what was opened stays open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::access::{Access, Proxy, Tls};
use super::directory::DirectorySource;
use super::forge::quotas::Quotas;
use super::git::Git;
use super::github::GithubSource;
use super::gitlab::GitlabSource;
use super::meter::SourceMetrics;
use super::oci::OciSource;
use super::{Credentials, Source, SourceError};
use crate::api::condition::Reason;
use crate::api::source::{SecretReference, Source as Spec};
use crate::core::digest::hex;
use crate::core::limits::Limits;
use crate::core::retry::ErrorClass;
use crate::core::secret_type::is_of_others;
use crate::core::source::AllowList;
use crate::core::status::Trouble;
use crate::io::apply::refusal;

/// Repositories talked to at once with libgit2, which blocks a thread each: as many as lists and downloads run at once.
const GIT_THREADS: usize = 42;
/// Sources that stay open: their connections, tokens and entity tags.
const OPEN: usize = 1024;

/// Where in the scratch directory blobs lie that are not whole yet.
pub const BLOBS: &str = "blobs";

/// Opens sources.
pub struct Sources {
    allow: AllowList,
    git: Git,
    limits: Limits,
    /// Where blobs lie that are not whole yet.
    blobs: PathBuf,
    /// How many bytes of them there may be, if anybody says.
    parts: Option<u64>,
    metrics: SourceMetrics,
    quotas: Quotas,
    open: Mutex<HashMap<String, Arc<dyn Source>>>,
}

impl Sources {
    /// Sources within what the flags allow; `scratch` is a directory for repositories that are thrown away.
    pub fn new(allow: AllowList, scratch: &Path) -> Self {
        let git = Git::new(allow.clone(), scratch.to_owned(), GIT_THREADS);
        let (limits, metrics) = (Limits::default(), SourceMetrics::default());
        Self {
            allow,
            git,
            limits,
            blobs: scratch.join(BLOBS),
            parts: None,
            metrics,
            quotas: Quotas::default(),
            open: Mutex::default(),
        }
    }

    /// The same, whose requests are counted in `metrics`.
    #[must_use]
    pub fn counted_in(self, metrics: SourceMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// The same, whose parts of blobs take at most `bytes`.
    #[must_use]
    pub fn with_parts(self, bytes: u64) -> Self {
        Self { parts: Some(bytes), ..self }
    }

    /// The source that `spec` names, its Secrets read from `namespace`.
    ///
    /// # Errors
    /// A Secret can't be used, or the flags don't allow the source.
    pub async fn from_spec(&self, client: &Client, namespace: &str, spec: &Spec) -> Result<Arc<dyn Source>, Trouble> {
        let access = access(client, namespace, spec).await?;
        let credentials = access.credentials.clone();
        let source = self.open(spec, access).map_err(|error| super::trouble(&error))?;
        let host = source.host();
        if credentials.is_some_and(|credentials| !credentials.are_for(&host)) {
            let message = format!(
                "the Secret of secretRef is not for {host}: its key host names others; correct the source, or ask who made the Secret"
            );
            return Err(Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message));
        }
        Ok(source)
    }

    /// The source that `spec` names; the same as before if nothing changed.
    ///
    /// # Errors
    /// The spec names not exactly one source, or one that the flags don't allow.
    pub fn open(&self, spec: &Spec, access: Access) -> Result<Arc<dyn Source>, SourceError> {
        let key = key(spec, &access);
        if let Some(source) = self.lock().get(&key) {
            return Ok(Arc::clone(source));
        }
        let source: Arc<dyn Source> = match spec {
            Spec { git: Some(git), github: None, gitlab: None, oci: None, directory: None } => {
                Arc::new(self.git.source(&git.url, git.path.clone(), access)?)
            }
            Spec { git: None, github: Some(github), gitlab: None, oci: None, directory: None } => {
                let metrics = self.metrics.clone();
                Arc::new(GithubSource::new(github, &access, &self.allow, self.limits, metrics, &self.quotas)?)
            }
            Spec { git: None, github: None, gitlab: Some(gitlab), oci: None, directory: None } => {
                let metrics = self.metrics.clone();
                Arc::new(GitlabSource::new(gitlab, &access, &self.allow, self.limits, metrics, &self.quotas)?)
            }
            Spec { git: None, github: None, gitlab: None, oci: None, directory: Some(directory) } => {
                Arc::new(DirectorySource::new(&directory.path, &self.allow, self.limits)?)
            }
            Spec { git: None, github: None, gitlab: None, oci: Some(oci), directory: None } => {
                let source = OciSource::new(&oci.repository, &access, &self.allow, &self.blobs, self.limits)?;
                Arc::new(match self.parts {
                    Some(bytes) => source.with_parts(bytes),
                    None => source,
                })
            }
            _ => return Err(SourceError::NoSource),
        };
        let mut open = self.lock();
        if open.len() >= OPEN {
            open.clear();
        }
        Ok(Arc::clone(open.entry(key).or_insert(source)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<dyn Source>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same for the same place, reached in the same way; names of Secrets are no part of it, their contents are.
fn key(spec: &Spec, access: &Access) -> String {
    let mut place = spec.clone();
    if let Some(git) = &mut place.git {
        (git.secret_ref, git.cert_secret_ref, git.proxy_secret_ref) = (None, None, None);
    }
    if let Some(github) = &mut place.github {
        (github.secret_ref, github.cert_secret_ref, github.proxy_secret_ref) = (None, None, None);
    }
    if let Some(gitlab) = &mut place.gitlab {
        (gitlab.secret_ref, gitlab.cert_secret_ref, gitlab.proxy_secret_ref) = (None, None, None);
    }
    if let Some(oci) = &mut place.oci {
        (oci.secret_ref, oci.cert_secret_ref, oci.proxy_secret_ref) = (None, None, None);
    }
    let mut digest = Sha256::new();
    digest.update(format!("{place:?}"));
    access.digest(&mut digest);
    hex(&digest.finalize())
}

/// What the Secrets hold that the source names.
async fn access(client: &Client, namespace: &str, spec: &Spec) -> Result<Access, Trouble> {
    type References<'a> = [Option<&'a SecretReference>; 3];
    let (references, insecure): (References<'_>, bool) = match spec {
        Spec { git: Some(s), .. } => {
            ([s.secret_ref.as_ref(), s.cert_secret_ref.as_ref(), s.proxy_secret_ref.as_ref()], s.insecure)
        }
        Spec { github: Some(s), .. } => {
            ([s.secret_ref.as_ref(), s.cert_secret_ref.as_ref(), s.proxy_secret_ref.as_ref()], s.insecure)
        }
        Spec { gitlab: Some(s), .. } => {
            ([s.secret_ref.as_ref(), s.cert_secret_ref.as_ref(), s.proxy_secret_ref.as_ref()], s.insecure)
        }
        Spec { oci: Some(s), .. } => {
            ([s.secret_ref.as_ref(), s.cert_secret_ref.as_ref(), s.proxy_secret_ref.as_ref()], s.insecure)
        }
        _ => ([None; 3], false),
    };
    let [secret, certificate, proxy] = references;
    let credentials = read(client, namespace, secret, "secretRef", Credentials::from_secret).await?;
    for (reference, field) in [(certificate, "certSecretRef"), (proxy, "proxySecretRef")] {
        let (Some(reference), Some(credentials)) = (reference, &credentials) else { continue };
        let is_own = secret.is_some_and(|secret| secret.name == reference.name);
        if !is_own && !credentials.go_via(&reference.name) {
            let message = format!(
                "the Secret of secretRef, whose key host says for whom it is, is not shown by what {field} names: its key via names others; correct {field}, or ask who made the Secret to add {} there",
                reference.name
            );
            return Err(Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message));
        }
    }
    Ok(Access {
        credentials,
        tls: read(client, namespace, certificate, "certSecretRef", Tls::from_secret).await?.unwrap_or_default(),
        proxy: read(client, namespace, proxy, "proxySecretRef", Proxy::from_secret).await?,
        insecure,
    })
}

/// The data of a Secret, always of the object's own namespace.
pub(crate) async fn secret_data(
    client: &Client,
    namespace: &str,
    reference: &SecretReference,
    field: &str,
) -> Result<std::collections::BTreeMap<String, Vec<u8>>, Trouble> {
    let name = format!("{namespace}/{}", reference.name);
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match api.get_opt(&reference.name).await {
        Ok(Some(secret)) if secret.type_.as_deref().is_some_and(is_of_others) => {
            let message = format!(
                "Secret {name} is of type {}, which is for nobody else to use: correct {field}",
                secret.type_.unwrap_or_default()
            );
            Err(Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message))
        }
        Ok(Some(secret)) => {
            Ok(secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect())
        }
        Ok(None) => {
            let message = format!("Secret {name} does not exist: create it or correct {field}");
            Err(Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message))
        }
        Err(error) => {
            let refused = refusal(&error);
            if refused.reason == Reason::Forbidden {
                let message = format!(
                    "Secret {name} can't be read: {}; bind ClusterRole clusterstack-operator-secrets in that namespace, or correct {field}",
                    refused.message
                );
                return Err(Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message));
            }
            let message = format!("Secret {name} can't be read: {}", refused.message);
            Err(Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, message))
        }
    }
}

async fn read<T, E: std::fmt::Display>(
    client: &Client,
    namespace: &str,
    reference: Option<&SecretReference>,
    field: &str,
    parse: impl FnOnce(&std::collections::BTreeMap<String, Vec<u8>>) -> Result<T, E>,
) -> Result<Option<T>, Trouble> {
    let Some(reference) = reference else { return Ok(None) };
    let data = secret_data(client, namespace, reference, field).await?;
    parse(&data).map(Some).map_err(|error| {
        let message = format!("Secret {namespace}/{} can't be used: {error}", reference.name);
        Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message)
    })
}
