//! The provider contract: an object per release, made from the `…Template` that the ClusterStack names, then waited for.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DynamicObject, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::Context;
use super::origin::Template;
use crate::api::condition::Reason;
use crate::api::{CLUSTER_STACK_LABEL, ClusterStackRelease, FIELD_MANAGER};
use crate::core::manifest::{ObjectKey, split_api_version};
use crate::core::name::ReleaseName;
use crate::core::provider::{self as contract, Instance, State};
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

/// What the provider's object says, as a step of the release.
fn judge(object: &Value, name: &str) -> StepState {
    match contract::state(object) {
        State::Ready => StepState::Done(String::new()),
        State::Failed { reason, message } => {
            let message = format!("{name} failed: {reason}: {message}");
            StepState::Failed(Trouble::new(ErrorClass::Invalid, Reason::ProviderFailed, message))
        }
        State::Preparing { message } => {
            let why = if message.is_empty() { message } else { format!(": {message}") };
            StepState::Running(Reason::ProcessOngoing, format!("waiting for {name} to be ready{why}"))
        }
    }
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
        return missing(format!(
            "the API server serves no {kind_name} in {api_version}: install the provider; or correct spec.providerRef of the \
             ClusterStack and delete this release, which is made anew by it"
        ));
    };
    let api = observe::api(&client, &kind, &namespace);
    let watch = |version: Option<String>| {
        let group = kind.resource.group.clone();
        let key = ObjectKey { group, kind: kind_name.clone(), namespace: namespace.clone(), name: name.clone() };
        let owner = ObjectRef::from_obj(release);
        ctx.watches.remember_provided(&owner, &kind, &key, &version.unwrap_or_default());
    };
    // Before it is read, so that no change is missed; then in the version that was read.
    watch(None);
    if let Some(object) = api.get_opt(&observe::segment(&name)).await? {
        watch(object.resource_version());
        return Ok(judge(&observe::plain(&object, &kind), &format!("{kind_name} {name}")));
    }
    if release.metadata.deletion_timestamp.is_some() {
        let message = format!("{kind_name} {name} is gone, and is not made anew for a release that is being deleted");
        return Ok(StepState::Failed(Trouble::new(ErrorClass::Waiting, Reason::Deleting, message)));
    }
    if let Some(held) = ctx.moves.holds(release) {
        return Ok(StepState::Failed(held.trouble()));
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
    let there =
        observe::api(&client, &template_kind, &template.namespace).get_opt(&observe::segment(&template_name)).await?;
    let Some(there) = there else {
        return missing(format!("{place} does not exist: create it or correct the providerRef that names it"));
    };
    let instance = Instance {
        api_version: &api_version,
        kind: &kind_name,
        name: &name,
        namespace: &namespace,
        stack: release.labels().get(CLUSTER_STACK_LABEL).map_or("", String::as_str),
        owner: json!(release.controller_owner_ref(&())),
    };
    let Some(object) = instance.of(&observe::plain(&there, &template_kind)) else {
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
    fn a_failure_of_the_provider_is_one_of_the_release() {
        assert_eq!(judge(&json!({"status": {"ready": true}}), "X x"), StepState::Done(String::new()));
        assert!(matches!(judge(&json!({}), "X x"), StepState::Running(Reason::ProcessOngoing, _)));
        let failed =
            judge(&json!({"status": {"ready": false, "failureReason": "NoQuota", "failureMessage": "m"}}), "X x");
        assert_eq!(failed.trouble().unwrap().message, "X x failed: NoQuota: m");
    }
}
