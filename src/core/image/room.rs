//! What an image's object has room for: the API server refuses one that holds more, so a list is held against it before.

use serde_json::json;
use url::Url;

use super::pipeline::{Pipeline, Step, Tool, Work};

/// Most images of a release: a ProviderClusterStackRelease has a row for each.
pub const MAX_IMAGES: usize = 256;
/// Letters of an image's name.
const NAME: usize = 1024;
/// Letters of a URL.
const URL: usize = 2048;
/// Mirrors of a download.
const MIRRORS: usize = 32;
/// Words of a command.
const WORDS: usize = 1024;
/// Letters of one of them.
const WORD: usize = 32_768;
/// Letters of a path.
const PATH: usize = 1024;
/// Bytes of the description of an image, as JSON: etcd takes objects of 1.5 MiB, with all that is noted in them.
const DESCRIPTION: usize = 1 << 20;

/// The step, if it is one, and what of it is too long for an object.
type Excess<'p> = (Option<&'p Step>, String);

/// Whether an image's object has room for its description.
///
/// # Errors
/// The first thing that it has none for.
pub fn check(pipeline: &Pipeline) -> Result<(), Excess<'_>> {
    if pipeline.image.is_empty() {
        return Err((None, "its name is empty: give it one".to_owned()));
    }
    letters("its name", &pipeline.image, NAME).map_err(|what| (None, what))?;
    for step in &pipeline.steps {
        of_step(&step.work).map_err(|what| (Some(step), what))?;
    }
    let size = json!(pipeline).to_string().len();
    if size > DESCRIPTION {
        return Err((None, format!("its description has {size} bytes, and an object has room for {DESCRIPTION}")));
    }
    Ok(())
}

fn of_step(work: &Work) -> Result<(), String> {
    match work {
        Work::Download(download) => {
            few("mirrors", download.mirrors.len(), MIRRORS)?;
            [&download.url].into_iter().chain(&download.mirrors).try_for_each(url)
        }
        Work::Verify(verify) => verify.signature.iter().try_for_each(url),
        Work::Build(tool) => of_tool(tool),
        _ => Ok(()),
    }
}

fn of_tool(tool: &Tool) -> Result<(), String> {
    few("words in its command", tool.command.len(), WORDS)?;
    tool.command.iter().try_for_each(|word| letters("a word of its command", word, WORD))?;
    letters("directory", &tool.directory, PATH)?;
    letters("output", &tool.output, PATH)
}

fn url(url: &Url) -> Result<(), String> {
    letters("a url", url.as_str(), URL)
}

fn letters(what: &str, text: &str, most: usize) -> Result<(), String> {
    match text.chars().count() {
        found if found > most => Err(format!("{what} has {found} letters, and an object has room for {most}")),
        _ => Ok(()),
    }
}

fn few(what: &str, found: usize, most: usize) -> Result<(), String> {
    if found > most { Err(format!("it has {found} {what}, and an object has room for {most}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::Value;

    use super::*;
    use crate::api::image_release::ProviderNodeImageRelease;
    use crate::api::provider_release::ProviderClusterStackRelease;
    use crate::core::image::pipeline::MAX_STEPS;
    use crate::core::node_images::NodeImage;

    fn schema<K: CustomResourceExt>() -> Value {
        let found = serde_json::to_value(K::crd()).unwrap();
        found.pointer("/spec/versions/0/schema/openAPIV3Schema/properties").unwrap().clone()
    }

    #[test]
    fn bounds_are_those_of_the_definitions() {
        let image = schema::<ProviderNodeImageRelease>();
        let release = schema::<ProviderClusterStackRelease>();
        let step = "/spec/properties/image/properties/steps/items/properties";
        for (of, place, expected) in [
            (&image, "/spec/properties/image/properties/name/maxLength".to_owned(), NAME),
            (&image, "/spec/properties/image/properties/steps/maxItems".to_owned(), MAX_STEPS),
            (&image, format!("{step}/download/properties/url/maxLength"), URL),
            (&image, format!("{step}/download/properties/mirrors/maxItems"), MIRRORS),
            (&image, format!("{step}/download/properties/mirrors/items/maxLength"), URL),
            (&image, format!("{step}/verify/properties/signature/maxLength"), URL),
            (&image, format!("{step}/build/properties/command/maxItems"), WORDS),
            (&image, format!("{step}/build/properties/command/items/maxLength"), WORD),
            (&image, format!("{step}/build/properties/directory/maxLength"), PATH),
            (&image, format!("{step}/build/properties/output/maxLength"), PATH),
            (&release, "/status/properties/nodeImages/maxItems".to_owned(), MAX_IMAGES),
        ] {
            assert_eq!(of.pointer(&place).and_then(Value::as_u64), Some(expected as u64), "{place}");
        }
    }

    #[test]
    fn what_no_object_has_room_for_is_said_with_its_step() {
        let sum = format!("sha256:{}", "0".repeat(64));
        let download = |url: String| json!([{"download": {"url": url, "checksum": sum}}]);
        let build = |tool: Value| json!([{"build": tool}]);
        let url = |letters: usize| format!("https://x/{}", "y".repeat(letters - 10));
        let words = |count: usize| vec!["a"; count];
        for (name, steps, expected) in [
            ("a".to_owned(), download(url(URL)), None),
            ("ü".repeat(NAME), download(url(20)), None),
            (String::new(), download(url(20)), Some("image : its name is empty")),
            ("ü".repeat(NAME + 1), download(url(20)), Some(": its name has 1025 letters")),
            ("a".to_owned(), download(url(URL + 1)), Some("image a, step 1 (download): a url has 2049 letters")),
            (
                "a".to_owned(),
                json!([{"download": {"url": url(20), "mirrors": vec![url(20); 33], "checksum": sum}}]),
                Some("it has 33 mirrors"),
            ),
            (
                "a".to_owned(),
                json!([{"download": {"url": url(20)}}, {"verify": {"signature": url(URL + 1)}}]),
                Some("step 2 (verify): a url has 2049"),
            ),
            ("a".to_owned(), build(json!({"command": words(WORDS), "output": "x"})), None),
            ("a".to_owned(), build(json!({"command": words(3000), "output": "x"})), Some("3000 words in its command")),
            (
                "a".to_owned(),
                build(json!({"command": ["a", "b".repeat(WORD + 1)], "output": "x"})),
                Some("a word of its command has 32769 letters"),
            ),
            (
                "a".to_owned(),
                build(json!({"command": vec!["b".repeat(2000); 1000], "output": "x"})),
                Some("its description has"),
            ),
        ] {
            let image = NodeImage { name, url: None, options: [("steps".to_owned(), steps)].into_iter().collect() };
            let found = Pipeline::of(&image).err().map(|error| error.to_string());
            match (&found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}: {expected}"),
                _ => panic!("{found:?} is not {expected:?}"),
            }
        }
    }
}
