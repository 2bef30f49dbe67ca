//! ClusterStacks that name no source: the operator's environment does, by the variables of the Go operator.

use std::path::Path;

use serde_json::json;

use crate::harness::{Authority, GitHub, Operator, RegistryServer, SETTINGS, Tunnel, World, assets};

const V1: &str = "docker-x-1-34-v1";
const V2: &str = "docker-x-1-34-v2";

fn start(t: &World, flags: &[&str], variables: &[(&str, &str)]) -> Operator {
    let variables: Vec<(&str, &Path)> = variables.iter().map(|(name, value)| (*name, Path::new(*value))).collect();
    Operator::start_with(t, t.plane.operator_kubeconfig(), flags, &variables)
}

/// The file with the authority's own certificate.
fn trusted(t: &World, authority: &Authority) -> String {
    let path = t.dir().join("authority.pem");
    std::fs::write(&path, authority.pem()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_go_operators_environment_names_a_repository_of_github() {
    let t = World::new("env-github").await;
    let server = GitHub::start().await;
    server.release(V1, SETTINGS);
    // Its variables know no other server than GitHub's own.
    let authority = Authority::new();
    let (tunnel, authorities) =
        (Tunnel::new(&authority, "api.github.com", server.host()).await, trusted(&t, &authority));
    let operator = start(
        &t,
        &[],
        &[
            ("GIT_PROVIDER", "github"),
            ("GIT_ORG_NAME", "o"),
            ("GIT_REPOSITORY_NAME", "r"),
            ("GIT_ACCESS_TOKEN", "ghp_hunter2"),
            ("HTTPS_PROXY", &tunnel.url()),
            ("NO_PROXY", "127.0.0.1"),
            ("SSL_CERT_FILE", &authorities),
        ],
    );
    t.create_stack("x", "", json!({"source": null})).await;
    t.ready("x", "v1").await;
    assert_eq!(t.in_config_map(V1, "/data/color").await, "blue");
    server.release(V2, SETTINGS);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert_eq!(server.logins().into_iter().collect::<Vec<_>>(), ["Bearer ghp_hunter2"]);
    assert!(!operator.log().contains("hunter2"), "the token is in the log");
}

#[tokio::test]
async fn the_go_operators_environment_names_a_repository_of_a_registry() {
    let t = World::new("env-oci").await;
    let authority = Authority::new();
    let authorities = trusted(&t, &authority);
    let (certificate, key) = authority.identity("127.0.0.1");
    let place = |name: &str| t.dir().join(name).to_str().unwrap().to_owned();
    let files = [(place("tls.crt"), certificate), (place("tls.key"), key)];
    for (path, text) in &files {
        std::fs::write(path, text).unwrap();
    }
    let login = ["-login", "basic", "-user", "robot", "-password", "hunter2"];
    let flags = [&["-cert", &files[0].0, "-key", &files[1].0][..], &login].concat();
    let Some(registry) = RegistryServer::start(&t.dir().join("registry"), &flags) else { return };
    let repository = format!("{}/kaas/stacks", registry.host);
    let (releases, config) = (t.dir().join("releases"), place("config.json"));
    let docker = json!({"auths": {&registry.host: {"username": "robot", "password": "hunter2"}}});
    std::fs::write(&config, docker.to_string()).unwrap();
    let push = |tag: &str| {
        let directory = releases.join(tag);
        std::fs::create_dir_all(&directory).unwrap();
        for (name, content) in assets(tag, SETTINGS) {
            std::fs::write(directory.join(name), content).unwrap();
        }
        let pushed = std::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"))
            .args(["push", directory.to_str().unwrap(), &format!("oci://{repository}")])
            .args(["--ca-file", &authorities, "--registry-config", &config])
            .output()
            .unwrap();
        assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    };
    push(V1);
    let operator = start(
        &t,
        &["--allow-source", &registry.host, "--source", "oci"],
        &[
            ("OCI_REGISTRY", &registry.host),
            ("OCI_REPOSITORY", &repository),
            ("OCI_USERNAME", "robot"),
            ("OCI_PASSWORD", "hunter2"),
            ("SSL_CERT_FILE", &authorities),
        ],
    );
    t.create_stack("x", "", json!({"source": null})).await;
    t.ready("x", "v1").await;
    let artifact = t.release_ready(V1).await.status.unwrap().artifact.unwrap();
    assert_eq!(artifact.url, format!("oci://{repository}"));
    push(V2);
    t.look_again("x").await;
    t.ready("x", "v2").await;
    assert!(!operator.log().contains("hunter2"), "the password is in the log");
}
