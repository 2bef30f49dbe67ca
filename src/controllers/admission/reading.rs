//! What is read for a verdict, and whom it is asked of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams};
use kube::core::admission::{AdmissionRequest, Operation};
use kube::{Api, ResourceExt};
use regex::Regex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Server;
use crate::api::condition::{self, ConditionType, cut};
use crate::api::source::SourceReference;
use crate::api::{
    ALLOW_CLASS_CHANGE, ClusterStack, ClusterStackRelease, ClusterStackSource, DELETE_FOR_MOVE, DELETION_POLICY, GROUP,
};
use crate::controllers::cluster_addon::release_among;
use crate::controllers::deletion::{rows_of, template_kinds};
use crate::controllers::origin;
use crate::controllers::release_owner::is_owned;
use crate::controllers::served::SeenReleases;
use crate::core::addon::cluster::{Cluster, read};
use crate::core::admission::Verdict;
use crate::core::admission::cluster::{self, CLASS_PATTERN, Chain, Change, Release};
use crate::core::admission::delete::{self, Deletion, Mark};
use crate::core::admission::stack::{self, Around, Named, Stack};
use crate::core::in_use::{self, Footprint, Usage, User};
use crate::core::manifest::annotation;
use crate::core::name::ReleaseName;
use crate::core::selection::Wish;
use crate::core::source::offer::{Admission, admits};
use crate::io::apply::refusal;
use crate::io::observe;
use crate::io::stored::{self, without_values};
use crate::io::usage::{self, CLUSTER_API};

type Request = AdmissionRequest<DynamicObject>;

/// The names by the rule; a text that is no expression would match nothing.
static BY_RULE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(CLASS_PATTERN).ok());

/// The verdict over a request.
///
/// # Errors
/// Why it could not be looked into.
pub(super) async fn verdict(server: &Server, request: &Request) -> Result<Verdict, String> {
    let writes = matches!(request.operation, Operation::Create | Operation::Update);
    let deletes = request.operation == Operation::Delete;
    match (request.kind.group.as_str(), request.kind.kind.as_str()) {
        (GROUP, "ClusterStack") if writes => stack(server, request).await,
        (GROUP, "ClusterStack") if deletes => stack_deletion(server, request).await,
        (GROUP, "ClusterStackSource") if writes => source(server, request),
        (GROUP, "ClusterStackRelease") if deletes => release_deletion(server, request).await,
        (CLUSTER_API, "Cluster") if writes => of_cluster(server, request).await,
        _ => Ok(Verdict::allow()),
    }
}

/// Names of ClusterClasses of these releases that the naming rule does not give.
pub(super) fn classes_of_other_names(releases: &SeenReleases) -> Vec<String> {
    let mut names = BTreeSet::new();
    for release in releases.store.state() {
        let rows = release.status.as_ref().map_or(&[][..], |status| &status.resources);
        let classes = rows.iter().filter(|row| row.group == CLUSTER_API && row.kind == "ClusterClass");
        let is_other = |name: &&String| BY_RULE.as_ref().is_none_or(|rule| !rule.is_match(name));
        names.extend(classes.map(|row| &row.name).filter(is_other).cloned());
    }
    names.into_iter().collect()
}

fn typed<K: DeserializeOwned>(object: Option<&DynamicObject>) -> Result<Option<K>, String> {
    let Some(object) = object else { return Ok(None) };
    let read = serde_json::to_value(object).and_then(serde_json::from_value);
    read.map(Some)
        .map_err(|error| format!("the object can't be read: {}", cut(&without_values(&error.to_string()), 500)))
}

fn present<K>(object: Option<K>) -> Result<K, String> {
    object.ok_or_else(|| "the request holds no object".to_owned())
}

fn said(doing: &str, error: &kube::Error) -> String {
    format!("{doing}: {}", refusal(error).message)
}

fn reduced(stack: &ClusterStack) -> Stack {
    Stack {
        name: stack.name_any(),
        namespace: stack.namespace().unwrap_or_default(),
        spec: stack.spec.clone(),
        is_deleting: stack.metadata.deletion_timestamp.is_some(),
    }
}

async fn stack(server: &Server, request: &Request) -> Result<Verdict, String> {
    let before: Option<ClusterStack> = typed(request.old_object.as_ref())?;
    let after: ClusterStack = present(typed(request.object.as_ref())?)?;
    let before = before.map(|before| before.spec);
    let own = after.namespace().unwrap_or_default();
    let mut around = Around { stacks: Vec::new(), source: Named::Nothing, users: Ok(BTreeMap::new()) };
    if stack::is_new(before.as_ref(), &after.spec) {
        let listed = stored::list::<ClusterStack>(&server.client, Some(&own), &ListParams::default()).await;
        let (all, _) = listed.map_err(|error| said("listing ClusterStacks", &error))?;
        around.stacks = all.iter().map(reduced).collect();
    }
    if let Some(reference) = stack::reference(before.as_ref(), &after.spec) {
        around.source = named(server, reference, &own).await.unwrap_or_else(Named::Unknown);
    }
    let dropped = stack::dropped(before.as_ref(), &after.spec);
    if !dropped.is_empty() {
        let wish = Wish::of(&after.spec).map_err(|error| error.to_string())?;
        around.users = users_of_each(server, &own, dropped.iter().map(|version| wish.release(version)).collect()).await;
    }
    Ok(stack::write(before.as_ref(), &reduced(&after), &around, &server.allow))
}

/// Whether the ClusterStackSource may be used, read afresh.
async fn named(server: &Server, reference: &SourceReference, namespace: &str) -> Result<Named, String> {
    let own = reference.namespace.as_deref().unwrap_or(namespace);
    let api: Api<ClusterStackSource> = Api::namespaced(server.client.clone(), own);
    let found = api.get_opt(&reference.name).await;
    let found = found.map_err(|error| said(&format!("reading ClusterStackSource {own}/{}", reference.name), &error))?;
    let Some(source) = found else {
        return Ok(if own == namespace { Named::Missing } else { Named::NotAllowed });
    };
    let allowed = source.spec.allowed_namespaces.as_ref();
    let is_admitted = match admits(allowed, own, namespace) {
        Admission::Yes => true,
        Admission::No => false,
        Admission::ByLabels => origin::by_labels(allowed, namespace, &server.client).await?,
    };
    Ok(if is_admitted { Named::Allowed } else { Named::NotAllowed })
}

fn source(server: &Server, request: &Request) -> Result<Verdict, String> {
    let before: Option<ClusterStackSource> = typed(request.old_object.as_ref())?;
    let after: ClusterStackSource = present(typed(request.object.as_ref())?)?;
    if after.metadata.deletion_timestamp.is_some() {
        return Ok(Verdict::allow());
    }
    Ok(stack::write_source(before.as_ref().map(|before| &before.spec), &after.spec, &server.allow))
}

/// Who uses releases, read afresh.
async fn users(server: &Server, releases: &[ClusterStackRelease]) -> Result<BTreeMap<String, BTreeSet<User>>, String> {
    if releases.is_empty() {
        return Ok(BTreeMap::new());
    }
    let templates = releases.iter().flat_map(|release| template_kinds(&rows_of(release))).collect();
    let footprint = |release: &ClusterStackRelease| {
        in_use::footprint(&release.name_any(), &release.namespace().unwrap_or_default(), &rows_of(release))
    };
    let footprints: Vec<Footprint> = releases.iter().map(footprint).collect();
    let world = match usage::read(&server.client, &server.kinds, &footprints, &templates).await {
        Usage::Known(world) => world,
        Usage::Unknown(why) => return Err(why),
    };
    let of = |(release, footprint): (&ClusterStackRelease, &Footprint)| {
        (release.name_any(), in_use::users(footprint, &world).into_iter().collect())
    };
    Ok(releases.iter().zip(&footprints).map(of).collect())
}

/// Who uses the releases of these names, by version; a release that is not there is used by nobody.
async fn users_of_each(
    server: &Server,
    namespace: &str,
    names: Vec<ReleaseName>,
) -> Result<BTreeMap<String, BTreeSet<User>>, String> {
    if !server.releases.is_read() {
        return Err("the releases are being read".to_owned());
    }
    let all = server.releases.store.state();
    let is_there = |name: &ReleaseName| {
        let is_it = |release: &ClusterStackRelease| {
            release.namespace().as_deref() == Some(namespace) && release.name_any() == name.object_name()
        };
        all.iter().find(|release| is_it(release)).map(|release| (**release).clone())
    };
    let there: Vec<ClusterStackRelease> = names.iter().filter_map(is_there).collect();
    let mut users = users(server, &there).await?;
    let of = |name: ReleaseName| (name.version.to_string(), users.remove(&name.object_name()).unwrap_or_default());
    Ok(names.into_iter().map(of).collect())
}

/// Who asks to delete what, as far as the request tells.
fn deletion<'a>(server: &'a Server, request: &'a Request) -> Deletion<'a> {
    let metadata = request.old_object.as_ref().map(|object| &object.metadata);
    let annotation = |key: &str| metadata?.annotations.as_ref()?.get(key).map(String::as_str);
    // Where many are deleted by one request, it names none.
    let name = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or(&request.name);
    Deletion {
        name,
        user: request.user_info.username.as_deref().unwrap_or_default(),
        operator: server.operator.get().map(String::as_str),
        in_terminating_namespace: false,
        is_deleting: metadata.is_some_and(|metadata| metadata.deletion_timestamp.is_some()),
        mark: match (annotation(DELETE_FOR_MOVE), annotation(DELETION_POLICY)) {
            (Some(_), _) => Mark::Moved,
            (None, Some(policy)) if policy.eq_ignore_ascii_case("orphan") => Mark::Orphaned,
            _ => Mark::Nothing,
        },
    }
}

async fn is_terminating(server: &Server, namespace: &str) -> Result<bool, String> {
    let api: Api<Namespace> = Api::all(server.client.clone());
    let found = api.get_opt(namespace).await.map_err(|error| said("reading the Namespace", &error))?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
}

async fn release_deletion(server: &Server, request: &Request) -> Result<Verdict, String> {
    let deletion = deletion(server, request);
    if deletion.is_free() {
        return Ok(Verdict::allow());
    }
    if !server.releases.is_read() {
        return Err("the releases are being read".to_owned());
    }
    let uid = present(request.old_object.as_ref())?.metadata.uid.as_deref();
    // As we know it: nobody knows who asks, and what a release applied says how much is looked up. One that came a moment ago is used by
    // nobody.
    let all = server.releases.store.state();
    let known: Vec<_> = all
        .iter()
        .filter(|release| release.metadata.uid.as_deref() == uid)
        .map(|release| (**release).clone())
        .collect();
    let users = users(server, &known).await?.into_values().flatten().collect();
    judged(server, request, deletion, |deletion| delete::release(deletion, &users)).await
}

async fn stack_deletion(server: &Server, request: &Request) -> Result<Verdict, String> {
    let deletion = deletion(server, request);
    if deletion.is_free() {
        return Ok(Verdict::allow());
    }
    let stack: ClusterStack = present(typed(request.old_object.as_ref())?)?;
    let all = server.releases.store.state();
    let owned: Vec<ClusterStackRelease> =
        all.iter().filter(|release| is_owned(release, &stack)).map(|release| (**release).clone()).collect();
    let users = users(server, &owned).await?.into_values().flatten().collect();
    judged(server, request, deletion, |deletion| delete::stack(deletion, &users)).await
}

/// Looks at the Namespace only where there is something to say.
async fn judged(
    server: &Server,
    request: &Request,
    deletion: Deletion<'_>,
    judge: impl Fn(&Deletion<'_>) -> Verdict,
) -> Result<Verdict, String> {
    let verdict = judge(&deletion);
    if verdict == Verdict::allow() {
        return Ok(verdict);
    }
    let namespace = request.namespace.as_deref().unwrap_or_default();
    // Who may not read Namespaces refuses: the namespace controller is let through by its name.
    let in_terminating_namespace = is_terminating(server, namespace).await.unwrap_or_default();
    Ok(judge(&Deletion { in_terminating_namespace, ..deletion }))
}

fn value(object: Option<&DynamicObject>) -> Option<Value> {
    serde_json::to_value(object?).ok()
}

fn release(release: &ClusterStackRelease) -> Option<Release> {
    let status = release.status.clone().unwrap_or_default();
    Some(Release {
        name: release.name_any().parse().ok()?,
        is_ready: status.ready,
        message: condition::find(&status.conditions, ConditionType::Ready)
            .map(|ready| ready.message.clone())
            .unwrap_or_default(),
        is_deleting: release.metadata.deletion_timestamp.is_some(),
        kubernetes: status.kubernetes_version,
        node_versions: status.node_versions,
    })
}

async fn of_cluster(server: &Server, request: &Request) -> Result<Verdict, String> {
    let object = present(value(request.object.as_ref()))?;
    let after = present(read(&object))?;
    let before = value(request.old_object.as_ref()).and_then(|object| read(&object));
    if !cluster::is_judged(before.as_ref(), &after) {
        return Ok(Verdict::allow());
    }
    if !server.releases.is_read() {
        return Err("the releases are being read".to_owned());
    }
    let of = |cluster: &Cluster| release_among(cluster.class.as_ref()?, &server.releases.store);
    let from = before.as_ref().and_then(of).and_then(|found| release(&found));
    let to = of(&after).and_then(|found| release(&found));
    let asks_class = to.is_some() && cluster::skips(before.as_ref(), &after);
    let chain = if asks_class { chain(server, &after).await.unwrap_or_else(Chain::Unknown) } else { Chain::None };
    let home = after.class.as_ref().map(|(namespace, _)| namespace.clone());
    let here = server.releases.store.state().into_iter().filter(|release| release.namespace() == home);
    let stacks = here.filter_map(|release| cluster::stack_of(None, &release.name_any())).collect();
    Ok(cluster::write(&Change {
        before: before.as_ref(),
        after: &after,
        from: from.as_ref(),
        to: to.as_ref(),
        chain: &chain,
        meant: annotation(&object, ALLOW_CLASS_CHANGE).unwrap_or_default(),
        stacks: &stacks,
    }))
}

async fn chain(server: &Server, cluster: &Cluster) -> Result<Chain, String> {
    let Some((namespace, name)) = &cluster.class else { return Ok(Chain::None) };
    let doing = format!("reading ClusterClass {namespace}/{name}");
    let kind = server.kinds.preferred(&server.client, CLUSTER_API, "ClusterClass").await;
    let Some(kind) = kind.map_err(|error| said(&doing, &error))? else { return Ok(Chain::None) };
    let found = observe::api(&server.client, &kind, namespace).get_opt(name).await;
    let found = found.map_err(|error| said(&doing, &error))?.ok_or_else(|| format!("{doing}: it does not exist"))?;
    Ok(cluster::chain(&observe::plain(&found, &kind)))
}
