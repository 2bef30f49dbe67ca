//! How the image service is found and lets us in: a token of the identity service, version 3, and its catalogue.

use http::header::HeaderValue;
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use reqwest::{RequestBuilder, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

use super::super::DestinationError;
use super::super::web::{PIECE_PATIENCE, Web};
use super::{TOKEN, said};
use crate::io::source::http::redacted;

/// How long before its end a token is not used for another request.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);
/// Life of a token whose end can't be read.
const LIFE: SignedDuration = SignedDuration::from_mins(30);

/// How to log in. Debug shows nothing of it.
#[derive(Clone)]
pub(in super::super) enum Login {
    /// Nobody asks.
    Open(Url),
    /// The identity service gives a token.
    Keystone(Box<Keystone>),
}

/// A login of the identity service.
#[derive(Clone)]
pub(in super::super) struct Keystone {
    tokens: Url,
    /// What is sent there.
    body: Value,
    region: Option<String>,
    interface: String,
    /// Where the image service is, if the catalogue is not to be asked.
    endpoint: Option<Url>,
    secret: String,
}

/// A token and where it is good.
#[derive(Clone, PartialEq)]
pub(super) struct Session {
    pub endpoint: Url,
    token: Option<HeaderValue>,
    until: Option<Timestamp>,
}

impl Session {
    pub fn is_fresh(&self) -> bool {
        self.until.is_none_or(|until| Timestamp::now() < until)
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.header(TOKEN, token.clone()),
            None => request,
        }
    }
}

#[derive(Deserialize)]
struct Clouds {
    clouds: BTreeMap<String, Cloud>,
}

#[derive(Deserialize)]
struct Cloud {
    #[serde(default)]
    auth: BTreeMap<String, Value>,
    region_name: Option<String>,
    interface: Option<String>,
    endpoint_type: Option<String>,
    image_endpoint_override: Option<String>,
    verify: Option<bool>,
}

/// Reads `clouds.yaml`: the cloud of this name, or the only one. What is wrong is said without quoting it.
pub(in super::super) fn read_clouds(text: &str, name: Option<&str>, endpoint: Option<Url>) -> Result<Login, String> {
    let clouds: Clouds = crate::core::yaml::from_str(text)
        .map_err(|_| "its key clouds.yaml can't be read: write it as OpenStack's client does".to_owned())?;
    let names = || clouds.clouds.keys().cloned().collect::<Vec<_>>().join(", ");
    let cloud = match name {
        Some(name) => {
            clouds.clouds.get(name).ok_or_else(|| format!("its clouds.yaml has no cloud {name}, but {}", names()))?
        }
        None => match clouds.clouds.values().next() {
            Some(only) if clouds.clouds.len() == 1 => only,
            _ => return Err(format!("its clouds.yaml has the clouds {}: set cloud to one of them", names())),
        },
    };
    if cloud.verify == Some(false) {
        return Err("its clouds.yaml says verify: false, which is not done: put the authority into cacert".to_owned());
    }
    let get = |key: &str| cloud.auth.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
    let url =
        |text: &str, what: &str| Url::parse(text).map_err(|error| format!("{what} of clouds.yaml is no URL: {error}"));
    let auth_url = get("auth_url").ok_or("its clouds.yaml has no auth.auth_url")?;
    let auth_url = auth_url.trim_end_matches('/');
    let version = if auth_url.ends_with("/v3") { "" } else { "/v3" };
    let (identity, secret) = identity(&get)?;
    let mut body = json!({"auth": {"identity": identity}});
    if let Some(scope) = scope(&get).filter(|_| get("application_credential_secret").is_none()) {
        body["auth"]["scope"] = scope;
    }
    let own = cloud.image_endpoint_override.as_deref().map(|text| url(text, "image_endpoint_override")).transpose()?;
    Ok(Login::Keystone(Box::new(Keystone {
        tokens: url(&format!("{auth_url}{version}/auth/tokens"), "auth_url")?,
        body,
        region: cloud.region_name.clone(),
        interface: cloud
            .interface
            .clone()
            .or(cloud.endpoint_type.clone())
            .map_or_else(|| "public".to_owned(), |interface| interface.trim_end_matches("URL").to_owned()),
        endpoint: endpoint.or(own),
        secret,
    })))
}

/// `key` as `name` or `id` of something.
fn named(get: &impl Fn(&str) -> Option<String>, key: &str) -> Option<Map<String, Value>> {
    let id = get(&format!("{key}_id")).map(|id| ("id".to_owned(), Value::String(id)));
    let name = || get(&format!("{key}_name")).map(|name| ("name".to_owned(), Value::String(name)));
    id.or_else(name).map(|field| Map::from_iter([field]))
}

/// Who we are, and the secret in it.
fn identity(get: &impl Fn(&str) -> Option<String>) -> Result<(Value, String), String> {
    let mut user = Map::new();
    if let Some(id) = get("user_id") {
        user.insert("id".to_owned(), Value::String(id));
    } else if let Some(name) = get("username") {
        user.insert("name".to_owned(), Value::String(name));
        let domain = named(get, "user_domain").or_else(|| named(get, "domain"));
        let domain = domain.unwrap_or_else(|| Map::from_iter([("id".to_owned(), json!("default"))]));
        user.insert("domain".to_owned(), Value::Object(domain));
    }
    if let Some(secret) = get("application_credential_secret") {
        let mut credential = named(get, "application_credential")
            .ok_or("its clouds.yaml has no application_credential_id for the application_credential_secret")?;
        if credential.contains_key("name") {
            credential.insert("user".to_owned(), Value::Object(user));
        }
        credential.insert("secret".to_owned(), Value::String(secret.clone()));
        return Ok((json!({"methods": ["application_credential"], "application_credential": credential}), secret));
    }
    let password = get("password").filter(|_| !user.is_empty());
    let password = password.ok_or(
        "its clouds.yaml has neither application_credential_id and application_credential_secret nor username and password",
    )?;
    user.insert("password".to_owned(), Value::String(password.clone()));
    Ok((json!({"methods": ["password"], "password": {"user": user}}), password))
}

/// The project that a password is for.
fn scope(get: &impl Fn(&str) -> Option<String>) -> Option<Value> {
    let mut project = named(get, "project").or_else(|| named(get, "tenant"))?;
    if project.contains_key("name") {
        let domain = named(get, "project_domain").or_else(|| named(get, "domain"));
        let domain = domain.unwrap_or_else(|| Map::from_iter([("id".to_owned(), json!("default"))]));
        project.insert("domain".to_owned(), Value::Object(domain));
    }
    Some(json!({"project": project}))
}

impl Login {
    /// The URLs that are asked.
    pub(super) fn urls(&self) -> Vec<&Url> {
        match self {
            Self::Open(url) => vec![url],
            Self::Keystone(keystone) => std::iter::once(&keystone.tokens).chain(&keystone.endpoint).collect(),
        }
    }

    /// What must not appear in a message.
    pub(in super::super) fn secret(&self) -> Option<String> {
        match self {
            Self::Open(_) => None,
            Self::Keystone(keystone) => Some(keystone.secret.clone()),
        }
    }

    /// For messages.
    pub(super) fn place(&self) -> String {
        let url = match self {
            Self::Open(url) => url,
            Self::Keystone(keystone) => keystone.endpoint.as_ref().unwrap_or(&keystone.tokens),
        };
        format!("image service at {}", redacted(url).trim_end_matches("/v3/auth/tokens"))
    }

    pub(super) async fn session(&self, web: &Web, action: &'static str) -> Result<Session, DestinationError> {
        match self {
            Self::Open(url) => Ok(Session { endpoint: root(url), token: None, until: None }),
            Self::Keystone(keystone) => keystone.session(web, action).await,
        }
    }
}

impl Keystone {
    async fn session(&self, web: &Web, action: &'static str) -> Result<Session, DestinationError> {
        let request = web.request(Method::POST, self.tokens.clone());
        let request = request.header("content-type", "application/json").body(self.body.to_string());
        let response = web.send_within("logging in to", request, PIECE_PATIENCE).await?;
        if response.status() != StatusCode::CREATED {
            return Err(web.refusal("logging in to", response, said).await);
        }
        let unusable =
            |problem: String| DestinationError::Refused { action, location: redacted(&self.tokens), problem };
        let token = response.headers().get("x-subject-token").cloned();
        let mut token = token.ok_or_else(|| unusable("the identity service gives no token".to_owned()))?;
        token.set_sensitive(true);
        let body = web.body("logging in to", response).await?;
        // The parser's own words may quote what is secret.
        let answer: Value = serde_json::from_slice(&body)
            .map_err(|_| unusable("the identity service's answer can't be read".to_owned()))?;
        let now = Timestamp::now();
        let until = until(&answer, now);
        let endpoint = match &self.endpoint {
            Some(own) => own.clone(),
            None => self.endpoint_of(&answer).ok_or_else(|| {
                let region = self.region.as_deref().map(|region| format!(" in region {region}")).unwrap_or_default();
                unusable(format!(
                    "the catalogue has no {} endpoint of an image service{region}: set endpoint",
                    self.interface
                ))
            })?,
        };
        Ok(Session { endpoint: root(&endpoint), token: Some(token), until: Some(until) })
    }

    /// The image service of a catalogue.
    fn endpoint_of(&self, answer: &Value) -> Option<Url> {
        let services = answer.pointer("/token/catalog")?.as_array()?;
        let endpoints = services.iter().filter(|service| service["type"] == "image");
        let mut endpoints = endpoints.filter_map(|service| service["endpoints"].as_array()).flatten();
        let here = |endpoint: &&Value| {
            let region = self.region.as_deref();
            endpoint["interface"] == self.interface.as_str()
                && region.is_none_or(|region| endpoint["region_id"] == region || endpoint["region"] == region)
        };
        Url::parse(endpoints.find(here)?["url"].as_str()?).ok()
    }
}

/// Until when a token is used that came at `now`.
fn until(answer: &Value, now: Timestamp) -> Timestamp {
    let end = answer.pointer("/token/expires_at").and_then(Value::as_str).and_then(|text| text.parse().ok());
    // An end at the edge of what a timestamp can say is one as it is.
    let before = |end: Timestamp| end.checked_sub(MARGIN).unwrap_or(end);
    end.map_or_else(|| now.checked_add(LIFE).unwrap_or(now), before)
}

/// The service's URL, to which `v2/…` is added.
fn root(url: &Url) -> Url {
    let mut url = url.clone();
    let path = url.path().trim_end_matches('/');
    let path = format!("{}/", path.strip_suffix("/v2").unwrap_or(path));
    url.set_path(&path);
    url
}

#[cfg(test)]
#[path = "login/tests.rs"]
mod tests;
