//! Builds that are stopped in each step: by the end of the process, and by who wants them to stop.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterstack::api::image_release::ImagePhase;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use serde_json::json;

use crate::harness::{ImageServer, Images, PutServer, TOKEN, World, check, names, skipped, sum, wait_for};

const STEPS: [&str; 7] = ["download", "verify", "build", "convert", "compress", "upload", "register"];
/// Steps that can't be held for long.
const LATE: [&str; 3] = ["compress", "upload", "register"];
/// What the operator may take to end: the time that a pod has, less what the documentation promises to leave.
const GRACE: Duration = Duration::from_secs(20);
/// What is compressed where that is to take a while.
const LARGE: usize = 12 << 20;

/// Builds of which each can be held in the middle of a step; they are called by it.
struct Yard<'t> {
    t: &'t World,
    images: Images<'t>,
    disks: ImageServer,
    shelf: PutServer,
    checksum: String,
}

impl<'t> Yard<'t> {
    async fn new(t: &'t World) -> Self {
        let disk: Vec<u8> = (0..65_536_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let key = EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap();
        let key = PKey::from_ec_key(key).unwrap();
        let signature = Signer::new(MessageDigest::sha256(), &key).unwrap().sign_oneshot_to_vec(&disk).unwrap();
        let disks = ImageServer::new(&disk).await;
        disks.set(|mode| mode.files = [(".sig".to_owned(), STANDARD.encode(signature).into_bytes())].into());
        let shelf = PutServer::new(true).await;
        let yard = Self { t, images: Images::of(t), disks, shelf, checksum: format!("sha256:{}", sum(&disk)) };
        let public = String::from_utf8(key.public_key_to_pem().unwrap()).unwrap();
        for (name, data) in [("keys", json!({"cosign.pub": public})), ("shelf", json!({"token": TOKEN}))] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
            t.apply(&secret).await;
        }
        let gates = yard.gates();
        std::fs::create_dir_all(&gates).unwrap();
        let gates = gates.display();
        let large = format!("case $1 in compress*) head -c {LARGE} /dev/urandom >> \"$1\";; esac");
        let held = "while [ -e \"$gate\" ]; do sleep 0.05; done";
        let build = yard.tool("build", &format!("gate={gates}/build-$1\n{held}\n{large}"));
        // It is told of paths whose last part is the name.
        let convert = yard.tool(
            "convert",
            &format!(
                "for path in \"$@\"; do gate={gates}/convert-${{path##*/}}\n{held}\ndone\nexec /usr/bin/qemu-img \"$@\""
            ),
        );
        yard.images
            .template(json!({
                "destination": {
                    "directory": null,
                    "http": {"url": format!("http://{}/images", yard.shelf.host), "insecure": true, "secretRef": {"name": "shelf"}},
                },
                "build": {
                    "concurrency": 64, "keysSecretRef": {"name": "keys"},
                    "tools": [{"name": "build", "path": build}, {"name": "qemu-img", "path": convert}],
                },
            }))
            .await;
        yard
    }

    fn gates(&self) -> PathBuf {
        self.t.dir().canonicalize().unwrap().join("gates")
    }

    fn tool(&self, name: &str, script: &str) -> PathBuf {
        let path = self.t.dir().canonicalize().unwrap().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn gate(&self, tool: &str, name: &str) -> PathBuf {
        self.gates().join(format!("{tool}-{name}.raw"))
    }

    fn flags(&self) -> Vec<String> {
        let mut flags = self.images.flags(&self.disks.host());
        flags.extend(["--allow-source".into(), self.shelf.host.clone()]);
        flags.extend(["--qps", "2000", "--burst", "2000"].map(Into::into));
        // All of them are held at once.
        flags.extend(["--image-build-concurrency", "0"].map(Into::into));
        flags
    }

    /// Makes an image, to be held in the step that its name begins with. Those that can't be held for long wait in the step
    /// `build` first: compressing takes a while only, and who uploads waits 20 seconds for an answer.
    async fn make(&self, name: &str) {
        let step = name.split('-').next().unwrap();
        let held = format!("/images/.{name}.");
        match step {
            "download" => self.disks.set(|mode| mode.held.push(format!("/{name}.raw"))),
            "verify" => self.disks.set(|mode| mode.held.push(format!("/{name}.raw.sig"))),
            "build" | "compress" => {}
            "convert" => std::fs::write(self.gate("convert", name), "").unwrap(),
            "upload" => self.shelf.held.lock().unwrap().push(format!("PUT {held}*")),
            "register" => self.shelf.held.lock().unwrap().push(format!("MOVE {held}*")),
            other => panic!("no step {other}"),
        }
        if step == "build" || LATE.contains(&step) {
            std::fs::write(self.gate("build", name), "").unwrap();
        }
        let file = format!("{name}.raw");
        let steps = json!([
            {"download": {"url": self.disks.url(&file), "checksum": self.checksum}},
            {"verify": {"signature": self.disks.url(&format!("{file}.sig"))}},
            {"build": {"command": ["build", file], "output": file}},
            {"convert": {"format": "qcow2"}},
            {"compress": {"algorithm": "xz"}},
        ]);
        self.images.make(&json!({"name": name, "format": "qcow2", "steps": steps})).await;
    }

    /// Waits until each is in the middle of the step that it is held in.
    async fn held(&self, all: &[String]) {
        self.held_but_compress(all).await;
        let compress = || all.iter().filter(|name| name.starts_with("compress"));
        for name in compress() {
            self.let_compress(name);
        }
        for name in compress() {
            self.compresses(name).await;
        }
    }

    /// Lets one that is to be in the step `compress` go there.
    fn let_compress(&self, name: &str) {
        std::fs::remove_file(self.gate("build", name)).unwrap();
    }

    async fn compresses(&self, name: &str) {
        self.images.status_is(name, "to be at compress", |status| status.step == "compress").await;
    }

    /// Waits until each is in the middle of the step that it is held in; those of `compress` are in `build` then.
    async fn held_but_compress(&self, all: &[String]) {
        let step = |name: &String| name.split('-').next().unwrap().to_owned();
        let is_late = |name: &String| LATE.contains(&step(name).as_str());
        for name in all {
            let at = if is_late(name) { "build".to_owned() } else { step(name) };
            self.images.status_is(name, &format!("to be at {at}"), |status| status.step == at).await;
        }
        let count = |steps: &[&str]| all.iter().filter(|name| steps.contains(&step(name).as_str())).count();
        wait_for("all tools and downloads to be held", || async {
            let asked = self.disks.asked();
            let asked = |path: &str| asked.iter().filter(|head| head.starts_with(&format!("get /{path}"))).count();
            let seen = (asked("download"), asked("verify"), self.tools());
            let tools = count(&["build", "convert"]) + count(&LATE);
            check(seen == (count(&["download"]), 2 * count(&["verify"]), tools), seen)
        })
        .await;
        let late: Vec<&String> = all.iter().filter(|name| LATE[1..].contains(&step(name).as_str())).collect();
        for name in &late {
            std::fs::remove_file(self.gate("build", name)).unwrap();
        }
        for name in late {
            let at = step(name);
            self.images.status_is(name, &format!("to be at {at}"), |status| status.step == at).await;
        }
        wait_for("requests to be held", || async {
            let held = self.shelf.holding();
            check(held == count(&LATE[1..]), held)
        })
        .await;
    }

    /// Lets all go on, and holds nothing more.
    fn release(&self) {
        self.disks.set(|mode| mode.held.clear());
        self.shelf.held.lock().unwrap().clear();
        for gate in std::fs::read_dir(self.gates()).unwrap().flatten() {
            std::fs::remove_file(gate.path()).unwrap();
        }
    }

    /// How many of our tools run.
    fn tools(&self) -> usize {
        let root = self.t.dir().canonicalize().unwrap().display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        let ours = |line: &Vec<u8>| String::from_utf8_lossy(line).starts_with(&format!("/bin/sh\0{root}/"));
        lines.filter(ours).count()
    }

    /// What is at the destination of an image.
    fn brought(&self, name: &str) -> Vec<String> {
        let files = self.shelf.files.lock().unwrap();
        let parts = [format!("/images/{name}"), format!("/images/.{name}")];
        let is_of = |path: &&String| parts.iter().any(|part| **path == *part || path.starts_with(&format!("{part}.")));
        files.keys().filter(is_of).cloned().collect()
    }

    fn published(name: &str) -> [String; 2] {
        [format!("/images/{name}"), format!("/images/{name}.clusterstack.json")]
    }
}

fn has_tools(test: &str) -> bool {
    let has = std::path::Path::new("/usr/bin/qemu-img").is_file();
    if !has {
        skipped(format_args!("{test}: there is no /usr/bin/qemu-img"));
    }
    has
}

#[tokio::test]
async fn the_process_ends_in_each_step_and_the_next_one_goes_on_there() {
    if !has_tools("the end of the process in each step") {
        return;
    }
    let t = World::new("imgsigterm").await;
    let yard = Yard::new(&t).await;
    let all = STEPS.map(ToOwned::to_owned);
    for name in &all {
        yard.make(name).await;
    }
    let operator = yard.images.operator(&yard.flags());
    yard.held(&all).await;
    let asked = Instant::now();
    let status = operator.terminate().await;
    let took = asked.elapsed();
    assert!(status.success() && took < GRACE, "{status} after {took:?}");
    assert_eq!(yard.tools(), 0, "a tool outlived the operator");
    for name in &all {
        let status = yard.images.status(name).await;
        assert_eq!((status.phase, status.step.as_str()), (ImagePhase::Queued, name.as_str()), "{status:?}");
        assert_eq!(status.holder, None);
    }
    yard.release();
    let _operator = yard.images.operator(&yard.flags());
    let (mut ran, mut repeated) = (Vec::new(), 0);
    for image in yard.images.are(&all, ImagePhase::Succeeded).await {
        let (name, status) = (image.spec.image.name.clone(), image.status.clone().unwrap());
        assert_eq!(status.failures, 0, "{name}");
        // One that was held for long, on a slow machine, had been given up by then and tried again.
        let tries = usize::try_from(status.attempt).unwrap();
        assert!(tries > 1, "{name}");
        let begun = STEPS.map(|step| yard.images.begun(&image, step));
        assert_eq!(begun, STEPS.map(|step| if step == name { tries } else { 1 }), "{name}");
        assert_eq!(status.repeated, 0, "{name}");
        repeated += status.repeated;
        ran.push(begun.iter().sum::<usize>());
    }
    println!(
        "SIGTERM in each of {} steps: ended after {took:.1?}; {} steps began for {} that had to, {repeated} finished ones \
         repeated",
        STEPS.len(),
        ran.iter().sum::<usize>(),
        STEPS.len() * STEPS.len(),
    );
    wait_for("what was half-made to go", || async {
        let left: Vec<_> = all.iter().filter(|name| yard.brought(name) != Yard::published(name)).collect();
        check(left.is_empty() && names(&yard.images.work()) == ["logs"], (left, names(&yard.images.work())))
    })
    .await;
}

#[tokio::test]
async fn who_cancels_holds_or_deletes_a_build_in_any_step_finds_nothing_half_made() {
    if !has_tools("cancelling in each step") {
        return;
    }
    let t = World::new("imgstop").await;
    let yard = Yard::new(&t).await;
    let of = |way: &str| STEPS.map(|step| format!("{step}-{way}"));
    let (cancelled, suspended, deleted) = (of("cancel"), of("suspend"), of("delete"));
    let all: Vec<String> = [&cancelled, &suspended, &deleted].into_iter().flatten().cloned().collect();
    for name in &all {
        yard.make(name).await;
    }
    let _operator = yard.images.operator(&yard.flags());
    yard.held_but_compress(&all).await;
    let asked = Instant::now();
    let images = &yard.images;
    let was_cancelled = |name: &String, answer: &std::process::Output| {
        let said = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(answer.status.success() && said.contains("cancelled in attempt "), "{name}: {answer:?}");
    };
    // One at a time, as soon as it is in that step: it is over in seconds.
    let in_compress = |names: &[String; 7]| names.iter().find(|name| name.starts_with("compress")).cloned().unwrap();
    let name = in_compress(&cancelled);
    yard.let_compress(&name);
    yard.compresses(&name).await;
    was_cancelled(&name, &images.ask(&["cancel", &name]).await);
    let name = in_compress(&suspended);
    yard.let_compress(&name);
    yard.compresses(&name).await;
    images.suspend(&name, true).await;
    let name = in_compress(&deleted);
    yard.let_compress(&name);
    yard.compresses(&name).await;
    images.delete(&name).await;
    let others = |names: &[String; 7]| -> Vec<String> {
        names.iter().filter(|name| !name.starts_with("compress")).cloned().collect()
    };
    let (to_cancel, to_suspend, to_delete) = (others(&cancelled), others(&suspended), others(&deleted));
    let answers = tokio::join!(
        futures::future::join_all(to_cancel.iter().map(|name| async { images.ask(&["cancel", name]).await })),
        futures::future::join_all(to_suspend.iter().map(|name| images.suspend(name, true))),
        futures::future::join_all(to_delete.iter().map(|name| images.delete(name))),
    )
    .0;
    for (name, answer) in to_cancel.iter().zip(&answers) {
        was_cancelled(name, answer);
    }
    images.are(&cancelled, ImagePhase::Cancelled).await;
    images.are(&suspended, ImagePhase::Suspended).await;
    for name in &deleted {
        t.gone(clusterstack::api::INFRASTRUCTURE_API_VERSION, "ProviderNodeImageRelease", name).await;
    }
    wait_for("what was half-made to go", || async {
        let of_both = cancelled.iter().chain(&deleted);
        let left: Vec<_> = of_both.flat_map(|name| yard.brought(name)).collect();
        // Those that are held go on later where they were.
        let work = names(&images.work());
        check(left.is_empty() && work.len() == 1 + suspended.len() && yard.tools() == 0, (left, work, yard.tools()))
    })
    .await;
    let took = asked.elapsed();
    for name in &suspended {
        let status = images.status(name).await;
        let step = name.split('-').next().unwrap();
        assert_eq!((status.step.as_str(), status.holder), (step, None), "{name}");
        assert!(!yard.brought(name).contains(&format!("/images/{name}")), "{name} is published");
    }
    println!("{} builds cancelled, held and deleted in {} steps: done after {took:.1?}", all.len(), STEPS.len());

    // All of it can be taken up again.
    yard.release();
    for name in &suspended {
        images.suspend(name, false).await;
    }
    let answers =
        futures::future::join_all(cancelled.iter().map(|name| async { images.ask(&["retry", name]).await })).await;
    assert!(answers.iter().all(|answer| answer.status.success()), "{answers:?}");
    let both: Vec<String> = cancelled.iter().chain(&suspended).cloned().collect();
    let mut repeated = 0;
    for image in images.are(&both, ImagePhase::Succeeded).await {
        let (name, status) = (&image.spec.image.name, image.status.clone().unwrap());
        assert_eq!((status.failures, status.repeated), (0, 0), "{name}");
        repeated += status.repeated;
    }
    println!("{} of them taken up again: all succeeded, {repeated} finished steps repeated", both.len());
    wait_for("what was half-made to go", || async {
        let left: Vec<_> = both.iter().filter(|name| yard.brought(name) != Yard::published(name)).collect();
        check(left.is_empty() && names(&images.work()) == ["logs"], (left, names(&images.work())))
    })
    .await;
}

#[tokio::test]
async fn all_builds_that_were_given_up_are_asked_for_again_at_once() {
    let t = World::new("imgagain").await;
    let images = Images::of(&t);
    let server = ImageServer::new(b"large").await;
    let files =
        |content: &str| ["one", "two", "good"].map(|name| (name.to_owned(), content.as_bytes().to_vec())).into();
    server.set(|mode| mode.files = files("is"));
    images.template(json!({"build": {"retries": 0}})).await;
    let _operator = images.operator(&images.flags(&server.host()));
    let entry = |name: &str, content: &str| json!({"name": name, "url": server.url(name), "checksum": format!("sha256:{}", sum(content.as_bytes())), "format": "raw"});
    for (name, content) in [("one", "as wanted"), ("two", "as wanted"), ("good", "is")] {
        images.make(&entry(name, content)).await;
    }
    images.are(&["good".to_owned()], ImagePhase::Succeeded).await;
    let both = ["one", "two"].map(ToOwned::to_owned);
    images.are(&both, ImagePhase::Failed).await;
    server.set(|mode| mode.files = files("as wanted"));
    let said = |answer: &std::process::Output| {
        let text = [&answer.stdout[..], &answer.stderr[..]].concat();
        (answer.status.success(), String::from_utf8(text).unwrap())
    };
    let (is_good, text) = said(&images.ask(&["retry", "--failed"]).await);
    // Each is told when it is heard.
    let are_told = ["one: ", "two: "].iter().all(|name| text.lines().any(|line| line.starts_with(name)));
    assert!(is_good && text.lines().count() == 2 && are_told, "{text}");
    images.are(&both, ImagePhase::Succeeded).await;
    let (is_good, text) = said(&images.ask(&["retry", "--failed"]).await);
    assert!(is_good && text.contains("no build was given up in namespace"), "{text}");
    for wrong in [&["retry"][..], &["retry", "--failed", "one"], &["retry", "one", "-A"]] {
        assert!(!said(&images.ask(wrong).await).0, "{wrong:?}");
    }
}
