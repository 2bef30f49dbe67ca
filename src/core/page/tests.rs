//! Pages as they come out: what hostile texts, a thousand stacks and a large release make of them.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::api::{
    ClusterAddon, ClusterStack, ClusterStackRelease, ProviderClusterStackRelease, ProviderNodeImageRelease,
};
use crate::core::in_use::ClusterUse;
use crate::core::tree::ClusterView;

const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;";

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn stack(namespace: &str, name: &str, status: &Value) -> Arc<ClusterStack> {
    Arc::new(read(json!({
        "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack",
        "metadata": {"name": name, "namespace": namespace, "uid": "u"},
        "spec": {"provider": "docker", "name": "x", "kubernetesVersion": "1.34", "noProvider": true},
        "status": status,
    })))
}

fn release(namespace: &str, name: &str, ready: &Value, rows: &Value) -> ClusterStackRelease {
    read(json!({
        "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStackRelease",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [
            {"apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterStack", "name": "x", "uid": "u"}]},
        "spec": {"providerRef": {"kind": "ProviderClusterStackRelease", "name": name}},
        "status": {"kubernetesVersion": "v1.34.7", "resources": rows, "conditions": [ready]},
    }))
}

/// A stack whose newest release is in the way, with everything that a page can show.
fn whole(text: &str) -> StackSeen {
    let (v1, v2) = ("docker-x-1-34-v1", "docker-x-1-34-v2");
    let status = json!({
        "latestRelease": "docker-x-1-34-v1 | v1.34.7", "usableVersions": "v1",
        "summary": [
            {"name": v2, "ready": false, "phase": "applying objects", "kept": "NewestFound", "message": text},
            {"name": v1, "ready": true, "phase": "done", "kept": "NewestReady"}],
        "available": [{"name": "docker-x-1-34-v3", "reason": "WaitsForApproval", "message": text,
            "firstSeen": "2026-01-01T00:00:00Z"}],
        "lastPoll": {"found": 3, "time": "2026-01-01T00:00:00Z"},
        "conditions": [condition("Ready", "False", "Invalid", text), condition("Stalled", "True", "Invalid", text)],
    });
    let row = |kind: &str, name: &str, error: &str| {
        json!({"kind": kind, "namespace": "shop", "name": name, "error": error,
        "status": if error.is_empty() { "synced" } else { "not-synced" }})
    };
    let rows = json!([row("Image", text, text), row("ConfigMap", "c", "")]);
    let view = ClusterView {
        cluster: ClusterUse {
            namespace: "team".into(),
            name: "prod".into(),
            class: Some(("shop".into(), v1.into())),
            reconciled: true,
        },
        addon: Some(read::<ClusterAddon>(json!({
            "apiVersion": "clusterstack.x-k8s.io/v1alpha1", "kind": "ClusterAddon",
            "metadata": {"name": "cluster-addon-prod", "namespace": "team"}, "spec": {"clusterRef": {"name": "prod"}},
            "status": {"conditions": [condition("Ready", "False", "StagesRunning", text)], "stages": [
                {"name": "cni", "action": "apply", "phase": "done"},
                {"name": "csi", "action": "apply", "phase": "waitingForPreCondition", "message": text}]},
        }))),
    };
    let metadata = |name: &str| json!({"name": name, "namespace": "shop"});
    let provided: ProviderClusterStackRelease = read(json!({
        "apiVersion": "infrastructure.clusterstack.x-k8s.io/v1alpha1", "kind": "ProviderClusterStackRelease",
        "metadata": metadata(v2), "spec": {}, "status": {"nodeImages": [
            {"object": "i", "name": "ubuntu", "phase": "Running"},
            {"object": "j", "name": text, "phase": "Succeeded", "location": text}]},
    }));
    let image: ProviderNodeImageRelease = read(json!({
        "apiVersion": "infrastructure.clusterstack.x-k8s.io/v1alpha1", "kind": "ProviderNodeImageRelease",
        "metadata": metadata("i"),
        "spec": {"templateRef": {"name": "t"}, "inputs": "sha256:0", "image": {"name": "ubuntu", "steps": []}},
        "status": {"phase": "Running", "step": "download", "steps": [{"name": "download"}, {"name": "upload"}],
            "progress": {"done": 42, "percent": 42, "bytes": "42MiB/100MiB", "rate": "1MiB/s", "left": "58s"},
            "message": text, "logTail": "swordfish", "log": {"namespace": "n", "path": "/images/shop/i/log?key=swordfish"}},
    }));
    StackSeen {
        stack: stack("shop", "x", &status),
        releases: vec![
            release("shop", v2, &condition("Ready", "False", "Invalid", text), &rows),
            release("shop", v1, &condition("Ready", "True", "Ready", ""), &json!([])),
        ],
        clusters: vec![view],
        clusters_unread: false,
        provided: vec![Arc::new(provided)],
        images: vec![Arc::new(image)],
    }
}

fn page(seen: &StackSeen) -> String {
    Markup::new().unwrap().stack(&Asked::default(), seen, "replica-0", now()).unwrap()
}

fn list(query: &str, seen: &ListSeen) -> String {
    Markup::new().unwrap().list(&Asked::read(query).unwrap(), seen, "replica-0", now()).unwrap()
}

/// What stands between the tags, the style left out; each tag is closed where it should be.
fn well_formed(html: &str) -> String {
    let (head, rest) = html.split_once("<style>").unwrap();
    let html = format!("{head}{}", rest.split_once("</style>").unwrap().1);
    let (mut open, mut text) = (Vec::new(), String::new());
    for piece in html.split('<').skip(1) {
        let (tag, after) = piece.split_once('>').unwrap();
        text.push_str(after);
        let name = tag.split_whitespace().next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "{piece}");
        } else if !matches!(name, "!DOCTYPE" | "meta" | "link" | "input") {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
    text
}

#[test]
fn hostile_texts_are_shown_as_text() {
    let mut seen = whole(HOSTILE);
    Arc::make_mut(&mut seen.stack).metadata.name = Some(HOSTILE.into());
    let one = page(&whole(HOSTILE));
    let named = page(&seen);
    let seen = ListSeen { stacks: vec![seen.stack], ..ListSeen::default() };
    let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("namespace", "\"><script>").finish();
    let markup = Markup::new().unwrap();
    let notice = markup.notice(("Not understood", HOSTILE), "./", now()).unwrap();
    let replica = markup.list(&Asked::default(), &seen, HOSTILE, now()).unwrap();
    for (what, html) in
        [("stack", one), ("name", named), ("list", list("", &seen)), ("notice", notice), ("replica", replica)]
    {
        assert!(!html.contains("<script") && !html.contains("<img"), "{what}: {html}");
        assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{what}");
        // What was escaped before is not taken for escaped.
        assert!(html.contains("&amp;lt;"), "{what}");
        well_formed(&html);
    }
    let asked = list(&query, &seen);
    assert!(asked.contains("value=\"&quot;&gt;&lt;script&gt;\"") && !asked.contains("<script"), "{asked}");
}

#[test]
fn a_page_has_everything_in_words() {
    let html = page(&whole("csi.ready is false"));
    // The style is in a file of its own.
    let (head, rest) = html.split_once("<style>").unwrap();
    let html = format!("{head}<style></style>{}", rest.split_once("</style>").unwrap().1);
    insta::assert_snapshot!("stack", html);
    well_formed(&html);
}

#[test]
fn neither_a_log_nor_the_way_to_it_is_shown() {
    assert!(!page(&whole("message")).contains("swordfish"));
}

#[test]
fn the_policy_allows_the_style_that_is_there_and_no_other() {
    use base64::Engine as _;
    use sha2::Digest as _;
    let html = page(&whole(""));
    let style = html.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    let digest = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(style));
    assert_eq!(Markup::new().unwrap().style_source(), format!("sha256-{digest}"));
    // A policy of hashes allows no attribute.
    assert!(!html.contains(" style=") && html.matches("<link").count() == 1 && !html.contains(" src="));
}

fn many(number: usize) -> ListSeen {
    let status = |n: usize| {
        let ready = if n.is_multiple_of(10) { "False" } else { "True" };
        let message = if n.is_multiple_of(10) { "x".repeat(5000) } else { String::new() };
        json!({"latestRelease": "docker-x-1-34-v2 | v1.34.7", "conditions": [condition("Ready", ready, "R", &message)]})
    };
    let stacks = (0..number).map(|n| stack(&format!("team-{}", n % 4), &format!("s{n:04}"), &status(n)));
    ListSeen { stacks: stacks.collect(), ..ListSeen::default() }
}

#[test]
fn a_thousand_stacks_are_pages_of_a_hundred() {
    let seen = many(1000);
    for (query, first, rows, has, has_not) in [
        ("", "s0000", 100, "1000 ClusterStacks, 100 not ready.", "rel=\"prev\""),
        ("page=2", "s0400", 100, "href=\"?page=3\"", "s0000<"),
        ("page=10", "s0603", 100, "901–1000 of 1000, page 10 of 10", "rel=\"next\""),
        ("page=4000000000", "s0603", 100, "page 10 of 10", "rel=\"next\""),
        ("namespace=team-1", "s0001", 100, "250 ClusterStacks", "team-2"),
        ("namespace=team-1&page=3", "s0801", 50, "href=\"?namespace=team-1&amp;page=2\"", "rel=\"next\""),
        ("notready=1", "s0000", 100, "1–100 of 100, page 1 of 1", "Next page"),
        ("notready=1&namespace=team-1", "Nothing is in the way", 0, "href=\"?namespace=team-1\"", "<table"),
        ("namespace=nobody", "There is nothing to show", 0, "No ClusterStack is here.", "<table"),
        ("refresh=15", "stop that", 100, "name=\"refresh\" value=\"15\"", "Ask anew"),
    ] {
        let html = list(query, &seen);
        assert_eq!(html.matches("rowheader").count(), rows, "{query}");
        assert!(html.contains(first) && html.contains(has) && !html.contains(has_not), "{query}: {html}");
        assert!(html.len() < 256 << 10, "{query}: {}", html.len());
        well_formed(&html);
    }
}

#[test]
fn a_list_says_which_releases_are_used_and_what_waits() {
    let StackSeen { stack, releases, .. } = whole("");
    let cluster = |release: &str, ready| ClusterSeen { class: Some(("shop".into(), release.into())), ready };
    let seen = ListSeen {
        stacks: vec![stack],
        releases: releases.into_iter().map(Arc::new).collect(),
        clusters: vec![
            cluster("docker-x-1-34-v1", Some(true)),
            cluster("docker-x-1-34-v2", Some(false)),
            cluster("docker-x-1-34-v2", None),
            cluster("another", Some(false)),
        ],
        clusters_unread: false,
    };
    let html = list("", &seen);
    let text = well_formed(&html);
    for words in [
        "v1 by 1 Cluster",
        "v2 by 2 Clusters not the newest",
        "1 Cluster not ready",
        "1 release waiting for approval",
        "v3",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(html.contains("href=\"namespaces/shop/clusterstacks/x\""));
}

#[test]
fn clusters_that_cannot_be_read_are_told_and_not_counted_as_none() {
    let unread = StackSeen { clusters: Vec::new(), clusters_unread: true, ..whole("") };
    assert!(well_formed(&page(&unread)).contains("be read: which of them use"));
    let all = ListSeen { stacks: vec![unread.stack], clusters_unread: true, ..ListSeen::default() };
    assert!(well_formed(&list("", &all)).contains("be read: which releases they use"));
}

#[test]
fn a_stack_with_huge_releases_is_a_bounded_page() {
    let text = "<".repeat(5000);
    let mut seen = whole(&text);
    let rows: Vec<Value> = (0..5000)
        .map(|n| json!({"kind": "C", "name": format!("c{n}"), "error": text, "status": "not-synced"}))
        .collect();
    seen.releases = (0..5)
        .map(|n| {
            release("shop", &format!("docker-x-1-34-v{n}"), &condition("Ready", "False", "R", &text), &json!(rows))
        })
        .collect();
    let html = page(&seen);
    assert!(html.len() < 4 << 20, "{}", html.len());
    assert!(html.contains("of them not ready"));
}

#[test]
fn a_page_can_be_read_without_eyes() {
    for html in [page(&whole("message")), list("", &many(3))] {
        let one = |part: &str| assert_eq!(html.matches(part).count(), 1, "{part}: {html}");
        for part in [
            "<html lang=\"en\">",
            "<title>",
            "<main id=\"content\"",
            "<h1>",
            "<header>",
            "<footer>",
            "aria-label=\"Place\"",
            "href=\"#content\"",
        ] {
            one(part);
        }
        let tables = html.matches("<table").count();
        assert_eq!(html.matches("<caption>").count(), tables);
        assert_eq!(html.matches("<th ").count(), html.matches("scope=\"").count());
        // A colour stands beside a word.
        for badge in html.split("<span class=\"badge ").skip(1) {
            let text = badge.split_once("</span> ").map_or(badge, |(_, word)| word);
            assert!(text.split('<').next().is_some_and(|word| word.trim().len() > 3), "{badge}");
        }
    }
}
