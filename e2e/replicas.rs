//! Several replicas share the work: each object is worked on by one, and nothing is left alone for long.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clusterstack::api::{API_VERSION, ConditionType, OperatorShard, RECONCILE_AT, SHARD_CLASS};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{
    CLASS, GitServer, ImageServer, Images, Operator, Proxy, QUICK, Request, SETTINGS, Weather, World, check, cluster,
    sum, unique, wait_for, wait_within,
};

/// How long a replica acts after its last renewal.
const TERM: SignedDuration = SignedDuration::from_secs(10);
/// ClusterStacks, and Clusters of the first one.
const STACKS: usize = 30;
const CLUSTERS: usize = 12;

/// Replicas of a test, each under a name that the audit log shows, and when members came and went.
struct Fleet<'t> {
    t: &'t World,
    flags: Vec<String>,
    running: BTreeMap<String, Operator>,
    changes: Vec<Timestamp>,
}

impl<'t> Fleet<'t> {
    fn new(t: &'t World, flags: &[String]) -> Self {
        Self { t, flags: flags.to_vec(), running: BTreeMap::new(), changes: Vec::new() }
    }

    fn start(&mut self, name: &str, more: &[&str]) {
        let kubeconfig = self.t.plane.kubeconfig.clone();
        self.start_by(&kubeconfig, name, more);
    }

    fn start_by(&mut self, kubeconfig: &Path, name: &str, more: &[&str]) {
        let store = self.t.dir().join(format!("store-{name}"));
        let work = self.t.dir().join(format!("work-{name}"));
        let own = ["--release-dir", store.to_str().unwrap(), "--image-dir", work.to_str().unwrap()];
        let mut flags = vec!["--leader-elect", "--leader-elect-namespace", &self.t.namespace];
        flags.extend(own);
        flags.extend(self.flags.iter().map(String::as_str));
        flags.extend(more);
        self.changes.push(Timestamp::now());
        let operator = Operator::start_with(self.t, kubeconfig, &flags, &[("POD_NAME", Path::new(name))]);
        self.running.insert(name.to_owned(), operator);
    }

    fn take(&mut self, name: &str) -> Operator {
        self.changed();
        self.running.remove(name).unwrap()
    }

    /// Members are about to change.
    fn changed(&mut self) {
        self.changes.push(Timestamp::now());
    }

    /// When replicas lost their Lease, or came back, because the machine or the API server was too slow.
    fn lapses(&self) -> Vec<Timestamp> {
        let logs = std::fs::read_dir(self.t.dir()).unwrap().flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let text: String = logs.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let is_one = |line: &&str| {
            line.contains("members::keeper") && (line.contains("joining") || line.contains("left to others"))
        };
        text.lines().filter(is_one).filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }

    /// All changes of members, wanted or not.
    fn all_changes(&self) -> Vec<Timestamp> {
        let mut all = self.lapses();
        all.extend(&self.changes);
        all.sort();
        all
    }

    /// Whether every replica kept its Lease since then, and none came.
    fn is_quiet_since(&self, then: Timestamp) -> bool {
        let quiet = self.lapses().into_iter().all(|lapse| lapse < then);
        if !quiet {
            println!(
                "a replica lost its Lease meanwhile, for this machine is busy: what moves with that is not counted"
            );
        }
        quiet
    }

    /// Waits until these replicas act by the same members; what each has, by its name.
    async fn settled(&self, names: &[&str]) -> BTreeMap<String, OperatorShard> {
        let api: Api<OperatorShard> = Api::all(self.t.client.clone());
        wait_for(format!("{names:?} to share the work"), || async {
            let all = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let mut ours: Vec<OperatorShard> =
                all.into_iter().filter(|shard| shard.spec.lease_namespace == self.t.namespace).collect();
            let status = |shard: &OperatorShard| shard.status.clone().unwrap_or_default();
            // What is left of one that was killed is collected later.
            ours.retain(|shard| names.iter().any(|name| shard.spec.identity.starts_with(&format!("{name}_"))));
            let newest = ours.iter().filter(|shard| status(shard).members.len() == names.len());
            let by_name: BTreeMap<String, OperatorShard> = newest
                .filter(|shard| status(shard).ready)
                .map(|shard| (shard.spec.identity.rsplit_once('_').unwrap().0.to_owned(), shard.clone()))
                .collect();
            let seen: BTreeSet<Vec<String>> = by_name.values().map(|shard| status(shard).members).collect();
            check(by_name.len() == names.len() && seen.len() == 1, &ours).map(|()| by_name)
        })
        .await
    }

    /// Asks for a look at all ClusterStacks, and waits until all were looked at.
    async fn all_are_looked_at(&self) {
        let at = self.ask().await;
        self.looked_at(&at).await;
    }

    async fn ask(&self) -> String {
        let at = unique("at");
        for stack in self.t.stacks().list(&ListParams::default()).await.unwrap() {
            let name = stack.metadata.name.unwrap();
            let patch = Patch::Merge(json!({"metadata": {"annotations": {RECONCILE_AT: at}}}));
            self.t.stacks().patch(&name, &PatchParams::default(), &patch).await.unwrap();
        }
        at
    }

    async fn looked_at(&self, at: &str) {
        wait_for("every ClusterStack to be looked at", || async {
            let stacks = self.t.stacks().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let handled = |status: &clusterstack::api::ClusterStackStatus| status.last_handled_reconcile_at == at;
            let others: Vec<_> =
                stacks.items.into_iter().filter(|stack| !stack.status.as_ref().is_some_and(handled)).collect();
            let names: Vec<_> = others.iter().map(|stack| stack.metadata.name.clone()).collect();
            check(others.is_empty(), names)
        })
        .await;
    }

    /// Who looked at each ClusterStack last, by what reached the API server between two marks.
    fn owners(&self, from: usize, to: usize) -> BTreeMap<String, String> {
        let writes =
            self.t.requests(from, to).into_iter().filter(|request| {
                request.resource == "clusterstacks/status" && request.is_write() && request.is_done()
            });
        writes.map(|request| (request.name, request.by)).collect()
    }
}

/// What replicas wrote to objects, in the order in which the API server got it; leases and events are each one's own.
fn writes(requests: Vec<Request>) -> Vec<Request> {
    let is_shared = |request: &Request| {
        request.is_write() && request.is_done() && !matches!(request.resource.as_str(), "leases" | "events")
    };
    let mut writes: Vec<Request> = requests.into_iter().filter(is_shared).collect();
    writes.sort_by_key(|request| request.received);
    writes
}

/// No object is written to by two replicas but one after the other: each change of members moves it once at most. How much
/// each replica wrote.
fn each_object_has_one(requests: Vec<Request>, changes: &[Timestamp]) -> BTreeMap<String, usize> {
    let mut last: BTreeMap<(String, String), (Request, Timestamp)> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in writes(requests) {
        *counts.entry(write.by.clone()).or_default() += 1;
        let key = (write.resource.clone(), write.name.clone());
        let Some((before, used)) = last.get(&key).cloned() else {
            last.insert(key, (write, Timestamp::MIN));
            continue;
        };
        let mut used = used;
        if before.by != write.by {
            let change = changes.iter().find(|change| **change > used && **change <= write.received);
            used = *change.unwrap_or_else(|| panic!("{before:#?}\nand then, with no change of members,\n{write:#?}"));
        }
        last.insert(key, (write, used));
    }
    counts
}

/// The first write of anybody else to what was of a lost replica comes a term after its last renewal.
fn waited_for(requests: &[Request], lost: &str, before: &BTreeMap<String, String>) -> Vec<SignedDuration> {
    let renewed = requests
        .iter()
        .filter(|request| request.by == lost && request.resource == "leases" && request.is_write() && request.is_done())
        .map(|request| request.received)
        .max()
        .unwrap_or_else(|| panic!("{lost} renewed nothing"));
    let taken = requests.iter().filter(|request| {
        let was_its = before.get(&request.name).is_some_and(|by| by == lost);
        was_its && request.resource == "clusterstacks/status" && request.is_write() && request.by != lost
    });
    let mut first: BTreeMap<&str, SignedDuration> = BTreeMap::new();
    for request in taken.filter(|request| request.received > renewed) {
        first.entry(&request.name).or_insert(request.received.duration_since(renewed));
    }
    first.into_values().collect()
}

#[tokio::test]
async fn replicas_that_come_go_die_and_sleep_never_have_one_object_together() {
    let t = World::new("replicas").await;
    let from = t.audit_mark().await;
    let repo = t.repo();
    repo.release("docker-x-1-0-v1", CLASS);
    for n in 1..STACKS {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
    }
    let content = b"a disk ".repeat(1000);
    let (images, disks) = (Images::of(&t), ImageServer::new(&content).await);
    images.template(json!({})).await;
    let mut flags = images.flags(&disks.host());
    flags.drain(0..2);
    let mut fleet = Fleet::new(&t, &flags);
    fleet.start("r1", &[]);
    for n in 0..STACKS {
        let spec = json!({"kubernetesVersion": format!("1.{n}")});
        t.create_stack(&format!("x-{n}"), &repo.url(), spec).await;
    }
    for n in 0..CLUSTERS {
        t.apply(&cluster(&format!("c-{n}"), "docker-x-1-0-v1")).await;
    }
    let checksum = format!("sha256:{}", sum(&content));
    let names: Vec<String> = (0..10).map(|n| format!("disk-{n}")).collect();
    for name in &names {
        let url = disks.url(&format!("{name}.raw"));
        let steps = json!([{"download": {"url": url, "checksum": checksum}}]);
        images.make(&json!({"name": name, "format": "raw", "steps": steps})).await;
    }
    fleet.settled(&["r1"]).await;

    // Two more while the work is under way.
    fleet.start("r2", &[]);
    fleet.start("r3", &[]);
    let shares = fleet.settled(&["r1", "r2", "r3"]).await;
    for n in 0..STACKS {
        t.ready(&format!("x-{n}"), "v1").await;
    }
    images.are(&names, clusterstack::api::image_release::ImagePhase::Succeeded).await;
    for n in 0..CLUSTERS {
        t.there(API_VERSION, "ClusterAddon", &format!("cluster-addon-c-{n}")).await;
    }
    assert_eq!(shares.values().filter(|shard| shard.status.as_ref().unwrap().leader).count(), 1);
    let marks = [t.audit_mark().await, {
        fleet.all_are_looked_at().await;
        t.audit_mark().await
    }];
    let [Some(a), Some(b)] = marks else { return };
    let of_three = fleet.owners(a, b);
    assert_eq!(of_three.len(), STACKS);
    assert_eq!(of_three.values().collect::<BTreeSet<_>>().len(), 3, "{of_three:?}");

    let then = Timestamp::now();
    fleet.start("r4", &[]);
    fleet.start("r5", &[]);
    fleet.settled(&["r1", "r2", "r3", "r4", "r5"]).await;
    let settled = Timestamp::now();
    let c = t.audit_mark().await.unwrap();
    fleet.all_are_looked_at().await;
    let d = t.audit_mark().await.unwrap();
    let of_five = fleet.owners(c, d);
    let moved: Vec<_> = of_five.iter().filter(|(stack, by)| of_three[*stack] != **by).collect();
    let lapsed = fleet.lapses().into_iter().filter(|lapse| *lapse >= then).count();
    if lapsed == 2 {
        assert!(moved.iter().all(|(_, by)| matches!(by.as_str(), "r4" | "r5")), "{moved:?}");
        println!("3 to 5 replicas: {} of {STACKS} ClusterStacks moved, all to those that came", moved.len());
        assert!(!moved.is_empty() && moved.len() * 5 <= STACKS * 4, "{moved:?}");
    }

    // One is killed, one sleeps, in the middle of work.
    let asked = fleet.ask().await;
    fleet.take("r4").kill();
    fleet.changed();
    fleet.running["r2"].signal("STOP");
    fleet.looked_at(&asked).await;
    fleet.settled(&["r1", "r3", "r5"]).await;
    let again = fleet.ask().await;
    fleet.looked_at(&again).await;
    let e = t.audit_mark().await.unwrap();
    let of_rest = fleet.owners(d, e);
    let kept = |by: &'static str| of_five.iter().filter(move |(_, owner)| *owner == by).map(|(stack, _)| stack);
    let is_quiet = fleet.is_quiet_since(settled);
    for by in ["r1", "r3", "r5"].into_iter().filter(|_| is_quiet) {
        assert!(kept(by).all(|stack| of_rest[stack] == by), "{by} lost what it had: {of_five:?} {of_rest:?}");
    }
    let requests = t.requests(from.unwrap(), e);
    for lost in ["r2", "r4"] {
        let waits = waited_for(&requests, lost, &of_five);
        println!("what was of {lost} was looked at {:?} after its last renewal", waits.iter().max());
        assert!(waits.iter().all(|wait| *wait >= TERM), "{lost}: {waits:?}");
    }

    // It wakes up, has nothing, and comes back as another member.
    fleet.changed();
    fleet.running["r2"].signal("CONT");
    fleet.settled(&["r1", "r2", "r3", "r5"]).await;
    assert!(fleet.running["r2"].log().contains("left to others"));
    fleet.all_are_looked_at().await;

    // Who is asked to stop leaves what it has at once.
    let last = t.audit_mark().await.unwrap();
    for name in ["r1", "r3"] {
        assert!(fleet.take(name).terminate().await.success());
    }
    let asked = fleet.ask().await;
    wait_within(QUICK, "what two replicas left to be looked at", || async {
        let stacks = t.stacks().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let is = |status: &clusterstack::api::ClusterStackStatus| status.last_handled_reconcile_at == asked;
        let left = stacks.items.iter().filter(|stack| !stack.status.as_ref().is_some_and(is)).count();
        check(left == 0, left)
    })
    .await;
    fleet.settled(&["r2", "r5"]).await;
    let to = t.audit_mark().await.unwrap();
    assert_eq!(fleet.owners(last, to).len(), STACKS);
    let counts = each_object_has_one(t.requests(from.unwrap(), to), &fleet.all_changes());
    println!("writes of each replica: {counts:?}");
    assert_eq!(counts.len(), 5, "{counts:?}");
}

#[tokio::test]
async fn a_replica_that_is_cut_off_stops_and_comes_back_by_itself() {
    let t = World::new("cutoff").await;
    let from = t.audit_mark().await;
    let repo = t.repo();
    for n in 0..8 {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
        t.create_stack(&format!("x-{n}"), &repo.url(), json!({"kubernetesVersion": format!("1.{n}")})).await;
    }
    let proxy = Proxy::start(t.client.clone(), t.dir()).await;
    let mut fleet = Fleet::new(&t, &[]);
    fleet.start("near", &[]);
    fleet.start_by(proxy.kubeconfig(), "far", &[]);
    fleet.settled(&["near", "far"]).await;
    for n in 0..8 {
        t.ready(&format!("x-{n}"), "v1").await;
    }
    fleet.changed();
    proxy.set(Weather::Down);
    wait_for("the one that is cut off to stop", || async {
        check(fleet.running["far"].log().contains("left to others"), "it did not say so")
    })
    .await;
    fleet.settled(&["near"]).await;
    fleet.all_are_looked_at().await;
    fleet.changed();
    proxy.set(Weather::Fair);
    fleet.settled(&["near", "far"]).await;
    fleet.all_are_looked_at().await;
    let (Some(from), Some(to)) = (from, t.audit_mark().await) else { return };
    let counts = each_object_has_one(t.requests(from, to), &fleet.all_changes());
    println!("writes of each replica: {counts:?}");
    assert!(counts.contains_key("near"), "{counts:?}");
}

#[tokio::test]
async fn a_shard_class_is_for_the_replicas_that_take_it() {
    let t = World::new("classes").await;
    let from = t.audit_mark().await;
    let repo = t.repo();
    let mut fleet = Fleet::new(&t, &[]);
    fleet.start("all", &[]);
    fleet.start("big", &["--shard-class", "big"]);
    fleet.settled(&["all", "big"]).await;
    for (n, (name, labels)) in
        [("plain", json!({})), ("large", json!({SHARD_CLASS: "big"})), ("odd", json!({SHARD_CLASS: "rare"}))]
            .iter()
            .enumerate()
    {
        repo.release(&format!("docker-x-1-{n}-v1"), SETTINGS);
        let mut stack = json!({"apiVersion": API_VERSION, "kind": "ClusterStack"});
        // It has its class from the beginning.
        stack["metadata"] = json!({"name": name, "labels": labels});
        stack["spec"] = json!({
            "provider": "docker", "name": "x", "kubernetesVersion": format!("1.{n}"), "noProvider": true, "interval": "10s",
            "source": {"git": {"url": repo.url()}},
        });
        t.apply(&stack).await;
    }
    t.ready("plain", "v1").await;
    t.ready("large", "v1").await;
    let message = t.stack_says("odd", ConditionType::Ready, "False", "ShardClassUnserved").await;
    assert!(message.contains("shard class \"rare\""), "{message}");
    t.event("ShardClassUnserved", "start one with --shard-class rare").await;
    fleet.start("rare", &["--shard-class", "rare,rarer"]);
    t.ready("odd", "v1").await;
    // A class that changes moves the object.
    t.change_stack("large", json!({"metadata": {"labels": {SHARD_CLASS: "rarer"}}})).await;
    let at = unique("at");
    t.change_stack("large", json!({"metadata": {"annotations": {RECONCILE_AT: at}}})).await;
    let handled = |status: &clusterstack::api::ClusterStackStatus| status.last_handled_reconcile_at == at;
    t.stack("large", "to be looked at by the other replica", |stack| {
        check(stack.status.as_ref().is_some_and(handled), &stack.status)
    })
    .await;
    let text = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args(["shards", "-o", "json"])
        .env("KUBECONFIG", &t.plane.kubeconfig)
        .output()
        .unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&text.stdout).unwrap();
    let row =
        rows.iter().find(|row| row["shardClasses"] == json!(["rare", "rarer"])).unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!((row["ready"].as_bool(), row["leaseNamespace"].as_str()), (Some(true), Some(t.namespace.as_str())));
    let (Some(from), Some(to)) = (from, t.audit_mark().await) else { return };
    let by = |name: &str| -> BTreeSet<String> {
        let requests = writes(t.requests(from, to));
        let of =
            requests.into_iter().filter(|request| request.name == name && request.resource == "clusterstacks/status");
        of.map(|request| request.by).collect()
    };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(by("plain"), names(&["all"]));
    assert_eq!(by("large"), names(&["big", "rare"]));
    assert!(by("odd").contains("rare"));
}

#[tokio::test]
async fn a_hook_that_reaches_any_replica_is_heard_by_the_one_that_has_the_object() {
    let t = World::new("hooked").await;
    let repo = t.repo();
    repo.release("docker-x-1-34-v1", SETTINGS);
    let server = GitServer::start(repo.dir().parent().unwrap()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hook"}, "stringData": {"token": "swordfish"}}))
        .await;
    let flags = ["--receiver-bind-address", "127.0.0.1:0", "--allow-source", server.host()].map(str::to_owned);
    let mut fleet = Fleet::new(&t, &flags);
    fleet.start("a", &[]);
    fleet.start("b", &[]);
    fleet.settled(&["a", "b"]).await;
    // The interval is no help.
    let receiver = json!({"interval": "1h", "receiver": {"secretRef": {"name": "hook"}}});
    let mut source = json!({"apiVersion": API_VERSION, "kind": "ClusterStackSource", "metadata": {"name": "shared"}});
    source["spec"] = json!({"source": {"git": {"url": url}}});
    json_patch::merge(&mut source["spec"], &receiver);
    t.apply(&source).await;
    t.create_stack("x", "", json!({"source": null, "sourceRef": {"name": "shared"}, "interval": "1h"})).await;
    t.ready("x", "v1").await;
    for (n, replica) in ["a", "b"].into_iter().enumerate() {
        repo.release(&format!("docker-x-1-34-v{}", n + 2), SETTINGS);
        let path = format!("/hook/{}/shared", t.namespace);
        let answer = fleet.running[replica].post("receiver", &path, &[("X-Gitlab-Token", "swordfish")], "{}").await;
        assert!(answer.contains(" 202 "), "{answer}");
        t.release_ready(&format!("docker-x-1-34-v{}", n + 2)).await;
    }
}
