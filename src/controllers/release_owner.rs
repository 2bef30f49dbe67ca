//! Whose a ClusterStackRelease is: its ClusterStack's, or nobody's, and how it comes to be the one or the other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::api::{CLUSTER_STACK_LABEL, ClusterStack, ClusterStackRelease, FIELD_MANAGER};
use crate::core::manifest::label_value;
use crate::core::name::{ReleaseName, ReleaseVersion};

/// Whether `stack` owns `release`.
pub(super) fn is_owned(release: &ClusterStackRelease, stack: &ClusterStack) -> bool {
    release.namespace() == stack.namespace()
        && release.owner_references().iter().any(|owner| owner.kind == "ClusterStack" && owner.name == stack.name_any())
}

/// The version of a release of `stack`, by its name; `None` for one that is called otherwise.
pub(super) fn version_in(release: &str, stack: &ClusterStack) -> Option<ReleaseVersion> {
    ReleaseName::of_stack(release, &stack.spec.provider, &stack.spec.name).map(|name| name.version)
}

/// Whether `release` was one of `stack`, and lost its owner: by a deletion that orphans, or by a restore without it.
pub(super) fn is_left_by(release: &ClusterStackRelease, stack: &ClusterStack) -> bool {
    release.namespace() == stack.namespace()
        && release.owner_references().is_empty()
        && release.metadata.deletion_timestamp.is_none()
        && release.labels().get(CLUSTER_STACK_LABEL) == Some(&label_value(&stack.name_any()))
        && version_in(&release.name_any(), stack).is_some()
}

/// Makes a release that lost its owner one of the ClusterStack again. Whether that is there, and stays: of one that is deleted
/// (`--cascade=orphan`) Kubernetes' collector of garbage takes the releases, which may be seen before the deletion is.
pub(super) async fn adopt(
    release: &ClusterStackRelease,
    stack: &ClusterStack,
    client: Client,
) -> Result<bool, kube::Error> {
    if !stays(stack, client.clone()).await? {
        return Ok(false);
    }
    let owner: Vec<OwnerReference> = stack.controller_owner_ref(&()).into_iter().collect();
    let version = match own_by(release, &owner, client.clone()).await {
        Ok(Some(version)) => version,
        // It is looked at again as it is then.
        Ok(None) => return Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => return Ok(true),
        Err(error) => return Err(error),
    };
    if !stays(stack, client.clone()).await? {
        // Deleted in between: who owns nothing any more would take it along.
        let mut adopted = release.clone();
        adopted.metadata.resource_version = Some(version);
        own_by(&adopted, &[], client).await?;
        return Ok(false);
    }
    let (release, stack) = (release.name_any(), stack.name_any());
    tracing::info!(release, stack, "a release without an owner is one of its ClusterStack again");
    Ok(true)
}

/// Whether a ClusterStack is there, and is not being deleted, as the API server has it.
async fn stays(stack: &ClusterStack, client: Client) -> Result<bool, kube::Error> {
    let stacks: Api<ClusterStack> = Api::namespaced(client, &stack.namespace().unwrap_or_default());
    let now = stacks.get_metadata_opt(&stack.name_any()).await?.map(|now| now.metadata);
    Ok(now.is_some_and(|now| now.uid == stack.uid() && now.deletion_timestamp.is_none()))
}

/// Takes a release from its ClusterStack, which goes. One that changed meanwhile is an error: it is not taken from it, and would go along.
pub(super) async fn disown(
    release: &ClusterStackRelease,
    stack: &ClusterStack,
    client: Client,
) -> Result<(), kube::Error> {
    let is_others = |owner: &&OwnerReference| owner.kind != "ClusterStack" || owner.name != stack.name_any();
    let others: Vec<OwnerReference> = release.owner_references().iter().filter(is_others).cloned().collect();
    own_by(release, &others, client).await.map(drop)
}

/// Sets who owns a release, if it is as it was seen, and is a conflict if not. The version of it that came of that; `None` where it is gone.
async fn own_by(
    release: &ClusterStackRelease,
    owners: &[OwnerReference],
    client: Client,
) -> Result<Option<String>, kube::Error> {
    let api: Api<ClusterStackRelease> = Api::namespaced(client, &release.namespace().unwrap_or_default());
    let metadata = json!({"resourceVersion": release.resource_version(), "ownerReferences": owners});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_metadata(&release.name_any(), &params, &Patch::Merge(json!({"metadata": metadata}))).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        patched => Ok(patched?.metadata.resource_version),
    }
}

#[cfg(test)]
mod tests;
