//! By which Services what is registered for calls is answered: webhooks of the API server, runtime hooks of Cluster API.

use serde_json::Value;

/// Namespace and name of the Service of each `clientConfig` that names one. One that is called by URL has none.
pub fn answered_by(registration: &Value) -> Vec<(&str, &str)> {
    let webhooks = registration["webhooks"].as_array().into_iter().flatten();
    let all = webhooks.map(|webhook| &webhook["clientConfig"]).chain([&registration["spec"]["clientConfig"]]);
    all.filter_map(|config| Some((config["service"]["namespace"].as_str()?, config["service"]["name"].as_str()?)))
        .collect()
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
}
