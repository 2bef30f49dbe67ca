//! Node images of a test: a template, objects made straight from a list's entry, and what is at hand of their builds.

use std::path::{Path, PathBuf};

use clusterstack::api::INFRASTRUCTURE_API_VERSION;
use clusterstack::api::image_release::{
    ImagePhase, ProviderNodeImageRelease as Image, ProviderNodeImageReleaseSpec,
    ProviderNodeImageReleaseStatus as Status, TemplateReference,
};
use clusterstack::core::image::pipeline::Pipeline;
use clusterstack::core::image::recipe;
use clusterstack::core::node_images::NodeImages;
use clusterstack::io::image::task::log_path;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::operator::Operator;
use super::wait::{check, wait_for};
use super::world::World;

const TEMPLATE: &str = "ProviderClusterStackReleaseTemplate";

/// The images of a test. Their objects are called as their images are.
pub(crate) struct Images<'t> {
    t: &'t World,
    pub(crate) api: Api<Image>,
}

impl<'t> Images<'t> {
    /// Of a test; the directory that images may be brought to is made.
    pub(crate) fn of(t: &'t World) -> Self {
        let images = Self { t, api: Api::namespaced(t.client.clone(), &t.namespace) };
        std::fs::create_dir_all(images.destination()).expect("no directory");
        images
    }

    /// The directory that images are brought to.
    pub(crate) fn destination(&self) -> PathBuf {
        self.t.dir().canonicalize().expect("no directory").join("images")
    }

    /// Where builds work.
    pub(crate) fn work(&self) -> PathBuf {
        self.t.dir().canonicalize().expect("no directory").join("work")
    }

    /// Makes template `t`, which brings images to the directory; `spec` goes over that.
    pub(crate) async fn template(&self, spec: Value) {
        self.template_called("t", spec).await;
    }

    /// The same of another name.
    pub(crate) async fn template_called(&self, name: &str, spec: Value) {
        let mut object = json!({
            "apiVersion": INFRASTRUCTURE_API_VERSION, "kind": TEMPLATE, "metadata": {"name": name},
            "spec": {
                "template": {"spec": {}}, "destination": {"directory": {"path": self.destination()}},
                "imageGracePeriod": "0s",
            },
        });
        json_patch::merge(&mut object, &json!({"spec": spec}));
        self.t.apply(&object).await;
    }

    /// Flags of an operator that may bring images to the directory, and reach this host.
    pub(crate) fn flags(&self, host: &str) -> Vec<String> {
        let path = |path: PathBuf| path.to_str().expect("no text").to_owned();
        let (work, destination) = (path(self.work()), path(self.destination()));
        let tools = path(self.t.dir().canonicalize().expect("no directory"));
        [
            "--image-dir",
            &work,
            "--allow-image-directory",
            &destination,
            "--allow-source",
            host,
            "--allow-image-tool",
            &tools,
        ]
        .map(Into::into)
        .into()
    }

    /// An operator with these flags, always as the same pod.
    pub(crate) fn operator(&self, flags: &[String]) -> Operator {
        self.operator_under("builder-0", flags, &[])
    }

    /// One as this pod, under a program that becomes the operator.
    pub(crate) fn operator_under(&self, pod: &str, flags: &[String], under: &[String]) -> Operator {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Operator::start_under(
            self.t,
            self.t.plane.operator_kubeconfig(),
            &flags,
            &[("POD_NAME", Path::new(pod))],
            under,
        )
    }

    /// Makes an object of an entry of a list of images.
    pub(crate) async fn make(&self, entry: &Value) {
        self.make_by("t", entry).await;
    }

    /// The same by another template.
    pub(crate) async fn make_by(&self, template: &str, entry: &Value) {
        let list = json!({"apiVersion": clusterstack::core::node_images::API_VERSION, "images": [entry]});
        let list = NodeImages::parse(&list.to_string()).expect("no list of images");
        let pipeline = Pipeline::of(&list.images[0]).expect("no image").expect("an image without steps");
        let template = TemplateReference { name: template.to_owned(), namespace: None };
        let spec = ProviderNodeImageReleaseSpec {
            image: recipe::written(&pipeline).expect("no recipe"),
            inputs: pipeline.inputs(&recipe::identity(&template)),
            template_ref: template,
            suspend: false,
        };
        let object = Image::new(&list.images[0].name, spec);
        self.api.create(&PostParams::default(), &object).await.expect("image");
    }

    /// All of them.
    pub(crate) async fn all(&self) -> Vec<Image> {
        self.api.list(&ListParams::default()).await.expect("images").items
    }

    /// What one says.
    pub(crate) async fn status(&self, name: &str) -> Status {
        self.api.get(name).await.expect("image").status.unwrap_or_default()
    }

    /// Waits until the status of one is so.
    pub(crate) async fn status_is(&self, name: &str, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        wait_for(format!("image {name} {what}"), || async {
            let status = self.status(name).await;
            check(is(&status), &status).map(|()| status)
        })
        .await
    }

    /// Waits until these are in a phase.
    pub(crate) async fn are(&self, names: &[String], phase: ImagePhase) -> Vec<Image> {
        wait_for(format!("{} images to be {phase:?}", names.len()), || async {
            let all: Vec<Image> = self.all().await.into_iter().filter(|one| names.contains(&one.name_any())).collect();
            let state = |image: &Image| image.status.as_ref().map(|s| (s.phase, s.step.clone(), s.message.clone()));
            let others: Vec<_> = all.iter().map(|one| (one.name_any(), state(one))).collect();
            let others: Vec<_> = others.into_iter().filter(|(_, s)| s.as_ref().map(|s| s.0) != Some(phase)).collect();
            check(all.len() == names.len() && others.is_empty(), others).map(|()| all)
        })
        .await
    }

    /// Sets `spec.suspend`.
    pub(crate) async fn suspend(&self, name: &str, suspend: bool) {
        let patch = json!({"spec": {"suspend": suspend}});
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("suspend");
    }

    /// Deletes one.
    pub(crate) async fn delete(&self, name: &str) {
        self.api.delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    /// How often each step of an image began, by its log.
    pub(crate) fn begun(&self, image: &Image, step: &str) -> usize {
        let inputs = &image.status.as_ref().expect("no status").inputs;
        let log = log_path(&self.work(), &image.namespace().unwrap_or_default(), inputs);
        let text = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        text.lines().filter(|line| line.starts_with(&format!("step {step} begins"))).count()
    }

    /// What `clusterstack images` says to these words.
    pub(crate) async fn ask(&self, words: &[&str]) -> std::process::Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clusterstack"));
        command.arg("images").args(words).args(["--namespace", &self.t.namespace]);
        command.env("KUBECONFIG", &self.t.plane.kubeconfig).output().await.expect("no clusterstack")
    }
}

/// Names of what lies in a directory, hidden or not, but for the lock of records.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().expect("no text")).collect();
    names.retain(|name| name != ".clusterstack.lock");
    names.sort();
    names
}
