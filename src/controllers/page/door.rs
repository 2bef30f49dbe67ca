//! What stands before each page: who is let in, and what a browser may do with what it gets.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use crate::core::page::{PageError, guard};

/// The door.
#[derive(Clone)]
pub(super) struct Door {
    policy: HeaderValue,
    /// Whether only this machine reaches it.
    is_local: bool,
}

impl Door {
    /// The door of pages with this style that are served at `address`.
    pub(super) fn new(style: &str, address: SocketAddr) -> Result<Self, PageError> {
        let policy = HeaderValue::try_from(guard::policy(style))?;
        Ok(Self { policy, is_local: address.ip().to_canonical().is_loopback() })
    }

    /// Stands before these routes.
    pub(super) fn before(self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self, guarded))
    }
}

/// Refuses what is no reading, or comes under a name of somebody else, and says of each answer what it may do.
async fn guarded(State(door): State<Door>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if door.is_local && !guard::is_local(host) {
        let text = "this page is served to this machine alone: ask for it as localhost or 127.0.0.1\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if matches!(*request.method(), Method::GET | Method::HEAD) {
        next.run(request).await
    } else {
        (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "this page only shows\n").into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, door.policy);
    for (name, value) in guard::HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn ask(address: &str, method: &str, path: &str, host: &str) -> Response {
        let door = Door::new("sha256-abc", address.parse().unwrap()).unwrap();
        let routes = door.before(Router::new().route("/", get(|| async { "page" })));
        let request = Request::builder().method(method).uri(path).header("host", host).body(Body::empty()).unwrap();
        routes.oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn a_page_is_read_and_nothing_else_and_by_its_own_name() {
        const LOCAL: &str = "127.0.0.1:9444";
        for (address, method, path, host, status) in [
            (LOCAL, "GET", "/", "localhost:8081", 200),
            (LOCAL, "HEAD", "/", "127.0.0.1", 200),
            (LOCAL, "GET", "/x", "localhost", 404),
            (LOCAL, "POST", "/", "localhost", 405),
            (LOCAL, "DELETE", "/x", "localhost", 405),
            (LOCAL, "OPTIONS", "/", "localhost", 405),
            (LOCAL, "GET", "/", "evil.example.org", 421),
            (LOCAL, "POST", "/", "evil.example.org", 421),
            (LOCAL, "GET", "/", "", 421),
            ("[::1]:9444", "GET", "/", "[::1]:9444", 200),
            ("[::1]:9444", "GET", "/", "evil.example.org", 421),
            ("[::]:9444", "GET", "/", "pages.example.org", 200),
            ("10.0.0.1:9444", "PUT", "/", "pages.example.org", 405),
        ] {
            let answer = ask(address, method, path, host).await;
            assert_eq!(answer.status(), status, "{address} {method} {path} {host}");
            let header =
                |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            assert_eq!([header("x-content-type-options"), header("referrer-policy")], ["nosniff", "no-referrer"]);
            assert_eq!([header("cache-control"), header("x-frame-options")], ["no-store", "DENY"]);
            let policy = header("content-security-policy");
            for part in ["default-src 'none'", "style-src 'sha256-abc'", "frame-ancestors 'none'", "base-uri 'none'"] {
                assert!(policy.contains(part), "{policy}");
            }
            if status == 405 {
                assert_eq!(header("allow"), "GET, HEAD");
            }
        }
    }
}
