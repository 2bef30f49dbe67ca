//! The provider contract: an object per release, made from the `…Template` that the ClusterStack names, then waited for.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DynamicObject, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::Context;
use super::origin::Template;
use crate::api::condition::Reason;
use crate::api::{ClusterStackRelease, FIELD_MANAGER};
use crate::core::manifest::split_api_version;
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::status::{StepState, Trouble};
use crate::io::kinds::Kind;
use crate::io::{apply, observe};

/// The reference to the provider's object of a release, made from this template.
pub(super) fn reference(template: &Template, name: &ReleaseName, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: template.reference.api_version.clone(),
        kind: template.reference.kind.as_deref().map(|kind| kind.trim_end_matches("Template").to_owned()),
        name: Some(name.object_name()),
        namespace: Some(namespace.to_owned()),
        ..ObjectReference::default()
    }
}

/// The provider's object from its template (Cluster API's way: `spec.template` with another name), owned by the release.
fn from_template(template: &Value, reference: &ObjectReference, release: &ClusterStackRelease) -> Option<Value> {
    let inner = template.pointer("/spec/template")?;
    let mut labels = inner.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    labels[crate::api::CLUSTER_STACK_LABEL] =
        release.labels().get(crate::api::CLUSTER_STACK_LABEL).cloned().unwrap_or_default().into();
    let mut annotations = inner.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({}));
    annotations[crate::api::CLONED_FROM_NAME] = template.pointer("/metadata/name").cloned().unwrap_or_default();
    Some(json!({
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "metadata": {
            "name": reference.name,
            "namespace": release.namespace(),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [release.controller_owner_ref(&())],
        },
        "spec": inner.get("spec"),
    }))
}

/// What the provider says of its object: `status.ready`, `status.failureReason`, `status.failureMessage`.
fn judge(object: &Value, name: &str) -> StepState {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (reason, message) = (text("/status/failureReason"), text("/status/failureMessage"));
    if !reason.is_empty() {
        let message = format!("{name} failed: {reason}: {message}");
        return StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::ProviderFailed, message));
    }
    if object.pointer("/status/ready").and_then(Value::as_bool) == Some(true) {
        return StepState::Done(String::new());
    }
    StepState::Running(Reason::ProcessOngoing, format!("waiting for {name} to be ready"))
}

/// Makes the provider's object if it is missing, and says how far it is.
pub(super) async fn ensure(
    release: &ClusterStackRelease,
    template: Result<Option<Template>, Trouble>,
    reference: &ObjectReference,
    ctx: &Context,
) -> StepState {
    match try_ensure(release, template, reference, ctx).await {
        Ok(state) => state,
        Err(error) => {
            let refusal = apply::refusal(&error);
            let message = format!("the provider's object can't be made or read: {}", refusal.message);
            StepState::Failed(Trouble::new(ErrorClass::Transient, Reason::FailedToCreateOrUpdate, message))
        }
    }
}

async fn try_ensure(
    release: &ClusterStackRelease,
    template: Result<Option<Template>, Trouble>,
    reference: &ObjectReference,
    ctx: &Context,
) -> Result<StepState, kube::Error> {
    let client = ctx.clients.own();
    let namespace = release.namespace().unwrap_or_default();
    let api_version = reference.api_version.clone().unwrap_or_default();
    let kind_name = reference.kind.clone().unwrap_or_default();
    let name = reference.name.clone().unwrap_or_default();
    let missing = |message: String| {
        Ok(StepState::Failed(Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotFound, message)))
    };
    let Some(kind) = find(ctx, &api_version, &kind_name).await? else {
        return missing(format!("the API server serves no {kind_name} in {api_version}: install the provider"));
    };
    let api = observe::api(&client, &kind, &namespace);
    if let Some(object) = api.get_opt(&name).await? {
        return Ok(judge(&observe::plain(&object, &kind), &format!("{kind_name} {name}")));
    }
    let template = match template {
        Ok(Some(template)) => template,
        Ok(None) => {
            return missing(format!("{kind_name} {name} is to be made of a template, and spec.providerRef names none"));
        }
        Err(trouble) => return Ok(StepState::Failed(trouble)),
    };
    let template_name = template.reference.name.clone().unwrap_or_default();
    let Some(template_kind) = find(ctx, &api_version, &format!("{kind_name}Template")).await? else {
        return missing(format!("the API server serves no {kind_name}Template in {api_version}: install the provider"));
    };
    // Of the namespace of the object that names it, whatever namespace its reference holds.
    let place = format!("{kind_name}Template {}/{template_name}", template.namespace);
    let there = observe::api(&client, &template_kind, &template.namespace).get_opt(&template_name).await?;
    let Some(there) = there else {
        return missing(format!("{place} does not exist: create it or correct the providerRef that names it"));
    };
    let Some(object) = from_template(&observe::plain(&there, &template_kind), reference, release) else {
        return missing(format!("{place} has no spec.template"));
    };
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    match api.create(&params, &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(error)) if error.reason == "AlreadyExists" => {}
        Err(error) => return Err(error),
    }
    Ok(StepState::Running(Reason::ProcessOngoing, format!("waiting for {kind_name} {name} to be ready")))
}

async fn find(ctx: &Context, api_version: &str, kind: &str) -> Result<Option<Kind>, kube::Error> {
    let client = ctx.clients.own();
    match ctx.kinds.get(&client, api_version, kind).await? {
        Some(kind) => Ok(Some(kind)),
        None => ctx.kinds.preferred(&client, split_api_version(api_version).0, kind).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_object_says_how_far_it_is() {
        assert_eq!(judge(&json!({"status": {"ready": true}}), "X x"), StepState::Done(String::new()));
        assert!(matches!(judge(&json!({}), "X x"), StepState::Running(Reason::ProcessOngoing, _)));
        let failed =
            judge(&json!({"status": {"ready": false, "failureReason": "NoQuota", "failureMessage": "m"}}), "X x");
        assert_eq!(failed.trouble().unwrap().message, "X x failed: NoQuota: m");
    }

    #[test]
    fn the_object_is_the_templates_with_our_name_and_owner() {
        let release = ClusterStackRelease::new("docker-x-1-34-v1", crate::api::ClusterStackReleaseSpec::default());
        let reference = ObjectReference {
            api_version: Some("a/v1".into()),
            kind: Some("X".into()),
            name: Some("n".into()),
            ..ObjectReference::default()
        };
        let template = json!({"metadata": {"name": "t"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"size": 3}}}});
        // An owner reference needs a UID; without one there is none, as for an object that was never stored.
        let object = from_template(&template, &reference, &release).unwrap();
        assert_eq!(object.pointer("/spec/size"), Some(&json!(3)));
        assert_eq!(object.pointer("/metadata/labels/a"), Some(&json!("b")));
        assert_eq!(object.pointer("/metadata/name"), Some(&json!("n")));
        assert_eq!(from_template(&json!({"spec": {}}), &reference, &release), None);
    }
}
