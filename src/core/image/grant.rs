//! Templates of other namespaces: which images may be made by them.
//!
//! A template lends its provider's credentials and pods. So the word of an object in a user's namespace is not enough: the
//! release that lists the image must have come through a ClusterStackSource of the template's namespace that names the
//! template and allows the user's namespace. What was granted is kept in memory and found out anew by each process.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ObjectReference;

use crate::api::INFRASTRUCTURE_GROUP;
use crate::api::image_release::TemplateReference;

/// The kind of templates.
const KIND: &str = "ProviderClusterStackReleaseTemplate";

/// How a release came into its namespace.
#[derive(Clone, Copy, Debug)]
pub struct Provenance<'a> {
    /// The ClusterStackSource that its ClusterStack names and may use, `namespace/name`; `None` where it has its own source.
    pub source: Option<&'a str>,
    /// The template that is to be used, and the namespace it is in.
    pub template: Option<(&'a ObjectReference, &'a str)>,
    /// The ClusterStackSource through which its files were fetched, `namespace/name`; empty for another source.
    pub fetched_through: &'a str,
}

/// Why images of a release are not made by a template of another namespace; `None` if they may be.
pub fn refusal(asked: &TemplateReference, provenance: &Provenance<'_>) -> Option<String> {
    let namespace = asked.namespace.as_deref().unwrap_or_default();
    let place = format!("{KIND} {namespace}/{}", asked.name);
    let Some(source) = provenance.source else {
        return Some(format!(
            "{place} is of another namespace, and the ClusterStack takes its releases from a source of its own: name a \
             ClusterStackSource of {namespace} in spec.sourceRef, or a template of this namespace in spec.providerRef"
        ));
    };
    let is_named = provenance.template.is_some_and(|(reference, of)| {
        let group =
            reference.api_version.as_deref().and_then(|version| version.split_once('/')).map(|(group, _)| group);
        of == namespace
            && group == Some(INFRASTRUCTURE_GROUP)
            && reference.kind.as_deref() == Some(KIND)
            && reference.name.as_deref() == Some(&asked.name)
    });
    if !is_named {
        return Some(format!(
            "ClusterStackSource {source} does not name {place} for this ClusterStack: delete the \
             ProviderClusterStackRelease, it is made anew from the template that is named now"
        ));
    }
    (provenance.fetched_through != source).then(|| {
        format!(
            "{place} is for releases of ClusterStackSource {source}, and this one was fetched from elsewhere: delete the \
             ClusterStackRelease, it is fetched anew"
        )
    })
}

/// An image's object: namespace, name, and the digest over what it says.
pub type Granted = (String, String, String);

/// Whether an image may be made by a template of another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// It may.
    Given,
    /// No release that may use the template lists it.
    Refused,
    /// A release that has it was not looked at yet.
    Unknown,
}

/// What releases grant, by their UID.
#[derive(Clone, Debug, Default)]
pub struct Grants(BTreeMap<String, BTreeSet<Granted>>);

impl Grants {
    /// Writes down what a release grants now; the names of the objects whose state that may change.
    pub fn set(&mut self, release: &str, images: BTreeSet<Granted>) -> BTreeSet<Granted> {
        let concerned = match self.0.get(release) {
            Some(before) => before.symmetric_difference(&images).cloned().collect(),
            None => images.clone(),
        };
        self.0.insert(release.to_owned(), images);
        concerned
    }

    /// Forgets releases that are gone.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|release, _| is_there(release));
    }

    /// Whether an image is granted, by the releases that there are; `owners` are those of them that have it.
    pub fn judge<'a>(&self, image: &Granted, owners: impl IntoIterator<Item = &'a str>) -> Grant {
        if self.0.values().any(|images| images.contains(image)) {
            return Grant::Given;
        }
        let is_unseen = owners.into_iter().any(|owner| !self.0.contains_key(owner));
        if is_unseen { Grant::Unknown } else { Grant::Refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(kind: &str, name: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("infrastructure.clusterstack.x-k8s.io/v1alpha1".into()),
            kind: Some(kind.into()),
            name: Some(name.into()),
            // What a reference says of its namespace counts for nothing.
            namespace: Some("wherever".into()),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn a_template_of_another_namespace_is_for_releases_of_the_source_that_names_it() {
        let asked = TemplateReference { name: "gold".into(), namespace: Some("provider".into()) };
        let (gold, silver, other) =
            (reference(KIND, "gold"), reference(KIND, "silver"), reference("ShopReleaseTemplate", "gold"));
        let elsewhere = ObjectReference { api_version: Some("example.org/v1".into()), ..gold.clone() };
        let right = Provenance {
            source: Some("provider/shared"),
            template: Some((&gold, "provider")),
            fetched_through: "provider/shared",
        };
        assert_eq!(refusal(&asked, &right), None);
        for (broken, word) in [
            (Provenance { source: None, ..right }, "a source of its own"),
            (Provenance { template: None, ..right }, "does not name"),
            (Provenance { template: Some((&silver, "provider")), ..right }, "does not name"),
            (Provenance { template: Some((&other, "provider")), ..right }, "does not name"),
            (Provenance { template: Some((&elsewhere, "provider")), ..right }, "does not name"),
            // The ClusterStack's own providerRef, of a template of the same name.
            (Provenance { template: Some((&gold, "team")), ..right }, "does not name"),
            (Provenance { fetched_through: "", ..right }, "fetched from elsewhere"),
            (Provenance { fetched_through: "provider/another", ..right }, "fetched from elsewhere"),
        ] {
            let why = refusal(&asked, &broken).unwrap_or_default();
            assert!(why.contains(word), "{broken:?}: {why}");
        }
    }

    #[test]
    fn an_image_is_granted_while_a_release_that_may_lists_it() {
        let image = |name: &str| ("team".to_owned(), name.to_owned(), "sha256:1".to_owned());
        let mut grants = Grants::default();
        assert_eq!(grants.judge(&image("a"), ["r1"]), Grant::Unknown);
        assert_eq!(grants.judge(&image("a"), []), Grant::Refused, "nobody has it: somebody wrote it by hand");
        assert_eq!(
            grants.set("r1", BTreeSet::from([image("a"), image("b")])),
            BTreeSet::from([image("a"), image("b")])
        );
        assert_eq!(grants.judge(&image("a"), ["r1"]), Grant::Given);
        let other = ("team".to_owned(), "a".to_owned(), "sha256:2".to_owned());
        assert_eq!(grants.judge(&other, ["r1"]), Grant::Refused, "it says something else than the release");
        let abroad = ("thief".to_owned(), "a".to_owned(), "sha256:1".to_owned());
        assert_eq!(grants.judge(&abroad, []), Grant::Refused);
        assert_eq!(grants.set("r1", BTreeSet::from([image("a")])), BTreeSet::from([image("b")]));
        assert_eq!(grants.judge(&image("b"), ["r1"]), Grant::Refused);
        assert_eq!(grants.judge(&image("b"), ["r1", "r2"]), Grant::Unknown);
        grants.retain(|release| release != "r1");
        assert_eq!(grants.judge(&image("a"), []), Grant::Refused);
    }
}
