//! How the webhook is served and registered: when nobody answers, by a new certificate, through a Service, and not at all.

use std::net::TcpListener;

use clusterstack::api::{MANAGED_BY, MANAGED_BY_LABEL};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use serde_json::{Value, json};

use super::{CONFIGURATION, Door, V1, configuration, refused, release, stack, taken, world};
use crate::harness::{World, check, cluster, free_address, skipped, unique, wait_for};

/// The configuration of the test's operator.
async fn configured(t: &World) -> Option<Value> {
    let found = t.cluster_api(CONFIGURATION.0, CONFIGURATION.1).get_opt(&configuration(t)).await.expect("API server");
    found.map(|object| serde_json::to_value(object).expect("JSON"))
}

async fn bundle(t: &World) -> String {
    let found = configured(t).await.unwrap_or_default();
    let bundles =
        ["/webhooks/0", "/webhooks/1"].map(|webhook| found.pointer(&format!("{webhook}/clientConfig/caBundle")));
    assert_eq!(bundles[0], bundles[1]);
    bundles[0].and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The certificate that is served at an address.
fn served(address: &str) -> X509 {
    let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
    connector.set_verify(SslVerifyMode::NONE);
    let stream = std::net::TcpStream::connect(address).expect("nobody listens");
    let stream = connector.build().connect("localhost", stream).expect("no TLS");
    stream.ssl().peer_certificate().expect("no certificate")
}

#[tokio::test]
async fn while_nobody_answers_everything_is_taken() {
    let Some(t) = world("down").await else { return };
    let door = Door::open(&t).await;
    t.apply(&release(V1)).await;
    t.apply(&cluster("c", V1)).await;
    let bad = stack("x", "file:///etc", &json!({}));
    refused(&t, &["create"], Some(&bad), &["local path"]);
    refused(&t, &["delete", "cskr", V1], None, &["in use by Cluster"]);
    door.operator.kill();
    taken(&t, &["create"], Some(&bad), &[]);
    let mut wrong = cluster("wrong", V1);
    wrong["spec"]["topology"]["version"] = json!("v1.20.0");
    taken(&t, &["create"], Some(&wrong), &[]);
    taken(&t, &["delete", "cskr", V1, "--wait=false"], None, &[]);
    // What was taken meanwhile can be mended when somebody answers again, and taken away.
    let door = Door::open(&t).await;
    taken(&t, &["label", "csk", "x", "a=b"], None, &[]);
    taken(&t, &["label", "cluster", "wrong", "a=b"], None, &[]);
    taken(&t, &["delete", "cluster", "wrong"], None, &[]);
    taken(&t, &["delete", "csk", "x"], None, &[]);
    drop(door);
}

#[tokio::test]
async fn a_new_certificate_is_served_and_told_without_a_gap() {
    let Some(t) = world("rotated").await else { return };
    let address = free_address();
    let url = format!("https://{address}/some/path");
    let door = Door::open_at(&t, &address, &["--webhook-url", &url]).await;
    let before = (bundle(&t).await, served(&address).to_der().unwrap());
    assert_eq!(configured(&t).await.unwrap()["webhooks"][0]["clientConfig"]["url"], format!("{url}/validate"));
    let secrets: Api<Secret> = Api::namespaced(t.client.clone(), &t.namespace);
    let name = format!("{}-webhook-certificate", configuration(&t));
    let der = |secret: &Secret| {
        let data = secret.data.clone().unwrap_or_default();
        data.get("tls.crt").and_then(|pem| X509::from_pem(&pem.0).ok()).map(|one| one.to_der().unwrap())
    };
    assert_eq!(der(&secrets.get(&name).await.unwrap()), Some(before.1.clone()));

    // A certificate that can't be used is made anew by the same authority, and another authority beside it is told.
    let broken = json!({"stringData": {"tls.crt": "broken"}});
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(broken)).await.unwrap();
    wait_for("another certificate to be served", || async {
        let now = served(&address).to_der().unwrap();
        check(now != before.1 && der(&secrets.get(&name).await.unwrap()) == Some(now), "the one before")
    })
    .await;
    assert_eq!(bundle(&t).await, before.0);
    let bad = stack("x", "file:///etc", &json!({}));
    refused(&t, &["create"], Some(&bad), &["local path"]);

    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
    wait_for("another authority to be told", || async {
        let now = bundle(&t).await;
        check(now != before.0 && !now.is_empty(), "the one before")
    })
    .await;
    door.is_open(&t).await;
    refused(&t, &["create"], Some(&bad), &["local path"]);
}

#[tokio::test]
async fn without_the_webhook_its_configuration_goes() {
    let Some(t) = world("withdrawn").await else { return };
    let door = Door::open(&t).await;
    assert!(configured(&t).await.is_some());
    assert!(door.operator.terminate().await.success());
    // It stays while nobody says that it is not wanted: another replica may serve it.
    assert!(configured(&t).await.is_some());
    let operator = t.operator(&[]);
    wait_for("the configuration to be gone", || async {
        let found = configured(&t).await;
        check(found.is_none(), found)
    })
    .await;
    operator.kill();

    // One of that name that is somebody else's is not ours to write or to remove.
    let configurations = t.cluster_api(CONFIGURATION.0, CONFIGURATION.1);
    let foreign = json!({"apiVersion": CONFIGURATION.0, "kind": CONFIGURATION.1, "metadata": {"name": configuration(&t)}, "webhooks": []});
    configurations.create(&kube::api::PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    let without = t.operator(&[]);
    without.address("probes").await;
    let address = free_address();
    let url = format!("https://{address}");
    let flags = ["--webhook-bind-address", &address, "--webhook-url", &url, "--leader-elect-namespace", &t.namespace];
    let with = t.operator(&flags);
    wait_for("the operator to say whose it is", || async {
        let words = "is not labelled app.kubernetes.io/managed-by=clusterstack, so it is not ours";
        check(with.log().contains(words), with.log())
    })
    .await;
    let found = configured(&t).await.expect("it was removed");
    assert!(found["webhooks"].is_null() || found["webhooks"] == json!([]), "{found:#}");
    assert_eq!(found["metadata"]["labels"][MANAGED_BY_LABEL], Value::Null);
    let ours = json!({"metadata": {"labels": {MANAGED_BY_LABEL: MANAGED_BY}}});
    configurations.patch(&configuration(&t), &PatchParams::default(), &Patch::Merge(ours)).await.unwrap();
    // Two replicas of two minds: the one without removes it, the one with writes it anew.
    without.kill();
    Door { operator: with }.is_open(&t).await;
}

#[tokio::test]
async fn what_was_registered_before_a_watch_filter_was_given_goes() {
    let Some(t) = world("displaced").await else { return };
    let address = free_address();
    let url = format!("https://{address}");
    let door = Door::open_at(&t, &address, &["--webhook-url", &url]).await;
    assert!(configured(&t).await.is_some());
    assert!(door.operator.terminate().await.success());
    let flags = ["--webhook-bind-address", &address, "--webhook-url", &url, "--leader-elect-namespace", &t.namespace];
    let operator = t.operator(&[&flags[..], &["--watch-filter", "blue"]].concat());
    wait_for("the configuration of the earlier name to be gone", || async {
        let found = configured(&t).await;
        check(found.is_none(), found)
    })
    .await;
    let configurations = t.cluster_api(CONFIGURATION.0, CONFIGURATION.1);
    let all = configurations.list(&kube::api::ListParams::default()).await.unwrap().items;
    let is_ours = |one: &&kube::api::DynamicObject| {
        let place = one.data.pointer("/webhooks/0/clientConfig/url").and_then(Value::as_str);
        place.is_some_and(|place| place.starts_with(&url))
    };
    let names: Vec<String> = all.iter().filter(is_ours).map(kube::ResourceExt::name_any).collect();
    for name in &names {
        t.remove_at_end(CONFIGURATION.0, CONFIGURATION.1, name);
    }
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(operator.log().contains("was removed: it is"), "{}", operator.log());
}

#[tokio::test]
async fn replicas_with_and_without_the_webhook_live_side_by_side() {
    let Some(t) = world("mixed").await else { return };
    t.remove_at_end(CONFIGURATION.0, CONFIGURATION.1, &configuration(&t));
    let member = ["--leader-elect", "--leader-elect-namespace", &t.namespace];
    let without = t.operator(&member);
    wait_for("the one without to lead", || async { check(without.log().contains("leads=true"), without.log()) }).await;
    let address = free_address();
    let url = format!("https://{address}");
    let serving = ["--webhook-bind-address", &address, "--webhook-url", &url];
    let with = t.operator(&[&member[..], &serving].concat());
    let door = Door { operator: with };
    door.is_open(&t).await;
    // The one without looks every three seconds whether nobody serves it.
    let first = configured(&t).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(configured(&t).await.unwrap()["metadata"]["uid"], first["metadata"]["uid"]);
    // When nobody does any more, it goes.
    assert!(door.operator.terminate().await.success());
    wait_for("the configuration to be gone", || async {
        let found = configured(&t).await;
        check(found.is_none(), found)
    })
    .await;
}

/// A range of loopback addresses for Services: the API server calls a Service at its own address, and nobody here would
/// lead it on from there to a pod.
async fn service_range(t: &World, range: &str) -> bool {
    let api = t.cluster_api("networking.k8s.io/v1", "ServiceCIDR");
    let name = unique("e2e-loopback");
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": [range]},
    });
    t.remove_at_end("networking.k8s.io/v1", "ServiceCIDR", &name);
    api.create(&kube::api::PostParams::default(), &serde_json::from_value(object).unwrap()).await.is_ok()
}

#[tokio::test]
async fn the_api_server_reaches_the_webhook_through_a_service() {
    let Some(t) = world("service").await else { return };
    let third = rand::random_range(1..=250_u8);
    if !service_range(&t, &format!("127.77.{third}.0/24")).await {
        return skipped("admission: this API server has no further ranges for Services");
    }
    let ip = format!("127.77.{third}.10");
    let free = TcpListener::bind(format!("{ip}:0")).unwrap().local_addr().unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "door"},
        "spec": {"clusterIP": ip, "ports": [{"port": free.port(), "protocol": "TCP"}]},
    });
    let api = t.api("v1", "Service");
    wait_for("the Service to get its address", || async {
        let created = api.patch("door", &PatchParams::apply("e2e"), &Patch::Apply(&service)).await;
        created.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let place = format!("door:{}", free.port());
    let _door = Door::open_at(&t, &free.to_string(), &["--webhook-service", &place]).await;
    let client = configured(&t).await.unwrap()["webhooks"][0]["clientConfig"].clone();
    let expected = json!({"name": "door", "namespace": t.namespace, "port": free.port(), "path": "/validate"});
    assert_eq!((&client["service"], client.get("url")), (&expected, None));
    let names = served(&free.to_string()).subject_alt_names().unwrap();
    let names: Vec<&str> = names.iter().filter_map(|name| name.dnsname()).collect();
    assert!(names.contains(&format!("door.{}.svc", t.namespace).as_str()), "{names:?}");
    refused(&t, &["create"], Some(&stack("x", "file:///etc", &json!({}))), &["local path"]);
    taken(&t, &["delete", "service", "door"], None, &[]);
}
