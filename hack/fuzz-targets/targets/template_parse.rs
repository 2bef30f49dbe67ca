//! Any text as a Go template and as a Tera template: it parses or says where it doesn't.
#![no_main]

use fuzz_targets::chart;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // A chart parses its templates when it is loaded.
    let loaded = chart(&[("templates/x.yaml", text), ("templates/y.yaml.tera", text)]);
    assert!(loaded.is_some(), "a template that doesn't parse is no reason not to load its chart");
});
