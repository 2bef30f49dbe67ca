//! What is asked of a page: the parameters of its address, read and written.

use thiserror::Error;
use url::form_urlencoded;

/// The seconds between two refreshes that a link offers.
const REFRESH: u16 = 15;
/// The shortest time between two refreshes.
const SHORTEST_REFRESH: u16 = 5;
/// Longest name of a namespace.
const MAX_NAMESPACE: usize = 63;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Only ClusterStacks of this namespace; of all where it is empty.
    pub namespace: String,
    /// Only those that are not ready.
    pub not_ready: bool,
    /// Which page of the list, from 1; 0 is the first too.
    pub page: usize,
    /// Seconds after which the browser asks again.
    pub refresh: Option<u16>,
}

/// What can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AskedError {
    /// No number of a page.
    #[error("page={0:?} is no page: write a number from 1")]
    Page(String),
    /// No time between refreshes.
    #[error("refresh={0:?} is no number of seconds: write one from {SHORTEST_REFRESH} to 3600")]
    Refresh(String),
    /// No namespace.
    #[error("what is asked for as namespace is longer than the name of one can be")]
    Namespace,
}

impl Asked {
    /// Reads the query of an address. What it does not know it passes over, as browsers and proxies may add to it.
    ///
    /// # Errors
    /// A value that can't be understood.
    pub fn read(query: &str) -> Result<Self, AskedError> {
        let mut asked = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let value = value.trim();
            match &*key {
                "namespace" if value.len() > MAX_NAMESPACE => return Err(AskedError::Namespace),
                "namespace" => value.clone_into(&mut asked.namespace),
                "notready" => asked.not_ready = !matches!(value, "" | "0" | "false"),
                "page" | "refresh" if value.is_empty() => {}
                "page" => asked.page = value.parse().map_err(|_| AskedError::Page(shown(value)))?,
                "refresh" => {
                    let seconds = value.parse().ok().filter(|seconds| (SHORTEST_REFRESH..=3600).contains(seconds));
                    asked.refresh = Some(seconds.ok_or_else(|| AskedError::Refresh(shown(value)))?);
                }
                _ => {}
            }
        }
        Ok(asked)
    }

    /// The address of the same page with this asked, relative to it.
    pub fn link(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.namespace.is_empty() {
            query.append_pair("namespace", &self.namespace);
        }
        if self.not_ready {
            query.append_pair("notready", "1");
        }
        if self.page > 1 {
            query.append_pair("page", &self.page.to_string());
        }
        if let Some(seconds) = self.refresh {
            query.append_pair("refresh", &seconds.to_string());
        }
        format!("?{}", query.finish())
    }

    /// The same, with the refresh turned on, or off where it is on.
    pub(super) fn turned(&self) -> Self {
        Self { refresh: self.refresh.map_or(Some(REFRESH), |_| None), ..self.clone() }
    }
}

fn shown(value: &str) -> String {
    crate::api::condition::cut(value, 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_written() {
        for (query, link) in [
            ("", "?"),
            ("namespace=team-a&notready=1&page=3&refresh=15", "?namespace=team-a&notready=1&page=3&refresh=15"),
            ("page=1", "?"),
            ("page=0&notready=0", "?"),
            ("namespace=&page=&refresh=&notready=", "?"),
            ("namespace=+a+", "?namespace=a"),
            ("namespace=%22%3E%3Cb%3E", "?namespace=%22%3E%3Cb%3E"),
            ("utm=1&notready=on", "?notready=1"),
        ] {
            assert_eq!(Asked::read(query).unwrap().link(), link, "{query}");
        }
    }

    #[test]
    fn what_can_not_be_understood_is_refused() {
        let long = format!("namespace={}", "n".repeat(64));
        for query in
            ["page=-1", "page=two", "page=99999999999999999999999", "refresh=1", "refresh=4000", "refresh=x", &long]
        {
            assert!(Asked::read(query).is_err(), "{query}");
        }
        let error = Asked::read(&format!("page={}", "x".repeat(5000))).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn the_refresh_is_turned_on_and_off() {
        let asked = Asked::read("namespace=a").unwrap();
        assert_eq!(asked.turned().link(), "?namespace=a&refresh=15");
        assert_eq!(asked.turned().turned(), asked);
    }
}
