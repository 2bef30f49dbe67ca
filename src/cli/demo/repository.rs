//! A Git repository with releases of a sample stack.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use git2::{IndexAddOption, Repository as Git, RepositoryInitOptions, Signature};
use serde_json::Value;

use crate::cli::report::Hinted;
use crate::core::name::{KubernetesMinor, ReleaseName, ReleaseVersion};
use crate::core::yaml;

/// A stack below `stacks/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Its provider.
    pub(super) provider: String,
    /// Its name.
    pub(super) name: String,
    /// The Kubernetes version that it is for.
    pub(super) kubernetes: KubernetesMinor,
}

impl Stack {
    /// The first one with Tera templates, or the first one without.
    pub(super) fn find(stacks: &Path, tera: bool) -> Result<Self> {
        for provider in names(stacks) {
            for name in names(&stacks.join(&provider)) {
                let dir = stacks.join(&provider).join(&name);
                let is_stack = dir.join("cluster-class/Chart.yaml").is_file();
                if is_stack && has_tera(&dir.join("cluster-class/templates")) == tera {
                    let kubernetes = kubernetes(&dir)?;
                    return Ok(Self { provider, name, kubernetes });
                }
            }
        }
        let engine = if tera { "Tera" } else { "Helm" };
        let message = format!("{} holds no stack with {engine} templates", stacks.display());
        Err(Hinted::new(message, "call hack/demo of a complete clone, or name a directory with --stacks").into())
    }

    /// The release of a number.
    pub(super) fn release(&self, number: u64) -> ReleaseName {
        ReleaseName {
            provider: self.provider.clone(),
            stack: self.name.clone(),
            kubernetes: self.kubernetes,
            version: ReleaseVersion { number, pre: None },
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn has_tera(templates: &Path) -> bool {
    names(templates).iter().any(|name| {
        let path = templates.join(name);
        path.extension().is_some_and(|extension| extension == "tera") || (path.is_dir() && has_tera(&path))
    })
}

/// From `csctl.yaml`: `v1.34.7` is `1.34`.
fn kubernetes(stack: &Path) -> Result<KubernetesMinor> {
    let path = stack.join("csctl.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = yaml::parse(&text).with_context(|| format!("{} is no YAML", path.display()))?;
    let version = file.pointer("/config/kubernetesVersion").and_then(Value::as_str).unwrap_or_default();
    let minor: Vec<&str> = version.trim_start_matches('v').splitn(3, '.').take(2).collect();
    minor.join(".").parse().with_context(|| format!("{}: config.kubernetesVersion {version:?}", path.display()))
}

/// The repository.
pub(super) struct Repository {
    git: Git,
    dir: PathBuf,
}

impl Repository {
    /// An empty one with the stacks in its work tree.
    pub(super) fn make(dir: &Path, stacks: &Path) -> Result<Self> {
        let making = || format!("cannot make the Git repository {}", dir.display());
        let git = Git::init_opts(dir, RepositoryInitOptions::new().initial_head("main")).with_context(making)?;
        copy(stacks, &dir.join("stacks")).with_context(making)?;
        Ok(Self { git, dir: dir.to_owned() })
    }

    /// Where it is read from.
    pub(super) fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// Changes the stack, commits that and tags it as a release.
    pub(super) fn release(&self, release: &ReleaseName) -> Result<()> {
        let tag = release.to_string();
        self.change(release).with_context(|| format!("cannot write release {tag}"))?;
        self.commit(&tag).with_context(|| format!("cannot tag release {tag}"))
    }

    /// A release without a change would be one as well.
    fn change(&self, release: &ReleaseName) -> std::io::Result<()> {
        let values = format!("stacks/{}/{}/cluster-class/values.yaml", release.provider, release.stack);
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.dir.join(values))?;
        writeln!(file, "\n# Released as {}.", release.version)
    }

    fn commit(&self, tag: &str) -> Result<(), git2::Error> {
        let mut index = self.git.index()?;
        index.add_all(["*"], IndexAddOption::FORCE, None)?;
        index.write()?;
        let tree = self.git.find_tree(index.write_tree()?)?;
        let author = Signature::now("clusterstack demo", "demo@localhost")?;
        let parent = self.git.head().ok().map(|head| head.peel_to_commit()).transpose()?;
        let parents: Vec<&git2::Commit<'_>> = parent.iter().collect();
        let message = format!("Release {tag}");
        let commit = self.git.commit(Some("HEAD"), &author, &author, &message, &tree, &parents)?;
        self.git.tag(tag, &self.git.find_object(commit, None)?, &author, &message, false)?;
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(stacks: &Path, name: &str, template: &str) {
        let class = stacks.join("docker").join(name).join("cluster-class");
        fs::create_dir_all(class.join("templates/deep")).unwrap();
        fs::write(class.join("Chart.yaml"), "apiVersion: v2\n").unwrap();
        fs::write(class.join("templates/deep").join(template), "").unwrap();
        fs::write(stacks.join("docker").join(name).join("csctl.yaml"), "config:\n  kubernetesVersion: v1.34.7\n")
            .unwrap();
    }

    #[test]
    fn the_stack_of_the_wanted_engine_is_found() {
        let dir = tempfile::tempdir().unwrap();
        stack(dir.path(), "b", "class.yaml");
        stack(dir.path(), "a", "class.yaml.tera");
        assert_eq!(Stack::find(dir.path(), false).unwrap().release(2).to_string(), "docker-b-1-34-v2");
        assert_eq!(Stack::find(dir.path(), true).unwrap().release(1).to_string(), "docker-a-1-34-v1");
        assert!(Stack::find(&dir.path().join("docker"), true).unwrap_err().to_string().contains("Tera"));
    }

    #[test]
    fn each_release_is_a_tag_on_a_commit_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let stacks = dir.path().join("stacks");
        stack(&stacks, "b", "class.yaml");
        let found = Stack::find(&stacks, false).unwrap();
        let repository = Repository::make(&dir.path().join("repository"), &stacks).unwrap();
        for number in [1, 2] {
            repository.release(&found.release(number)).unwrap();
        }
        let commit = |tag: &str| repository.git.revparse_single(tag).unwrap().peel_to_commit().unwrap();
        assert_eq!(commit("docker-b-1-34-v2").parent_id(0).unwrap(), commit("docker-b-1-34-v1").id());
        assert_ne!(commit("docker-b-1-34-v2").tree_id(), commit("docker-b-1-34-v1").tree_id());
    }
}
