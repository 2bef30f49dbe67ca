//! The edge for HTTP: where it goes, whom it tells who we are, and when it gives up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clusterstack::core::source::{AllowList, Refused};
use clusterstack::io::source::http::{Http, Redirects};
use clusterstack::io::source::{Access, SourceError};
use tokio::net::TcpListener;

/// A server that answers by `answer` and keeps the headers that it saw.
async fn serve(
    answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<HeaderMap>>>) {
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let app = Router::new().fallback(async move |request: Request| {
        kept.lock().unwrap().push(request.headers().clone());
        answer(request.uri().path())
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (host, seen)
}

fn to(location: &str) -> Response {
    (StatusCode::FOUND, [(header::LOCATION, location.to_owned())]).into_response()
}

fn http(allow: &[&str]) -> Http {
    Http::new(&Access::default(), &AllowList::parse(allow.iter().copied()).unwrap()).unwrap()
}

async fn get(http: &Http, url: &str) -> Result<reqwest::Response, SourceError> {
    let request = http.request(reqwest::Method::GET, url.parse().unwrap());
    http.send("asking", request.header("authorization", "Bearer hunter2").build().unwrap(), Redirects::Anywhere).await
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_credentials() {
    let (other, seen_there) = serve(|_| "there".into_response()).await;
    let there = other.clone();
    let (host, seen_here) = serve(move |path| match path {
        "/away" => to(&format!("http://{there}/x")),
        "/here" => to("/x"),
        _ => "here".into_response(),
    })
    .await;
    let http = http(&["127.0.0.1"]);
    for (path, said) in [("away", "there"), ("here", "here")] {
        let response = get(&http, &format!("http://{host}/{path}")).await.unwrap();
        assert_eq!(http.body("asking", response, 100).await.unwrap(), said);
    }
    assert!(seen_there.lock().unwrap().iter().all(|headers| !headers.contains_key(header::AUTHORIZATION)));
    assert!(seen_here.lock().unwrap().iter().all(|headers| headers.contains_key(header::AUTHORIZATION)));
}

#[tokio::test]
async fn what_is_posted_goes_to_no_other_server() {
    let (other, seen_there) = serve(|_| "there".into_response()).await;
    let there = other.clone();
    let (host, _) = serve(move |path| match path {
        "/away" => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, format!("http://{there}/x"))]).into_response(),
        "/here" => (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "/x".to_owned())]).into_response(),
        _ => "here".into_response(),
    })
    .await;
    let http = http(&["127.0.0.1"]);
    let post = async |path: &str| {
        let request = http.request(reqwest::Method::POST, format!("http://{host}/{path}").parse().unwrap());
        http.send("asking", request.body("refresh_token=hunter2").build().unwrap(), Redirects::Anywhere).await
    };
    assert!(post("here").await.is_ok());
    let refused = post("away").await;
    assert!(matches!(refused, Err(SourceError::Untrusted { .. })), "{refused:?}");
    assert!(seen_there.lock().unwrap().is_empty());
}

#[tokio::test]
async fn neither_a_url_nor_a_redirect_nor_a_name_leads_to_where_the_flags_forbid() {
    let (host, _) = serve(|path| match path {
        "/metadata" => to("http://169.254.169.254/latest"),
        "/loop" => to("/loop"),
        _ => to("https://[::1]/x"),
    })
    .await;
    let allowed = http(&[&host]);
    for path in ["metadata", "x"] {
        let refused = get(&allowed, &format!("http://{host}/{path}")).await;
        assert!(matches!(refused, Err(SourceError::Led { refused: Refused::Host { .. }, .. })), "{refused:?}");
    }
    let endless = get(&allowed, &format!("http://{host}/loop")).await;
    assert!(matches!(endless, Err(SourceError::Unreachable { .. })), "{endless:?}");
    let port = host.rsplit_once(':').unwrap().1;
    for url in [format!("https://127.0.0.1:{port}/"), "https://localhost/".to_owned()] {
        let refused = get(&http(&[]), &url).await;
        assert!(matches!(refused, Err(SourceError::Refused(Refused::Host { .. }))), "{refused:?}");
    }
    let plain = get(&http(&[]), "http://example.com/").await;
    assert!(matches!(plain, Err(SourceError::Refused(Refused::Plain { .. }))), "{plain:?}");
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_bound() {
    let (host, _) = serve(|path| match path {
        "/told" => vec![0; 101].into_response(),
        _ => Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 64]))).into_response(),
    })
    .await;
    let http = http(&["127.0.0.1"]);
    for path in ["told", "endless"] {
        let response = get(&http, &format!("http://{host}/{path}")).await.unwrap();
        let body = tokio::time::timeout(Duration::from_secs(10), http.body("asking", response, 100)).await.unwrap();
        assert!(matches!(body, Err(SourceError::TooLarge { .. })), "{path}: {body:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_told_without_secrets() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap();
    drop(listener);
    let error = get(&http(&["127.0.0.1"]), &format!("http://user:hunter2@{host}/x?token=hunter2")).await.unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, SourceError::Unreachable { .. }) && said.contains("refused"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn what_fails_behind_a_redirect_names_what_was_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = listener.local_addr().unwrap();
    drop(listener);
    let (host, _) = serve(move |_| to(&format!("http://{down}/login?next=hunter2"))).await;
    let asked = format!("http://{host}/x");
    let said = get(&http(&["127.0.0.1"]), &asked).await.unwrap_err().to_string();
    assert!(said.contains(&asked) && said.contains(&format!("a redirect led to http://{down}/login: ")), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn silence_is_told_with_its_length() {
    let (host, _) = serve(|path| match path {
        // Without an end.
        "/body" => Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>()).into_response(),
        _ => "here".into_response(),
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = listener.local_addr().unwrap();
    let allow = AllowList::parse(["127.0.0.1"]).unwrap();
    let http = Http::patient(&Access::default(), &allow, Duration::from_millis(200)).unwrap();
    let error = get(&http, &format!("http://{mute}/")).await.unwrap_err().to_string();
    assert!(error.contains("no answer for 200 ms"), "{error}");
    let response = get(&http, &format!("http://{host}/body")).await.unwrap();
    let error = http.body("asking", response, 100).await.unwrap_err().to_string();
    assert!(error.contains("no answer for 200 ms"), "{error}");
}
