//! Random functions and lookups in class charts.

use base64::Engine as _;
use clusterstack::api::{ConditionType, Reason};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{CLASS, World, check, install_small_kind, wait_for};
use crate::rights::{allow, service_account};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";
const SECRET: &str = "x-clusterstack-seed";

/// A Secret with a password, a key and certificates.
const CREDENTIALS: &str = r#"---
apiVersion: v1
kind: Secret
metadata:
  name: credentials
stringData:
  password: {{ randAlphaNum 24 }}
  id: {{ uuidv4 }}
  {{- $ca := genCA "authority" 365 }}
  {{- $cert := genSignedCert "shop" nil (list "shop.example.com") 90 $ca }}
  ca.crt: {{ $ca.Cert | quote }}
  tls.crt: {{ $cert.Cert | quote }}
  tls.key: {{ $cert.Key | quote }}
"#;

async fn credentials(t: &World) -> Value {
    t.there("v1", "Secret", "credentials").await["data"].clone()
}

fn text(value: &Value) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn credentials_survive_a_restart_a_new_release_and_the_loss_of_the_store() {
    let t = World::new("seed").await;
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{CREDENTIALS}"));
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let first = credentials(&t).await;
    assert_eq!(text(&first["password"]).len(), 24);
    assert!(text(&first["tls.crt"]).starts_with("-----BEGIN CERTIFICATE"));
    t.event("SeedCreated", SECRET).await;
    let kept = t.there("v1", "Secret", SECRET).await;

    operator.terminate().await;
    std::fs::remove_dir_all(t.store()).unwrap();
    let operator = t.operator(&[]);
    t.looked_again("x").await;
    assert_eq!(credentials(&t).await, first, "after a restart");

    // Another template, another line before the draws: nothing that was drawn moves.
    let more = "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: more\ndata:\n  other: {{ randAlphaNum 24 }}\n";
    repo.release(V2, &format!("{CLASS}{more}{CREDENTIALS}"));
    t.look_again("x").await;
    t.ready("x", "v2").await;
    t.release_gone(V1).await;
    assert_eq!(credentials(&t).await, first, "in a new release");
    assert_ne!(t.in_config_map("more", "/data/other").await, text(&first["password"]), "two draws gave the same");

    // Nothing secret is shown.
    let shown = serde_json::to_string(&t.stacks().get("x").await.unwrap()).unwrap()
        + &serde_json::to_string(&t.release_ready(V2).await).unwrap()
        + &operator.log();
    let seed = kept["data"]["seed"].as_str().unwrap();
    assert!(!shown.contains(&text(&first["password"])) && !shown.contains(seed), "a secret is shown");

    t.delete_stack("x").await;
    t.stack_gone("x").await;
    t.gone("v1", "Secret", SECRET).await;
}

#[tokio::test]
async fn the_time_is_that_of_the_first_rendering_of_an_input() {
    let t = World::new("first").await;
    let repo = t.repo();
    let chart = r#"---
apiVersion: v1
kind: ConfigMap
metadata:
  name: found
data:
  at: {{ now | date "2006-01-02T15:04:05.999999999Z07:00" | quote }}
  value: {{ dig "data" "value" "nothing" (lookup "v1" "ConfigMap" .Release.Namespace "other") }}
"#;
    repo.release(V1, chart);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let first = t.in_config_map("found", "/data/at").await;
    // Somebody else's labels and annotations stay.
    let secrets = t.api("v1", "Secret");
    let marks = json!({"metadata": {"annotations": {"backup": "yes"}, "labels": {"team": "blue"}}});
    secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(marks)).await.unwrap();

    operator.terminate().await;
    std::fs::remove_dir_all(t.store()).unwrap();
    let _operator = t.operator(&[]);
    t.looked_again("x").await;
    assert_eq!(t.in_config_map("found", "/data/at").await, first, "after a restart");

    let other =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"value": "blue"}});
    t.apply(&other).await;
    t.look_again("x").await;
    wait_for("the new answer", || async {
        let value = t.in_config_map("found", "/data/value").await;
        check(value == "blue", value)
    })
    .await;
    assert_ne!(t.in_config_map("found", "/data/at").await, first, "with another answer");
    let kept = t.there("v1", "Secret", SECRET).await;
    assert_eq!(kept["metadata"]["annotations"]["backup"], "yes");
    assert_eq!(kept["metadata"]["labels"]["team"], "blue");
}

#[tokio::test]
async fn two_stacks_never_share_what_they_draw() {
    let t = World::new("seeds").await;
    let repo = t.repo();
    let own = "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  drawn: {{ randAlphaNum 24 }}\n";
    repo.release(V1, own);
    repo.release("docker-y-1-34-v1", own);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.create_stack("y", &repo.url(), json!({"name": "y"})).await;
    t.ready("x", "v1").await;
    t.ready("y", "v1").await;
    let of_x = t.in_config_map("docker-x-1-34", "/data/drawn").await;
    assert_ne!(of_x, t.in_config_map("docker-y-1-34", "/data/drawn").await);
}

#[tokio::test]
async fn a_certificate_is_made_anew_at_two_thirds_of_its_life() {
    let t = World::new("renew").await;
    let repo = t.repo();
    repo.release(V1, &format!("{CLASS}{CREDENTIALS}"));
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let first = credentials(&t).await;
    // As if the time had come for all that was made.
    let kept = t.there("v1", "Secret", SECRET).await;
    let mut keyring: Value = serde_json::from_str(&text(&kept["data"]["keyring"])).unwrap();
    for entry in keyring.as_object_mut().unwrap().values_mut() {
        entry["renew"] = json!("2025-01-01T00:00:00Z");
    }
    let change = json!({"stringData": {"keyring": keyring.to_string()}});
    let secrets = t.api("v1", "Secret");
    secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    t.look_again("x").await;
    t.event("CertificateRenewed", "genCA").await;
    let second = wait_for("another certificate", || async {
        let now = credentials(&t).await;
        check(now["ca.crt"] != first["ca.crt"], "the same").map(|()| now)
    })
    .await;
    assert_ne!(second["tls.crt"], first["tls.crt"], "signed by the authority that went");
    assert_eq!(second["password"], first["password"]);
    t.looked_again("x").await;
    assert_eq!(credentials(&t).await, second, "made anew once");
}

#[tokio::test]
async fn a_seed_that_can_not_be_read_is_said_and_never_replaced() {
    let t = World::new("badseed").await;
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}})).await;
    let repo = t.repo();
    repo.release(V1, CREDENTIALS);
    let operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    let message = t.release_says(V1, ConditionType::HelmChartTemplated, "False", "SecretInvalid").await;
    assert!(message.contains(SECRET) && message.contains("not of type"), "{message}");
    t.delete("v1", "Secret", SECRET).await;
    t.look_again("x").await;
    t.ready("x", "v1").await;
    // One that is not ours outlives the stack. A pass in between would make one of ours.
    operator.kill();
    t.delete("v1", "Secret", SECRET).await;
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}})).await;
    let _operator = t.operator(&[]);
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert!(t.get("v1", "Secret", SECRET).await.is_some());
}

#[tokio::test]
async fn what_a_chart_looks_up_is_read_with_the_rights_that_apply() {
    let t = World::new("lookup").await;
    let repo = t.repo();
    // Three rounds: each lookup needs the answer of the one before.
    let chain = r#"---
apiVersion: v1
kind: ConfigMap
metadata:
  name: found
data:
  {{- $first := lookup "v1" "ConfigMap" .Release.Namespace "first" }}
  {{- $second := lookup "v1" "ConfigMap" .Release.Namespace (dig "data" "next" "none" $first) }}
  value: {{ dig "data" "value" "nothing" $second }}
  many: {{ len (lookup "v1" "ConfigMap" .Release.Namespace "").items | quote }}
"#;
    repo.release(V1, chain);
    let map = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    t.apply(&map("first", json!({"next": "second"}))).await;
    t.apply(&map("second", json!({"value": "blue"}))).await;
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map("found", "/data/value").await, "blue");
    t.apply(&map("second", json!({"value": "green"}))).await;
    t.look_again("x").await;
    wait_for("the new answer", || async {
        let value = t.in_config_map("found", "/data/value").await;
        check(value == "green", value)
    })
    .await;

    // What only a missing answer leads to is never asked for in earnest: `first` exists.
    let otherwise = r#"---
apiVersion: v1
kind: ConfigMap
metadata:
  name: found
data:
  {{- if not (lookup "v1" "ConfigMap" .Release.Namespace "first") }}
  value: {{ (lookup "v1" "ConfigMap" "kube-system" "other").data.value }}
  {{- else }}
  value: own
  {{- end }}
"#;
    repo.release("docker-x-1-34-v3", otherwise);
    t.look_again("x").await;
    t.ready("x", "v3").await;
    assert_eq!(t.in_config_map("found", "/data/value").await, "own");

    repo.release("docker-x-1-34-v4", &chain.replace(".Release.Namespace \"first\"", "\"kube-system\" \"first\""));
    t.look_again("x").await;
    let v4 = "docker-x-1-34-v4";
    let message = t.release_says(v4, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    assert!(message.contains("kube-system/first") && message.contains("serviceAccountName"), "{message}");
    t.release_ready("docker-x-1-34-v3").await;
}

#[tokio::test]
async fn a_chart_looks_up_no_secret_of_others_by_the_operators_rights() {
    let t = World::new("lookupsecret").await;
    t.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"word": "swordfish"}}))
        .await;
    let own = r#"{{- $old := lookup "v1" "Secret" .Release.Namespace "own" }}
apiVersion: v1
kind: Secret
metadata: {name: own}
data:
  token: {{ dig "data" "token" (randAlphaNum 20 | b64enc) $old }}
"#;
    let repo = t.repo();
    repo.release(V1, own);
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    t.ready("x", "v1").await;
    let token = t.there("v1", "Secret", "own").await["data"]["token"].clone();

    // The next release takes over what the one before it made.
    repo.release(V2, own);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert_eq!(t.there("v1", "Secret", "own").await["data"]["token"], token);

    for (release, lookup) in [
        ("docker-x-1-34-v3", "len (lookup \"v1\" \"Secret\" .Release.Namespace \"\").items"),
        ("docker-x-1-34-v4", "(lookup \"v1\" \"Secret\" .Release.Namespace \"login\").data.word"),
    ] {
        let taken = format!(
            "{own}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: taken}}\ndata: {{word: {{{{ {lookup} | quote }}}}}}\n"
        );
        repo.release(release, &taken);
        t.look_again("x").await;
        let message = t.release_says(release, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
        assert!(
            message.contains("which no release of this ClusterStack applied") && message.contains("serviceAccountName"),
            "{message}"
        );
        assert!(t.config_map("taken").await.is_none());
    }
    t.release_ready(V2).await;

    // A ServiceAccount that may read it is enough.
    service_account(&t, "reader").await;
    allow(&t, "reader", &["configmaps", "secrets"]).await;
    t.change_stack("x", json!({"spec": {"serviceAccountName": "reader"}})).await;
    t.ready("x", "v4").await;
    assert_eq!(t.in_config_map("taken", "/data/word").await, "c3dvcmRmaXNo");
}

#[tokio::test]
async fn a_secret_of_somebody_else_is_neither_changed_nor_read() {
    let t = World::new("handmade").await;
    let _operator = t.operator(&[]);
    let handmade = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"word": "swordfish"}});
    t.apply(&handmade).await;
    let before = t.there("v1", "Secret", "login").await;
    let repo = t.repo();
    // To own it, and to say that it is for another server; and a Job that reads it.
    let grasp = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {host: evil.example.com}\n---\n";
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: reader}\nspec: {template: {spec: {restartPolicy: Never, \
               containers: [{name: r, image: r, envFrom: [{secretRef: {name: login}}]}]}}}\n---\n";
    repo.release(V1, &format!("{grasp}{job}{CLASS}"));
    t.create_stack("x", &repo.url(), json!({})).await;
    let message = t.release_says(V1, ConditionType::HelmChartApplied, "False", "FailedToApplyObjects").await;
    assert!(message.contains("login") && message.contains("reader"), "{message}");
    let rows = t.releases().get(V1).await.unwrap().status.unwrap().resources;
    let reason = |kind: &str| rows.iter().find(|row| row.kind == kind).and_then(|row| row.reason);
    assert_eq!((reason("Secret"), reason("Job")), (Some(Reason::OwnedByOther), Some(Reason::Forbidden)), "{rows:?}");
    assert!(t.get("batch/v1", "Job", "reader").await.is_none());

    // What it did not take over it does not read either; nor what a release of another ClusterStack of that name has.
    let read = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: taken}\ndata: {word: {{ (lookup \"v1\" \"Secret\" .Release.Namespace \"NAME\").data.word | quote }}}\n---\n";
    repo.release(V2, &format!("{}{CLASS}", read.replace("NAME", "login")));
    t.look_again("x").await;
    t.release_says(V2, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    let owned = "apiVersion: v1\nkind: Secret\nmetadata: {name: owned}\nstringData: {word: swordfish}\n---\n";
    repo.release("docker-x-1-34-v3", &format!("{owned}{CLASS}"));
    t.look_again("x").await;
    t.release_ready("docker-x-1-34-v3").await;
    let other = t.repo();
    other.release("docker-x-1-33-v1", &format!("{}{CLASS}", read.replace("NAME", "owned")));
    t.create_stack("y", &other.url(), json!({"kubernetesVersion": "1.33"})).await;
    t.release_says("docker-x-1-33-v1", ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    assert!(t.config_map("taken").await.is_none());

    // It stays as it was, also when the ClusterStack goes.
    t.delete_stack("x").await;
    t.stack_gone("x").await;
    assert_eq!(
        t.there("v1", "Secret", "login").await["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );

    // Who may change it says so by a ServiceAccount.
    service_account(&t, "writer").await;
    allow(&t, "writer", &["secrets"]).await;
    let taken = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {host: git.example.com}\n";
    let third = t.repo();
    third.release("docker-z-1-34-v1", taken);
    t.create_stack("z", &third.url(), json!({"name": "z", "serviceAccountName": "writer"})).await;
    t.ready("z", "v1").await;
    assert!(t.there("v1", "Secret", "login").await["data"]["host"].is_string());
}

#[tokio::test]
async fn a_chart_that_looks_up_a_kind_that_comes_later_is_rendered_then() {
    let t = World::new("laterkind").await;
    let group = format!("{}.example.com", t.namespace);
    let repo = t.repo();
    repo.release(
        V1,
        &format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: found}}\ndata:\n  many: {{{{ len (lookup \"{group}/v1\" \"Gadget\" .Release.Namespace \"\").items | quote }}}}\n"
        ),
    );
    let _operator = t.operator(&[]);
    t.create_stack("x", &repo.url(), json!({})).await;
    let message = t.release_says(V1, ConditionType::HelmChartTemplated, "False", "RenderFailed").await;
    assert!(message.contains("Gadget") && message.contains("CustomResourceDefinition"), "{message}");
    install_small_kind(&t, &group, "Gadget").await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map("found", "/data/many").await, "0");
}
