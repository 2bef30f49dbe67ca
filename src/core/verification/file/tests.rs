use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::sign::Signer as Signing;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::super::tests::{Tools, keys};
use super::*;
use crate::core::digest::hex;

const DATA: &[u8] = b"a disk";

fn check(keys: &Keys, data: &[u8], signature: &[u8]) -> Result<Signer, NotVerified> {
    let sha256 = hex(&Sha256::digest(data));
    let open = || Box::new(data) as Box<dyn Read>;
    verify(keys, &Signed { what: "disk", sha256: &sha256, open: &open }, signature, Timestamp::now())
}

#[test]
fn a_file_signed_by_openpgp_counts_and_a_changed_one_does_not() {
    let Some(tools) = Tools::new(&["gpg"]) else { return };
    let key = tools.openpgp_key("image@example.com", &[], "ed25519", "0");
    let other = tools.openpgp_key("other@example.com", &[], "ed25519", "0");
    let signature = tools.openpgp_sign("image@example.com", &[], DATA);
    let trusted = keys(&[("image.asc", &key)]);
    check(&trusted, DATA, &signature).unwrap();
    assert!(matches!(check(&trusted, b"another", &signature), Err(NotVerified::Invalid { .. })));
    let unknown = check(&keys(&[("other.asc", &other)]), DATA, &signature);
    assert!(matches!(unknown, Err(NotVerified::UnknownSigner { .. })));
}

#[test]
fn a_file_signed_by_a_key_of_cosign_counts_in_both_forms() {
    let key = PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap());
    let key = key.unwrap();
    let mut signing = Signing::new(MessageDigest::sha256(), &key).unwrap();
    let made = STANDARD.encode(signing.sign_oneshot_to_vec(DATA).unwrap());
    let bundle = json!({
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}},
        "messageSignature": {"messageDigest": {"algorithm": "SHA2_256", "digest": ""}, "signature": made},
    });
    let trusted = keys(&[("cosign.pub", &key.public_key_to_pem().unwrap())]);
    for signature in [format!("{made}\n"), bundle.to_string()] {
        check(&trusted, DATA, signature.as_bytes()).unwrap();
        let changed = check(&trusted, b"another", signature.as_bytes());
        assert!(matches!(changed, Err(NotVerified::UnknownSigner { .. })), "{changed:?}");
    }
    assert!(matches!(check(&Keys::default(), DATA, made.as_bytes()), Err(NotVerified::Key { .. })));
    for other in ["-----BEGIN SSH SIGNATURE-----\n", "untrusted comment: x\n", "{}", "nonsense", ""] {
        assert!(check(&trusted, DATA, other.as_bytes()).is_err(), "{other}");
    }
}

#[test]
fn a_file_signed_by_an_ssh_key_counts_and_one_for_another_purpose_does_not() {
    let Some(tools) = Tools::new(&["ssh-keygen"]) else { return };
    for kind in [&["-t", "ed25519"][..], &["-t", "ecdsa"], &["-t", "rsa", "-b", "3072"]] {
        let name = kind[1];
        let key = tools.ssh_key(name, kind);
        let other = tools.ssh_key(&format!("other-{name}"), kind);
        let (signature, for_git) = (tools.ssh_sign(name, "file", DATA), tools.ssh_sign(name, "git", DATA));
        let trusted = keys(&[("image.pub", &key)]);
        check(&trusted, DATA, &signature).unwrap();
        assert!(matches!(check(&trusted, b"another", &signature), Err(NotVerified::Invalid { .. })), "{name}");
        assert!(matches!(check(&trusted, DATA, &for_git), Err(NotVerified::Invalid { .. })), "{name}");
        let unknown = check(&keys(&[("other.pub", &other)]), DATA, &signature);
        assert!(matches!(unknown, Err(NotVerified::UnknownSigner { .. })), "{name}: {unknown:?}");
    }
}

/// Made by minisign 0.11; its author's own example.
#[test]
fn a_file_signed_by_minisign_counts_and_a_changed_one_does_not() {
    let key: &[u8] = b"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    let signature = "untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1556193335\tfile:test
y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==
";
    let trusted = keys(&[("minisign.pub", key)]);
    assert_eq!(check(&trusted, b"test", signature.as_bytes()).unwrap(), Signer("minisign key minisign.pub".into()));
    let comment = signature.replace("file:test", "file:tess");
    for (data, signature) in [(b"tess", signature), (b"test", &comment)] {
        let changed = check(&trusted, data, signature.as_bytes());
        assert!(matches!(changed, Err(NotVerified::Invalid { .. })), "{changed:?}");
    }
}
