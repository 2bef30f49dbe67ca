use std::sync::{Arc, Mutex};

use kube::client::Body;
use serde_json::json;

use super::*;

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// An API server with these Clusters (name and class), clones and ClusterClasses, which notes what is asked for beside discovery.
#[derive(Clone, Default)]
struct Server {
    clusters: Vec<(&'static str, &'static str)>,
    /// Kind, name, Cluster, and the template that it was cloned from.
    clones: Vec<(&'static str, &'static str, &'static str, &'static str)>,
    /// Name, and the template that it refers to.
    classes: Vec<(&'static str, &'static str)>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn answer(&self, path: &str) -> Value {
        let groups = [(CLUSTER_API, "v1beta2"), (INFRASTRUCTURE, "v1beta1"), (GROUP, "v1beta1")];
        let kinds = |kinds: &[(&str, &str)]| {
            let resource = |(kind, plural): &(&str, &str)| json!({"name": plural, "kind": kind, "namespaced": true, "singularName": "", "verbs": ["list", "get"]});
            json!({"groupVersion": path.trim_start_matches("/apis/"), "resources": kinds.iter().map(resource).collect::<Vec<_>>()})
        };
        let object = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "n", "generation": 1}, "spec": spec});
        let list = |items: Vec<Value>| json!({"metadata": {}, "items": items});
        match path.trim_start_matches("/apis/").split('/').collect::<Vec<_>>()[..] {
            ["apis" | ""] | ["", "apis"] => {
                let group = |(name, version): &(&str, &str)| {
                    let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
                    json!({"name": name, "versions": [version], "preferredVersion": version})
                };
                json!({"groups": groups.iter().map(group).collect::<Vec<_>>()})
            }
            [CLUSTER_API, _] => kinds(&[("Cluster", "clusters"), ("ClusterClass", "clusterclasses")]),
            [GROUP, _] => kinds(&[("ClusterAddon", "clusteraddons")]),
            [INFRASTRUCTURE, _] => kinds(&[("XMachine", "xmachines"), ("XMachineTemplate", "xmachinetemplates")]),
            [CLUSTER_API, _, "clusters"] => {
                let cluster =
                    |(name, class): &(&str, &str)| object(name, json!({"topology": {"classRef": {"name": class}}}));
                list(self.clusters.iter().map(cluster).collect())
            }
            [INFRASTRUCTURE, _, plural] => {
                let of_kind = self.clones.iter().filter(|(kind, ..)| format!("{}s", kind.to_lowercase()) == plural);
                let clone = |(_, name, cluster, from): &(&str, &str, &str, &str)| {
                    json!({"metadata": {
                        "name": name, "namespace": "n", "labels": {CLUSTER_NAME_LABEL: cluster},
                        "annotations": {crate::api::CLONED_FROM_NAME: from},
                    }})
                };
                list(of_kind.map(clone).collect())
            }
            [CLUSTER_API, _, _, _, "clusterclasses", name] => {
                let (_, template) = self.classes.iter().find(|(class, _)| *class == name).expect("it is there");
                let reference = json!({"templateRef": {"kind": "XMachineTemplate", "name": template}});
                object(name, json!({"infrastructure": reference}))
            }
            [GROUP, _, "clusteraddons"] => list(Vec::new()),
            _ => panic!("{path} is asked for"),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path().to_owned();
            let answer = server.answer(&path);
            if path.matches('/').count() > 3 {
                server.asked.lock().unwrap().push(path.rsplit('/').next().unwrap_or_default().to_owned());
            }
            async move { http::Response::builder().body(Body::from(answer.to_string().into_bytes())) }
        });
        Client::new(service, "default")
    }
}

/// Release `n`, with its own template.
fn release(n: u8) -> Footprint {
    let row = |group: &str, kind: &str, name: String| crate::api::cluster_stack_release::Resource {
        group: group.into(),
        kind: kind.into(),
        namespace: "n".into(),
        name,
        ..Default::default()
    };
    let rows = [
        row(CLUSTER_API, "ClusterClass", format!("x-y-1-34-v{n}")),
        row(INFRASTRUCTURE, "XMachineTemplate", format!("t{n}")),
    ];
    in_use::footprint(&format!("x-y-1-34-v{n}"), "n", &rows)
}

#[tokio::test]
async fn no_more_is_read_than_decides() {
    let naming = ["clusteraddons", "clusters"];
    let clones = ["clusteraddons", "clusters", "xmachines", "xmachinetemplates"];
    let classes = ["clusteraddons", "clusters", "other", "xmachines", "xmachinetemplates"];
    let old_machine = vec![("XMachineTemplate", "c-md", "c", "t1"), ("XMachine", "m", "c", "c-md")];
    for (what, server, used, asked) in [
        ("a Cluster names it", Server { clusters: vec![("c", "x-y-1-34-v1")], ..Server::default() }, true, &naming[..]),
        ("there is no Cluster", Server::default(), false, &naming[..]),
        (
            "a Cluster has left it, and has a machine of it",
            Server { clusters: vec![("c", "x-y-1-34-v2")], clones: old_machine, ..Server::default() },
            true,
            &clones[..],
        ),
        (
            "a copy of its class names its template",
            Server { clusters: vec![("c", "other")], classes: vec![("other", "t1")], ..Server::default() },
            true,
            &classes[..],
        ),
        (
            "a Cluster of another class",
            Server { clusters: vec![("c", "other")], classes: vec![("other", "t9")], ..Server::default() },
            false,
            &classes[..],
        ),
    ] {
        let templates = BTreeSet::from([
            (INFRASTRUCTURE.to_owned(), "XMachineTemplate".to_owned()),
            // Of another release, which is not asked for.
            (INFRASTRUCTURE.to_owned(), "YMachineTemplate".to_owned()),
        ]);
        let found = super::used(&server.client(), &Kinds::default(), vec![release(1)], &templates).await.unwrap();
        assert_eq!(found.contains("x-y-1-34-v1"), used, "{what}");
        let mut all = server.asked.lock().unwrap().clone();
        all.sort();
        all.retain(|path| path != "x-y-1-34-v2");
        assert_eq!(all, asked, "{what}");
    }
}
