//! Registries that want to know who asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterstack::core::limits::Limits;
use clusterstack::core::source::AllowList;
use clusterstack::io::registry::Registry;
use clusterstack::io::source::access::Tls;
use clusterstack::io::source::oci::OciSource;
use clusterstack::io::source::{Access, Credentials, Source, SourceError};
use clusterstack::settings::environment::DefaultSource;
use tokio_util::sync::CancellationToken;

use super::oci::{TAG, World, fetch, resolved};
use super::registry::{Lie, RegistryServer, assets, push};

const USER: [&str; 4] = ["-user", "robot", "-password", "hunter2-hunter2"];

fn credentials(data: &[(&str, &str)]) -> Option<Credentials> {
    let data: BTreeMap<_, _> = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes())).collect();
    Some(Credentials::from_secret(&data).unwrap())
}

fn robot() -> Option<Credentials> {
    credentials(&[("username", "robot"), ("password", "hunter2-hunter2")])
}

async fn world(login: &str) -> Option<World> {
    let flags: Vec<&str> = ["-login", login].into_iter().chain(USER).collect();
    let mut t = World::new(&flags).await?;
    t.access.credentials = robot();
    Some(t)
}

fn without_secrets(error: &SourceError) -> String {
    let text = format!("{error} {error:?}");
    let encoded = STANDARD.encode("robot:hunter2-hunter2");
    assert!(!text.contains("hunter2") && !text.contains(&encoded), "{text}");
    text
}

#[tokio::test]
async fn a_password_is_asked_for_once_and_then_given() {
    let Some(mut t) = world("basic").await else { return };
    t.release(TAG, "a: 1").await;
    t.get(TAG).await.unwrap();
    let source = t.source();
    t.liar.asked();
    source.list(&CancellationToken::new()).await.unwrap();
    source.list(&CancellationToken::new()).await.unwrap();
    let given: Vec<bool> = t.liar.asked().iter().map(|asked| asked.authorization.is_some()).collect();
    assert_eq!(given, [false, true, true]);

    let auth = STANDARD.encode("robot:hunter2-hunter2");
    let config = |host: &str| format!(r#"{{"auths": {{"{host}": {{"auth": "{auth}"}}}}}}"#);
    t.access.credentials = credentials(&[(".dockerconfigjson", &config(&t.liar.host))]);
    t.get(TAG).await.unwrap();
    t.access.credentials = credentials(&[(".dockerconfigjson", &config("elsewhere.example.com"))]);
    let error = t.get(TAG).await.unwrap_err();
    assert!(without_secrets(&error).contains("there is no login for 127.0.0.1"), "{error}");
    assert!(error.to_string().ends_with("name a Secret that holds one in secretRef"), "{error}");

    t.access.credentials = credentials(&[("username", "robot"), ("password", "hunter2-wrong")]);
    let error = t.get(TAG).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    without_secrets(&error);
}

#[tokio::test]
async fn a_token_is_got_and_used_until_it_ends() {
    let Some(mut t) = world("token").await else { return };
    t.release(TAG, "a: 1").await;
    let source = t.source();
    source.list(&CancellationToken::new()).await.unwrap();
    t.liar.asked();
    source.list(&CancellationToken::new()).await.unwrap();
    let asked = t.liar.asked();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].authorization.as_ref().unwrap().starts_with("Bearer "), "the password went to the registry");

    t.access.credentials = None;
    t.get(TAG).await.unwrap();
    let denied = push(&t.repository(), TAG, &assets(TAG, "a: 2")).await.unwrap_err();
    assert!(matches!(denied, SourceError::Unauthorized { .. }), "{denied}");
    t.access.credentials = credentials(&[("username", "robot"), ("password", "hunter2-wrong")]);
    let error = t.get(TAG).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    without_secrets(&error);
}

/// A registry that takes each of its tokens once; they say that they live so many seconds.
async fn forgetful(life: u64) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let realm = format!("Bearer realm=\"http://{host}/token\",service=\"s\"");
    let issued = Arc::new(AtomicUsize::new(0));
    let fresh = Arc::new(AtomicUsize::new(0));
    let answer = move |request: axum::extract::Request| {
        let given = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let body = if request.uri().path() == "/token" {
            assert_eq!(request.uri().query(), Some("service=s&scope=repository%3Aa%2Fb%3Apull"));
            let token = issued.fetch_add(1, Ordering::SeqCst) + 1;
            fresh.store(token, Ordering::SeqCst);
            Some(format!(r#"{{"token": "{token}", "expires_in": {life}}}"#))
        } else {
            let token = fresh.swap(0, Ordering::SeqCst);
            (token > 0 && given == Some(format!("Bearer {token}"))).then(|| r#"{"tags": ["v1"]}"#.to_owned())
        };
        let status = if body.is_some() { 200 } else { 401 };
        let response = axum::response::Response::builder().status(status).header("www-authenticate", &realm);
        let response = response.body(axum::body::Body::from(body.unwrap_or_default())).unwrap();
        async move { response }
    };
    let routes = axum::Router::new().fallback(answer);
    (host, tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() }))
}

#[tokio::test]
async fn a_token_that_ended_or_is_refused_is_got_anew() {
    for life in [1, 3600] {
        let (host, server) = forgetful(life).await;
        let directory = tempfile::tempdir().unwrap();
        let access = Access { insecure: true, ..Access::default() };
        let allow = AllowList::parse(["127.0.0.1"]).unwrap();
        let registry = Registry::new(&format!("{host}/a/b"), &access, &allow, directory.path()).unwrap();
        for _ in 0..3 {
            assert_eq!(registry.tags().await.unwrap(), ["v1"]);
        }
        server.abort();
    }
}

#[tokio::test]
async fn a_login_is_sent_nowhere_else() {
    let Some(t) = world("basic").await else { return };
    t.release(TAG, "a: 1").await;
    let thief = World::new(&[]).await.unwrap();
    let host = thief.liar.host.clone();
    // A page of tags of another server.
    let link = format!("<http://{host}/v2/stacks/scs/tags/list?last=x>; rel=\"next\"");
    t.liar.set(Lie::Page(r#"{"tags": ["v1"]}"#.to_owned(), link));
    let error = t.source().list(&CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("on another server"), "{error}");
    // A token server that the flags don't allow, in the clear, or that can't be one.
    for (realm, expected) in [
        ("http://localhost/token", "in the clear"),
        ("https://169.254.169.254/token", "loopback, link-local"),
        ("http://example.com/token", "in the clear"),
        ("nonsense", "no token server"),
    ] {
        t.liar.set(Lie::Status(401, "www-authenticate", format!("Bearer realm=\"{realm}\"")));
        let error = t.source().list(&CancellationToken::new()).await.unwrap_err();
        assert!(without_secrets(&error).contains(expected), "{realm}: {error}");
    }
    assert!(thief.liar.asked().is_empty());
    // Blobs on another server, which wants a login in its turn.
    t.liar.set(Lie::Elsewhere(host.clone()));
    thief.liar.set(Lie::Status(401, "www-authenticate", "Basic realm=\"thief\"".to_owned()));
    let tag = t.resolved(TAG).await.unwrap();
    let error = t.fetch(&tag).await.unwrap_err();
    assert!(matches!(error, SourceError::Unauthorized { .. }), "{error}");
    let realm = format!("Bearer realm=\"http://{host}/token\"");
    thief.liar.set(Lie::Status(401, "www-authenticate", realm));
    t.fetch(&tag).await.unwrap_err();
    let asked = thief.liar.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.authorization.is_none()), "{asked:?}");
}

#[tokio::test]
async fn blobs_may_lie_on_another_server() {
    let Some(t) = world("basic").await else { return };
    t.release(TAG, "a: 1").await;
    // The same storage without a login.
    let open = RegistryServer::start(&t.directory.path().join("registry"), &[]).unwrap();
    t.liar.set(Lie::Elsewhere(open.host.clone()));
    t.get(TAG).await.unwrap();
}

#[tokio::test]
async fn certificates_are_checked_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, server, client) = certificates();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (ca, cert, key) = (path("ca", &authority), path("cert", &server.0), path("key", &server.1));
    let flags = ["-cert", &cert, "-key", &key, "-client-ca", &ca];
    let Some(registry) = RegistryServer::start(&directory.path().join("registry"), &flags) else { return };
    let name = format!("{}/stacks/scs", registry.host);
    let allow = AllowList::parse(["127.0.0.1"]).unwrap();
    let scratch = directory.path().join("scratch");
    let access = |authorities: bool, identity: bool| Access {
        tls: Tls { authorities: authorities.then(|| authority.clone()), identity: identity.then(|| client.clone()) },
        ..Access::default()
    };
    let good = access(true, true);
    let own = Registry::new(&name, &good, &allow, &scratch).unwrap();
    push(&own, TAG, &assets(TAG, "a: 1")).await.unwrap();
    let source = OciSource::new(&name, &good, &allow, &scratch, Limits::default()).unwrap();
    fetch(&source, &resolved(&source, TAG).await.unwrap(), None).await.unwrap();

    let unknown = Registry::new(&name, &access(false, true), &allow, &scratch).unwrap();
    let error = unknown.tags().await.unwrap_err();
    assert!(matches!(error, SourceError::Untrusted { .. }), "{error}");
    let nobody = Registry::new(&name, &access(true, false), &allow, &scratch).unwrap();
    nobody.tags().await.unwrap_err();
    let plain = Registry::new(&name, &Access { insecure: true, ..Access::default() }, &allow, &scratch).unwrap();
    plain.tags().await.unwrap_err();
}

/// An authority, and certificates with keys that it signed: a server's and a client's.
fn certificates() -> (String, (String, String), (String, String)) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let signed = |names: Vec<String>, purpose: ExtendedKeyUsagePurpose| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let server = signed(vec!["127.0.0.1".to_owned()], ExtendedKeyUsagePurpose::ServerAuth);
    let client = signed(vec!["client".to_owned()], ExtendedKeyUsagePurpose::ClientAuth);
    (authority, server, client)
}

#[tokio::test]
async fn the_go_operators_variables_log_in_as_it_does() {
    let Some(mut t) = World::new(&[]).await else { return };
    t.release(TAG, "a: 1").await;
    const BEARER: &str = "Bearer realm=\"https://auth.example.com/token\",service=\"r\"";
    const BASIC: &str = "Basic realm=\"r\"";
    // base64 of swordfish, and of robot:hunter2
    let (token, password) = ("Bearer c3dvcmRmaXNo", "Basic cm9ib3Q6aHVudGVyMg==");
    let of_token = [("OCI_ACCESS_TOKEN", "swordfish")];
    let of_user = [("OCI_USERNAME", "robot"), ("OCI_PASSWORD", "hunter2")];
    let both = [of_token[0], of_user[0], of_user[1]];
    for (variables, challenge, expected, good) in [
        (&of_token[..], BEARER, token, true),
        (&of_user[..], BASIC, password, true),
        (&both[..], BEARER, token, true),
        (&both[..], BASIC, password, true),
        (&of_token[..], BEARER, "Bearer other", false),
        (&both[..], BASIC, "Basic other", false),
    ] {
        let name = t.name();
        let read = |variable: &str| match variable {
            "OCI_REGISTRY" => Some(t.liar.host.clone()),
            "OCI_REPOSITORY" => Some(name.clone()),
            _ => variables.iter().find(|(key, _)| *key == variable).map(|(_, value)| (*value).to_owned()),
        };
        let found = DefaultSource::read(None, read).unwrap().unwrap();
        assert_eq!(found.spec.oci.unwrap().repository, t.name());
        t.access = Access { insecure: true, ..found.access };
        t.liar.set(Lie::Login(challenge, expected));
        match t.get(TAG).await {
            Ok(_) => assert!(good, "{variables:?} {challenge}"),
            Err(error) => {
                assert!(!good && matches!(error, SourceError::Unauthorized { .. }), "{variables:?} {error}");
                assert!(
                    !["swordfish", "hunter2", "c3dvcmRmaXNo"].iter().any(|word| format!("{error:?}").contains(word))
                );
            }
        }
    }
}
