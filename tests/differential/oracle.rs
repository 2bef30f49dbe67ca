//! Helm's own engine as a peer process: `hack/oracle`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clusterstack::core::chart::HelmVersion;
use serde_json::{Value as Json, json};

/// What Helm made of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The text of each file.
    Texts(BTreeMap<String, String>),
    /// Helm refuses.
    Refused(String),
    /// Helm died of it or took too long: nothing to compare with.
    Lost,
}

/// The process, begun anew when it dies.
pub struct Oracle {
    program: PathBuf,
    running: Option<Running>,
}

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Oracle {
    /// Builds the oracle of that Helm, unless it is built, or says why there is none.
    pub fn find(helm: HelmVersion) -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/oracle/build");
        let built = Command::new(&script).stderr(Stdio::piped()).output().map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !built.status.success() {
            return Err(text(&built.stderr).lines().last().unwrap_or_default().to_owned());
        }
        let name = match helm {
            HelmVersion::V3 => "oracle",
            HelmVersion::V4 => "four",
        };
        Ok(Self { program: Path::new(&text(&built.stdout)).join(name), running: None })
    }

    fn running(&mut self) -> &mut Running {
        let program = &self.program;
        self.running.get_or_insert_with(|| {
            let mut child = Command::new(program)
                .arg("serve")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            Running { child, input, output }
        })
    }

    fn ask(&mut self, request: &Json) -> Option<Json> {
        let running = self.running();
        let mut line = String::new();
        let asked = running.input.write_all(format!("{request}\n").as_bytes()).and_then(|()| running.input.flush());
        let answered = asked.and_then(|()| running.output.read_line(&mut line));
        if matches!(answered, Ok(1..)) {
            return serde_json::from_str(&line).ok();
        }
        if let Some(mut running) = self.running.take() {
            _ = running.child.kill();
            _ = running.child.wait();
        }
        None
    }

    /// The names of all functions.
    pub fn functions(&mut self) -> Vec<String> {
        let answer = self.ask(&json!({"functions": true})).unwrap();
        serde_json::from_value(answer["functions"].clone()).unwrap()
    }

    /// Renders a chart: `{"chart": path}` or `{"files": {…}}`, and `values`.
    pub fn render(&mut self, request: &Json) -> Answer {
        let Some(answer) = self.ask(request) else { return Answer::Lost };
        match answer["error"].as_str() {
            Some("timeout") => Answer::Lost,
            Some(error) => Answer::Refused(error.to_owned()),
            None => Answer::Texts(serde_json::from_value(answer["files"].clone()).unwrap_or_default()),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            _ = running.child.kill();
            _ = running.child.wait();
        }
    }
}
