//! Checks what is there: its digest, and who signed it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::digest::{Sums, blocking, of_file};
use super::download::{client, refused, request};
use super::error::StepError;
use super::{Input, Site};
use crate::core::image::pipeline::Verify;
use crate::core::verification::NotVerified;
use crate::core::verification::file::{LARGEST_SIGNATURE, Signed, verify};
use crate::io::source::http::Redirects;

const ACTION: &str = "downloading the signature";

/// Checks the file that the steps before made.
///
/// # Errors
/// It is another one, or its signature does not count.
pub(super) async fn run(site: &Site<'_>, wanted: &Verify, input: &Input) -> Result<(), StepError> {
    let size = input.size()?;
    let gauge = site.watch.gauge().clone();
    let seen = move |done| gauge.set(done, Some(size));
    let sums = Sums::for_checksum(wanted.checksum.as_ref());
    let (sums, _) = of_file(input.path.clone(), sums, site.cancel, seen).await?;
    if sums.digest() != input.digest {
        return Err(StepError::transient(format!(
            "{} changed since it was made; it is made anew",
            input.path.display()
        )));
    }
    if let Some(checksum) = &wanted.checksum
        && let Some(found) = sums.differs(checksum)
    {
        let wanted = String::from(checksum.clone());
        input.forget()?;
        return Err(StepError::hopeless(format!(
            "the file has another checksum ({found} instead of {wanted}): correct the list of images, or what it names"
        )));
    }
    if let Some(url) = &wanted.signature {
        let signature = signature(site, url).await?;
        let sha256 = sums.digest().trim_start_matches("sha256:").to_owned();
        let signer = check(site, input, sha256, signature).await?;
        site.watch.line(format!("signed by {signer}").as_bytes());
    }
    Ok(())
}

async fn signature(site: &Site<'_>, url: &Url) -> Result<Vec<u8>, StepError> {
    let http = client(site.settings)?;
    let asked = request(&http, site.settings, url).build();
    let asked = asked.map_err(|error| StepError::hopeless(error.to_string()))?;
    let fetched = async {
        let response = http.send(ACTION, asked, Redirects::Anywhere).await?;
        if response.status() != StatusCode::OK {
            return Err(refused(url, response.status()));
        }
        Ok(http.body(ACTION, response, LARGEST_SIGNATURE).await?.to_vec())
    };
    tokio::select! {
        () = site.cancel.cancelled() => Err(StepError::cancelled()),
        fetched = fetched => fetched,
    }
}

async fn check(site: &Site<'_>, input: &Input, sha256: String, signature: Vec<u8>) -> Result<String, StepError> {
    let (keys, path) = (site.settings.keys.clone(), input.path.clone());
    if keys.0.is_empty() {
        return Err(StepError::hopeless(
            "the signature can't be checked, for there are no keys: name a Secret with them in build.keysSecretRef of the provider's template",
        ));
    }
    let what = path.file_name().map_or_else(|| "the file".to_owned(), |name| name.to_string_lossy().into_owned());
    let judged = blocking(site.cancel, move |cancel| {
        let broken = AtomicBool::new(false);
        let open = || -> Box<dyn Read + '_> {
            let Ok(file) = File::open(&path) else {
                broken.store(true, Ordering::Relaxed);
                return Box::new(io::empty());
            };
            Box::new(BufReader::with_capacity(1 << 20, Watched { file, cancel, broken: &broken }))
        };
        let signed = Signed { what: &what, sha256: &sha256, open: &open };
        let judged = verify(&keys, &signed, &signature, Timestamp::now());
        if cancel.is_cancelled() {
            return Err(StepError::cancelled());
        }
        if broken.load(Ordering::Relaxed) {
            return Err(StepError::transient(format!("reading {what} failed; it is tried again")));
        }
        Ok(judged)
    })
    .await?;
    if matches!(judged, Err(NotVerified::Invalid { .. })) {
        input.forget()?;
    }
    let hint = "its keys are those of build.keysSecretRef of the provider's template";
    judged.map(|signer| signer.0).map_err(|error| StepError::hopeless(format!("{error}; {hint}")))
}

/// A file whose reading ends early when the step is cancelled.
struct Watched<'f> {
    file: File,
    cancel: &'f CancellationToken,
    broken: &'f AtomicBool,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.file.read(buffer).inspect_err(|_| self.broken.store(true, Ordering::Relaxed))
    }
}
