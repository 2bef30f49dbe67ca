//! From what a spec wants signed to the keys to check it by.

use jiff::Timestamp;
use kube::Client;

use super::open::secret_data;
use crate::api::condition::Reason;
use crate::api::source::{SecretReference, Verify};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;
use crate::core::verification::checksums::CHECKSUMS;
use crate::core::verification::{self, ChecksumTrust, CosignTrust, GitTrust, Keys, Trust};

/// Signatures that somebody asks for, and the namespace whose Secrets hold the keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The namespace of who asks.
    pub namespace: String,
    /// What must be signed.
    pub verify: Verify,
}

/// A digest over all that is asked for; `None` where nothing is.
pub fn asked_of(demands: &[Demand]) -> Option<String> {
    match demands {
        [] => None,
        [only] => Some(verification::asked(&only.verify)),
        several => Some(several.iter().map(|demand| verification::asked(&demand.verify)).collect::<Vec<_>>().join(" ")),
    }
}

/// What must hold of a release, its keys read from Secrets; `None` where nothing is asked for.
///
/// # Errors
/// A Secret is missing or can't be read, or two ask for signatures of one kind.
pub async fn trust(client: &Client, demands: &[Demand], now: Timestamp) -> Result<Option<Trust>, Trouble> {
    let mut trust = Trust::default();
    for demand in demands {
        add(&mut trust, client, demand, now).await?;
    }
    Ok((!demands.is_empty()).then_some(trust))
}

async fn add(trust: &mut Trust, client: &Client, demand: &Demand, now: Timestamp) -> Result<(), Trouble> {
    let Demand { namespace, verify } = demand;
    let twice = [
        ("git", verify.git.is_some() && trust.git.is_some()),
        ("cosign", verify.cosign.is_some() && trust.cosign.is_some()),
        ("checksums", verify.checksums.is_some() && trust.checksums.is_some()),
    ];
    if let Some((kind, _)) = twice.iter().find(|(_, twice)| *twice) {
        let message = format!(
            "verify.{kind} is asked for by the ClusterStack and by its ClusterStackSource: leave it out of the ClusterStack"
        );
        return Err(Trouble::new(ErrorClass::Waiting, Reason::SpecInvalid, message));
    }
    let keys = async |reference: &SecretReference, field: &str| {
        secret_data(client, namespace, reference, field).await.map(Keys)
    };
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
    Ok(())
}
