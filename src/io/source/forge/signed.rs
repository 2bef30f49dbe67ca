//! A release from its assets: which are downloaded, whether who must have signed them did, and what is made of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::{Fetched, SourceError, Wanted, assets};
use super::Ask;
use super::download::{Asset, download};
use crate::core::limits::Limits;
use crate::core::verification::checksums::{self, Checksums};
use crate::core::verification::file::LARGEST_SIGNATURE;
use crate::core::verification::{ChecksumTrust, NotVerified};

/// Downloads what is wanted of a release's assets, checks it, and unpacks it.
///
/// # Errors
/// Something does not come whole, is not signed as asked for, or is no stack.
pub(in super::super) async fn fetch(
    asker: &dyn Ask,
    wanted: &Wanted<'_>,
    offered: &[Asset],
    url: String,
    limits: &Limits,
) -> Result<Fetched, SourceError> {
    let tag = wanted.tag;
    let names: Vec<String> = offered.iter().map(|asset| asset.name.clone()).collect();
    let belonging = assets::wanted(tag, wanted.release, &names)?;
    let trust = asked_for(wanted)?;
    let signing = trust.map(|trust| files_of(wanted, trust, &names)).transpose()?;
    let (mut contents, mut left) = (BTreeMap::new(), limits.packed_bytes);
    let needed: BTreeSet<&String> = belonging.iter().chain(signing.iter().map(|(sums, _)| sums)).collect();
    for name in needed {
        let Some(asset) = offered.iter().find(|asset| asset.name == *name) else { continue };
        let content = download(asker, asset, left).await?;
        left -= content.len() as u64;
        contents.insert(name.clone(), content);
    }
    let signer = match (trust, &signing) {
        (Some(trust), Some((sums, signatures))) => {
            let (signatures, unread) = signatures_of(asker, offered, signatures).await?;
            let content = contents.get(sums).map_or(&[][..], |content: &Bytes| content);
            let checked = checksums::verify_any(trust, content, signatures.iter().map(AsRef::as_ref));
            let checked = checked.map_err(|problem| match unread {
                // It may be the good one.
                Some(error) if signatures.is_empty() || error.is_transient() => error,
                _ => refuse(wanted, problem),
            })?;
            whole(wanted, sums, &checked, &belonging, &contents).map_err(|problem| refuse(wanted, problem))?;
            Some(checked.signer)
        }
        _ => None,
    };
    contents.retain(|name, _| belonging.contains(name));
    let files =
        assets::stack(tag, wanted.release, &contents, limits).map_err(|error| error.signed_by(signer.as_ref()))?;
    let (path, component_ids) = (String::new(), BTreeMap::new());
    Ok(Fetched { url, revision: tag.revision.clone(), path, files, component_ids, signer })
}

fn refuse(wanted: &Wanted<'_>, problem: NotVerified) -> SourceError {
    SourceError::NotVerified { release: wanted.release.to_string(), problem }
}

/// The signed checksums that are asked for, if signatures are.
fn asked_for<'a>(wanted: &Wanted<'a>) -> Result<Option<&'a ChecksumTrust>, SourceError> {
    let Some(trust) = wanted.trust else { return Ok(None) };
    match &trust.checksums {
        Some(checksums) if trust.git.is_none() && trust.cosign.is_none() => Ok(Some(checksums)),
        _ => {
            let kind = "releases that are assets have no signatures but verify.checksums: ask for that alone";
            Err(refuse(wanted, NotVerified::WrongKind(kind.to_owned())))
        }
    }
}

/// Names of the file of checksums and of its signatures.
fn files_of(
    wanted: &Wanted<'_>,
    trust: &ChecksumTrust,
    names: &[String],
) -> Result<(String, Vec<String>), SourceError> {
    let signatures = checksums::signature_names(&trust.file).into_iter().filter(|name| names.contains(name));
    let signatures: Vec<String> = signatures.collect();
    if signatures.is_empty() || !names.contains(&trust.file) {
        let what = format!("{}/{}", wanted.tag.name, trust.file);
        return Err(refuse(wanted, NotVerified::Unsigned { what }));
    }
    Ok((trust.file.clone(), signatures))
}

/// The signatures that can be read, and why the first can't of those that can't: it voids none beside it.
async fn signatures_of(
    asker: &dyn Ask,
    offered: &[Asset],
    names: &[String],
) -> Result<(Vec<Bytes>, Option<SourceError>), SourceError> {
    let (mut signatures, mut unread) = (Vec::new(), None);
    for asset in names.iter().filter_map(|name| offered.iter().find(|asset| asset.name == *name)) {
        match download(asker, asset, LARGEST_SIGNATURE).await {
            Ok(content) => signatures.push(content),
            // It is the same for the others.
            Err(error @ SourceError::RateLimited { .. }) => return Err(error),
            Err(error) => _ = unread.get_or_insert(error),
        }
    }
    Ok((signatures, unread))
}

/// Holds the files against the signed sums.
fn whole(
    wanted: &Wanted<'_>,
    sums: &str,
    checked: &Checksums,
    belonging: &[String],
    contents: &BTreeMap<String, Bytes>,
) -> Result<(), NotVerified> {
    for name in belonging {
        checksums::check(checked, name, contents.get(name).map_or(&[][..], |content| content))?;
    }
    // The server chooses which files it shows, and under which name.
    let (what, signed) = (format!("{}/{sums}", wanted.tag.name), checked.names());
    assets::complete(&what, wanted.tag, wanted.release, &signed, belonging)
}
