//! The web page, as an operator serves it: what it shows while releases come, whom it refuses, and how a real browser takes
//! it.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::harness::{Operator, SETTINGS, World, check, skipped, wait_for};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
/// Objects whose names no object may have; what is said of them names them.
const BROKEN: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: \"<script>\"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: \"..\"}
---
";

const FLAG: [&str; 2] = ["--page-bind-address", "127.0.0.1:0"];

fn path(t: &World) -> String {
    format!("/namespaces/{}/clusterstacks/x", t.namespace)
}

/// The page once it has all of these words, and none of the others.
async fn shows(operator: &Operator, path: &str, words: &[&str], others: &[&str]) -> String {
    wait_for(format!("{path} to show {words:?}"), || async {
        let page = operator.get("page", path).await;
        let has = words.iter().all(|word| page.contains(word)) && !others.iter().any(|word| page.contains(word));
        check(page.starts_with("HTTP/1.0 200") && has, &page).map(|()| page)
    })
    .await
}

#[tokio::test]
async fn the_page_follows_what_becomes_of_releases_in_each_replica() {
    let t = World::new("page").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let (one, other) = (replica(&t, "one"), replica(&t, "other"));
    shows(&one, "/", &["No ClusterStack is here."], &[]).await;
    t.create_stack("x", &repo.url(), json!({"approval": "manual"})).await;
    let href = format!("href=\"namespaces/{}/clusterstacks/x\"", t.namespace);
    shows(&one, "/", &["1 release waiting for approval.", &href], &[]).await;
    shows(&one, &path(&t), &["1 release waits for approval.", "clusterstack approve x v1"], &[]).await;

    t.change_stack("x", json!({"metadata": {"annotations": {"clusterstack.x-k8s.io/approved": "v1,v2"}}})).await;
    t.ready("x", "v1").await;
    for operator in [&one, &other] {
        shows(operator, "/", &["1 ClusterStack, all ready.", &href], &["waiting for approval."]).await;
        let words = ["v1 is the newest release that is ready.", V1, "ConfigMap", "HelmChartApplied", "Ready"];
        shows(operator, &path(&t), &words, &["Not ready"]).await;
    }
    shows(&one, "/?notready=1", &["Nothing is in the way"], &[]).await;

    repo.release(V2, BROKEN);
    t.look_again("x").await;
    let words = ["v2 is newer and not ready.", V2, "Not ready", "&lt;script&gt;"];
    let page = shows(&other, &path(&t), &words, &["<script"]).await;
    let tree = page.split_once("class=\"tree\"").unwrap().1;
    assert!(tree.find(V2) < tree.find(V1), "what is in the way comes first: {page}");
    shows(&one, "/?notready=1", &[&href, "1 not ready"], &["<script"]).await;
    looked_at(&one, &["/", "/?notready=1&namespace=nobody", &path(&t), "/?refresh=15"], &[V2, "What is newer"]).await;

    t.delete_stack("x").await;
    t.stack_gone("x").await;
    shows(&one, "/", &["No ClusterStack is here."], &[]).await;
    assert!(one.get("page", &path(&t)).await.starts_with("HTTP/1.0 404"));
}

#[tokio::test]
async fn the_page_is_only_read_and_by_this_machine() {
    let t = World::new("pagedoor").await;
    let operator = t.operator(&FLAG);
    let page = shows(&operator, "/", &["<!DOCTYPE html>"], &[]).await;
    let head = page.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
    for header in [
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    let refreshed = operator.get("page", "/?refresh=15").await.to_ascii_lowercase();
    assert!(refreshed.contains("refresh: 15\r\n") && !head.contains("\nrefresh:"), "{refreshed}");
    for (path, status) in [
        ("/?page=x", "400"),
        ("/none", "404"),
        ("/namespaces/a/clusterstacks/b", "404"),
        ("/namespaces/%2e%2e/clusterstacks/%3Cscript%3E", "404"),
        ("/namespaces/a/clusterstacks/b?refresh=0", "400"),
    ] {
        let answer = operator.get("page", path).await;
        assert!(answer.starts_with(&format!("HTTP/1.0 {status}")) && !answer.contains("<script"), "{path}: {answer}");
    }
    assert!(operator.post("page", "/", &[], "").await.starts_with("HTTP/1.0 405"));
    // As one who makes a name of theirs lead here has a browser ask.
    let address = operator.address("page").await;
    let answer = ask(&address, "GET / HTTP/1.1\r\nHost: evil.example.org\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("<html"), "{answer}");
    let answer = ask(&address, "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn without_the_flag_there_is_no_page() {
    let t = World::new("nopage").await;
    let operator = t.operator(&[]);
    operator.address("probes").await;
    wait_for("the operator to be ready", || async {
        let answer = operator.get("probes", "/readyz").await;
        check(answer.contains("200"), answer)
    })
    .await;
    assert!(!operator.log().contains("serving page"));
    assert!(operator.get("probes", &path(&t)).await.starts_with("HTTP/1.0 404"));
}

/// A roll-out would replace replicas that work by it.
#[tokio::test]
async fn an_address_that_is_taken_makes_no_replica_ready() {
    for flag in ["--page-bind-address", "--receiver-bind-address"] {
        let t = World::new("taken").await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let flags = [flag, &address, "--leader-elect", "--leader-elect-namespace", &t.namespace];
        let mut operator = t.operator(&flags);
        while operator.is_running() {
            let answer = operator.get("probes", "/readyz").await;
            assert!(!answer.contains(" 200 "), "{answer}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let log = operator.log();
        assert!(
            log.contains(&format!("can't be served on {address}")) && log.contains("Address already in use"),
            "{log}"
        );
    }
}

fn replica(t: &World, name: &str) -> Operator {
    let store = t.dir().join(format!("store-{name}"));
    let sharing =
        ["--leader-elect", "--leader-elect-namespace", &t.namespace, "--release-dir", store.to_str().unwrap()];
    let flags = [FLAG.as_slice(), &sharing].concat();
    Operator::start_with(t, &t.plane.kubeconfig, &flags, &[("POD_NAME", Path::new(name))])
}

async fn ask(address: &str, request: &str) -> String {
    use std::io::{Read, Write};
    let (address, request) = (address.to_owned(), request.to_owned());
    let send = move || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(&address)?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    tokio::task::spawn_blocking(send).await.unwrap().unwrap()
}

/// A real browser has nothing to say against these pages, and shows these words on them.
async fn looked_at(operator: &Operator, paths: &[&str], words: &[&str]) {
    let address = operator.address("page").await;
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/hack/page"));
    command.args(paths.iter().map(|path| format!("http://{address}{path}")));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    if output.status.code() == Some(77) {
        return skipped("the web page in a browser: hack/page --install gets one");
    }
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}\n{text}");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}
