//! OpenPGP signatures: which key may have made one, and whether it holds. The cryptography is rPGP's; here is what makes a
//! key count: bound by its owner, meant for signing, not expired, not revoked, nothing weak.

use std::io::Read;

use jiff::Timestamp;
use pgp::armor::{BlockType, Dearmor};
use pgp::composed::{Deserializable, DetachedSignature, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureConfig, SignatureType, SubpacketData};
use pgp::ser::Serialize;
use pgp::types::{KeyDetails, PublicParams, Tag};

use super::{NotVerified, Signer};

/// How a keyring in text begins.
pub(super) const PUBLIC_KEY: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
const END_OF_KEY: &str = "-----END PGP PUBLIC KEY BLOCK-----";
/// How a signature in text begins.
pub(super) const SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----";
/// Most signatures that are looked at in one block.
const MAX_SIGNATURES: usize = 16;
/// How far the signer's clock may be ahead of ours.
const SKEW: i64 = 300;
/// Bits that an RSA key must have.
const MIN_RSA: usize = 2048;

/// The keys of a keyring: one or more armored blocks, or binary packets.
///
/// # Errors
/// It holds no key, or what it holds can't be read.
pub(super) fn keyring(content: &[u8]) -> Result<Vec<SignedPublicKey>, String> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(content);
    if text.contains("PRIVATE KEY BLOCK") {
        return Err("it holds a private key: export the public one with gpg --export --armor".to_owned());
    }
    if text.contains(PUBLIC_KEY) {
        for block in text.split_inclusive(END_OF_KEY) {
            let Some(start) = block.find(PUBLIC_KEY) else { continue };
            let (read, _) = SignedPublicKey::from_string_many(&block[start..]).map_err(|error| error.to_string())?;
            for key in read {
                keys.push(key.map_err(|error| error.to_string())?);
            }
        }
    } else {
        for key in SignedPublicKey::from_bytes_many(content).map_err(|error| error.to_string())? {
            keys.push(key.map_err(|error| error.to_string())?);
        }
    }
    if keys.is_empty() { Err("it holds no OpenPGP key".to_owned()) } else { Ok(keys) }
}

/// Whether this may be a detached signature of OpenPGP.
pub(super) fn is_signature(signature: &[u8]) -> bool {
    // A binary packet has the highest bit set; its tag is 2, in the old form or the new.
    signature.starts_with(SIGNATURE.as_bytes())
        || signature.first().is_some_and(|first| first & 0xfc == 0x88 || *first == 0xc2)
}

/// Opens what was signed at its beginning: it may be too large to be held.
pub(super) type Open<'d> = dyn Fn() -> Box<dyn Read + 'd> + 'd;

/// Checks the detached `signature` of `data`, which is `what` for people.
///
/// # Errors
/// It does not hold at `now`, or is of none of `keys`.
pub(super) fn verify(
    keys: &[SignedPublicKey],
    what: &str,
    data: &Open<'_>,
    signature: &[u8],
    now: Timestamp,
) -> Result<Signer, NotVerified> {
    let invalid = |problem: String| NotVerified::Invalid { what: what.to_owned(), problem };
    let signatures = signatures(signature).map_err(&invalid)?;
    let mut refusal = None;
    for signature in &signatures {
        match one(keys, data, signature, now.as_second()) {
            Ok(signer) => return Ok(signer),
            Err(Refusal::Unknown(by)) => {
                refusal.get_or_insert(NotVerified::UnknownSigner { what: what.to_owned(), by });
            }
            Err(Refusal::Invalid(problem)) => refusal = Some(invalid(problem)),
        }
    }
    Err(refusal.unwrap_or_else(|| invalid("it is empty".to_owned())))
}

enum Refusal {
    Unknown(String),
    Invalid(String),
}

fn signatures(signature: &[u8]) -> Result<Vec<Signature>, String> {
    let packets = if signature.starts_with(b"-----") {
        let mut armor = Dearmor::new(signature);
        armor.read_header().map_err(|error| error.to_string())?;
        if armor.typ != Some(BlockType::Signature) {
            return Err("it is no OpenPGP signature".to_owned());
        }
        let mut packets = Vec::new();
        armor.read_to_end(&mut packets).map_err(|error| error.to_string())?;
        packets
    } else {
        signature.to_vec()
    };
    let read = DetachedSignature::from_bytes_many(packets.as_slice()).map_err(|error| error.to_string())?;
    let read = read.take(MAX_SIGNATURES).map(|signature| signature.map(|s| s.signature));
    read.collect::<Result<_, _>>().map_err(|error| format!("it can't be read: {error}"))
}

fn one(keys: &[SignedPublicKey], data: &Open<'_>, signature: &Signature, now: i64) -> Result<Signer, Refusal> {
    let mut refusal = Refusal::Unknown(issuer(signature));
    for key in keys {
        let primary = is_issuer(signature, &key.primary_key);
        let subkey = key.public_subkeys.iter().find(|subkey| is_issuer(signature, &subkey.key));
        let checked = match subkey {
            _ if primary => check(signature, data, now, || may_sign(key, now), &key.primary_key),
            Some(subkey) => check(signature, data, now, || subkey_may_sign(key, subkey, now), &subkey.key),
            None => continue,
        };
        match checked {
            Ok(()) => return Ok(signer(key, now)),
            Err(problem) => refusal = Refusal::Invalid(problem),
        }
    }
    Err(refusal)
}

/// The mathematics first: what is wrong with a key is said only of a key that signed.
fn check(
    signature: &Signature,
    data: &Open<'_>,
    now: i64,
    may_sign: impl FnOnce() -> Result<(), String>,
    by: &impl pgp::types::VerifyingKey,
) -> Result<(), String> {
    if !matches!(signature.typ(), Some(SignatureType::Binary | SignatureType::Text)) {
        return Err("it is no signature of a document".to_owned());
    }
    sound(signature)?;
    strong(by.public_params())?;
    signature.verify(by, data()).map_err(|_| "it does not fit what was signed".to_owned())?;
    let made = signature.created().ok_or("it does not say when it was made")?;
    let made = i64::from(made.as_secs());
    if made > now + SKEW {
        return Err(format!("it was made in the future, at {}", date(made)));
    }
    if made < i64::from(by.created_at().as_secs()) {
        return Err("it is older than its key".to_owned());
    }
    let life = signature.signature_expiration_time().map_or(0, |life| i64::from(life.as_secs()));
    if life > 0 && made + life <= now {
        return Err(format!("it expired at {}", date(made + life)));
    }
    may_sign()
}

/// Whether the primary key may sign.
fn may_sign(key: &SignedPublicKey, now: i64) -> Result<(), String> {
    let newest = usable(key, now)?;
    if has_flags(newest) && !newest.key_flags().sign() {
        return Err(format!("key {:X} is not meant for signing", key.fingerprint()));
    }
    Ok(())
}

/// Whether a subkey may sign: its owner bound it, it agreed, and both are in force.
fn subkey_may_sign(key: &SignedPublicKey, subkey: &SignedPublicSubKey, now: i64) -> Result<(), String> {
    usable(key, now)?;
    let name = format!("subkey {:X}", subkey.key.fingerprint());
    let by_owner = |signature: &&Signature| {
        sound(signature).is_ok() && signature.verify_subkey_binding(&key.primary_key, &subkey.key).is_ok()
    };
    let of = |typ| subkey.signatures.iter().filter(move |signature| signature.typ() == Some(typ));
    if of(SignatureType::SubkeyRevocation).any(|signature| by_owner(&signature)) {
        return Err(format!("{name} was revoked"));
    }
    let newest = of(SignatureType::SubkeyBinding)
        .filter(|signature| made_by(signature, now))
        .filter(by_owner)
        .max_by_key(|signature| created(signature));
    let newest = newest.ok_or_else(|| format!("{name} is not bound to its key"))?;
    if !newest.key_flags().sign() {
        return Err(format!("{name} is not meant for signing"));
    }
    let agreed = newest.embedded_signature().is_some_and(|back| {
        sound(back).is_ok() && back.verify_primary_key_binding(&subkey.key, &key.primary_key).is_ok()
    });
    if !agreed {
        return Err(format!("{name} did not agree to belong to its key"));
    }
    in_force(&name, &subkey.key, newest, now)
}

/// The newest statement of a key's owner about the key, if the key is in force.
fn usable(key: &SignedPublicKey, now: i64) -> Result<&Signature, String> {
    let name = format!("key {:X}", key.fingerprint());
    let primary = &key.primary_key;
    strong(primary.public_params())?;
    let revoked = |signature: &Signature| signature.verify_key(primary).is_ok();
    if key.details.revocation_signatures.iter().any(revoked) {
        return Err(format!("{name} was revoked"));
    }
    let direct = key
        .details
        .direct_signatures
        .iter()
        .filter(|signature| signature.typ() == Some(SignatureType::Key) && signature.verify_key(primary).is_ok());
    let users = key.details.users.iter().filter_map(|user| statement(key, user, now));
    let newest = direct
        .chain(users)
        .filter(|signature| sound(signature).is_ok() && made_by(signature, now))
        .max_by_key(|signature| created(signature))
        .ok_or_else(|| format!("{name} has no valid signature of its own (SHA-1 does not count)"))?;
    in_force(&name, primary, newest, now)?;
    Ok(newest)
}

/// The newest thing that the key's owner said of a user id, if it was not taken back later.
fn statement<'k>(key: &'k SignedPublicKey, user: &'k pgp::types::SignedUser, now: i64) -> Option<&'k Signature> {
    let own = user.signatures.iter().filter(|signature| {
        sound(signature).is_ok()
            && made_by(signature, now)
            && is_issuer(signature, &key.primary_key)
            && signature.verify_certification(&key.primary_key, Tag::UserId, &user.id).is_ok()
    });
    own.max_by_key(|signature| (created(signature), signature.typ() == Some(SignatureType::CertRevocation)))
        .filter(|signature| signature.typ() != Some(SignatureType::CertRevocation))
}

fn in_force(name: &str, key: &impl KeyDetails, statement: &Signature, now: i64) -> Result<(), String> {
    let made = i64::from(key.created_at().as_secs());
    let life = statement.key_expiration_time().map_or(0, |life| i64::from(life.as_secs()));
    if life > 0 && made + life <= now {
        return Err(format!("{name} expired at {}", date(made + life)));
    }
    Ok(())
}

/// Nothing in a signature is weak, or important and unknown.
fn sound(signature: &Signature) -> Result<(), String> {
    match signature.hash_alg() {
        Some(
            HashAlgorithm::Sha256
            | HashAlgorithm::Sha384
            | HashAlgorithm::Sha512
            | HashAlgorithm::Sha224
            | HashAlgorithm::Sha3_256
            | HashAlgorithm::Sha3_512,
        ) => {}
        other => return Err(format!("its hash {} is too weak", other.map_or("?".into(), |hash| hash.to_string()))),
    }
    let unknown = |data: &SubpacketData| matches!(data, SubpacketData::Other(..) | SubpacketData::Experimental(..));
    let mut hashed = signature.config().into_iter().flat_map(SignatureConfig::hashed_subpackets);
    if hashed.any(|packet| packet.is_critical && unknown(&packet.data)) {
        return Err("it says something important that is not understood".to_owned());
    }
    Ok(())
}

fn strong(key: &PublicParams) -> Result<(), String> {
    match key {
        PublicParams::RSA(key) if modulus_bits(key) < MIN_RSA => {
            Err(format!("its RSA key has less than {MIN_RSA} bits"))
        }
        PublicParams::RSA(_)
        | PublicParams::ECDSA(_)
        | PublicParams::EdDSALegacy(_)
        | PublicParams::Ed25519(_)
        | PublicParams::Ed448(_) => Ok(()),
        _ => Err("its key is of a kind that is not accepted: use Ed25519, ECDSA or RSA".to_owned()),
    }
}

/// A key begins with its modulus, and that with its length in bits (RFC 9580, 3.2).
fn modulus_bits(key: &impl Serialize) -> usize {
    let bytes = key.to_bytes().unwrap_or_default();
    bytes.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)))
}

fn has_flags(signature: &Signature) -> bool {
    let mut hashed = signature.config().into_iter().flat_map(SignatureConfig::hashed_subpackets);
    hashed.any(|packet| matches!(packet.data, SubpacketData::KeyFlags(_)))
}

fn created(signature: &Signature) -> u32 {
    signature.created().map_or(0, pgp::types::Timestamp::as_secs)
}

fn made_by(signature: &Signature, now: i64) -> bool {
    i64::from(created(signature)) <= now + SKEW
}

/// Whether a signature says that the key made it; one that does not say may be anybody's, and is refused.
fn is_issuer(signature: &Signature, key: &impl KeyDetails) -> bool {
    let fingerprints = signature.issuer_fingerprint();
    if fingerprints.is_empty() {
        return signature.issuer_key_id().into_iter().any(|id| *id == key.legacy_key_id());
    }
    fingerprints.into_iter().any(|fingerprint| *fingerprint == key.fingerprint())
}

fn issuer(signature: &Signature) -> String {
    let fingerprint = signature.issuer_fingerprint().first().map(|fingerprint| format!("{fingerprint:X}"));
    let id = || signature.issuer_key_id().first().map(|id| id.to_string().to_ascii_uppercase());
    fingerprint.or_else(id).map_or("an unknown OpenPGP key".to_owned(), |name| format!("OpenPGP key {name}"))
}

fn signer(key: &SignedPublicKey, now: i64) -> Signer {
    let users = key.details.users.iter();
    let users = users.filter_map(|user| Some((statement(key, user, now)?, user.id.as_str()?)));
    let name = users.max_by_key(|(statement, _)| (statement.is_primary(), created(statement))).map(|(_, name)| name);
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    Signer(format!("OpenPGP key {:X}{name}", key.fingerprint()))
}

fn date(second: i64) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |at| at.to_string())
}
