//! Around the story: what it needs is started, and ended whatever happens.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getppid, kill_process};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::DemoArgs;
use super::cluster::{self, Choice, Cluster, NAMESPACE};
use super::place::Place;
use super::process::Operator;
use super::promise::Promises;
use super::repository::{Repository, Stack};
use super::screen::{Screen, seconds};
use super::story::Story;
use crate::cli::{output, report};

/// How long the story may take.
const STORY: Duration = Duration::from_mins(3);
/// Lines of the operator's log that are shown after a failure.
const LINES: usize = 40;
/// Set by `hack/demo --keep`: its process id. It ends when it is told that the story is over.
const SHELL: &str = "CLUSTERSTACK_DEMO_SHELL";

/// What was started and has to be ended.
struct Stage {
    place: Place,
    root: PathBuf,
    screen: Screen,
    cluster: Option<Cluster>,
    operator: Option<Operator>,
    promises: Promises,
}

/// The demo from start to end.
pub(super) async fn perform(args: &DemoArgs) -> Result<ExitCode> {
    let mut asked = Asked::listen().context("cannot listen for signals")?;
    let mut stage = Stage {
        place: Place::make()?,
        root: args.root.canonicalize().with_context(|| format!("{} is not there", args.root.display()))?,
        screen: Screen::new(),
        cluster: None,
        operator: None,
        promises: Promises::default(),
    };
    let shown = tokio::select! {
        shown = stage.show(args) => Some(shown),
        code = asked.end() => {
            stage.screen.clear()?;
            stage.screen.say("interrupted: stopping what was started")?;
            stage.end(false).await?;
            return Ok(ExitCode::from(code));
        }
    };
    let result = shown.unwrap_or(Ok(()));
    stage.screen.clear()?;
    let is_running = stage.operator.is_some();
    if let Err(error) = &result {
        stage.failed(error);
    }
    if is_running {
        stage.summary()?;
    }
    if args.keep && is_running {
        stage.kept()?;
        leave(result.is_ok())?;
        asked.stop().await;
    }
    stage.end(result.is_err()).await?;
    Ok(if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Stage {
    async fn show(&mut self, args: &DemoArgs) -> Result<()> {
        let stacks = args.stacks.clone().unwrap_or_else(|| self.root.join("stacks"));
        let stack = Stack::find(&stacks, args.tera)?;
        let repository = Repository::make(&self.place.join("repository"), &stacks)?;
        let began = Instant::now();
        let choice = Choice::of_environment();
        if !matches!(choice, Choice::Given(_)) {
            self.screen.say("starting the control plane")?;
        }
        let cluster = self.cluster.insert(Cluster::start(choice, &self.root, &self.place).await?);
        self.screen.say("installing definitions: ours and Cluster API's")?;
        let definitions = cluster.prepare(&self.root, &self.place).await?;
        let text = format!("{definitions} definitions installed, {} since the start", seconds(began.elapsed()));
        self.screen.say(&text)?;
        let operator = Operator::start(
            cluster.kubeconfig.as_deref(),
            &flags(&self.place).iter().map(OsString::as_os_str).collect::<Vec<&OsStr>>(),
            self.place.join("operator.log"),
        )?;
        let operator = self.operator.insert(operator);
        let story = Story {
            client: cluster.client.clone(),
            stack,
            repository,
            operator,
            screen: &mut self.screen,
            promises: &mut self.promises,
        };
        let told = tokio::time::timeout(STORY, story.tell()).await;
        told.unwrap_or_else(|_| bail!("the story took longer than {} s", STORY.as_secs()))?;
        if !self.promises.all_came_true() {
            bail!("not everything came true");
        }
        Ok(())
    }

    fn failed(&self, error: &anyhow::Error) {
        output::note_part!("{}", report::text(error));
        if let Some(operator) = &self.operator {
            output::note!("the last lines of the operator's log:\n{}", operator.last_lines(LINES));
        }
    }

    fn summary(&mut self) -> Result<()> {
        let table = self.promises.table();
        self.screen.say(&format!("\n{table}"))?;
        let mut kubectl = std::process::Command::new("kubectl");
        kubectl.args(["--namespace", NAMESPACE, "--request-timeout=10s", "get", "csk,cskr"]);
        if let Some(kubeconfig) = self.cluster.as_ref().and_then(|cluster| cluster.kubeconfig.as_ref()) {
            kubectl.env("KUBECONFIG", kubeconfig);
        }
        // Where there is no kubectl, nothing is missing.
        let Ok(output) = kubectl.output() else { return Ok(()) };
        self.screen.say("$ kubectl get csk,cskr")?;
        self.screen.say(String::from_utf8_lossy(&output.stdout).trim_end())
    }

    fn kept(&mut self) -> Result<()> {
        let dir = self.place.path().display().to_string();
        let kubeconfig = self.cluster.as_ref().and_then(|cluster| cluster.kubeconfig.as_ref());
        let export = kubeconfig.map_or(String::new(), |path| format!("  export KUBECONFIG={}\n", path.display()));
        self.screen.say(&format!(
            "\nIt is left running. To use it:\n{export}  kubectl --namespace {NAMESPACE} get csk,cskr\n  \
             less {dir}/operator.log\nTo stop it:\n  hack/demo --stop {dir}"
        ))
    }

    /// Ends everything in order. Trouble is told, and nothing is left out for it.
    async fn end(mut self, failed: bool) -> Result<()> {
        let mut troubles = Vec::new();
        if let Some(cluster) = self.cluster.take() {
            if cluster.is_to_be_cleaned() {
                troubles.extend(self.screen.say(&format!("\nremoving namespace {NAMESPACE}")).err());
            }
            troubles.extend(cluster.clean().await.err());
        }
        if let Some(operator) = self.operator.take() {
            operator.stop().await;
        }
        troubles.extend(cluster::stop(&self.root, &self.place).await.err());
        troubles.extend(self.place.remove().err());
        let Some(trouble) = troubles.into_iter().next() else { return Ok(()) };
        if failed {
            output::note_part!("{}", report::text(&trouble));
            return Ok(());
        }
        Err(trouble)
    }
}

fn flags(place: &Place) -> Vec<OsString> {
    let mut flags: Vec<OsString> = [
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        "--leader-elect=false",
        "--namespace",
        NAMESPACE,
    ]
    .map(OsString::from)
    .into();
    flags.extend(["--release-dir".into(), place.join("releases").into()]);
    flags.extend(["--allow-source".into(), place.join("repository").into()]);
    flags
}

/// Tells `hack/demo` that the story is over, and lets go of its terminal or pipe.
fn leave(succeeded: bool) -> Result<()> {
    let shell = std::env::var(SHELL).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    let Some(shell) = shell.filter(|shell| getppid() == Some(*shell)) else { return Ok(()) };
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null").context("no /dev/null")?;
    rustix::stdio::dup2_stdout(&nothing).context("cannot let go of standard output")?;
    rustix::stdio::dup2_stderr(&nothing).context("cannot let go of standard error")?;
    kill_process(shell, if succeeded { Signal::USR1 } else { Signal::USR2 }).context("cannot tell hack/demo")
}

/// Signals that end the demo.
struct Asked {
    interrupt: Signals,
    terminate: Signals,
    hangup: Signals,
}

impl Asked {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Any of them, as the exit code that it gives.
    async fn end(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hangup.recv() => 129,
        }
    }

    /// All but the end of the shell or the terminal, which a demo that was kept outlives.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
