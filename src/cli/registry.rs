//! Flags that say how a registry is reached.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::io::publish::registry::Registry;
use crate::io::publish::remote::Reach;
use crate::io::publish::target::{self, Target};

/// How registries (oci://…) are reached. Logins are those of `docker login`, `oras login` or `helm registry login` with
/// its file named by `--registry-config`; credential helpers are not asked.
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
        let registry = target::open(target, &self.reach()?, scratch.path())?;
        Ok(Opened { registry, _scratch: scratch })
    }

    fn reach(&self) -> Result<Reach> {
        let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let docker_config = match &self.registry_config {
            Some(path) => Some(read(path)?),
            None => default_config().filter(|path| path.is_file()).map(|path| read(&path)).transpose()?,
        };
        let authorities = self.ca_file.as_deref().map(read).transpose()?;
        let authorities = authorities.map(String::from_utf8).transpose().context("--ca-file holds no PEM")?;
        Ok(Reach { docker_config, authorities, plain_http: self.plain_http })
    }
}

fn default_config() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    Some(directory.or_else(home)?.join("config.json"))
}
