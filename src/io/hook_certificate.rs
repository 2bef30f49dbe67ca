//! The authority and the certificate by which runtime hooks, or the admission webhook, are served, kept in a Secret that all
//! replicas share.
//!
//! Guarantees: of two processes that make or renew it at once, one gets through and the other takes what is there; a new
//! authority is trusted beside the one before it; a Secret of that name that is not ours is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::pkey::PKey;
use openssl::x509::{X509, X509Ref, X509VerifyResult};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use thiserror::Error;

use crate::api::{FIELD_MANAGER, MANAGED_BY, MANAGED_BY_LABEL};

/// How long an authority is valid, in days.
const AUTHORITY_DAYS: i32 = 3650;
/// How long a certificate is valid, in days.
const CERTIFICATE_DAYS: i32 = 365;
const BUNDLE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Why nothing can be served.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// The Secret can't be read or written.
    #[error(
        "Secret {name}, which keeps the certificate of the {what}, can't be {action}: {error}; if it was changed by hand, delete it, and another is made"
    )]
    Api {
        /// What is served.
        what: &'static str,
        /// What was tried.
        action: &'static str,
        /// Its namespace and name.
        name: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// It belongs to somebody else.
    #[error(
        "Secret {name} is not labelled {MANAGED_BY_LABEL}={MANAGED_BY}, so it is not ours: rename or delete it, the certificate of the {what} is kept there"
    )]
    Foreign {
        /// What is served.
        what: &'static str,
        /// Its namespace and name.
        name: String,
    },
    /// The leader makes it.
    #[error("Secret {name}, which keeps the certificate of the {what}, is not there yet: the leader makes it")]
    Waiting {
        /// What is served.
        what: &'static str,
        /// Its namespace and name.
        name: String,
    },
    /// What is there can't be served.
    #[error(
        "the certificate of the {what} in Secret {name} has ended, or does not fit its key or its authority: the leader makes another, and what was served is served until then"
    )]
    Unusable {
        /// What is served.
        what: &'static str,
        /// Its namespace and name.
        name: String,
    },
    /// No certificate can be made for the names.
    #[error("no certificate can be made for {names}: {error}")]
    Make {
        /// The names.
        names: String,
        /// Why.
        error: rcgen::Error,
    },
}

/// Authority, certificate and keys, PEM. Debug shows no key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificates of the authority, the present one first.
    pub bundle: String,
    authority_key: String,
    /// The server's certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// What has to be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Certificate,
    All,
}

/// Which certificate is kept where.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Namespace of the Secret.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Whom the certificate is for: DNS names and addresses.
    pub names: &'a [String],
    /// What is served, in the certificate's own name and in messages: `runtime hooks`.
    pub what: &'static str,
}

/// The identity that is kept: read, and made or renewed where that is due and this replica `leads`.
///
/// # Errors
/// What stands in the way.
pub async fn ensure(
    client: &Client,
    kept: Kept<'_>,
    (now, leads): (Timestamp, bool),
) -> Result<Identity, CertificateError> {
    let Kept { namespace, name, names, what } = kept;
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let shown = || format!("{namespace}/{name}");
    let failed = |action, error| CertificateError::Api { what, action, name: shown(), error };
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    loop {
        let Some(found) = api.get_opt(name).await.map_err(|error| failed("read", error))? else {
            if !leads {
                return Err(CertificateError::Waiting { what, name: shown() });
            }
            let identity = Identity::new(None, (what, names), now)?;
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            };
            match api.create(&params, &secret(&identity, metadata)).await {
                Ok(_) => {
                    tracing::info!(secret = shown(), "authority and certificate of the {what} made");
                    return Ok(identity);
                }
                // Another replica was faster: its own is read.
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => continue,
                Err(error) => return Err(failed("created", error)),
            }
        };
        if found.labels().get(MANAGED_BY_LABEL).map(String::as_str) != Some(MANAGED_BY) {
            return Err(CertificateError::Foreign { what, name: shown() });
        }
        let known = Identity::read(&found);
        let due = known.as_ref().map_or(Due::All, |known| known.due(names, now));
        let identity = match (due, known) {
            (Due::Nothing, Some(known)) => return Ok(known),
            // It may be for the names of others.
            (_, Some(known)) if !leads && known.is_usable(now) => return Ok(known),
            (_, Some(_)) if !leads => return Err(CertificateError::Unusable { what, name: shown() }),
            (_, None) if !leads => return Err(CertificateError::Waiting { what, name: shown() }),
            (Due::Certificate, Some(known)) => known.renewed_or_new((what, names), now)?,
            (_, known) => Identity::new(known.as_ref(), (what, names), now)?,
        };
        let metadata = ObjectMeta { managed_fields: None, ..found.metadata };
        match api.replace(name, &params, &secret(&identity, metadata)).await {
            Ok(_) => {
                tracing::info!(secret = shown(), "certificate of the {what} made anew");
                return Ok(identity);
            }
            // It was changed or deleted meanwhile.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(failed("written", error)),
        }
    }
}

/// The authorities that a Secret of ours has, PEM, and whether its certificate can be served by them.
pub fn look(secret: &Secret, now: Timestamp) -> (String, bool) {
    Identity::read(secret).map_or_else(Default::default, |known| {
        let is_usable = known.is_usable(now);
        (known.bundle, is_usable)
    })
}

fn secret(identity: &Identity, metadata: ObjectMeta) -> Secret {
    let mut labels = metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    let data = [
        (BUNDLE, &identity.bundle),
        (AUTHORITY_KEY, &identity.authority_key),
        (CERTIFICATE, &identity.certificate),
        (KEY, &identity.key),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())));
    Secret {
        metadata: ObjectMeta { labels: Some(labels), ..metadata },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

impl Identity {
    /// All of it made now, with a certificate for `names`. The authority of `before` stays trusted while it is valid.
    fn new(before: Option<&Self>, (what, names): (&str, &[String]), now: Timestamp) -> Result<Self, CertificateError> {
        let failed = |error| CertificateError::Make { names: names.join(", "), error };
        let key = KeyPair::generate().map_err(failed)?;
        let authority = authority(what, now).self_signed(&key).map_err(failed)?;
        let trusted = before.map(|before| before.trusted(now)).unwrap_or_default();
        let made = Self {
            bundle: authority.pem() + &trusted,
            authority_key: key.serialize_pem(),
            certificate: String::new(),
            key: String::new(),
        };
        made.renewed((what, names), now)
    }

    /// Another certificate of the same authority; of a new one where that is somebody else's, whose name or kind of key our
    /// certificates would not fit.
    fn renewed_or_new(&self, whom: (&str, &[String]), now: Timestamp) -> Result<Self, CertificateError> {
        match self.renewed(whom, now) {
            Ok(renewed) if renewed.due(whom.1, now) == Due::Nothing => Ok(renewed),
            _ => Self::new(Some(self), whom, now),
        }
    }

    /// Another certificate of the same authority.
    fn renewed(&self, (what, names): (&str, &[String]), now: Timestamp) -> Result<Self, CertificateError> {
        let failed = |error| CertificateError::Make { names: names.join(", "), error };
        let issuer = Issuer::new(authority(what, now), KeyPair::from_pem(&self.authority_key).map_err(failed)?);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
        valid(&mut params, now, CERTIFICATE_DAYS);
        params.distinguished_name = called(&format!("{what} of clusterstack"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem(), ..self.clone() })
    }

    fn read(secret: &Secret) -> Option<Self> {
        let text = |key: &str| String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok();
        Some(Self {
            bundle: text(BUNDLE)?,
            authority_key: text(AUTHORITY_KEY)?,
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
        })
    }

    /// The authorities that are valid still, PEM.
    fn trusted(&self, now: Timestamp) -> String {
        let all = X509::stack_from_pem(self.bundle.as_bytes()).unwrap_or_default();
        let valid = all.iter().filter(|one| seconds(one.not_after(), now).is_some_and(|left| left > 0)).take(2);
        valid.filter_map(|one| String::from_utf8(one.to_pem().ok()?).ok()).collect()
    }

    /// What is to be made anew: at two thirds of its life, or where it does not fit.
    fn due(&self, names: &[String], now: Timestamp) -> Due {
        let authority = X509::stack_from_pem(self.bundle.as_bytes()).ok().and_then(|all| all.into_iter().next());
        let authority_key = PKey::private_key_from_pem(self.authority_key.as_bytes()).ok();
        let (Some(authority), Some(authority_key)) = (authority, authority_key) else { return Due::All };
        let is_its_key = authority.public_key().is_ok_and(|public| public.public_eq(&authority_key));
        if !is_its_key || is_old(&authority, now) {
            return Due::All;
        }
        let certificate = X509::from_pem(self.certificate.as_bytes()).ok();
        let key = PKey::private_key_from_pem(self.key.as_bytes()).ok();
        let (Some(certificate), Some(key)) = (certificate, key) else { return Due::Certificate };
        let is_signed = is_issued(&authority, &certificate);
        let is_its_key = certificate.public_key().is_ok_and(|public| public.public_eq(&key));
        let wanted: BTreeSet<String> = names.iter().cloned().collect();
        let fits = is_signed && is_its_key && !is_old(&certificate, now) && names_of(&certificate) == wanted;
        if fits { Due::Nothing } else { Due::Certificate }
    }

    /// Whether who trusts the bundle may be served by it, whatever names it is for.
    fn is_usable(&self, now: Timestamp) -> bool {
        let authorities = X509::stack_from_pem(self.bundle.as_bytes()).unwrap_or_default();
        let certificate = X509::from_pem(self.certificate.as_bytes()).ok();
        let key = PKey::private_key_from_pem(self.key.as_bytes()).ok();
        certificate.zip(key).is_some_and(|(certificate, key)| {
            let is_its_key = certificate.public_key().is_ok_and(|public| public.public_eq(&key));
            let lives = seconds(certificate.not_after(), now).is_some_and(|left| left > 0);
            is_its_key && lives && authorities.iter().any(|authority| is_issued(authority, &certificate))
        })
    }
}

/// By name, key identifier and signature, as who verifies it looks at it.
fn is_issued(authority: &X509Ref, certificate: &X509Ref) -> bool {
    let is_signed = authority.public_key().is_ok_and(|key| certificate.verify(&key).unwrap_or_default());
    is_signed && authority.issued(certificate) == X509VerifyResult::OK
}

fn authority(what: &str, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    valid(&mut params, now, AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = called(&format!("authority for the {what} of clusterstack"));
    params
}

fn called(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// From yesterday, for clocks that are behind.
fn valid(params: &mut CertificateParams, now: Timestamp, days: i32) {
    let day = |offset: i32| {
        let at = now.checked_add(SignedDuration::from_hours(24 * i64::from(offset))).unwrap_or(now);
        let date = at.to_zoned(TimeZone::UTC).date();
        let part = |part: i8| u8::try_from(part).unwrap_or(1);
        date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}

/// Seconds from `now` to a time.
fn seconds(time: &Asn1TimeRef, now: Timestamp) -> Option<i64> {
    let difference = Asn1Time::from_unix(now.as_second()).ok()?.diff(time).ok()?;
    Some(i64::from(difference.days) * 86_400 + i64::from(difference.secs))
}

/// Whether two thirds of its life are over, or it has not begun.
fn is_old(certificate: &X509Ref, now: Timestamp) -> bool {
    let times = seconds(certificate.not_before(), now).zip(seconds(certificate.not_after(), now));
    times.is_none_or(|(begins, ends)| begins > 0 || ends < (ends - begins) / 3)
}

fn names_of(certificate: &X509Ref) -> BTreeSet<String> {
    let names = certificate.subject_alt_names();
    let address = |bytes: &[u8]| match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    let name = |name: &openssl::x509::GeneralNameRef| {
        name.dnsname().map(str::to_owned).or_else(|| address(name.ipaddress()?).map(|address| address.to_string()))
    };
    names.iter().flatten().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: &str = "runtime hooks";

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + days * 86_400).unwrap()
    }

    fn names() -> Vec<String> {
        ["hooks.system.svc", "127.0.0.1", "::1"].map(str::to_owned).to_vec()
    }

    fn made() -> Identity {
        Identity::new(None, (HOOKS, &names()), at(0)).unwrap()
    }

    #[test]
    fn it_fits_until_two_thirds_of_its_life() {
        for (days, due) in [
            (0, Due::Nothing),
            (200, Due::Nothing),
            (250, Due::Certificate),
            (400, Due::Certificate),
            (2500, Due::All),
            (5000, Due::All),
            (-3, Due::All),
        ] {
            assert_eq!(made().due(&names(), at(days)), due, "after {days} days");
        }
    }

    #[test]
    fn what_does_not_fit_is_made_anew() {
        let (made, other) = (made(), made());
        for (name, identity, names, due) in [
            ("other names", made.clone(), vec!["elsewhere.svc".to_owned()], Due::Certificate),
            ("fewer names", made.clone(), names()[..2].to_vec(), Due::Certificate),
            ("another's key", Identity { key: other.key.clone(), ..made.clone() }, names(), Due::Certificate),
            (
                "another's certificate",
                Identity { certificate: other.certificate.clone(), key: other.key.clone(), ..made.clone() },
                names(),
                Due::Certificate,
            ),
            ("no certificate", Identity { certificate: "x".into(), ..made.clone() }, names(), Due::Certificate),
            ("another's authority", Identity { bundle: other.bundle.clone(), ..made.clone() }, names(), Due::All),
            ("no authority", Identity { bundle: String::new(), ..made.clone() }, names(), Due::All),
            ("no key of the authority", Identity { authority_key: "x".into(), ..made.clone() }, names(), Due::All),
        ] {
            assert_eq!(identity.due(&names, at(1)), due, "{name}");
        }
    }

    #[test]
    fn a_new_authority_is_trusted_beside_the_one_before() {
        let first = made();
        let second = Identity::new(Some(&first), (HOOKS, &names()), at(2500)).unwrap();
        assert_eq!(second.due(&names(), at(2500)), Due::Nothing);
        assert!(second.bundle.ends_with(&first.trusted(at(2500))) && !first.trusted(at(2500)).is_empty());
        assert_eq!(first.trusted(at(4000)), "");
        let renewed = first.renewed((HOOKS, &names()), at(300)).unwrap();
        assert_eq!((renewed.due(&names(), at(300)), &renewed.bundle), (Due::Nothing, &first.bundle));
    }

    #[test]
    fn an_authority_of_somebody_else_gives_way_when_its_certificate_ends() {
        let key = KeyPair::generate().unwrap();
        let mut params = authority(HOOKS, at(0));
        params.distinguished_name = called("my company");
        let theirs = params.self_signed(&key).unwrap().pem();
        let by_name = Identity { bundle: theirs, authority_key: key.serialize_pem(), ..made() };
        let by_key = Identity { authority_key: "-----BEGIN EC PRIVATE KEY-----".to_owned(), ..made() };
        for (name, theirs) in [("its name", by_name), ("its key", by_key)] {
            let renewed = theirs.renewed_or_new((HOOKS, &names()), at(300)).unwrap();
            assert_eq!(renewed.due(&names(), at(300)), Due::Nothing, "{name}");
            assert!(renewed.bundle.ends_with(&theirs.trusted(at(300))), "{name}");
        }
    }

    #[test]
    fn others_serve_what_the_leader_has_not_made_anew_only_while_it_can_be_verified() {
        let (made, other) = (made(), made());
        for (name, identity, days, expected) in [
            ("good", made.clone(), 1, true),
            ("old", made.clone(), 300, true),
            ("ended", made.clone(), 400, false),
            ("another's key", Identity { key: other.key.clone(), ..made.clone() }, 1, false),
            ("another's authority", Identity { bundle: other.bundle.clone(), ..made.clone() }, 1, false),
            ("garbage", Identity { certificate: "x".into(), ..made.clone() }, 1, false),
        ] {
            assert_eq!(identity.is_usable(at(days)), expected, "{name}");
        }
    }

    #[test]
    fn it_is_read_as_it_was_written_and_shows_no_key() {
        let made = made();
        assert_eq!(Identity::read(&secret(&made, ObjectMeta::default())), Some(made.clone()));
        assert_eq!(Identity::read(&Secret::default()), None);
        let kept = secret(&made, ObjectMeta::default());
        assert_eq!(look(&kept, at(1)), (made.bundle.clone(), true));
        assert_eq!((look(&kept, at(400)).1, look(&Secret::default(), at(1))), (false, (String::new(), false)));
        assert_eq!(format!("{made:?}"), "Identity { .. }");
    }
}
