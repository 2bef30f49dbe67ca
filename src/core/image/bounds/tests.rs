use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::api::image_template::ToolLimits;
use crate::core::image::pipeline::Tool;

#[test]
fn quantities_are_read_as_kubernetes_writes_them() {
    for (text, expected) in [
        ("1", Some(1)),
        ("4Gi", Some(4 * GIB)),
        ("500M", Some(500_000_000)),
        ("2Ti", Some(2 << 40)),
        ("3k", Some(3000)),
        ("1.5Gi", Some(3 << 29)),
        (".5Ki", Some(512)),
        ("0.5k", Some(500)),
        ("5.Ki", Some(5 << 10)),
        ("+2Pi", Some(2 << 50)),
        ("1E", Some(1_000_000_000_000_000_000)),
        ("1Ei", Some(1 << 60)),
        ("12e6", Some(12_000_000)),
        ("1.5E3", Some(1500)),
        ("1200e-2", Some(12)),
        // Rounded up.
        ("1m", Some(1)),
        ("1500m", Some(2)),
        ("1.0001Ki", Some(1025)),
        ("1e-60", Some(1)),
    ] {
        assert_eq!(bytes(text), expected, "{text}");
    }
    for text in [
        "",
        "0",
        "0.0Gi",
        "Gi",
        ".",
        "-1",
        "1.5.0Gi",
        "1,5Gi",
        "1 Gi",
        "1gi",
        "1K",
        "1e",
        "1e3Gi",
        "1e99",
        "99999999999999999999",
        "99999999999Gi",
    ] {
        assert_eq!(bytes(text), None, "{text}");
    }
}

#[test]
fn what_the_template_does_not_say_has_a_default() {
    assert_eq!(Bounds::of(&ImageBuild::default()), Ok(Bounds::default()));
    let limits = ToolLimits { memory: Some(Quantity("1Gi".into())), cpu_seconds: Some(7), ..ToolLimits::default() };
    let build = ImageBuild { limits: Some(limits), no_progress_timeout: Some("15m".into()), ..ImageBuild::default() };
    let bounds = Bounds::of(&build).unwrap();
    assert_eq!((bounds.memory, bounds.cpu_seconds, bounds.no_progress.as_secs()), (GIB, 7, 900));
    for wrong in ["soon", "0s", ""] {
        let build = ImageBuild { step_timeout: Some(wrong.into()), ..ImageBuild::default() };
        assert!(Bounds::of(&build).unwrap_err().to_string().starts_with("spec.build.stepTimeout"), "{wrong}");
    }
}

#[test]
fn a_command_takes_no_longer_than_it_says_and_than_the_provider_says() {
    let tool = |minutes| {
        Work::Build(Tool {
            command: vec!["a".into()],
            env: std::collections::BTreeMap::new(),
            directory: String::new(),
            output: "x".into(),
            timeout: SignedDuration::from_mins(minutes),
        })
    };
    let hour = Bounds { step_timeout: Some(Duration::from_hours(1)), ..Bounds::default() };
    for (bounds, work, minutes) in [
        (Bounds::default(), tool(90), 90),
        (hour.clone(), tool(90), 60),
        (hour.clone(), tool(30), 30),
        (Bounds::default(), Work::Upload, 60),
        (Bounds { step_timeout: Some(Duration::from_hours(2)), ..Bounds::default() }, Work::Upload, 120),
    ] {
        assert_eq!(bounds.deadline(&work).as_secs(), minutes * 60);
    }
}
