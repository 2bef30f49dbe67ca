//! A release from its assets: which are downloaded, whether who must have signed them did, and what is made of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::{Fetched, SourceError, Wanted, assets};
use super::Ask;
use super::download::{Asset, download};
use crate::core::limits::Limits;
use crate::core::verification::checksums;
use crate::core::verification::{ChecksumTrust, NotVerified, Signer};

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
    let signature = trust.map(|trust| files_of(wanted, trust, &names)).transpose()?;
    let mut contents: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut left = limits.packed_bytes;
    let needed: BTreeSet<&String> = belonging.iter().chain(signature.iter().flatten()).collect();
    for name in needed {
        let Some(asset) = offered.iter().find(|asset| asset.name == *name) else { continue };
        let content = download(asker, asset, left).await?;
        left -= content.len() as u64;
        contents.insert(name.clone(), content);
    }
    let signer = match (trust, &signature) {
        (Some(trust), Some([sums, signature])) => {
            let signer = verified(wanted, trust, [sums, signature], &belonging, &contents);
            Some(signer.map_err(|problem| refuse(wanted, problem))?)
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

/// Names of the file of checksums and of its signature.
fn files_of(wanted: &Wanted<'_>, trust: &ChecksumTrust, names: &[String]) -> Result<[String; 2], SourceError> {
    let signature = checksums::signature_names(&trust.file).into_iter().find(|name| names.contains(name));
    match signature {
        Some(signature) if names.contains(&trust.file) => Ok([trust.file.clone(), signature]),
        _ => {
            let what = format!("{}/{}", wanted.tag.name, trust.file);
            Err(refuse(wanted, NotVerified::Unsigned { what }))
        }
    }
}

fn verified(
    wanted: &Wanted<'_>,
    trust: &ChecksumTrust,
    [sums, signature]: [&String; 2],
    belonging: &[String],
    contents: &BTreeMap<String, Bytes>,
) -> Result<Signer, NotVerified> {
    let content = |name: &String| contents.get(name).map_or(&[][..], |content| content);
    let checked = checksums::verify(trust, content(sums), content(signature))?;
    for name in belonging {
        checksums::check(&checked, name, content(name))?;
    }
    // The server chooses which files it shows, and under which name.
    let (what, signed) = (format!("{}/{sums}", wanted.tag.name), checked.names());
    assets::complete(&what, wanted.tag, wanted.release, &signed, belonging)?;
    Ok(checked.signer)
}
