//! From a template's destination to the destination.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use url::Url;

use super::directory::Directory;
use super::glance::{Glance, Login, read_clouds};
use super::http::HttpPut;
use super::oci::Oci;
use super::s3::S3;
use super::shelf::Shelved;
use super::{Destination, DestinationError};
use crate::api::image_destination::{Destination as Spec, GlanceDestination};
use crate::core::source::AllowList;
use crate::io::source::access::Tls;
use crate::io::source::{Access, Credentials};

/// Data of a Secret.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// How a destination is reached, beside what its spec says.
#[derive(Clone, Default)]
pub struct Reach {
    /// Data of the Secret that `secretRef` names.
    pub secret: Option<SecretData>,
    /// Data of the Secret that `certSecretRef` names.
    pub certificate: Option<SecretData>,
    /// Hosts that `--allow-source` opens.
    pub allow: AllowList,
    /// Roots that `--allow-image-directory` opens.
    pub directories: Vec<PathBuf>,
}

/// The destination that a template names.
///
/// # Errors
/// The spec names not exactly one, one that the flags don't allow, or a Secret that can't be used.
pub fn open(spec: &Spec, reach: &Reach) -> Result<Arc<dyn Destination>, DestinationError> {
    match spec {
        Spec { directory: Some(spec), http: None, s3: None, oci: None, glance: None } => {
            Ok(Arc::new(Shelved(Directory::new(spec, &reach.directories)?)))
        }
        Spec { directory: None, http: None, s3: Some(spec), oci: None, glance: None } => {
            let credentials = reach.secret.as_ref().map(s3_credentials).transpose()?;
            let known = credentials.as_ref().map(|known| Credentials {
                username: Some(known.key().to_owned()),
                password: Some(known.secret().to_owned()),
                ..Credentials::default()
            });
            let access = Access { credentials: known, ..reach.access(spec.insecure)? };
            Ok(Arc::new(Shelved(S3::new(spec, credentials, &access, &reach.allow)?)))
        }
        Spec { directory: None, http: Some(spec), s3: None, oci: None, glance: None } => {
            let access = reach.login(spec.insecure)?;
            let authorization = access.credentials.as_ref().map(authorization).transpose()?;
            Ok(Arc::new(Shelved(HttpPut::new(spec, authorization, &access, &reach.allow)?)))
        }
        Spec { directory: None, http: None, s3: None, oci: Some(spec), glance: None } => {
            Ok(Arc::new(Oci::new(spec, &reach.login(spec.insecure)?, &reach.allow)?))
        }
        Spec { directory: None, http: None, s3: None, oci: None, glance: Some(spec) } => {
            let login = glance_login(spec, reach)?;
            let known = login.secret().map(|secret| Credentials { password: Some(secret), ..Credentials::default() });
            let mut access = Access { credentials: known, ..reach.access(spec.insecure)? };
            if let Some(own) = reach.secret.as_ref().map(|secret| text(secret, &["cacert", "ca.crt"])).transpose()? {
                access.tls.authorities = own;
            }
            Ok(Arc::new(Glance::new(spec, login, &access, &reach.allow)?))
        }
        _ => Err(DestinationError::Refused {
            action: "opening",
            location: "destination".to_owned(),
            problem: "exactly one is needed: directory, http, s3, oci or glance".to_owned(),
        }),
    }
}

impl Reach {
    /// Certificates and credentials.
    fn login(&self, insecure: bool) -> Result<Access, DestinationError> {
        let known = self.secret.as_ref().map(Credentials::from_secret).transpose();
        let credentials = known.map_err(|error| unusable("secretRef", &error.to_string()))?;
        Ok(Access { credentials, ..self.access(insecure)? })
    }

    /// Certificates; no credentials yet.
    fn access(&self, insecure: bool) -> Result<Access, DestinationError> {
        let tls = self.certificate.as_ref().map(Tls::from_secret).transpose();
        let tls = tls.map_err(|error| unusable("certSecretRef", &error.to_string()))?.unwrap_or_default();
        Ok(Access { credentials: None, tls, proxy: None, insecure })
    }
}

/// User and password, or a token alone.
fn authorization(known: &Credentials) -> Result<HeaderValue, DestinationError> {
    let password = known.password.as_deref().unwrap_or_default();
    let header = match &known.username {
        Some(user) => format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
        None => format!("Bearer {password}"),
    };
    let value = HeaderValue::from_str(&header);
    let mut value = value.map_err(|_| unusable("secretRef", "its token holds what no header may"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn glance_login(spec: &GlanceDestination, reach: &Reach) -> Result<Login, DestinationError> {
    let endpoint = spec.endpoint.as_deref().map(Url::parse).transpose();
    let endpoint = endpoint.map_err(|error| DestinationError::Refused {
        action: "using",
        location: "endpoint".to_owned(),
        problem: format!("it is no URL: {error}"),
    })?;
    let Some(secret) = &reach.secret else {
        return endpoint.map(Login::Open).ok_or_else(|| unusable("secretRef", "there is neither it nor an endpoint"));
    };
    let clouds = text(secret, &["clouds.yaml"])?;
    let clouds = clouds.ok_or_else(|| unusable("secretRef", "it has no key clouds.yaml"))?;
    read_clouds(&clouds, spec.cloud.as_deref(), endpoint).map_err(|problem| unusable("secretRef", &problem))
}

fn unusable(field: &str, problem: &str) -> DestinationError {
    DestinationError::Refused {
        action: "using",
        location: format!("the Secret of {field}"),
        problem: problem.to_owned(),
    }
}

/// A line of text of a Secret, under the first of the keys that it has.
fn text(secret: &SecretData, keys: &[&str]) -> Result<Option<String>, DestinationError> {
    let Some((key, value)) = keys.iter().find_map(|key| Some((key, secret.get(*key)?))) else { return Ok(None) };
    let text = std::str::from_utf8(value);
    let text = text.map_err(|_| unusable("secretRef", &format!("its key {key} is no text")))?.trim();
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

fn s3_credentials(secret: &SecretData) -> Result<rusty_s3::Credentials, DestinationError> {
    let key = text(secret, &["accessKeyId", "AWS_ACCESS_KEY_ID"])?;
    let password = text(secret, &["secretAccessKey", "AWS_SECRET_ACCESS_KEY"])?;
    let (Some(key), Some(password)) = (key, password) else {
        return Err(unusable("secretRef", "it needs the keys accessKeyId and secretAccessKey"));
    };
    Ok(match text(secret, &["sessionToken", "AWS_SESSION_TOKEN"])? {
        Some(token) => rusty_s3::Credentials::new_with_token(key, password, token),
        None => rusty_s3::Credentials::new(key, password),
    })
}
