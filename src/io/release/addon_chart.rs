//! The addon charts of a release: their files, what they are told, the parts of what they render to.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use crate::api::condition::Reason;
use crate::core::addon::helm_hooks::{HelmHook, with_name};
use crate::core::addon::values;
use crate::core::bundle::{AddonCharts, Bundle};
use crate::core::chart::{Capabilities, Document, KubeVersion, RenderInput};
use crate::core::files::FileTree;
use crate::core::manifest::{Manifest, ManifestError, ObjectKey, manifests, without_lists};
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;

/// What a chart rendered to, by how it is brought.
#[derive(Default)]
pub(super) struct Parts {
    /// In Helm's order.
    pub(super) objects: Vec<Manifest>,
    /// Its Helm hooks.
    pub(super) hooks: Vec<HelmHook>,
    /// Those of the objects that come from `crds/`.
    pub(super) definitions: BTreeSet<ObjectKey>,
}

impl Parts {
    /// Takes the documents of an addon chart apart.
    pub(super) fn of(documents: Vec<Document>) -> Result<Self, ManifestError> {
        let (mut parts, mut objects) = (Self::default(), Vec::new());
        for document in documents {
            let Some(hook) = document.hook else {
                if document.is_crd {
                    for object in without_lists(document.object.clone()) {
                        parts.definitions.insert(Manifest::from_value(object)?.key);
                    }
                }
                objects.push(document.object);
                continue;
            };
            for object in without_lists(document.object) {
                parts.hooks.push(HelmHook {
                    manifest: Manifest::from_value(with_name(object))?,
                    events: hook.events.clone(),
                    weight: hook.weight,
                    policies: hook.delete_policies.clone(),
                });
            }
        }
        parts.objects = manifests(objects)?;
        Ok(parts)
    }
}

/// The files of the addon chart of a stage.
pub(super) fn addon_chart<'a>(bundle: &'a Bundle, stage: &str) -> Option<&'a FileTree> {
    match bundle.addon.as_ref()? {
        AddonCharts::Single(files) => Some(files),
        AddonCharts::Stages { charts, .. } => charts.get(stage),
    }
}

/// What an addon chart is told of the cluster: the release's version of Kubernetes, as by the Go operator, and what the
/// cluster serves beside what Helm knows.
pub(super) fn capabilities(kubernetes_version: &str, served: &BTreeSet<String>) -> Capabilities {
    let mut capabilities = Capabilities::default();
    let unknown: Vec<String> =
        served.iter().filter(|version| !capabilities.api_versions.contains(version)).cloned().collect();
    capabilities.api_versions.extend(unknown);
    if let Ok(kube_version) = KubeVersion::parse(kubernetes_version) {
        capabilities.kube_version = kube_version;
    }
    capabilities
}

/// The values that the stack gives a chart: its template of values over the Cluster's objects.
pub(super) fn stack_values(
    bundle: &Bundle,
    stage: &str,
    data: &Value,
    served: &BTreeSet<String>,
    stop: Arc<AtomicBool>,
) -> Result<Value, Trouble> {
    let failed =
        |error: values::ValuesError| Trouble::new(ErrorClass::Invalid, Reason::ValuesInvalid, error.to_string());
    let single = bundle.addon_values.as_ref().filter(|_| stage.is_empty());
    let template = match (single, addon_chart(bundle, stage)) {
        (Some(template), _) => Some(template.clone()),
        (None, Some(files)) => {
            let found = values::template(values::OVERWRITE, |file| files.get(file)).map_err(failed)?;
            found.map(|(file, text)| values::Template {
                file: format!("cluster-addon/{stage}/{file}"),
                text: String::from_utf8_lossy(text).into_owned(),
            })
        }
        (None, None) => None,
    };
    let Some(template) = template else { return Ok(Value::Null) };
    let capabilities = capabilities(&bundle.kubernetes_version, served);
    let input = RenderInput { stop: Some(stop), ..values::input(&capabilities) };
    values::of_stack(&template, data, &input).map_err(failed)
}
