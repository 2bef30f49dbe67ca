//! A destination in memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use async_trait::async_trait;
use clusterstack::io::image::destination::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use tokio_util::sync::CancellationToken;

/// What is known of an image, and its file.
type Brought = (Image, Vec<u8>);

#[derive(Default)]
pub struct Shelf {
    pub uploaded: Mutex<BTreeMap<(String, u32), Brought>>,
    pub published: Mutex<BTreeMap<String, Brought>>,
    /// Uploads that were done.
    pub uploads: Mutex<usize>,
    /// An upload waits until it is cancelled.
    pub stalls: Mutex<bool>,
    /// It does not answer.
    pub is_down: Mutex<bool>,
}

impl Shelf {
    fn answer(&self) -> Result<(), DestinationError> {
        if *self.is_down.lock().unwrap() {
            let (location, problem) = ("shelf".to_owned(), "it is down".to_owned());
            return Err(DestinationError::Unreachable { action: "asking", location, problem });
        }
        Ok(())
    }
}

#[async_trait]
impl Destination for Shelf {
    fn name(&self) -> String {
        "shelf".to_owned()
    }

    async fn find(&self, name: &str, _: &CancellationToken) -> Result<Option<Published>, DestinationError> {
        self.answer()?;
        let published = self.published.lock().unwrap();
        let found = published.get(name).map(|(image, _)| Published {
            location: name.to_owned(),
            digest: image.digest.clone(),
            users: vec!["cluster".to_owned()],
        });
        Ok(found)
    }

    async fn upload(
        &self,
        image: &Image,
        file: &Path,
        claim: &Claim,
        meter: &dyn Meter,
        cancel: &CancellationToken,
    ) -> Result<(), DestinationError> {
        self.answer()?;
        let content = std::fs::read(file).unwrap();
        meter.done(content.len() as u64 / 2);
        if *self.stalls.lock().unwrap() {
            cancel.cancelled().await;
            return Err(DestinationError::Cancelled);
        }
        assert_eq!(image.digest, format!("sha256:{}", super::sha256(&content)));
        assert_eq!(image.size, content.len() as u64);
        meter.done(content.len() as u64);
        *self.uploads.lock().unwrap() += 1;
        self.uploaded.lock().unwrap().insert((claim.object.clone(), claim.attempt), (image.clone(), content));
        Ok(())
    }

    async fn adopt(
        &self,
        _: &Image,
        claim: &Claim,
        earlier: u32,
        _: &CancellationToken,
    ) -> Result<bool, DestinationError> {
        self.answer()?;
        let mut uploaded = self.uploaded.lock().unwrap();
        let brought = uploaded.remove(&(claim.object.clone(), earlier));
        let adopted = brought.is_some();
        uploaded.extend(brought.map(|brought| ((claim.object.clone(), claim.attempt), brought)));
        Ok(adopted)
    }

    async fn register(
        &self,
        image: &Image,
        claim: &Claim,
        _: &CancellationToken,
    ) -> Result<Published, DestinationError> {
        self.answer()?;
        let uploaded = self.uploaded.lock().unwrap().remove(&(claim.object.clone(), claim.attempt));
        let mut published = self.published.lock().unwrap();
        if let Some(uploaded) = uploaded {
            published.insert(image.name.clone(), uploaded);
        }
        let Some((found, _)) = published.get(&image.name) else {
            let (location, problem) = ("shelf".to_owned(), "nothing was uploaded".to_owned());
            return Err(DestinationError::Refused { action: "publishing", location, problem });
        };
        Ok(Published { location: image.name.clone(), digest: found.digest.clone(), users: Vec::new() })
    }

    async fn abandon(&self, _: &str, claim: &Claim, _: &CancellationToken) -> Result<(), DestinationError> {
        self.answer()?;
        let mut uploaded = self.uploaded.lock().unwrap();
        uploaded.retain(|(object, attempt), _| *object != claim.object || *attempt > claim.attempt);
        Ok(())
    }

    async fn remove(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: bool,
        _: &CancellationToken,
    ) -> Result<Removal, DestinationError> {
        Ok(Removal::Absent)
    }
}
