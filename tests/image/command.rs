//! Commands of a release: what they are given, what they may use, and that they end.

use clusterstack::core::image::build::Hope;
use clusterstack::core::image::log::Redactor;
use serde_json::json;

use super::*;

fn script(script: &str) -> Pipeline {
    steps(&json!([{"build": {"command": ["sh", "-c", script], "output": "out.raw"}}]))
}

/// Whether a process with this text in its command line lives.
fn lives(mark: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = entries.filter_map(|entry| {
        let dead = std::fs::read_to_string(entry.path().join("stat")).ok()?.rsplit(") ").next()?.starts_with('Z');
        (!dead).then(|| std::fs::read(entry.path().join("cmdline")).ok())?
    });
    lines.any(|line| String::from_utf8_lossy(&line).contains(mark))
}

/// Descriptors that any child of this process gets.
fn inherited() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let open = entries.filter_map(|entry| {
        let info = std::fs::read_to_string(entry.path()).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
        let closes = i64::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0;
        (!closes).then(|| entry.file_name().into_string().unwrap())
    });
    open.collect()
}

async fn fails(site: &Site, build: &Pipeline, hope: Hope, says: &str) {
    let error = site.build(build).await.unwrap_err();
    assert!(error.hope == hope && error.message.contains(says), "{error:?}\n{}", site.told.text());
}

#[tokio::test]
async fn a_command_sees_a_clean_environment_and_its_own_directory() {
    let mut site = Site::new();
    site.settings.env = [("FROM_TEMPLATE".to_owned(), "1".to_owned())].into();
    let build = site.scripted(
        "env > out.raw; ls -l /proc/$$/fd >> out.raw; grep NoNewPrivs /proc/self/status >> out.raw; \
         ulimit -n >> out.raw",
    );
    site.build(&build).await.unwrap();
    let text = String::from_utf8(site.shelf.published.lock().unwrap()["image"].1.clone()).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    assert_eq!(names, ["FROM_TEMPLATE", "HOME", "LANG", "PATH", "PWD", "STEP", "TMPDIR"], "{text}");
    let directory = site.directory().canonicalize().unwrap().display().to_string();
    assert!(text.contains(&format!("HOME={directory}/part/")), "{text}");
    assert!(text.contains("NoNewPrivs:\t1") && text.contains("\n1024\n"), "{text}");
    // Standard input, output and error, the shell's script, and the lock, which whatever it starts inherits; what whoever
    // started the tests left open is no part of it.
    let mine = inherited();
    let links = text
        .lines()
        .filter_map(|line| line.split_once(" -> "))
        .filter_map(|(left, to)| Some((left.rsplit(' ').next()?, to)));
    let links: Vec<(&str, &str)> = links.collect();
    // The shell keeps a second one of its output while it writes elsewhere.
    let output = links.iter().find(|(fd, _)| *fd == "2").unwrap().1;
    let own = links.iter().filter(|(fd, to)| !mine.contains(&(*fd).to_owned()) && *to != output);
    let mut own: Vec<&str> = own.filter_map(|(_, to)| to.rsplit('/').next()).collect();
    own.sort_unstable();
    assert_eq!(own, ["script", "tool.lock"], "{text}, and {mine:?} before");
}

#[tokio::test]
async fn a_command_finds_what_was_made_before_and_cannot_change_it() {
    let (site, content) = (Site::new(), bytes(5000));
    let server = Server::new(&content).await;
    let build = steps(&json!([
        {"download": {"url": server.url("disk.raw"), "checksum": format!("sha256:{}", sha256(&content))}},
        {"build": {"command": ["sh", "-c", "echo more >> disk.raw"], "output": "disk.raw"}},
    ]));
    let finished = site.build(&build).await.unwrap();
    assert_eq!(site.shelf.published.lock().unwrap()["image"].1, [&content[..], b"more\n"].concat());
    assert_eq!(site.task(&build).lost(&finished[..3], &site.cancel).await, Ok(None));
}

#[tokio::test]
async fn what_is_not_allowed_does_not_run() {
    let site = Site::new();
    let one = |command: serde_json::Value, env: serde_json::Value| {
        steps(&json!([{"build": {"command": command, "output": "x", "env": env}}]))
    };
    for (build, says) in [
        (one(json!(["touch", "x"]), json!({})), "not among the tools"),
        (one(json!(["/bin/sh", "-c", "true"]), json!({})), "not among the tools"),
        (one(json!(["sh", "/var/run/secrets/kubernetes.io/serviceaccount/token"]), json!({})), "argument 1 leads"),
        (one(json!(["sh", "x"]), json!({"LD_PRELOAD": "x.so"})), "env LD_PRELOAD is the provider's"),
        (one(json!(["sh", "x"]), json!({"PATH": "."})), "env PATH is the provider's"),
    ] {
        fails(&site, &build, Hope::None, says).await;
    }
    let mut site = Site::new();
    site.settings.tools = [("gone".to_owned(), "/nowhere/gone".into())].into();
    fails(&site, &one(json!(["gone"]), json!({})), Hope::None, "correct build.tools").await;
}

#[tokio::test]
async fn what_a_command_leaves_must_be_a_plain_file_of_its_own() {
    for (text, says) in [
        ("true", "made no file out.raw"),
        ("ln -s /etc/passwd out.raw", "no plain file"),
        ("mkfifo out.raw", "no plain file"),
        ("mkdir out.raw", "no plain file"),
        (": > out.raw", "is empty"),
    ] {
        fails(&Site::new(), &script(text), Hope::None, says).await;
    }
    let linked = steps(&json!([{"build": {"command": ["sh", "-c", "ln -s /etc d"], "output": "d/passwd"}}]));
    fails(&Site::new(), &linked, Hope::None, "no plain file").await;
    fails(&Site::new(), &script("exit 3"), Hope::Retry, "ended with code 3").await;
    fails(&Site::new(), &script("kill -9 $$"), Hope::Retry, "signal 9").await;
}

#[tokio::test]
async fn a_command_that_hangs_and_ignores_sigterm_is_killed() {
    let mut site = Site::new();
    site.settings.bounds.no_progress = Duration::from_secs(1);
    let build = script("trap '' TERM INT HUP; (trap '' TERM; sleep 3571) & sleep 3571");
    let begun = std::time::Instant::now();
    fails(&site, &build, Hope::Retry, "made no progress").await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(!lives("sleep\u{0}3571"));
}

#[tokio::test]
async fn a_command_has_a_deadline() {
    let mut site = Site::new();
    site.settings.bounds.step_timeout = Some(Duration::from_secs(1));
    fails(&site, &script("while true; do echo x; sleep 0.1; done"), Hope::Retry, "took longer than 1s").await;
}

#[tokio::test]
async fn what_a_command_leaves_running_ends_with_it() {
    let site = Site::new();
    let text = "setsid sh -c 'setsid sleep 3572 & exec sleep 3572' > /dev/null 2>&1 & echo done > out.raw";
    site.build(&script(text)).await.unwrap();
    assert!(!lives("sleep\u{0}3572"));
}

#[tokio::test]
async fn a_flood_fills_neither_disk_nor_memory_and_secrets_stay_out() {
    let mut site = Site::new();
    site.settings.redactor = Redactor::new(["hunter2"]);
    let build =
        script("yes 'the password is hunter2' | head -c 20000000; head -c 9000000 /dev/zero; echo ok > out.raw");
    site.build(&build).await.unwrap();
    let log = std::fs::read_to_string(site.log(&build)).unwrap();
    assert!(log.contains("the password is ***") && log.contains("lines left out"));
    assert!(!log.contains("hunter2") && !site.told.text().contains("hunter2"));
    assert!(log.len() < 1 << 20, "{}", log.len());
}

#[tokio::test]
async fn limits_hold() {
    let mut site = Site::new();
    site.settings.bounds.disk = 4 << 20;
    fails(&site, &script("head -c 9000000 /dev/zero > out.raw"), Hope::None, "larger than build.limits.disk").await;
    let many = "for n in 1 2 3 4 5 6; do head -c 2000000 /dev/urandom > f$n; done; sleep 3573";
    fails(&site, &script(many), Hope::None, "build.limits.disk").await;
    assert!(!lives("sleep\u{0}3573"));
    let mut site = Site::new();
    site.settings.bounds.cpu_seconds = 1;
    fails(&site, &script("while :; do :; done"), Hope::None, "cpuSeconds").await;
}

#[tokio::test]
async fn a_cancelled_command_leaves_nothing_running() {
    let site = Site::new();
    let build = script("echo begun; sleep 3574 & wait");
    let cancelled = async {
        until("it runs", || site.told.text().contains("begun")).await;
        site.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(site.build(&build), cancelled);
    assert_eq!(outcome, Err(StepError::cancelled()));
    assert!(!lives("sleep\u{0}3574"));
}
