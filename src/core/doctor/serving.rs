//! What the API server and Cluster API are told to ask: hooks and webhook.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Backing, Facts, Finding, Grade, Served, condition, named, objects_of};
use crate::core::install::{WEBHOOK_CERTIFICATE, leaving};

pub(super) fn hooks(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "hooks";
    let found = match &facts.hooks {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(CHECK, why)],
    };
    if found.is_empty() {
        // Without Cluster API there is nowhere to register them.
        let can_be = !matches!(&facts.cluster_api, Ok(versions) if versions.is_empty());
        if let Some(workload) = who_serves(facts, "hook-bind-address").filter(|_| can_be) {
            let message = format!("{workload} serves runtime hooks, and no ExtensionConfig of ours is registered");
            let remedy = "look at the log of the replica that leads; turn Cluster API's feature gate RuntimeSDK on, or the \
                          operator's hooks off";
            return vec![Finding::new(CHECK, Grade::Warning, message, remedy)];
        }
        let message = "no runtime hooks are registered: stages run from watching the Clusters";
        return vec![Finding::good(CHECK, message)];
    }
    let one = |config: &Value| {
        let name = named(config);
        match condition(config, "Discovered") {
            Some(("True", ..)) => Finding::good(CHECK, format!("ExtensionConfig {name} is discovered")),
            Some((_, reason, message)) => {
                let remedy =
                    "Cluster API can't reach the operator's hooks: look at its Service, --hook-url and the caBundle";
                let message = format!("ExtensionConfig {name} is not discovered: {reason}: {message}");
                Finding::new(CHECK, Grade::Bad, message, remedy)
            }
            None => {
                let message = format!("Cluster API has not looked at ExtensionConfig {name}");
                let remedy = "turn its feature gate RuntimeSDK on, or the operator's hooks off";
                Finding::new(CHECK, Grade::Warning, message, remedy)
            }
        }
    };
    found.iter().map(one).collect()
}

pub(super) fn webhooks(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "webhook";
    let found = match &facts.webhooks {
        Ok(found) => found,
        Err(why) => return vec![Finding::unknown(CHECK, why)],
    };
    if found.is_empty() {
        if let Some(workload) = who_serves(facts, "webhook-bind-address") {
            let message = format!("{workload} serves an admission webhook, and none of ours is registered");
            return vec![Finding::new(CHECK, Grade::Warning, message, "look at the log of the replica that leads")];
        }
        return vec![Finding::good(
            CHECK,
            "no admission webhook is registered: what needs other objects is told by status",
        )];
    }
    let one = |configuration: &Value| {
        let name = format!("ValidatingWebhookConfiguration {}", named(configuration));
        let secret = secret_of(configuration);
        let fault =
            |(message, remedy): (String, &str)| Finding::new(CHECK, Grade::Bad, format!("{name} {message}"), remedy);
        match at_fault(configuration, &secret, &facts.served) {
            Fault::None => Finding::good(CHECK, format!("{name} is registered")),
            Fault::Is(message, remedy) => fault((message, remedy)),
            Fault::Unknown(why) => {
                Finding::unknown(CHECK, &format!("{name} is registered; whether it can be asked is not known: {why}"))
            }
        }
    };
    found.iter().map(one).collect()
}

/// Name of the Secret with the certificate by which the webhook of a configuration is served.
pub fn secret_of(configuration: &Value) -> String {
    format!("{}{WEBHOOK_CERTIFICATE}", configuration["metadata"]["name"].as_str().unwrap_or_default())
}

/// The Service that a client's configuration names: namespace and name.
pub fn service_of(webhook: &Value) -> Option<(String, String)> {
    let text = |field: &str| webhook["clientConfig"]["service"][field].as_str().map(ToOwned::to_owned);
    Some((text("namespace")?, text("name")?))
}

enum Fault {
    None,
    Is(String, &'static str),
    Unknown(String),
}

fn at_fault(configuration: &Value, secret: &str, served: &Served) -> Fault {
    const LEADER: &str = "the replica that leads puts it in: look at its log";
    let webhooks = configuration["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    let bundle = |webhook: &Value| STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str().unwrap_or_default());
    let is_empty = |webhook: &Value| webhook["clientConfig"]["caBundle"].as_str().is_none_or(str::is_empty);
    if webhooks.is_empty() || webhooks.iter().any(is_empty) {
        return Fault::Is("has no authority".to_owned(), LEADER);
    }
    let mut unknown = None;
    for (namespace, name) in webhooks.iter().filter_map(service_of) {
        let service = format!("{namespace}/{name}");
        match served.services.get(&service) {
            Some(Ok(Backing::Missing)) => {
                let remedy = "clusterstack install, or correct --webhook-service";
                return Fault::Is(format!("names Service {service}, which is not there"), remedy);
            }
            Some(Ok(Backing::Nobody)) => {
                let remedy = "the API server takes all objects unasked meanwhile: look at the pods of the operator, and at the \
                              Service's selector";
                return Fault::Is(format!("names Service {service}, behind which no pod is ready"), remedy);
            }
            Some(Err(why)) => unknown = Some(why.clone()),
            Some(Ok(Backing::Ready)) | None => {}
        }
    }
    match served.certificates.get(secret) {
        Some(Ok(Some(certificate))) => {
            if !certificate.is_usable {
                let message = format!(
                    "is served by a certificate (Secret {secret}) that has ended, or does not fit its key or authority"
                );
                return Fault::Is(message, "the replica that leads renews it: look at its log, or delete the Secret");
            }
            let is_it = |webhook: &Value| {
                bundle(webhook).is_ok_and(|bundle| bundle.trim_ascii() == certificate.bundle.as_bytes().trim_ascii())
            };
            if !webhooks.iter().all(is_it) {
                let message = format!("trusts another authority than that of Secret {secret}, by which it is served");
                return Fault::Is(message, LEADER);
            }
        }
        Some(Ok(None)) => unknown = unknown.or(Some(format!("Secret {secret} was not found"))),
        Some(Err(why)) => unknown = unknown.or(Some(why.clone())),
        None => {}
    }
    let by_url = webhooks.iter().find_map(|webhook| webhook["clientConfig"]["url"].as_str());
    let by_url = by_url.map(|url| format!("whether the API server reaches {url} is seen from there alone"));
    unknown.or(by_url).map_or(Fault::None, Fault::Unknown)
}

/// The workload that is told by this flag to serve something.
fn who_serves(facts: &Facts, flag: &str) -> Option<String> {
    let workloads = facts.workloads.as_deref().unwrap_or_default().iter().map(|workload| &workload.object);
    let workloads = workloads.filter(|workload| leaving(workload).is_none());
    let serves = |workload: &&Value| {
        objects_of(&workload["spec"]["template"]["spec"]["containers"]).any(|container| is_set(container, flag))
    };
    let found = workloads.into_iter().find(serves)?;
    Some(format!("{} {}", found["kind"].as_str().unwrap_or_default(), named(found)))
}

/// Whether a container's flag has an address; `0` is none.
fn is_set(container: &Value, flag: &str) -> bool {
    let mut arguments = objects_of(&container["args"]).filter_map(Value::as_str);
    let long = format!("--{flag}");
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix(&long) {
            Some("") => arguments.next(),
            Some(rest) => rest.strip_prefix('='),
            None => continue,
        };
        if let Some(value) = value {
            return !matches!(value, "" | "0");
        }
    }
    false
}
