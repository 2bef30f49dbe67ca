//! A GitHub App: who it says it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::super::SourceError;
use super::super::credentials::GithubApp;

/// For how long what it says counts, in seconds; GitHub takes ten minutes at most.
const VALID: i64 = 9 * 60;
/// GitHub's clock may be behind ours.
const SKEW: i64 = 60;

/// An App that can sign.
pub(super) struct App {
    id: String,
    /// Its installation, which has the rights.
    pub(super) installation: String,
    key: RsaKeyPair,
}

impl App {
    /// Reads the App's key: PEM, as GitHub gives it or as PKCS#8.
    pub(super) fn new(app: &GithubApp) -> Result<Self, SourceError> {
        let unusable =
            |problem: String| SourceError::Unusable { what: "githubAppPrivateKey of secretRef".to_owned(), problem };
        let key = PrivateKeyDer::from_pem_slice(app.private_key.as_bytes())
            .map_err(|_| unusable("it is no private key in PEM".to_owned()))?;
        let key = match &key {
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            _ => return Err(unusable("it is no RSA key".to_owned())),
        };
        let key = key.map_err(|error| unusable(format!("it is no RSA key of 2048 bits or more: {error}")))?;
        Ok(Self { id: app.id.clone(), installation: app.installation_id.clone(), key })
    }

    /// A JSON Web Token (RS256) that says who it is at `now`.
    pub(super) fn token(&self, now: Timestamp) -> Result<String, SourceError> {
        let now = now.as_second();
        let claims = json!({"iss": self.id, "iat": now - SKEW, "exp": now + VALID});
        let encoded = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encoded(&json!({"alg": "RS256", "typ": "JWT"})), encoded(&claims));
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature).map_err(|_| {
            let what = "githubAppPrivateKey of secretRef".to_owned();
            SourceError::Unusable { what, problem: "it does not sign".to_owned() }
        })?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}
