//! The operator's default source: its login is in the operator's environment, and no user's Secret is to blame for it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{Fetched, Listing, Source, SourceError, Tag, Wanted};
use crate::api::cluster_stack_source::Quota;
use crate::api::source::Source as Spec;

/// A source whose errors name the environment variables of its login.
pub struct OfDefault {
    source: Arc<dyn Source>,
    variables: &'static str,
}

/// The environment variables that hold the login of a default source.
fn variables(spec: &Spec) -> &'static str {
    if spec.oci.is_some() { "OCI_USERNAME and OCI_PASSWORD, or OCI_ACCESS_TOKEN" } else { "GIT_ACCESS_TOKEN" }
}

impl OfDefault {
    /// `source`, which `spec` names, as the operator's default.
    pub fn new(source: Arc<dyn Source>, spec: &Spec) -> Self {
        Self { source, variables: variables(spec) }
    }

    fn explain(&self, error: SourceError) -> SourceError {
        let of_login = matches!(error, SourceError::Unauthorized { .. } | SourceError::NoRepository { .. });
        if of_login { SourceError::OfDefault { error: Box::new(error), variables: self.variables } } else { error }
    }
}

#[async_trait]
impl Source for OfDefault {
    /// Another one than that of a user who has the same login: failures are shared by it, and are said in other words.
    fn key(&self) -> String {
        format!("default {}", self.source.key())
    }

    fn fetch_key(&self) -> String {
        format!("default {}", self.source.fetch_key())
    }

    fn host(&self) -> String {
        self.source.host()
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        self.source.list(cancel).await.map_err(|error| self.explain(error))
    }

    async fn resolve(&self, tag: &Tag, cancel: &CancellationToken) -> Result<Tag, SourceError> {
        self.source.resolve(tag, cancel).await.map_err(|error| self.explain(error))
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        self.source.fetch(wanted, cancel).await.map_err(|error| self.explain(error))
    }

    fn keeps_revisions(&self) -> bool {
        self.source.keeps_revisions()
    }

    fn quota(&self) -> Option<Quota> {
        self.source.quota()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::source::{GithubSource, OciSource};

    /// Lets nobody in.
    struct Closed;

    fn refused() -> SourceError {
        let problem = "HTTP 401: Bad credentials".to_owned();
        SourceError::Unauthorized { action: "asking", url: "https://x".into(), problem }
    }

    #[async_trait]
    impl Source for Closed {
        fn key(&self) -> String {
            "x".to_owned()
        }

        fn host(&self) -> String {
            "x:443".to_owned()
        }

        async fn list(&self, _: &CancellationToken) -> Result<Listing, SourceError> {
            Err(refused())
        }

        async fn resolve(&self, _: &Tag, _: &CancellationToken) -> Result<Tag, SourceError> {
            Err(refused())
        }

        async fn fetch(&self, _: &Wanted<'_>, _: &CancellationToken) -> Result<Fetched, SourceError> {
            Err(refused())
        }
    }

    #[tokio::test]
    async fn a_wrong_login_of_the_default_source_names_its_variables() {
        let github = Spec { github: Some(GithubSource::default()), ..Spec::default() };
        let oci = Spec { oci: Some(OciSource::default()), ..Spec::default() };
        let (cancel, tag) = (CancellationToken::new(), Tag { name: "docker-x-1-34-v1".into(), revision: "r".into() });
        let release = tag.name.parse().unwrap();
        let wanted = Wanted { tag: &tag, release: &release, trust: None, by_revision: false };
        for (spec, names) in [(github, "GIT_ACCESS_TOKEN"), (oci, "OCI_USERNAME and OCI_PASSWORD, or OCI_ACCESS_TOKEN")]
        {
            let source = OfDefault::new(Arc::new(Closed), &spec);
            for error in [
                source.list(&cancel).await.unwrap_err(),
                source.resolve(&tag, &cancel).await.unwrap_err(),
                source.fetch(&wanted, &cancel).await.unwrap_err(),
            ] {
                let said = error.to_string();
                assert!(said.contains(names) && !said.contains("secretRef"), "{said}");
            }
            assert_ne!(source.key(), Closed.key());
        }
    }
}
