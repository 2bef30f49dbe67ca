//! The story: what happens to three releases of a cluster stack.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::{NAMESPACE, clusters};
use super::drift;
use super::process::Operator;
use super::promise::{Promise, Promises};
use super::repository::{Repository, Stack};
use super::rows::rows;
use super::screen::{GOOD, Screen, seconds};
use super::world::{self, World};
use crate::api::ClusterStack;
use crate::api::cluster_stack::ClusterStackSpec;
use crate::api::cluster_stack_release::{ClusterStackReleaseStatus, Resource};
use crate::api::condition::Reported;
use crate::api::source::{GitSource, Source};

/// How long anything may take that waits for no poll of the source.
const SOON: Duration = Duration::from_secs(30);
/// How long anything may take that does.
const POLLED: Duration = Duration::from_secs(45);
/// How long it is watched that something stays.
const STAYS: Duration = Duration::from_secs(2);
/// Between two looks at what is not watched.
const TICK: Duration = Duration::from_millis(100);
/// Name of the Cluster.
const CLUSTER: &str = "workload";

/// What the story is about, and how far it is.
pub(super) struct Story<'a> {
    pub(super) client: Client,
    pub(super) stack: Stack,
    pub(super) repository: Repository,
    pub(super) operator: &'a mut Operator,
    pub(super) screen: &'a mut Screen,
    pub(super) promises: &'a mut Promises,
}

impl Story<'_> {
    /// Tells it, and ends early where something does not come true.
    pub(super) async fn tell(mut self) -> Result<()> {
        let mut tasks = JoinSet::new();
        let mut worlds = world::watch(&self.client, NAMESPACE, &mut tasks);
        self.wait(&mut worlds, "the operator to be ready", SOON, async |story, _| {
            Ok(story.operator.is_ready().then_some(()))
        })
        .await?;
        self.first_release(&mut worlds).await?;
        self.unused_release(&mut worlds).await?;
        self.used_release(&mut worlds).await?;
        self.hands(&mut worlds).await?;
        self.moved_cluster(&mut worlds).await?;
        self.screen.clear()
    }

    async fn first_release(&mut self, worlds: &mut watch::Receiver<World>) -> Result<()> {
        let name = self.stack_name();
        self.screen.title(&format!("(a) v1 is tagged, and one object is created: ClusterStack {name}"))?;
        self.repository.release(&self.stack.release(1))?;
        let api: Api<ClusterStack> = Api::namespaced(self.client.clone(), NAMESPACE);
        let stack = ClusterStack::new(&name, self.spec());
        api.create(&PostParams::default(), &stack).await.context("cannot create the ClusterStack")?;
        self.ready(worlds, 1, Promise::V1Ready).await
    }

    async fn unused_release(&mut self, worlds: &mut watch::Receiver<World>) -> Result<()> {
        self.screen.title("(b) v2 is tagged; nobody uses v1")?;
        self.repository.release(&self.stack.release(2))?;
        self.subscribed(worlds, 2, Promise::V2Subscribed).await?;
        self.ready(worlds, 2, Promise::V2Ready).await?;
        self.collected(worlds, 1, Promise::V1Collected).await
    }

    async fn used_release(&mut self, worlds: &mut watch::Receiver<World>) -> Result<()> {
        self.screen.title("(c) a Cluster is created of v2's ClusterClass, then v3 is tagged")?;
        self.cluster_of(worlds, 2).await?;
        self.repository.release(&self.stack.release(3))?;
        self.subscribed(worlds, 3, Promise::V3Subscribed).await?;
        self.ready(worlds, 3, Promise::V3Ready).await?;
        let (v2, class) = (self.object_name(2), class_of(&self.inventory(worlds, 2)?)?.clone());
        let what = format!("{v2} to stay in use for {} s", STAYS.as_secs());
        let mut in_use = None;
        let after = self.wait(worlds, &what, SOON, async |story, world| {
            if !world.releases.contains_key(&v2) || !story.class_exists(&class).await? {
                bail!("{v2} went although Cluster {CLUSTER} uses it");
            }
            if kept(world, &v2) == Some("InUse") {
                let since: &Instant = in_use.get_or_insert_with(Instant::now);
                return Ok((since.elapsed() >= STAYS).then_some(()));
            }
            Ok(None)
        });
        let ((), after) = after.await?;
        self.true_now(Promise::V2Stays, after)
    }

    async fn hands(&mut self, worlds: &mut watch::Receiver<World>) -> Result<()> {
        self.screen.title("(d) objects of v3 are edited and deleted by hand")?;
        let inventory = self.inventory(worlds, 3)?;
        let edited = drift::edit(&self.client, &inventory).await?;
        self.put_back(worlds, &edited, Promise::EditPutBack).await?;
        let deleted = drift::delete(&self.client, &inventory, &edited).await?;
        self.put_back(worlds, &deleted, Promise::DeletedPutBack).await?;
        // The story goes on with a release that is whole.
        let v3 = self.object_name(3);
        let what = format!("{v3} to be ready again");
        self.wait(worlds, &what, SOON, async |_, world| Ok(ready(world, &v3))).await?;
        Ok(())
    }

    async fn put_back(
        &mut self,
        worlds: &mut watch::Receiver<World>,
        touched: &drift::Touched,
        promise: Promise,
    ) -> Result<()> {
        self.screen.say(&format!("    {}", touched.said))?;
        let look = async |_: &mut Self, _: &World| Ok(touched.is_put_back().await?.then_some(()));
        let ((), after) = self.wait(worlds, "it to be put back", SOON, look).await?;
        self.true_now(promise, after)
    }

    async fn moved_cluster(&mut self, worlds: &mut watch::Receiver<World>) -> Result<()> {
        self.screen.title("(e) the Cluster moves to v3's ClusterClass")?;
        let class = class_of(&self.inventory(worlds, 2)?)?.clone();
        self.cluster_of(worlds, 3).await?;
        self.gone(worlds, 2, &class, Promise::V2Collected).await
    }

    async fn subscribed(&mut self, worlds: &mut watch::Receiver<World>, n: u64, promise: Promise) -> Result<()> {
        let name = self.object_name(n);
        let what = format!("{name} to be subscribed; the source is read every 10 s");
        let look = async |_: &mut Self, world: &World| Ok(world.releases.contains_key(&name).then_some(()));
        let ((), after) = self.wait(worlds, &what, POLLED, look).await?;
        self.true_now(promise, after)
    }

    async fn ready(&mut self, worlds: &mut watch::Receiver<World>, n: u64, promise: Promise) -> Result<()> {
        let name = self.object_name(n);
        let look = async |_: &mut Self, world: &World| Ok(ready(world, &name));
        let ((), after) = self.wait(worlds, &format!("{name} to be ready"), SOON, look).await?;
        self.true_now(promise, after)
    }

    async fn collected(&mut self, worlds: &mut watch::Receiver<World>, n: u64, promise: Promise) -> Result<()> {
        // The inventory may be gone already: a ClusterClass is called like its release.
        let class = class_of(&self.inventory(worlds, n).unwrap_or_default())
            .cloned()
            .unwrap_or_else(|_| Resource { name: self.object_name(n), ..Resource::default() });
        self.gone(worlds, n, &class, promise).await
    }

    async fn gone(
        &mut self,
        worlds: &mut watch::Receiver<World>,
        n: u64,
        class: &Resource,
        promise: Promise,
    ) -> Result<()> {
        let name = self.object_name(n);
        let look = async |story: &mut Self, world: &World| {
            Ok((!world.releases.contains_key(&name) && !story.class_exists(class).await?).then_some(()))
        };
        let ((), after) = self.wait(worlds, &format!("{name} to be collected"), SOON, look).await?;
        self.true_now(promise, after)
    }

    /// Creates the Cluster of a release's ClusterClass, or moves it there. It is paused: where Cluster API runs, no
    /// machine is made.
    async fn cluster_of(&mut self, worlds: &watch::Receiver<World>, n: u64) -> Result<()> {
        let class = class_of(&self.inventory(worlds, n)?)?.name.clone();
        let version = self.status(worlds, n).map(|status| status.kubernetes_version).unwrap_or_default();
        let cluster = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta1",
            "kind": "Cluster",
            "metadata": {"name": CLUSTER, "namespace": NAMESPACE},
            "spec": {"paused": true, "topology": {"class": class, "version": version}},
        });
        let params = PatchParams::apply("clusterstack-demo").force();
        let applied =
            clusters(&self.client, "Cluster", "clusters").patch(CLUSTER, &params, &Patch::Apply(&cluster)).await;
        applied.context("cannot apply the Cluster")?;
        self.screen.say(&format!("    Cluster {CLUSTER}: spec.topology.class is {class}"))
    }

    async fn class_exists(&self, class: &Resource) -> Result<bool> {
        let api = clusters(&self.client, "ClusterClass", "clusterclasses");
        Ok(api.get_metadata_opt(&class.name).await.context("cannot read the ClusterClass")?.is_some())
    }

    fn true_now(&mut self, promise: Promise, after: Duration) -> Result<()> {
        self.promises.came_true(promise, after);
        self.screen.say(&format!("  {GOOD}✓{GOOD:#} {}: {}", promise.text(), seconds(after)))
    }

    fn inventory(&self, worlds: &watch::Receiver<World>, n: u64) -> Result<Vec<Resource>> {
        let status = self.status(worlds, n).with_context(|| format!("{} says nothing", self.object_name(n)))?;
        Ok(status.resources)
    }

    fn status(&self, worlds: &watch::Receiver<World>, n: u64) -> Option<ClusterStackReleaseStatus> {
        worlds.borrow().releases.get(&self.object_name(n))?.status.clone()
    }

    fn object_name(&self, n: u64) -> String {
        self.stack.release(n).object_name()
    }

    fn stack_name(&self) -> String {
        format!("{}-{}", self.stack.provider, self.stack.name)
    }

    fn spec(&self) -> ClusterStackSpec {
        let git = GitSource { url: self.repository.url(), ..GitSource::default() };
        ClusterStackSpec {
            provider: self.stack.provider.clone(),
            name: self.stack.name.clone(),
            kubernetes_version: self.stack.kubernetes.to_string(),
            auto_subscribe: true,
            no_provider: true,
            source: Some(Source { git: Some(git), ..Source::default() }),
            interval: Some("10s".into()),
            ..ClusterStackSpec::default()
        }
    }

    /// Looks again whenever something changes, and every 100 ms, until `look` finds something.
    async fn wait<T>(
        &mut self,
        worlds: &mut watch::Receiver<World>,
        what: &str,
        limit: Duration,
        mut look: impl AsyncFnMut(&mut Self, &World) -> Result<Option<T>>,
    ) -> Result<(T, Duration)> {
        let began = Instant::now();
        loop {
            let world = worlds.borrow_and_update().clone();
            let left = limit.saturating_sub(began.elapsed());
            let found = tokio::time::timeout(left, look(self, &world)).await;
            let after = began.elapsed();
            self.screen.show(&rows(&world), what, after)?;
            match found {
                Ok(Ok(Some(found))) => return Ok((found, after)),
                Ok(Ok(None)) if after < limit => {}
                Ok(Err(error)) => return Err(error),
                Ok(Ok(None)) | Err(_) => bail!("waited {} s for {what}{}", limit.as_secs(), said(&world)),
            }
            tokio::select! {
                changed = worlds.changed() => changed.context("the watch ended")?,
                status = self.operator.ended() => bail!("the operator ended by itself: {}", status?),
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }
}

fn class_of(inventory: &[Resource]) -> Result<&Resource> {
    inventory.iter().find(|row| row.kind == "ClusterClass").context("the release has no ClusterClass")
}

fn ready(world: &World, name: &str) -> Option<()> {
    let release = world.releases.get(name)?;
    (release.metadata.deletion_timestamp.is_none() && release.status.as_ref()?.ready).then_some(())
}

fn kept<'a>(world: &'a World, name: &str) -> Option<&'a str> {
    let status = world.stacks.values().next()?.status.as_ref()?;
    status.summary.iter().find(|row| row.name == name).map(|row| row.kept.as_str())
}

/// What the ClusterStack says is in the way.
fn said(world: &World) -> String {
    let ready = world.stacks.values().next().and_then(|stack| stack.ready());
    ready.map_or(String::new(), |c| format!("; the ClusterStack says {} {}: {}", c.status, c.reason, c.message))
}
