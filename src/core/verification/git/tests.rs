use super::super::tests::{Tools, assert_outcome, at, keys};
use super::*;
use crate::core::verification::Keys;

const NAME: &str = "docker-x-1-34-v1";
const COMMIT: &str = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A <a@a.example> 1767225600 +0000\ncommitter A <a@a.example> 1767225600 +0000\n\nFirst\n";

fn tag_of(object: &str, kind: &str, name: &str) -> Vec<u8> {
    format!("object {object}\ntype {kind}\ntag {name}\ntagger A <a@a.example> 1767225600 +0000\n\nA release\n")
        .into_bytes()
}

fn signed(mut tag: Vec<u8>, sign: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let signature = sign(&tag);
    tag.extend(signature);
    tag
}

fn with_header(commit: &str, name: &str, signature: &[u8]) -> Vec<u8> {
    let signature = String::from_utf8(signature.to_vec()).unwrap();
    let header = format!("{name} {}\n", signature.trim_end().replace('\n', "\n "));
    let (headers, message) = commit.split_once("\n\n").unwrap();
    format!("{headers}\n{header}\n{message}").into_bytes()
}

/// What is checked, with what it is checked by.
struct Case {
    mode: GitVerificationMode,
    keys: Keys,
    now: jiff::Timestamp,
    tag: String,
    tags: Vec<Vec<u8>>,
    commit: Vec<u8>,
}

impl Case {
    fn verify(&self) -> Result<Signer, NotVerified> {
        let trust = GitTrust { mode: self.mode, keys: self.keys.clone(), now: self.now };
        let revision = id("commit", &self.commit);
        verify(&trust, &Subject { tag: &self.tag, tags: &self.tags, commit: &self.commit, revision: &revision })
    }
}

/// A tag that a fresh SSH key signed, with the key's file.
fn ssh_case(tools: &Tools) -> Case {
    let key = tools.ssh_key("signer", &["-t", "ed25519"]);
    let tag = tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME);
    let tag = signed(tag, |payload| tools.ssh_sign("signer", "git", payload));
    Case {
        mode: GitVerificationMode::Tag,
        keys: keys(&[("signer.pub", &key)]),
        now: jiff::Timestamp::now(),
        tag: NAME.to_owned(),
        tags: vec![tag],
        commit: COMMIT.as_bytes().to_vec(),
    }
}

#[test]
fn a_signed_tag_is_verified_under_its_own_name_and_for_its_own_commit_only() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    let good = || ssh_case_again(&tools);
    assert_outcome("good", &ssh_case(&tools).verify(), "verified", "SSH key SHA256:");
    let commit_id = id("commit", COMMIT.as_bytes());
    let text = |tag: &[u8]| String::from_utf8(tag.to_vec()).unwrap();
    let other_commit = COMMIT.replace("First", "Other").into_bytes();
    let change = |from: &str, to: &str| {
        let mut case = good();
        case.tags[0] = text(&case.tags[0]).replace(from, to).into_bytes();
        case
    };
    for (name, case, word, says) in [
        ("unsigned", Case { tags: vec![tag_of(&commit_id, "commit", NAME)], ..good() }, "unsigned", NAME),
        ("lightweight", Case { tags: Vec::new(), ..good() }, "unsigned", "no annotated tag"),
        (
            "renamed",
            Case { tag: "docker-x-1-34-v2".into(), ..good() },
            "invalid",
            "it was made for tag docker-x-1-34-v1",
        ),
        ("renamed inside", change(NAME, "docker-x-1-34-v2"), "invalid", "it was made for tag docker-x-1-34-v2"),
        ("another commit", Case { commit: other_commit, ..good() }, "invalid", "it is for commit"),
        ("tampered", change("A release", "A melease"), "invalid", "does not fit"),
        ("tampered tagger", change("A <a@", "B <a@"), "invalid", "does not fit"),
        (
            "text behind the signature",
            change("-----END SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\nmore\n"),
            "invalid",
            "something follows",
        ),
        ("cut off", change("-----END SSH SIGNATURE-----\n", ""), "invalid", "no end"),
        ("no tag", Case { tags: vec![b"tag x\nobject y\n".to_vec()], ..good() }, "invalid", "no tag as Git writes it"),
        ("no key", Case { keys: Keys::default(), ..good() }, "key", "there is none"),
        ("a broken key", Case { keys: keys(&[("a.pub", b"ssh-ed25519 AAAA")]), ..good() }, "key", "key a.pub"),
        ("commit unsigned", Case { mode: GitVerificationMode::Commit, ..good() }, "unsigned", "commit "),
        ("both asked", Case { mode: GitVerificationMode::TagAndCommit, ..good() }, "unsigned", "commit "),
    ] {
        assert_outcome(name, &case.verify(), word, says);
    }
}

/// As [`ssh_case`], with the key that is there.
fn ssh_case_again(tools: &Tools) -> Case {
    let tag = tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME);
    let tag = signed(tag, |payload| tools.ssh_sign("signer", "git", payload));
    Case {
        mode: GitVerificationMode::Tag,
        keys: keys(&[("signer.pub", &std::fs::read(tools.dir().join("signer.pub")).unwrap())]),
        now: jiff::Timestamp::now(),
        tag: NAME.to_owned(),
        tags: vec![tag],
        commit: COMMIT.as_bytes().to_vec(),
    }
}

#[test]
fn a_tag_of_a_tag_leads_to_the_commit() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    let good = ssh_case(&tools);
    let inner = tag_of(&id("commit", COMMIT.as_bytes()), "commit", "inner");
    let outer = |of: &[u8]| signed(tag_of(&id("tag", of), "tag", NAME), |text| tools.ssh_sign("signer", "git", text));
    let nested = Case { tags: vec![outer(&inner), inner.clone()], ..ssh_case_again(&tools) };
    assert_outcome("nested", &nested.verify(), "verified", "SSH key");
    let other = tag_of(&id("commit", COMMIT.as_bytes()), "commit", "other");
    let swapped = Case { tags: vec![outer(&inner), other], ..ssh_case_again(&tools) };
    assert_outcome("swapped", &swapped.verify(), "invalid", "it is for tag");
    let left_out = Case { tags: vec![outer(&inner)], ..good };
    assert_outcome("left out", &left_out.verify(), "invalid", "it is for tag");
    // The inner one's signature does not count for the outer one.
    let signed_inner = ssh_case_again(&tools).tags.remove(0);
    let unsigned_outer = tag_of(&id("tag", &signed_inner), "tag", NAME);
    let case = Case { tags: vec![unsigned_outer, signed_inner], ..ssh_case_again(&tools) };
    assert_outcome("only the inner one signed", &case.verify(), "unsigned", NAME);
}

#[test]
fn ssh_keys_count_for_git_and_while_they_are_valid() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    let good = ssh_case(&tools);
    let key = String::from_utf8(tools.run("cat", &["signer.pub"], b"")).unwrap();
    let key = key.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let other = tools.ssh_key("other", &["-t", "ed25519"]);
    let allowed = |line: String| keys(&[("allowed_signers", line.as_bytes())]);
    let mut wrong_namespace = ssh_case_again(&tools);
    wrong_namespace.tags = vec![signed(tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME), |text| {
        tools.ssh_sign("signer", "file", text)
    })];
    for (name, case, word, says) in [
        (
            "another key",
            Case { keys: keys(&[("other.pub", &other)]), ..ssh_case_again(&tools) },
            "unknown",
            "SSH key SHA256:",
        ),
        ("namespace of files", wrong_namespace, "invalid", "it was made for \"file\""),
        (
            "allowed",
            Case { keys: allowed(format!("release@example.com namespaces=\"git\" {key}")), ..ssh_case_again(&tools) },
            "verified",
            "(release@example.com)",
        ),
        (
            "allowed for files only",
            Case { keys: allowed(format!("a namespaces=\"file\" {key}")), ..ssh_case_again(&tools) },
            "invalid",
            "may sign for file only",
        ),
        (
            "no longer valid",
            Case { keys: allowed(format!("a valid-before=\"20200101\" {key}")), ..ssh_case_again(&tools) },
            "invalid",
            "not valid since 2020-01-01",
        ),
        (
            "not yet valid",
            Case { keys: allowed(format!("a valid-after=\"20990101\" {key}")), ..ssh_case_again(&tools) },
            "invalid",
            "not valid before 2099-01-01",
        ),
        (
            "an authority",
            Case { keys: allowed(format!("* cert-authority {key}")), ..ssh_case_again(&tools) },
            "key",
            "cert-authority is not supported",
        ),
        (
            "both keys",
            Case { keys: keys(&[("a.pub", &other), ("b.pub", key.as_bytes())]), ..good },
            "verified",
            "SSH key",
        ),
    ] {
        assert_outcome(name, &case.verify(), word, says);
    }
}

#[test]
fn the_kinds_of_ssh_keys_in_use_are_verified() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    for kind in [
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521"],
        &["-t", "rsa", "-b", "2048"],
    ] {
        let name = format!("{}{}", kind[1], kind[3]);
        let key = tools.ssh_key(&name, kind);
        let tag =
            signed(tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME), |text| tools.ssh_sign(&name, "git", text));
        let case = Case {
            mode: GitVerificationMode::Tag,
            keys: keys(&[("k.pub", &key)]),
            now: jiff::Timestamp::now(),
            tag: NAME.into(),
            tags: vec![tag],
            commit: COMMIT.as_bytes().to_vec(),
        };
        assert_outcome(&name, &case.verify(), "verified", &format!("({name}@example.com)"));
    }
}

#[test]
fn openpgp_keys_count_while_they_are_in_force() {
    let Some(tools) = Tools::new(&["gpg", "gpgconf"]) else { return };
    let (good, rsa) = ("Good <good@example.com>", "Rsa <rsa@example.com>");
    let past = ["--faked-system-time", "20200101T000000!"];
    let good_key = tools.openpgp_key(good, &[], "ed25519", "0");
    let rsa_key = tools.openpgp_key(rsa, &[], "rsa2048", "0");
    let old_key = tools.openpgp_key("Old <old@example.com>", &past, "ed25519", "1y");
    let case = |key: &[u8], user: &str, options: &[&str]| {
        let tag = tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME);
        let tag = signed(tag, |payload| tools.openpgp_sign(user, options, payload));
        Case {
            mode: GitVerificationMode::Tag,
            keys: keys(&[("keys.asc", key)]),
            now: jiff::Timestamp::now(),
            tag: NAME.into(),
            tags: vec![tag],
            commit: COMMIT.as_bytes().to_vec(),
        }
    };
    let both = [good_key.clone(), rsa_key.clone()].concat();
    let mut tampered = case(&good_key, good, &[]);
    tampered.tags[0] = String::from_utf8(tampered.tags[0].clone()).unwrap().replace("A rel", "B rel").into_bytes();
    let mut early = case(&old_key, "old@example.com", &past);
    early.now = at("2020-02-01T00:00:00Z");
    let binary = tools.openpgp(&["--export", good], b"");
    for (name, case, word, says) in [
        ("ed25519", case(&good_key, good, &[]), "verified", "(Good <good@example.com>)"),
        ("rsa", case(&rsa_key, rsa, &[]), "verified", "(Rsa <rsa@example.com>)"),
        ("two blocks", case(&both, rsa, &[]), "verified", "(Rsa"),
        ("binary keyring", case(&binary, good, &[]), "verified", "(Good"),
        ("another key", case(&rsa_key, good, &[]), "unknown", "OpenPGP key "),
        ("tampered", tampered, "invalid", "does not fit"),
        ("key expired", case(&old_key, "old@example.com", &past), "invalid", "expired at 2020-12-31"),
        ("key in force then", early, "verified", "(Old"),
        (
            "made in the future",
            case(&good_key, good, &["--faked-system-time", "20990101T000000"]),
            "invalid",
            "in the future",
        ),
        (
            "signature expired",
            case(
                &old_key,
                "old@example.com",
                &["--faked-system-time", "20200101T000000!", "--default-sig-expire", "1d"],
            ),
            "invalid",
            "it expired at 2020-01-02",
        ),
        ("weak hash", case(&good_key, good, &["--digest-algo", "SHA1"]), "invalid", "too weak"),
        ("no keyring", case(b"hello", good, &[]), "key", "keys.asc"),
    ] {
        assert_outcome(name, &case.verify(), word, says);
    }
}

#[test]
fn revoked_keys_and_subkeys_of_openpgp_do_not_count() {
    let Some(tools) = Tools::new(&["gpg", "gpgconf"]) else { return };
    let user = "Sub <sub@example.com>";
    tools.openpgp(&["--quick-gen-key", user, "ed25519", "cert", "0"], b"");
    let listed = String::from_utf8(tools.openpgp(&["--with-colons", "--list-keys", user], b"")).unwrap();
    let print =
        listed.lines().find_map(|line| line.strip_prefix("fpr:::::::::")).unwrap().trim_end_matches(':').to_owned();
    tools.openpgp(&["--quick-add-key", &print, "ed25519", "sign", "0"], b"");
    let key = tools.openpgp_export(user);
    let tag = tag_of(&id("commit", COMMIT.as_bytes()), "commit", NAME);
    let tag = signed(tag, |payload| tools.openpgp_sign(user, &[], payload));
    let case = |key: &[u8]| Case {
        mode: GitVerificationMode::Tag,
        keys: keys(&[("keys.asc", key)]),
        now: jiff::Timestamp::now(),
        tag: NAME.into(),
        tags: vec![tag.clone()],
        commit: COMMIT.as_bytes().to_vec(),
    };
    assert_outcome("by a subkey", &case(&key).verify(), "verified", &print);
    let certificate = std::fs::read_to_string(tools.dir().join(format!("openpgp-revocs.d/{print}.rev"))).unwrap();
    let certificate = certificate.replace(":-----BEGIN", "-----BEGIN");
    tools.openpgp(&["--import"], certificate.as_bytes());
    let revoked = tools.openpgp_export(user);
    assert_outcome("revoked", &case(&revoked).verify(), "invalid", "was revoked");
}

#[test]
fn signed_commits_are_verified_with_their_headers_as_git_writes_them() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    let good = ssh_case(&tools);
    let signature = tools.ssh_sign("signer", "git", COMMIT.as_bytes());
    let commit = with_header(COMMIT, "gpgsig", &signature);
    let case = |commit: Vec<u8>| Case {
        mode: GitVerificationMode::Commit,
        commit,
        tags: Vec::new(),
        ..ssh_case_again(&tools)
    };
    assert_outcome("signed", &case(commit.clone()).verify(), "verified", "SSH key");
    let text = String::from_utf8(commit.clone()).unwrap();
    let twice = with_header(&text, "gpgsig", &signature);
    let beside = with_header(&text, "gpgsig-sha256", &signature);
    let only_sha256 = with_header(COMMIT, "gpgsig-sha256", &signature);
    let moved =
        text.replace("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904", "tree 5b825dc642cb6eb9a060e54bf8d69288fbee4904");
    assert_outcome("twice", &case(twice).verify(), "invalid", "more than one");
    assert_outcome("beside one for SHA-256", &case(beside).verify(), "verified", "SSH key");
    assert_outcome("for SHA-256 only", &case(only_sha256).verify(), "unsigned", "commit ");
    assert_outcome("another tree", &case(moved.into_bytes()).verify(), "invalid", "does not fit");
    let tag = signed(tag_of(&id("commit", &commit), "commit", NAME), |text| tools.ssh_sign("signer", "git", text));
    let both = Case { mode: GitVerificationMode::TagAndCommit, commit: commit.clone(), tags: vec![tag], ..good };
    assert_outcome("both", &both.verify(), "verified", "SSH key");
    let trust = GitTrust { mode: GitVerificationMode::Commit, keys: both.keys.clone(), now: both.now };
    let subject = Subject { tag: NAME, tags: &[], commit: &commit, revision: "0123" };
    assert_outcome("another id", &verify(&trust, &subject), "invalid", "another commit");
}

#[test]
fn what_git_itself_signs_is_verified() {
    let Some(tools) = Tools::new(&["git", "gpg", "gpgconf", "ssh-keygen"]) else { return };
    let user = "Git <git@example.com>";
    let openpgp = tools.openpgp_key(user, &[], "ed25519", "0");
    let ssh = tools.ssh_key("signer", &["-t", "ed25519"]);
    let git = |args: &[&str]| {
        let who = ["-C", "repo", "-c", "user.name=Git", "-c", "user.email=git@example.com"];
        tools.run("git", &[&who, args].concat(), b"")
    };
    tools.run("git", &["init", "-q", "repo"], b"");
    let key = tools.dir().join("signer.pub");
    let with_ssh = ["-c", "gpg.format=ssh", "-c", &format!("user.signingKey={}", key.display())];
    for (name, options, keys, says) in [
        ("v1", &[][..], keys(&[("k.asc", &openpgp)]), "(Git <git@example.com>)"),
        ("v2", &with_ssh[..], keys(&[("k.pub", &ssh)]), "(signer@example.com)"),
    ] {
        git(&[options, &["commit", "-q", "-S", "--allow-empty", "-m", name]].concat());
        git(&[options, &["tag", "-s", "-m", "A release", name]].concat());
        let case = Case {
            mode: GitVerificationMode::TagAndCommit,
            keys,
            now: jiff::Timestamp::now(),
            tag: name.into(),
            tags: vec![git(&["cat-file", "tag", name])],
            commit: git(&["cat-file", "commit", "HEAD"]),
        };
        assert_outcome(name, &case.verify(), "verified", says);
    }
}

/// Made by Git 2.39 with gpg 2.2 and ssh-keygen 9.2; here so that something is checked where these are not.
#[test]
fn tags_that_were_signed_once_are_still_verified() {
    let commit = include_bytes!("vectors/commit");
    let (openpgp, ssh) = (include_bytes!("vectors/openpgp.asc"), include_bytes!("vectors/ssh.pub"));
    let keys = keys(&[("release.asc", openpgp), ("release.pub", ssh)]);
    for (name, tag) in
        [("openpgp", &include_bytes!("vectors/openpgp.tag")[..]), ("ssh", include_bytes!("vectors/ssh.tag"))]
    {
        let case = |name: &str, tag: Vec<u8>| Case {
            mode: GitVerificationMode::Tag,
            keys: keys.clone(),
            now: at("2027-01-01T00:00:00Z"),
            tag: name.into(),
            tags: vec![tag],
            commit: commit.to_vec(),
        };
        assert_outcome(name, &case(name, tag.to_vec()).verify(), "verified", "release@example.com");
        assert_outcome(name, &case("other", tag.to_vec()).verify(), "invalid", "it was made for tag");
        let tampered = String::from_utf8(tag.to_vec()).unwrap().replace("tagger Release", "tagger Melease");
        assert_outcome(name, &case(name, tampered.into_bytes()).verify(), "invalid", "does not fit");
    }
}
