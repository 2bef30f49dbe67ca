//! Answers of workload clusters, whose API servers are others': each comes whole within a time and a size, or not at all. One
//! that sends a byte in a second, or no end, would keep a pass or take all memory. What it says of a refusal is shown in conditions: the
//! login that it was asked with is taken out of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use kube::config::{AuthInfo, Kubeconfig};
use serde_json::{Value, json};
use thiserror::Error;
use tower::{BoxError, Layer, Service};

use crate::io::client::is_stream;
use crate::io::source::spellings;

/// How long an answer to a question may take, to its end.
const READ: Duration = Duration::from_secs(30);
/// The same of a change, which may wait for an admission webhook (`timeoutSeconds` is 30 at most): its answer names it.
const WRITE: Duration = Duration::from_secs(36);
/// How long a watch may be silent: an API server sends a bookmark each minute (KEP-956). What is between may keep all of it back, and
/// kube's watcher begins a watch anew after 295 seconds without a word.
const SILENCE: Duration = Duration::from_secs(150);
/// A watch that ends sooner than this has failed, or it would be begun anew at once, for ever.
const SHORT: Duration = Duration::from_secs(5);
/// Bytes of an answer, or of an event of a watch.
const ANSWER: usize = 32 << 20;
/// Bytes of all answers that are under way; one of [`SMALL`] finds room all the same.
const ALL: usize = 128 << 20;
/// See [`ALL`].
const SMALL: usize = 1 << 20;

/// Bytes of all answers that are under way.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// An answer that is not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum Unbounded {
    #[error("its answer did not come to its end within {} s", .0.as_secs())]
    Late(Duration),
    #[error("a watch was silent for {} s", SILENCE.as_secs())]
    Silent,
    #[error("a watch ended at once")]
    Short,
    #[error("its answer has more than {} MiB", ANSWER >> 20)]
    Large,
    #[error("the answers of all workload clusters have more than {} MiB just now", ALL >> 20)]
    Full,
}

/// What an answer takes, counted until it is there.
struct Taken {
    own: usize,
    all: &'static AtomicUsize,
}

impl Taken {
    fn of(all: &'static AtomicUsize) -> Self {
        Self { own: 0, all }
    }

    fn add(&mut self, bytes: usize) -> Result<(), Unbounded> {
        self.own += bytes;
        let all = self.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match self.own {
            own if own > ANSWER => Err(Unbounded::Large),
            own if own > SMALL && all > ALL => Err(Unbounded::Full),
            _ => Ok(()),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

async fn whole<B>(body: B) -> Result<Bytes, BoxError>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, mut taken, mut bytes) = (Box::pin(body.into_data_stream()), Taken::of(&TAKEN), BytesMut::new());
    while let Some(part) = parts.next().await {
        let part = part.map_err(Into::into)?;
        taken.add(part.len())?;
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.freeze())
}

/// Events of a watch, one in each line.
fn events<B>(body: B) -> impl Stream<Item = Result<Bytes, BoxError>> + Send
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut open = 0_usize;
    let begin = tokio::time::Instant::now();
    let parts = futures::stream::unfold(
        Some(Box::pin(body.into_data_stream())),
        move |parts: Option<Pin<Box<_>>>| async move {
            let mut parts = parts?;
            match tokio::time::timeout(SILENCE, parts.next()).await {
                Ok(Some(part)) => Some((part.map_err(Into::into), Some(parts))),
                Ok(None) if begin.elapsed() < SHORT => Some((Err(Unbounded::Short.into()), None)),
                Ok(None) => None,
                Err(_) => Some((Err(Unbounded::Silent.into()), None)),
            }
        },
    );
    parts.map(move |part: Result<Bytes, BoxError>| {
        let part = part?;
        open = memchr::memrchr(b'\n', &part).map_or(open + part.len(), |end| part.len() - end - 1);
        if open > ANSWER { Err(Unbounded::Large.into()) } else { Ok(part) }
    })
}

/// The logins of a kubeconfig in all forms in which a message may repeat them. Debug shows nothing of them.
#[derive(Clone, Default)]
pub(super) struct Logins(Arc<[String]>);

impl Logins {
    /// Those of all users.
    pub(super) fn of(kubeconfig: &Kubeconfig) -> Self {
        let users = kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
        let mut all: Vec<String> = users.flat_map(of_user).collect();
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Self(all.into())
    }

    fn hidden(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    fn hide(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.hidden(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide(field)),
            _ => {}
        }
    }

    /// The body of a refusal without them. Its own code is that of the answer: by it is decided what went wrong.
    fn taken_out(&self, status: StatusCode, body: &[u8]) -> Bytes {
        let Ok(mut said @ Value::Object(_)) = serde_json::from_slice(body) else {
            return self.hidden(&String::from_utf8_lossy(body)).into();
        };
        self.hide(&mut said);
        said["code"] = json!(status.as_u16());
        said.to_string().into()
    }
}

fn of_user(user: &AuthInfo) -> Vec<String> {
    // What is secret in it is written where it is serialised alone.
    let fields = serde_json::to_value(user).unwrap_or_default();
    let text = |name: &str| fields[name].as_str();
    let password = text("password").map(|password| spellings(text("username"), password));
    let token = text("token").map(|token| spellings(None, token));
    password.into_iter().chain(token).flatten().collect()
}

/// Lets answers through that have an end.
#[derive(Clone, Default)]
pub(super) struct BoundedAnswers {
    /// What no refusal may repeat.
    pub(super) logins: Logins,
}

impl<S> Layer<S> for BoundedAnswers {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded { inner, logins: self.logins.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Bounded<S> {
    inner: S,
    logins: Logins,
}

impl<S, B> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = is_stream(request.uri().query());
        let limit = if *request.method() == Method::GET { READ } else { WRITE };
        let answer = self.inner.call(request);
        let logins = self.logins.clone();
        Box::pin(async move {
            let bounded = async {
                let (mut head, body) = answer.await?.into_parts();
                let is_refusal = head.status.is_client_error() || head.status.is_server_error();
                let body = if is_refusal {
                    let said = logins.taken_out(head.status, &whole(body).await?);
                    head.headers.remove(CONTENT_LENGTH);
                    Full::new(said).map_err(|never| match never {}).boxed_unsync()
                } else if is_watch {
                    axum::body::Body::from_stream(events(body)).map_err(Into::into).boxed_unsync()
                } else {
                    Full::new(whole(body).await?).map_err(|never| match never {}).boxed_unsync()
                };
                Ok(Response::from_parts(head, body))
            };
            tokio::time::timeout(limit, bounded).await.unwrap_or_else(|_| Err(Unbounded::Late(limit).into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tower::ServiceExt;

    use super::*;

    /// The bytes of an answer that comes in parts of so many bytes, with a pause before each.
    async fn asked(method: Method, query: &str, parts: usize, bytes: usize, pause: Duration) -> Result<usize, String> {
        let inner = tower::service_fn(move |_: Request<Body>| {
            let parts = stream::iter(0..parts).then(move |_| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, BoxError>(Bytes::from(vec![b' '; bytes]))
            });
            async move { Ok::<_, BoxError>(Response::new(axum::body::Body::from_stream(parts))) }
        });
        let uri = format!("/api/v1/nodes{query}");
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).map_err(|e| e.to_string())?;
        let answer =
            BoundedAnswers::default().layer(inner).oneshot(request).await.map_err(|error| error.to_string())?;
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(body.to_bytes().len())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_an_end() {
        let (second, mib) = (Duration::from_secs(1), 1 << 20);
        let (none, get, patch) = (Duration::ZERO, Method::GET, Method::PATCH);
        assert_eq!(asked(get.clone(), "", 20, 10, second).await, Ok(200));
        assert_eq!(asked(get.clone(), "", 30, mib, none).await, Ok(30 * mib));
        for (method, query, parts, bytes, pause, why) in [
            (get.clone(), "", 1_000_000, 1, second, Unbounded::Late(READ)),
            (get.clone(), "", 1, 1, second * 3600, Unbounded::Late(READ)),
            (patch.clone(), "", 1, 1, second * 40, Unbounded::Late(WRITE)),
            (get.clone(), "", 1000, mib, none, Unbounded::Large),
            (get.clone(), "?watch=true", 1000, mib, none, Unbounded::Large),
        ] {
            let told = asked(method, query, parts, bytes, pause).await.unwrap_err();
            assert!(told.contains(&why.to_string()), "{told}");
        }
        // A change waits for its admission webhooks, and a watch for ever.
        assert_eq!(asked(patch, "", 1, 7, second * 31).await, Ok(7));
        assert_eq!(asked(get.clone(), "?watch=true", 10, 7, second * 60).await, Ok(70));
        let told = asked(get.clone(), "?watch=true", 2, 7, second * 151).await.unwrap_err();
        assert!(told.contains(&Unbounded::Silent.to_string()), "{told}");
        let told = asked(Method::GET, "?watch=true", 2, 7, second).await.unwrap_err();
        assert!(told.contains(&Unbounded::Short.to_string()), "{told}");
    }

    #[tokio::test]
    async fn no_refusal_repeats_the_login_that_it_was_asked_with() {
        let kubeconfig =
            "users: [{name: a, user: {token: t0k/en+x}}, {name: b, user: {username: ann, password: fish}}]";
        let logins = Logins::of(&Kubeconfig::from_yaml(kubeconfig).unwrap());
        for (status, said, shown, code) in [
            (401, r#"{"message": "no Bearer t0k\/en\u002bx", "x": ["YW5uOmZpc2g="]}"#, "no Bearer ***", Some(401)),
            (500, r#"{"message": "t0k%2Fen%2Bx is bad", "code": 200}"#, "*** is bad", Some(500)),
            (403, "<p>fish</p>", "<p>***</p>", None),
            (200, r#"{"message": "fish"}"#, "fish", None),
        ] {
            let inner = tower::service_fn(move |_: Request<Body>| async move {
                let body = axum::body::Body::from(said);
                Ok::<_, BoxError>(Response::builder().status(status).body(body)?)
            });
            let request = Request::builder().uri("/version").body(Body::empty()).unwrap();
            let answer = BoundedAnswers { logins: logins.clone() }.layer(inner).oneshot(request).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(text.contains(shown) && !text.contains("YW5uOmZpc2g="), "{text}");
            let told = serde_json::from_str::<Value>(&text).ok().and_then(|value| value["code"].as_u64());
            assert_eq!(told, code, "{text}");
        }
    }

    #[test]
    fn all_answers_together_are_bounded() {
        static ALL_OF_TEST: AtomicUsize = AtomicUsize::new(0);
        let mut taken: Vec<Taken> = Vec::new();
        let refused = loop {
            let mut next = Taken::of(&ALL_OF_TEST);
            let added = next.add(SMALL * 8);
            taken.push(next);
            if let Err(why) = added {
                break why;
            }
        };
        assert_eq!(refused, Unbounded::Full);
        assert_eq!(Taken::of(&ALL_OF_TEST).add(SMALL), Ok(()));
        drop(taken);
        assert_eq!(ALL_OF_TEST.load(Ordering::Relaxed), 0);
    }
}
