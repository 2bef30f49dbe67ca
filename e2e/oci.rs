//! Releases from a real OCI registry, also when it lies or the operator dies while it downloads.

use std::collections::BTreeMap;

use clusterstack::api::ConditionType;
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::{Registry, push};
use clusterstack::io::source::Access;
use serde_json::json;

use crate::harness::{Liar, Lie, RegistryServer, SETTINGS, World, assets, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

struct Served {
    t: World,
    liar: Liar,
    _registry: RegistryServer,
}

impl Served {
    /// A registry behind something that lies; `None` where there is no registry.
    async fn new(name: &str) -> Option<Self> {
        let t = World::new(name).await;
        let registry = RegistryServer::start(&t.dir().join("registry"), &[])?;
        let liar = Liar::new(&registry.host).await;
        Some(Self { t, liar, _registry: registry })
    }

    async fn push(&self, tag: &str, templates: &str) {
        let allow = AllowList::parse(["127.0.0.1"]).unwrap();
        let access = Access { insecure: true, ..Access::default() };
        let registry = Registry::new(&self.repository(), &access, &allow, &self.t.dir().join("scratch")).unwrap();
        push(&registry, tag, &assets(tag, templates), &BTreeMap::new()).await.unwrap();
        self.liar.asked();
    }

    fn repository(&self) -> String {
        format!("{}/stacks/x", self.liar.host)
    }

    async fn create_stack(&self) {
        let source = json!({"git": null, "oci": {"repository": self.repository(), "insecure": true}});
        self.t.create_stack("x", "", json!({"source": source})).await;
    }
}

#[tokio::test]
async fn releases_come_from_a_registry() {
    let Some(s) = Served::new("oci").await else { return };
    s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack().await;
    s.t.ready("x", "v1").await;
    assert_eq!(s.t.in_config_map(V1, "/data/color").await, "blue");
    let artifact = s.t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    assert_eq!(artifact.url, format!("oci://{}", s.repository()));
    assert!(artifact.revision.starts_with("sha256:"), "{artifact:?}");
    s.push(V2, SETTINGS).await;
    s.t.look_again("x").await;
    s.t.ready("x", "v2").await;
}

#[tokio::test]
async fn a_registry_that_lies_changes_nothing_that_runs_and_is_forgiven() {
    let Some(s) = Served::new("oci-lies").await else { return };
    s.push(V1, SETTINGS).await;
    let _operator = s.t.operator(&["--allow-source", &s.liar.host]);
    s.create_stack().await;
    s.t.ready("x", "v1").await;
    // A new release with other bytes than its manifest says.
    s.push(V2, SETTINGS).await;
    s.liar.set(Lie::Blob);
    s.t.look_again("x").await;
    let message = s.t.release_says(V2, ConditionType::Ready, "False", "FetchFailed").await;
    assert!(message.contains("its digest is") && message.contains("nothing of it is used"), "{message}");
    // The tag of what runs is moved.
    s.push(V1, &SETTINGS.replace("large", "small")).await;
    s.t.looked_again("x").await;
    assert_eq!(s.t.in_config_map(V1, "/data/size").await, "large");
    assert!(s.t.config_map(V2).await.is_none());
    s.liar.set(Lie::None);
    s.t.ready("x", "v2").await;
}

#[tokio::test]
async fn an_operator_that_is_killed_goes_on_with_a_download_where_it_ended() {
    let Some(s) = Served::new("oci-killed").await else { return };
    let filler = "# much to download\n".repeat(50_000);
    s.push(V1, &format!("{filler}{SETTINGS}")).await;
    s.liar.set(Lie::Stall(500_000));
    let flags = ["--allow-source", s.liar.host.as_str()];
    let operator = s.t.operator(&flags);
    s.create_stack().await;
    wait_for("half a blob", || async {
        let parts = std::fs::read_dir(s.t.store().join("scratch/blobs")).map_err(|error| error.to_string())?;
        let sizes: Vec<u64> = parts.flatten().filter_map(|part| Some(part.metadata().ok()?.len())).collect();
        if sizes.contains(&500_000) { Ok(()) } else { Err(format!("{sizes:?}")) }
    })
    .await;
    operator.kill();
    s.liar.set(Lie::None);
    s.liar.asked();
    let _operator = s.t.operator(&flags);
    s.t.ready("x", "v1").await;
    let ranges: Vec<String> = s.liar.asked().into_iter().filter_map(|asked| asked.range).collect();
    assert_eq!(ranges, ["bytes=500000-"]);
}
