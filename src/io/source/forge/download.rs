//! Assets: brought whole or not at all.
//!
//! Guarantees: what is given has the size and the digest that were announced; no more than the limit is read; a download
//! that breaks off goes on where it stopped.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};
use url::Url;

use super::super::SourceError;
use super::super::answers::{HTML_PAGE, is_page};
use super::super::http::redacted;
use super::{Ask, Body, cause, too_large};
use crate::core::digest::hex;

/// How often a download may break off.
const BREAKS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
pub(in super::super) const ACTION: &str = "downloading an asset of";

/// A file of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Asset {
    /// Its name.
    pub(in super::super) name: String,
    /// Where it is.
    pub(in super::super) url: Url,
    /// Its size, where it is announced.
    pub(in super::super) size: Option<u64>,
    /// Its SHA-256 in lowercase hexadecimal, where it is announced.
    pub(in super::super) sha256: Option<String>,
}

/// The content of an asset, of at most `limit` bytes.
pub(in super::super) async fn download(asker: &dyn Ask, asset: &Asset, limit: u64) -> Result<Bytes, SourceError> {
    if asset.size.is_some_and(|size| size > limit) {
        return Err(too_large(&format!("asset {}", asset.name), "what is downloaded of a release in bytes", limit));
    }
    let mut content = BytesMut::new();
    let mut breaks = 0;
    loop {
        let problem = match part(asker, asset, limit, &mut content).await {
            Ok(()) => match asset.size {
                Some(size) if (content.len() as u64) < size => format!("{} of {size} bytes came", content.len()),
                _ => break,
            },
            Err(Part::Broken(problem)) => problem,
            Err(Part::Failed(SourceError::NoRepository { problem, .. })) => return Err(damaged(asset, problem)),
            Err(Part::Failed(error)) => return Err(error),
        };
        if breaks == BREAKS {
            let problem = format!("{} broke off {} times: {problem}", asset.name, breaks + 1);
            return Err(SourceError::Unreachable { action: ACTION, url: redacted(&asset.url), problem });
        }
        tokio::time::sleep(FIRST_PAUSE * 2u32.pow(breaks)).await;
        breaks += 1;
    }
    let content = content.freeze();
    if let Some(size) = asset.size.filter(|size| *size != content.len() as u64) {
        return Err(other(asset, &content, format!("{size} bytes were announced, {} came", content.len())));
    }
    let found = hex(&Sha256::digest(&content));
    match &asset.sha256 {
        Some(expected) if *expected != found => {
            Err(other(asset, &content, format!("its SHA-256 should be {expected}, it is {found}")))
        }
        // No asset of a release is a page: a proxy says something, or somebody is to sign in.
        None if is_page(&HeaderMap::new(), &content) => Err(other(asset, &content, String::new())),
        _ => Ok(content),
    }
}

/// Why a part did not come whole.
enum Part {
    /// It broke off: what came is good.
    Broken(String),
    Failed(SourceError),
}

/// Adds to `content` what is missing of it.
async fn part(asker: &dyn Ask, asset: &Asset, limit: u64, content: &mut BytesMut) -> Result<(), Part> {
    let had = content.len() as u64;
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if had > 0 {
        let range = HeaderValue::try_from(format!("bytes={had}-"));
        headers.extend(range.ok().map(|range| (RANGE, range)));
    }
    let response = match asker.ask(ACTION, &asset.url, headers).await {
        Ok(response) => response,
        // After a break the server may be back in a moment.
        Err(SourceError::Unreachable { problem, .. }) if had > 0 => return Err(Part::Broken(problem)),
        Err(error) => return Err(Part::Failed(error)),
    };
    if !goes_on_at(&response, had) {
        content.clear();
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Part::Broken(cause(error.as_ref())))?;
        let Ok(data) = frame.into_data() else { continue };
        let most = asset.size.unwrap_or(limit).min(limit);
        if (content.len() + data.len()) as u64 > most {
            return Err(Part::Failed(match asset.size {
                Some(size) => {
                    content.extend_from_slice(&data);
                    other(asset, content, format!("{size} bytes were announced, more came"))
                }
                None => too_large(&format!("asset {}", asset.name), "what is downloaded of a release in bytes", limit),
            }));
        }
        content.extend_from_slice(&data);
    }
    Ok(())
}

/// Whether the answer is the rest from byte `had` on; else it is the whole.
fn goes_on_at(response: &Response<Body>, had: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&format!("bytes {had}-")))
}

/// Something else came than was announced: a page for people, or damage.
fn other(asset: &Asset, content: &[u8], problem: String) -> SourceError {
    if is_page(&HeaderMap::new(), content) {
        let problem = format!("instead of {} it answers with {HTML_PAGE}", asset.name);
        return SourceError::Unreachable { action: ACTION, url: redacted(&asset.url), problem };
    }
    damaged(asset, problem)
}

fn damaged(asset: &Asset, problem: String) -> SourceError {
    SourceError::Damaged { what: format!("asset {}", asset.name), url: redacted(&asset.url), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_instead_of_an_asset_is_no_damage() {
        let url = "https://example.com/a.tgz".parse().unwrap();
        let asset = Asset { name: "a.tgz".into(), url, size: None, sha256: None };
        for (content, page) in [("<!DOCTYPE html><title>Sign in", true), ("\u{1f}garbage", false)] {
            let error = other(&asset, content.as_bytes(), "its SHA-256 is another".to_owned());
            assert_eq!(matches!(error, SourceError::Unreachable { .. }), page, "{error}");
            assert_eq!(error.to_string().contains(HTML_PAGE), page, "{error}");
        }
    }
}
