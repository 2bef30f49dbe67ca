//! Keys, certificates and password hashes. Keys come from the input's seed, or were kept from an earlier rendering.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use openssl::asn1::{Asn1Integer, Asn1Time, Asn1Type};
use openssl::bn::{BigNum, BigNumContext, BigNumRef};
use openssl::dsa::Dsa;
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Private};
use openssl::rsa::{Rsa, RsaPrivateKeyBuilder};
use openssl::symm::{Cipher, Crypter, Mode};
use openssl::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName, SubjectKeyIdentifier,
};
use openssl::x509::{X509, X509Name};

use super::super::eval::{Eval, Fault};
use super::super::object::{Field, Object, Struct};
use super::super::print;
use super::super::value::Value;
use super::encoding::decode_base64;
use super::math::int;
use super::prime::{self, Halt};
use super::random::{Place, Stream, stream};
use super::{Function, Out, Ty, text};
use crate::core::chart::keyring::{Kept, renewal};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("bcrypt", &[Ty::Str], |eval, args| Ok(Value::from(bcrypt(eval, "bcrypt", args, &text(&args[0]))?))),
    Function::new("htpasswd", &[Ty::Str, Ty::Str], |eval, args| {
        let user = text(&args[0]);
        if user.contains(':') {
            return Ok(Value::from(format!("invalid username: {user}")));
        }
        let hash = bcrypt(eval, "htpasswd", args, &text(&args[1]))?;
        Ok(Value::from(format!("{user}:{hash}")))
    }),
    Function::new("derivePassword", &[Ty::Uint32, Ty::Str, Ty::Str, Ty::Str, Ty::Str], |eval, args| {
        eval.go_on()?;
        Ok(Value::from(derive_password(args).unwrap_or_else(|error| format!("failed to derive password: {error}"))))
    }),
    Function::new("encryptAES", &[Ty::Str, Ty::Str], |eval, args| {
        let plain = args[1].bytes().unwrap_or_default();
        if plain.is_empty() {
            return Ok(Value::from(""));
        }
        let mut iv = [0; 16];
        stream(eval, "encryptAES", args)?.fill(&mut iv);
        let encrypted = openssl::symm::encrypt(Cipher::aes_256_cbc(), &aes_key(&args[0]), Some(&iv), plain);
        Ok(Value::from(STANDARD.encode([&iv, encrypted.map_err(failed)?.as_slice()].concat())))
    }),
    Function::new("decryptAES", &[Ty::Str, Ty::Str], |_, args| decrypt(args)),
    Function::new("genPrivateKey", &[Ty::Str], private_key),
    Function::new("buildCustomCert", &[Ty::Str, Ty::Str], custom_cert),
    Function::new("genCA", &[Ty::Str, Ty::Int], |eval, args| {
        certified(eval, "genCA", args, int(&args[1]), |draws, start| {
            let key = rsa_key(draws, 2048).map_err(failed)?;
            authority(args, &key, draws, start)
        })
    }),
    Function::new("genCAWithKey", &[Ty::Str, Ty::Int, Ty::Str], |eval, args| {
        certified(eval, "genCAWithKey", args, int(&args[1]), |draws, start| {
            let key = read_key(&args[2]).map_err(|error| format!("parsing private key: {error}"))?;
            authority(args, &key, draws, start)
        })
    }),
    Function::new("genSelfSignedCert", &[Ty::Str, Ty::List, Ty::List, Ty::Int], |eval, args| {
        certified(eval, "genSelfSignedCert", args, int(&args[3]), |draws, start| {
            let key = rsa_key(draws, 2048).map_err(failed)?;
            signed(args, None, &key, draws, start)
        })
    }),
    Function::new("genSelfSignedCertWithKey", &[Ty::Str, Ty::List, Ty::List, Ty::Int, Ty::Str], |eval, args| {
        certified(eval, "genSelfSignedCertWithKey", args, int(&args[3]), |draws, start| {
            let key = read_key(&args[4]).map_err(|error| format!("parsing private key: {error}"))?;
            signed(args, None, &key, draws, start)
        })
    }),
    Function::new("genSignedCert", &[Ty::Str, Ty::List, Ty::List, Ty::Int, Ty::Certificate], |eval, args| {
        certified(eval, "genSignedCert", args, int(&args[3]), |draws, start| {
            let authority = Authority::read(&args[4])?;
            let key = rsa_key(draws, 2048).map_err(failed)?;
            signed(args, Some(&authority), &key, draws, start)
        })
    }),
    Function::new(
        "genSignedCertWithKey",
        &[Ty::Str, Ty::List, Ty::List, Ty::Int, Ty::Certificate, Ty::Str],
        |eval, args| {
            certified(eval, "genSignedCertWithKey", args, int(&args[3]), |draws, start| {
                let authority = Authority::read(&args[4])?;
                let key = read_key(&args[5]).map_err(|error| format!("parsing private key: {error}"))?;
                signed(args, Some(&authority), &key, draws, start)
            })
        },
    ),
];

/// The certificate that was kept of this place; where there is none, or its time has come, the one that `make` makes,
/// valid from the time it is given.
fn certified(
    eval: &mut Eval<'_>,
    function: &str,
    args: &[Value],
    days: i64,
    make: impl FnOnce(&mut Stream, Timestamp) -> Result<Pair, Fault>,
) -> Out {
    let place = Place::of(eval, function, args);
    let now = match eval.input.now.or(eval.input.clock) {
        Some(now) => now,
        None => eval.now()?,
    };
    let before = eval.input.drawn.get(&place.id());
    let is_due = |renew: Option<Timestamp>| renew.zip(eval.input.clock).is_some_and(|(at, now)| at <= now);
    let kept = match before {
        Some(kept) if !is_due(kept.renew) => kept.clone(),
        _ => {
            let generation = before.map_or(0, |kept| kept.generation.saturating_add(1));
            // The first one is as old as the input, unless it would be due at once.
            let first = before.is_none() && !is_due(renewal(now, days));
            let start = if first { now } else { eval.input.clock.unwrap_or(now) };
            let mut draws = place.draws(eval, generation)?;
            let Pair { certificate, key, start } = make(&mut draws, start)?;
            Kept { of: made_where(eval, function), key, certificate, generation, renew: renewal(start, days) }
        }
    };
    eval.secrets.add(&kept.key);
    let value = certificate(Value::from_bytes(kept.certificate.clone().into_bytes()), Value::from(kept.key.as_str()));
    eval.drawn.insert(place.id(), kept);
    Ok(value)
}

fn made_where(eval: &Eval<'_>, function: &str) -> String {
    format!("{function} in {}", eval.site.0)
}

/// In PEM.
struct Pair {
    certificate: String,
    key: String,
    /// From when on it is valid.
    start: Timestamp,
}

#[allow(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn failed(error: impl Into<Halt>) -> Fault {
    match error.into() {
        Halt::Stopped => "stopped".into(),
        error @ Halt::Library(_) => Fault::from(format!("cryptography failed: {error}")),
    }
}

const BCRYPT_COST: u32 = 10;

fn bcrypt(eval: &mut Eval<'_>, function: &str, args: &[Value], password: &str) -> Result<String, Fault> {
    let mut salt = [0; 16];
    stream(eval, function, args)?.fill(&mut salt);
    if password.len() > 72 {
        return Ok("failed to encrypt string with bcrypt: bcrypt: password length exceeds 72 bytes".into());
    }
    Ok(match bcrypt::hash_with_salt(password, BCRYPT_COST, salt) {
        Ok(hash) => hash.format_for_version(bcrypt::Version::TwoA),
        Err(error) => format!("failed to encrypt string with bcrypt: {error}"),
    })
}

fn aes_key(password: &Value) -> [u8; 32] {
    let mut key = [0; 32];
    for (slot, byte) in key.iter_mut().zip(password.bytes().unwrap_or_default()) {
        *slot = *byte;
    }
    key
}

fn decrypt(args: &[Value]) -> Out {
    let source = args[1].bytes().unwrap_or_default();
    if source.is_empty() {
        return Ok(Value::from(""));
    }
    let data = decode_base64(source)?;
    if data.len() < 32 || data.len() % 16 != 0 {
        return Err("crypto/cipher: input not full blocks".into());
    }
    let (iv, encrypted) = data.split_at(16);
    let mut crypter =
        Crypter::new(Cipher::aes_256_cbc(), Mode::Decrypt, &aes_key(&args[0]), Some(iv)).map_err(failed)?;
    crypter.pad(false);
    let mut plain = vec![0; encrypted.len() + 16];
    let count = crypter.update(encrypted, &mut plain).map_err(failed)?;
    let rest = crypter.finalize(&mut plain[count..]).map_err(failed)?;
    plain.truncate(count + rest);
    // The padding is trusted, as in sprig.
    let padding = usize::from(plain.last().copied().unwrap_or(0));
    match plain.len().checked_sub(padding) {
        Some(length) => Ok(Value::from_bytes(plain[..length].to_vec())),
        None => Err("slice bounds out of range".into()),
    }
}

/// The first prime from a draw on.
fn draw_prime(draws: &mut Stream, bits: i32) -> Result<BigNum, Halt> {
    let mut bytes = vec![0; usize::try_from(bits).unwrap_or(0) / 8];
    loop {
        draws.fill(&mut bytes);
        // The two highest bits make the product of two such primes as long as wanted.
        bytes[0] |= 0xc0;
        if let Some(last) = bytes.last_mut() {
            *last |= 1;
        }
        let fits = |candidate: &BigNumRef| {
            if draws.is_stopped() {
                return Err(Halt::Stopped);
            }
            let mut below = candidate.to_owned()?;
            below.sub_word(1)?;
            // The exponent is prime: it must not divide p - 1.
            Ok(candidate.num_bits() == bits && below.mod_word(EXPONENT)? != 0)
        };
        if let Some(prime) = prime::from(&*BigNum::from_slice(&bytes)?, fits)? {
            return Ok(prime);
        }
    }
}

const EXPONENT: u32 = 65537;

#[allow(clippy::many_single_char_names, reason = "RSA's own names")]
fn rsa_key(draws: &mut Stream, bits: i32) -> Result<PKey<Private>, Halt> {
    let mut context = BigNumContext::new_secure()?;
    let p = draw_prime(draws, bits / 2)?;
    let mut q = draw_prime(draws, bits / 2)?;
    while p == q {
        q = draw_prime(draws, bits / 2)?;
    }
    let (p, q) = if p > q { (p, q) } else { (q, p) };
    let e = BigNum::from_u32(EXPONENT)?;
    let mut n = BigNum::new()?;
    n.checked_mul(&p, &q, &mut context)?;
    let (mut p1, mut q1) = (p.to_owned()?, q.to_owned()?);
    p1.sub_word(1)?;
    q1.sub_word(1)?;
    let mut phi = BigNum::new()?;
    phi.checked_mul(&p1, &q1, &mut context)?;
    let mut d = BigNum::new()?;
    d.mod_inverse(&e, &phi, &mut context)?;
    let (mut dp, mut dq, mut qi) = (BigNum::new()?, BigNum::new()?, BigNum::new()?);
    dp.nnmod(&d, &p1, &mut context)?;
    dq.nnmod(&d, &q1, &mut context)?;
    qi.mod_inverse(&q, &p, &mut context)?;
    let rsa: Rsa<Private> = RsaPrivateKeyBuilder::new(n, e, d)?.set_factors(p, q)?.set_crt_params(dp, dq, qi)?.build();
    Ok(PKey::from_rsa(rsa)?)
}

fn ec_key(draws: &mut Stream) -> Result<PKey<Private>, Halt> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let mut context = BigNumContext::new_secure()?;
    let mut order = BigNum::new()?;
    group.order(&mut order, &mut context)?;
    let mut bytes = [0; 32];
    loop {
        draws.fill(&mut bytes);
        let secret = BigNum::from_slice(&bytes)?;
        if secret.num_bits() == 0 || secret >= order {
            continue;
        }
        let mut public = EcPoint::new(&group)?;
        public.mul_generator2(&group, &secret, &mut context)?;
        return Ok(PKey::from_ec_key(EcKey::from_private_components(&group, &secret, &public)?)?);
    }
}

/// With parameters of 1024 and 160 bits, as sprig makes them.
#[allow(clippy::many_single_char_names, reason = "DSA's own names")]
fn dsa_key(draws: &mut Stream) -> Result<PKey<Private>, Halt> {
    let mut context = BigNumContext::new_secure()?;
    let q = draw_prime(draws, 160)?;
    let mut step = q.to_owned()?;
    step.mul_word(2)?;
    let mut bytes = [0; 128];
    let p = loop {
        if draws.is_stopped() {
            return Err(Halt::Stopped);
        }
        draws.fill(&mut bytes);
        bytes[0] |= 0x80;
        let mut p = BigNum::from_slice(&bytes)?;
        let mut rest = BigNum::new()?;
        rest.nnmod(&p, &step, &mut context)?;
        // The nearest p below with q a factor of p - 1.
        p = &p - &rest;
        p.add_word(1)?;
        if p.num_bits() == 1024 && prime::is_prime(&p, &mut context)? {
            break p;
        }
    };
    let one = BigNum::from_u32(1)?;
    let cofactor = &(&p - &one) / &q;
    let mut g = one.to_owned()?;
    let mut base = one.to_owned()?;
    while g == one {
        base.add_word(1)?;
        let mut power = BigNum::new()?;
        power.mod_exp(&base, &cofactor, &p, &mut context)?;
        g = power;
    }
    let mut secret = [0; 20];
    let x = loop {
        draws.fill(&mut secret);
        let x = BigNum::from_slice(&secret)?;
        if x.num_bits() > 0 && x < q {
            break x;
        }
    };
    let mut y = BigNum::new()?;
    y.mod_exp(&g, &x, &p, &mut context)?;
    Ok(PKey::from_dsa(Dsa::from_private_components(p, q, g, x, y)?)?)
}

/// PKCS#1 for RSA, SEC 1 for elliptic curves, PKCS#8 for the rest, as sprig writes keys.
fn key_pem(key: &PKey<Private>) -> Result<String, Halt> {
    let pem = match key.id() {
        Id::RSA => key.rsa()?.private_key_to_pem()?,
        Id::EC => key.ec_key()?.private_key_to_pem()?,
        Id::DSA => key.dsa()?.private_key_to_pem()?,
        _ => key.private_key_to_pem_pkcs8()?,
    };
    Ok(String::from_utf8_lossy(&pem).into_owned())
}

fn private_key(eval: &mut Eval<'_>, args: &[Value]) -> Out {
    let kind = text(&args[0]);
    let place = Place::of(eval, "genPrivateKey", args);
    let kept = if let Some(kept) = eval.input.drawn.get(&place.id()) {
        kept.clone()
    } else {
        let mut draws = place.draws(eval, 0)?;
        let key = match &*kind {
            "" | "rsa" => rsa_key(&mut draws, 4096),
            "ecdsa" => ec_key(&mut draws),
            "ed25519" => {
                let mut secret = [0; 32];
                draws.fill(&mut secret);
                PKey::private_key_from_raw_bytes(&secret, Id::ED25519).map_err(Halt::from)
            }
            "dsa" => dsa_key(&mut draws),
            other => return Ok(Value::from(format!("Unknown type {other}"))),
        };
        let key = key.and_then(|key| key_pem(&key)).map_err(failed)?;
        let of = made_where(eval, "genPrivateKey");
        Kept { of, key, certificate: String::new(), generation: 0, renew: None }
    };
    eval.secrets.add(&kept.key);
    let value = Value::from(kept.key.as_str());
    eval.drawn.insert(place.id(), kept);
    Ok(value)
}

fn read_key(value: &Value) -> Result<PKey<Private>, String> {
    let bytes = value.bytes().unwrap_or_default();
    if !String::from_utf8_lossy(bytes).contains("-----BEGIN ") {
        return Err("no PEM data in input".into());
    }
    PKey::private_key_from_pem(bytes).map_err(|error| format!("no private key data in PEM block: {error}"))
}

fn certificate(cert: Value, key: Value) -> Value {
    Value::object(Object::Struct(Struct::new(
        Ty::Certificate.name(),
        vec![Field::plain("Cert", cert), Field::plain("Key", key)],
    )))
}

fn custom_cert(_: &mut Eval<'_>, args: &[Value]) -> Out {
    let cert = decode_base64(args[0].bytes().unwrap_or_default())
        .map_err(|_| Fault::from("unable to decode base64 certificate"))?;
    let key = decode_base64(args[1].bytes().unwrap_or_default())
        .map_err(|_| Fault::from("unable to decode base64 private key"))?;
    X509::from_pem(&cert).map_err(|_| Fault::from("unable to decode certificate"))?;
    let key = Value::from_bytes(key);
    read_key(&key).map_err(|error| format!("error parsing private key: {error}"))?;
    Ok(certificate(Value::from_bytes(cert), key))
}

/// A certificate that signs others.
struct Authority {
    cert: X509,
    key: PKey<Private>,
}

impl Authority {
    fn read(value: &Value) -> Result<Self, Fault> {
        let field = |name: &str| match value {
            Value::Object(object) => match &**object {
                Object::Struct(inner) => inner.field(name).cloned().unwrap_or_default(),
                _ => Value::Invalid,
            },
            _ => Value::Invalid,
        };
        let cert = X509::from_pem(field("Cert").bytes().unwrap_or_default())
            .map_err(|_| Fault::from("unable to decode certificate"))?;
        let key = read_key(&field("Key")).map_err(|error| format!("error parsing private key: {error}"))?;
        Ok(Self { cert, key })
    }
}

fn names(value: &Value, what: &str) -> Result<Vec<String>, Fault> {
    let Value::List(list) = value else { return Ok(Vec::new()) };
    let name = |item: &Value| match item {
        Value::Str(text) => Ok(text.to_string()),
        other => Err(Fault::from(format!("error {what}: {} is not a string", print::text(other)))),
    };
    list.items.iter().map(name).collect()
}

/// What is asked for in a certificate.
struct Request<'r> {
    name: &'r str,
    addresses: Vec<String>,
    hosts: Vec<String>,
    days: i64,
    authority: bool,
}

fn authority(args: &[Value], key: &PKey<Private>, draws: &mut Stream, start: Timestamp) -> Result<Pair, Fault> {
    let name = text(&args[0]);
    let request =
        Request { name: &name, addresses: Vec::new(), hosts: Vec::new(), days: int(&args[1]), authority: true };
    issue(&request, None, key, draws, start)
}

fn signed(
    args: &[Value],
    authority: Option<&Authority>,
    key: &PKey<Private>,
    draws: &mut Stream,
    start: Timestamp,
) -> Result<Pair, Fault> {
    let name = text(&args[0]);
    let addresses = names(&args[1], "parsing ip")?;
    for address in &addresses {
        if address.parse::<std::net::IpAddr>().is_err() {
            return Err(format!("error parsing ip: {address}").into());
        }
    }
    let hosts = names(&args[2], "processing alternate dns name")?;
    let request = Request { name: &name, addresses, hosts, days: int(&args[3]), authority: false };
    issue(&request, authority, key, draws, start)
}

fn issue(
    request: &Request<'_>,
    authority: Option<&Authority>,
    key: &PKey<Private>,
    draws: &mut Stream,
    start: Timestamp,
) -> Result<Pair, Fault> {
    // Not before its authority, which may have been made anew since the release was subscribed.
    let start = authority.and_then(|authority| not_before(&authority.cert)).map_or(start, |first| start.max(first));
    let cert = build(request, authority, key, draws, start).map_err(failed)?;
    let pem = cert.to_pem().map_err(failed)?;
    Ok(Pair { certificate: String::from_utf8_lossy(&pem).into_owned(), key: key_pem(key).map_err(failed)?, start })
}

fn build(
    request: &Request<'_>,
    authority: Option<&Authority>,
    key: &PKey<Private>,
    draws: &mut Stream,
    start: Timestamp,
) -> Result<X509, ErrorStack> {
    let mut serial = [0; 16];
    draws.fill(&mut serial);
    let mut subject = X509Name::builder()?;
    if !request.name.is_empty() {
        // By its type: else OpenSSL takes 64 characters and no more, and Go any number.
        subject.append_entry_by_nid_with_type(Nid::COMMONNAME, request.name, Asn1Type::UTF8STRING)?;
    }
    let subject = subject.build();
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    let serial = Asn1Integer::from_bn(&*BigNum::from_slice(&serial)?)?;
    builder.set_serial_number(&serial)?;
    builder.set_subject_name(&subject)?;
    builder.set_issuer_name(authority.map_or(&subject, |authority| authority.cert.subject_name()))?;
    let start = start.as_second();
    let end = start.saturating_add(request.days.saturating_mul(86_400));
    let (start, end) = (Asn1Time::from_unix(start)?, Asn1Time::from_unix(end)?);
    builder.set_not_before(&start)?;
    builder.set_not_after(&end)?;
    builder.set_pubkey(key)?;
    let mut usage = KeyUsage::new();
    usage.critical().digital_signature().key_encipherment();
    if request.authority {
        usage.key_cert_sign();
    }
    builder.append_extension(usage.build()?)?;
    builder.append_extension(ExtendedKeyUsage::new().server_auth().client_auth().build()?)?;
    let mut constraints = BasicConstraints::new();
    constraints.critical();
    if request.authority {
        constraints.ca();
    }
    builder.append_extension(constraints.build()?)?;
    let issuer = authority.map(|authority| &*authority.cert);
    if request.authority {
        let identifier = SubjectKeyIdentifier::new().build(&builder.x509v3_context(issuer, None))?;
        builder.append_extension(identifier)?;
    }
    if issuer.is_some_and(|issuer| issuer.subject_key_id().is_some()) {
        let identifier = AuthorityKeyIdentifier::new().keyid(true).build(&builder.x509v3_context(issuer, None))?;
        builder.append_extension(identifier)?;
    }
    if !request.hosts.is_empty() || !request.addresses.is_empty() {
        let mut names = SubjectAlternativeName::new();
        if request.name.is_empty() {
            names.critical();
        }
        for host in &request.hosts {
            names.dns(host);
        }
        for address in &request.addresses {
            names.ip(address);
        }
        let names = names.build(&builder.x509v3_context(issuer, None))?;
        builder.append_extension(names)?;
    }
    let signer = authority.map_or(key, |authority| &authority.key);
    let digest = if signer.id() == Id::ED25519 { MessageDigest::null() } else { MessageDigest::sha256() };
    builder.sign(signer, digest)?;
    Ok(builder.build())
}

/// From when on a certificate is valid.
fn not_before(certificate: &X509) -> Option<Timestamp> {
    let since = Asn1Time::from_unix(0).ok()?.diff(certificate.not_before()).ok()?;
    Timestamp::from_second(i64::from(since.days) * 86_400 + i64::from(since.secs)).ok()
}

const MASTER: &[u8] = b"com.lyndir.masterpassword";

/// The templates of a kind of password: each letter stands for a class of characters.
fn templates(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "maximum" => &["anoxxxxxxxxxxxxxxxxx", "axxxxxxxxxxxxxxxxxno"],
        "long" => &[
            "CvcvnoCvcvCvcv",
            "CvcvCvcvnoCvcv",
            "CvcvCvcvCvcvno",
            "CvccnoCvcvCvcv",
            "CvccCvcvnoCvcv",
            "CvccCvcvCvcvno",
            "CvcvnoCvccCvcv",
            "CvcvCvccnoCvcv",
            "CvcvCvccCvcvno",
            "CvcvnoCvcvCvcc",
            "CvcvCvcvnoCvcc",
            "CvcvCvcvCvccno",
            "CvccnoCvccCvcv",
            "CvccCvccnoCvcv",
            "CvccCvccCvcvno",
            "CvcvnoCvccCvcc",
            "CvcvCvccnoCvcc",
            "CvcvCvccCvccno",
            "CvccnoCvcvCvcc",
            "CvccCvcvnoCvcc",
            "CvccCvcvCvccno",
        ],
        "medium" => &["CvcnoCvc", "CvcCvcno"],
        "short" => &["Cvcn"],
        "basic" => &["aaanaaan", "aannaaan", "aaannaaa"],
        "pin" => &["nnnn"],
        _ => return None,
    })
}

fn characters(class: u8) -> &'static [u8] {
    match class {
        b'V' => b"AEIOU",
        b'C' => b"BCDFGHJKLMNPQRSTVWXYZ",
        b'v' => b"aeiou",
        b'c' => b"bcdfghjklmnpqrstvwxyz",
        b'A' => b"AEIOUBCDFGHJKLMNPQRSTVWXYZ",
        b'a' => b"AEIOUaeiouBCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz",
        b'n' => b"0123456789",
        b'o' => b"@&%?,=[]_:-+*$#!'^~;()/.",
        _ => b"AEIOUaeiouBCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz0123456789!@#$%^&*()",
    }
}

/// The algorithm of Master Password.
fn derive_password(args: &[Value]) -> Result<String, String> {
    let counter = u32::try_from(int(&args[0])).map_err(|error| error.to_string())?;
    let kind = text(&args[1]);
    let Some(templates) = templates(&kind) else { return Ok(format!("cannot find password template {kind}")) };
    let (password, user, site) = (&args[2], &args[3], &args[4]);
    let bytes = |value: &Value| value.bytes().unwrap_or_default().to_vec();
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let (user, site) = (bytes(user), bytes(site));
    let salt = [MASTER, &length(&user), &user].concat();
    let mut key = [0; 64];
    openssl::pkcs5::scrypt(&bytes(password), &salt, 32768, 8, 2, 128 << 20, &mut key)
        .map_err(|error| error.to_string())?;
    let message = [MASTER, &length(&site), &site, &counter.to_be_bytes()].concat();
    let seed = super::random::hmac_sha256(&key, &message);
    let template = templates[usize::from(seed[0]) % templates.len()];
    let picked = template.bytes().zip(&seed[1..]).map(|(class, byte)| {
        let characters = characters(class);
        char::from(characters[usize::from(*byte) % characters.len()])
    });
    Ok(picked.collect())
}
