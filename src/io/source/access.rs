//! How a server is reached: who we are to it, whom we trust, through which proxy.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::Credentials;
use super::credentials::spellings;
use crate::core::source::{AllowList, Refused, SourceUrl, permitted};

/// Everything beside the URL. Debug shows nothing of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// From `secretRef`.
    pub credentials: Option<Credentials>,
    /// From `certSecretRef`.
    pub tls: Tls,
    /// From `proxySecretRef`.
    pub proxy: Option<Proxy>,
    /// Plain http was asked for.
    pub insecure: bool,
}

/// Certificates, PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Authorities beside the system's.
    pub authorities: Option<String>,
    /// Our own certificate, with its chain, and its key.
    pub identity: Option<(String, String)>,
}

/// A proxy for http and https.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `http://host:port` or `https://host:port`.
    pub address: String,
    /// User and password.
    pub login: Option<(String, String)>,
}

/// A Secret that can't be used. Names its keys, never their values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccessError {
    /// A value is no text.
    #[error("its key {0} is not valid UTF-8: write the value as text")]
    NoText(&'static str),
    /// No key of ours is in it.
    #[error("it has none of the keys ca.crt, tls.crt and tls.key: add ca.crt, or tls.crt and tls.key, or all")]
    NoCertificate,
    /// A certificate without its key, or a key without its certificate.
    #[error("tls.crt and tls.key belong together: add the missing one")]
    HalfIdentity,
    /// A proxy needs its address.
    #[error("it has no key address: add the proxy's, for example http://proxy.example.com:3128")]
    NoAddress,
}

fn text<V: AsRef<[u8]>>(data: &BTreeMap<String, V>, key: &'static str) -> Result<Option<String>, AccessError> {
    let Some(value) = data.get(key) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_ref()).map_err(|_| AccessError::NoText(key))?;
    Ok(Some(text.to_owned()).filter(|text| !text.trim().is_empty()))
}

impl Tls {
    /// Reads the data of a Secret: `ca.crt` (or `caFile`), `tls.crt` and `tls.key` (or `certFile` and `keyFile`), as Flux
    /// does.
    pub fn from_secret<V: AsRef<[u8]>>(data: &BTreeMap<String, V>) -> Result<Self, AccessError> {
        let authorities = text(data, "ca.crt")?.or(text(data, "caFile")?);
        let certificate = text(data, "tls.crt")?.or(text(data, "certFile")?);
        let key = text(data, "tls.key")?.or(text(data, "keyFile")?);
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(AccessError::HalfIdentity),
        };
        if authorities.is_none() && identity.is_none() {
            return Err(AccessError::NoCertificate);
        }
        Ok(Self { authorities, identity })
    }
}

impl Proxy {
    /// Reads the data of a Secret: `address`, and `username` and `password`, as Flux does.
    pub fn from_secret<V: AsRef<[u8]>>(data: &BTreeMap<String, V>) -> Result<Self, AccessError> {
        let address = text(data, "address")?.ok_or(AccessError::NoAddress)?.trim().to_owned();
        let login = match (text(data, "username")?, text(data, "password")?) {
            (Some(username), password) => Some((username, password.unwrap_or_default())),
            (None, _) => None,
        };
        Ok(Self { address, login })
    }
}

impl Access {
    /// Reads a URL and says whether it may be used: [`permitted`], and plain http too where this source asked for it.
    ///
    /// # Errors
    /// It is no URL, or a flag would have to name it.
    pub fn permitted(&self, url: &str, allow: &AllowList) -> Result<SourceUrl, Refused> {
        if self.insecure { permitted(url, &allow.with_plain_http()) } else { permitted(url, allow) }
    }

    /// Feeds everything to a digest, so that two sources reached in other ways are other sources.
    pub(in crate::io) fn digest(&self, digest: &mut Sha256) {
        let identity = self.tls.identity.as_ref();
        let login = self.proxy.as_ref().and_then(|proxy| proxy.login.as_ref());
        let fields = [
            self.tls.authorities.as_deref(),
            identity.map(|(certificate, _)| certificate.as_str()),
            identity.map(|(_, key)| key.as_str()),
            self.proxy.as_ref().map(|proxy| proxy.address.as_str()),
            login.map(|(user, _)| user.as_str()),
            login.map(|(_, password)| password.as_str()),
            self.insecure.then_some("insecure"),
        ];
        for field in fields {
            let field = field.unwrap_or_default();
            digest.update((field.len() as u64).to_be_bytes());
            digest.update(field);
        }
        if let Some(credentials) = &self.credentials {
            credentials.digest(digest);
        }
    }

    /// The texts that must not appear in a message.
    pub fn secrets(&self) -> Vec<String> {
        let login = self.proxy.as_ref().and_then(|proxy| proxy.login.as_ref());
        let proxy = login.into_iter().flat_map(|(user, password)| spellings(Some(user), password));
        self.credentials.iter().flat_map(Credentials::secrets).chain(proxy).collect()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn certificates_are_read_in_both_spellings() {
        let new = Tls::from_secret(&data(&[("ca.crt", "CA"), ("tls.crt", "C"), ("tls.key", "K")])).unwrap();
        let old = Tls::from_secret(&data(&[("caFile", "CA"), ("certFile", "C"), ("keyFile", "K")])).unwrap();
        assert!(new == old && new.identity == Some(("C".into(), "K".into())));
        assert_eq!(Tls::from_secret(&data(&[("tls.crt", "C")])).err(), Some(AccessError::HalfIdentity));
        assert_eq!(Tls::from_secret(&data(&[("x", "C")])).err(), Some(AccessError::NoCertificate));
    }

    #[test]
    fn a_proxy_needs_its_address() {
        let proxy = Proxy::from_secret(&data(&[("address", "http://p:1\n"), ("username", "u")])).unwrap();
        assert_eq!((proxy.address.as_str(), proxy.login), ("http://p:1", Some(("u".into(), String::new()))));
        assert_eq!(Proxy::from_secret(&data(&[("username", "u")])).err(), Some(AccessError::NoAddress));
    }
}
