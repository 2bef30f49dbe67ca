//! Which kinds the API server serves: discovery, remembered until a CustomResourceDefinition changes.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::ApiResource;

use crate::core::manifest::{join_api_version, split_api_version};

/// How long a kind that was not there is taken as not there; a CustomResourceDefinition ends it earlier.
const ABSENT: Duration = Duration::from_mins(1);

/// A kind that is served.
#[derive(Clone, Debug)]
pub struct Kind {
    /// How to ask for it.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

type Group = (HashMap<String, Kind>, Instant);

/// Discovery by group and version.
#[derive(Default)]
pub struct Kinds {
    groups: Mutex<HashMap<String, Group>>,
    /// The served versions of each group, the preferred one first.
    versions: Mutex<Option<HashMap<String, Vec<String>>>>,
}

impl Kinds {
    /// The kind, `None` if the API server does not serve it.
    ///
    /// # Errors
    /// What the API server said, if it could not be asked.
    pub async fn get(&self, client: &Client, api_version: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        if let Some((kinds, read)) = self.lock().get(api_version) {
            match kinds.get(kind) {
                Some(kind) => return Ok(Some(kind.clone())),
                None if read.elapsed() < ABSENT => return Ok(None),
                None => {}
            }
        }
        let kinds = read(client, api_version).await?;
        let found = kinds.get(kind).cloned();
        self.lock().insert(api_version.to_owned(), (kinds, Instant::now()));
        Ok(found)
    }

    /// The version of a kind that the API server prefers within its group, `None` if it serves the kind in none.
    pub async fn preferred(&self, client: &Client, group: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
        for api_version in self.versions(client, group).await? {
            if let Some(kind) = self.get(client, &api_version, kind).await? {
                return Ok(Some(kind));
            }
        }
        Ok(None)
    }

    async fn versions(&self, client: &Client, group: &str) -> Result<Vec<String>, kube::Error> {
        let known = |versions: &HashMap<String, Vec<String>>| versions.get(group).cloned().unwrap_or_default();
        if let Some(versions) = &*self.lock_versions() {
            return Ok(known(versions));
        }
        let groups = client.list_api_groups().await?.groups.into_iter().map(|group| {
            let preferred = group.preferred_version.map(|version| version.group_version);
            let others = group.versions.into_iter().map(|version| version.group_version);
            let mut versions: Vec<String> = preferred.into_iter().collect();
            versions.extend(others.filter(|version| !versions.contains(version)).collect::<Vec<_>>());
            (group.name, versions)
        });
        let versions = groups.collect();
        let found = known(&versions);
        *self.lock_versions() = Some(versions);
        Ok(found)
    }

    /// Every kind that can be listed, one version each.
    pub async fn all(&self, client: &Client) -> Result<Vec<Kind>, kube::Error> {
        let mut versions = vec!["v1".to_owned()];
        let groups = client.list_api_groups().await?.groups;
        versions.extend(groups.into_iter().filter_map(|group| {
            let first = group.versions.into_iter().next();
            group.preferred_version.or(first).map(|version| version.group_version)
        }));
        let mut all = Vec::new();
        for version in versions {
            all.extend(read(client, &version).await?.into_values());
        }
        Ok(all)
    }

    /// Forgets a group: a CustomResourceDefinition of it came, changed or went.
    pub fn forget(&self, group: &str) {
        self.lock().retain(|api_version, _| split_api_version(api_version).0 != group);
        *self.lock_versions() = None;
    }

    fn lock_versions(&self) -> std::sync::MutexGuard<'_, Option<HashMap<String, Vec<String>>>> {
        self.versions.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Group>> {
        self.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn read(client: &Client, api_version: &str) -> Result<HashMap<String, Kind>, kube::Error> {
    let list = match split_api_version(api_version) {
        ("", version) => client.list_core_api_resources(version).await,
        _ => client.list_api_group_resources(api_version).await,
    };
    let list = match list {
        Ok(list) => list,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    let (group, version) = split_api_version(&list.group_version);
    Ok(list
        .resources
        .into_iter()
        .filter(|resource| !resource.name.contains('/') && resource.verbs.iter().any(|verb| verb == "list"))
        .map(|resource| {
            let served = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: join_api_version(group, version),
                kind: resource.kind.clone(),
                plural: resource.name,
            };
            (resource.kind, Kind { resource: served, namespaced: resource.namespaced })
        })
        .collect())
}
