//! The log of who builds, through the API server's pod proxy.

use anyhow::Result;
use http::StatusCode;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

use super::follow::Served;
use super::{Log, Look};
use crate::cli::report::Hinted;
use crate::io::image::log_server::{ANEW, FILE, OFFSET};

/// Up to where a log was printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    file: String,
    offset: u64,
}

/// What the proxy answered.
struct Answer {
    status: StatusCode,
    cursor: Option<Cursor>,
    /// Whether what comes behind the cursor is gone.
    anew: bool,
    text: String,
}

impl Log {
    /// Prints all that is new.
    pub(super) async fn read_served(&mut self, served: &Served) -> Result<Look> {
        loop {
            let asked = self.named.connection.answer(self.ask(served)).await;
            let answer = match asked {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Ok(Look::Gone(format!("the API server can't be asked: {error:#}"))),
                Err(error) => return Ok(Look::Gone(format!("{error:#}"))),
            };
            if answer.status != StatusCode::OK {
                return Ok(refused(answer.status, &answer.text, served));
            }
            if answer.anew {
                self.say("another log begins here: some lines of the one before may be lost");
            }
            if let Some(cursor) = answer.cursor {
                self.served = cursor;
            }
            if answer.text.is_empty() {
                return Ok(Look::Drained);
            }
            self.write(&answer.text)?;
        }
    }

    async fn ask(&self, served: &Served) -> Result<Answer> {
        let url = served.url(&self.served.file, self.served.offset);
        let request = http::Request::get(url).body(Body::empty())?;
        let response = self.named.connection.client.send(request).await?;
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let cursor =
            header(FILE).filter(|file| file.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')).map(|file| {
                Cursor {
                    file: file.to_owned(),
                    offset: header(OFFSET).and_then(|offset| offset.parse().ok()).unwrap_or_default(),
                }
            });
        let anew = header(ANEW).is_some();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, cursor, anew, text: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// What an answer without a log means.
fn refused(status: StatusCode, text: &str, served: &Served) -> Look {
    let Served { namespace, pod, .. } = served;
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        let hint = format!(
            "ask for `get` on pods/proxy in namespace {namespace}; the last lines are in status.logTail: see docs/node-images.md"
        );
        let said = serde_json::from_str::<Value>(text).ok();
        let said = said.as_ref().and_then(|status| status["message"].as_str()).unwrap_or(text).trim().to_owned();
        return Look::Denied(
            Hinted::new(format!("pod {namespace}/{pod} can't be asked for the log"), hint).because(said),
        );
    }
    Look::Gone(match status {
        StatusCode::NOT_FOUND => format!("pod {namespace}/{pod} is gone"),
        StatusCode::GONE => format!("pod {namespace}/{pod} was started anew"),
        _ => format!("pod {namespace}/{pod} does not answer ({status})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_right_ends_the_following() {
        let served = Served { namespace: "system".into(), pod: "op-0".into(), port: 1, path: "/".into() };
        let of = |code: u16, text: &str| refused(StatusCode::from_u16(code).unwrap(), text, &served);
        for (code, expected) in [
            (404, "pod system/op-0 is gone"),
            (410, "pod system/op-0 was started anew"),
            (503, "pod system/op-0 does not answer (503 Service Unavailable)"),
        ] {
            let Look::Gone(why) = of(code, "") else { panic!("{code}") };
            assert_eq!(why, expected);
        }
        let status = r#"{"kind": "Status", "message": "pods \"op-0\" is forbidden"}"#;
        let Look::Denied(error) = of(403, status) else { panic!() };
        let text = anstream::adapter::strip_str(&crate::cli::report::text(&error.into())).to_string();
        insta::assert_snapshot!(text, @r#"
        error: pod system/op-0 can't be asked for the log
          caused by: pods "op-0" is forbidden
        hint: ask for `get` on pods/proxy in namespace system; the last lines are in status.logTail: see docs/node-images.md
        "#);
    }
}
