//! A real SSH server (`sshd`) over the repositories of a test.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::wait::{skipped, wait_for};

/// A server of one user and one key. It ends when it goes out of scope.
pub(crate) struct SshServer {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl SshServer {
    /// Starts one with its files in `dir`; `None`, visibly, where there is no `sshd`.
    pub(crate) async fn start(test: &str, dir: &Path) -> Option<Self> {
        Self::start_with(test, dir, "").await
    }

    /// The same, with more lines of `sshd_config`.
    pub(crate) async fn start_with(test: &str, dir: &Path, more: &str) -> Option<Self> {
        let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let Some(program) = program else {
            skipped(format_args!("{test}: there is no sshd (Debian package openssh-server)"));
            return None;
        };
        std::fs::create_dir_all(dir).expect("no directory");
        let dir = dir.canonicalize().expect("no directory");
        // Where sshd that runs as root separates its privileges; others need none.
        let _ = std::fs::create_dir_all("/run/sshd");
        for key in ["host", "other", "user"] {
            keygen(&dir.join(key));
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("no port").port();
        let at = |file: &str| dir.join(file).display().to_string();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n{more}\n",
            at("host"),
            at("user.pub"),
        );
        std::fs::write(dir.join("sshd_config"), config).expect("no file");
        let log = std::fs::File::create(dir.join("log")).expect("no log");
        let child = Command::new(program)
            .args(["-D", "-e", "-f", &at("sshd_config")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("no sshd");
        let server = Self { child, dir, port };
        wait_for("sshd to listen", || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        Some(server)
    }

    /// The URL of a repository.
    pub(crate) fn url(&self, repository: &Path) -> String {
        let user = Command::new("id").arg("-un").output().expect("no id").stdout;
        format!("ssh://{}@127.0.0.1:{}{}", String::from_utf8_lossy(&user).trim(), self.port, repository.display())
    }

    /// `host:port`, for `--allow-source`.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The private key that may log in.
    pub(crate) fn identity(&self) -> String {
        std::fs::read_to_string(self.dir.join("user")).expect("no key")
    }

    /// A line of `known_hosts`: with the server's key, or with another one.
    pub(crate) fn known_hosts(&self, right: bool) -> String {
        let key = self.dir.join(if right { "host.pub" } else { "other.pub" });
        format!("[127.0.0.1]:{} {}", self.port, std::fs::read_to_string(key).expect("no key"))
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn keygen(path: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.expect("no ssh-keygen").success());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("no key");
}
