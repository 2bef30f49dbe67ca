//! Where the releases of a ClusterStack come from: its own source, one that is shared with it, or the operator's.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};

use super::Context;
use crate::api::cluster_stack_source::AllowedNamespaces;
use crate::api::condition::Reason;
use crate::api::source::{Pin, Source, SourceReference, Verify};
use crate::api::{ClusterStack, ClusterStackSource};
use crate::core::name::ReleaseName;
use crate::core::retry::ErrorClass;
use crate::core::source::offer::{Admission, Rules, admits, selects};
use crate::core::status::Trouble;
use crate::io::apply::refusal;
use crate::io::observe;
use crate::io::release::Wanted;
use crate::io::source::trust::Demand;

/// How old the listing of a shared source may be, in its intervals: its own pass polls it, others read what it found.
const SHARED_AGE: f64 = 1.5;
/// The least age of a shared listing for those who ask to look again: the source is somebody else's.
const SHARED_ASKED: Duration = Duration::from_secs(5);

/// Where releases come from.
pub(super) struct Origin {
    /// The namespace whose Secrets may be read.
    pub(super) namespace: String,
    /// The source; the operator's default without it.
    pub(super) source: Option<Source>,
    /// How old its listing may be.
    pub(super) max_age: Duration,
    /// The least age that asking to look again may insist on.
    pub(super) least_age: Duration,
    /// The ClusterStackSource, where there is one.
    pub(super) shared: Option<Shared>,
    /// Signatures that the ClusterStack and the ClusterStackSource ask for: all must hold.
    pub(super) verify: Vec<Demand>,
    /// Digests that releases must have.
    pub(super) pin: Vec<Pin>,
}

/// A ClusterStackSource that a ClusterStack may use.
pub(super) struct Shared {
    /// `namespace/name`, for people.
    pub(super) name: String,
    /// What its last poll found, by whichever replica.
    pub(super) revision: Option<String>,
    /// What it offers.
    rules: Rules,
    suspended: bool,
    provider: Option<ObjectReference>,
}

/// The provider's template of a ClusterStack, and the namespace it is in.
pub(super) struct Template {
    pub(super) reference: ObjectReference,
    pub(super) namespace: String,
}

impl Origin {
    /// The origin of a ClusterStack.
    pub(super) async fn of(stack: &ClusterStack, ctx: &Context) -> Result<Self, Trouble> {
        let namespace = stack.namespace().unwrap_or_default();
        let Some(reference) = &stack.spec.source_ref else {
            return Ok(Self {
                namespace,
                source: stack.spec.source.clone(),
                max_age: ctx.interval(stack.spec.interval.as_deref()).mul_f64(0.7),
                least_age: Duration::ZERO,
                shared: None,
                verify: own_demand(stack).into_iter().collect(),
                pin: stack.spec.pin.clone(),
            });
        };
        let source = shared(reference, &namespace, ctx).await?;
        let own = source.namespace().unwrap_or_default();
        Ok(Self {
            source: Some(source.spec.source.clone()),
            max_age: ctx.interval(source.spec.interval.as_deref()).mul_f64(SHARED_AGE),
            least_age: SHARED_ASKED,
            verify: demand(&own, source.spec.verify.as_ref()).into_iter().chain(own_demand(stack)).collect(),
            pin: stack.spec.pin.clone(),
            shared: Some(Shared::of(&source, &own)?),
            namespace: own,
        })
    }

    /// What is asked for when a release is fetched.
    pub(super) fn wanted<'a>(&'a self, name: &'a ReleaseName) -> Wanted<'a> {
        Wanted {
            namespace: &self.namespace,
            source: self.source.as_ref(),
            held: None,
            name,
            verify: &self.verify,
            pin: &self.pin,
            had: None,
            insists: false,
            max_age: self.max_age,
            again: "",
            waiter: None,
        }
    }

    /// That the source is suspended, if it is.
    pub(super) fn suspended(&self) -> Option<Trouble> {
        let shared = self.shared.as_ref().filter(|shared| shared.suspended)?;
        let message = format!("ClusterStackSource {} is suspended: nothing new is taken from it", shared.name);
        Some(Trouble::new(ErrorClass::Waiting, Reason::SourceSuspended, message))
    }

    /// Why a release is not on offer here; `None` if it is.
    pub(super) fn refusal(&self, release: &ReleaseName) -> Option<Trouble> {
        let shared = self.shared.as_ref()?;
        let why = shared.rules.refusal(release)?;
        let message = format!("ClusterStackSource {} does not offer {release}: {why}", shared.name);
        Some(Trouble::new(ErrorClass::Waiting, Reason::NotOffered, message))
    }

    /// The provider's template: the ClusterStack's own, else the source's. `None` with noProvider.
    ///
    /// A reference never leaves the namespace of the object that holds it.
    pub(super) fn template(&self, stack: &ClusterStack) -> Result<Option<Template>, Trouble> {
        if stack.spec.no_provider {
            return Ok(None);
        }
        if let Some(reference) = stack.spec.provider_ref.clone() {
            return Ok(Some(Template { reference, namespace: stack.namespace().unwrap_or_default() }));
        }
        let Some(shared) = &self.shared else { return Ok(None) };
        let Some(reference) = shared.provider.clone() else {
            let message = format!(
                "ClusterStackSource {} names no provider, and neither does this ClusterStack: set spec.providerRef, or \
                 spec.noProvider if there is none",
                shared.name
            );
            return Err(Trouble::new(ErrorClass::Waiting, Reason::ProviderTemplateNotFound, message));
        };
        Ok(Some(Template { reference, namespace: self.namespace.clone() }))
    }
}

impl Shared {
    /// What a ClusterStackSource of namespace `own` says of its releases.
    ///
    /// # Errors
    /// What it offers can't be read.
    pub(super) fn of(source: &ClusterStackSource, own: &str) -> Result<Self, Trouble> {
        let name = format!("{own}/{}", source.name_any());
        let rules = source.spec.offer.as_ref().map(Rules::of).transpose().map_err(|error| {
            Trouble::new(ErrorClass::Waiting, Reason::SpecInvalid, format!("ClusterStackSource {name}: {error}"))
        })?;
        Ok(Self {
            name,
            revision: source.status.as_ref().and_then(|status| Some(status.last_poll.as_ref()?.revision.clone())),
            rules: rules.unwrap_or_default(),
            suspended: source.spec.suspend,
            provider: source.spec.provider_ref.clone(),
        })
    }
}

/// What a ClusterStack itself wants signed.
pub(super) fn own_demand(stack: &ClusterStack) -> Option<Demand> {
    demand(&stack.namespace().unwrap_or_default(), stack.spec.verify.as_ref())
}

pub(super) fn demand(namespace: &str, verify: Option<&Verify>) -> Option<Demand> {
    verify.map(|verify| Demand { namespace: namespace.to_owned(), verify: verify.clone() })
}

/// Where the ClusterStackSource is that a ClusterStack of `namespace` names.
pub(super) fn place(reference: &SourceReference, namespace: &str) -> ObjectRef<ClusterStackSource> {
    ObjectRef::new(&reference.name).within(reference.namespace.as_deref().unwrap_or(namespace))
}

/// The ClusterStackSource, if `namespace` may use it. Whether another namespace has one of that name is not told.
async fn shared(
    reference: &SourceReference,
    namespace: &str,
    ctx: &Context,
) -> Result<Arc<ClusterStackSource>, Trouble> {
    let place = place(reference, namespace);
    let own = place.namespace.clone().unwrap_or_default();
    let watched = ctx.settings.namespace.as_ref().is_none_or(|only| *only == own);
    let source = if watched {
        ctx.sources.get(&place)
    } else {
        let api: Api<ClusterStackSource> = Api::namespaced(ctx.clients.own(), &own);
        let read = api.get_opt(&observe::segment(&reference.name)).await;
        read.map_err(|error| unseen(&own, &reference.name, &refusal(&error).message))?.map(Arc::new)
    };
    if_allowed(source, (&own, &reference.name), namespace, &ctx.clients.own()).await
}

/// The ClusterStackSource that was found at `place`, if `namespace` may use it.
///
/// # Errors
/// There is none, or `namespace` may not use it: both are told in the same words.
pub(super) async fn if_allowed<S: std::ops::Deref<Target = ClusterStackSource>>(
    found: Option<S>,
    (own, name): (&str, &str),
    namespace: &str,
    client: &Client,
) -> Result<S, Trouble> {
    let refused = || {
        let name = format!("ClusterStackSource {own}/{name}");
        let message = if own == namespace {
            format!("{name} does not exist: create it or correct spec.sourceRef")
        } else {
            format!("{name} does not exist or does not allow namespace {namespace} in spec.allowedNamespaces")
        };
        Trouble::new(ErrorClass::Waiting, Reason::SourceNotAllowed, message)
    };
    let source = found.ok_or_else(refused)?;
    let allowed = source.spec.allowed_namespaces.as_ref();
    let admitted = match admits(allowed, own, namespace) {
        Admission::Yes => true,
        Admission::No => false,
        Admission::ByLabels => {
            by_labels(allowed, namespace, client).await.map_err(|error| unseen(own, name, &error))?
        }
    };
    if admitted { Ok(source) } else { Err(refused()) }
}

/// That a ClusterStackSource could not be read.
pub(super) fn unseen(own: &str, name: &str, why: &str) -> Trouble {
    let message = format!("ClusterStackSource {own}/{name} can't be looked at: {why}");
    Trouble::new(ErrorClass::Transient, Reason::SourceUnreachable, message)
}

/// Whether the labels of a Namespace are selected. A selector that can't be read selects none: its source says so.
pub(super) async fn by_labels(
    allowed: Option<&AllowedNamespaces>,
    namespace: &str,
    client: &Client,
) -> Result<bool, String> {
    let Some(selector) = allowed.and_then(|allowed| allowed.selector.as_ref()) else { return Ok(false) };
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.get_opt(namespace).await.map_err(|error| error.to_string())?;
    let labels = found.and_then(|found| found.metadata.labels).unwrap_or_default();
    Ok(selects(selector, &labels).unwrap_or_default())
}
