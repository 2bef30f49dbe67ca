//! Jobs of node images whose pods run, on a Node, at Pod Security level restricted: the image is made while operators are
//! killed, its log is followed, and whatever ends a pod is told.

use clusterstack::api::image_release::ImagePhase;
use clusterstack::core::image::job::selector;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::harness::{IMAGE, ImageServer, Images, Node, RegistryServer, SHELL, World, check, sum, wait_for};
use crate::image_logs::Reader;

const LEVEL: &str = "pod-security.kubernetes.io/enforce=restricted";

/// A container that level restricted lets be, which runs a script.
fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name, "image": SHELL, "command": ["bash", "-ec", script],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    })
}

/// A pod with a container `build` that runs a script.
fn pod(script: &str) -> Value {
    let security = json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    json!({"spec": {
        "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1, "securityContext": security,
        "containers": [container("build", script)], "volumes": [{"name": "work", "emptyDir": {"sizeLimit": "10Mi"}}],
    }})
}

async fn job(images: &Images<'_>, template: &str, pod: Value) {
    let build = json!({"executor": "Job", "retries": 0, "concurrency": 16, "job": {"template": pod}});
    images.template_called(template, json!({"build": build})).await;
    // None of them comes to its steps.
    let steps =
        json!([{"download": {"url": "https://images.example.org/a.raw", "checksum": format!("sha256:{}", sum(b"x"))}}]);
    images.make_by(template, &json!({"name": template, "format": "raw", "steps": steps})).await;
}

async fn has_failed(images: &Images<'_>, image: &str) -> String {
    images.status_is(image, "to fail", |status| status.phase == ImagePhase::Failed).await.message
}

#[tokio::test]
async fn a_job_makes_its_image_while_operators_are_killed() {
    const TEST: &str = "a job makes its image";
    let Some(t) = World::with_pods("jobpod", TEST).await else { return };
    t.kubectl(&["label", "namespace", &t.namespace, LEVEL]);
    t.allow_image_jobs().await;
    let (images, content) = (Images::of(&t), b"a disk ".repeat(300_000));
    let disks = ImageServer::new(&content).await;
    let Some(registry) = RegistryServer::start(&t.dir().join("registry"), &[]) else { return };
    let oci = json!({"repository": format!("{}/images", registry.host), "insecure": true});
    let build = json!({"executor": "Job", "retries": 0, "job": {"image": IMAGE}});
    images.template(json!({"destination": {"directory": null, "oci": oci}, "build": build})).await;
    let mut flags = images.flags(&disks.host());
    flags.extend(["--allow-source".into(), registry.host.clone()]);
    let first = images.operator(&flags);
    disks.set(|mode| mode.held = vec!["a.raw".into()]);
    let steps = json!([
        {"download": {"url": disks.url("a.raw"), "checksum": format!("sha256:{}", sum(&content))}},
        {"compress": {"algorithm": "gzip"}},
    ]);
    images.make(&json!({"name": "made", "format": "raw", "steps": steps})).await;
    let reader = Reader::start(&t, "made");
    reader.has("step download begins").await;
    let half = content.len() as u64 / 2;
    let is_half = |status: &clusterstack::api::image_release::ProviderNodeImageReleaseStatus| {
        status.progress.as_ref().is_some_and(|progress| progress.done >= half)
    };
    images.status_is("made", "to be half there", is_half).await;
    first.kill();
    let second = images.operator(&flags);
    images
        .status_is("made", "to be followed by the next", |status| {
            status.attempt == 2 && status.phase == ImagePhase::Running && is_half(status)
        })
        .await;
    second.kill();
    disks.set(|mode| mode.held.clear());
    reader.has("step register is done").await;
    wait_for("the Job to end while nobody is there", || async {
        let jobs = t.api("batch/v1", "Job").list(&ListParams::default()).await.unwrap().items;
        check(jobs.len() == 1 && jobs[0].data["status"]["succeeded"] == 1, jobs)
    })
    .await;
    let _third = images.operator(&flags);
    let (output, log) = reader.ended().await;
    assert!(output.status.success(), "{output:?}");
    let done =
        images.status_is("made", "to be made", |s| s.phase == ImagePhase::Succeeded && !s.location.is_empty()).await;
    for step in ["download", "compress", "upload", "register"] {
        assert_eq!(log.matches(&format!("step {step} begins")).count(), 1, "{log}");
    }
    assert_eq!(disks.asked().iter().filter(|asked| asked.starts_with("get")).count(), 1, "it was loaded again");
    assert!(log.contains(&done.digest), "{} is none of {log}", done.digest);
    assert_eq!(done.location, format!("oci://{}/images:made", registry.host));
}

#[tokio::test]
async fn whatever_ends_a_pod_is_told_and_its_log_is_kept() {
    const TEST: &str = "whatever ends a pod is told";
    let Some(t) = World::with_pods("jobends", TEST).await else { return };
    t.kubectl(&["label", "namespace", &t.namespace, LEVEL]);
    t.allow_image_jobs().await;
    let images = Images::of(&t);
    let _operator = images.operator(&images.flags("127.0.0.1:1"));

    let mut hungry = pod("echo hungry; x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}");
    hungry["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "40Mi"}});
    let fills = pod("echo filling; head -c 30000000 /dev/zero > /work/big; sleep 100");
    let mut unprepared = pod("echo never");
    unprepared["spec"]["initContainers"] = json!([container("prepare", "echo no tape in the drive; exit 3")]);
    let mut lacks = pod("echo never");
    lacks["spec"]["containers"][0]["image"] = json!("registry.example.com/none:1");
    let mut keyless = pod("echo never");
    keyless["spec"]["volumes"][0] = json!({"name": "work", "secret": {"secretName": "no-key"}});
    let root = {
        let mut root = pod("echo never");
        root["spec"]["securityContext"]["runAsUser"] = json!(0);
        root
    };
    let told = "echo fetching packages; sleep 3; echo no space left; echo no space left; exit 78";
    for (name, pod) in [
        ("hungry", hungry),
        ("fills", fills),
        ("unprepared", unprepared),
        ("lacks", lacks),
        ("keyless", keyless),
        ("root", root),
        ("late", pod("sleep infinity")),
        ("told", pod(told)),
    ] {
        job(&images, name, pod).await;
    }

    let reader = Reader::start(&t, "told");
    reader.has("fetching packages\n").await;
    let (output, log) = reader.ended().await;
    assert_eq!(log, "fetching packages\nno space left\nno space left\n", "{output:?}");
    for (name, expected) in [
        ("told", "container build exited 78: fetching packages no space left no space left"),
        ("hungry", "container build exited 137, OOMKilled: hungry"),
        ("fills", "Evicted (Usage of EmptyDir volume \"work\" exceeds the limit \"10Mi\".): filling"),
        ("unprepared", "container prepare exited 3: no tape in the drive"),
        ("root", "violates PodSecurity \"restricted"),
    ] {
        if name == "hungry" && !Node::limits_memory() {
            continue;
        }
        let message = has_failed(&images, name).await;
        assert!(message.contains(expected), "{name}: {message}");
    }
    for (name, expected) in [
        ("lacks", "failed to pull \"registry.example.com/none:1\""),
        ("keyless", "FailedMount: MountVolume.SetUp failed for volume \"work\" : secrets \"no-key\" not found"),
    ] {
        images.status_is(name, "to say what it waits for", |status| status.log_tail.contains(expected)).await;
    }
    // The Secret comes, and the pod with it.
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "no-key"}, "stringData": {"a": "b"}}))
        .await;
    let message = has_failed(&images, "keyless").await;
    assert!(message.contains("container build exited 0, but gave no result"), "{message}");

    // One that runs is ended with its pod; what failed keeps its pod for who reads it.
    assert!(images.ask(&["cancel", "late", "--wait", "3m"]).await.status.success());
    let labels = |name: &'static str| async {
        let uid = images.api.get(name).await.unwrap().uid().unwrap();
        ListParams::default().labels(&selector(&uid))
    };
    for (name, left) in [("late", 0), ("unprepared", 1), ("fills", 1), ("hungry", 1)] {
        let of = labels(name).await;
        wait_for(format!("{left} pods of {name}"), || async {
            let pods = t.api("v1", "Pod").list(&of).await.unwrap().items;
            check(pods.len() == left, pods)
        })
        .await;
    }
}
