//! The Secret of a target: the seed of its random functions, the keys and certificates that they made, and the times that
//! charts asked for.
//!
//! Guarantees: a seed is made once and never changed; nothing of the Secret gets into errors. A write names the version it
//! was decided on, so that of two processes only one gets through; what others put into the metadata stays.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use sha2::{Digest, Sha256};

use crate::api::FIELD_MANAGER;
use crate::api::condition::Reason;
use crate::core::chart::{Keyring, Seed, Times};
use crate::core::digest::hex;
use crate::core::ownership::Owner;
use crate::core::retry::ErrorClass;
use crate::core::secret_type;
use crate::core::status::Trouble;
use crate::io::apply::refusal;

/// Type of these Secrets.
pub const TYPE: &str = secret_type::SEED;
/// `clusterctl move` takes what carries it.
const MOVE: &str = "clusterctl.cluster.x-k8s.io/move";
/// Largest keyring in bytes: a Secret takes 1 MiB, and the API server encodes it in base64.
const MAX_KEYRING: usize = 700 * 1024;
const SEED: &str = "seed";
const KEYRING: &str = "keyring";
const TIMES: &str = "times";

/// What is kept beside the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Keys and certificates.
    pub keyring: Keyring,
    /// When releases were first rendered.
    pub times: Times,
}

/// A Secret as it was read or written.
#[derive(Clone)]
pub struct Kept {
    /// The seed.
    pub seed: Seed,
    /// What may change.
    pub memory: Memory,
    /// Its version.
    pub version: String,
    /// Labels, annotations and the like, as they were.
    metadata: ObjectMeta,
    /// It was made just now.
    pub is_new: bool,
}

/// The name of the Secret of a target.
pub fn name(target: &Owner) -> String {
    let name = format!("{}-{}-seed", target.name, target.kind.to_lowercase());
    if name.len() <= 253 {
        return name;
    }
    let digest = hex(&Sha256::digest(&name));
    let mut end = 200;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}-seed", &name[..end], &digest[..16])
}

/// Reads the Secret, and makes it where there is none.
///
/// # Errors
/// What stands in the way.
pub async fn read_or_make(client: &Client, target: &Owner) -> Result<Kept, Trouble> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &target.namespace);
    let name = name(target);
    if let Some(secret) = api.get_opt(&name).await.map_err(|error| failed("read", target, &error))? {
        return understood(&secret, target);
    }
    let mut secret = secret(target, &Seed(rand::random()), &Memory::default(), ObjectMeta::default());
    match api.create(&params(), &secret).await {
        Ok(made) => {
            secret.metadata = made.metadata;
            Ok(Kept { is_new: true, ..understood(&secret, target)? })
        }
        // Somebody else was faster.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let secret = api.get(&name).await.map_err(|error| failed("read", target, &error))?;
            understood(&secret, target)
        }
        Err(error) => Err(failed("created", target, &error)),
    }
}

/// Reads the Secret; where there is none, one is thought up that nobody keeps: for those who only look.
///
/// # Errors
/// What stands in the way.
pub async fn read_or_imagine(client: &Client, target: &Owner) -> Result<Kept, Trouble> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &target.namespace);
    match api.get_opt(&name(target)).await.map_err(|error| failed("read", target, &error))? {
        Some(secret) => understood(&secret, target),
        None => Ok(Kept {
            seed: Seed(rand::random()),
            memory: Memory::default(),
            version: String::new(),
            metadata: ObjectMeta::default(),
            is_new: true,
        }),
    }
}

/// Writes another memory; `None` if the Secret has changed since it was read.
///
/// # Errors
/// What stands in the way.
pub async fn write(client: &Client, target: &Owner, kept: &Kept, memory: Memory) -> Result<Option<Kept>, Trouble> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &target.namespace);
    let size = serde_json::to_vec(&memory.keyring).map_or(0, |json| json.len());
    if size > MAX_KEYRING {
        let message = format!(
            "the keys and certificates that the chart makes take {size} bytes, a Secret holds {MAX_KEYRING}: make fewer"
        );
        return Err(Trouble::new(ErrorClass::Invalid, Reason::RenderFailed, message));
    }
    let changed = secret(target, &kept.seed, &memory, kept.metadata.clone());
    match api.replace(&name(target), &params(), &changed).await {
        Ok(written) => {
            let version = written.resource_version().unwrap_or_default();
            let metadata = written.metadata;
            Ok(Some(Kept { seed: kept.seed, memory, version, metadata, is_new: kept.is_new }))
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(failed("written", target, &error)),
    }
}

/// Deletes the Secret of a target that is gone; one of that name that is not ours is left alone, and so is all where Secrets are not for
/// us: none was made there with these rights.
///
/// # Errors
/// What the API server refused.
pub async fn delete(client: &Client, target: &Owner) -> Result<(), kube::Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &target.namespace);
    let found = match api.get_opt(&name(target)).await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            tracing::warn!(
                secret = name(target),
                namespace = target.namespace,
                "if there is such a Secret it is left behind: {}",
                status.message
            );
            return Ok(());
        }
        found => found?,
    };
    let Some(secret) = found else { return Ok(()) };
    let labels = secret.labels();
    if secret.type_.as_deref() != Some(TYPE)
        || !target.labels().iter().all(|(key, value)| labels.get(*key) == Some(value))
    {
        return Ok(());
    }
    let preconditions = Some(Preconditions { uid: secret.uid(), resource_version: secret.resource_version() });
    match api.delete(&name(target), &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
}

/// The Secret as it is to be, with what `metadata` holds besides.
fn secret(target: &Owner, seed: &Seed, memory: &Memory, metadata: ObjectMeta) -> Secret {
    let mut labels = metadata.labels.clone().unwrap_or_default();
    labels.extend(target.labels().into_iter().map(|(key, value)| (key.to_owned(), value)));
    labels.entry(MOVE.to_owned()).or_default();
    let json = |json: Result<Vec<u8>, serde_json::Error>| ByteString(json.unwrap_or_default());
    let data = [
        (SEED.to_owned(), ByteString(seed.0.to_vec())),
        (KEYRING.to_owned(), json(serde_json::to_vec(&memory.keyring))),
        (TIMES.to_owned(), json(serde_json::to_vec(&memory.times))),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(name(target)),
            namespace: Some(target.namespace.clone()),
            labels: Some(labels),
            managed_fields: None,
            ..metadata
        },
        type_: Some(TYPE.to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

fn understood(secret: &Secret, target: &Owner) -> Result<Kept, Trouble> {
    let invalid = |problem: &str| {
        let name = format!("{}/{}", target.namespace, name(target));
        let message = format!(
            "Secret {name}, which keeps what random functions draw from, {problem}: restore it from a backup, or delete it, and passwords and keys are made anew"
        );
        Trouble::new(ErrorClass::Waiting, Reason::SecretInvalid, message)
    };
    let data = secret.data.as_ref();
    if secret.type_.as_deref() != Some(TYPE) {
        return Err(invalid(&format!("is not of type {TYPE}")));
    }
    let seed = data.and_then(|data| <[u8; 32]>::try_from(data.get(SEED)?.0.as_slice()).ok());
    let seed = Seed(seed.ok_or_else(|| invalid("holds no seed of 32 bytes"))?);
    let keyring = data.and_then(|data| serde_json::from_slice(&data.get(KEYRING)?.0).ok());
    let keyring = keyring.ok_or_else(|| invalid("holds no keyring that can be read"))?;
    // One from before there were times has none.
    let times = match data.and_then(|data| data.get(TIMES)) {
        Some(times) => serde_json::from_slice(&times.0).map_err(|_| invalid("holds times that can't be read"))?,
        None => Times::default(),
    };
    let (version, metadata) = (secret.resource_version().unwrap_or_default(), secret.metadata.clone());
    Ok(Kept { seed, memory: Memory { keyring, times }, version, metadata, is_new: false })
}

fn failed(action: &str, target: &Owner, error: &kube::Error) -> Trouble {
    let refused = refusal(error);
    let message = format!(
        "Secret {}/{} could not be {action}: {}; random functions of the chart draw from it",
        target.namespace,
        name(target),
        refused.message
    );
    let class = match refused.reason {
        Reason::Forbidden | Reason::Invalid => ErrorClass::Waiting,
        _ => ErrorClass::Transient,
    };
    Trouble::new(class, Reason::RenderFailed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Owner {
        Owner { kind: "ClusterStack".into(), namespace: "shop".into(), name: name.into() }
    }

    type Change = fn(&mut Secret);

    #[test]
    fn a_secret_is_understood_as_it_was_written_and_told_apart_from_others() {
        let written = secret(&target("x"), &Seed([7; 32]), &Memory::default(), ObjectMeta::default());
        assert_eq!(written.name_any(), "x-clusterstack-seed");
        assert!(understood(&written, &target("x")).is_ok_and(|kept| kept.seed == Seed([7; 32])));
        let mut old = written.clone();
        old.data.as_mut().map(|data| data.remove(TIMES));
        assert!(understood(&old, &target("x")).is_ok(), "one without times");
        let changes: [(&str, Change); 4] = [
            ("is not of type", |secret| secret.type_ = Some("Opaque".into())),
            ("holds no seed", |secret| drop(secret.data.as_mut().map(|data| data.remove(SEED)))),
            ("holds no keyring", |secret| drop(secret.data.as_mut().map(|data| data.remove(KEYRING)))),
            ("holds times that", |secret| {
                secret.data.as_mut().map(|data| data.insert(TIMES.into(), ByteString(b"x".to_vec())));
            }),
        ];
        for (problem, change) in changes {
            let mut changed = written.clone();
            change(&mut changed);
            let error = understood(&changed, &target("x")).map(drop).unwrap_err();
            assert!(error.message.contains(problem), "{}", error.message);
        }
    }

    #[test]
    fn what_others_put_into_the_metadata_stays() {
        let mut found = secret(&target("x"), &Seed([7; 32]), &Memory::default(), ObjectMeta::default());
        found.metadata.resource_version = Some("5".into());
        found.metadata.annotations = Some([("backup".to_owned(), "yes".to_owned())].into());
        found.metadata.labels.as_mut().unwrap().insert("team".into(), "blue".into());
        found.metadata.labels.as_mut().unwrap().insert(MOVE.into(), "theirs".into());
        let kept = understood(&found, &target("x")).map_err(|trouble| trouble.message).unwrap();
        let again = secret(&target("x"), &kept.seed, &kept.memory, kept.metadata);
        assert_eq!(again, found);
    }

    #[test]
    fn names_fit() {
        assert!(name(&target(&"x".repeat(253))).len() <= 253);
        assert_ne!(name(&target(&("y".repeat(250) + "a"))), name(&target(&("y".repeat(250) + "b"))));
    }
}
