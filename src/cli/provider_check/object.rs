//! An object made from the template, waited for and deleted, as the operator would.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::{Check, Run};
use crate::api::{CLUSTER_STACK_LABEL, ClusterStackRelease, FIELD_MANAGER};
use crate::cli::output::{self, one_line};
use crate::core::provider::{Instance, State, checks, state};
use crate::io::apply::refusal;
use crate::io::kinds::Kind;
use crate::io::observe;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// The object's name begins like this.
const NAME: &str = "clusterstack-provider-check-";

/// Who owns the object: the reference, the ClusterStack's name, and whether it was made for it.
struct Owner {
    reference: OwnerReference,
    stack: String,
    is_ours: bool,
}

impl Run<'_> {
    /// Makes an object, and takes everything away again, also when it is interrupted.
    pub(super) async fn object(&mut self, kind: &Kind, template: &Value) -> Result<()> {
        let name = format!("{NAME}{:08x}", rand::random::<u32>());
        let owner = self.owner(&name).await?;
        let result = tokio::select! {
            result = self.make_and_wait(kind, template, &name, &owner) => result,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        };
        let removed = self.remove(kind, &name).await;
        if owner.is_ours {
            let maps: Api<ConfigMap> = Api::namespaced(self.connection.client.clone(), &self.namespace);
            if let Err(error) = self.connection.answer(maps.delete(&name, &DeleteParams::background())).await? {
                let why = one_line(&refusal(&error).message);
                output::note!("ConfigMap {}/{name} is left behind: {why}", self.namespace);
            }
        }
        let made = result?;
        let left = removed?;
        if made { self.add(checks::of_deletion(left.as_ref())) } else { Ok(()) }
    }

    async fn owner(&self, name: &str) -> Result<Owner> {
        let client = self.connection.client.clone();
        if let Some(release) = &self.args.release {
            let api: Api<ClusterStackRelease> = Api::namespaced(client, &self.namespace);
            let release = self.connection.answer(api.get(release)).await?;
            let release = release.map_err(|error| self.connection.refused("read", "ClusterStackReleases", error))?;
            let Some(reference) = release.controller_owner_ref(&()) else { bail!("the release has no UID") };
            let stack = release.labels().get(CLUSTER_STACK_LABEL).cloned().unwrap_or_default();
            return Ok(Owner { reference, stack, is_ours: false });
        }
        let api: Api<ConfigMap> = Api::namespaced(client, &self.namespace);
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let made = self.connection.answer(api.create(&PostParams::default(), &map)).await?;
        let made = made.map_err(|error| self.connection.refused("made", "ConfigMaps", error))?;
        let Some(reference) = made.controller_owner_ref(&()) else { bail!("the ConfigMap has no UID") };
        Ok(Owner { reference, stack: "provider-check".to_owned(), is_ours: true })
    }

    /// Whether an object was made; it was waited for then, and judged.
    async fn make_and_wait(&mut self, kind: &Kind, template: &Value, name: &str, owner: &Owner) -> Result<bool> {
        let namespace = self.namespace.clone();
        let instance = Instance {
            api_version: &kind.resource.api_version,
            kind: &kind.resource.kind,
            name,
            namespace: &namespace,
            stack: &owner.stack,
            owner: json!(owner.reference),
        };
        let Some(wanted) = instance.of(template) else { return Ok(false) };
        let object: DynamicObject = serde_json::from_value(wanted.clone())?;
        let api = observe::api(&self.connection.client, kind, &self.namespace);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        if let Err(error) = self.connection.answer(api.create(&params, &object)).await? {
            let todo = "see that the template's spec.template.spec is one that the object's schema and webhooks accept";
            self.add(Check::failed("can be made", refusal(&error).message, todo))?;
            return Ok(false);
        }
        self.add(Check::passed("can be made", format!("{} {}/{name}", kind.resource.kind, self.namespace)))?;
        let what = format!("{} {name} to be ready", kind.resource.kind);
        let last = self.wait(&api, name, &what, |object| {
            object.is_none_or(|object| !matches!(state(object), State::Preparing { .. }))
        });
        match last.await? {
            Some(last) => self.add_all(checks::of_answer(&last, &wanted))?,
            None => self.add(Check::failed("becomes ready", "it was deleted meanwhile", "find out who deletes it"))?,
        }
        Ok(true)
    }

    /// Deletes the object; as it was last seen, if it does not go.
    async fn remove(&self, kind: &Kind, name: &str) -> Result<Option<Value>> {
        let api = observe::api(&self.connection.client, kind, &self.namespace);
        match self.connection.answer(api.delete(name, &DeleteParams::background())).await? {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(self.connection.refused("deleted", &kind.resource.kind, error).into()),
        }
        self.wait(&api, name, &format!("{} {name} to go", kind.resource.kind), |object| object.is_none()).await
    }

    /// Looks until `is`, or until it took too long: the object as it was last seen.
    async fn wait(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        what: &str,
        is: impl Fn(Option<&Value>) -> bool,
    ) -> Result<Option<Value>> {
        let (start, mut progress) = (Instant::now(), Progress::new(what, self.args.timeout));
        loop {
            let object = self.connection.answer(api.get_opt(name)).await?;
            let object = object.map_err(|error| self.connection.refused("read", "the provider's objects", error))?;
            let object = object.map(|object| serde_json::to_value(&object)).transpose()?;
            if is(object.as_ref()) || start.elapsed() >= self.args.timeout {
                return Ok(object);
            }
            progress.show(start.elapsed(), object.as_ref());
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What is waited for: one line that counts on a terminal, a line per news elsewhere. On standard error.
struct Progress {
    what: String,
    limit: Duration,
    on_terminal: bool,
    said: Option<String>,
}

impl Progress {
    fn new(what: &str, limit: Duration) -> Self {
        Self { what: what.to_owned(), limit, on_terminal: std::io::stderr().is_terminal(), said: None }
    }

    fn show(&mut self, waited: Duration, object: Option<&Value>) {
        let news = one_line(&news(object));
        if self.on_terminal {
            let (waited, limit) = (waited.as_secs(), self.limit.as_secs());
            let text: String = format!("waiting for {}: {waited} of {limit} s  {news}", self.what);
            let text: String = text.chars().take(terminal_width()).collect();
            // Nobody is left to tell when standard error is closed.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
        } else if self.said.as_ref() != Some(&news) {
            let dash = if news.is_empty() { "" } else { ": " };
            output::note!("waiting for {}{dash}{news}", self.what);
        }
        self.said = Some(news);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.on_terminal && self.said.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

fn terminal_width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0).saturating_sub(1))
}

/// What the provider's conditions say that are not true; for people.
fn news(object: Option<&Value>) -> String {
    let conditions = object.and_then(|object| object.pointer("/status/conditions")).and_then(Value::as_array);
    let pending = conditions.into_iter().flatten().filter(|condition| condition["status"] != "True");
    let say = |condition: &Value| {
        let word = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", word("type"), word("reason"), word("message")).trim().to_owned()
    };
    pending.map(say).collect::<Vec<_>>().join("; ").replace(char::is_control, " ")
}
