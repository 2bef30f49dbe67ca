//! From what a spec wants signed to the keys to check it by.

use jiff::Timestamp;
use kube::Client;

use super::open::secret_data;
use crate::api::source::{SecretReference, Verify};
use crate::core::status::Trouble;
use crate::core::verification::{ChecksumTrust, CosignTrust, GitTrust, Keys, Trust};

/// The file of checksums where the spec names none.
const CHECKSUMS: &str = "SHA256SUMS";

/// What must hold of a release, its keys read from Secrets of `namespace`; `None` where nothing is asked for.
///
/// # Errors
/// A Secret is missing or can't be read.
pub async fn trust(
    client: &Client,
    namespace: &str,
    verify: Option<&Verify>,
    now: Timestamp,
) -> Result<Option<Trust>, Trouble> {
    let Some(verify) = verify else { return Ok(None) };
    let keys = async |reference: &SecretReference, field: &str| {
        secret_data(client, namespace, reference, field).await.map(Keys)
    };
    let mut trust = Trust::default();
    if let Some(git) = &verify.git {
        let keys = keys(&git.secret_ref, "verify.git.secretRef").await?;
        trust.git = Some(GitTrust { mode: git.mode, keys, now });
    }
    if let Some(cosign) = &verify.cosign {
        let keys = match &cosign.secret_ref {
            Some(reference) => keys(reference, "verify.cosign.secretRef").await?,
            None => Keys::default(),
        };
        trust.cosign = Some(CosignTrust { keys, identities: cosign.match_oidc_identity.clone() });
    }
    if let Some(checksums) = &verify.checksums {
        let keys = keys(&checksums.secret_ref, "verify.checksums.secretRef").await?;
        let file = checksums.file.clone().unwrap_or_else(|| CHECKSUMS.to_owned());
        trust.checksums = Some(ChecksumTrust { file, keys, now });
    }
    Ok(Some(trust))
}
