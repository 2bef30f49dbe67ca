//! Runs the command of a release: in a directory of its own with copies of what was made before, and takes what it makes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::digest::{CHUNK, Sums, blocking, of_file};
use super::error::StepError;
use super::supervisor::{Ended, Order, ToolLimits};
use super::{Made, Site, tool, tree, work_dir};
use crate::core::image::command::{check_arguments, check_confined, environment, executable};
use crate::core::image::pipeline::Tool;

/// Bytes that are copied between two looks at the token.
const COPIED: u64 = 64 * CHUNK as u64;

/// Runs a command.
///
/// # Errors
/// It is not allowed, it failed, or it made no file.
pub(super) async fn run(site: &Site<'_>, wanted: &Tool, file: &str) -> Result<Made, StepError> {
    let refused = |error: crate::core::image::command::Refused| StepError::hopeless(error.to_string());
    let (name, arguments) = wanted.command.split_first().ok_or_else(|| StepError::hopeless("its command is empty"))?;
    let program = executable(name, &site.settings.tools).map_err(refused)?;
    check_arguments(arguments).map_err(refused)?;
    if site.settings.confined.contains(name) {
        check_confined(name, arguments).map_err(refused)?;
    }
    let mut env = environment(&site.settings.env, &wanted.env).map_err(refused)?;
    if !program.is_absolute() || !program.is_file() {
        return Err(StepError::hopeless(format!(
            "{} is not there, which the provider's template names for {name}: correct build.tools, or use an image of the operator that has it",
            program.display()
        )));
    }
    let part = site.directory.empty_part(site.number, site.name)?;
    let [run, home, tmp] = ["run", "home", "tmp"].map(|name| part.join(name));
    [&run, &home, &tmp].into_iter().try_for_each(|path| work_dir::make(path))?;
    site.copy_inputs(&run).await?;
    let directory = run.join(&wanted.directory);
    work_dir::make(&directory)?;
    let own = [("HOME", home), ("TMPDIR", tmp)].map(|(key, path)| (key.to_owned(), path.display().to_string()));
    for (key, value) in own {
        env.entry(key).or_insert(value);
    }
    let order = Order {
        program: program.clone(),
        arguments: arguments.to_vec(),
        env,
        directory,
        lock: site.directory.tool_lock(),
        limits: limits(site),
        grace: site.settings.grace,
    };
    finished(name, &site.run_tool(&order).await?)?;
    let (made, output, inner) = (run.clone(), run.join(file), PathBuf::from(file));
    let checked = blocking(site.cancel, move |_| {
        // It is to be taken out, whatever the tool left of our rights; what is no way is said below.
        let _ = tree::give_way(&made, &inner);
        regular_file(&made, &output)
    })
    .await?;
    let (sums, _) = of_file(checked.clone(), Sums::for_checksum(None), site.cancel, |_| ()).await?;
    Ok(Made { path: checked, digest: sums.digest() })
}

/// What a tool of this build may use.
pub(super) fn limits(site: &Site<'_>) -> ToolLimits {
    let bounds = &site.settings.bounds;
    ToolLimits {
        cpu_seconds: bounds.cpu_seconds,
        memory: bounds.memory,
        file: bounds.disk,
        open_files: bounds.open_files,
    }
}

/// Whether a tool did what it should.
///
/// # Errors
/// It did not. Another try may help: many tools use a network.
pub(super) fn finished(name: &str, ended: &Ended) -> Result<(), StepError> {
    // Numbers of Linux.
    const CPU: i32 = 24;
    const FILE: i32 = 25;
    // What a shell says of a signal that ended what it ran.
    let ended = match ended {
        Ended::Code(code) if matches!(code - 128, CPU | FILE) => &Ended::Signal(code - 128),
        ended => ended,
    };
    match ended {
        Ended::Code(0) => Ok(()),
        Ended::Code(code) => Err(StepError::transient(format!("{name} ended with code {code}: see the log"))),
        Ended::Signal(CPU) => Err(StepError::hopeless(format!(
            "{name} used more processor time than build.limits.cpuSeconds of the provider's template allows"
        ))),
        Ended::Signal(FILE) => Err(StepError::hopeless(format!(
            "{name} wrote a file that is larger than build.limits.disk of the provider's template allows"
        ))),
        Ended::Signal(signal) => Err(StepError::transient(format!("{name} was ended by signal {signal}: see the log"))),
        Ended::Stopped => Err(StepError::cancelled()),
        Ended::Failed(problem) => Err(StepError::transient(format!("{name} can't be run: {problem}"))),
    }
}

/// The file that a tool made, if it is one: no link that leads out, no device.
fn regular_file(root: &Path, output: &Path) -> Result<PathBuf, StepError> {
    let name = output.strip_prefix(root).unwrap_or(output).display().to_string();
    let metadata = match fs::symlink_metadata(output) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StepError::hopeless(format!("the command made no file {name}: correct its output")));
        }
        Err(error) => return Err(StepError::file("reading", output, &error)),
    };
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| StepError::file("reading", path, &error));
    if !metadata.is_file() || real(output)? != real(root)?.join(&name) {
        return Err(StepError::hopeless(format!("what the command made, {name}, is no plain file in its directory")));
    }
    if metadata.len() == 0 {
        return Err(StepError::hopeless(format!("what the command made, {name}, is empty")));
    }
    // Tools write what they like; we have to read it.
    let readable = fs::set_permissions(output, fs::Permissions::from_mode(0o600));
    readable.map_err(|error| StepError::file("reading", output, &error))?;
    Ok(output.to_owned())
}

impl Site<'_> {
    /// Runs a tool, whose output is the step's.
    ///
    /// # Errors
    /// It can't be started, or was cancelled.
    pub(super) async fn run_tool(&self, order: &Order) -> Result<Ended, StepError> {
        self.run_tool_with(order, &mut |_| true).await
    }

    /// The same; `line` is given each line, and says whether it is one for the log.
    ///
    /// # Errors
    /// It can't be started, or was cancelled.
    pub(super) async fn run_tool_with(
        &self,
        order: &Order,
        line: &mut (dyn FnMut(&[u8]) -> bool + Send),
    ) -> Result<Ended, StepError> {
        let mut both = |text: &[u8]| {
            if line(text) {
                self.watch.line(text);
            }
        };
        tool::run(&self.settings.launcher, order, self.cancel, &mut both).await
    }

    /// Copies what the steps before made into a directory, under their names; of two of one name the later one.
    async fn copy_inputs(&self, to: &Path) -> Result<(), StepError> {
        let mut wanted: Vec<(PathBuf, PathBuf)> = Vec::new();
        for (from, file) in self.earlier_files() {
            let to = to.join(file);
            wanted.retain(|(_, other)| *other != to);
            wanted.push((from, to));
        }
        blocking(self.cancel, move |cancel| {
            for (from, to) in &wanted {
                to.parent().map_or(Ok(()), work_dir::make)?;
                copy(from, to, cancel)?;
            }
            Ok(())
        })
        .await
    }
}

/// Copies a file, by reference where the file system can.
fn copy(from: &Path, to: &Path, cancel: &tokio_util::sync::CancellationToken) -> Result<(), StepError> {
    let failed = |error: io::Error| StepError::file("copying to", to, &error);
    let mut source = File::open(from).map_err(|error| StepError::file("reading", from, &error))?;
    let mut target = OpenOptions::new().create_new(true).write(true).mode(0o600).open(to).map_err(failed)?;
    loop {
        if cancel.is_cancelled() {
            return Err(StepError::cancelled());
        }
        if io::copy(&mut io::Read::take(&mut source, COPIED), &mut target).map_err(failed)? == 0 {
            return Ok(());
        }
    }
}
