//! Releases from a repository of an OCI registry: each tag is a release, each file a layer, as CSO's registries hold them
//! and `clusterstack push` writes them; or a Helm chart, which is the chart of the ClusterClass.
//!
//! Guarantees: what is fetched is the manifest whose digest was listed, each layer has the digest and size that this
//! manifest says, and signatures that are asked for were checked before a layer is downloaded. A layer's title is compared
//! with the names that a release may have; it never becomes a path.

mod signatures;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{Access, Fetched, Listing, Source, SourceError, Tag, Wanted, assets};
use crate::api::cluster_stack_source::Quota;
use crate::core::artifact::{Descriptor, Document, Manifest, TITLE};
use crate::core::bundle::{self, CLUSTER_CLASS};
use crate::core::files::FileTree;
use crate::core::limits::{Limits, TooLarge};
use crate::core::name::ReleaseName;
use crate::core::source::AllowList;
use crate::core::verification::{NotVerified, Signer, Trust};
use crate::io::registry::Registry;
use crate::io::store::Digest;

/// How long a list may take.
const LIST: Duration = Duration::from_mins(2);
/// How long a fetch may take; the next one goes on where it ended.
const FETCH: Duration = Duration::from_mins(5);
/// Media types of Helm's charts.
const HELM_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const HELM_CHART: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// A repository with a tag for each release.
pub struct OciSource {
    registry: Registry,
    limits: Limits,
}

impl OciSource {
    /// The repository called `repository`, if it may be used; `scratch` is where blobs lie that are not whole yet.
    ///
    /// # Errors
    /// The name is none, or the flags don't allow it.
    pub fn new(
        repository: &str,
        access: &Access,
        allow: &AllowList,
        scratch: &Path,
        limits: Limits,
    ) -> Result<Self, SourceError> {
        Ok(Self { registry: Registry::new(repository, access, allow, scratch)?, limits })
    }

    /// The same, whose parts of blobs take at most `bytes`: [`Registry::with_parts`].
    #[must_use]
    pub fn with_parts(self, bytes: u64) -> Self {
        Self { registry: self.registry.with_parts(bytes), ..self }
    }

    fn url(&self) -> String {
        self.registry.repository().to_string()
    }

    /// Runs `work` for at most `limit`.
    async fn run<T>(
        &self,
        action: &'static str,
        limit: Duration,
        cancel: &CancellationToken,
        work: impl Future<Output = Result<T, SourceError>> + Send,
    ) -> Result<T, SourceError> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(SourceError::Cancelled { action, url: self.url() }),
            result = tokio::time::timeout(limit, work) => {
                result.unwrap_or_else(|_| Err(SourceError::TimedOut { action, url: self.url(), after: limit }))
            }
        }
    }

    /// `<stem>-` where the repository is what `helm push` makes of a chart `<stem>-cluster-class`: its tags are versions.
    fn stem(&self) -> Option<String> {
        let stem = self.registry.repository().last().strip_suffix(&format!("-{CLUSTER_CLASS}"))?;
        Some(format!("{stem}-"))
    }

    /// The registry's tag of a release's.
    fn own_tag<'a>(&self, tag: &'a Tag) -> &'a str {
        self.stem().and_then(|stem| tag.name.strip_prefix(&stem)).unwrap_or(&tag.name)
    }

    async fn tags(&self) -> Result<Listing, SourceError> {
        let names = self.registry.tags().await?;
        let tag = |name: String| Tag { name, revision: String::new() };
        let Some(stem) = self.stem() else { return Ok(Listing::new(names.into_iter().map(tag).collect())) };
        let versions = names.into_iter().filter(|name| name.starts_with('v'));
        Ok(Listing::new(versions.map(|version| tag(format!("{stem}{version}"))).collect()))
    }

    async fn digest(&self, tag: &Tag) -> Result<Tag, SourceError> {
        match self.registry.digest(self.own_tag(tag)).await? {
            Some(digest) => Ok(Tag { revision: digest.to_string(), ..tag.clone() }),
            None => Err(SourceError::NotFound { tag: tag.name.clone(), url: self.url() }),
        }
    }

    async fn fetch_now(&self, wanted: &Wanted<'_>) -> Result<Fetched, SourceError> {
        let &Wanted { tag, release, trust, by_revision } = wanted;
        let digest: Digest = tag.revision.parse().map_err(|error| layout(tag, "manifest", format!("{error}")))?;
        let Some(found) = self.registry.manifest(&tag.revision).await? else {
            if by_revision {
                let (revision, problem) = (tag.revision.clone(), "the registry has no such manifest".to_owned());
                return Err(SourceError::RevisionGone { revision, url: self.url(), problem });
            }
            let now = self.digest(tag).await?;
            let (tag, expected, found) = (tag.name.clone(), tag.revision.clone(), now.revision);
            if found == expected {
                let what = format!("manifest {expected}");
                let problem = format!("tag {tag} names it, and it is not there");
                return Err(SourceError::Damaged { what, url: self.url(), problem });
            }
            return Err(SourceError::TagMoved { tag, expected, found });
        };
        let Document::Manifest(manifest) = found.document else {
            return Err(layout(tag, "manifest", "it is an index of several: push one artifact for each release"));
        };
        let signer = self.signed(release, trust, &digest).await?;
        let files = self.files(tag, release, &manifest).await.map_err(|error| error.signed_by(signer.as_ref()))?;
        if signer.is_some() {
            let refuse = |problem| SourceError::NotVerified { release: release.to_string(), problem };
            of_release(&format!("{}@{digest}", self.url()), release, &manifest, &files).map_err(refuse)?;
        }
        let (path, component_ids) = (String::new(), BTreeMap::new());
        Ok(Fetched { url: self.url(), revision: tag.revision.clone(), path, files, component_ids, signer })
    }

    /// The files of a release, from the layers of its manifest.
    async fn files(&self, tag: &Tag, release: &ReleaseName, manifest: &Manifest) -> Result<FileTree, SourceError> {
        let layers = layers(tag, release, manifest)?;
        let size: u64 = layers.values().fold(0, |sum, layer| sum.saturating_add(layer.size));
        if size > self.limits.packed_bytes {
            let limit =
                TooLarge { what: "the size of its layers in bytes".to_owned(), limit: self.limits.packed_bytes };
            return Err(SourceError::TooLarge { of: format!("release {}", tag.name), limit });
        }
        let mut files = BTreeMap::new();
        for (name, layer) in layers {
            files.insert(name, self.blob(layer, self.limits.packed_bytes).await?);
        }
        assets::stack(tag, release, &files, &self.limits)
    }

    async fn blob(&self, layer: &Descriptor, limit: u64) -> Result<Bytes, SourceError> {
        let digest = layer.digest.parse().map_err(|_| SourceError::Damaged {
            what: "the manifest".to_owned(),
            url: self.url(),
            problem: format!(
                "a layer has the digest {:?}, which is no sha256",
                layer.digest.chars().take(80).collect::<String>()
            ),
        })?;
        self.registry.blob(&digest, layer.size, limit).await
    }

    /// Checks the signatures that `trust` asks for.
    async fn signed(
        &self,
        release: &ReleaseName,
        trust: Option<&Trust>,
        digest: &Digest,
    ) -> Result<Option<Signer>, SourceError> {
        let Some(trust) = trust else { return Ok(None) };
        let refuse = |problem| SourceError::NotVerified { release: release.to_string(), problem };
        let Some(asked) = trust.cosign.as_ref().filter(|_| trust.git.is_none() && trust.checksums.is_none()) else {
            let kind = "a registry has no signatures but verify.cosign: ask for that alone";
            return Err(refuse(NotVerified::WrongKind(kind.to_owned())));
        };
        signatures::verify(self, release, asked, digest).await.map(Some)
    }
}

fn layout(tag: &Tag, path: &str, problem: impl Into<String>) -> SourceError {
    SourceError::Layout { tag: tag.name.clone(), path: path.to_owned(), problem: problem.into() }
}

/// The layers of a release by the names of their files.
fn layers<'a>(
    tag: &Tag,
    release: &ReleaseName,
    manifest: &'a Manifest,
) -> Result<BTreeMap<String, &'a Descriptor>, SourceError> {
    if manifest.config.media_type == HELM_CONFIG {
        let mut charts = manifest.layers.iter().filter(|layer| layer.media_type == HELM_CHART);
        let (Some(chart), None) = (charts.next(), charts.next()) else {
            return Err(layout(tag, "manifest", "it is a Helm chart that has not exactly one layer with the chart"));
        };
        let name = format!("{}-{CLUSTER_CLASS}-{}.tgz", release.stem(), release.version);
        return Ok(BTreeMap::from([(name, chart)]));
    }
    let wanted = assets::wanted(tag, release, &titles(manifest))?;
    let mut layers = BTreeMap::new();
    for layer in &manifest.layers {
        let Some(name) = title(layer).filter(|name| wanted.contains(name)) else { continue };
        if layers.insert(name.clone(), layer).is_some() {
            return Err(layout(tag, &name, "several layers have this name"));
        }
    }
    Ok(layers)
}

/// Holds what is signed against the release whose tag leads there: the registry chooses where a tag leads.
fn of_release(what: &str, release: &ReleaseName, manifest: &Manifest, files: &FileTree) -> Result<(), NotVerified> {
    if manifest.config.media_type != HELM_CONFIG {
        return assets::of_release(what, release, &titles(manifest));
    }
    bundle::of_release(release, files).map_err(|problem| NotVerified::Invalid { what: what.to_owned(), problem })
}

/// The names of an artifact's files.
fn titles(manifest: &Manifest) -> Vec<String> {
    manifest.layers.iter().filter_map(title).collect()
}

fn title(layer: &Descriptor) -> Option<String> {
    layer.annotations.get(TITLE).filter(|title| is_file_name(title)).cloned()
}

/// Whether a title is a plain name, and no path.
fn is_file_name(title: &str) -> bool {
    title.len() <= 255 && !title.starts_with('.') && !title.chars().any(|c| c.is_control() || c == '/' || c == '\\')
}

#[async_trait]
impl Source for OciSource {
    fn key(&self) -> String {
        format!("oci {} {}", self.url(), self.registry.id())
    }

    fn host(&self) -> String {
        self.registry.repository().host().to_owned()
    }

    async fn list(&self, cancel: &CancellationToken) -> Result<Listing, SourceError> {
        self.run("listing the tags of", LIST, cancel, self.tags()).await
    }

    async fn resolve(&self, tag: &Tag, cancel: &CancellationToken) -> Result<Tag, SourceError> {
        self.run("reading from", LIST, cancel, self.digest(tag)).await
    }

    async fn fetch(&self, wanted: &Wanted<'_>, cancel: &CancellationToken) -> Result<Fetched, SourceError> {
        self.run("downloading from", FETCH, cancel, self.fetch_now(wanted)).await
    }

    fn keeps_revisions(&self) -> bool {
        true
    }

    fn quota(&self) -> Option<Quota> {
        self.registry.quota()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: &str = "docker-scs-1-30-cluster-class-v1.tgz";

    fn layer(media_type: &str, title: &str) -> Descriptor {
        let annotations = if title.is_empty() { None } else { Some((TITLE.to_owned(), title.to_owned())) };
        let annotations = annotations.into_iter().collect();
        Descriptor { media_type: media_type.to_owned(), annotations, ..Descriptor::default() }
    }

    fn names(config: &str, layers: Vec<Descriptor>) -> Result<Vec<String>, String> {
        let tag = Tag { name: "docker-scs-1-30-v1".into(), revision: String::new() };
        let config = Descriptor { media_type: config.to_owned(), ..Descriptor::default() };
        let manifest = Manifest { config, layers, ..Manifest::default() };
        let found = super::layers(&tag, &tag.name.parse().unwrap(), &manifest);
        found.map(|layers| layers.into_keys().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn files_are_known_by_their_titles() {
        let good =
            ["metadata.yaml", CLASS, "other.tgz", "", "../../etc/passwd"].map(|title| layer("x", title)).to_vec();
        assert_eq!(names("any", good).unwrap(), [CLASS, "metadata.yaml"]);
        let hostile = ["docker-scs-1-30-cluster-class-/../../x.tgz", "docker-scs-1-30-cluster-class-\n.tgz"];
        assert!(names("any", hostile.map(|title| layer("x", title)).to_vec()).unwrap_err().contains("no docker-scs"));
        let twice = vec![layer("x", CLASS), layer("x", CLASS)];
        assert!(names("any", twice).unwrap_err().contains("several layers"));
    }

    #[test]
    fn what_is_signed_says_of_which_release_it_is() {
        let old = "docker-scs-1-30-cluster-class-v0-sha.old.tgz";
        let helm = |text: &str| FileTree::from([("cluster-class/Chart.yaml".to_owned(), Bytes::from(text.to_owned()))]);
        let ours = "name: docker-scs-1-30-cluster-class\nversion: v1\n";
        for (case, config, titles, chart, problem) in [
            ("the archive's name", "any", &[CLASS][..], "", None),
            ("metadata, held against the name later", "any", &[old, "metadata.yaml"], "", None),
            ("an older archive", "any", &[old], ours, Some("it may be another version's")),
            ("Helm's chart", HELM_CONFIG, &[], ours, None),
            ("Helm's chart of another version", HELM_CONFIG, &[], &ours.replace("v1", "v2"), Some("not v1")),
            ("Helm's chart of another stack", HELM_CONFIG, &[], &ours.replace("scs", "other"), Some("not docker-scs")),
            ("Helm's chart that does not say", HELM_CONFIG, &[], "a: 1", Some("not docker-scs")),
        ] {
            let config = Descriptor { media_type: config.to_owned(), ..Descriptor::default() };
            let layers = titles.iter().map(|title| layer("x", title)).collect();
            let manifest = Manifest { config, layers, ..Manifest::default() };
            let found = of_release("it", &"docker-scs-1-30-v1".parse().unwrap(), &manifest, &helm(chart));
            match (found, problem) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{case}: {error}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_helm_chart_is_the_class() {
        let with = |layers: &[&str]| names(HELM_CONFIG, layers.iter().map(|kind| layer(kind, "")).collect());
        assert_eq!(with(&[HELM_CHART, "application/vnd.cncf.helm.chart.provenance.v1.prov"]).unwrap(), [CLASS]);
        assert!(with(&[]).is_err() && with(&[HELM_CHART, HELM_CHART]).is_err());
    }
}
