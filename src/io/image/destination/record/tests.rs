use super::*;

fn now() -> Timestamp {
    "2026-11-21T11:00:00Z".parse().unwrap()
}

fn image(digest: &str) -> Image {
    Image {
        name: "ubuntu".into(),
        digest: digest.into(),
        size: 7,
        format: "raw".into(),
        properties: Map::new(),
        origins: vec![],
    }
}

fn claim(object: &str, attempt: u32, cluster: &str) -> Claim {
    Claim { object: object.into(), attempt, cluster: cluster.into() }
}

fn record(users: &[&str]) -> Record {
    let mut record = Record::new(&image("sha256:aa"), &claim("o", 1, "c1"), "f".into());
    record.users = users.iter().map(|&user| user.to_owned()).collect();
    record
}

#[test]
fn a_name_is_taken_once_and_shared_by_one_digest() {
    let take = |record: &Record, digest: &str, claim: &Claim, published: bool| {
        record.take(&image(digest), claim, "g".into(), published, now())
    };
    let (ours, theirs) = (claim("o", 2, "c1"), claim("p", 1, "c2"));
    let both = Record { users: vec!["c1".into(), "c2".into()], ..record(&[]) };
    assert_eq!(take(&record(&["c1"]), "sha256:aa", &ours, true), Taking::Have);
    assert_eq!(take(&record(&["c1"]), "sha256:aa", &theirs, true), Taking::Write(both.clone()));
    assert_eq!(take(&both, "sha256:aa", &theirs, true), Taking::Have);
    // Another digest never, unless our own cluster began it and nothing is published.
    for published in [true, false] {
        assert_eq!(take(&record(&["c1"]), "sha256:bb", &theirs, published), Taking::Other("sha256:aa".into()));
    }
    assert_eq!(take(&record(&["c1"]), "sha256:bb", &ours, true), Taking::Other("sha256:aa".into()));
    let mine = Record::new(&image("sha256:bb"), &ours, "g".into());
    assert_eq!(take(&record(&["c1"]), "sha256:bb", &ours, false), Taking::Write(mine.clone()));
    assert_eq!(take(&mine, "sha256:bb", &ours, false), Taking::Have);
    // What another cluster began is joined, and whoever is first publishes it.
    let joined = Record { file: "g".into(), ..both };
    assert_eq!(take(&record(&["c1"]), "sha256:aa", &theirs, false), Taking::Write(joined));
}

#[test]
fn a_removal_is_waited_for_until_it_was_left() {
    for (minutes, expected) in [(1, Taking::Wait), (15, Taking::Wait), (16, Taking::EndRemoval)] {
        let since = now().checked_sub(SignedDuration::from_mins(minutes)).unwrap();
        let going = Record { removing: Some(since), ..record(&[]) };
        assert_eq!(going.take(&image("sha256:aa"), &claim("o", 2, "c1"), "g".into(), true, now()), expected);
    }
}

#[test]
fn only_the_last_user_removes_an_image() {
    let give = |record: &Record, digest: &str, cluster: &str| record.give(digest, cluster, now());
    let both = record(&["c1", "c2"]);
    assert_eq!(give(&both, "sha256:aa", "c2"), Giving::Write(record(&["c1"]), vec!["c1".into()]));
    assert_eq!(
        give(&record(&["c1"]), "sha256:aa", "c1"),
        Giving::Remove(Record { removing: Some(now()), ..record(&[]) })
    );
    assert_eq!(give(&both, "sha256:bb", "c1"), Giving::Leave(Removal::Foreign));
    assert_eq!(give(&both, "sha256:aa", "c3"), Giving::Leave(Removal::Foreign));
    assert_eq!(give(&record(&[]), "sha256:aa", "c1"), Giving::Leave(Removal::Foreign));
    let protected = Record { protected: true, ..record(&["c1"]) };
    assert_eq!(give(&protected, "sha256:aa", "c1"), Giving::Leave(Removal::Protected));
    assert_eq!(give(&Record { removing: Some(now()), ..record(&[]) }, "sha256:aa", "c1"), Giving::EndRemoval);
}

#[test]
fn an_unfinished_record_belongs_to_its_object_and_attempt() {
    let record = Record::new(&image("sha256:aa"), &claim("o", 2, "c1"), "f".into());
    for (object, attempt, cluster, is) in [
        ("o", 2, "c1", true),
        ("o", 3, "c1", true),
        ("o", 1, "c1", false),
        ("p", 2, "c1", false),
        ("o", 2, "c2", false),
    ] {
        assert_eq!(record.is_of(&claim(object, attempt, cluster)), is, "{object} {attempt} {cluster}");
    }
}
