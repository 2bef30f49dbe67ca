//! Real input: a repository of cluster stacks with its real tags, and the CRDs that their objects need.

use std::collections::BTreeMap;

use clusterstack::api::cluster_stack_release::{Resource, ResourceStatus};
use clusterstack::api::condition::find;
use clusterstack::api::{ClusterStackRelease, ConditionType, Reason};
use clusterstack::core::name::ReleaseName;
use serde_json::{Value, json};

use crate::harness::{CLUSTER_API, INFRASTRUCTURE, Repo, World, check, cluster, install_small_kind};

/// A clone of the real repository; `None`, and a visible word, where it is missing.
fn real(t: &World, test: &str) -> Option<Repo> {
    let shared = World::shared(test)?;
    let bundle = shared.join("stacks/cluster-stacks.bundle");
    Some(Repo::mirror(&bundle, &t.dir().join("cluster-stacks.git")))
}

fn stack(provider: &str, name: &str, kubernetes: &str) -> Value {
    json!({"provider": provider, "name": name, "kubernetesVersion": kubernetes})
}

fn rows(release: &ClusterStackRelease) -> Vec<Resource> {
    release.status.clone().unwrap_or_default().resources
}

fn synced(release: &ClusterStackRelease) -> usize {
    rows(release).iter().filter(|row| row.status == ResourceStatus::Synced).count()
}

#[tokio::test]
async fn openstack_scs2_is_ready_with_its_six_objects() {
    let t = World::new("scs2").await;
    let Some(repo) = real(&t, "openstack_scs2_is_ready_with_its_six_objects") else { return };
    let _operator = t.operator(&[]);
    t.create_stack("scs2", &repo.url(), stack("openstack", "scs2", "1.34")).await;
    let status = t.ready("scs2", "v2").await.status.unwrap();
    assert_eq!(status.latest_release, "openstack-scs2-1-34-v2 | v1.34.7");
    let release = t.release_ready("openstack-scs2-1-34-v2").await;
    assert_eq!((rows(&release).len(), synced(&release)), (6, 6));
    assert!(t.get(CLUSTER_API, "ClusterClass", "openstack-scs2-1-34-v2").await.is_some());

    t.change_stack("scs2", json!({"spec": {"versions": ["v1"]}})).await;
    t.ready("scs2", "v2, v1").await;
    assert!(t.get(CLUSTER_API, "ClusterClass", "openstack-scs2-1-34-v1").await.is_some());
}

#[tokio::test]
async fn openstack_scs_names_the_object_that_is_refused_and_keeps_the_version_that_works() {
    const BROKEN: &str = "openstack-scs-1-30-v3";
    // The API server names `diskBus` or, in the same place, `scsiModel`: it has no order.
    const WORDS: [&str; 2] = [".spec.resource.properties.", ": field not declared in schema"];
    let told = |text: &str| WORDS.iter().all(|word| text.contains(word));
    let t = World::new("scs").await;
    let Some(repo) = real(&t, "openstack_scs_names_the_object_that_is_refused") else { return };
    let _operator = t.operator(&[]);
    t.create_stack("scs", &repo.url(), stack("openstack", "scs", "1.30")).await;
    t.release_says(BROKEN, ConditionType::HelmChartApplied, "False", "FailedToApplyObjects").await;
    let release = t.releases().get(BROKEN).await.unwrap();
    assert_eq!((rows(&release).len(), synced(&release)), (7, 6));
    let image = rows(&release).into_iter().find(|row| row.kind == "Image").unwrap();
    assert_eq!(image.reason, Some(Reason::Invalid));
    assert!(told(&image.error), "{}", image.error);
    for type_ in [ConditionType::Ready, ConditionType::HelmChartApplied] {
        let message = t.release_says(BROKEN, type_, "False", "FailedToApplyObjects").await;
        assert!(message.contains("Image") && told(&message), "{message}");
    }
    for (type_, status, reason) in
        [(ConditionType::Ready, "False", "ReleaseNotReady"), (ConditionType::Stalled, "True", "FailedToApplyObjects")]
    {
        let message = t.stack_says("scs", type_, status, reason).await;
        assert!(message.contains(BROKEN) && message.contains("Image") && told(&message), "{message}");
    }

    t.change_stack("scs", json!({"spec": {"versions": ["v1"]}})).await;
    t.release_ready("openstack-scs-1-30-v1").await;
    t.stack("scs", "to list v1 as usable", |stack| {
        let status = stack.status.clone().unwrap_or_default();
        let message = find(&status.conditions, ConditionType::Ready).map(|c| c.message.clone()).unwrap_or_default();
        check(status.usable_versions == "v1" && message.contains(BROKEN) && message.ends_with("usable: v1"), &status)
    })
    .await;
}

#[tokio::test]
async fn docker_ferrol_of_the_older_layout_is_ready() {
    let t = World::new("ferrol").await;
    let Some(repo) = real(&t, "docker_ferrol_of_the_older_layout_is_ready") else { return };
    let _operator = t.operator(&[]);
    t.create_stack("ferrol", &repo.url(), stack("docker", "ferrol", "1.27")).await;
    let status = t.ready("ferrol", "v2").await.status.unwrap();
    assert_eq!(status.latest_release, "docker-ferrol-1-27-v2 | v1.27.3");
    assert!(t.get(CLUSTER_API, "ClusterClass", "docker-ferrol-1-27-v2").await.is_some());
}

#[tokio::test]
async fn hetzner_baremetal_gives_each_object_its_own_reason_and_takes_what_comes() {
    const RELEASE: &str = "hetzner-baremetal-1-30-v1";
    let t = World::new("hetzner").await;
    let Some(repo) = real(&t, "hetzner_baremetal_gives_each_object_its_own_reason") else { return };
    let _operator = t.operator(&[]);
    t.create_stack("hetzner", &repo.url(), stack("hetzner", "baremetal", "1.30")).await;
    t.release_says(RELEASE, ConditionType::HelmChartApplied, "False", "FailedToApplyObjects").await;
    let release = t.releases().get(RELEASE).await.unwrap();
    for row in rows(&release) {
        let expected = match row.kind.as_str() {
            "HetznerClusterTemplate" | "HetznerBareMetalMachineTemplate" => Some(Reason::NoKindMatch),
            "ClusterClass" => Some(Reason::Invalid),
            _ => None,
        };
        assert_eq!(row.reason, expected, "{row:#?}");
        assert_eq!(row.error.is_empty(), expected.is_none(), "{row:#?}");
    }
    let missing = rows(&release).iter().filter(|row| row.reason == Some(Reason::NoKindMatch)).count();
    assert!(missing >= 2, "{:#?}", rows(&release));
    assert!(synced(&release) >= 2, "{:#?}", rows(&release));

    for kind in ["HetznerClusterTemplate", "HetznerBareMetalMachineTemplate"] {
        install_small_kind(&t, INFRASTRUCTURE, kind).await;
    }
    t.release(RELEASE, "to have applied what was missing", |release| {
        let others = rows(release).into_iter().filter(|row| row.kind != "ClusterClass");
        check(others.into_iter().all(|row| row.status == ResourceStatus::Synced), rows(release))
    })
    .await;
}

#[tokio::test]
async fn tags_that_are_no_releases_are_counted_and_a_tree_without_the_stack_blocks_nothing() {
    const WITHOUT: &str = "openstack-scs-1-27-v1";
    let t = World::new("odd").await;
    let Some(repo) = real(&t, "tags_that_are_no_releases_are_counted") else { return };
    let _operator = t.operator(&[]);
    let mut spec = stack("openstack", "scs", "1.27");
    spec["versions"] = json!(["v1"]);
    t.create_stack("odd", &repo.url(), spec).await;
    let message = t.release_says(WITHOUT, ConditionType::Ready, "False", "ReleaseInvalid").await;
    assert!(message.contains("openstack/scs"), "{message}");
    t.release_says(WITHOUT, ConditionType::Stalled, "True", "ReleaseInvalid").await;
    // The newest one is applied beside it.
    t.release("openstack-scs-1-27-v4", "to be applied", |release| check(synced(release) > 0, &release.status)).await;
    let (stack, ()) = t
        .stack("odd", "to name both", |stack| {
            let status = stack.status.clone().unwrap_or_default();
            check(status.summary.len() == 2 && status.summary.iter().all(|line| !line.phase.is_empty()), &status)
        })
        .await;
    let poll = stack.status.unwrap().last_poll.unwrap();
    assert_eq!((poll.found, poll.passed_over), (4, 4));
}

#[tokio::test]
async fn a_cluster_holds_its_real_release_and_lets_it_go() {
    const V1: &str = "openstack-scs2-1-34-v1";
    const V2: &str = "openstack-scs2-1-34-v2";
    let t = World::new("realuse").await;
    let Some(repo) = real(&t, "a_cluster_holds_its_real_release_and_lets_it_go") else { return };
    repo.tag_as("later", V2);
    repo.delete_tag(V2);
    let _operator = t.operator(&[]);
    t.create_stack("scs2", &repo.url(), stack("openstack", "scs2", "1.34")).await;
    t.ready("scs2", "v1").await;
    t.apply(&cluster("shop", V1)).await;
    repo.tag_as(V2, "later");
    t.look_again("scs2").await;
    t.ready("scs2", "v2, v1").await;
    t.apply(&cluster("shop", V2)).await;
    t.ready("scs2", "v2").await;
    t.release_gone(V1).await;

    let applied = rows(&t.release_ready(V2).await);
    t.delete_stack("scs2").await;
    let message = t.stack_says("scs2", ConditionType::Ready, "False", "InUse").await;
    assert!(message.contains("shop"), "{message}");
    t.delete(CLUSTER_API, "Cluster", "shop").await;
    t.stack_gone("scs2").await;
    for row in applied {
        let api_version = format!("{}/{}", row.group, row.version);
        assert!(t.get(&api_version, &row.kind, &row.name).await.is_none(), "{} {} is left", row.kind, row.name);
    }
}

#[tokio::test]
async fn every_real_tag_comes_to_a_clear_end() {
    let t = World::new("alltags").await;
    let Some(repo) = real(&t, "every_real_tag_comes_to_a_clear_end") else { return };
    let mut stacks: BTreeMap<String, Value> = BTreeMap::new();
    let mut releases = Vec::new();
    for tag in repo.tags() {
        let Ok(name) = tag.parse::<ReleaseName>() else { continue };
        let channel = name.version.channel().to_owned();
        let channel = if channel == "stable" { "stable" } else { "custom" };
        let stack = stacks.entry(format!("{}-{channel}", name.stem())).or_insert_with(|| {
            let mut spec = stack(&name.provider, &name.stack, &name.kubernetes.to_string());
            json_patch::merge(&mut spec, &json!({"channel": channel, "autoSubscribe": false, "versions": []}));
            spec
        });
        stack["versions"].as_array_mut().unwrap().push(json!(name.version.to_string()));
        releases.push(name.object_name());
    }
    assert!(releases.len() > 30, "{releases:?}");
    let _operator = t.operator(&[]);
    for (name, spec) in &stacks {
        t.create_stack(name, &repo.url(), spec.clone()).await;
    }
    for name in &releases {
        let (release, ()) = t
            .release(name, "to come to a clear end", |release| {
                let status = release.status.clone().unwrap_or_default();
                let told = find(&status.conditions, ConditionType::Ready).is_some_and(|ready| {
                    ready.status == "True" || (ready.reason != "Progressing" && !ready.message.is_empty())
                });
                check(told, &status)
            })
            .await;
        let ready = find(&release.status.as_ref().unwrap().conditions, ConditionType::Ready).unwrap();
        let (all, synced) = (rows(&release).len(), synced(&release));
        eprintln!("{name}: {} {} ({synced} of {all}) {}", ready.status, ready.reason, ready.message);
        // No resource controller brings images to an OpenStack here.
        if ready.reason == "ObjectsNotHealthy" {
            let is_image = |row: &Resource| row.kind == "Image" || row.health == "Current";
            assert!(ready.message.contains("Image") && rows(&release).iter().all(is_image), "{}", ready.message);
            continue;
        }
        let reasons = ["Ready", "FailedToApplyObjects", "ReleaseInvalid", "RenderFailed"];
        assert!(reasons.contains(&ready.reason.as_str()), "{name}: {}: {}", ready.reason, ready.message);
    }
}
