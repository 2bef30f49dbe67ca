//! Lists in pages, each asked for with the entity tag it had: what did not change costs no quota.
//!
//! Guarantees: a change on any page is seen; what is listed is what two rounds in a row found (an item that moves to
//! another page while pages are read would else be missed); links to other servers are not followed; what is kept of a list
//! is bounded, however it is cut into pages and items.

use std::fmt;
use std::marker::PhantomData;

use http::HeaderMap;
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH, LINK};
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use url::Url;

use super::super::SourceError;
use super::super::answers::{said_there, unreadable};
use super::super::http::redacted;
use super::{Ask, Body, same_server, too_large, whole};

/// Pages of a list: GitHub shows no more than 10,000 releases.
const PAGES: usize = 100;
/// Bytes of a page: a hundred releases with a hundred assets each, which take 2 KB each.
const PAGE: usize = 24 << 20;
/// Bytes of what is kept of a list: some 50,000 assets.
const KEPT: usize = 16 << 20;
/// Parts of an item: GitHub takes no more assets for a release.
const PARTS: usize = 1000;
/// Rounds until two are the same.
const ROUNDS: usize = 4;

/// What a list holds.
pub(in super::super) trait Listed: DeserializeOwned + Clone + PartialEq + Send + Sync {
    /// Bytes that it takes in memory.
    fn weight(&self) -> usize;
}

/// Bytes of a text that may be there.
pub(in super::super) fn text(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

/// The parts of an item, of which there may be [`PARTS`].
///
/// # Errors
/// There are more, or one can't be read.
pub(in super::super) fn parts<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let mut left = PARTS;
    let room = |_: &T| left.checked_sub(1).map(|now| left = now).is_some();
    Bounded { room, of: PhantomData }.deserialize(from)
}

/// A list that is read as long as there is room.
struct Bounded<T, R> {
    room: R,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, R: FnMut(&T) -> bool> DeserializeSeed<'de> for Bounded<T, R> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, R: FnMut(&T) -> bool> Visitor<'de> for Bounded<T, R> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            if !(self.room)(&item) {
                return Err(A::Error::custom("there is more in it than is read"));
            }
            items.push(item);
        }
        items.shrink_to_fit();
        Ok(items)
    }
}

/// A page as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Page<T> {
    url: Url,
    etag: Option<HeaderValue>,
    next: Option<Url>,
    /// What it lists.
    pub(in super::super) items: Vec<T>,
}

/// All pages from `first` on; `known` are those that were read before.
pub(in super::super) async fn read<T: Listed>(
    asker: &dyn Ask,
    action: &'static str,
    first: &Url,
    headers: &HeaderMap,
    mut known: Vec<Page<T>>,
) -> Result<Vec<Page<T>>, SourceError> {
    for _ in 0..ROUNDS {
        let found = round(asker, action, first, headers, &known).await?;
        let [now, before] = [&found, &known].map(|pages| pages.iter().flat_map(|page| &page.items));
        if found.len() == 1 || now.eq(before) {
            return Ok(found);
        }
        known = found;
    }
    let problem = "the list changes while it is read".to_owned();
    Err(SourceError::Unreachable { action, url: redacted(first), problem })
}

async fn round<T: Listed>(
    asker: &dyn Ask,
    action: &'static str,
    first: &Url,
    headers: &HeaderMap,
    known: &[Page<T>],
) -> Result<Vec<Page<T>>, SourceError> {
    let mut found: Vec<Page<T>> = Vec::new();
    let mut next = Some(first.clone());
    let mut left = KEPT;
    while let Some(url) = next.take() {
        if found.len() == PAGES {
            return Err(too_large(&redacted(first), "the number of its pages", PAGES as u64));
        }
        if !same_server(&url, first) || found.iter().any(|page| page.url == url) {
            let problem = format!("its next page is said to be {}: another server, or one seen before", redacted(&url));
            return Err(SourceError::Untrusted { url: redacted(first), problem });
        }
        let before = known.iter().find(|page| page.url == url);
        let mut headers = headers.clone();
        if let Some(etag) = before.and_then(|page| page.etag.clone()) {
            headers.insert(IF_NONE_MATCH, etag);
        }
        let response = asker.ask(action, &url, headers).await?;
        let page = match before.filter(|_| response.status() == http::StatusCode::NOT_MODIFIED) {
            Some(page) => {
                let weight = page.items.iter().map(Listed::weight).sum();
                left = left.checked_sub(weight).ok_or_else(|| full(first))?;
                page.clone()
            }
            None => page(action, first, url, response, &mut left).await?,
        };
        next.clone_from(&page.next);
        found.push(page);
    }
    Ok(found)
}

fn full(list: &Url) -> SourceError {
    too_large(&redacted(list), "what is kept of the list in bytes", KEPT as u64)
}

/// Reads a page of the list that begins at `first`, of which `left` bytes may still be kept.
async fn page<T: Listed>(
    action: &'static str,
    first: &Url,
    url: Url,
    response: http::Response<Body>,
    left: &mut usize,
) -> Result<Page<T>, SourceError> {
    let (parts, body) = response.into_parts();
    let unreachable = |problem: String| SourceError::Unreachable { action, url: redacted(&url), problem };
    let body = whole(body, PAGE).await.map_err(unreachable)?;
    let mut is_full = false;
    let room = |item: &T| {
        let now = left.checked_sub(item.weight());
        is_full = now.is_none();
        *left = now.unwrap_or_default();
        !is_full
    };
    let mut json = serde_json::Deserializer::from_slice(&body);
    let items = Bounded { room, of: PhantomData }.deserialize(&mut json).and_then(|items| json.end().map(|()| items));
    let items = items.map_err(|error| {
        if is_full {
            return full(first);
        }
        let said = unreadable(&parts.headers, &body, &error);
        let said = format!("HTTP {}, but no list in JSON: {said}", parts.status);
        unreachable(said_there(&parts.extensions, &said))
    })?;
    let next = parts.headers.get_all(LINK).iter().find_map(|value| next(&url, value.to_str().ok()?));
    Ok(Page { etag: parts.headers.get(ETAG).cloned(), next, items, url })
}

/// The link of relation `next` (RFC 8288).
fn next(base: &Url, header: &str) -> Option<Url> {
    let mut rest = header;
    while let Some((_, after)) = rest.split_once('<') {
        let (target, parameters) = after.split_once('>')?;
        // A comma begins the next link only before its `<`: parameters hold none here.
        let end = parameters.find('<').unwrap_or(parameters.len());
        let is_next = parameters[..end].split([';', ',']).any(|parameter| {
            let (name, value) = parameter.trim().split_once('=').unwrap_or_default();
            name.trim().eq_ignore_ascii_case("rel")
                && value.trim().trim_matches('"').split(' ').any(|rel| rel.eq_ignore_ascii_case("next"))
        });
        if is_next {
            return base.join(target).ok();
        }
        rest = &parameters[end..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_the_links() {
        let base: Url = "https://api.example.com/releases".parse().unwrap();
        for (header, expected) in [
            (r#"<https://api.example.com/r?page=2>; rel="next", <https://x/r?page=9>; rel="last""#, Some("/r?page=2")),
            (
                r#"<https://x/r?page=1>; rel="prev", <https://api.example.com/r?a=1,2&page=3>; rel="next""#,
                Some("/r?a=1,2&page=3"),
            ),
            ("</r?page=2>; title=x; rel=next", Some("/r?page=2")),
            (r#"<https://x/r?page=1>; rel="first""#, None),
            ("<https://x", None),
            ("", None),
        ] {
            let expected = expected.map(|path| base.join(path).unwrap());
            assert_eq!(next(&base, header), expected, "{header}");
        }
    }
}
