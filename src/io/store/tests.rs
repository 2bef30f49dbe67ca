use super::*;

async fn store(limit: u64) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store"), limit).await.unwrap();
    (directory, store)
}

fn age(path: &Path, by: Duration) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

fn names(store: &Store) -> Vec<String> {
    let entries = fs::read_dir(&store.inner.directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn what_is_put_can_be_got_also_by_another_process() {
    let (_directory, store) = store(100).await;
    let digest = store.put(Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!(digest.to_string(), "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    assert_eq!(digest.to_string().parse(), Ok(digest));
    assert_eq!(store.put(Bytes::from_static(b"hello")).await.unwrap(), digest);
    let other = Store::open(store.inner.directory.clone(), 100).await.unwrap();
    assert_eq!(other.get(&digest).await.unwrap().unwrap(), "hello");
    assert_eq!(other.get(&Digest::of(b"other")).await.unwrap(), None);
    assert_eq!(names(&store).len(), 1);
}

#[tokio::test]
async fn a_damaged_entry_is_removed_and_can_be_put_again() {
    for damage in [&b""[..], b"hell", b"jello", b"hello, and more"] {
        let (_directory, store) = store(100).await;
        let digest = store.put(Bytes::from_static(b"hello")).await.unwrap();
        fs::write(store.inner.entry(digest), damage).unwrap();
        assert_eq!(store.get(&digest).await.unwrap(), None);
        assert_eq!(names(&store), Vec::<String>::new());
        store.put(Bytes::from_static(b"hello")).await.unwrap();
        fs::write(store.inner.entry(digest), damage).unwrap();
        store.put(Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(store.get(&digest).await.unwrap().unwrap(), "hello");
    }
}

#[tokio::test]
async fn what_lies_beside_the_store_counts_up_to_half_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let beside = directory.path().join("beside");
    let store = Store::open_beside(directory.path().join("store"), 12, Some(beside.clone())).await.unwrap();
    let put = async |text: &'static str| store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
    put("aaaa").await;
    put("bbbb").await;
    put("cccc").await;
    assert_eq!(names(&store).len(), 3);
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("part"), "dddd").unwrap();
    put("eeee").await;
    assert_eq!(names(&store).len(), 2);
    fs::write(beside.join("part"), "more than the store has room for").unwrap();
    put("ffff").await;
    assert_eq!(names(&store).len(), 1);
    fs::remove_file(beside.join("part")).unwrap();
    put("aaaa").await;
    put("bbbb").await;
    assert_eq!(names(&store).len(), 3);
}

#[tokio::test]
async fn what_was_used_least_goes_first() {
    let (_directory, store) = store(10).await;
    let mut digests = Vec::new();
    for (text, minutes) in [("aaaa", 3), ("bbbb", 2)] {
        let digest = store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
        age(&store.inner.entry(digest), Duration::from_mins(minutes));
        digests.push(digest);
    }
    assert!(store.get(&digests[0]).await.unwrap().is_some());
    let third = store.put(Bytes::from_static(b"cccc")).await.unwrap();
    assert!(store.get(&digests[0]).await.unwrap().is_some());
    assert_eq!(store.get(&digests[1]).await.unwrap(), None);
    assert!(store.get(&third).await.unwrap().is_some());
    assert!(matches!(store.put(Bytes::from(vec![0; 11])).await, Err(StoreError::TooLarge { size: 11, limit: 10 })));
}

#[tokio::test]
async fn left_over_files_go_and_those_being_written_stay() {
    let (_directory, store) = store(100).await;
    let path = |name: &str| store.inner.directory.join(name);
    for name in ["tmp-old", "tmp-new", "tmp-locked", "notes.txt"] {
        fs::write(path(name), "x").unwrap();
    }
    age(&path("tmp-old"), Duration::from_mins(2));
    age(&path("tmp-locked"), Duration::from_mins(2));
    let writer = File::open(path("tmp-locked")).unwrap();
    writer.lock().unwrap();
    Store::open(store.inner.directory.clone(), 100).await.unwrap();
    let mut names = names(&store);
    names.sort();
    assert_eq!(names, ["notes.txt", "tmp-locked", "tmp-new"]);
}

#[tokio::test]
async fn many_writers_and_readers_of_two_stores_get_along() {
    let (_directory, first) = store(400).await;
    let second = Store::open(first.inner.directory.clone(), 400).await.unwrap();
    let work = (0..200u8).map(|n| {
        let store = if n % 2 == 0 { first.clone() } else { second.clone() };
        async move {
            let bytes = Bytes::from(vec![n / 8; 40]);
            let digest = store.put(bytes.clone()).await.unwrap();
            assert!(store.get(&digest).await.unwrap().is_none_or(|got| got == bytes));
        }
    });
    futures::future::join_all(work).await;
    assert!(names(&first).iter().all(|name| name.len() == 64));
}

#[test]
fn what_is_no_digest_is_refused() {
    let good = Digest::of(b"x").to_string();
    for text in ["", "sha256:", "sha512:00", &good[..70], &good.to_uppercase(), &good.replace(':', "/../")] {
        assert!(text.parse::<Digest>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn what_is_in_use_goes_last_however_old_it_is() {
    let (_directory, store) = store(12).await;
    let mut digests = Vec::new();
    for (text, minutes) in [("aaaa", 30), ("bbbb", 20), ("cccc", 10)] {
        let digest = store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
        age(&store.inner.entry(digest), Duration::from_mins(minutes));
        digests.push(digest);
    }
    let in_use = HashSet::from([digests[0], digests[2]]);
    store.put_beside(Bytes::from_static(b"dddd"), in_use.clone()).await.unwrap();
    assert_eq!(names(&store).len(), 3);
    assert_eq!(store.get(&digests[1]).await.unwrap(), None);
    // All the room is needed: then the oldest of those in use goes, for it can be fetched again.
    age(&store.inner.entry(digests[0]), Duration::from_mins(30));
    let large = store.put_beside(Bytes::from_static(b"eeeeeeee"), in_use).await.unwrap();
    assert!(store.get(&large).await.unwrap().is_some());
    assert_eq!(store.get(&digests[0]).await.unwrap(), None);
    assert!(store.get(&digests[2]).await.unwrap().is_some());
}

#[tokio::test]
async fn use_without_a_read_counts_too() {
    let (_directory, store) = store(8).await;
    let mut digests = Vec::new();
    for (text, minutes) in [("aaaa", 30), ("bbbb", 20)] {
        let digest = store.put(Bytes::from_static(text.as_bytes())).await.unwrap();
        age(&store.inner.entry(digest), Duration::from_mins(minutes));
        digests.push(digest);
    }
    store.used(&digests[0]).await;
    store.used(&Digest::of(b"not there")).await;
    store.put(Bytes::from_static(b"cccc")).await.unwrap();
    assert!(store.get(&digests[0]).await.unwrap().is_some());
    assert_eq!(store.get(&digests[1]).await.unwrap(), None);
}

#[tokio::test]
async fn a_directory_that_is_lost_is_made_again() {
    let (_directory, store) = store(100).await;
    let digest = store.put(Bytes::from_static(b"hello")).await.unwrap();
    fs::remove_dir_all(&store.inner.directory).unwrap();
    assert_eq!(store.get(&digest).await.unwrap(), None);
    assert_eq!(store.put(Bytes::from_static(b"hello")).await.unwrap(), digest);
    assert_eq!(store.get(&digest).await.unwrap().unwrap(), "hello");
    fs::remove_dir_all(&store.inner.directory).unwrap();
    fs::write(&store.inner.directory, "no directory").unwrap();
    let error = store.put(Bytes::from_static(b"hello")).await.unwrap_err().to_string();
    assert!(error.contains("check the volume of --release-dir"), "{error}");
}

#[tokio::test]
async fn one_flipped_bit_is_found() {
    let (_directory, store) = store(1000).await;
    let bytes: Vec<u8> = (0..=255).collect();
    for bit in (0..256 * 8).step_by(97) {
        let digest = store.put(Bytes::from(bytes.clone())).await.unwrap();
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(store.inner.entry(digest), damaged).unwrap();
        assert_eq!(store.get(&digest).await.unwrap(), None, "bit {bit}");
    }
}

const CHILD: &str = "CLUSTERSTACK_TEST_STORE";

/// Runs one of these tests in another process, which finds the store's directory in [`CHILD`].
fn child(test: &str, directory: &Path, shell: &str) -> std::process::Child {
    std::process::Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" --exact io::store::tests::{test}")])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, directory)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn two_processes_share_a_small_directory() {
    let work = async |store: Store| {
        for n in 0..150_u8 {
            let bytes = Bytes::from(vec![n % 20; 100]);
            let digest = store.put(bytes.clone()).await.unwrap();
            assert!(store.get(&digest).await.unwrap().is_none_or(|got| got == bytes));
            if n % 10 == 0 {
                fs::write(store.inner.entry(digest), "damage").unwrap();
            }
        }
    };
    if let Some(directory) = std::env::var_os(CHILD) {
        work(Store::open(directory.into(), 1000).await.unwrap()).await;
        return;
    }
    let (_directory, store) = store(1000).await;
    let mut other = child("two_processes_share_a_small_directory", &store.inner.directory, "");
    work(store.clone()).await;
    assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap().success());
    store.put(Bytes::from_static(b"the last one")).await.unwrap();
    let left = store.inner.found(|_| true).unwrap();
    assert!(left.iter().map(|found| found.size).sum::<u64>() <= 1000, "{} left", left.len());
    assert!(names(&store).iter().all(|name| name.len() == 64), "{:?}", names(&store));
}

#[tokio::test]
async fn a_full_disk_is_said_so_and_leaves_nothing_behind() {
    if let Some(directory) = std::env::var_os(CHILD) {
        let store = Store::open(directory.into(), 1 << 20).await.unwrap();
        let error = store.put(Bytes::from(vec![1; 1 << 16])).await.unwrap_err().to_string();
        assert!(error.contains("check the volume of --release-dir: its space"), "{error}");
        assert_eq!(names(&store), Vec::<String>::new());
        let small = store.put(Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(store.get(&small).await.unwrap().unwrap(), "hello");
        return;
    }
    let (_directory, store) = store(1 << 20).await;
    // No file may be longer than some KiB there, as on a disk that is full.
    let limited = "trap '' XFSZ; ulimit -f 8;";
    let mut other = child("a_full_disk_is_said_so_and_leaves_nothing_behind", &store.inner.directory, limited);
    assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap().success());
    assert_eq!(names(&store).len(), 1);
}
