//! The real binary, as a process of a test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::wait::wait_for;
use super::world::World;

/// A running operator. It is killed when it goes out of scope; its log is shown if the test failed.
pub(crate) struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    /// Starts it for the namespace of `world`; `flags` come last.
    pub(crate) fn start(world: &World, kubeconfig: &Path, flags: &[&str]) -> Self {
        Self::start_with(world, kubeconfig, flags, &[])
    }

    /// Starts it with more in its environment.
    pub(crate) fn start_with(world: &World, kubeconfig: &Path, flags: &[&str], env: &[(&str, &Path)]) -> Self {
        Self::start_under(world, kubeconfig, flags, env, &[])
    }

    /// The same under another program, which becomes the operator.
    pub(crate) fn start_under(
        world: &World,
        kubeconfig: &Path,
        flags: &[&str],
        env: &[(&str, &Path)],
        under: &[String],
    ) -> Self {
        let log = world.dir().join(format!("{}.log", super::world::unique("operator")));
        let file = std::fs::File::create(&log).expect("no log");
        let root = world.dir().canonicalize().expect("no directory");
        let words: Vec<&str> = under.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_clusterstack")]).collect();
        let default = |flag, value| (!flags.contains(&flag)).then_some([flag, value]).into_iter().flatten();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["operator", "--log-level", "debug"])
            // With a filter it works on what carries the label, in any namespace.
            .args(
                (!flags.contains(&"--watch-filter")).then_some(["--namespace", &world.namespace]).into_iter().flatten(),
            )
            .args(["--metrics-bind-address", "127.0.0.1:0"])
            .args(default("--health-probe-bind-address", "127.0.0.1:0"))
            .args(
                (!flags.contains(&"--release-dir"))
                    .then(|| ["--release-dir".into(), world.store()])
                    .into_iter()
                    .flatten(),
            )
            .arg("--allow-source")
            .arg(root)
            .args(flags)
            .args((!flags.contains(&"--leader-elect")).then_some("--leader-elect=false"))
            .env("KUBECONFIG", kubeconfig)
            .env_remove("RUST_LOG")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("no log"))
            .stderr(file);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log }
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where its log is.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.log.clone()
    }

    /// Id of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal: `STOP`, `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("no kill").success(), "the operator had ended by itself");
    }

    /// How it ended, once it does so by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let child = tokio::sync::Mutex::new(&mut self.child);
        wait_for("the operator to end", || async {
            child.lock().await.try_wait().expect("no child").ok_or("running".to_owned())
        })
        .await
    }

    /// Whether it did not end by itself.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("no child").is_none()
    }

    /// Ends it with no chance to clean up.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Asks it to end and waits.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().expect("no kill");
        assert!(told.success(), "the operator had ended by itself");
        self.ended().await
    }

    /// The address on which it serves `what`: `metrics` or `probes`.
    pub(crate) async fn address(&self, what: &str) -> String {
        let line = format!("serving {what} bound=");
        wait_for(&line, || async {
            let log = self.log();
            let found = log.split_once(&line).map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default());
            found.map(ToOwned::to_owned).ok_or_else(|| "not in its log".to_owned())
        })
        .await
    }

    /// The answer to a GET of `path`: status line, headers and body. Empty if nobody answers.
    pub(crate) async fn get(&self, what: &str, path: &str) -> String {
        let address = self.address(what).await;
        let read = move |path: String| -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&address)?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || read(path)).await.expect("no thread").unwrap_or_default()
    }

    /// The status line of the answer to a POST.
    pub(crate) async fn post(&self, what: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        let address = self.address(what).await;
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n{lines}\r\n{body}");
        let send = move || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&address)?;
            stream.write_all(request.as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let answer = tokio::task::spawn_blocking(send).await.expect("no thread").expect("no answer");
        answer.lines().next().unwrap_or_default().to_owned()
    }

    /// The value of a metric, by its name with labels as it stands in the text; 0 if it is not there.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.get("metrics", "/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
    }

    /// Waits until it made `passes` more passes without error over objects of `controller`.
    pub(crate) async fn passes(&self, controller: &str, passes: u32) {
        let name = format!("clusterstack_reconciles_total{{controller=\"{controller}\",result=\"success\"}}");
        let goal = self.metric(&name).await + f64::from(passes);
        wait_for(format!("{passes} more passes over {controller}"), || async {
            let seen = self.metric(&name).await;
            if seen >= goal { Ok(()) } else { Err(format!("{seen} of {goal}")) }
        })
        .await;
    }

    fn end(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(30_000);
            let from = (from..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or_default();
            eprintln!("--- log of the operator ({}) ---\n{}--- end of the log ---", self.log.display(), &log[from..]);
        }
    }
}

/// A loopback address and port that nobody listens on, for who has to be told where it will listen. It is not 127.0.0.1,
/// where an operator takes any free port for its metrics, which could be this one.
pub(crate) fn free_address() -> String {
    let ip = format!("127.88.{}.{}", rand::random::<u8>(), rand::random_range(1..=250_u8));
    TcpListener::bind(format!("{ip}:0")).expect("no port").local_addr().expect("no address").to_string()
}
