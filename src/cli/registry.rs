//! Flags that say how a registry is reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use serde_json::{Value, json};

use super::output;
use super::report::Hinted;
use crate::io::publish::registry::Registry;
use crate::io::publish::remote::Reach;
use crate::io::publish::target::{self, Target};
use crate::io::registry::Repository;
use crate::io::source::Credentials;

/// How registries (oci://…) are reached. Logins are those of `docker login`, `oras login` or `helm registry login` with
/// its file named by `--registry-config`; the credential helpers that it names are asked.
#[derive(Args, Clone, Debug)]
pub struct RegistryArgs {
    /// File with logins of registries; Docker's own config.json without it
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,

    /// File with authorities that sign servers' certificates, beside the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// Speak plain http with registries
    #[arg(long)]
    plain_http: bool,
}

/// A target that is a registry or a layout, opened, with the directory for what it downloads.
pub struct Opened {
    /// The registry; `None` for other targets.
    pub registry: Option<Box<dyn Registry>>,
    _scratch: tempfile::TempDir,
}

impl RegistryArgs {
    /// The file of `--ca-file`.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    /// Opens a target.
    ///
    /// # Errors
    /// A file can't be read, or the target not be used.
    pub fn open(&self, target: &Target) -> Result<Opened> {
        let scratch = tempfile::tempdir().context("cannot make a directory for downloads")?;
        let reach = match target {
            Target::Oci(repository) => self.reach(&Repository::parse(repository)?)?,
            Target::Directory(_) | Target::Layout(_) | Target::Git(_) => Reach::default(),
        };
        let registry = target::open(target, &reach, scratch.path())?;
        Ok(Opened { registry, _scratch: scratch })
    }

    fn reach(&self, repository: &Repository) -> Result<Reach> {
        let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let config = self.registry_config.clone().or_else(|| default_config().filter(|path| path.is_file()));
        let login = |path: PathBuf| {
            let config = read(&path)?;
            login_of(&config, repository).with_context(|| format!("cannot use the logins in {}", path.display()))
        };
        let docker_config = config.map(login).transpose()?.flatten();
        let authorities = self.ca_file.as_deref().map(read).transpose()?;
        let authorities = authorities.map(String::from_utf8).transpose().context("--ca-file holds no PEM")?;
        Ok(Reach { docker_config, authorities, plain_http: self.plain_http, waits: Some(told) })
    }
}

/// Says on the error channel what is waited for.
fn told(text: &str) {
    output::note!("{text}");
}

/// A Docker configuration with the login for a repository: the one that is written there, or the one that the credential helper has
/// that it names. `None` where it has none: nobody needs a login to a registry that asks for none.
fn login_of(config: &[u8], repository: &Repository) -> Result<Option<Vec<u8>>> {
    // The parser's own words may quote a password.
    let read: Option<Value> = serde_json::from_slice(config).ok();
    let read = read.filter(Value::is_object).context("it is no Docker configuration in JSON")?;
    let written = Credentials::from_secret(&BTreeMap::from([(".dockerconfigjson".to_owned(), config)]));
    let host = repository.host();
    if written.is_ok_and(|written| written.login(host, repository.path()).is_some()) {
        return Ok(Some(config.to_owned()));
    }
    // By what `docker login` asks a helper to keep the login for.
    let server = if host == "docker.io" { "https://index.docker.io/v1/" } else { host };
    let names = |text: Option<&Value>| text.and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let helper = read.pointer("/credHelpers").and_then(|helpers| helpers.get(server));
    if !(names(helper) || names(read.get("credsStore"))) {
        return Ok(None);
    }
    let login = match docker_credential::get_credential_from_reader(config, server) {
        Ok(DockerCredential::IdentityToken(token)) => json!({"identitytoken": token}),
        Ok(DockerCredential::UsernamePassword(username, password)) => {
            json!({"username": username, "password": password})
        }
        // It has none, in words of its own.
        Err(CredentialRetrievalError::HelperFailure { stdout, stderr, .. })
            if format!("{stdout}{stderr}").to_lowercase().contains("not found") =>
        {
            return Ok(None);
        }
        Err(CredentialRetrievalError::NoCredentialConfigured) => return Ok(None),
        Err(CredentialRetrievalError::HelperFailure { helper, stderr, .. }) => {
            let message = format!("the credential helper {helper} gives no login for {host}: {}", stderr.trim());
            return Err(Hinted::new(message, "run docker login anew, or correct credsStore and credHelpers").into());
        }
        Err(error) => {
            let message = format!("its credential helper can't be asked for the login for {host}");
            let hint = "put docker-credential-… on the PATH, or take credsStore and credHelpers out of the file";
            return Err(Hinted::new(message, hint).because(error).into());
        }
    };
    Ok(Some(json!({"auths": {server: login}}).to_string().into_bytes()))
}

fn default_config() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    Some(directory.or_else(home)?.join("config.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_login_needs_none() {
        let login = json!({"auth": "YTpi"});
        for (config, host, expected) in [
            (json!({}), "r.example.com", false),
            (json!({"auths": {}}), "r.example.com", false),
            (json!({"currentContext": "x"}), "r.example.com", false),
            (json!({"credsStore": ""}), "r.example.com", false),
            (json!({"auths": {"r.example.com": {}}}), "r.example.com", false),
            (json!({"auths": {"other.example.com": login}}), "r.example.com", false),
            (json!({"auths": {"r.example.com": login}}), "r.example.com", true),
            (json!({"auths": {"https://R.example.com/v2/": login}, "credsStore": "none"}), "r.example.com", true),
            (json!({"auths": {"https://index.docker.io/v1/": login}}), "docker.io", true),
        ] {
            let repository = Repository::parse(&format!("{host}/a/b")).unwrap();
            let found = login_of(config.to_string().as_bytes(), &repository).unwrap();
            assert_eq!(found.is_some(), expected, "{config}");
        }
        let repository = Repository::parse("r.example.com/a").unwrap();
        for broken in ["", "[]", "hunter2"] {
            let error = login_of(broken.as_bytes(), &repository).unwrap_err().to_string();
            assert!(error.contains("no Docker configuration") && !error.contains("hunter2"), "{error}");
        }
        let missing = json!({"credHelpers": {"r.example.com": "there-is-none"}}).to_string();
        let error = login_of(missing.as_bytes(), &repository).unwrap_err();
        assert!(error.to_string().contains("can't be asked for the login for r.example.com"), "{error}");
    }
}
