//! Lists in pages, each asked for with the entity tag it had: what did not change costs no quota.
//!
//! Guarantees: a change on any page is seen; what is listed is what two rounds in a row found (an item that moves to
//! another page while pages are read would else be missed); links to other servers are not followed.

use http::HeaderMap;
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH, LINK};
use serde::de::DeserializeOwned;
use url::Url;

use super::super::SourceError;
use super::super::answers::{said_there, unreadable};
use super::super::http::redacted;
use super::{Ask, Body, same_server, too_large, whole};

/// Pages of a list: GitHub shows no more than 10,000 releases.
const PAGES: usize = 100;
/// Bytes of a page.
const PAGE: usize = 64 << 20;
/// Rounds until two are the same.
const ROUNDS: usize = 4;

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
pub(in super::super) async fn read<T: DeserializeOwned + Clone + PartialEq + Send + Sync>(
    asker: &dyn Ask,
    action: &'static str,
    first: &Url,
    headers: &HeaderMap,
    mut known: Vec<Page<T>>,
) -> Result<Vec<Page<T>>, SourceError> {
    for _ in 0..ROUNDS {
        let found = round(asker, action, first, headers, &known).await?;
        let items = |pages: &[Page<T>]| pages.iter().flat_map(|page| page.items.clone()).collect::<Vec<_>>();
        if found.len() == 1 || items(&found) == items(&known) {
            return Ok(found);
        }
        known = found;
    }
    let problem = "the list changes while it is read".to_owned();
    Err(SourceError::Unreachable { action, url: redacted(first), problem })
}

async fn round<T: DeserializeOwned + Clone>(
    asker: &dyn Ask,
    action: &'static str,
    first: &Url,
    headers: &HeaderMap,
    known: &[Page<T>],
) -> Result<Vec<Page<T>>, SourceError> {
    let mut found: Vec<Page<T>> = Vec::new();
    let mut next = Some(first.clone());
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
            Some(page) => page.clone(),
            None => page(action, url, response).await?,
        };
        next.clone_from(&page.next);
        found.push(page);
    }
    Ok(found)
}

async fn page<T: DeserializeOwned>(
    action: &'static str,
    url: Url,
    response: http::Response<Body>,
) -> Result<Page<T>, SourceError> {
    let (parts, body) = response.into_parts();
    let unreachable = |problem: String| SourceError::Unreachable { action, url: redacted(&url), problem };
    let body = whole(body, PAGE).await.map_err(unreachable)?;
    let items = serde_json::from_slice(&body).map_err(|error| {
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
