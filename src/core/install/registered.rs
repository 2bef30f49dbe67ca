//! By which Services what is registered for calls is answered: webhooks of the API server, runtime hooks of Cluster API.

use serde_json::Value;

use super::order::Waves;

/// How the Secret is called that keeps the certificate of the runtime hooks: behind the name by which they are registered.
pub const HOOK_CERTIFICATE: &str = "-hook-certificate";
/// The same of the admission webhook.
pub const WEBHOOK_CERTIFICATE: &str = "-webhook-certificate";

/// Namespace and name of the Service of each `clientConfig` that names one. One that is called by URL has none.
pub fn answered_by(registration: &Value) -> Vec<(&str, &str)> {
    calls(registration)
        .filter_map(|config| Some((config["service"]["namespace"].as_str()?, config["service"]["name"].as_str()?)))
        .collect()
}

/// How each call is made.
fn calls(registration: &Value) -> impl Iterator<Item = &Value> {
    let webhooks = registration["webhooks"].as_array().into_iter().flatten();
    let all = webhooks.map(|webhook| &webhook["clientConfig"]).chain([&registration["spec"]["clientConfig"]]);
    all.filter(|config| !config.is_null())
}

/// Whether Services of one namespace answer all of it: it is registered by the installation there.
pub fn is_of(registration: &Value, namespace: &str) -> bool {
    let answered = answered_by(registration);
    let is_here = answered.iter().all(|(there, _)| *there == namespace);
    is_here && !answered.is_empty() && answered.len() == calls(registration).count()
}

/// Whether it is of the installation in a namespace, which no longer has a Service that answers it.
pub fn is_left(registration: &Value, namespace: &str, wanted: &Waves) -> bool {
    let is_there = |(namespace, name): &(&str, &str)| {
        let is_it = |object: &Value| {
            let metadata = &object["metadata"];
            object["kind"] == "Service" && metadata["namespace"] == *namespace && metadata["name"] == *name
        };
        wanted.objects().any(is_it)
    };
    is_of(registration, namespace) && !answered_by(registration).iter().all(is_there)
}

/// Whether it is what was registered under another name before `name` was, and is answered at the same `place`, a
/// `clientConfig`: by that Service, or at that URL.
pub fn is_displaced(registration: &Value, name: &str, place: &Value) -> bool {
    let at = |config: &Value| {
        let service = |field: &str| config["service"][field].as_str().map(str::to_owned);
        match config["url"].as_str() {
            Some(url) => Some((url.to_owned(), String::new())),
            None => service("namespace").zip(service("name")),
        }
    };
    let is_there = |config: &Value| at(config).is_some() && at(config) == at(place);
    registration["metadata"]["name"] != name
        && calls(registration).next().is_some()
        && calls(registration).all(is_there)
}

/// Whether a Secret of this name keeps the certificate of what is not among the names that are `registered`.
pub fn is_spent(secret: &str, registered: &[&str]) -> bool {
    let of = [HOOK_CERTIFICATE, WEBHOOK_CERTIFICATE].iter().find_map(|end| secret.strip_suffix(end));
    of.is_some_and(|name| !registered.contains(&name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_service_is_named_of_webhooks_and_of_hooks() {
        let service = |name: &str| json!({"clientConfig": {"service": {"namespace": "ns", "name": name}}});
        for (registration, expected) in [
            (json!({"webhooks": [service("a"), service("b")]}), vec![("ns", "a"), ("ns", "b")]),
            (json!({"spec": service("c")}), vec![("ns", "c")]),
            (json!({"spec": {"clientConfig": {"url": "https://a.example"}}}), vec![]),
            (json!({"webhooks": []}), vec![]),
        ] {
            assert_eq!(answered_by(&registration), expected, "{registration}");
        }
    }

    #[test]
    fn only_what_is_answered_here_alone_is_of_here() {
        let service = |namespace: &str| json!({"clientConfig": {"service": {"namespace": namespace, "name": "x"}}});
        let by_url = json!({"clientConfig": {"url": "https://a.example"}});
        for (registration, expected) in [
            (json!({"spec": service("here")}), true),
            (json!({"spec": service("there")}), false),
            (json!({"spec": by_url}), false),
            (json!({"webhooks": [service("here"), service("here")]}), true),
            (json!({"webhooks": [service("here"), service("there")]}), false),
            (json!({"webhooks": [service("here"), by_url]}), false),
            (json!({"webhooks": []}), false),
        ] {
            assert_eq!(is_of(&registration, "here"), expected, "{registration}");
        }
    }

    #[test]
    fn what_no_service_of_the_installation_answers_is_left() {
        let registration = |namespace: &str, name: &str| json!({"spec": {"clientConfig": {"service": {"namespace": namespace, "name": name}}}});
        let service = json!({"kind": "Service", "metadata": {"namespace": "here", "name": "hooks"}});
        let wanted = Waves { before: vec![service], ..Waves::default() };
        for (registration, wanted, expected) in [
            (registration("here", "hooks"), &wanted, false),
            (registration("here", "gone"), &wanted, true),
            (registration("there", "gone"), &wanted, false),
            (registration("here", "hooks"), &Waves::default(), true),
        ] {
            assert_eq!(is_left(&registration, "here", wanted), expected, "{registration}");
        }
    }

    #[test]
    fn what_is_answered_at_the_same_place_under_another_name_is_displaced() {
        let service = |namespace: &str, name: &str, port: u16| json!({"service": {"namespace": namespace, "name": name, "port": port}});
        let url = |url: &str| json!({"url": url});
        let hook = |name: &str, config: Value| json!({"metadata": {"name": name}, "spec": {"clientConfig": config}});
        let webhook = |name: &str, configs: [Value; 2]| json!({"metadata": {"name": name}, "webhooks": configs.map(|config| json!({"clientConfig": config}))});
        let here = || service("here", "x", 1);
        for (registration, place, expected) in [
            (hook("old", here()), here(), true),
            (hook("old", here()), service("here", "x", 2), true),
            (hook("new", here()), here(), false),
            (hook("old", here()), service("there", "x", 1), false),
            (hook("old", here()), service("here", "y", 1), false),
            (hook("old", url("https://a")), url("https://a"), true),
            (hook("old", url("https://b")), url("https://a"), false),
            (hook("old", url("https://a")), here(), false),
            (hook("old", json!({})), json!({}), false),
            (webhook("old", [here(), here()]), here(), true),
            (webhook("old", [here(), service("there", "x", 1)]), here(), false),
            (json!({"metadata": {"name": "old"}, "webhooks": []}), here(), false),
        ] {
            assert_eq!(is_displaced(&registration, "new", &place), expected, "{registration} {place}");
        }
    }

    #[test]
    fn a_certificate_is_spent_when_nothing_of_its_name_is_registered() {
        for (secret, registered, expected) in [
            ("clusterstack-hook-certificate", &[][..], true),
            ("clusterstack-webhook-certificate", &["clusterstack-team"], true),
            ("clusterstack-team-webhook-certificate", &["clusterstack-team"], false),
            ("clusterstack-page-certificate", &[], false),
            ("token", &[], false),
        ] {
            assert_eq!(is_spent(secret, registered), expected, "{secret} {registered:?}");
        }
    }
}
