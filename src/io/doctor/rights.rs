//! Asks the API server what the operator's `ServiceAccount` may do.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::Value;

use super::{text, told};
use crate::core::doctor::{Asked, Read};
use crate::core::rights::{Right, Role};

/// How many questions are asked at once.
const AT_ONCE: usize = 16;
/// In how many namespaces it is asked for a right that is not given in the whole cluster.
const NAMESPACES: usize = 20;

/// The namespaces that need rights which may be bound so.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// Where Secrets are read.
    pub(super) secrets: BTreeSet<String>,
    /// Where `ServiceAccounts` are acted as.
    pub(super) accounts: BTreeSet<String>,
}

impl Needed {
    /// By the objects that there are.
    pub(super) fn by(objects: &[(&'static str, Read<Vec<Value>>)]) -> Self {
        let mut needed = Self::default();
        for (kind, found) in objects {
            for object in found.as_deref().unwrap_or_default() {
                let namespace = text(&object["metadata"]["namespace"]);
                if *kind == "ClusterStack" && !text(&object["spec"]["serviceAccountName"]).is_empty() {
                    needed.accounts.insert(namespace.to_owned());
                }
                needed.secrets.insert(namespace.to_owned());
            }
        }
        needed
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &String> {
        let namespaces = if role == Role::Secrets { &self.secrets } else { &self.accounts };
        namespaces.iter().take(NAMESPACES)
    }
}

/// Namespace and name of the `ServiceAccount` that a workload works as.
fn account_of(workload: &Value) -> (String, String) {
    let namespace = text(&workload["metadata"]["namespace"]).to_owned();
    let account = text(&workload["spec"]["template"]["spec"]["serviceAccountName"]);
    // As the API server has it where none is named.
    (namespace, if account.is_empty() { "default".to_owned() } else { account.to_owned() })
}

/// The `ServiceAccount` that a workload works as, where it is not there; nothing where that can't be read.
pub(super) async fn missing_account(client: &Client, workload: &Value) -> Option<String> {
    let (namespace, name) = account_of(workload);
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_metadata_opt(&name).await.ok()?;
    found.is_none().then(|| format!("{namespace}/{name}"))
}

/// Whether the `ServiceAccount` of a workload may do what the operator has to do. What may be bound in namespaces is asked
/// there, where it is not given in the whole cluster.
pub(super) async fn of_workload(client: &Client, workload: &Value, needed: &Needed) -> Read<Vec<Asked>> {
    let (namespace, account) = account_of(workload);
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let failed = || told(format!("what {user} may do can't be asked"));
    let mut first = of(Role::Operator, "");
    first.extend(of(Role::OwnNamespace, &namespace));
    let mut all = answers(client, &user, first).await.map_err(failed())?;
    for role in [Role::Secrets, Role::Impersonation] {
        let wide = answers(client, &user, of(role, "")).await.map_err(failed())?;
        let is_denied = wide.iter().any(|asked| !asked.is_allowed);
        all.extend(wide.into_iter().map(|asked| Asked { may_be_narrow: true, ..asked }));
        for namespace in needed.of(role).filter(|_| is_denied) {
            let there = answers(client, &user, of(role, namespace)).await.map_err(failed())?;
            let one = |asked| Asked { may_be_narrow: true, namespace: namespace.clone(), ..asked };
            all.extend(there.into_iter().map(one));
        }
    }
    Ok(all)
}

async fn answers(client: &Client, user: &str, questions: Vec<Question>) -> Result<Vec<Asked>, kube::Error> {
    let ask = |question: Question| ask(client, user, question);
    let answers: Vec<Result<Asked, kube::Error>> = stream::iter(questions).map(ask).buffered(AT_ONCE).collect().await;
    answers.into_iter().collect()
}

async fn ask(client: &Client, user: &str, question: Question) -> Result<Asked, kube::Error> {
    let Question { role, what, attributes } = question;
    let spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        groups: Some(vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()]),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    let is_allowed = answer.status.is_some_and(|status| status.allowed);
    Ok(Asked { role, what, may_be_narrow: false, namespace: String::new(), is_allowed })
}

/// A question to the API server.
struct Question {
    role: &'static str,
    what: String,
    attributes: ResourceAttributes,
}

/// What a role gives, asked for a namespace, or for all of them.
fn of(role: Role, namespace: &str) -> Vec<Question> {
    role.rights().flat_map(|right| questions(right, namespace)).collect()
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
