use super::super::tests::{Tools, assert_outcome, keys};
use super::*;
use crate::core::verification::Keys;

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn trust(keys: Keys) -> ChecksumTrust {
    ChecksumTrust { file: "SHA256SUMS".into(), keys, now: jiff::Timestamp::now() }
}

fn signer(result: Result<Checksums, NotVerified>) -> Result<Signer, NotVerified> {
    result.map(|checksums| checksums.signer)
}

#[test]
fn the_forms_of_checksum_files_are_read() {
    let upper = ABC.to_uppercase();
    for (case, text, read) in [
        ("text", format!("{ABC}  a.tgz\n"), Ok(1)),
        ("binary", format!("{ABC} *a.tgz\n"), Ok(1)),
        ("tagged", format!("SHA256 (a.tgz) = {ABC}\n"), Ok(1)),
        ("other kinds beside", format!("MD5 (a.tgz) = 00\nSHA512 (a.tgz) = 00\nSHA256 (a.tgz) = {ABC}\n"), Ok(1)),
        ("line ends of Windows", format!("{ABC}  a.tgz\r\n{ABC}  b.tgz\r\n"), Ok(2)),
        ("a path", format!("{ABC}  ./a.tgz\n"), Ok(1)),
        ("capitals", format!("{upper}  a.tgz\n"), Ok(1)),
        ("blank lines and comments", format!("# sums\n\n{ABC}  a.tgz\n"), Ok(1)),
        ("twice the same", format!("{ABC}  a.tgz\n{upper} *a.tgz\n"), Ok(1)),
        ("twice, differing", format!("{ABC}  a.tgz\n{}  a.tgz\n", "0".repeat(64)), Err("two sums for a.tgz")),
        ("too short", format!("{}  a.tgz\n", &ABC[1..]), Err("line 1")),
        ("no digits", format!("{}  a.tgz\n", "x".repeat(64)), Err("line 1")),
        ("no name", format!("{ABC}\n"), Err("line 1")),
        ("one blank", format!("{ABC} a.tgz\n"), Err("line 1")),
        ("a page", "<html></html>\n".to_owned(), Err("line 1")),
    ] {
        match (parse(text.as_bytes()), read) {
            (Ok(sums), Ok(count)) => {
                assert_eq!((sums.len(), sums.get("a.tgz").map(String::as_str)), (count, Some(ABC)), "{case}");
            }
            (Err(problem), Err(says)) => assert!(problem.contains(says), "{case}: {problem}"),
            (found, _) => panic!("{case}: {found:?}"),
        }
    }
    assert!(parse(b"\xff\xfe").is_err());
}

#[test]
fn a_file_must_be_the_one_that_was_summed() {
    let checksums = Checksums { signer: Signer("A".into()), sums: [("a.tgz".into(), ABC.into())].into() };
    assert_eq!(check(&checksums, "a.tgz", b"abc"), Ok(()));
    assert!(check(&checksums, "a.tgz", b"abd").unwrap_err().to_string().contains("another SHA-256"));
    assert!(check(&checksums, "b.tgz", b"abc").unwrap_err().to_string().contains("not in the signed file"));
}

#[test]
fn detached_signatures_of_openpgp_are_checked() {
    let Some(tools) = Tools::new(&["gpg", "gpgconf"]) else { return };
    let (user, other) = ("Sums <sums@example.com>", "Other <other@example.com>");
    let (key, other) = (tools.openpgp_key(user, &[], "ed25519", "0"), tools.openpgp_key(other, &[], "ed25519", "0"));
    let sums = format!("{ABC}  a.tgz\n");
    let armored = tools.openpgp_sign(user, &[], sums.as_bytes());
    let binary = tools.openpgp(&["--local-user", user, "--detach-sign"], sums.as_bytes());
    let message = tools.openpgp(&["--local-user", user, "--armor", "--sign"], sums.as_bytes());
    for (case, key, sums, signature, word, says) in [
        ("armored", &key, sums.as_str(), &armored, "verified", "(Sums <sums@example.com>)"),
        ("binary", &key, &sums, &binary, "verified", "(Sums"),
        ("another key", &other, &sums, &armored, "unknown", "OpenPGP key"),
        ("tampered", &key, &sums.replace("a.tgz", "b.tgz"), &armored, "invalid", "does not fit"),
        ("no sums", &key, "", &armored, "invalid", "does not fit"),
        ("a message", &key, &sums, &message, "invalid", "no signature of"),
        ("nothing", &key, &sums, &Vec::new(), "invalid", "no signature of"),
        ("a page", &key, &sums, &b"<html>".to_vec(), "invalid", "no signature of"),
        ("cut off", &key, &sums, &armored[..armored.len() / 2].to_vec(), "invalid", ""),
    ] {
        let found = verify(&trust(keys(&[("k.asc", key)])), sums.as_bytes(), signature);
        assert_outcome(case, &signer(found), word, says);
    }
}

#[test]
fn detached_signatures_of_ssh_keys_are_checked() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    let key = tools.ssh_key("sums", &["-t", "ed25519"]);
    let sums = format!("{ABC}  a.tgz\n");
    let good = tools.ssh_sign("sums", "file", sums.as_bytes());
    let of_git = tools.ssh_sign("sums", "git", sums.as_bytes());
    let trust = trust(keys(&[("k.pub", &key)]));
    let check = |sums: &str, signature: &[u8]| signer(verify(&trust, sums.as_bytes(), signature));
    assert_outcome("good", &check(&sums, &good), "verified", "(sums@example.com)");
    assert_outcome("for Git", &check(&sums, &of_git), "invalid", "it was made for \"git\"");
    assert_outcome("tampered", &check(&sums.replace('a', "b"), &good), "invalid", "does not fit");
}

/// Made by minisign 0.11; its author's own example.
#[test]
fn signatures_of_minisign_are_checked() {
    let key = b"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    let signature = "untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1556193335\tfile:test
y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==
";
    let trust = trust(keys(&[("minisign.pub", key)]));
    let check = |sums: &[u8], signature: &str| signer(verify(&trust, sums, signature.as_bytes()));
    // What was signed is the text "test", which is no file of checksums: the signature holds, the file does not.
    assert_outcome("held", &check(b"test", signature), "invalid", "line 1 of the file is no checksum");
    assert_outcome("tampered", &check(b"tess", signature), "invalid", "signature of SHA256SUMS");
    let comment = signature.replace("file:test", "file:tess");
    assert_outcome("comment", &check(b"test", &comment), "invalid", "signature of SHA256SUMS");
}
