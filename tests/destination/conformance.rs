//! What every destination has to do.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use clusterstack::io::image::destination::{Claim, Destination, DestinationError, Image, Meter, Published, Removal};
use serde_json::Map;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::wire::Wire;

/// A server, and how to look behind the destination's back.
#[async_trait]
pub trait World: Send + Sync {
    /// Opens the destination.
    fn open(&self) -> Arc<dyn Destination>;
    /// The same with credentials that are wrong, and a word that must not be shown.
    fn open_wrong(&self) -> Option<(Arc<dyn Destination>, &'static str)>;
    /// What is between.
    fn wire(&self) -> Option<&Wire>;
    /// The published bytes.
    async fn content(&self, image: &Published) -> Vec<u8>;
    /// Brings something there that is not ours.
    async fn bring(&self, name: &str);
    /// Whether that is still there.
    async fn has_brought(&self, name: &str) -> bool;
    /// Protects an image.
    async fn protect(&self, name: &str);
    /// Names of what is half-made.
    async fn litter(&self) -> Vec<String>;
    /// Whether an upload goes on where it broke off.
    fn resumes(&self) -> bool;
    /// Whether an attempt takes over what another one uploaded.
    fn adopts(&self) -> bool {
        true
    }
    /// Whether uploads are the same for all attempts.
    fn shares_uploads(&self) -> bool {
        false
    }
    /// Whether the server can be told to write only what nobody changed meanwhile.
    fn has_conditions(&self) -> bool {
        true
    }
}

/// Bytes of an image that takes several requests.
const LARGE: usize = 40 << 20;
const OURS: &str = "0a0a0a0a-0000-4000-8000-000000000001";
const THEIRS: &str = "0b0b0b0b-0000-4000-8000-000000000002";

/// An image's file.
struct Made {
    image: Image,
    path: PathBuf,
    bytes: Vec<u8>,
    _directory: TempDir,
}

fn made(name: &str, seed: u64, length: usize) -> Made {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let bytes: Vec<u8> = std::iter::repeat_with(next).flatten().take(length).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.raw");
    std::fs::write(&path, &bytes).unwrap();
    let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let image = Image {
        name: name.to_owned(),
        digest: format!("sha256:{digest}"),
        size: bytes.len() as u64,
        format: "raw".to_owned(),
        properties: Map::from_iter([("os_distro".to_owned(), "ubuntu".into())]),
        origins: Vec::new(),
    };
    Made { image, path, bytes, _directory: directory }
}

fn claim(object: &str, attempt: u32, cluster: &str) -> Claim {
    Claim { object: object.to_owned(), attempt, cluster: cluster.to_owned() }
}

/// Counts, and cancels where it is told to.
#[derive(Default)]
struct Counter {
    done: AtomicU64,
    cancel_at: Option<(u64, CancellationToken)>,
}

impl Meter for Counter {
    fn done(&self, done: u64) {
        let before = self.done.swap(done, Ordering::SeqCst);
        assert!(done >= before, "{done} after {before}");
        if let Some((at, cancel)) = &self.cancel_at
            && done >= *at
        {
            cancel.cancel();
        }
    }
}

fn never() -> CancellationToken {
    CancellationToken::new()
}

async fn upload(to: &dyn Destination, made: &Made, claim: &Claim) -> Result<(), DestinationError> {
    let counter = Counter::default();
    to.upload(&made.image, &made.path, claim, &counter, &never()).await?;
    assert_eq!(counter.done.load(Ordering::SeqCst), made.image.size);
    Ok(())
}

async fn publish(to: &dyn Destination, made: &Made, claim: &Claim) -> Result<Published, DestinationError> {
    upload(to, made, claim).await?;
    to.register(&made.image, claim, &never()).await
}

/// Does it again while the error is one that passes: others work on the same image, a connection of before ends.
async fn tried_again<T>(doing: impl AsyncFn() -> Result<T, DestinationError>) -> Result<T, DestinationError> {
    let mut result = doing().await;
    for _ in 0..10 {
        if !result.as_ref().is_err_and(DestinationError::is_transient) {
            break;
        }
        result = doing().await;
    }
    result
}

async fn find(to: &dyn Destination, name: &str) -> Option<Published> {
    to.find(name, &never()).await.unwrap()
}

async fn remove(to: &dyn Destination, image: &Image, cluster: &str, dry_run: bool) -> Removal {
    to.remove(&image.name, &image.digest, cluster, dry_run, &never()).await.unwrap()
}

/// Everything, one after the other.
pub async fn conforms(world: &dyn World) {
    an_image_is_published_by_one_step(world).await;
    one_that_is_there_is_taken_as_it_is(world).await;
    another_image_of_the_name_is_a_conflict(world).await;
    the_last_user_removes_it(world).await;
    if world.has_conditions() {
        many_come_at_once(world).await;
    }
    what_others_brought_is_left_alone(world).await;
    a_protected_image_stays(world).await;
    a_cancelled_upload_leaves_nothing(world).await;
    an_older_attempt_gives_up_its_own_alone(world).await;
    what_an_earlier_attempt_uploaded_is_taken_over(world).await;
    a_file_that_is_not_the_image_is_refused(world).await;
    nothing_is_published_that_was_not_uploaded(world).await;
    names_lead_nowhere_else(world).await;
    if let Some(wire) = world.wire() {
        an_upload_that_broke_off_goes_on(world, wire).await;
        a_server_that_is_down_is_asked_again(world, wire).await;
    }
    if let Some((wrong, secret)) = world.open_wrong() {
        who_is_not_let_in_says_so(&*wrong, secret).await;
    }
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn an_image_is_published_by_one_step(world: &dyn World) {
    let to = world.open();
    let made = made("first-1.0", 1, LARGE);
    let by = claim("object-1", 1, OURS);
    assert_eq!(find(&*to, "first-1.0").await, None);
    upload(&*to, &made, &by).await.unwrap();
    assert_eq!(find(&*to, "first-1.0").await, None, "published by the upload");
    // Once more is as good.
    upload(&*to, &made, &by).await.unwrap();
    let published = to.register(&made.image, &by, &never()).await.unwrap();
    assert_eq!((published.digest.as_str(), &published.users), (made.image.digest.as_str(), &vec![OURS.to_owned()]));
    assert_eq!(find(&*to, "first-1.0").await.as_ref(), Some(&published));
    // As it is for who opens it anew.
    assert_eq!(find(&*world.open(), "first-1.0").await.as_ref(), Some(&published));
    assert!(world.content(&published).await == made.bytes, "other bytes");
    assert_eq!(to.register(&made.image, &by, &never()).await.unwrap(), published);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn one_that_is_there_is_taken_as_it_is(world: &dyn World) {
    let to = world.open();
    let made = made("there", 2, 100_000);
    let first = publish(&*to, &made, &claim("object-1", 1, OURS)).await.unwrap();
    // Without an upload, and with one.
    assert_eq!(to.register(&made.image, &claim("object-2", 1, OURS), &never()).await.unwrap(), first);
    assert_eq!(publish(&*to, &made, &claim("object-3", 7, OURS)).await.unwrap(), first);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn another_image_of_the_name_is_a_conflict(world: &dyn World) {
    let to = world.open();
    let (ours, theirs) = (made("conflict", 3, 100_000), made("conflict", 4, 100_000));
    let published = publish(&*to, &ours, &claim("object-1", 1, OURS)).await.unwrap();
    for cluster in [OURS, THEIRS] {
        let by = claim("object-2", 1, cluster);
        let error = publish(&*to, &theirs, &by).await.unwrap_err();
        assert!(matches!(&error, DestinationError::Conflict { .. }) && !error.is_transient(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&ours.image.digest) && text.contains(&theirs.image.digest), "{text}");
        to.abandon("conflict", &by, &never()).await.unwrap();
    }
    assert_eq!(find(&*to, "conflict").await, Some(published));
    assert_eq!(remove(&*to, &theirs.image, OURS, false).await, Removal::Foreign);
    assert!(find(&*to, "conflict").await.is_some());
}

async fn the_last_user_removes_it(world: &dyn World) {
    let to = world.open();
    let made = made("shared", 5, 100_000);
    assert_eq!(remove(&*to, &made.image, OURS, false).await, Removal::Absent);
    publish(&*to, &made, &claim("object-1", 1, OURS)).await.unwrap();
    let both = publish(&*to, &made, &claim("object-2", 1, THEIRS)).await.unwrap();
    assert_eq!(both.users, [OURS, THEIRS]);
    let by_theirs = Removal::UsedBy(vec![THEIRS.to_owned()]);
    assert_eq!(remove(&*to, &made.image, OURS, true).await, by_theirs);
    assert_eq!(find(&*to, "shared").await.unwrap().users, [OURS, THEIRS]);
    assert_eq!(remove(&*to, &made.image, OURS, false).await, by_theirs);
    assert_eq!(find(&*to, "shared").await.unwrap().users, [THEIRS]);
    assert_eq!(remove(&*to, &made.image, OURS, false).await, Removal::Foreign);
    assert_eq!(remove(&*to, &made.image, THEIRS, true).await, Removal::Removed);
    assert!(world.content(&find(&*to, "shared").await.unwrap()).await == made.bytes, "gone by a dry run");
    assert_eq!(remove(&*to, &made.image, THEIRS, false).await, Removal::Removed);
    assert_eq!(find(&*to, "shared").await, None);
    assert_eq!(remove(&*to, &made.image, THEIRS, false).await, Removal::Absent);
    // It may come again, as another one.
    let other = self::made("shared", 6, 50_000);
    assert_eq!(publish(&*to, &other, &claim("object-1", 2, OURS)).await.unwrap().users, [OURS]);
}

async fn many_come_at_once(world: &dyn World) {
    let made = made("many", 7, 100_000);
    let clusters: Vec<_> = (0..6).map(|n| format!("0c0c0c0c-0000-4000-8000-00000000000{n}")).collect();
    let all = futures::future::join_all(clusters.iter().map(|cluster| {
        let (to, made) = (world.open(), &made);
        async move {
            let by = claim(&format!("object-{cluster}"), 1, cluster);
            tried_again(async || publish(&*to, made, &by).await).await
        }
    }));
    for published in all.await {
        assert_eq!(published.unwrap().digest, made.image.digest);
    }
    let to = world.open();
    assert_eq!(find(&*to, "many").await.unwrap().users, clusters);
    let gone = futures::future::join_all(clusters.iter().map(|cluster| {
        let (to, image) = (world.open(), &made.image);
        async move { remove(&*to, image, cluster, false).await }
    }));
    let told = gone.await;
    let gone = |removal: &Removal| matches!(removal, Removal::Removed | Removal::UsedBy(_) | Removal::Absent);
    assert!(told.contains(&Removal::Removed) && told.iter().all(gone), "{told:?}");
    assert_eq!(find(&*to, "many").await, None);
}

async fn what_others_brought_is_left_alone(world: &dyn World) {
    let to = world.open();
    let made = made("brought", 8, 100_000);
    world.bring("brought").await;
    let error = to.find("brought", &never()).await.unwrap_err();
    assert!(matches!(error, DestinationError::Conflict { .. }), "{error}");
    let by = claim("object-1", 1, OURS);
    let error = publish(&*to, &made, &by).await.unwrap_err();
    assert!(matches!(error, DestinationError::Conflict { .. }), "{error}");
    to.abandon("brought", &by, &never()).await.unwrap();
    for dry_run in [true, false] {
        assert_eq!(remove(&*to, &made.image, OURS, dry_run).await, Removal::Foreign);
    }
    assert!(world.has_brought("brought").await);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn a_protected_image_stays(world: &dyn World) {
    let to = world.open();
    let made = made("protected-image", 9, 100_000);
    publish(&*to, &made, &claim("object-1", 1, OURS)).await.unwrap();
    world.protect("protected-image").await;
    assert_eq!(remove(&*to, &made.image, OURS, false).await, Removal::Protected);
    assert!(world.content(&find(&*to, "protected-image").await.unwrap()).await == made.bytes);
}

async fn a_cancelled_upload_leaves_nothing(world: &dyn World) {
    let to = world.open();
    let made = made("cancelled", 10, LARGE);
    let by = claim("object-1", 1, OURS);
    let cancel = never();
    let counter = Counter { cancel_at: Some((made.image.size / 3, cancel.clone())), ..Counter::default() };
    let error = to.upload(&made.image, &made.path, &by, &counter, &cancel).await.unwrap_err();
    assert!(matches!(error, DestinationError::Cancelled), "{error}");
    assert!(counter.done.load(Ordering::SeqCst) < made.image.size);
    assert_eq!(find(&*to, "cancelled").await, None);
    let error = to.register(&made.image, &by, &never()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(find(&*to, "cancelled").await, None);
    to.abandon("cancelled", &by, &never()).await.unwrap();
    assert_eq!(world.litter().await, Vec::<String>::new());
    // Nothing there is as good.
    to.abandon("cancelled", &by, &never()).await.unwrap();
}

/// Where publishing hangs: it is given up at once, and nothing is left.
pub async fn gives_up_publishing(world: &dyn World) {
    let (to, cancel) = (world.open(), never());
    let (made, by) = (made("hangs", 12, 100_000), claim("object-1", 1, OURS));
    upload(&*to, &made, &by).await.unwrap();
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        cancel.cancel();
    };
    let (published, ()) = tokio::join!(to.register(&made.image, &by, &cancel), later);
    assert!(matches!(published, Err(DestinationError::Cancelled)), "{published:?}");
    to.abandon("hangs", &by, &never()).await.unwrap();
    assert_eq!(find(&*to, "hangs").await, None);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn an_older_attempt_gives_up_its_own_alone(world: &dyn World) {
    let to = world.open();
    let made = made("attempts", 11, 100_000);
    for attempt in 1..=3 {
        upload(&*to, &made, &claim("object-1", attempt, OURS)).await.unwrap();
    }
    upload(&*to, &made, &claim("object-2", 1, OURS)).await.unwrap();
    to.abandon("attempts", &claim("object-1", 2, OURS), &never()).await.unwrap();
    to.register(&made.image, &claim("object-1", 3, OURS), &never()).await.unwrap();
    // Giving up later takes nothing away that is published.
    to.abandon("attempts", &claim("object-1", 4, OURS), &never()).await.unwrap();
    to.abandon("attempts", &claim("object-2", 1, OURS), &never()).await.unwrap();
    assert!(world.content(&find(&*to, "attempts").await.unwrap()).await == made.bytes);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn what_an_earlier_attempt_uploaded_is_taken_over(world: &dyn World) {
    let to = world.open();
    let made = made("adopted", 17, 100_000);
    let adopt = async |attempt, earlier| {
        to.adopt(&made.image, &claim("object-1", attempt, OURS), earlier, &never()).await.unwrap()
    };
    assert!(!adopt(2, 1).await, "nothing was uploaded");
    upload(&*to, &made, &claim("object-1", 1, OURS)).await.unwrap();
    let now = claim("object-1", 2, OURS);
    if adopt(2, 1).await {
        // The attempt that it was taken from publishes nothing, where uploads belong to attempts.
        assert!(!adopt(3, 1).await || world.shares_uploads());
        to.register(&made.image, &now, &never()).await.unwrap();
        assert!(world.adopts());
    } else {
        assert!(!world.adopts());
        publish(&*to, &made, &now).await.unwrap();
    }
    assert!(world.content(&find(&*to, "adopted").await.unwrap()).await == made.bytes);
    to.abandon("adopted", &now, &never()).await.unwrap();
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn a_file_that_is_not_the_image_is_refused(world: &dyn World) {
    let to = world.open();
    let by = claim("object-1", 1, OURS);
    let other = |change: fn(&mut Vec<u8>)| {
        let mut made = made("changed", 12, 3 << 20);
        change(&mut made.bytes);
        std::fs::write(&made.path, &made.bytes).unwrap();
        made
    };
    for made in [
        other(|bytes| bytes[0] ^= 1),
        other(|bytes| *bytes.last_mut().unwrap() ^= 1),
        other(|bytes| bytes.truncate(1000)),
        other(|bytes| bytes.push(0)),
    ] {
        let error = to.upload(&made.image, &made.path, &by, &Counter::default(), &never()).await.unwrap_err();
        assert!(matches!(error, DestinationError::File { .. }) && !error.is_transient(), "{error}");
        assert!(to.register(&made.image, &by, &never()).await.is_err());
        assert_eq!(find(&*to, "changed").await, None);
    }
    to.abandon("changed", &by, &never()).await.unwrap();
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn nothing_is_published_that_was_not_uploaded(world: &dyn World) {
    let to = world.open();
    let made = made("nothing", 13, 100_000);
    let by = claim("object-1", 1, OURS);
    let error = to.register(&made.image, &by, &never()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("nothing was uploaded"), "{error}");
    assert_eq!(find(&*to, "nothing").await, None);
    // And nobody else is kept from it.
    assert_eq!(publish(&*to, &made, &claim("object-2", 1, THEIRS)).await.unwrap().users, [THEIRS]);
}

async fn names_lead_nowhere_else(world: &dyn World) {
    let to = world.open();
    for name in ["", "..", ".hidden", "a\nb", &"x".repeat(200)] {
        let error = to.find(name, &never()).await.unwrap_err();
        assert!(matches!(error, DestinationError::Refused { .. }), "{name:?}: {error}");
    }
}

async fn an_upload_that_broke_off_goes_on(world: &dyn World, wire: &Wire) {
    let to = world.open();
    let made = made("broken-off", 14, LARGE);
    let by = claim("object-1", 1, OURS);
    let (before, size) = (wire.sent(), made.image.size);
    let cancel = never();
    let counter = Counter { cancel_at: Some((size / 3, cancel.clone())), ..Counter::default() };
    assert!(to.upload(&made.image, &made.path, &by, &counter, &cancel).await.is_err());
    let first = wire.sent() - before;
    // Then the connection is cut in the middle.
    wire.cut_after(size / 4);
    let again = upload(&*to, &made, &by).await;
    wire.cut_after(u64::MAX / 2);
    if world.resumes() {
        again.unwrap();
        let all = wire.sent() - before;
        // What was on its way when it was cut goes again: a part, or a chunk, each time.
        assert!(all < size * 2, "{all} bytes sent for {size}, {first} of them at first");
        assert!(first > size / 4, "{first} of {size}");
    } else {
        assert!(again.as_ref().is_err_and(DestinationError::is_transient), "{again:?}");
        upload(&*to, &made, &by).await.unwrap();
    }
    let published = to.register(&made.image, &by, &never()).await.unwrap();
    assert!(world.content(&published).await == made.bytes);
    assert_eq!(world.litter().await, Vec::<String>::new());
}

async fn a_server_that_is_down_is_asked_again(world: &dyn World, wire: &Wire) {
    let to = world.open();
    let made = made("down", 15, 100_000);
    let by = claim("object-1", 1, OURS);
    wire.set_down(true);
    let errors = [
        to.find("down", &never()).await.unwrap_err(),
        to.upload(&made.image, &made.path, &by, &Counter::default(), &never()).await.unwrap_err(),
        to.register(&made.image, &by, &never()).await.unwrap_err(),
        to.remove("down", &made.image.digest, OURS, false, &never()).await.unwrap_err(),
    ];
    wire.set_down(false);
    for error in errors {
        assert!(error.is_transient(), "{error}");
    }
    tried_again(async || publish(&*to, &made, &by).await).await.unwrap();
}

async fn who_is_not_let_in_says_so(to: &dyn Destination, secret: &str) {
    let made = made("refused", 16, 100_000);
    let by = claim("object-1", 1, OURS);
    let (by, never) = (&by, &never());
    let digest = &made.image.digest;
    for error in [
        tried_again(async || to.find("refused", never).await.map(drop)).await,
        tried_again(async || to.upload(&made.image, &made.path, by, &Counter::default(), never).await).await,
        tried_again(async || to.register(&made.image, by, never).await.map(drop)).await,
        tried_again(async || to.remove("refused", digest, OURS, false, never).await.map(drop)).await,
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, DestinationError::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(!text.contains(secret) && !text.contains("Signature="), "{text}");
    }
}
