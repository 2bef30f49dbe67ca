use super::*;
use crate::core::node_images::{API_VERSION, NodeImages};

const SUM: &str = "0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4";

fn pipeline(entry: &str) -> Pipeline {
    let list = NodeImages::parse(&format!("apiVersion: {API_VERSION}\nimages:\n- {entry}")).unwrap();
    Pipeline::of(&list.images[0]).unwrap().unwrap()
}

fn steps(steps: &str) -> Pipeline {
    pipeline(&format!("{{name: x, steps: [{steps}]}}"))
}

#[test]
fn each_step_has_its_file() {
    let made = steps(
        "{download: {url: 'https://x/a/flatcar.raw?x=y'}}, {verify: {signature: 'https://x/s'}}, \
         {build: {command: [a], output: ./out//disk.img}}, {convert: {format: qcow2}}, {compress: {algorithm: zstd}}",
    );
    let qcow2 = "out/disk.qcow2";
    let packed = "out/disk.qcow2.zst";
    let expected = ["flatcar.raw", "flatcar.raw", "out/disk.img", qcow2, packed, packed, packed];
    assert_eq!(made.files(), expected);
    assert_eq!(made.compression(), Some(Compression::Zstd));
}

#[test]
fn names_of_downloads_are_plain() {
    for (url, name) in [
        ("https://x/", "download"),
        ("https://x/a/..%2f..%2fetc%2fpasswd", "2f..2fetc2fpasswd"),
        ("https://x/.hidden", "hidden"),
        ("https://x/-rf", "rf"),
        ("https://x/a/b.qcow2/", "b.qcow2"),
        ("https://x/%F0%9F%92%A9", "F09F92A9"),
    ] {
        assert_eq!(name_of(&Url::parse(url).unwrap()), name, "{url}");
    }
    assert_eq!(name_of(&Url::parse(&format!("https://x/{}", "n".repeat(999))).unwrap()).len(), LONGEST_NAME);
}

#[test]
fn the_format_is_what_is_said_or_how_the_name_ends() {
    let sum = format!("checksum: '{SUM}'");
    let of = |entry: &str| {
        let made = pipeline(entry);
        (made.format_before(1), made.final_format())
    };
    for (entry, before, last) in [
        (format!("{{name: x, url: 'https://x/a.qcow2', {sum}}}"), Some(Format::Qcow2), "qcow2"),
        (format!("{{name: x, url: 'https://x/a.img', format: qcow2, {sum}}}"), Some(Format::Qcow2), "qcow2"),
        (format!("{{name: x, url: 'https://x/a.img', {sum}}}"), None, ""),
        (format!("{{name: x, url: 'https://x/a.img', format: iso, {sum}}}"), None, "iso"),
        (
            format!(
                "{{name: x, format: raw, steps: [{{download: {{url: 'https://x/a.img', {sum}}}}}, {{convert: {{format: qcow2}}}}]}}"
            ),
            None,
            "qcow2",
        ),
    ] {
        assert_eq!(of(&entry), (before, last.to_owned()), "{entry}");
    }
    let twice = steps(
        "{download: {url: 'https://x/a.raw'}}, {verify: {checksum: '0f8c3d7d9fb5c1c1a3f4f3f5c1a0b6f0c9e8d7a6b5c4d3e2f1a0b9c8d7e6f5a4'}}, {convert: {format: vmdk}}, {name: again, convert: {format: raw}}",
    );
    assert_eq!((twice.format_before(2), twice.format_before(3)), (Some(Format::Raw), Some(Format::Vmdk)));
}

#[test]
fn a_destination_gets_the_format_that_it_wants() {
    let names = |made: &Pipeline| made.steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>().join(" ");
    let plain = pipeline(&format!("{{name: x, url: 'https://x/a.qcow2', checksum: '{SUM}'}}"));
    assert_eq!(plain.clone().in_format(Format::Qcow2), plain);
    assert_eq!(names(&plain.clone().in_format(Format::Raw)), "download convert upload register");
    assert_eq!(plain.in_format(Format::Raw).files().last().unwrap(), "a.raw");
    let packed = steps(
        "{download: {url: 'https://x/a.raw'}}, {verify: {signature: 'https://x/s'}}, {compress: {algorithm: xz}}",
    );
    assert_eq!(names(&packed.in_format(Format::Qcow2)), "download verify convert compress upload register");
    let converted = steps("{build: {command: [a], output: a.raw}}, {convert: {format: qcow2}}");
    assert_eq!(names(&converted.in_format(Format::Vmdk)), "build convert convert-for-destination upload register");
}

#[test]
fn what_nothing_vouches_for_is_found() {
    let unverified = |entry: &str| steps(entry).unverified().map(|step| step.name.clone());
    let plain = "{download: {url: 'https://x/a'}}";
    assert_eq!(unverified(plain).as_deref(), Some("download"));
    assert_eq!(unverified(&format!("{plain}, {{verify: {{signature: 'https://x/s'}}}}")), None);
    assert_eq!(unverified(&format!("{{download: {{url: 'https://x/a', checksum: '{SUM}'}}}}")), None);
    // What is checked after a tool ran is what the tool made.
    let late = format!("{plain}, {{convert: {{format: raw}}}}, {{verify: {{checksum: '{SUM}'}}}}");
    assert_eq!(unverified(&late).as_deref(), Some("download"));
}
