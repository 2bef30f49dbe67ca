//! Real stacks from the assets of GitHub and from a registry, and archives that were made to harm.

use std::collections::BTreeMap;
use std::io::Write;

use bytes::Bytes;
use clusterstack::api::ConditionType;
use clusterstack::api::condition::find;
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::Access;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::gitlab::packed;
use crate::harness::{CLUSTER_API, GitHub, RegistryServer, Repo, SETTINGS, World, assets, check, push};

const STACK: &str = "providers/openstack/scs2";

/// Brings v1, then v2 of a real stack from a source to Ready; `publish` puts the assets of a tag there.
async fn comes_from(t: &World, source: Value, publish: impl AsyncFn(String, BTreeMap<String, Bytes>), test: &str) {
    let Some(shared) = World::shared(test) else { return };
    let repo = Repo::mirror(&shared.join("stacks/cluster-stacks.bundle"), &t.dir().join("cluster-stacks.git"));
    let release = async |version: &str| {
        let tag = format!("openstack-scs2-1-34-{version}");
        publish(tag.clone(), packed(t, &repo, &tag, STACK)).await;
    };
    release("v1").await;
    t.create_stack("scs2", "", json!({"provider": "openstack", "name": "scs2", "source": source})).await;
    t.ready("scs2", "v1").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", "openstack-scs2-1-34-v1").await.is_some());
    let rows = t.release_ready("openstack-scs2-1-34-v1").await.status.unwrap().resources.len();
    assert_eq!(rows, 6);
    release("v2").await;
    t.look_again("scs2").await;
    t.ready("scs2", "v2").await;
}

#[tokio::test]
async fn a_real_stack_comes_from_the_assets_of_github() {
    let t = World::new("realgithub").await;
    let server = GitHub::start().await;
    let _operator = t.operator(&["--allow-source", server.host()]);
    let publish = async |tag: String, files: BTreeMap<String, Bytes>| server.publish(&tag, &files);
    comes_from(&t, server.source(), publish, "a_real_stack_comes_from_the_assets_of_github").await;
}

fn registry(t: &World, repository: &str) -> Registry {
    let allow = AllowList::parse(["127.0.0.1"]).unwrap();
    let access = Access { insecure: true, ..Access::default() };
    Registry::new(repository, &access, &allow, &t.dir().join("scratch")).unwrap()
}

#[tokio::test]
async fn a_real_stack_comes_from_a_registry() {
    let t = World::new("realoci").await;
    let Some(server) = RegistryServer::start(&t.dir().join("registry"), &[]) else { return };
    let repository = format!("{}/stacks", server.host);
    let registry = registry(&t, &repository);
    let _operator = t.operator(&["--allow-source", &server.host]);
    let publish = async |tag: String, files: BTreeMap<String, Bytes>| {
        push(&registry, &tag, &files).await.unwrap();
    };
    let source = json!({"git": null, "oci": {"repository": repository, "insecure": true}});
    comes_from(&t, source, publish, "a_real_stack_comes_from_a_registry").await;
}

/// An archive with one entry beside a chart that is good.
fn hostile(kind: EntryType, path: &str, link: &str, size: u64) -> Bytes {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    let mut chart = Header::new_gnu();
    let text = b"apiVersion: v2\nname: docker-x-1-34-cluster-class\nversion: v1\n";
    chart.set_size(text.len() as u64);
    chart.set_mode(0o644);
    builder.append_data(&mut chart, "docker-x-1-34-cluster-class/Chart.yaml", &text[..]).unwrap();
    let mut header = Header::new_gnu();
    // By its bytes: the library writes no such name.
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append(&header, std::io::Read::take(std::io::repeat(0), size)).unwrap();
    let mut packed = builder.into_inner().unwrap();
    packed.flush().unwrap();
    packed.finish().unwrap().into()
}

#[tokio::test]
async fn an_archive_that_was_made_to_harm_is_told_and_changes_nothing() {
    let t = World::new("hostile").await;
    let Some(server) = RegistryServer::start(&t.dir().join("registry"), &[]) else { return };
    let repository = format!("{}/stacks", server.host);
    let registry = registry(&t, &repository);
    let name = |version: usize| format!("docker-x-1-34-v{version}");
    push(&registry, &name(1), &assets(&name(1), SETTINGS)).await.unwrap();
    let mut operator = t.operator(&["--allow-source", &server.host]);
    let source = json!({"git": null, "oci": {"repository": repository, "insecure": true}});
    t.create_stack("x", "", json!({"source": source})).await;
    t.ready("x", "v1").await;
    let evil = t.dir().join("evil");
    let (file, target) = (EntryType::Regular, evil.to_str().unwrap());
    let mut version = 1;
    for (kind, path, link, size, word) in [
        (file, "../../../../../../../../../../tmp/evil", "", 5, "evil"),
        (file, target, "", 5, "evil"),
        (EntryType::Symlink, "docker-x-1-34-cluster-class/link", "/etc/passwd", 0, "link"),
        (EntryType::Link, "docker-x-1-34-cluster-class/hard", "/etc/passwd", 0, "hard"),
        (EntryType::Char, "docker-x-1-34-cluster-class/device", "", 0, "device"),
        (file, "docker-x-1-34-cluster-class/bomb", "", 2 << 30, "bomb"),
    ] {
        version += 1;
        let mut files = assets(&name(version), SETTINGS);
        let chart = format!("docker-x-1-34-cluster-class-v{version}.tgz");
        assert!(files.insert(chart, hostile(kind, path, link, size)).is_some());
        push(&registry, &name(version), &files).await.unwrap();
        t.look_again("x").await;
        t.release(&name(version), &format!("to refuse {path}"), |release| {
            let conditions = release.status.clone().unwrap_or_default().conditions;
            let said = find(&conditions, ConditionType::Ready).cloned();
            check(said.is_some_and(|said| said.status == "False" && said.message.contains(word)), conditions)
        })
        .await;
        assert!(t.release_ready(&name(1)).await.status.unwrap().ready && t.config_map(&name(1)).await.is_some());
        assert!(!evil.exists(), "{path} was written");
    }
    version += 1;
    push(&registry, &name(version), &assets(&name(version), SETTINGS)).await.unwrap();
    t.look_again("x").await;
    t.ready("x", &format!("v{version}")).await;
    assert!(operator.is_running());
}
