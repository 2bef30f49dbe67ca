//! Releases taken to a repository behind TLS, as a user pushes them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::certificates::Authority;
use super::server::{Mode, Server};

/// `clusterstack push` by somebody whose Git is set up in `home`.
async fn push(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clusterstack"));
    command.arg("push").args(args).env("HOME", home).env_remove("XDG_CONFIG_HOME");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_pushed_over_https_with_the_login_of_git() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let repository = git2::Repository::init_bare(directory.path().join("repos/r.git")).unwrap();
    repository.config().unwrap().set_bool("http.receivepack", true).unwrap();
    let authority = Authority::new();
    let trusted = directory.path().join("ca.pem");
    fs::write(&trusted, authority.pem()).unwrap();
    let assets = directory.path().join("assets");
    let stack = Path::new(env!("CARGO_MANIFEST_DIR")).join("stacks/docker/hello");
    crate::cli::clusterstack(&["package", stack.to_str().unwrap(), "--out", assets.to_str().unwrap()]).succeeds();
    let tls = authority.server("127.0.0.1", None);
    let server = Server::with_tls(directory.path().join("repos"), tls).await;
    server.answers(Mode::Login("Basic Z2l0Omh1bnRlcjI=".to_owned()));
    fs::create_dir(&home).unwrap();
    let (from, to) = (assets.to_str().unwrap(), format!("git+{}", server.url("r.git")));
    let all = [from, &to, "--branch", "main", "--ca-file", trusted.to_str().unwrap()];

    let output = push(&home, &all[..4]).await;
    assert!(!output.status.success() && told(&output).contains("--ca-file"), "{}", told(&output));
    let output = push(&home, &all).await;
    assert!(!output.status.success(), "{}", told(&output));
    let helper = "[credential]\n\thelper = \"!f() { echo username=git; echo password=hunter2; }; f\"\n";
    fs::write(home.join(".gitconfig"), helper).unwrap();
    let output = push(&home, &all).await;
    assert!(output.status.success() && told(&output).contains(" pushed to "), "{}", told(&output));
    let tag = repository.find_reference("refs/tags/docker-hello-1-34-v1").unwrap().peel_to_commit().unwrap();
    let branch = repository.find_reference("refs/heads/main").unwrap().peel_to_commit().unwrap();
    assert_eq!(tag.id(), branch.id());
    let output = push(&home, &all).await;
    assert!(output.status.success() && told(&output).contains(" unchanged "), "{}", told(&output));

    // Several at once put theirs on the branch one behind the other.
    let versions = ["v2", "v3", "v4", "v5"];
    let pushes = versions.map(|version| {
        let assets = directory.path().join(version);
        let out = assets.to_str().unwrap().to_owned();
        crate::cli::clusterstack(&["package", stack.to_str().unwrap(), "--out", &out, "--version", version]).succeeds();
        let (home, to, ca) = (home.clone(), to.clone(), trusted.to_str().unwrap().to_owned());
        async move { push(&home, &[&out, &to, "--branch", "main", "--ca-file", &ca]).await }
    });
    for output in futures::future::join_all(pushes).await {
        assert!(output.status.success() && told(&output).contains(" pushed to "), "{}", told(&output));
    }
    let mut history = repository.revwalk().unwrap();
    history.push_ref("refs/heads/main").unwrap();
    assert_eq!(history.count(), 1 + versions.len());
    for version in versions {
        repository.find_reference(&format!("refs/tags/docker-hello-1-34-{version}")).unwrap();
    }
}
