//! `ProviderClusterStackRelease`: one object per image of the release's list, and whether all of them are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::node_images::NodeImages;
use super::origin::Origin;
use super::seats::Rooted;
use super::{Action, Context, Doing, Error, cluster_stack_release, spread};
use crate::api::cluster_stack_release::Artifact;
use crate::api::condition::{self, Reason};
use crate::api::image_release::{
    ProviderNodeImageRelease as Image, ProviderNodeImageReleaseSpec as ImageSpec, TemplateReference,
};
use crate::api::provider_release::{ProviderClusterStackRelease as Release, ReleaseImage};
use crate::api::{
    CLONED_FROM_NAME, CLONED_FROM_NAMESPACE, ClusterStackRelease, FIELD_MANAGER, INFRASTRUCTURE_API_VERSION,
    MANAGED_BY, MANAGED_BY_LABEL, SHARD_CLASS, WATCH_LABEL,
};
use crate::core::bundle::Bundle;
use crate::core::image::grant::{self, Granted, Provenance};
use crate::core::image::pipeline::Pipeline;
use crate::core::image::recipe;
use crate::core::image::room::MAX_IMAGES;
use crate::core::name::ReleaseName;
use crate::core::retry::{self, ErrorClass};
use crate::core::status::{
    ProviderReleaseFacts, StepState, Trouble, provider_release_status, refusal_of_image, refused, refused_image,
    release_image,
};
use crate::io::apply::refusal;
use crate::io::{fence, report};

/// How often a release is looked at whose files are not in the store.
const FETCHING: Duration = Duration::from_secs(10);
/// How often a release is looked at without an event.
const INTERVAL: Duration = Duration::from_mins(10);

/// An image of the release, and the object that stands for it.
struct Wanted {
    object: String,
    pipeline: Pipeline,
}

/// One pass over a ProviderClusterStackRelease.
///
/// # Errors
/// What the API server refused; what a user can mend is said in conditions.
pub(super) async fn reconcile(
    release: Arc<Release>,
    ctx: Arc<Context>,
    images: Arc<NodeImages>,
) -> Result<Action, Error> {
    if !ctx.is_ours(&*release) || release.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let template = template_of(&release);
    let class = release.root(&ctx).unwrap_or_default().class;
    let (uid, mut kept) = (release.uid().unwrap_or_default(), None);
    let mut facts = ProviderReleaseFacts {
        generation: release.metadata.generation,
        template: spoken(&template),
        ..ProviderReleaseFacts::default()
    };
    let wanted = wanted(&release, &template, bundle, &ctx).await;
    let next = match wanted.and_then(|wanted| unless_it_moves(&release, wanted, &images)) {
        Err(trouble) => {
            let class = trouble.class;
            // What can't be told just now was told before.
            if matches!(trouble.reason, Reason::ProviderTemplateNotAllowed | Reason::SourceNotAllowed) {
                images.grant(&release, BTreeSet::new());
            }
            facts.synced = StepState::Failed(trouble);
            if class == ErrorClass::Waiting { FETCHING } else { retry::delay(class, 0, rand::random()) }
        }
        Ok((artifact, wanted)) => {
            facts.artifact = artifact.digest;
            if template.namespace.is_some() {
                images.grant(&release, granted(&release, &template, &wanted));
            }
            let (rows, refused) = sync(&release, &template, &wanted, (&images, &class)).await?;
            kept = Some(wanted);
            facts.images = Some(rows);
            if let Some(trouble) = refused {
                let class = trouble.class;
                facts.synced = StepState::Failed(trouble);
                ctx.after(class, &uid)
            } else {
                ctx.memory.succeeded(&uid);
                facts.synced = StepState::Done(String::new());
                spread(INTERVAL)
            }
        }
    };
    write_status(&release, &ctx, &facts).await?;
    if let Some(wanted) = kept {
        let_go(&release, &wanted, &images).await?;
    }
    Ok(Action::requeue(next))
}

/// Looks at a release that another replica works on: what it grants counts for its images, which may be ours. Nothing is
/// written.
pub(super) async fn look(release: &Release, ctx: &Context, images: &NodeImages) -> Action {
    let template = template_of(release);
    let is_ours = ctx.is_ours(release) && release.metadata.deletion_timestamp.is_none();
    if !is_ours || template.namespace.is_none() {
        return Action::await_change();
    }
    match wanted(release, &template, fetched, ctx).await {
        Ok((_, wanted)) => {
            images.grant(release, granted(release, &template, &wanted));
            Action::requeue(spread(INTERVAL))
        }
        Err(trouble) => {
            if matches!(trouble.reason, Reason::ProviderTemplateNotAllowed | Reason::SourceNotAllowed) {
                images.grant(release, BTreeSet::new());
            }
            let class = trouble.class;
            let pause = if class == ErrorClass::Waiting { FETCHING } else { retry::delay(class, 0, rand::random()) };
            Action::requeue(pause)
        }
    }
}

/// Refuses to make what is missing while `clusterctl move` takes the release elsewhere, or brings it.
fn unless_it_moves<A>(
    release: &Release,
    wanted: (A, Vec<Wanted>),
    images: &NodeImages,
) -> Result<(A, Vec<Wanted>), Trouble> {
    let namespace = release.namespace().unwrap_or_default();
    let is_missing = |image: &Wanted| images.images.get(&ObjectRef::new(&image.object).within(&namespace)).is_none();
    match images.moves.holds(release) {
        Some(held) if wanted.1.iter().any(is_missing) => Err(held.trouble()),
        _ => Ok(wanted),
    }
}

/// The template that the object was made of.
fn template_of(release: &Release) -> TemplateReference {
    let annotation = |key: &str| release.annotations().get(key).cloned();
    TemplateReference {
        name: annotation(CLONED_FROM_NAME).unwrap_or_default(),
        namespace: annotation(CLONED_FROM_NAMESPACE)
            .filter(|namespace| Some(namespace) != release.namespace().as_ref()),
    }
}

fn spoken(template: &TemplateReference) -> String {
    match &template.namespace {
        None => template.name.clone(),
        Some(namespace) => format!("{namespace}/{}", template.name),
    }
}

/// What of the list may be made by the template of another namespace.
fn granted(release: &Release, template: &TemplateReference, wanted: &[Wanted]) -> BTreeSet<Granted> {
    let namespace = release.namespace().unwrap_or_default();
    let inputs = |image: &Wanted| image.pipeline.inputs(&recipe::identity(template));
    wanted.iter().map(|image| (namespace.clone(), image.object.clone(), inputs(image))).collect()
}

/// That the template may be used for the release, if it is of another namespace.
async fn admitted(
    owner: &ClusterStackRelease,
    template: &TemplateReference,
    artifact: &Artifact,
    ctx: &Context,
) -> Result<(), Trouble> {
    let Some(stack) = cluster_stack_release::stack_of(owner, ctx).filter(|_| template.namespace.is_some()) else {
        return Ok(());
    };
    let origin = Origin::of(&stack, ctx).await?;
    let named = origin.template(&stack)?;
    let provenance = Provenance {
        source: origin.shared.as_ref().map(|shared| shared.name.as_str()),
        template: named.as_ref().map(|named| (&named.reference, named.namespace.as_str())),
        fetched_through: &artifact.offered_by,
    };
    match grant::refusal(template, &provenance) {
        None => Ok(()),
        Some(why) => Err(Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotAllowed, why)),
    }
}

/// The images of the release's list, and what it was read from.
async fn wanted(
    release: &Release,
    template: &TemplateReference,
    bundle: impl AsyncFnOnce(&ClusterStackRelease, &Context) -> Result<(Artifact, Arc<Bundle>), Trouble>,
    ctx: &Context,
) -> Result<(Artifact, Vec<Wanted>), Trouble> {
    let waits = |reason, message: String| Trouble::new(ErrorClass::Waiting, reason, message);
    if template.name.is_empty() {
        let message = format!(
            "the annotation {CLONED_FROM_NAME} names no ProviderClusterStackReleaseTemplate: delete the object, it is made anew"
        );
        return Err(Trouble::new(ErrorClass::Invalid, Reason::ProviderTemplateNotFound, message));
    }
    let Some(owner) = owner(release, ctx) else {
        let message = "the ClusterStackRelease that owns this object does not exist";
        return Err(waits(Reason::OwnerMissing, message.to_owned()));
    };
    let (artifact, bundle) = bundle(&owner, ctx).await?;
    admitted(&owner, template, &artifact, ctx).await?;
    if bundle.node_images.is_anothers {
        let message = format!(
            "the list of node images is of apiVersion {:?}, which the built-in provider does not read: name that provider's template in spec.providerRef, or publish the list as {}",
            bundle.node_images.api_version,
            crate::core::node_images::API_VERSION
        );
        return Err(Trouble::new(ErrorClass::Invalid, Reason::NodeImagesInvalid, message));
    }
    let mut wanted = Vec::new();
    for image in &bundle.node_images.images {
        let pipeline = Pipeline::of(image).map_err(|error| {
            let message = format!("{error}; correct the list of node images and publish a new version");
            Trouble::new(ErrorClass::Invalid, Reason::NodeImagesInvalid, message)
        })?;
        // One that is known by its name only is there already.
        let Some(pipeline) = pipeline else { continue };
        let object = pipeline.object_name(&recipe::identity(template));
        if !wanted.iter().any(|other: &Wanted| other.object == object) {
            wanted.push(Wanted { object, pipeline });
        }
    }
    if wanted.len() > MAX_IMAGES {
        let message = format!(
            "the list has {} node images, and a release has room for {MAX_IMAGES}: make the list shorter and publish a new version",
            wanted.len()
        );
        return Err(Trouble::new(ErrorClass::Invalid, Reason::NodeImagesInvalid, message));
    }
    Ok((artifact, wanted))
}

fn owner(release: &Release, ctx: &Context) -> Option<Arc<ClusterStackRelease>> {
    let owner = release.owner_references().iter().find(|owner| owner.kind == "ClusterStackRelease")?;
    let place = ObjectRef::new(&owner.name).within(&release.namespace().unwrap_or_default());
    ctx.stack_releases.get(&place).filter(|found| found.uid().as_deref() == Some(&owner.uid))
}

/// The release's files, from the store: who owns the release fetches them.
async fn bundle(owner: &ClusterStackRelease, ctx: &Context) -> Result<(Artifact, Arc<Bundle>), Trouble> {
    let waits = |message: String| Trouble::new(ErrorClass::Waiting, Reason::Fetching, message);
    let not_fetched = || waits(format!("ClusterStackRelease {} is not fetched yet", owner.name_any()));
    let stack = cluster_stack_release::stack_of(owner, ctx).ok_or_else(not_fetched)?;
    let name = ReleaseName::of_stack(&owner.name_any(), &stack.spec.provider, &stack.spec.name);
    let artifact = owner.status.as_ref().and_then(|status| status.artifact.clone());
    let (Some(name), Some(artifact)) = (name, artifact) else { return Err(not_fetched()) };
    match ctx.releases.stored(&artifact, &name).await? {
        Some(bundle) => Ok((artifact, bundle)),
        None => {
            Err(waits(format!("the files of {} are in the store no more; they are fetched again", owner.name_any())))
        }
    }
}

/// The same for a replica that does not work on the release: fetched, as it was by who does.
async fn fetched(owner: &ClusterStackRelease, ctx: &Context) -> Result<(Artifact, Arc<Bundle>), Trouble> {
    let fetched = cluster_stack_release::fetched(owner, ctx).await?;
    Ok((fetched.artifact, fetched.bundle))
}

/// Makes what is missing, and says how far each image is. One that the API server refuses does not keep the others from
/// being made.
async fn sync(
    release: &Release,
    template: &TemplateReference,
    wanted: &[Wanted],
    (images, class): (&NodeImages, &str),
) -> Result<(Vec<ReleaseImage>, Option<Trouble>), Error> {
    let (mut rows, mut troubles) = (Vec::new(), Vec::new());
    for image in wanted {
        let (object, name) = (&image.object, &image.pipeline.image);
        match ensure(release, template, image, (images, class)).await {
            Ok(there) => rows.push(release_image(object, name, there.status.as_ref())),
            Err(Error::Api { doing, error }) if is_refused(&error) => {
                let refusal = refusal(&error);
                let trouble = refusal_of_image(name, refusal.reason, &format!("{doing}: {}", refusal.message));
                let namespace = release.namespace().unwrap_or_default();
                let there = images.images.get(&ObjectRef::<Image>::new(object).within(&namespace));
                let status = there.as_ref().and_then(|image| image.status.as_ref());
                rows.push(refused_image(object, name, status, &trouble));
                troubles.push(trouble);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((rows, refused(&troubles)))
}

/// Whether the API server answered that it does not take an object. What it did not answer, or what was seen too late, is
/// looked at anew, with all others.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code != 409) && !fence::is_not_ours(error)
}

/// Lets go what is not wanted any more.
async fn let_go(release: &Release, wanted: &[Wanted], images: &NodeImages) -> Result<(), Error> {
    let uid = release.uid().unwrap_or_default();
    let names: BTreeSet<&str> = wanted.iter().map(|image| image.object.as_str()).collect();
    for image in images.images.state() {
        let is_own = image.owner_references().iter().any(|owner| owner.uid == uid);
        if is_own && image.namespace() == release.namespace() && !names.contains(image.name_any().as_str()) {
            own(release, &image, false, images).await?;
        }
    }
    Ok(())
}

/// An image's object, made if it is missing, with the release among its owners.
async fn ensure(
    release: &Release,
    template: &TemplateReference,
    wanted: &Wanted,
    (images, class): (&NodeImages, &str),
) -> Result<Image, Error> {
    let namespace = release.namespace().unwrap_or_default();
    let api: Api<Image> = Api::namespaced(fence::guarded(&images.books.client), &namespace);
    let doing = |what: &str| format!("{what} ProviderNodeImageRelease {namespace}/{}", wanted.object);
    let known = images.images.get(&ObjectRef::<Image>::new(&wanted.object).within(&namespace));
    let image = match known {
        Some(image) => Arc::unwrap_or_clone(image),
        None => match api.create(&PostParams::default(), &described(release, template, wanted, class)?).await {
            Ok(image) => image,
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                api.get(&wanted.object).await.doing(|| doing("reading"))?
            }
            Err(error) => return Err(error).doing(|| doing("creating")),
        },
    };
    let uid = release.uid().unwrap_or_default();
    // One that goes is made anew when it is gone.
    if image.metadata.deletion_timestamp.is_none() && !image.owner_references().iter().any(|owner| owner.uid == uid) {
        own(release, &image, true, images).await?;
    }
    Ok(image)
}

/// The object of an image as it is made: what others share, no owner.
fn described(release: &Release, template: &TemplateReference, wanted: &Wanted, class: &str) -> Result<Image, Error> {
    let image = recipe::written(&wanted.pipeline).map_err(kube::Error::SerdeError);
    let image = image.doing(|| format!("describing image {}", wanted.pipeline.image))?;
    let inputs = wanted.pipeline.inputs(&recipe::identity(template));
    let spec = ImageSpec { template_ref: template.clone(), image, inputs, suspend: false };
    let mut object = Image::new(&wanted.object, spec);
    object.metadata.namespace = release.namespace();
    let labels = object.metadata.labels.get_or_insert_default();
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    // It is worked on by who works on the release.
    if let Some(filter) = release.labels().get(WATCH_LABEL) {
        labels.insert(WATCH_LABEL.to_owned(), filter.clone());
    }
    if !class.is_empty() {
        labels.insert(SHARD_CLASS.to_owned(), class.to_owned());
    }
    Ok(object)
}

/// Adds the release to an image's owners, or takes it from them. Each release applies its own reference as a field manager
/// of its own, so that none touches another's.
async fn own(release: &Release, image: &Image, is_owner: bool, images: &NodeImages) -> Result<(), Error> {
    let api: Api<Image> = Api::namespaced(fence::guarded(&images.books.client), &image.namespace().unwrap_or_default());
    let uid = release.uid().unwrap_or_default();
    let mut metadata = json!({"name": image.name_any(), "uid": image.uid()});
    if is_owner && let Some(owner) = release.owner_ref(&()) {
        metadata["ownerReferences"] = json!([owner]);
    }
    let patch: Value = json!({
        "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": Image::kind(&()), "metadata": metadata,
    });
    let params = PatchParams::apply(&format!("{FIELD_MANAGER}-owner-{uid}")).force();
    match api.patch(&image.name_any(), &params, &Patch::Apply(patch)).await {
        Ok(_) => Ok(()),
        // Gone, or made anew under the same name: its own event tells.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => {
            Err(error).doing(|| format!("setting the owners of ProviderNodeImageRelease {}", image.name_any()))
        }
    }
}

/// Writes the status if it says something new, and an event where readiness changed.
async fn write_status(release: &Release, ctx: &Context, facts: &ProviderReleaseFacts) -> Result<(), Error> {
    if ctx.cancel.is_cancelled() {
        return Ok(());
    }
    let previous = release.status.clone().unwrap_or_default();
    let status = provider_release_status(&previous, facts, Timestamp::now());
    let written = report::status(&ctx.clients.own(), release, release.status.as_ref(), &status)
        .await
        .doing(|| format!("writing the status of ProviderClusterStackRelease {}", release.name_any()))?;
    let turned = condition::readiness_turned(&previous.conditions, &status.conditions);
    if let Some(now) = turned.filter(|_| written) {
        tracing::info!(namespace = release.namespace().unwrap_or_default(), release = %release.name_any(), ready = now.status, reason = now.reason, says = now.message, "ProviderClusterStackRelease");
        if let Some(word) = Reason::named(&now.reason) {
            ctx.events.say(release, word, &now.message).await;
        }
    }
    Ok(())
}
