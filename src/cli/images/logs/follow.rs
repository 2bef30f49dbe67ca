//! Where a log is, and what comes next when one follows it.

use kube::ResourceExt;

use crate::api::ProviderNodeImageRelease as Image;
use crate::api::image_release::ImagePhase;
use crate::cli::images::row::is_at_rest;
use crate::io::image::job::new_lines;

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// With who builds, behind the pod proxy.
    Served(Served),
    /// In pods of Jobs, by the object's UID.
    Job {
        /// Namespace of the pods.
        namespace: String,
        /// UID of the image's object.
        uid: String,
        /// Which container's log it is.
        container: String,
    },
    /// Nowhere that it can be read; why.
    Nowhere(String),
    /// Nobody has begun to build.
    NotYet,
}

/// A log behind the pod proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub namespace: String,
    pub pod: String,
    pub port: u16,
    /// With its query.
    pub path: String,
}

impl Served {
    /// What the API server is asked for.
    pub fn url(&self, file: &str, offset: u64) -> String {
        let Self { namespace, pod, port, path } = self;
        let file = if file.is_empty() { String::new() } else { format!("&file={file}") };
        format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}{file}&offset={offset}")
    }
}

/// Where the log of an image is.
pub fn place(image: &Image) -> Place {
    let status = image.status.clone().unwrap_or_default();
    let holder = status.holder.map(|holder| holder.identity);
    let no_pod = |identity: &str| {
        Place::Nowhere(format!(
            "{identity} builds, which is no pod that serves logs: these are the last lines that it wrote to the status"
        ))
    };
    let Some(log) = status.log else {
        return match holder {
            Some(identity) => no_pod(&identity),
            None if status.attempt > 0 => {
                Place::Nowhere("no pod built it that serves logs: these are the last lines in the status".to_owned())
            }
            None => Place::NotYet,
        };
    };
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        !name.is_empty() && name.bytes().all(plain) && !name.contains("..")
    };
    let Some(port) = log.port else {
        let uid = image.uid().unwrap_or_default();
        // With the template, which may be shared from another namespace. There it looks for this image's pods alone.
        let namespace = if is_name(&log.namespace) { log.namespace } else { image.namespace().unwrap_or_default() };
        return Place::Job { namespace, uid, container: log.path };
    };
    // An identity is a pod's or host's name and a random tail. One that took over may not be that pod.
    let is_other = |identity: &String| identity.rsplit_once('_').is_none_or(|(place, _)| place != log.pod);
    if let Some(identity) = holder.filter(is_other) {
        return no_pod(&identity);
    }
    // Who writes statuses must not send the user's rights elsewhere.
    let own = format!("/images/{}/{}/log?", image.namespace().unwrap_or_default(), image.name_any());
    let is_query = |c: char| c.is_ascii_alphanumeric() || "=&%-_.+*".contains(c);
    let is_plain = log.path.strip_prefix(&own).is_some_and(|query| query.chars().all(is_query));
    if !is_plain || !is_name(&log.namespace) || !is_name(&log.pod) {
        return Place::Nowhere(
            "status.log is no path of this image's log: these are the last lines in the status".into(),
        );
    }
    Place::Served(Served { namespace: log.namespace, pod: log.pod, port, path: log.path })
}

/// What a look at the log came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All that there is was printed.
    Drained,
    /// It is not there now; why.
    Gone(String),
    /// It can't be read anywhere; why.
    Nowhere(String),
    /// Nobody has begun to build.
    NotYet,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again later; what is to be said.
    Wait(String),
    /// Show the last lines of the status, and look again later.
    FollowTail(String),
    /// Show the last lines of the status, and end.
    Tail(String),
    /// The end.
    End,
}

/// What comes next. `is_last`: no more is expected, as it was known before the look.
pub fn next(sight: &Sight, is_last: bool, has_printed: bool) -> Next {
    match sight {
        Sight::Drained if is_last => Next::End,
        Sight::Drained => Next::Wait(String::new()),
        // What was printed goes further than the last lines of the status.
        Sight::Gone(why) if is_last && has_printed => Next::Tail(format!("{why}; the last lines of the status:")),
        Sight::Gone(why) if is_last => Next::Tail(format!("{why}; these are the last lines of the status:")),
        Sight::Gone(why) => Next::Wait(format!("{why}; waiting for whoever goes on with the build")),
        Sight::Nowhere(why) if is_last => Next::Tail(why.clone()),
        Sight::Nowhere(why) => Next::FollowTail(why.clone()),
        Sight::NotYet if is_last => Next::Tail("nobody has begun to build it".to_owned()),
        Sight::NotYet => Next::Wait("it waits for a place to build".to_owned()),
    }
}

/// Whether no more is written to the log of an image unless somebody asks for it.
pub fn is_over(image: &Image) -> bool {
    let phase = image.status.as_ref().map_or(ImagePhase::Queued, |status| status.phase);
    is_at_rest(phase) || image.metadata.deletion_timestamp.is_some()
}

/// What of the status's last lines was not shown: of those that were there `before`, or in a log whose `last` line was
/// printed.
pub fn unseen(before: &str, now: &str, last: &str) -> String {
    let new = new_lines(before, now).into_iter().fold(String::new(), |text, line| text + line + "\n");
    if before.is_empty() { behind(&new, last).to_owned() } else { new }
}

/// What stands behind the line that was printed last; all, if it is not there.
fn behind<'a>(text: &'a str, last: &str) -> &'a str {
    let mut end = 0;
    let ends = text.split_inclusive('\n').map(|line| {
        end += line.len();
        (line.trim_end_matches('\n'), end)
    });
    let printed = ends.filter(|(line, _)| !last.is_empty() && *line == last).last();
    printed.map_or(text, |(_, end)| &text[end..])
}

/// Text as it may reach a terminal: what a container writes must not steer it.
pub fn shown(text: &str) -> String {
    crate::cli::output::visible(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn image(status: &Value) -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": "ubuntu", "namespace": "shop", "uid": "u-1"},
            "spec": {"templateRef": {"name": "t"}, "image": {"name": "ubuntu", "steps": []}, "inputs": "sha256:1"},
            "status": status,
        }))
        .unwrap()
    }

    fn log(pod: &str, path: &str) -> Value {
        json!({"namespace": "system", "pod": pod, "port": 9440, "path": path})
    }

    fn holder(identity: &str) -> Value {
        json!({"identity": identity, "heartbeat": "2026-01-01T00:00:00.000000Z"})
    }

    const PATH: &str = "/images/shop/ubuntu/log?inputs=sha256%3A1&key=a-_b";

    #[test]
    fn a_log_is_where_who_builds_says() {
        let served =
            Place::Served(Served { namespace: "system".into(), pod: "op-0".into(), port: 9440, path: PATH.into() });
        let in_namespace =
            |name: &str| Place::Job { namespace: name.into(), uid: "u-1".into(), container: "build".into() };
        let (job, elsewhere) = (in_namespace("shop"), in_namespace("images"));
        for (status, expected) in [
            (json!({}), Place::NotYet),
            (json!({"log": log("op-0", PATH), "holder": holder("op-0_12ab")}), served.clone()),
            // It is at its end, or between two holders.
            (json!({"log": log("op-0", PATH)}), served),
            (json!({"log": {"namespace": "shop", "path": "build"}, "holder": holder("laptop_1")}), job),
            // The template is shared from another namespace.
            (json!({"log": {"namespace": "images", "path": "build"}}), elsewhere),
        ] {
            assert_eq!(place(&image(&status)), expected, "{status}");
        }
        let nowhere = |status: Value| matches!(place(&image(&status)), Place::Nowhere(_));
        assert!(nowhere(json!({"holder": holder("laptop_1")})));
        assert!(nowhere(json!({"phase": "Succeeded", "attempt": 1})), "it was built, by no pod");
        assert!(nowhere(json!({"log": log("op-0", PATH), "holder": holder("laptop_1")})), "a stale record");
        assert!(nowhere(json!({"log": log("op-0", PATH), "holder": holder("op-0")})));
    }

    #[test]
    fn a_record_leads_nowhere_but_to_the_log_of_its_image() {
        for (pod, path) in [
            ("op-0", "/metrics"),
            ("op-0", "/images/shop/rocky/log?key=1"),
            ("op-0", "/images/shop/ubuntu/log?/../../../../secrets"),
            ("op-0", "/images/shop/ubuntu/log?a=1#b"),
            ("op-0/proxy", PATH),
            ("../../secrets", PATH),
            ("", PATH),
        ] {
            let place = place(&image(&json!({"log": log(pod, path)})));
            assert!(matches!(place, Place::Nowhere(_)), "{pod} {path} {place:?}");
        }
    }

    #[test]
    fn the_proxy_is_asked_for_what_comes_behind() {
        let Place::Served(served) = place(&image(&json!({"log": log("op-0", PATH)}))) else { panic!() };
        let proxy = "/api/v1/namespaces/system/pods/op-0:9440/proxy/images/shop/ubuntu/log?inputs=sha256%3A1&key=a-_b";
        assert_eq!(served.url("", 0), format!("{proxy}&offset=0"));
        assert_eq!(served.url("1f-2", 17), format!("{proxy}&file=1f-2&offset=17"));
    }

    #[test]
    fn who_follows_waits_over_restarts_and_ends_with_the_build() {
        let gone = Sight::Gone("pod op-0 is gone".into());
        let nowhere = Sight::Nowhere("no pod".into());
        for (sight, is_last, has_printed, expected) in [
            (Sight::Drained, false, true, "Wait"),
            (Sight::Drained, true, true, "End"),
            (Sight::Drained, true, false, "End"),
            (gone.clone(), false, true, "Wait"),
            (gone.clone(), true, true, "Tail"),
            (gone, true, false, "Tail"),
            (nowhere.clone(), false, false, "FollowTail"),
            (nowhere, true, false, "Tail"),
            (Sight::NotYet, false, false, "Wait"),
            (Sight::NotYet, true, false, "Tail"),
        ] {
            let next = format!("{:?}", next(&sight, is_last, has_printed));
            assert_eq!(next.split('(').next(), Some(expected), "{sight:?} {is_last} {has_printed}");
        }
        for (phase, over) in [("Queued", false), ("Running", false), ("Succeeded", true), ("Cancelled", true)] {
            assert_eq!(is_over(&image(&json!({"phase": phase}))), over, "{phase}");
        }
    }

    #[test]
    fn what_was_printed_is_not_shown_again() {
        for (text, last, expected) in [
            ("Job a/b\na\nb\n", "b", ""),
            ("a\nb\nstep register\n", "b", "step register\n"),
            ("a\nno space left\nno space left\nc\n", "no space left", "c\n"),
            ("a\nb\n", "before all of it", "a\nb\n"),
            ("a\nb\n", "", "a\nb\n"),
            ("", "b", ""),
        ] {
            assert_eq!(unseen("", text, last), expected, "{text:?} {last:?}");
        }
        // Where only these lines can be read, one that comes again is shown again.
        for (before, now, expected) in [
            ("a\nretry\n", "a\nretry\nerror\nretry\n", "error\nretry\n"),
            ("no space left\n", "no space left\nno space left\n", "no space left\n"),
        ] {
            assert_eq!(unseen(before, now, before.lines().last().unwrap()), expected, "{now:?}");
        }
    }

    #[test]
    fn a_log_does_not_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[31m\tb\r\n\u{9b}c\n"), "a [31m\tb \n c\n");
    }
}
