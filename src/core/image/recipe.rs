//! What an image's object says of how it is made, and what its build depends on.

use serde_json::{Map, Value, json};

use super::bounds::RETRIES;
use super::build::Recipe;
use super::job;
use super::pipeline::{Pipeline, PipelineError, Step, Work};
use crate::api::image_destination::Destination;
use crate::api::image_release::{ImageStep, NodeImageRecipe, TemplateReference};
use crate::api::image_template::{ExecutorKind, ProviderClusterStackReleaseTemplateSpec as Template};
use crate::core::node_images::NodeImage;

/// What makes two images of a namespace the same: their description, and the template.
pub fn identity(template: &TemplateReference) -> Value {
    match &template.namespace {
        None => json!({"template": template.name}),
        Some(namespace) => json!({"template": template.name, "templateNamespace": namespace}),
    }
}

/// How the object says it: without the steps that stand behind each list.
///
/// # Errors
/// A step can't be written, which is a fault of ours.
pub fn written(pipeline: &Pipeline) -> Result<NodeImageRecipe, serde_json::Error> {
    let is_written = |step: &&Step| !matches!(step.work, Work::Upload | Work::Register);
    let step = |step: &Step| serde_json::from_value::<ImageStep>(serde_json::to_value(step)?);
    Ok(NodeImageRecipe {
        name: pipeline.image.clone(),
        steps: pipeline.steps.iter().filter(is_written).map(step).collect::<Result<_, _>>()?,
        properties: pipeline.properties.clone(),
    })
}

/// What the object says, checked anew: anybody may have written it.
///
/// # Errors
/// What is wrong, with the step.
pub fn read(recipe: &NodeImageRecipe) -> Result<Option<Pipeline>, PipelineError> {
    let mut options: Map<String, Value> = recipe.properties.clone();
    options.insert("steps".to_owned(), json!(recipe.steps));
    Pipeline::of(&NodeImage { name: recipe.name.clone(), url: None, options })
}

/// What is built by a template: other settings make another image of the same description.
pub fn recipe(pipeline: &Pipeline, reference: &TemplateReference, template: &Template) -> Recipe {
    let mut settings = identity(reference);
    settings["destination"] = without_secrets(&template.destination);
    settings["format"] = json!(template.build.format);
    let steps = match template.build.executor {
        ExecutorKind::Task => pipeline.steps.iter().map(|step| step.name.clone()).collect(),
        ExecutorKind::Job => vec![job::STEP.to_owned()],
    };
    Recipe { inputs: pipeline.inputs(&settings), steps, retries: template.build.retries.unwrap_or(RETRIES) }
}

/// Where, but not by whose rights: another password is no other place.
fn without_secrets(destination: &Destination) -> Value {
    let mut value = json!(destination);
    for kind in value.as_object_mut().into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        kind.retain(|field, _| !field.ends_with("SecretRef") && field != "secretRef");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::image_destination::{DirectoryDestination, HttpDestination};
    use crate::api::source::SecretReference;
    use crate::core::node_images::NodeImages;

    fn pipelines(text: &str) -> Vec<Pipeline> {
        let list = format!("apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n{text}");
        NodeImages::parse(&list).unwrap().images.iter().map(|image| Pipeline::of(image).unwrap().unwrap()).collect()
    }

    const LIST: &str = "
- {name: ubuntu, url: 'https://x.example.org/y.qcow2', mirrors: ['https://z.example.org/y.qcow2'], format: qcow2, os: {min_disk: 5}}
- name: made
  format: raw
  steps:
  - download: {url: 'https://x.example.org/y.raw', checksum: 0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4}
  - name: prepare
    build: {command: [virt-customize, -a, y.raw], env: {A: b}, directory: in, output: y.raw, timeout: 1h30m}
  - verify: {signature: 'https://x.example.org/y.raw.sig'}
  - convert: {format: qcow2}
  - compress: {algorithm: zstd}
";

    #[test]
    fn what_the_object_says_is_what_the_list_said() {
        for pipeline in pipelines(LIST) {
            let recipe = written(&pipeline).unwrap();
            let json = serde_json::to_value(&recipe).unwrap();
            assert!(!json.to_string().contains("null"), "{json}");
            assert_eq!(read(&serde_json::from_value(json).unwrap()).unwrap(), Some(pipeline));
        }
    }

    #[test]
    fn what_anybody_wrote_is_checked() {
        let mut recipe = written(&pipelines(LIST)[1]).unwrap();
        recipe.steps[0].download.as_mut().unwrap().url = "file:///etc/shadow".into();
        assert!(read(&recipe).unwrap_err().to_string().contains("step 1"));
    }

    #[test]
    fn another_place_is_another_build_but_another_password_is_not() {
        let pipeline = &pipelines(LIST)[0];
        let http = |url: &str, secret: Option<&str>| Template {
            destination: Destination {
                http: Some(HttpDestination {
                    url: url.into(),
                    secret_ref: secret.map(|name| SecretReference { name: name.into() }),
                    ..HttpDestination::default()
                }),
                ..Destination::default()
            },
            ..Template::default()
        };
        let directory = Template {
            destination: Destination {
                directory: Some(DirectoryDestination { path: "/images".into() }),
                ..Destination::default()
            },
            ..Template::default()
        };
        let named = |name: &str| TemplateReference { name: name.into(), namespace: None };
        let inputs = |template: &Template| recipe(pipeline, &named("t"), template).inputs;
        let one = inputs(&http("https://a", None));
        assert_eq!(one, inputs(&http("https://a", Some("s"))));
        assert_ne!(one, inputs(&http("https://b", None)));
        assert_ne!(one, inputs(&directory));
        assert_ne!(one, recipe(pipeline, &named("other"), &http("https://a", None)).inputs);
        let abroad = TemplateReference { namespace: Some("provider".into()), ..named("t") };
        assert_ne!(one, recipe(pipeline, &abroad, &http("https://a", None)).inputs);
        assert_ne!(pipeline.object_name(&identity(&abroad)), pipeline.object_name(&identity(&named("t"))));
        assert_eq!(recipe(pipeline, &named("t"), &directory).retries, RETRIES);
        let mut by_job = http("https://a", None);
        by_job.build.executor = ExecutorKind::Job;
        let by_job = recipe(pipeline, &named("t"), &by_job);
        assert_eq!((by_job.inputs, by_job.steps), (one, vec![job::STEP.to_owned()]));
    }
}
