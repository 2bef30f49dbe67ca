//! OpenStack's image service, version 2.
//!
//! An upload is an image of its own: private, hidden, with object and attempt in its name. One PATCH gives it the name of the
//! image and shows it, which publishes it. Its property `clusterstack_digest` holds the digest of the file, and a tag
//! `clusterstack-user=<id>` each management cluster that uses it: tags are added and removed one by one, so that none
//! overwrites what another one says. The service's own hash of what arrived is compared with the file's.

mod image;
mod import;
mod login;
mod requests;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::reader::Reader;
use super::shelf::{SPOKEN_NAME, attempt_of, staged, until};
use super::web::{Fields, PATIENCE, Web, endpoint};
use super::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use crate::api::condition::cut;
use crate::api::image_destination::GlanceDestination;
use crate::core::image::naming::{self, REMOVING as REMOVING_NAME};
use crate::core::source::AllowList;
use crate::io::source::Access;

use image::{Found, body, is_ours};
use login::Session;
pub(super) use login::{Login, read_clouds};
use requests::image_path;

/// How often an image is published that others publish at the same moment.
const TURNS: u32 = 8;
/// Longest pause between two of these.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// It has no `certSecretRef`: authorities are beside `clouds.yaml`, and a certificate of ours has no place.
pub(super) const FIELDS: Fields = &[
    (
        "put it into ca.crt of a Secret that certSecretRef names",
        "put it into cacert of the Secret that secretRef names",
    ),
    ("put the authority into ca.crt", "put the authority into cacert of the Secret that secretRef names"),
    ("put tls.crt and tls.key into a Secret that certSecretRef names", "there is no field for one here"),
    ("ca.crt of certSecretRef", "cacert of the Secret of secretRef"),
    ("certSecretRef or proxySecretRef", "cacert of the Secret of secretRef"),
];
const TOKEN: &str = "x-auth-token";
const UPLOADING: &str = "uploading to";
const PUBLISHING: &str = "publishing in";
const READING: &str = "reading from";
const REMOVING: &str = "removing from";

/// An image service.
pub(super) struct Glance {
    web: Web,
    login: Login,
    session: Mutex<Option<Session>>,
    visibility: &'static str,
    protected: bool,
    /// Whether the service may be told to download.
    web_download: bool,
    /// For messages.
    place: String,
}

impl Glance {
    /// The service that a spec names.
    ///
    /// # Errors
    /// Its URL, or the identity service's, may not be used.
    pub fn new(
        spec: &GlanceDestination,
        login: Login,
        access: &Access,
        allow: &AllowList,
    ) -> Result<Self, DestinationError> {
        use crate::api::image_destination::Visibility;
        for url in login.urls() {
            endpoint("using image service", url.as_str(), access, allow)?;
        }
        let visibility = match spec.visibility {
            None | Some(Visibility::Private) => "private",
            Some(Visibility::Public) => "public",
            Some(Visibility::Community) => "community",
            Some(Visibility::Shared) => "shared",
        };
        let web = Web::new(access, allow, FIELDS)?;
        let place = login.place();
        let (protected, web_download) = (spec.protected, spec.web_download);
        Ok(Self { web, login, session: Mutex::default(), visibility, protected, web_download, place })
    }

    /// What everybody finds under a name.
    async fn named(&self, name: &str) -> Result<Vec<Found>, DestinationError> {
        let mut found = self.list(&[("name", name)], false).await?;
        found.retain(|image| image.name.as_deref() == Some(name) && image.is_there());
        Ok(found)
    }

    /// Our image of a name; another one is a conflict.
    async fn ours(&self, name: &str, wanted: &str) -> Result<Option<Found>, DestinationError> {
        let mut found = self.named(name).await?;
        if let Some(other) = found.iter().find(|image| image.digest.is_none()) {
            return Err(self.conflict(other, "an image that somebody else brought", wanted));
        }
        found.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        Ok(found.into_iter().next())
    }

    fn conflict(&self, found: &Found, what: &str, wanted: &str) -> DestinationError {
        DestinationError::Conflict { location: self.location(found), found: what.to_owned(), wanted: wanted.to_owned() }
    }

    fn location(&self, found: &Found) -> String {
        format!("image {} of {}", found.id, self.place)
    }

    fn told(&self, found: &Found, digest: &str) -> Published {
        Published { location: self.location(found), digest: digest.to_owned(), users: found.users() }
    }

    /// What a claim uploaded, whatever became of it.
    async fn uploads(&self, image: &str, claim: &Claim) -> Result<Vec<Found>, DestinationError> {
        let mut found = self.list(&[("clusterstack_object", &claim.object)], true).await?;
        found.retain(|found| {
            let attempt = found.name.as_deref().and_then(|name| attempt_of(name, image, &claim.object));
            attempt.is_some_and(|attempt| attempt <= claim.attempt)
        });
        Ok(found)
    }

    /// What an attempt uploaded, if it is all there.
    async fn whole_upload(&self, image: &Image, claim: &Claim) -> Result<Option<Found>, DestinationError> {
        let name = staged(&image.name, claim);
        Ok(self.uploads(&image.name, claim).await?.into_iter().find(|found| {
            let whole = found.status == "active" && found.size == Some(image.size);
            found.name.as_deref() == Some(&name) && whole && found.digest.as_deref() == Some(&image.digest)
        }))
    }

    /// The image of this attempt, to upload to: one that is all there, or a new one.
    async fn begin(&self, image: &Image, claim: &Claim) -> Result<Found, DestinationError> {
        let name = staged(&image.name, claim);
        for old in self.uploads(&image.name, claim).await? {
            if old.name.as_deref() != Some(&name) {
                continue;
            }
            if old.status == "active" && old.digest.as_deref() == Some(&image.digest) && old.size == Some(image.size) {
                return Ok(old);
            }
            self.delete(&old.id).await?;
        }
        let text = body(image, claim, &name).to_string();
        let with = |request: RequestBuilder| request.header("content-type", "application/json").body(text.clone());
        let response = self.ask(UPLOADING, &Method::POST, "v2/images", PATIENCE, with).await?;
        self.found(UPLOADING, response).await
    }

    async fn send(
        &self,
        image: &Image,
        mut file: Reader,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        let mut upload = self.begin(image, claim).await?;
        let may_import = self.web_download && !image.origins.is_empty();
        if upload.status == "active" || may_import {
            let path = file.path().to_owned();
            let sums = Reader::open(&path, image).await?.with_sha512().sums().await?;
            // It may be what the service got from elsewhere before anybody compared it.
            if upload.status == "active" && upload.is_hashed_as(image, sums.as_deref()) == Some(true) {
                meter.done(image.size);
                return Ok(());
            }
            if may_import && upload.status != "active" && self.import(&upload.id, image, sums.as_deref(), meter).await?
            {
                meter.done(image.size);
                return Ok(());
            }
            // What it has, or may have got, is not the image.
            self.delete(&upload.id).await?;
            upload = self.begin(image, claim).await?;
        }
        // Fresh, for a body can't be sent twice.
        let session = self.session(UPLOADING, None).await?;
        let request = self.web.request(Method::PUT, self.url(&session, &format!("{}/file", image_path(&upload.id)))?);
        let request = session.sign(request).header("content-type", "application/octet-stream");
        let response = self.web.send_file(UPLOADING, request, &mut file, meter, cancel).await?;
        self.success(UPLOADING, response).await?;
        let Some(arrived) = self.get(&upload.id).await? else {
            return Err(self.nonsense(UPLOADING, "the image is gone"));
        };
        let same = arrived.is_hashed_as(image, file.sha512().as_deref()) != Some(false);
        if arrived.status == "active" && arrived.size == Some(image.size) && same {
            return Ok(());
        }
        let problem = format!(
            "it has an image of {} bytes, status {} and {} {} of the file",
            arrived.size.unwrap_or_default(),
            arrived.status,
            arrived.hash.as_deref().unwrap_or("no hash"),
            if same { "as" } else { "other than" }
        );
        self.delete(&upload.id).await?;
        Err(self.nonsense(UPLOADING, &problem))
    }

    /// Adds our id to an image, if it stays there for us.
    async fn join(&self, found: &Found, image: &Image, claim: &Claim) -> Result<Option<Published>, DestinationError> {
        if !self.tag(&Method::PUT, &found.id, &claim.cluster).await? {
            return Ok(None);
        }
        let now = self.get(&found.id).await?;
        // Who removes it hides it first, and looks for users then.
        let there = now.filter(|now| now.name.as_deref() == Some(&image.name) && !now.hidden);
        Ok(there.map(|now| self.told(&now, &image.digest)))
    }

    async fn publish(&self, image: &Image, claim: &Claim) -> Result<Published, DestinationError> {
        let later = |problem: &str| DestinationError::Unreachable {
            action: PUBLISHING,
            location: self.place.clone(),
            problem: problem.to_owned(),
        };
        for _ in 0..TURNS {
            let begun = tokio::time::Instant::now();
            if let Some(found) = self.ours(&image.name, &image.digest).await? {
                if found.digest.as_deref() != Some(&image.digest) {
                    return Err(self.conflict(&found, found.digest.as_deref().unwrap_or("another"), &image.digest));
                }
                let joined = self.join(&found, image, claim).await?;
                self.give_up(&image.name, claim).await?;
                return joined.ok_or_else(|| later("the image is being removed"));
            }
            let name = staged(&image.name, claim);
            let upload = self.whole_upload(image, claim).await?;
            let upload = upload.ok_or_else(|| later("nothing was uploaded for this attempt"))?;
            let published = self.show(&upload.id, &image.name, self.visibility, self.protected).await?;
            // Names are not unique there. Who sees another one beside its own steps back; who sees none stays.
            let shown = self.named(&image.name).await?;
            if shown.iter().all(|found| found.id == published.id) {
                self.give_up(&image.name, claim).await?;
                return Ok(self.told(&published, &image.digest));
            }
            self.hide(&upload.id, &name).await?;
            // Those who saw each other come one after the other, measured by how long one takes here; chance parts
            // those who saw only some.
            let before = shown.iter().filter(|found| found.id < published.id).count();
            let turns = f64::from(u32::try_from(before).unwrap_or(TURNS).min(TURNS)) * 2.0 + rand::random::<f64>();
            let pause = begun.elapsed().mul_f64(turns).clamp(Duration::from_millis(20), LONGEST_PAUSE);
            tokio::time::sleep(pause).await;
        }
        Err(later("others publish it all the time"))
    }

    /// Gives an image the name that everybody looks for, by one step.
    async fn show(&self, id: &str, name: &str, visibility: &str, protected: bool) -> Result<Found, DestinationError> {
        let mut changes = vec![
            json!({"op": "replace", "path": "/name", "value": name}),
            json!({"op": "replace", "path": "/os_hidden", "value": false}),
        ];
        if visibility != "private" {
            changes.push(json!({"op": "replace", "path": "/visibility", "value": visibility}));
        }
        if protected {
            changes.push(json!({"op": "replace", "path": "/protected", "value": true}));
        }
        self.patch(PUBLISHING, id, &Value::Array(changes)).await
    }

    /// Takes back what was shown a moment ago.
    async fn hide(&self, id: &str, name: &str) -> Result<(), DestinationError> {
        let mut changes = vec![
            json!({"op": "replace", "path": "/os_hidden", "value": true}),
            json!({"op": "replace", "path": "/name", "value": name}),
        ];
        if self.visibility != "private" {
            changes.push(json!({"op": "replace", "path": "/visibility", "value": "private"}));
        }
        if self.protected {
            changes.push(json!({"op": "replace", "path": "/protected", "value": false}));
        }
        self.patch(PUBLISHING, id, &Value::Array(changes)).await.map(drop)
    }

    async fn give_up(&self, image: &str, claim: &Claim) -> Result<(), DestinationError> {
        for upload in self.uploads(image, claim).await? {
            self.delete(&upload.id).await?;
        }
        Ok(())
    }

    async fn take(&self, found: &Found, name: &str, cluster: &str) -> Result<Removal, DestinationError> {
        let hide = json!([
            {"op": "replace", "path": "/os_hidden", "value": true},
            {"op": "replace", "path": "/name", "value": format!("{name}{REMOVING_NAME}")},
        ]);
        // Of several who leave at once each may be here.
        let Some(hidden) = self.patch_if_there(REMOVING, &found.id, &hide).await? else { return Ok(Removal::Removed) };
        // Whoever comes later sees that it is hidden.
        let now = self.get(&found.id).await?.unwrap_or(hidden);
        let others: Vec<_> = now.users().into_iter().filter(|user| user != cluster).collect();
        if others.is_empty() {
            self.delete(&found.id).await?;
            return Ok(Removal::Removed);
        }
        self.show(&found.id, name, "private", false).await?;
        self.tag(&Method::DELETE, &found.id, cluster).await?;
        Ok(Removal::UsedBy(others))
    }

    /// Ends removals of ours that broke off.
    async fn end_removals(&self, name: &str, digest: &str, cluster: &str) -> Result<bool, DestinationError> {
        let name = format!("{name}{REMOVING_NAME}");
        let mut ended = false;
        for left in self.list(&[("name", &name), ("clusterstack_digest", digest)], true).await? {
            if left.name.as_deref() == Some(&name) && !left.protected && left.users() == [cluster] {
                self.delete(&left.id).await?;
                ended = true;
            }
        }
        Ok(ended)
    }
}

#[async_trait]
impl Destination for Glance {
    fn name(&self) -> String {
        self.place.clone()
    }

    async fn find(&self, name: &str, cancel: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        self.check(name)?;
        until(cancel, async {
            let found = self.ours(name, "one of ours").await?;
            Ok(found.map(|found| self.told(&found, found.digest.as_deref().unwrap_or_default())))
        })
        .await
    }

    async fn upload(
        &self,
        image: &Image,
        file: &Path,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        self.check(&image.name)?;
        let file = Reader::open(file, image).await?.with_sha512();
        until(cancel, self.send(image, file, claim, meter, cancel)).await
    }

    async fn adopt(
        &self,
        image: &Image,
        claim: &Claim,
        earlier: u32,
        cancel: &CancellationToken,
    ) -> Result<bool, DestinationError> {
        self.check(&image.name)?;
        let earlier = Claim { attempt: earlier, ..claim.clone() };
        until(cancel, async {
            let Some(upload) = self.whole_upload(image, &earlier).await? else { return Ok(false) };
            self.hide(&upload.id, &staged(&image.name, claim)).await?;
            Ok(true)
        })
        .await
    }

    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        cancel: &CancellationToken,
    ) -> Result<Published, DestinationError> {
        self.check(&image.name)?;
        until(cancel, self.publish(image, claim)).await
    }

    async fn abandon(&self, image: &str, claim: &Claim, cancel: &CancellationToken) -> Result<(), DestinationError> {
        until(cancel, self.give_up(image, claim)).await
    }

    async fn remove(
        &self,
        image: &str,
        digest: &str,
        cluster: &str,
        dry_run: bool,
        cancel: &CancellationToken,
    ) -> Result<Removal, DestinationError> {
        self.check(image)?;
        until(cancel, async {
            let ended = !dry_run && self.end_removals(image, digest, cluster).await?;
            let named = self.named(image).await?;
            let Some(found) = named.iter().find(|found| is_ours(found, digest, cluster)) else {
                return Ok(match (named.is_empty(), ended) {
                    (false, _) => Removal::Foreign,
                    (true, true) => Removal::Removed,
                    (true, false) => Removal::Absent,
                });
            };
            if found.protected {
                return Ok(Removal::Protected);
            }
            let others: Vec<_> = found.users().into_iter().filter(|user| user != cluster).collect();
            if dry_run {
                return Ok(if others.is_empty() { Removal::Removed } else { Removal::UsedBy(others) });
            }
            if others.is_empty() {
                return self.take(found, image, cluster).await;
            }
            self.tag(&Method::DELETE, &found.id, cluster).await?;
            // Of several who leave at once, the last one to look removes it.
            match self.get(&found.id).await? {
                Some(now) if !now.hidden && now.users().is_empty() => self.take(&now, image, cluster).await,
                _ => Ok(Removal::UsedBy(others)),
            }
        })
        .await
    }
}

impl Glance {
    fn check(&self, name: &str) -> Result<(), DestinationError> {
        naming::as_title(name).map_err(|what| DestinationError::Refused {
            action: PUBLISHING,
            location: self.place.clone(),
            problem: format!("{:?} can't be an image's name there: {what}", cut(name, SPOKEN_NAME)),
        })
    }
}

/// What the service says in an error: JSON, or the text of a page.
fn said(body: &str) -> Option<String> {
    if let Ok(value) = serde_json::from_str::<Value>(body) {
        return value.pointer("/error/message").or(value.get("message")).and_then(Value::as_str).map(ToOwned::to_owned);
    }
    let (_, rest) = body.split_once("</h1>")?;
    let text = rest.split("<br").next()?.trim();
    Some(text.to_owned()).filter(|text| !text.is_empty() && !text.contains('<'))
}
