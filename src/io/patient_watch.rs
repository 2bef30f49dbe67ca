//! Watches that wait longer the longer they don't come through, and say so in the log: once, and then ever more rarely.
//!
//! One that is interrupted goes on by itself, and is nothing to tell of. One that never begins, for a right that is missing or a
//! kind that is not served, would else be noticed by nothing but changes that are seen late.

use std::fmt::Debug;
use std::future::ready;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Failures in a row that are told first: after a minute and a half, as `default_backoff` of kube waits.
const TOLD: u32 = 8;

/// What a watch brings.
type Watched<K> = Result<Event<K>, watcher::Error>;

/// Watches objects.
pub fn patient<K>(api: Api<K>, config: watcher::Config) -> BoxStream<'static, Watched<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    patient_from(api, config, || {})
}

/// The same; `begins` is called when a list is about to be asked for.
pub fn patient_from<K>(
    api: Api<K>,
    config: watcher::Config,
    begins: impl Fn() + Send + 'static,
) -> BoxStream<'static, Watched<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let what = api.resource_url().to_owned();
    told(begun(watcher::watcher(api, config), begins).default_backoff(), what).boxed()
}

/// The same events; that a list begins comes with the first that it brings. kube's watcher tells of it before it asks for the list,
/// and to the back-off any event is a success.
fn begun<K, E>(
    events: impl Stream<Item = Result<Event<K>, E>>,
    begins: impl Fn(),
) -> impl Stream<Item = Result<Event<K>, E>> {
    let events = events.scan(false, move |was_held, event| {
        let held = matches!(event, Ok(Event::Init));
        if held {
            begins();
        }
        let first = std::mem::replace(was_held, held) && event.is_ok();
        let first = first.then_some(Ok(Event::Init));
        ready(Some(stream::iter(first.into_iter().chain((!held).then_some(event)))))
    });
    events.flatten()
}

/// The same events, with a word in the log where they don't come. `what` is watched, as the API server calls it.
fn told<K>(events: impl Stream<Item = Watched<K>>, what: String) -> impl Stream<Item = Watched<K>> {
    let mut outage = Outage::default();
    events.inspect(move |event| match event {
        Ok(_) if outage.ends() => tracing::info!(what, "it can be watched again"),
        Ok(_) => {}
        Err(error) if outage.fails() => {
            let failures = outage.failures;
            tracing::warn!(what, %error, failures, "it can't be watched: changes are seen late, or not at all");
        }
        Err(error) => tracing::debug!(what, %error, "watch interrupted"),
    })
}

/// How often in a row something failed.
#[derive(Debug, Default)]
struct Outage {
    failures: u32,
}

impl Outage {
    /// Whether this failure is to be told: the first that is, and from then on each time that there are twice as many.
    fn fails(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= TOLD && self.failures.is_power_of_two()
    }

    /// Whether it is to be told that it works again.
    fn ends(&mut self) -> bool {
        std::mem::take(&mut self.failures) >= TOLD
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_goes_on_failing_is_told_ever_more_rarely() {
        let mut outage = Outage::default();
        let told: Vec<u32> = (1..=100).filter(|_| outage.fails()).collect();
        assert_eq!(told, [8, 16, 32, 64]);
        assert!(outage.ends() && !outage.ends());
        assert!(!outage.fails() && !outage.ends(), "one interruption is nothing to tell of");
    }

    #[tokio::test]
    async fn a_list_begins_with_what_it_brings() {
        let word = |event: Result<Event<u8>, u8>| match event {
            Ok(Event::Init) => "begins".to_owned(),
            Ok(Event::InitApply(n) | Event::Apply(n) | Event::Delete(n)) => n.to_string(),
            Ok(Event::InitDone) => "ends".to_owned(),
            Err(_) => "fails".to_owned(),
        };
        let events = [
            Ok(Event::Init),
            Err(1),
            Ok(Event::Init),
            Ok(Event::InitApply(1)),
            Err(2),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(2)),
        ];
        let asked = Cell::new(0);
        let seen: Vec<String> = begun(stream::iter(events), || asked.set(asked.get() + 1)).map(word).collect().await;
        assert_eq!(seen, ["fails", "begins", "1", "fails", "begins", "ends", "2"]);
        assert_eq!(asked.get(), 3);
    }
}
