//! What the service is asked, with a token that is good.

use std::time::Duration;

use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{RequestBuilder, Response, Url};
use serde_json::Value;

use super::super::DestinationError;
use super::super::web::PATIENCE;
use super::image::{Found, user_tag};
use super::login::Session;
use super::{Glance, PUBLISHING, READING, REMOVING, said};

/// Images that are asked for at once.
const PAGE: usize = 200;
/// Pages that a list may have.
const PAGES: usize = 100;
/// Pauses before a deletion is asked for again.
const AGAIN: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(1), Duration::from_secs(3)];
const PATCH: &str = "application/openstack-images-v2.1-json-patch";

impl Glance {
    pub(super) async fn session(
        &self,
        action: &'static str,
        not: Option<&Session>,
    ) -> Result<Session, DestinationError> {
        let mut session = self.session.lock().await;
        if let Some(known) = session.as_ref().filter(|known| Some(*known) != not && known.is_fresh()) {
            return Ok(known.clone());
        }
        let new = self.login.session(&self.web, action).await?;
        *session = Some(new.clone());
        Ok(new)
    }

    /// Sends a request to the service; one that its token has run out for is sent again with another one.
    pub(super) async fn ask(
        &self,
        action: &'static str,
        method: &Method,
        path: &str,
        time: Duration,
        with: impl Fn(RequestBuilder) -> RequestBuilder + Send + Sync,
    ) -> Result<Response, DestinationError> {
        let mut refused = None;
        loop {
            let session = self.session(action, refused.as_ref()).await?;
            let request = with(self.web.request(method.clone(), self.url(&session, path)?));
            let request = session.sign(request);
            let response = self.web.send_within(action, request, time).await?;
            if response.status() == StatusCode::UNAUTHORIZED && refused.is_none() && session.has_token() {
                refused = Some(session);
                continue;
            }
            return Ok(response);
        }
    }

    pub(super) fn url(&self, session: &Session, path: &str) -> Result<Url, DestinationError> {
        session.endpoint.join(path).map_err(|error| self.nonsense(READING, &error.to_string()))
    }

    pub(super) fn nonsense(&self, action: &'static str, problem: &str) -> DestinationError {
        let problem = format!("its answer can't be used: {problem}");
        DestinationError::Unreachable { action, location: self.place.clone(), problem }
    }

    pub(super) async fn refusal(&self, action: &'static str, response: Response) -> DestinationError {
        self.web.refusal(action, response, said).await
    }

    pub(super) async fn success(&self, action: &'static str, response: Response) -> Result<Response, DestinationError> {
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(action, response).await) }
    }

    pub(super) async fn json(&self, action: &'static str, response: Response) -> Result<Value, DestinationError> {
        let response = self.success(action, response).await?;
        let body = self.web.body(action, response).await?;
        serde_json::from_slice(&body).map_err(|error| self.nonsense(action, &error.to_string()))
    }

    pub(super) async fn found(&self, action: &'static str, response: Response) -> Result<Found, DestinationError> {
        let value = self.json(action, response).await?;
        serde_json::from_value(value).map_err(|error| self.nonsense(action, &error.to_string()))
    }

    /// Images that have all of these.
    pub(super) async fn list(&self, filters: &[(&str, &str)], hidden: bool) -> Result<Vec<Found>, DestinationError> {
        let query = query(filters, hidden);
        let mut marker = String::new();
        let mut all = Vec::new();
        for _ in 0..PAGES {
            let path = format!("v2/images?{query}{marker}");
            let response = self.ask(READING, &Method::GET, &path, PATIENCE, |request| request).await?;
            let mut page = self.json(READING, response).await?;
            let found: Vec<Found> = serde_json::from_value(page["images"].take())
                .map_err(|error| self.nonsense(READING, &error.to_string()))?;
            let (last, full) = (found.last().map(|image| image.id.clone()), found.len() >= PAGE);
            all.extend(found);
            match last.filter(|_| full || page.get("next").is_some()) {
                Some(last) => marker = format!("&marker={}", escape(&last)),
                None => return Ok(all),
            }
        }
        Err(self.nonsense(READING, "its list of images has no end"))
    }

    pub(super) async fn get(&self, id: &str) -> Result<Option<Found>, DestinationError> {
        let response = self.ask(READING, &Method::GET, &image_path(id), PATIENCE, |request| request).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.found(READING, response).await.map(Some)
    }

    pub(super) async fn patch(
        &self,
        action: &'static str,
        id: &str,
        changes: &Value,
    ) -> Result<Found, DestinationError> {
        let response = self.changed(action, id, changes).await?;
        self.found(action, response).await
    }

    /// The same for an image that others may remove meanwhile; `None` if they did.
    pub(super) async fn patch_if_there(
        &self,
        action: &'static str,
        id: &str,
        changes: &Value,
    ) -> Result<Option<Found>, DestinationError> {
        let response = self.changed(action, id, changes).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.found(action, response).await.map(Some)
    }

    async fn changed(&self, action: &'static str, id: &str, changes: &Value) -> Result<Response, DestinationError> {
        let text = changes.to_string();
        let with = |request: RequestBuilder| request.header("content-type", PATCH).body(text.clone());
        self.ask(action, &Method::PATCH, &image_path(id), PATIENCE, with).await
    }

    /// Adds or removes our tag; whether the image is there.
    pub(super) async fn tag(&self, method: &Method, id: &str, cluster: &str) -> Result<bool, DestinationError> {
        let action = if *method == Method::PUT { PUBLISHING } else { REMOVING };
        let path = format!("{}/tags/{}", image_path(id), escape(&user_tag(cluster)));
        let response = self.ask(action, method, &path, PATIENCE, |request| request).await?;
        if response.status() == StatusCode::NOT_FOUND {
            // Without the tag, or without the image.
            return Ok(*method == Method::DELETE);
        }
        self.success(action, response).await.map(|_| true)
    }

    /// Deletes an image, if it is there. The service may still be at work on it, and answer with an error of its own: a
    /// deletion may be asked for again (RFC 9110, 9.2.2).
    pub(super) async fn delete(&self, id: &str) -> Result<(), DestinationError> {
        let path = image_path(id);
        let ask = || self.ask(REMOVING, &Method::DELETE, &path, PATIENCE, |request| request);
        let mut response = ask().await?;
        for pause in AGAIN {
            if !response.status().is_server_error() {
                break;
            }
            tokio::time::sleep(pause).await;
            response = ask().await?;
        }
        if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(());
        }
        self.success(REMOVING, response).await.map(drop)
    }
}

fn query(filters: &[(&str, &str)], hidden: bool) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(filters).append_pair("os_hidden", if hidden { "true" } else { "false" });
    query.append_pair("limit", &PAGE.to_string());
    query.finish()
}

pub(super) fn image_path(id: &str) -> String {
    format!("v2/images/{}", escape(id))
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
