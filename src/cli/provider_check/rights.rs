//! Whether the operator may do with a provider's kinds what it does.

use anyhow::Result;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;

use super::{Account, Run};
use crate::api::AGGREGATE_LABEL;
use crate::core::provider::checks::{self, Check, Need};
use crate::io::kinds::Kind;

impl Run<'_> {
    /// Asks for the rights of the operator's account where it is named, else reads what would be aggregated.
    pub(super) async fn rights(&self, kind: &Kind, template: &Kind) -> Result<Check> {
        let needs = checks::needs(&kind.resource.group, &kind.resource.plural, &template.resource.plural);
        let found = match &self.args.operator {
            Some(account) => self.reviewed(account, &needs).await?,
            None => self.aggregated(&needs).await?,
        };
        let who = match &self.args.operator {
            Some(Account { namespace, name }) => format!("ServiceAccount {namespace}/{name} may do"),
            None => "ClusterRoles that are aggregated grant".to_owned(),
        };
        Ok(match found {
            Ok(missing) => checks::of_rights(&missing, &who),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                Check::skipped("rights", format!("they can't be asked for: {}", status.message))
            }
            Err(error) => return Err(self.connection.refused("asked for", "rights", error).into()),
        })
    }

    async fn aggregated(&self, needs: &[Need]) -> Result<Result<Vec<String>, kube::Error>> {
        let api: Api<ClusterRole> = Api::all(self.connection.client.clone());
        let labelled = ListParams::default().labels(&format!("{AGGREGATE_LABEL}=true"));
        let roles = match self.connection.answer(api.list(&labelled)).await? {
            Ok(roles) => roles.items,
            Err(error) => return Ok(Err(error)),
        };
        let roles: Vec<Value> = roles.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
        Ok(Ok(checks::not_granted(&roles, needs)))
    }

    async fn reviewed(&self, account: &Account, needs: &[Need]) -> Result<Result<Vec<String>, kube::Error>> {
        let api: Api<SubjectAccessReview> = Api::all(self.connection.client.clone());
        let Account { namespace, name } = account;
        let mut missing = Vec::new();
        for (need, verb) in needs.iter().flat_map(|need| need.verbs.iter().map(move |verb| (need, verb))) {
            let attributes = ResourceAttributes {
                group: Some(need.group.clone()),
                resource: Some(need.resource.clone()),
                verb: Some((*verb).to_owned()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(format!("system:serviceaccount:{namespace}:{name}")),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            match self.connection.answer(api.create(&PostParams::default(), &review)).await? {
                Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
                Ok(_) => missing.push(format!("{verb} {}.{}", need.resource, need.group)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(missing))
    }
}
