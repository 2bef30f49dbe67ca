//! Which release a Cluster has, which it goes to, and the files of both.

use std::path::Path;
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::super::origin::{Origin, Shared, demand, if_allowed, own_demand, unseen};
use super::super::release_owner::is_owned;
use super::{Goal, Planner, UpgradeError, api};
use crate::api::condition::Reason;
use crate::api::source::{DirectorySource, Source};
use crate::api::{ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::core::addon::cluster::Cluster;
use crate::core::in_use;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::observe;
use crate::io::release::{FetchedRelease, Wanted};

/// The release of a Cluster's class.
pub(super) struct Present {
    /// Namespace and name of the class.
    pub(super) class: (String, String),
    pub(super) release: ClusterStackRelease,
    pub(super) stack: ClusterStack,
    /// All releases of the namespace.
    pub(super) releases: Vec<ClusterStackRelease>,
    /// Its files, where they can be had.
    pub(super) fetched: Option<FetchedRelease>,
}

/// The release that an upgrade goes to.
pub(super) struct Target {
    pub(super) name: ReleaseName,
    pub(super) stack: ClusterStack,
    /// The object, where the release is subscribed.
    pub(super) release: Option<ClusterStackRelease>,
    /// Its files, where they can be had.
    pub(super) fetched: Option<FetchedRelease>,
    /// Why they can't.
    pub(super) unfetched: String,
}

impl Target {
    /// The release's version of Kubernetes.
    pub(super) fn kubernetes_version(&self) -> String {
        let told = self.release.as_ref().and_then(|release| release.status.as_ref());
        let told = told.map(|status| status.kubernetes_version.clone()).filter(|version| !version.is_empty());
        told.or_else(|| self.fetched.as_ref().map(|fetched| fetched.bundle.kubernetes_version.clone()))
            .unwrap_or_default()
    }
}

impl Planner<'_> {
    /// The release of the Cluster's class.
    pub(super) async fn present(&self, cluster: &Cluster) -> Result<Present, UpgradeError> {
        let name = format!("{}/{}", cluster.namespace, cluster.name);
        let not_ours = |why: String| UpgradeError::NotOurs(format!("Cluster {name} {why}"));
        let class = cluster.class.clone().ok_or_else(|| not_ours("has no topology with a ClusterClass".to_owned()))?;
        let list = ListParams::default();
        let namespaced: Api<ClusterStackRelease> = Api::namespaced(self.client.clone(), &class.0);
        let releases = namespaced.list(&list).await;
        let releases =
            releases.map_err(|error| api(format!("listing ClusterStackReleases of {}", class.0), error))?.items;
        let is_it = |release: &&ClusterStackRelease| {
            let rows = release.status.as_ref().map(|status| status.resources.as_slice()).unwrap_or_default();
            in_use::footprint(&release.name_any(), &class.0, rows).classes.contains(&class)
        };
        let release = releases.iter().find(is_it).cloned().ok_or_else(|| {
            not_ours(format!("has ClusterClass {}/{}, which is of no ClusterStackRelease", class.0, class.1))
        })?;
        let stack = self.stack_of(&release).await?;
        let stack = stack.ok_or_else(|| {
            not_ours(format!("has a class of release {}, which belongs to no ClusterStack", release.name_any()))
        })?;
        let fetched = match name_of(&release.name_any(), &stack) {
            Some(name) => self.fetch(&name, &stack, Some(&release)).await.ok(),
            None => None,
        };
        Ok(Present { class, release, stack, releases, fetched })
    }

    /// The release that the upgrade goes to.
    pub(super) async fn target(&self, present: &Present, goal: &Goal) -> Result<Target, UpgradeError> {
        let word = match goal {
            Goal::Newest => return self.subscribed(present, newest(present)).await,
            Goal::Directory(path) => return self.in_directory(present, path).await,
            Goal::Named(word) => word,
        };
        let (stack, spec) = (&present.stack, &present.stack.spec);
        let object_name = |text: &str| text.replace('.', "-");
        let whole = format!("{}-{}-{}-{word}", spec.provider, spec.name, spec.kubernetes_version.replace('.', "-"));
        let is_it = |name: &str| object_name(name) == object_name(word) || object_name(name) == object_name(&whole);
        if let Some(release) = present.releases.iter().find(|release| is_it(&release.name_any())) {
            return self.subscribed(present, release).await;
        }
        let available = stack.status.as_ref().map(|status| status.available.as_slice()).unwrap_or_default();
        let name =
            available.iter().find(|release| is_it(&release.name)).and_then(|release| name_of(&release.name, stack));
        let Some(name) = name else {
            let own = present.releases.iter().filter(|release| is_owned(release, stack));
            let taken = own.map(ResourceExt::name_any);
            let there: Vec<String> = taken.chain(available.iter().map(|release| release.name.clone())).collect();
            return Err(UpgradeError::NoRelease { name: word.clone(), there: there.join(", ") });
        };
        let fetched = self.fetch(&name, stack, None).await;
        let fetched = fetched.map_err(|trouble| UpgradeError::Fetch { name: name.to_string(), trouble })?;
        Ok(Target { name, stack: stack.clone(), release: None, fetched: Some(fetched), unfetched: String::new() })
    }

    async fn subscribed(&self, present: &Present, release: &ClusterStackRelease) -> Result<Target, UpgradeError> {
        let stack = match self.stack_of(release).await? {
            Some(stack) => stack,
            None => present.stack.clone(),
        };
        let text = release.name_any();
        let name = name_of(&text, &stack).or_else(|| text.parse().ok());
        let unnamed = || UpgradeError::NotOurs(format!("ClusterStackRelease {text} has a name that is no release"));
        let name = name.ok_or_else(unnamed)?;
        let (fetched, unfetched) = match self.fetch(&name, &stack, Some(release)).await {
            Ok(fetched) => (Some(fetched), String::new()),
            Err(trouble) => (None, trouble.message),
        };
        Ok(Target { name, stack, release: Some(release.clone()), fetched, unfetched })
    }

    async fn in_directory(&self, present: &Present, path: &Path) -> Result<Target, UpgradeError> {
        let text = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let fetch = |trouble: Trouble| UpgradeError::Fetch { name: path.display().to_string(), trouble };
        let name = name_of(text, &present.stack).or_else(|| text.parse().ok()).ok_or_else(|| {
            let message = "its directory must be called like the release, for example docker-scs-1-34-v2";
            fetch(Trouble::new(ErrorClass::Invalid, Reason::ReleaseInvalid, message))
        })?;
        let parent = path.parent().unwrap_or(path).display().to_string();
        let source = Source { directory: Some(DirectorySource { path: parent }), ..Source::default() };
        let wanted = Wanted { source: Some(&source), max_age: Duration::from_mins(1), ..Wanted::of_nowhere(&name) };
        let fetched = self.releases.fetch(&self.client, &wanted, &self.cancel).await.map_err(fetch)?;
        let release = present.releases.iter().find(|release| release.name_any() == name.object_name()).cloned();
        let stack = present.stack.clone();
        Ok(Target { name, stack, release, fetched: Some(fetched), unfetched: String::new() })
    }

    async fn stack_of(&self, release: &ClusterStackRelease) -> Result<Option<ClusterStack>, UpgradeError> {
        let namespace = release.namespace().unwrap_or_default();
        let owner = release.owner_references().iter().find(|owner| owner.kind == "ClusterStack");
        let Some(owner) = owner else { return Ok(None) };
        let stacks: Api<ClusterStack> = Api::namespaced(self.client.clone(), &namespace);
        let read = stacks.get_opt(&owner.name).await;
        read.map_err(|error| api(format!("reading ClusterStack {namespace}/{}", owner.name), error))
    }

    /// The files of a release from where its ClusterStack has it.
    async fn fetch(
        &self,
        name: &ReleaseName,
        stack: &ClusterStack,
        release: Option<&ClusterStackRelease>,
    ) -> Result<FetchedRelease, Trouble> {
        let origin = self.origin(stack).await?;
        // What is not subscribed the operator would not subscribe either.
        let unwanted = || origin.suspended().or_else(|| origin.refusal(name));
        if let Some(why) = release.is_none().then(unwanted).flatten() {
            return Err(why);
        }
        let had = release.and_then(|release| release.status.as_ref()?.artifact.as_ref());
        let wanted = Wanted { had, pin: &stack.spec.pin, ..origin.wanted(name) };
        self.releases.fetch(&self.client, &wanted, &self.cancel).await
    }

    /// Where the releases of a ClusterStack come from: of a shared source, where it may use it, by the rules of the operator, whose status
    /// may be of another source, or of a time before.
    async fn origin(&self, stack: &ClusterStack) -> Result<Origin, Trouble> {
        let namespace = stack.namespace().unwrap_or_default();
        let mut origin = Origin {
            namespace: namespace.clone(),
            source: stack.spec.source.clone(),
            max_age: Duration::from_mins(1),
            least_age: Duration::ZERO,
            shared: None,
            verify: own_demand(stack).into_iter().collect(),
            pin: stack.spec.pin.clone(),
        };
        let unreadable = |message: String| Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, message);
        if let Some(reference) = &stack.spec.source_ref {
            let of = reference.namespace.clone().unwrap_or_else(|| namespace.clone());
            let sources: Api<ClusterStackSource> = Api::namespaced(self.client.clone(), &of);
            let read = sources.get_opt(&observe::segment(&reference.name)).await;
            let found = read.map_err(|error| unseen(&of, &reference.name, &refusal(&error).message))?.map(Box::new);
            let shared = if_allowed(found, (&of, &reference.name), &namespace, &self.client).await?;
            origin.verify.extend(demand(&of, shared.spec.verify.as_ref()));
            origin.shared = Some(Shared::of(&shared, &of)?);
            origin.source = Some(shared.spec.source.clone());
            origin.namespace = of;
        }
        if origin.source.is_none() {
            let message = "its ClusterStack names no source: the operator's own is not known here";
            return Err(unreadable(message.to_owned()));
        }
        Ok(origin)
    }
}

fn name_of(text: &str, stack: &ClusterStack) -> Option<ReleaseName> {
    ReleaseName::of_stack(text, &stack.spec.provider, &stack.spec.name)
}

/// The newest usable release of the same ClusterStack; the present one if there is no newer.
fn newest(present: &Present) -> &ClusterStackRelease {
    let version = |release: &ClusterStackRelease| name_of(&release.name_any(), &present.stack).map(|name| name.version);
    let usable = present.releases.iter().filter(|release| {
        is_owned(release, &present.stack) && release.status.as_ref().is_some_and(|status| status.ready)
    });
    let newest = usable.max_by_key(|release| version(release));
    newest.filter(|release| version(release) > version(&present.release)).unwrap_or(&present.release)
}
