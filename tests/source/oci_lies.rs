//! Registries that lie, break off, are slow or have enough.

use std::time::Duration;

use clusterstack::io::source::{Source, SourceError, Tag};
use clusterstack::io::store::Digest;
use tokio_util::sync::CancellationToken;

use super::oci::{TAG, World};
use super::registry::Lie;

/// Templates large enough to break off in the middle.
fn large() -> String {
    (0..20_000).map(|n| format!("# {n} {}\n", Digest::of(format!("{n}").as_bytes()))).collect()
}

async fn world() -> Option<(World, Tag)> {
    let t = World::new(&[]).await?;
    t.release(TAG, &large()).await;
    let tag = t.resolved(TAG).await.unwrap();
    t.liar.asked();
    Some((t, tag))
}

fn ranges(t: &World) -> Vec<String> {
    t.liar.asked().into_iter().filter_map(|asked| asked.range).collect()
}

#[tokio::test]
async fn what_is_not_what_was_announced_is_not_used_and_recovers() {
    let Some((t, tag)) = world().await else { return };
    for lie in [Lie::Blob, Lie::LongBlob, Lie::Manifest] {
        t.liar.set(lie.clone());
        let error = t.fetch(&tag).await.unwrap_err();
        assert!(matches!(error, SourceError::Damaged { .. }), "{lie:?}: {error}");
        assert!(error.is_transient());
        t.liar.set(Lie::None);
        t.fetch(&tag).await.unwrap();
    }
}

#[tokio::test]
async fn a_digest_that_the_registry_makes_up_is_found_out() {
    let Some((t, tag)) = world().await else { return };
    let other = Digest::of(b"other").to_string();
    t.liar.set(Lie::Digest(other.clone()));
    let lied = t.resolved(TAG).await.unwrap();
    assert_eq!(lied.revision, other);
    let error = t.fetch(&lied).await.unwrap_err();
    assert!(matches!(error, SourceError::Damaged { .. }), "{error}");
    t.liar.set(Lie::None);
    let error = t.fetch(&lied).await.unwrap_err();
    assert!(matches!(&error, SourceError::TagMoved { found, .. } if *found == tag.revision), "{error}");
}

#[tokio::test]
async fn a_tag_that_moves_does_not_change_what_was_listed() {
    let Some((t, tag)) = world().await else { return };
    t.release(TAG, "moved: true").await;
    let fetched = t.fetch(&tag).await.unwrap();
    assert_eq!(fetched.revision, tag.revision);
    assert_eq!(fetched.files["cluster-class/templates/objects.yaml"], large());
    assert_ne!(t.resolved(TAG).await.unwrap().revision, tag.revision);
}

#[tokio::test]
async fn a_blob_that_breaks_off_goes_on_where_it_ended() {
    let Some((t, tag)) = world().await else { return };
    t.liar.set(Lie::Cut(600_000));
    let fetched = t.fetch(&tag).await.unwrap();
    assert_eq!(fetched.files["cluster-class/templates/objects.yaml"], large());
    let ranges = ranges(&t);
    assert!(ranges.len() > 1 && ranges[0] != ranges[1], "{ranges:?}");
}

#[tokio::test]
async fn a_blob_that_never_gets_further_is_given_up() {
    let Some((t, tag)) = world().await else { return };
    t.liar.set(Lie::Cut(0));
    let error = t.fetch(&tag).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    assert!(t.liar.asked().len() < 10);
}

/// Begins a download and drops it when some of it is there.
async fn begun(t: &World, tag: &Tag) -> std::path::PathBuf {
    t.liar.set(Lie::Stall(500_000));
    let part = || {
        let entry = std::fs::read_dir(t.scratch()).ok()?.flatten().next()?;
        entry.metadata().is_ok_and(|data| data.len() == 500_000).then(|| entry.path())
    };
    let wait = async {
        loop {
            if let Some(part) = part() {
                return part;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let part = tokio::select! {
        fetched = t.fetch(tag) => panic!("{fetched:?}"),
        part = wait => part,
    };
    t.liar.set(Lie::None);
    t.liar.asked();
    part
}

#[tokio::test]
async fn a_download_that_was_dropped_goes_on_where_it_ended() {
    let Some((t, tag)) = world().await else { return };
    begun(&t, &tag).await;
    t.fetch(&tag).await.unwrap();
    assert_eq!(ranges(&t), ["bytes=500000-"]);
    assert_eq!(std::fs::read_dir(t.scratch()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_part_that_was_damaged_is_thrown_away() {
    let Some((t, tag)) = world().await else { return };
    for damage in [vec![7; 500_000], vec![7; 50_000_000]] {
        let part = begun(&t, &tag).await;
        std::fs::write(&part, damage).unwrap();
        t.fetch(&tag).await.unwrap();
        assert_eq!(std::fs::read_dir(t.scratch()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_registry_without_ranges_or_with_wrong_ones_is_read_from_the_beginning() {
    let Some((t, tag)) = world().await else { return };
    for lie in [Lie::NoRange, Lie::OtherRange] {
        begun(&t, &tag).await;
        t.liar.set(lie);
        t.fetch(&tag).await.unwrap();
    }
}

#[tokio::test]
async fn two_downloads_of_one_blob_wait_for_each_other() {
    let Some((t, tag)) = world().await else { return };
    let (one, two) = tokio::join!(t.fetch(&tag), t.fetch(&tag));
    assert_eq!(one.unwrap(), two.unwrap());
}

#[tokio::test]
async fn refusals_have_names() {
    let Some((t, tag)) = world().await else { return };
    let list = async |status: u16, header: &'static str, value: &str| {
        t.liar.set(Lie::Status(status, header, value.to_owned()));
        t.source().list(&CancellationToken::new()).await.unwrap_err()
    };
    let error = list(429, "retry-after", "17").await;
    let SourceError::RateLimited { after, .. } = &error else { panic!("{error}") };
    assert_eq!(*after, Duration::from_secs(17));
    assert!(error.to_string().contains("; wait until 2"), "{error}");
    let error = list(503, "retry-after", "17").await;
    assert!(matches!(&error, SourceError::RateLimited { after, .. } if after.as_secs() == 17), "{error}");
    assert!(error.to_string().contains("; wait until 2"), "{error}");
    assert!(matches!(list(503, "x", "").await, SourceError::Unreachable { .. }));
    assert!(matches!(list(403, "x", "").await, SourceError::Unauthorized { .. }));
    assert!(matches!(list(401, "x", "").await, SourceError::Unauthorized { .. }));
    assert!(matches!(list(404, "x", "").await, SourceError::NoRepository { .. }));
    assert!(matches!(list(500, "x", "").await, SourceError::Unreachable { .. }));
    assert!(matches!(list(200, "x", "").await, SourceError::Unreachable { .. }));
    t.liar.set(Lie::Status(429, "retry-after", "3".to_owned()));
    assert!(matches!(t.fetch(&tag).await, Err(SourceError::RateLimited { .. })));
}

#[tokio::test]
async fn a_page_for_people_is_no_answer_of_a_registry() {
    let Some((t, tag)) = world().await else { return };
    let page = "an HTML page, as a proxy or a login page answers";
    t.liar.set(Lie::Status(200, "content-type", "text/html".to_owned()));
    for error in [t.source().list(&CancellationToken::new()).await.unwrap_err(), t.fetch(&tag).await.unwrap_err()] {
        assert!(matches!(error, SourceError::Unreachable { .. }) && error.to_string().contains(page), "{error}");
    }
    t.liar.set(Lie::Page("<html>welcome to the guest network".to_owned(), "<x>; rel=\"last\"".to_owned()));
    let error = t.source().list(&CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }) && error.to_string().contains(page), "{error}");
}

#[tokio::test]
async fn pages_that_never_end_are_given_up() {
    let Some((t, _)) = world().await else { return };
    let link = r#"</v2/stacks/scs/tags/list?last=x>; rel="next""#;
    t.liar.set(Lie::Page(r#"{"tags": ["a"]}"#.to_owned(), link.to_owned()));
    let error = t.source().list(&CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("the same again"), "{error}");
}

#[tokio::test]
async fn the_quota_is_told() {
    let Some((t, _)) = world().await else { return };
    let source = t.source();
    source.list(&CancellationToken::new()).await.unwrap();
    assert_eq!(source.quota(), None);
    t.liar.set(Lie::Quota("100;w=21600", "76;w=21600"));
    source.list(&CancellationToken::new()).await.unwrap();
    let quota = source.quota().unwrap();
    assert_eq!((quota.limit, quota.remaining), (100, 76));
}

#[tokio::test]
async fn a_slow_registry_is_waited_for_until_it_is_called_off() {
    let Some((t, tag)) = world().await else { return };
    t.liar.set(Lie::Slow(Duration::from_millis(300)));
    t.fetch(&tag).await.unwrap();
    t.liar.set(Lie::Slow(Duration::from_secs(600)));
    let cancel = CancellationToken::new();
    let source = t.source();
    let (result, ()) = tokio::join!(source.list(&cancel), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    assert!(matches!(result, Err(SourceError::Cancelled { .. })), "{result:?}");
}
