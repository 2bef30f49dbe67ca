//! Reads what tells how an installation is. Whatever can't be read is said, and stops nothing else.

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::Value;

use super::apply::refusal;
use super::kinds::{Kind, Kinds};
use super::{leases, stored};
use crate::api::{GROUP, INFRASTRUCTURE_GROUP, MANAGED_BY as OPERATOR, MANAGED_BY_LABEL, OperatorShard};
use crate::core::doctor::{Asked, Facts, Read, Workload};
use crate::core::install::INSTALLED_IN;
use crate::core::rights::{Right, Role};

/// How many questions are asked at once.
const AT_ONCE: usize = 16;

/// Kinds whose objects are looked at, in the order of the work.
const OBJECTS: &[(&str, &str)] = &[
    (GROUP, "ClusterStackSource"),
    (GROUP, "ClusterStack"),
    (GROUP, "ClusterStackRelease"),
    (INFRASTRUCTURE_GROUP, "ProviderNodeImageRelease"),
    (GROUP, "ClusterAddon"),
];

/// Reads all of it.
pub async fn facts(client: &Client) -> Facts {
    let kinds = Kinds::default();
    let reader = Reader { client, kinds: &kinds };
    let mut objects = Vec::new();
    for (group, kind) in OBJECTS {
        objects.push((*kind, reader.all(group, kind, "").await));
    }
    let ours = format!("{MANAGED_BY_LABEL}={OPERATOR}");
    let shards = reader.shards().await;
    let leases = leases::of_replicas(client, shards.as_deref().unwrap_or_default()).await;
    Facts {
        kubernetes: client.apiserver_version().await.map(|info| info.git_version).map_err(told("it does not answer")),
        definitions: reader.definitions().await,
        workloads: reader.workloads().await,
        shards,
        leases,
        now: leases::now(client).await,
        cluster_api: reader.versions("cluster.x-k8s.io", "Cluster").await,
        hooks: reader.all("runtime.cluster.x-k8s.io", "ExtensionConfig", &ours).await,
        webhooks: reader.all("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", &ours).await,
        objects,
    }
}

fn told(what: impl Into<String>) -> impl FnOnce(kube::Error) -> String {
    let what = what.into();
    move |error| format!("{what}: {}", refusal(&error).message)
}

struct Reader<'a> {
    client: &'a Client,
    kinds: &'a Kinds,
}

impl Reader<'_> {
    /// All objects of a kind with these labels; none where it is not served.
    async fn all(&self, group: &str, kind: &str, labels: &str) -> Read<Vec<Value>> {
        let failed = || told(format!("{kind}s can't be listed"));
        let Some(found) = self.kinds.preferred(self.client, group, kind).await.map_err(failed())? else {
            return Ok(Vec::new());
        };
        self.listed(&found, kind, labels).await.map_err(failed())
    }

    async fn listed(&self, found: &Kind, kind: &str, labels: &str) -> Result<Vec<Value>, kube::Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &found.resource);
        let list = api.list(&ListParams::default().labels(labels)).await?;
        let plain = |object: DynamicObject| {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["kind"] = kind.into();
            object
        };
        Ok(list.items.into_iter().map(plain).collect())
    }

    async fn definitions(&self) -> Read<Vec<Value>> {
        let label = "app.kubernetes.io/name=clusterstack";
        self.all("apiextensions.k8s.io", "CustomResourceDefinition", label).await
    }

    /// The versions of a kind that are served, without their group.
    async fn versions(&self, group: &str, kind: &str) -> Read<Vec<String>> {
        let failed = || told(format!("the versions of {group} can't be read"));
        let groups = self.client.list_api_groups().await.map_err(failed())?.groups;
        let mut versions = Vec::new();
        for version in groups.into_iter().filter(|one| one.name == group).flat_map(|one| one.versions) {
            if self.kinds.get(self.client, &version.group_version, kind).await.map_err(failed())?.is_some() {
                versions.push(version.version);
            }
        }
        Ok(versions)
    }

    async fn shards(&self) -> Read<Vec<OperatorShard>> {
        match stored::list_cluster_wide::<OperatorShard>(self.client, &ListParams::default()).await {
            Ok((shards, _)) => Ok(shards),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(told("OperatorShards can't be listed")(error)),
        }
    }

    async fn workloads(&self) -> Read<Vec<Workload>> {
        let mut workloads = Vec::new();
        for kind in ["Deployment", "StatefulSet"] {
            for object in self.all("apps", kind, INSTALLED_IN).await? {
                let pods = self.pods(&object).await;
                let rights = Some(self.rights(&object).await);
                workloads.push(Workload { object, pods, rights });
            }
        }
        Ok(workloads)
    }

    /// The pods of a workload; none where they can't be read, for they only explain.
    async fn pods(&self, workload: &Value) -> Vec<Value> {
        let labels = workload["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={}", text(value))).collect();
        let namespace = text(&workload["metadata"]["namespace"]);
        let pods = self.all("", "Pod", &labels.join(",")).await.unwrap_or_default();
        pods.into_iter().filter(|pod| pod["metadata"]["namespace"] == namespace).collect()
    }

    /// Whether the ServiceAccount of a workload may do what the operator has to do.
    async fn rights(&self, workload: &Value) -> Read<Vec<Asked>> {
        let namespace = text(&workload["metadata"]["namespace"]).to_owned();
        let account = text(&workload["spec"]["template"]["spec"]["serviceAccountName"]);
        let user = format!("system:serviceaccount:{namespace}:{account}");
        let of = |role: Role, namespace: &str| {
            let namespace = namespace.to_owned();
            role.rights().flat_map(move |right| questions(right, &namespace)).collect::<Vec<_>>()
        };
        let mut all = of(Role::Operator, "");
        all.extend(of(Role::OwnNamespace, &namespace));
        let ask = |question: Question| self.ask(&user, question);
        let answers: Vec<Result<Asked, kube::Error>> = stream::iter(all).map(ask).buffered(AT_ONCE).collect().await;
        answers.into_iter().collect::<Result<_, _>>().map_err(told(format!("what {user} may do can't be asked")))
    }

    async fn ask(&self, user: &str, question: Question) -> Result<Asked, kube::Error> {
        let Question { role, what, attributes } = question;
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(Asked { role, what, is_allowed: answer.status.is_some_and(|status| status.allowed) })
    }
}

/// A question to the API server.
struct Question {
    role: &'static str,
    what: String,
    attributes: ResourceAttributes,
}

fn questions(right: &'static Right, namespace: &str) -> Vec<Question> {
    let (role, group) = (right.role.name(), right.group);
    let one = |resource: &str, verb: &str| {
        let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(a, b)| (a, Some(b)));
        let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let what = format!("{verb} {full}{}", subresource.map(|part| format!("/{part}")).unwrap_or_default());
        let attributes = ResourceAttributes {
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(ToOwned::to_owned),
            verb: Some(verb.to_owned()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            ..ResourceAttributes::default()
        };
        Question { role, what, attributes }
    };
    right.resources.iter().flat_map(|resource| right.verbs.iter().map(move |verb| one(resource, verb))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
