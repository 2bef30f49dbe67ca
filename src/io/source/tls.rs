//! TLS of a source: whom it trusts, what it shows of itself, and whether it was asked to.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use rustls_platform_verifier::Verifier;

use super::access::Tls;
use super::error::SourceError;

/// Which keys of the Secret are meant, in messages.
const AUTHORITIES: &str = "ca.crt of certSecretRef";
const IDENTITY: &str = "tls.crt and tls.key of certSecretRef";

/// Whether a server asked for a certificate that we don't have.
///
/// With TLS 1.3 a server that wants one ends the connection after the handshake, and if that is faster than our request,
/// the HTTP client only says that the connection is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

impl Asked {
    /// Whether any server did so far.
    pub(super) fn was(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Has no certificate, and notes that one was asked for.
#[derive(Debug)]
struct NoIdentity(Asked);

impl ResolvesClientCert for NoIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// What a client of this source does in a handshake: it trusts the machine's authorities and those of the source; on a
/// machine without any it trusts the latter alone.
///
/// # Errors
/// A certificate or the key can't be used.
pub(super) fn config(tls: &Tls, asked: &Asked) -> Result<ClientConfig, SourceError> {
    provide_crypto();
    let builder = ClientConfig::builder();
    let provider = Arc::clone(builder.crypto_provider());
    let trusting = match verifier(tls, provider)? {
        Some(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let mut config = match &tls.identity {
        None => trusting.with_client_cert_resolver(Arc::new(NoIdentity(asked.clone()))),
        Some((certificate, key)) => {
            let chain = certificates(certificate, IDENTITY)?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| unusable(IDENTITY, &error))?;
            trusting.with_client_auth_cert(chain, key).map_err(|error| unusable(IDENTITY, &error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// What a client does that is of no source: it trusts the machine's authorities, and those in `authorities` (PEM).
///
/// # Errors
/// They can't be used.
pub fn of_machine(authorities: Option<String>) -> Result<ClientConfig, SourceError> {
    config(&Tls { authorities, identity: None }, &Asked::default())
}

/// `None` where neither the machine nor the source has an authority.
fn verifier(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Option<Verifier>, SourceError> {
    let own = match &tls.authorities {
        Some(bundle) => certificates(bundle, AUTHORITIES)?,
        None => Vec::new(),
    };
    let alone = own.is_empty();
    match Verifier::new_with_extra_roots(own, provider) {
        Ok(verifier) => Ok(Some(verifier)),
        Err(error) if alone => {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!(%error, "this machine trusts no authority of certificates: only sources with ca.crt in certSecretRef are reached by https");
            });
            Ok(None)
        }
        Err(error) => Err(unusable(AUTHORITIES, &error)),
    }
}

fn certificates(bundle: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, SourceError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect();
    let found = found.map_err(|error| unusable(what, &error))?;
    if found.is_empty() { Err(unusable(what, &"no certificate is in it")) } else { Ok(found) }
}

fn unusable(what: &str, problem: &dyn fmt::Display) -> SourceError {
    SourceError::Unusable { what: what.to_owned(), problem: problem.to_string() }
}

/// rustls wants to know once per process by what it computes.
fn provide_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else was first: as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
