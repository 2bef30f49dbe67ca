//! Registries: what publishing and bundling need of one, and the one on disk, an OCI image layout.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{PublishError, Published};
use crate::core::artifact::beside::{Family, KINDS};
use crate::core::artifact::{self, Artifact, Blobs, Descriptor, Manifest, signature_tag};
use crate::core::files::FileTree;
use crate::core::limits::{Budget, Limits, TooLarge};
use crate::core::verification::cosign;
use crate::io::{pack, unpack};

/// One repository of a registry.
#[async_trait]
pub trait Registry: Send + Sync {
    /// How people call it; without secrets.
    fn name(&self) -> String;
    /// Its tags.
    async fn tags(&self) -> Result<Vec<String>, PublishError>;
    /// The bytes of the manifest with this tag or digest, if it is there.
    async fn get_manifest(&self, reference: &str) -> Result<Option<Bytes>, PublishError>;
    /// Stores a manifest under a tag, or under its digest alone.
    async fn put_manifest(&self, tag: Option<&str>, manifest: &Bytes) -> Result<(), PublishError>;
    /// Whether there is a blob of this digest.
    async fn blob_exists(&self, digest: &str) -> Result<bool, PublishError>;
    /// A blob of that size at most. The caller checks its digest.
    async fn get_blob(&self, digest: &str, size: u64) -> Result<Bytes, PublishError>;
    /// Stores a blob.
    async fn put_blob(&self, digest: &str, content: &Bytes) -> Result<(), PublishError>;
    /// The manifests whose subject is this one.
    async fn referrers(&self, digest: &str) -> Result<Vec<Descriptor>, PublishError>;
}

/// What came of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// The release, and what signs it.
    pub artifacts: Vec<Artifact>,
    /// What names it as its subject and stays, for people: anybody may attach anything.
    pub left_out: Vec<String>,
}

/// The release of a tag and what signs it: cosign's tags, and signatures that name it as their subject.
pub async fn pull(registry: &dyn Registry, tag: &str) -> Result<Pulled, PublishError> {
    let absent = || PublishError::Remote {
        action: "reading from",
        target: registry.name(),
        problem: format!("there is no {tag}"),
    };
    let release = pull_one(registry, tag).await?.ok_or_else(absent)?;
    let digest = release.digest();
    let mut all = vec![Artifact { tag: Some(tag.to_owned()), ..release }];
    for kind in KINDS {
        let tag = signature_tag(&digest, kind);
        if let Some(artifact) = pull_one(registry, &tag).await? {
            all.push(Artifact { tag: Some(tag), ..artifact });
        }
    }
    let mut left_out = Vec::new();
    for referrer in registry.referrers(&digest).await? {
        let told = referrer.artifact_type.as_deref().filter(|kind| !kind.is_empty());
        let kind = match told {
            Some(kind) => kind.to_owned(),
            None => kind_of(registry, &referrer.digest).await?,
        };
        let digest = &referrer.digest;
        if !cosign::is_of_signatures(&kind) {
            left_out.push(format!(
                "{digest} ({kind}) stays in {}: it refers to {tag}, and is no signature",
                registry.name()
            ));
            continue;
        }
        let known = all.iter().any(|artifact| artifact.digest() == *digest);
        if !known && let Some(artifact) = pull_one(registry, digest).await? {
            all.push(artifact);
        }
    }
    Ok(Pulled { artifacts: all, left_out })
}

/// What a manifest is, where its registry does not tell: by what it says itself, or by what it holds.
async fn kind_of(registry: &dyn Registry, digest: &str) -> Result<String, PublishError> {
    let manifest = registry.get_manifest(digest).await?;
    let read: Option<Manifest> = manifest.and_then(|manifest| serde_json::from_slice(&manifest).ok());
    let Some(Manifest { artifact_type, config, layers, .. }) = read else { return Ok("no manifest".to_owned()) };
    let kinds = artifact_type.into_iter().chain([config.media_type]).chain(layers.into_iter().map(|it| it.media_type));
    let mut kinds: Vec<String> = kinds.filter(|kind| !kind.is_empty()).collect();
    let at = kinds.iter().position(|kind| cosign::is_of_signatures(kind)).unwrap_or_default();
    Ok(if kinds.is_empty() { String::new() } else { kinds.swap_remove(at) })
}

async fn pull_one(registry: &dyn Registry, reference: &str) -> Result<Option<Artifact>, PublishError> {
    let Some(manifest) = registry.get_manifest(reference).await? else { return Ok(None) };
    let mut artifact = Artifact { tag: None, manifest, blobs: Blobs::new() };
    if artifact::is_digest(reference) {
        artifact::check(reference, artifact.manifest.len() as u64, &artifact.manifest)?;
    }
    let read: Manifest = artifact.read()?;
    let limits = Limits::default();
    let mut bytes = 0_u64;
    for part in std::iter::once(&read.config).chain(&read.layers) {
        bytes = bytes.saturating_add(part.size);
        if bytes > limits.packed_bytes {
            let limit = TooLarge { what: format!("the size of {reference} in bytes"), limit: limits.packed_bytes };
            return Err(limit.into());
        }
        let content = registry.get_blob(&part.digest, part.size).await?;
        artifact::check(&part.digest, part.size, &content)?;
        artifact.blobs.insert(part.digest.clone(), content);
    }
    Ok(Some(artifact))
}

/// Stores what is beside a release, then the release: who finds it finds it signed. Each is told when it is there.
pub async fn push_family(
    registry: &dyn Registry,
    family: &Family<'_>,
    told: &mut (dyn FnMut(&str, &Published) + Send),
) -> Result<(), PublishError> {
    let tag = family.release.tag.as_deref().unwrap_or_default();
    if let Some(found) = registry.get_manifest(tag).await?.filter(|found| *found != family.release.manifest) {
        return Err(differs(registry, tag, &found));
    }
    for artifact in family.beside.iter().chain([&family.release]) {
        let digest = artifact.digest();
        told(artifact.tag.as_deref().unwrap_or(&digest), &push(registry, artifact).await?);
    }
    Ok(())
}

/// Stores an artifact, its manifest last and unchanged, byte by byte. A tag that is there with another manifest stays; one of
/// signatures gets those that it lacks.
pub async fn push(registry: &dyn Registry, artifact: &Artifact) -> Result<Published, PublishError> {
    let digest = artifact.digest();
    let reference = artifact.tag.as_deref().unwrap_or(&digest);
    let mut manifest = artifact.manifest.clone();
    if let Some(found) = registry.get_manifest(reference).await? {
        if found == manifest {
            // A registry that lost some has them again.
            bring(registry, artifact).await?;
            // An earlier import may have ended before it was listed at what it signs.
            if artifact.is_about_another() {
                registry.put_manifest(artifact.tag.as_deref(), &manifest).await?;
            }
            return Ok(Published::Unchanged { revision: digest });
        }
        manifest = artifact.added_to(&found)?.ok_or_else(|| differs(registry, reference, &found))?;
        if manifest == found {
            return Ok(Published::Unchanged { revision: artifact::digest(&manifest) });
        }
    }
    bring(registry, artifact).await?;
    registry.put_manifest(artifact.tag.as_deref(), &manifest).await?;
    // A registry takes a tag from the last who comes: of two that push at once one must know that it lost.
    match registry.get_manifest(reference).await?.filter(|found| *found != manifest) {
        Some(found) => Err(differs(registry, reference, &found)),
        None => Ok(Published::New { revision: artifact::digest(&manifest) }),
    }
}

/// Stores the blobs that are not there.
async fn bring(registry: &dyn Registry, artifact: &Artifact) -> Result<(), PublishError> {
    for (digest, content) in &artifact.blobs {
        if !registry.blob_exists(digest).await? {
            registry.put_blob(digest, content).await?;
        }
    }
    Ok(())
}

fn differs(registry: &dyn Registry, reference: &str, found: &[u8]) -> PublishError {
    let (release, target, found) = (reference.to_owned(), registry.name(), artifact::digest(found));
    PublishError::Differs { release, target, found }
}

/// How much an archive of releases may hold: more than one release.
fn limits() -> Limits {
    Limits { entries: 100_000, bytes: 4 << 30, packed_bytes: 5 << 30, file_bytes: 1 << 30, ..Limits::default() }
}

/// Reads an archive of releases. It is hostile until every digest was checked: nothing of it is written before.
pub fn read_archive(path: &Path) -> Result<Vec<Artifact>, PublishError> {
    let limits = limits();
    let io = |error| PublishError::Io { action: "reading", path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(io)?;
    file.take(limits.packed_bytes + 1).read_to_end(&mut bytes).map_err(io)?;
    Ok(artifact::from_layout(&unpack::unpack(&bytes, &limits)?)?)
}

/// Writes an archive of releases, under another name first. One that [`read_archive`] would refuse is not written.
pub fn write_archive(path: &Path, artifacts: &[Artifact]) -> Result<(), PublishError> {
    let io = |error| PublishError::Io { action: "writing", path: path.to_owned(), error };
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io(std::io::Error::other(
            "it is there and no regular file, which an archive would take the place of",
        )));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files: FileTree = artifact::to_layout(artifacts);
    artifact::from_layout(&files)?;
    let (limits, mut budget) = (limits(), Budget::default());
    for (file, content) in &files {
        budget.add(&limits, file, content.len() as u64)?;
    }
    let mut temporary = tempfile::Builder::new().prefix(".bundle-").tempfile_in(directory).map_err(io)?;
    pack::tar(std::io::BufWriter::new(&mut temporary), &files).map_err(io)?;
    temporary.as_file().sync_all().map_err(io)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    temporary.as_file().set_permissions(mode).map_err(io)?;
    temporary.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// How a file of a layout is called until it is whole.
const UNFINISHED: &str = ".tmp-";

/// A registry in a directory: an OCI image layout, as `oras` and `skopeo` read it.
#[derive(Debug)]
pub struct Layout {
    path: PathBuf,
    files: Mutex<BTreeMap<String, Bytes>>,
}

impl Layout {
    /// Opens the layout in a directory, which is made when something is stored.
    pub fn open(path: &Path) -> Result<Self, PublishError> {
        let mut files = BTreeMap::new();
        if path.join("oci-layout").exists() {
            for file in ["oci-layout", "index.json"] {
                let content = fs::read(path.join(file));
                let io = |error| PublishError::Io { action: "reading", path: path.join(file), error };
                files.insert(file.to_owned(), Bytes::from(content.map_err(io)?));
            }
            let blobs = path.join("blobs/sha256");
            let io = |error| PublishError::Io { action: "reading", path: blobs.clone(), error };
            for entry in fs::read_dir(&blobs).map_err(io)? {
                let entry = entry.map_err(io)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                // Of a job that stores something just now, or was killed meanwhile.
                if name.starts_with(UNFINISHED) {
                    continue;
                }
                files.insert(format!("blobs/sha256/{name}"), Bytes::from(fs::read(entry.path()).map_err(io)?));
            }
            artifact::from_layout(&files)?;
        }
        Ok(Self { path: path.to_owned(), files: Mutex::new(files) })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn artifacts(&self) -> Result<Vec<Artifact>, PublishError> {
        let files = self.files();
        if files.contains_key("index.json") { Ok(artifact::from_layout(&files)?) } else { Ok(Vec::new()) }
    }

    /// The manifest of a tag, as far as is known.
    fn tagged(&self, tag: Option<&str>) -> Result<Option<Bytes>, PublishError> {
        let is_it = |artifact: &Artifact| tag.is_some() && artifact.tag.as_deref() == tag;
        Ok(self.artifacts()?.into_iter().find(is_it).map(|artifact| artifact.manifest))
    }

    /// Nobody else changes the index until it is dropped: jobs that run at once may share a layout.
    fn lock(&self) -> Result<fs::File, PublishError> {
        let io = |error| PublishError::Io { action: "locking", path: self.path.clone(), error };
        fs::create_dir_all(&self.path).map_err(io)?;
        let directory = fs::File::open(&self.path).map_err(io)?;
        rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        Ok(directory)
    }

    /// Takes in what others stored since it was opened.
    fn read_anew(&self) -> Result<(), PublishError> {
        let known = self.files().get("index.json").cloned();
        let now = fs::read(self.path.join("index.json")).ok().map(Bytes::from);
        if now.is_some() && now != known {
            let others = Self::open(&self.path)?.files.into_inner().unwrap_or_else(PoisonError::into_inner);
            self.files().extend(others);
        }
        Ok(())
    }

    /// Each file under another name first; the index last, so that a reader finds what it names.
    fn store(&self, file: &str, content: &[u8]) -> Result<(), PublishError> {
        let path = self.path.join(file);
        let io = |error| PublishError::Io { action: "writing", path: path.clone(), error };
        let directory = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(directory).map_err(io)?;
        let mut temporary = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(directory).map_err(io)?;
        std::io::Write::write_all(&mut temporary, content).map_err(io)?;
        temporary.as_file().sync_all().map_err(io)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        temporary.as_file().set_permissions(mode).map_err(io)?;
        temporary.persist(&path).map_err(|error| io(error.error))?;
        Ok(())
    }
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

#[async_trait]
impl Registry for Layout {
    fn name(&self) -> String {
        format!("layout:{}", self.path.display())
    }

    async fn tags(&self) -> Result<Vec<String>, PublishError> {
        Ok(self.artifacts()?.into_iter().filter_map(|artifact| artifact.tag).collect())
    }

    async fn get_manifest(&self, reference: &str) -> Result<Option<Bytes>, PublishError> {
        let is_meant =
            |artifact: &Artifact| artifact.tag.as_deref() == Some(reference) || artifact.digest() == reference;
        Ok(self.artifacts()?.into_iter().find(is_meant).map(|artifact| artifact.manifest))
    }

    async fn put_manifest(&self, tag: Option<&str>, manifest: &Bytes) -> Result<(), PublishError> {
        let known = self.tagged(tag)?;
        let _others_wait = self.lock()?;
        self.read_anew()?;
        if let Some(found) = self.tagged(tag)?.filter(|found| Some(found) != known.as_ref() && found != manifest) {
            return Err(differs(self, tag.unwrap_or_default(), &found));
        }
        let mut all = self.artifacts()?;
        let mut new = Artifact { tag: tag.map(ToOwned::to_owned), manifest: manifest.clone(), blobs: Blobs::new() };
        let read = new.read()?;
        for part in std::iter::once(&read.config).chain(&read.layers) {
            let content = self.get_blob(&part.digest, part.size).await?;
            new.blobs.insert(part.digest.clone(), content);
        }
        all.retain(|artifact| artifact.tag.is_none() || artifact.tag != new.tag);
        all.push(new);
        let files = artifact::to_layout(&all);
        for file in [blob(&artifact::digest(manifest)).as_str(), "oci-layout", "index.json"] {
            if let Some(content) = files.get(file) {
                self.store(file, content)?;
            }
        }
        *self.files() = files;
        Ok(())
    }

    async fn blob_exists(&self, digest: &str) -> Result<bool, PublishError> {
        Ok(self.files().contains_key(&blob(digest)))
    }

    async fn get_blob(&self, digest: &str, _size: u64) -> Result<Bytes, PublishError> {
        self.files().get(&blob(digest)).cloned().ok_or_else(|| PublishError::Remote {
            action: "reading from",
            target: self.name(),
            problem: format!("there is no {digest}"),
        })
    }

    async fn put_blob(&self, digest: &str, content: &Bytes) -> Result<(), PublishError> {
        artifact::check(digest, content.len() as u64, content)?;
        self.store(&blob(digest), content)?;
        self.files().insert(blob(digest), content.clone());
        Ok(())
    }

    async fn referrers(&self, digest: &str) -> Result<Vec<Descriptor>, PublishError> {
        let mut found = Vec::new();
        for artifact in self.artifacts()? {
            let manifest = artifact.read()?;
            if manifest.subject.is_some_and(|subject| subject.digest == digest) {
                let artifact_type = manifest.artifact_type.unwrap_or(manifest.config.media_type);
                found.push(Descriptor {
                    media_type: manifest.media_type,
                    digest: artifact.digest(),
                    size: artifact.manifest.len() as u64,
                    artifact_type: Some(artifact_type),
                    ..Descriptor::default()
                });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::artifact::{Descriptor, MANIFEST};

    fn release(tag: &str, content: &'static str) -> Artifact {
        let files = [("metadata.yaml".to_owned(), Bytes::from_static(content.as_bytes()))].into();
        Artifact::of_release(&tag.parse().unwrap(), &files)
    }

    /// What signs a manifest: with a tag as cosign has it, or by its subject.
    fn signature(of: &Artifact, content: &'static str, tagged: bool) -> Artifact {
        let mut artifact = release("docker-scs-1-30-v1", content);
        let mut manifest = artifact.read().unwrap();
        artifact.tag = tagged.then(|| signature_tag(&of.digest(), "sig"));
        if !tagged {
            manifest.artifact_type = Some("application/vnd.dev.sigstore.bundle.v0.3+json".to_owned());
            manifest.subject = Some(Descriptor {
                media_type: MANIFEST.to_owned(),
                digest: of.digest(),
                size: of.manifest.len() as u64,
                ..Descriptor::default()
            });
        }
        artifact.manifest = Bytes::from(serde_json::to_vec_pretty(&manifest).unwrap());
        artifact
    }

    #[tokio::test]
    async fn of_two_who_opened_one_layout_nobody_loses_a_release() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Layout::open(directory.path()).unwrap();
        let (one, other) = (open(), open());
        push(&one, &release("docker-scs-1-30-v1", "a")).await.unwrap();
        push(&other, &release("docker-scs-1-30-v2", "b")).await.unwrap();
        let refused = push(&other, &release("docker-scs-1-30-v1", "c")).await.unwrap_err();
        assert!(matches!(refused, PublishError::Differs { .. }), "{refused}");
        let mut tags = open().tags().await.unwrap();
        tags.sort();
        assert_eq!(tags, ["docker-scs-1-30-v1", "docker-scs-1-30-v2"]);

        let late = open();
        push(&one, &release("docker-scs-1-30-v3", "a")).await.unwrap();
        let refused = push(&late, &release("docker-scs-1-30-v3", "b")).await.unwrap_err();
        assert!(matches!(refused, PublishError::Differs { .. }), "{refused}");
    }

    /// Somebody else pushes `other` right after each manifest.
    struct Raced {
        layout: Layout,
        other: Artifact,
    }

    #[async_trait]
    impl Registry for Raced {
        fn name(&self) -> String {
            self.layout.name()
        }

        async fn tags(&self) -> Result<Vec<String>, PublishError> {
            self.layout.tags().await
        }

        async fn get_manifest(&self, reference: &str) -> Result<Option<Bytes>, PublishError> {
            self.layout.get_manifest(reference).await
        }

        async fn put_manifest(&self, tag: Option<&str>, manifest: &Bytes) -> Result<(), PublishError> {
            self.layout.put_manifest(tag, manifest).await?;
            for (digest, content) in &self.other.blobs {
                self.layout.put_blob(digest, content).await?;
            }
            self.layout.put_manifest(tag, &self.other.manifest).await
        }

        async fn blob_exists(&self, digest: &str) -> Result<bool, PublishError> {
            self.layout.blob_exists(digest).await
        }

        async fn get_blob(&self, digest: &str, size: u64) -> Result<Bytes, PublishError> {
            self.layout.get_blob(digest, size).await
        }

        async fn put_blob(&self, digest: &str, content: &Bytes) -> Result<(), PublishError> {
            self.layout.put_blob(digest, content).await
        }

        async fn referrers(&self, digest: &str) -> Result<Vec<Descriptor>, PublishError> {
            self.layout.referrers(digest).await
        }
    }

    #[tokio::test]
    async fn of_two_that_push_at_once_one_knows_that_it_lost() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, theirs) = (release("docker-scs-1-30-v1", "a"), release("docker-scs-1-30-v1", "b"));
        for (other, is_lost) in [(&theirs, true), (&ours, false)] {
            let layout = Layout::open(&directory.path().join(other.digest())).unwrap();
            let pushed = push(&Raced { layout, other: other.clone() }, &ours).await;
            let told = pushed
                .as_ref()
                .is_err_and(|error| matches!(error, PublishError::Differs { found, .. } if *found == theirs.digest()));
            assert_eq!(told, is_lost, "{pushed:?}");
        }
    }

    #[tokio::test]
    async fn a_release_travels_with_its_signatures_byte_by_byte() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        let one = release("docker-scs-1-30-v1", "a");
        let all = [one.clone(), signature(&one, "tag", true), signature(&one, "subject", false)];
        let source = Layout::open(&from).unwrap();
        for artifact in &all {
            assert!(matches!(push(&source, artifact).await.unwrap(), Published::New { .. }));
        }
        push(&source, &release("docker-scs-1-30-v2", "b")).await.unwrap();

        let source = Layout::open(&from).unwrap();
        let pulled = pull(&source, "docker-scs-1-30-v1").await.unwrap();
        assert_eq!(pulled, Pulled { artifacts: all.to_vec(), left_out: Vec::new() });
        let pulled = pulled.artifacts;
        let archive = directory.path().join("out.tar");
        write_archive(&archive, &pulled).unwrap();
        let bytes = fs::read(&archive).unwrap();
        write_archive(&archive, &pulled).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), bytes);

        let target = Layout::open(&to).unwrap();
        for artifact in read_archive(&archive).unwrap() {
            push(&target, &artifact).await.unwrap();
        }
        let target = Layout::open(&to).unwrap();
        assert_eq!(pull(&target, "docker-scs-1-30-v1").await.unwrap().artifacts, all);
        assert_eq!(
            target.tags().await.unwrap(),
            ["docker-scs-1-30-v1".to_owned(), signature_tag(&one.digest(), "sig")]
        );
        assert!(matches!(push(&target, &one).await.unwrap(), Published::Unchanged { .. }));
        let error = push(&target, &release("docker-scs-1-30-v1", "other")).await.unwrap_err().to_string();
        assert!(error.contains("with other content"), "{error}");
        assert!(pull(&target, "docker-scs-1-30-v9").await.unwrap_err().to_string().contains("there is no"));
    }

    #[tokio::test]
    async fn what_refers_to_a_release_and_is_no_signature_stays_and_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let one = release("docker-scs-1-30-v1", "a");
        let signed = signature(&one, "subject", false);
        let mut foreign = signature(&one, "list", false);
        let mut manifest = foreign.read().unwrap();
        manifest.artifact_type = Some("application/spdx+json".to_owned());
        foreign.manifest = Bytes::from(serde_json::to_vec(&manifest).unwrap());
        let source = Layout::open(directory.path()).unwrap();
        for artifact in [&one, &signed, &foreign] {
            push(&source, artifact).await.unwrap();
        }
        let pulled = pull(&source, "docker-scs-1-30-v1").await.unwrap();
        assert_eq!(pulled.artifacts, [one, signed]);
        let [left_out] = &pulled.left_out[..] else { panic!("{:?}", pulled.left_out) };
        assert!(left_out.contains(&foreign.digest()) && left_out.contains("application/spdx+json"), "{left_out}");
        // What the registry does not tell, the manifest does.
        for (artifact, kind) in [(&foreign, "application/spdx+json"), (&pulled.artifacts[1], "application/vnd.dev.sig")]
        {
            let found = kind_of(&source, &artifact.digest()).await.unwrap();
            assert!(found.starts_with(kind), "{found}");
        }
    }

    #[tokio::test]
    async fn signatures_are_there_before_their_release_and_further_ones_are_added() {
        let directory = tempfile::tempdir().unwrap();
        let target = Layout::open(directory.path()).unwrap();
        let one = release("docker-scs-1-30-v1", "a");
        let [first, second] = ["first", "second"].map(|content| signature(&one, content, true));
        for (beside, expected) in
            [(&first, ["New", "New"]), (&second, ["New", "Unchanged"]), (&first, ["Unchanged"; 2])]
        {
            let mut told = Vec::new();
            let family = Family { release: &one, beside: vec![beside] };
            let mut tell = |name: &str, published: &Published| told.push((name.to_owned(), format!("{published:?}")));
            push_family(&target, &family, &mut tell).await.unwrap();
            let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, [first.tag.as_deref().unwrap(), "docker-scs-1-30-v1"]);
            assert!(told.iter().zip(expected).all(|((_, told), state)| told.starts_with(state)), "{told:?}");
        }
        let target = Layout::open(directory.path()).unwrap();
        let pulled = pull(&target, "docker-scs-1-30-v1").await.unwrap().artifacts;
        let layers = |artifact: &Artifact| artifact.read().unwrap().layers;
        assert_eq!(layers(&pulled[1]), [layers(&first), layers(&second)].concat());

        // What signs another release of that name is not left beside this one.
        let other = release("docker-scs-1-30-v1", "other");
        let theirs = signature(&other, "theirs", true);
        let family = Family { release: &other, beside: vec![&theirs] };
        let error = push_family(&target, &family, &mut |_, _| ()).await.unwrap_err();
        assert!(matches!(error, PublishError::Differs { .. }), "{error}");
        assert_eq!(target.get_manifest(theirs.tag.as_deref().unwrap()).await.unwrap(), None);
    }

    #[test]
    fn no_archive_is_written_that_can_t_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("out.tar");
        let mut bad = release("docker-scs-1-30-v1", "a");
        let text = String::from_utf8(bad.manifest.to_vec()).unwrap().replace("metadata.yaml", "../metadata.yaml");
        bad.manifest = Bytes::from(text);
        let error = write_archive(&archive, &[bad]).unwrap_err().to_string();
        assert!(error.contains("../metadata.yaml") && !archive.exists(), "{error}");
        let large = Bytes::from(vec![0; usize::try_from(limits().file_bytes).unwrap() + 1]);
        let large = Artifact::of_release(&"docker-scs-1-30-v1".parse().unwrap(), &[("a".to_owned(), large)].into());
        let error = write_archive(&archive, &[large]).unwrap_err().to_string();
        assert!(error.contains("over the limit") && !archive.exists(), "{error}");
    }

    #[test]
    fn a_changed_archive_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("out.tar");
        write_archive(&archive, &[release("docker-scs-1-30-v1", "the content of a file")]).unwrap();
        let mut bytes = fs::read(&archive).unwrap();
        let at = bytes.windows(7).position(|part| part == b"content").unwrap();
        bytes[at] = b'C';
        fs::write(&archive, bytes).unwrap();
        assert!(read_archive(&archive).unwrap_err().to_string().contains("is really sha256:"));
    }
}
