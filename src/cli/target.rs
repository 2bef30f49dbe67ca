//! Objects that a command is given: by kind and name as kubectl has them, or all of a kind.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::connection::{Connection, ConnectionArgs};
use super::report::Hinted;
use crate::api::{ClusterAddon, ClusterStack, ClusterStackRelease, ClusterStackSource};
use crate::core::identity;

/// A kind whose objects people ask something of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `csk`
    ClusterStack,
    /// `cskr`
    ClusterStackRelease,
    /// `css`
    ClusterStackSource,
    /// `caddon`
    ClusterAddon,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::ClusterStack, "csk"),
        (Self::ClusterStackRelease, "cskr"),
        (Self::ClusterStackSource, "css"),
        (Self::ClusterAddon, "caddon"),
    ];

    /// What the API server calls it.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ClusterStack => ApiResource::erase::<ClusterStack>(&()),
            Self::ClusterStackRelease => ApiResource::erase::<ClusterStackRelease>(&()),
            Self::ClusterStackSource => ApiResource::erase::<ClusterStackSource>(&()),
            Self::ClusterAddon => ApiResource::erase::<ClusterAddon>(&()),
        }
    }

    /// Its objects, in a namespace.
    pub fn api(self, client: Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client, namespace, &self.resource())
    }

    /// Its objects in words: `ClusterStacks`.
    pub fn many(self) -> String {
        format!("{}s", self.resource().kind)
    }
}

/// Kinds are named by their short names, in the singular and in the plural, with their group or without, in any case.
impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = text.to_lowercase();
        let is_it = |(kind, short): &(Self, &str)| {
            let resource = kind.resource();
            let names = [(*short).to_owned(), resource.kind.to_lowercase(), resource.plural];
            names.into_iter().any(|name| name == word || format!("{name}.{}", resource.group) == word)
        };
        let known = || Self::ALL.map(|(kind, short)| format!("{short} ({})", kind.resource().kind)).join(", ");
        Self::ALL
            .into_iter()
            .find(is_it)
            .map(|(kind, _)| kind)
            .ok_or_else(|| format!("{text:?} is no kind of which this can be asked: these are {}; of node images see `clusterstack images`", known()))
    }
}

/// An object as it is named: `NAME` of a ClusterStack, or `KIND/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    kind: Kind,
    name: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            None => (Kind::ClusterStack, text),
            Some((kind, name)) => (kind.parse()?, name),
        };
        match identity::subdomain(name) {
            Ok(()) => Ok(Self { kind, name: name.to_owned() }),
            Err(_) => Err(format!("{name:?} is no name of an object")),
        }
    }
}

/// Flags that say which objects.
#[derive(Args, Clone, Debug)]
pub struct TargetArgs {
    /// Objects: `NAME` of a ClusterStack, or `KIND/NAME` as `kubectl get -o name` prints it (csk, css, caddon)
    #[arg(value_name = "OBJECT", required_unless_present = "all")]
    objects: Vec<Named>,

    /// All objects of a kind
    #[arg(long, value_name = "KIND", num_args = 0..=1, default_missing_value = "csk", conflicts_with = "objects")]
    all: Option<Kind>,

    /// Namespace; that of the kubeconfig's context by default
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "objects"])]
    all_namespaces: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// An object that something is asked of.
#[derive(Clone)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// It was not named: all of its kind are meant.
    pub is_one_of_all: bool,
    /// The API server that has it.
    pub connection: Connection,
}

impl TargetArgs {
    /// The objects that are meant; `refusal` says why it can't be asked of a kind.
    ///
    /// # Errors
    /// No way to the API server, or a kind of which this can't be asked.
    pub async fn find(&self, refusal: fn(Kind) -> Option<Hinted>) -> Result<Vec<Target>> {
        let kinds = self.objects.iter().map(|named| named.kind).chain(self.all);
        if let Some(refusal) = kinds.into_iter().find_map(refusal) {
            return Err(refusal.into());
        }
        let connection = self.connection.connect().await?;
        // A variable of a script that is empty is none.
        let given = self.namespace.clone().filter(|namespace| !namespace.is_empty());
        let namespace = given.unwrap_or_else(|| connection.namespace.clone());
        let target = |kind, namespace: &str, name: &str| Target {
            is_one_of_all: self.all.is_some(),
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            connection: connection.clone(),
        };
        let Some(kind) = self.all else {
            let mut once: Vec<&Named> = Vec::new();
            for named in &self.objects {
                if !once.contains(&named) {
                    once.push(named);
                }
            }
            return Ok(once.into_iter().map(|named| target(named.kind, &namespace, &named.name)).collect());
        };
        let api: Api<DynamicObject> = if self.all_namespaces {
            Api::all_with(connection.client.clone(), &kind.resource())
        } else {
            kind.api(connection.client.clone(), &namespace)
        };
        let listed = connection.answer(api.list_metadata(&ListParams::default())).await?;
        let listed = listed.map_err(|error| connection.refused("listed", &kind.many(), error))?;
        Ok(listed
            .items
            .iter()
            .map(|found| target(kind, &found.namespace().unwrap_or_default(), &found.name_any()))
            .collect())
    }
}

impl Target {
    /// How it is called in what is printed.
    pub fn shown(&self) -> String {
        format!("{} {}/{}", self.kind.resource().kind, self.namespace, self.name)
    }

    /// The object as it is now; `None` if it is not there.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn read(&self) -> Result<Option<Value>> {
        let api = self.kind.api(self.connection.client.clone(), &self.namespace);
        let found = self.connection.answer(api.get_opt(&self.name)).await?;
        let found = found.map_err(|error| self.connection.refused("read", &self.kind.many(), error))?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    /// That it is not there.
    pub fn missing(&self) -> Hinted {
        let resource = self.kind.resource();
        let (kind, plural) = (&resource.kind, &resource.plural);
        let hint = format!("see what there is with `kubectl get {plural} -A`; -n names its namespace");
        Hinted::new(format!("no {kind} {:?} in namespace {}", self.name, self.namespace), hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_kubectl_names_them() {
        let named = |kind, name: &str| Ok(Named { kind, name: name.to_owned() });
        for (text, expected) in [
            ("scs", named(Kind::ClusterStack, "scs")),
            ("csk/scs", named(Kind::ClusterStack, "scs")),
            ("clusterstack.clusterstack.x-k8s.io/scs", named(Kind::ClusterStack, "scs")),
            ("ClusterStacks/scs", named(Kind::ClusterStack, "scs")),
            ("caddon/cluster-addon-a", named(Kind::ClusterAddon, "cluster-addon-a")),
            ("css/shared", named(Kind::ClusterStackSource, "shared")),
            ("cskr/docker-scs-1-34-v1", named(Kind::ClusterStackRelease, "docker-scs-1-34-v1")),
        ] {
            assert_eq!(text.parse::<Named>(), expected, "{text}");
        }
        for (text, expected) in [
            ("pod/x", "\"pod\" is no kind of which this can be asked: these are csk (ClusterStack), "),
            ("clusterstack.example.com/x", "is no kind"),
            ("pnir/x", "of node images see `clusterstack images`"),
            ("csk/", "\"\" is no name of an object"),
            ("csk/a/b", "\"a/b\" is no name of an object"),
            ("", "\"\" is no name of an object"),
            ("..", "\"..\" is no name of an object"),
            ("Scs", "\"Scs\" is no name of an object"),
        ] {
            let error = text.parse::<Named>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
