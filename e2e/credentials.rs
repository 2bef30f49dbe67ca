//! Credentials that take more than a password: an App of GitHub, a proxy that wants a login.

use clusterstack::api::ConditionType;
use openssl::rsa::Rsa;
use serde_json::{Value, json};

use crate::harness::{ConnectProxy, GitHub, GitServer, SETTINGS, World};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

#[tokio::test]
async fn an_app_of_github_reads_with_tokens_that_nobody_sees() {
    let t = World::new("app").await;
    let server = GitHub::start().await;
    server.release(V1, SETTINGS);
    let key = Rsa::generate(2048).unwrap();
    server.only_app(Rsa::public_key_from_pem(&key.public_key_to_pem().unwrap()).unwrap());
    let pem = |key: &Rsa<_>| String::from_utf8(key.private_key_to_pem().unwrap()).unwrap();
    let app = |pem: &str| {
        secret("app", &json!({"githubAppID": "12", "githubAppInstallationID": "34", "githubAppPrivateKey": pem}))
    };
    t.apply(&app(&pem(&Rsa::generate(2048).unwrap()))).await;
    let operator = t.operator(&["--allow-source", server.host()]);
    let mut source = server.source();
    source["github"]["secretRef"] = json!({"name": "app"});
    t.create_stack("x", "", json!({"source": source})).await;
    t.stack_says("x", ConditionType::Ready, "False", "SourceUnauthorized").await;
    assert_eq!(server.tokens(), 0);

    t.apply(&app(&pem(&key))).await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    server.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert_eq!(server.tokens(), 1);
    let log = operator.log();
    assert!(!log.contains("ghs_1") && !log.contains("PRIVATE KEY"), "credentials are in the log");
}

#[tokio::test]
async fn a_source_is_reached_through_the_proxy_that_its_secret_names() {
    let t = World::new("proxied").await;
    let repo = t.repo();
    repo.release(V1, SETTINGS);
    let (server, authority) = GitServer::start_tls(repo.dir().parent().unwrap(), t.dir()).await;
    let url = server.url(&format!("{}/.git", repo.dir().file_name().unwrap().display()));
    let proxy = ConnectProxy::new("user", "hunter2").await;
    let through = |password: &str| {
        let address = format!("http://{}", proxy.host);
        secret("proxy", &json!({"address": address, "username": "user", "password": password}))
    };
    t.apply(&through("hunter3")).await;
    t.apply(&secret("authority", &json!({"ca.crt": std::fs::read_to_string(authority).unwrap()}))).await;
    let operator = t.operator(&["--allow-source", server.host(), "--allow-source", &proxy.host]);
    let git = json!({"url": url, "certSecretRef": {"name": "authority"}, "proxySecretRef": {"name": "proxy"}});
    t.create_stack("x", "", json!({"source": {"git": git}})).await;
    let message = t.stack_says("x", ConditionType::Ready, "False", "SourceUnauthorized").await;
    assert!(message.contains("proxySecretRef"), "{message}");
    assert!(proxy.asked().is_empty() && server.requests() == 0, "somebody went around the proxy");

    t.apply(&through("hunter2")).await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    assert!(!proxy.asked().is_empty() && proxy.asked().iter().all(|target| target == server.host()));
    assert!(!operator.log().contains("hunter"), "a password is in the log");
}
