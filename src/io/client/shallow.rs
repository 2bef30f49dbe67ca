//! Answers that are nested deeper than their reader goes.
//!
//! Whoever may write one object may nest it so deep that no list of its kind can be read any more (`serde_json` ends at 128
//! levels, where the API server ends at 10,000): of nobody, and no watch of it begins. What lies too deep is cut out of the
//! text before anybody reads it, so that the one object is the only one that suffers.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::HttpBody;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, Stream};
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde::Serialize;
use tower::{BoxError, Layer, Service};

use super::whole::is_stream;

/// Levels of an answer that are kept, those of the list or of the event included.
pub const LEVELS: usize = 100;
/// What stands where something was cut out.
const CUT: &str = "(nested too deep for clusterstack)";

/// Whether anything was ever cut out: as a rule nothing is, and nobody has to look for it.
static WAS_CUT: AtomicBool = AtomicBool::new(false);

/// Whether a part of this object was cut out when it was read, so that it is not what the API server has.
pub fn is_cut(object: &impl Serialize) -> bool {
    WAS_CUT.load(Ordering::Relaxed) && serde_json::to_string(object).is_ok_and(|text| text.contains(CUT))
}

/// The same text with [`CUT`] for what lies deeper than [`LEVELS`]; `None` where nothing does.
fn shallow(text: &[u8]) -> Option<Vec<u8>> {
    let mut cut: Option<Vec<u8>> = None;
    let (mut depth, mut at, mut kept) = (0_usize, 0, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = end_of_text(text, at),
            b'{' | b'[' => {
                depth += 1;
                if depth == LEVELS + 1 {
                    let out = cut.get_or_insert_with(|| Vec::with_capacity(text.len()));
                    out.extend_from_slice(&text[kept..at]);
                    out.extend_from_slice(format!("{CUT:?}").as_bytes());
                    kept = text.len();
                }
            }
            b'}' | b']' => {
                if depth == LEVELS + 1 {
                    kept = at + 1;
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        at += 1;
    }
    let mut out = cut?;
    WAS_CUT.store(true, Ordering::Relaxed);
    out.extend_from_slice(&text[kept..]);
    Some(out)
}

/// Where the text ends that begins at `start`, with its quotation mark.
fn end_of_text(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(next) = text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += next;
        if text.get(at) == Some(&b'"') {
            return at;
        }
        at += 2;
    }
    text.len()
}

fn cut(bytes: Bytes) -> Bytes {
    shallow(&bytes).map_or(bytes, Bytes::from)
}

/// The same for events of a watch, one in each line. As a rule nothing is cut, and nothing copied.
fn cut_lines(events: Bytes) -> Bytes {
    let lines = || events.split_inclusive(|byte| *byte == b'\n');
    let cut: Vec<_> = lines().map(shallow).collect();
    if cut.iter().all(Option::is_none) {
        return events;
    }
    let whole = lines().zip(cut).map(|(line, cut)| cut.map_or(Cow::Borrowed(line), Cow::Owned));
    Bytes::from(whole.collect::<Vec<_>>().concat())
}

/// The lines of a watch, one event each.
fn lines<B>(body: B) -> impl Stream<Item = Result<Bytes, BoxError>> + Send
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let data = Box::pin(body.into_data_stream());
    stream::unfold((data, Vec::new()), |(mut data, mut open): (_, Vec<u8>)| async move {
        loop {
            match data.next().await {
                Some(Ok(bytes)) => match memchr::memrchr(b'\n', &bytes) {
                    None => open.extend_from_slice(&bytes),
                    Some(end) => {
                        let whole = if open.is_empty() {
                            bytes.slice(..=end)
                        } else {
                            open.extend_from_slice(&bytes[..=end]);
                            Bytes::from(open)
                        };
                        return Some((Ok(cut_lines(whole)), (data, bytes[end + 1..].to_vec())));
                    }
                },
                Some(Err(error)) => return Some((Err(error.into()), (data, Vec::new()))),
                None if open.is_empty() => return None,
                None => return Some((Ok(cut(Bytes::from(std::mem::take(&mut open)))), (data, open))),
            }
        }
    })
}

/// Cuts out of answers in JSON what lies too deep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShallowAnswers;

impl<S> Layer<S> for ShallowAnswers {
    type Service = Shallow<S>;

    fn layer(&self, inner: S) -> Shallow<S> {
        Shallow(inner)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Shallow<S>(S);

impl<S, B> Service<Request<Body>> for Shallow<S>
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
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = is_stream(request.uri().query());
        let answer = self.0.call(request);
        Box::pin(async move {
            let (head, body) = answer.await?.into_parts();
            let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            let body = if !kind.starts_with("application/json") {
                body.map_err(Into::into).boxed_unsync()
            } else if is_watch {
                axum::body::Body::from_stream(lines(body)).map_err(Into::into).boxed_unsync()
            } else {
                let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
                Full::new(cut(bytes)).map_err(|never| match never {}).boxed_unsync()
            };
            Ok(Response::from_parts(head, body))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn what_lies_too_deep_is_cut_out_and_nothing_else() {
        for text in ["", "{}", r#"{"a": "{{{[[[\"{\\"}"#, &nested(LEVELS), &format!("[{}]", nested(LEVELS - 1))] {
            assert_eq!(shallow(text.as_bytes()), None, "{text}");
        }
        let deep = format!(r#"{{"items": [{{"x": {}, "y": "\"}}"}}, {{"z": [{}]}}]}}"#, nested(500), nested(10_000));
        let text = shallow(deep.as_bytes()).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read["items"][0]["y"], "\"}");
        assert!(is_cut(&read["items"][0]) && is_cut(&read["items"][1]) && !is_cut(&read["items"][0]["y"]));
        // What is no JSON is left to its reader.
        for text in ["}}}]", "\"", "\"\\", &"[".repeat(500), &"]".repeat(500)] {
            let _ = shallow(text.as_bytes());
        }
    }

    #[tokio::test]
    async fn an_answer_is_read_though_one_object_is_too_deep() {
        let answer = |kind: &'static str, query: &str, parts: Vec<String>| {
            let inner = tower::service_fn(move |_: Request<Body>| {
                let parts = parts.clone().into_iter().map(|part| Ok::<_, BoxError>(Bytes::from(part)));
                let body = axum::body::Body::from_stream(stream::iter(parts));
                async move { Ok::<_, BoxError>(Response::builder().header(CONTENT_TYPE, kind).body(body).unwrap()) }
            });
            let request = Request::get(format!("/api/v1/nodes{query}")).body(Body::empty()).unwrap();
            async move {
                let answer = tower::ServiceExt::oneshot(ShallowAnswers.layer(inner), request).await.unwrap();
                String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
            }
        };
        let deep = nested(200);
        let text = answer("application/json", "", vec![deep[..300].to_owned(), deep[300..].to_owned()]).await;
        assert!(text.contains(CUT) && serde_json::from_str::<serde_json::Value>(&text).is_ok());
        assert_eq!(answer("text/plain", "", vec![deep.clone()]).await, deep);

        let parts = vec!["{\"a\":1}\n{\"b\"".to_owned(), format!(":{deep}}}\n{{}}"), "\n{\"c\":2}".to_owned()];
        let text = answer("application/json;stream=watch", "?watch=true", parts).await;
        let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((events.len(), &events[0]["a"], &events[3]["c"]), (4, &1.into(), &2.into()));
        assert!(is_cut(&events[1]) && !is_cut(&events[2]));
    }
}
