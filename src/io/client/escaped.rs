//! Bodies of server-side apply, as the API server's reader of YAML takes them.
//!
//! `serde_json` writes what JSON allows to stand as it is. An API server reads what is applied as YAML, which refuses control
//! characters (YAML 1.2, 5.1) and takes U+0085, U+2028 and U+2029 for ends of lines: one such character, in a chart or in somebody's
//! message, and nothing of the object can be sent, or it is sent as another one. Escaped they are the same text to both.

use std::fmt::Write as _;

use bytes::Bytes;
use futures::FutureExt;
use http::Request;
use http::header::CONTENT_TYPE;
use kube::client::Body;
use tower::util::MapRequestLayer;

/// A layer that escapes what is applied.
pub fn layer() -> MapRequestLayer<fn(Request<Body>) -> Request<Body>> {
    MapRequestLayer::new(of)
}

fn of(request: Request<Body>) -> Request<Body> {
    if request.headers().get(CONTENT_TYPE).is_none_or(|type_| type_ != "application/apply-patch+yaml") {
        return request;
    }
    request.map(|body| match body.try_clone().and_then(|copy| copy.collect_bytes().now_or_never()) {
        Some(Ok(content)) => escaped(&content).map_or(body, Body::from),
        _ => body,
    })
}

/// JSON that is YAML too; `None` where it is so already. Outside of texts there is nothing to escape.
fn escaped(json: &Bytes) -> Option<Vec<u8>> {
    // The first bytes of all of them.
    if !json.iter().any(|byte| matches!(byte, 0x7f | 0xc2 | 0xe2 | 0xef)) {
        return None;
    }
    let text = std::str::from_utf8(json).ok().filter(|text| text.contains(is_foreign))?;
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if is_foreign(c) {
            _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Some(out.into_bytes())
}

fn is_foreign(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_yaml_refuses_is_escaped_and_stays_the_same_text() {
        let object =
            json!({"del\u{7f}": "\u{80}\u{85}\u{9b}\u{9f} \u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}", "b": "\n\"\\"});
        let sent = escaped(&serde_json::to_vec(&object).unwrap().into()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), object);
        let sent = String::from_utf8(sent).unwrap();
        assert!(sent.contains(r"del\u007f") && !sent.contains(is_foreign), "{sent}");
    }

    #[test]
    fn what_is_yaml_already_is_sent_as_it_is() {
        let object = json!({"a": "ä € \u{a0} \u{202e} 漢 🎉", "b": "\u{1}\t"});
        assert_eq!(escaped(&serde_json::to_vec(&object).unwrap().into()), None);
    }

    #[tokio::test]
    async fn only_what_is_applied_is_escaped() {
        for (type_, expected) in
            [("application/apply-patch+yaml", r#""\u007f""#), ("application/merge-patch+json", "\"\u{7f}\"")]
        {
            let request =
                Request::builder().header(CONTENT_TYPE, type_).body(Body::from(b"\"\x7f\"".to_vec())).unwrap();
            let sent = of(request).into_body().collect_bytes().await.unwrap();
            assert_eq!(std::str::from_utf8(&sent).unwrap(), expected);
        }
    }
}
