//! What reached the API server, read from its audit log.

use std::path::Path;

use jiff::Timestamp;
use kube::api::{Api, DynamicObject};
use serde_json::Value;

use super::wait::wait_for;
use super::world::World;

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: String,
    pub(crate) resource: String,
    pub(crate) name: String,
    /// Name of the pod that sent it.
    pub(crate) by: String,
    /// When the API server got it.
    pub(crate) received: Timestamp,
    /// What it answered.
    pub(crate) code: u64,
}

impl Request {
    /// Whether it changes anything.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether it was done.
    pub(crate) fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl World {
    /// A place in the audit log: everything that was asked for before lies before it. `None` where there is no log.
    pub(crate) async fn audit_mark(&self) -> Option<usize> {
        let path = self.plane.audit_log.as_deref()?;
        // A request of our own, by a name that occurs once, shows how far the log is.
        let marker = super::world::unique("marker");
        let api: Api<DynamicObject> = self.api("v1", "ConfigMap");
        let _ = api.get_opt(&marker).await.expect("no API server");
        let at = wait_for("the audit log", || async {
            let text = read(path);
            text.find(&marker)
                .map(|at| at + text[at..].find('\n').unwrap_or_default())
                .ok_or("not there yet".to_owned())
        });
        Some(at.await)
    }

    /// Where the audit log ends now: a namespace that is gone takes no mark.
    pub(crate) fn audit_end(&self) -> usize {
        self.plane.audit_log.as_deref().map_or(0, |path| read(path).len())
    }

    /// The requests of operators about this test's namespace between two marks.
    pub(crate) fn requests(&self, from: usize, to: usize) -> Vec<Request> {
        let Some(path) = self.plane.audit_log.as_deref() else { return Vec::new() };
        let text = read(path);
        text[from..to].lines().filter_map(|line| request(&serde_json::from_str(line).ok()?, &self.namespace)).collect()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("no audit log")
}

fn request(event: &Value, namespace: &str) -> Option<Request> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let ours = text("/userAgent").starts_with("clusterstack/") && text("/objectRef/namespace") == namespace;
    let resource = match text("/objectRef/subresource").as_str() {
        "" => text("/objectRef/resource"),
        sub => format!("{}/{sub}", text("/objectRef/resource")),
    };
    let agent = text("/userAgent");
    let instance = agent.split_once('(').and_then(|(_, rest)| rest.rsplit_once('_')).map_or("", |(pod, _)| pod);
    ours.then(|| Request {
        verb: text("/verb"),
        resource,
        name: text("/objectRef/name"),
        by: instance.to_owned(),
        received: text("/requestReceivedTimestamp").parse().expect("no time"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
    })
}
