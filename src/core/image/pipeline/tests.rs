use super::*;
use crate::core::node_images::{API_VERSION, NodeImages};

fn image(entry: &str) -> NodeImage {
    let list = NodeImages::parse(&format!("apiVersion: {API_VERSION}\nimages:\n- {entry}")).unwrap();
    list.images.into_iter().next().unwrap()
}

fn pipeline(entry: &str) -> Result<Pipeline, String> {
    Pipeline::of(&image(entry)).map(Option::unwrap).map_err(|error| error.to_string())
}

fn kinds(entry: &str) -> Vec<String> {
    pipeline(entry).unwrap().steps.into_iter().map(|step| step.name).collect()
}

const SUM: &str = "0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4";

#[test]
fn a_url_is_downloaded_uploaded_and_registered_with_what_is_said_of_it() {
    let made = pipeline(&format!(
        "{{name: ubuntu, url: 'https://x/y.qcow2', mirrors: ['https://z/y.qcow2'], checksum: 'sha256:{SUM}', format: qcow2}}"
    ))
    .unwrap();
    assert_eq!(
        made.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>(),
        ["download", "upload", "register"]
    );
    let Work::Download(download) = &made.steps[0].work else { panic!("{made:?}") };
    assert_eq!(download.checksum, Some(Checksum::Sha256(SUM.into())));
    assert_eq!(download.mirrors.len(), 1);
    assert_eq!(serde_json::to_value(&made.properties).unwrap(), json!({"format": "qcow2"}));
    let made = pipeline("{name: x, url: 'https://x/y', format: raw, a: 1, b: 2, properties: {b: 3, c: 4}}").unwrap();
    assert_eq!(serde_json::to_value(made.description()).unwrap(), json!({"a": 1, "b": 3, "c": 4}));
}

#[test]
fn what_comes_of_a_download_alone_is_foretold() {
    let of = |entry: &str| pipeline(entry).unwrap().foretold();
    let sum = format!("checksum: 'sha256:{SUM}'");
    assert_eq!(of(&format!("{{name: x, url: 'https://x/y', {sum}, format: raw}}")), Some(format!("sha256:{SUM}")));
    for entry in [
        "{name: x, url: 'https://x/y'}".to_owned(),
        format!("{{name: x, url: 'https://x/y', checksum: 'sha512:{SUM}{SUM}'}}"),
        format!("{{name: x, steps: [{{download: {{url: 'https://x/y', {sum}}}}}, {{compress: {{algorithm: gzip}}}}]}}"),
        format!(
            "{{name: x, steps: [{{download: {{url: 'https://x/y', {sum}}}}}, {{verify: {{signature: 'https://x/y.sig'}}}}]}}"
        ),
    ] {
        assert_eq!(of(&entry), None, "{entry}");
    }
}

#[test]
fn steps_are_taken_as_they_are_written() {
    let steps = "{name: x, steps: [{download: {url: 'https://x/y'}}, {verify: {signature: 'https://x/y.sig'}}, \
                 {build: {command: [packer, build], output: out/x.raw, timeout: 1h30m}}, {convert: {format: qcow2}}, \
                 {name: small, compress: {algorithm: zstd}}]}";
    assert_eq!(kinds(steps), ["download", "verify", "build", "convert", "small", "upload", "register"]);
    let Work::Build(tool) = &pipeline(steps).unwrap().steps[2].work else { panic!() };
    assert_eq!(tool.timeout, SignedDuration::from_mins(90));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let of_steps = |steps: &str| format!("{{name: x, steps: [{steps}]}}");
    let tool = |rest: &str| of_steps(&format!("{{build: {{{rest}}}}}"));
    let cases = [
        ("{name: x, url: 'https://x/y', checksum: nonsense}".to_owned(), "image x: checksum \"nonsense\" is none"),
        ("{name: x, url: 'https://x/y', checksum: 'sha512:00'}".to_owned(), "128 hexadecimal digits"),
        ("{name: x, url: 'file:///etc/passwd'}".to_owned(), "step 1 (download): file is not asked for"),
        ("{name: x, url: 'https://me:secret@x/y'}".to_owned(), "holds a user or a password"),
        ("{name: x, url: 'https://x/y', steps: []}".to_owned(), "it has url and steps"),
        (of_steps(""), "it has 0 steps"),
        ("{name: x, steps: 1}".to_owned(), "steps is no list"),
        (of_steps("{}"), "step 1: it does nothing"),
        (of_steps("{upload: {}}"), "unknown field `upload`"),
        (of_steps("{convert: {format: qcow2}}"), "there is no file yet"),
        (of_steps("{convert: {format: iso}}"), "unknown variant `iso`"),
        (of_steps("{download: {url: 'https://x/y'}, verify: {checksum: x}}"), "checksum \"x\" is none"),
        (of_steps("{download: {url: 'https://x/y'}, convert: {format: raw}}"), "it does download and convert"),
        (of_steps("{download: {url: 'https://x/y'}}, {download: {url: 'https://x/y'}}"), "two steps have this name"),
        (of_steps("{name: Up, download: {url: 'https://x/y'}}"), "lowercase letters"),
        (of_steps("{download: {url: 'https://x/y'}}, {verify: {}}"), "neither checksum nor signature"),
        (tool("command: [], output: x"), "command is empty"),
        (tool("command: [a]"), "missing field `output`"),
        (tool("command: [a], output: ../x"), "output: path \"../x\" is not inside"),
        (tool("command: [a], output: ."), "output names no file"),
        (tool("command: [a], output: x, directory: /etc"), "directory: path \"/etc\""),
        (tool("command: [a], output: x, timeout: 25h"), "timeout is not between"),
        (tool("command: [a], output: x, env: {'A=B': c}"), "env has a name"),
        (tool("command: [a], output: x, image: y"), "unknown field `image`"),
    ];
    for (entry, expected) in cases {
        let error = pipeline(&entry).unwrap_err();
        assert!(error.starts_with("image x") && error.contains(expected), "{entry}: {error}");
    }
}

#[test]
fn an_image_known_by_its_name_needs_nothing() {
    let list = NodeImages::parse("dockerImages: [worker]").unwrap();
    assert_eq!(Pipeline::of(&list.images[0]), Ok(None));
}

#[test]
fn equal_content_has_one_name_and_other_content_another() {
    let of = |sum: &str| pipeline(&format!("{{name: Ubuntu_24.04, url: 'https://x/y', checksum: '{sum}'}}")).unwrap();
    let settings = json!({"destination": "a"});
    let name = of(SUM).object_name(&settings);
    assert_eq!(name, of(&SUM.to_uppercase()).object_name(&settings));
    assert!(name.starts_with("ubuntu-24-04-") && name.len() <= 63, "{name}");
    assert_ne!(name, of(&SUM.replace('0', "1")).object_name(&settings));
    assert_ne!(name, of(SUM).object_name(&json!({"destination": "b"})));
    let long = pipeline(&format!("{{name: '{}', url: 'https://x/y'}}", "é".repeat(200))).unwrap();
    assert!(long.object_name(&settings).starts_with("image-"));
}
