//! The service downloads an image by itself: import method `web-download` of the Image API, version 2.

use std::time::Duration;

use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Url};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::super::web::PATIENCE;
use super::super::{DestinationError, Image, Meter};
use super::requests::image_path;
use super::{Glance, UPLOADING};

/// Pause between two looks at an import, and the longest one: they get longer while it lasts.
const LOOK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How often it is said that an import goes on.
const SAY: Duration = Duration::from_secs(30);
/// How long the service may be out of order while it downloads: one that was started anew may have lost the download.
const OUT_OF_ORDER: Duration = Duration::from_mins(2);

/// How far an import is.
enum Import {
    /// The image has this status.
    GoesOn(String),
    /// What went wrong, if something did.
    Ended(Option<String>),
}

/// A task of the service, as far as we look at it.
#[derive(Deserialize)]
struct ImportTask {
    status: String,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
struct ImportTasks {
    #[serde(default)]
    tasks: Vec<ImportTask>,
}

impl Glance {
    /// Has the service download the file from one origin after the other; whether it has it now, as it has to be. What went
    /// wrong is said in the log: the file can still be sent.
    ///
    /// # Errors
    /// The service does not answer.
    pub(super) async fn import(
        &self,
        id: &str,
        image: &Image,
        sha512: Option<&str>,
        meter: &dyn Meter,
    ) -> Result<bool, DestinationError> {
        for origin in &image.origins {
            meter.says(&format!("{} downloads {origin}", self.place));
            let trouble = match self.begin_import(id, origin).await {
                Ok(()) => self.end_import(id, image, sha512, meter).await?,
                Err(DestinationError::Refused { problem, .. }) => Some(problem),
                Err(error) => return Err(error),
            };
            let Some(trouble) = trouble else { return Ok(true) };
            meter.says(&format!("{} could not download {origin}: {trouble}", self.place));
            let status = self.get(id).await?.map(|found| found.status);
            // One that it gave back can be tried with the next.
            if status.as_deref() != Some("queued") {
                break;
            }
        }
        meter.says("the file is sent instead");
        Ok(false)
    }

    async fn begin_import(&self, id: &str, origin: &Url) -> Result<(), DestinationError> {
        let body = json!({"method": {"name": "web-download", "uri": origin.as_str()}}).to_string();
        let with = |request: RequestBuilder| request.header("content-type", "application/json").body(body.clone());
        let path = format!("{}/import", image_path(id));
        let response = self.ask(UPLOADING, &Method::POST, &path, PATIENCE, with).await?;
        self.success(UPLOADING, response).await.map(drop)
    }

    /// Waits for the end of an import, however long it takes: the step has a deadline. What went wrong, if something did.
    async fn end_import(
        &self,
        id: &str,
        image: &Image,
        sha512: Option<&str>,
        meter: &dyn Meter,
    ) -> Result<Option<String>, DestinationError> {
        let (mut pause, most) = LOOK;
        let (mut said, mut answered) = (Instant::now(), Instant::now());
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(most);
            let status = match self.look(id, image, sha512).await {
                Ok(Import::Ended(trouble)) => return Ok(trouble),
                Ok(Import::GoesOn(status)) => {
                    answered = Instant::now();
                    format!("the image is {status}")
                }
                // What it has downloaded by now would be lost.
                Err(DestinationError::Unreachable { problem, .. }) if answered.elapsed() < OUT_OF_ORDER => problem,
                Err(error) => return Err(error),
            };
            if said.elapsed() >= SAY {
                said = Instant::now();
                meter.says(&format!("{} goes on downloading: {status}", self.place));
            }
        }
    }

    async fn look(&self, id: &str, image: &Image, sha512: Option<&str>) -> Result<Import, DestinationError> {
        let Some(found) = self.get(id).await? else {
            return Ok(Import::Ended(Some("the image is gone".to_owned())));
        };
        let trouble = match found.status.as_str() {
            "active" if found.size != Some(image.size) => {
                let size = found.size.unwrap_or_default();
                Some(format!("it got {size} bytes instead of {}", image.size))
            }
            "active" => match found.is_hashed_as(image, sha512) {
                Some(true) => None,
                Some(false) => Some("what it got is another file".to_owned()),
                None => Some("it tells no hash of what it got".to_owned()),
            },
            "queued" | "importing" | "uploading" | "saving" => match self.failure(id).await? {
                None => return Ok(Import::GoesOn(found.status)),
                trouble => trouble,
            },
            other => Some(format!("the image is {other}")),
        };
        Ok(Import::Ended(trouble))
    }

    /// Why the last import of an image failed.
    async fn failure(&self, id: &str) -> Result<Option<String>, DestinationError> {
        let path = format!("{}/tasks", image_path(id));
        let response = self.ask(UPLOADING, &Method::GET, &path, PATIENCE, |request| request).await?;
        // Before version 2.12 of the API there are none: the status of the image has to do.
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let value = self.json(UPLOADING, response).await?;
        let list: ImportTasks =
            serde_json::from_value(value).map_err(|error| self.nonsense(UPLOADING, &error.to_string()))?;
        let is_over = |task: &ImportTask| task.status == "failure";
        let goes_on = list.tasks.iter().any(|task| !is_over(task) && task.status != "success");
        let last = list.tasks.into_iter().rev().find(is_over).filter(|_| !goes_on);
        Ok(last.map(|task| task.message.filter(|text| !text.is_empty()).unwrap_or_else(|| "the import failed".into())))
    }
}
