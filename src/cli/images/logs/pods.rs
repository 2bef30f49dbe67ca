//! The log of a Job's pods.

use anyhow::Result;
use futures::AsyncReadExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};

use super::{Log, Look};
use crate::cli::output;
use crate::core::image::job::selector;

/// Up to where the logs were printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The pod whose log is printed.
    pod: String,
    mark: Mark,
}

/// The last line that was printed: its time, and how many lines of that time were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    at: Option<Timestamp>,
    lines: usize,
}

impl Log {
    /// Prints all that is new.
    pub(super) async fn read_pods(&mut self, namespace: &str, uid: &str, container: &str) -> Result<Look> {
        let api: Api<Pod> = Api::namespaced(self.named.connection.client.clone(), namespace);
        let params = ListParams::default().labels(&selector(uid));
        let listed = match self.named.connection.answer(api.list(&params)).await {
            Ok(Ok(listed)) => listed.items,
            Ok(Err(error)) => return Ok(self.refused(namespace, "listed", error)),
            Err(error) => return Ok(Look::Gone(format!("{error:#}"))),
        };
        let pods = in_turn(listed, &self.pods.pod);
        if pods.is_empty() {
            return Ok(Look::Gone("there is no pod of its Job".to_owned()));
        }
        for pod in pods {
            if pod != self.pods.pod {
                if self.has_printed {
                    output::note!("pod {pod}:");
                }
                self.pods = Cursor { pod: pod.clone(), mark: Mark::default() };
            }
            let params = LogParams {
                container: Some(container.to_owned()),
                timestamps: true,
                since_time: self.pods.mark.at.map(second_of),
                ..LogParams::default()
            };
            let log = match self.named.connection.answer(log_of(&api, &pod, &params)).await {
                Ok(Ok(log)) => log,
                Ok(Err(error)) => return Ok(self.refused(namespace, "read", error)),
                Err(error) => return Ok(Look::Gone(format!("{error:#}"))),
            };
            let (text, mark) = behind(&self.pods.mark, &log);
            self.pods.mark = mark;
            self.write(&text)?;
        }
        Ok(Look::Drained)
    }

    fn refused(&self, namespace: &str, what: &str, error: kube::Error) -> Look {
        match &error {
            // Its provider's: who uses the image has no business there.
            kube::Error::Api(status) if status.code == 403 && namespace != self.named.namespace => {
                Look::Elsewhere(format!(
                    "its Job runs in namespace {namespace}, whose pods you may not read: these are the last lines in the status"
                ))
            }
            // Not started yet, or deleted meanwhile.
            kube::Error::Api(status) if !matches!(status.code, 401 | 403) => Look::Gone(status.message.clone()),
            kube::Error::Api(_) => {
                Look::Denied(self.named.connection.refused(what, "the pods and logs of its Job", error))
            }
            _ => Look::Gone(error.to_string()),
        }
    }
}

/// A log, whatever bytes are in it.
async fn log_of(pods: &Api<Pod>, pod: &str, params: &LogParams) -> kube::Result<String> {
    let mut log = Vec::new();
    pods.log_stream(pod, params).await?.read_to_end(&mut log).await.map_err(kube::Error::ReadEvents)?;
    Ok(String::from_utf8_lossy(&log).into_owned())
}

/// Names of the pods whose logs are read: what is left of the one before, then the newest. From the newest alone, if there was
/// none before.
fn in_turn(pods: Vec<Pod>, before: &str) -> Vec<String> {
    let mut pods = pods;
    pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.as_ref().map(|at| at.0), pod.name_any()));
    let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    let from = names.iter().position(|name| name == before).unwrap_or(names.len().saturating_sub(1));
    names.into_iter().skip(from).collect()
}

/// The second that a time is in: the client asks for whole ones and rounds, and what is rounded up leaves lines out.
fn second_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// The lines behind the mark, without their times, and the mark behind them. The API server gives whole seconds again.
fn behind(mark: &Mark, log: &str) -> (String, Mark) {
    let (mut text, mut last) = (String::new(), mark.clone());
    let mut again = 0;
    for line in log.lines() {
        let (at, rest) = match line.split_once(' ').map(|(at, rest)| (at.parse::<Timestamp>(), rest)) {
            Some((Ok(at), rest)) => (Some(at), rest),
            // An empty line has a time alone; one without is the rest of a line that the runtime took apart.
            _ => match line.parse::<Timestamp>() {
                Ok(at) => (Some(at), ""),
                Err(_) => (None, line),
            },
        };
        let at = at.or(last.at);
        if at < mark.at {
            continue;
        }
        if at == mark.at && mark.at.is_some() && again < mark.lines {
            again += 1;
            continue;
        }
        last = if at == last.at { Mark { at, lines: last.lines + 1 } } else { Mark { at, lines: 1 } };
        text.push_str(rest);
        text.push('\n');
    }
    (text, last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_a_pod_come_once() {
        let all = "2026-01-01T00:00:01.1Z a\n2026-01-01T00:00:01.2Z b\n2026-01-01T00:00:01.2Z c\n2026-01-01T00:00:02.000000001Z\n";
        let (text, mark) = behind(&Mark::default(), all);
        assert_eq!(text, "a\nb\nc\n\n");
        assert_eq!(behind(&mark, all), (String::new(), mark.clone()));
        assert_eq!(behind(&mark, ""), (String::new(), mark));
        // It was cut between two lines of one time.
        let lines: Vec<&str> = all.lines().collect();
        let (first, mark) = behind(&Mark::default(), &lines[..2].join("\n"));
        assert_eq!((first.as_str(), mark.lines), ("a\nb\n", 1));
        let (rest, mark) = behind(&mark, all);
        assert_eq!(rest, "c\n\n");
        let (more, _) = behind(&mark, &format!("{all}2026-01-01T00:00:02.5Z d e\n"));
        assert_eq!(more, "d e\n");
    }

    #[test]
    fn lines_are_asked_for_from_the_second_of_the_last_one() {
        for (at, second) in [
            ("2026-01-01T00:00:01.9Z", "2026-01-01T00:00:01Z"),
            ("2026-01-01T00:00:01.1Z", "2026-01-01T00:00:01Z"),
            ("2026-01-01T00:00:01Z", "2026-01-01T00:00:01Z"),
        ] {
            assert_eq!(second_of(at.parse().unwrap()), second.parse().unwrap(), "{at}");
        }
    }

    #[test]
    fn the_rest_of_one_pod_comes_before_the_next() {
        let pod = |name: &str, second: u8| -> Pod {
            let at = format!("2026-01-01T00:00:0{second}Z");
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": at}})).unwrap()
        };
        let pods = || vec![pod("b", 2), pod("c", 3), pod("a", 1)];
        assert_eq!(in_turn(pods(), ""), ["c"]);
        assert_eq!(in_turn(pods(), "b"), ["b", "c"]);
        assert_eq!(in_turn(pods(), "gone"), ["c"]);
        assert!(in_turn(Vec::new(), "").is_empty());
    }
}
