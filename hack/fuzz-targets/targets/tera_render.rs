//! Tera templates and their values: what they do ends within the limits.
#![no_main]

use clusterstack::core::chart::{Tera, render_with};
use fuzz_targets::{chart, input, parts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (values, template, partial) = parts(text);
    let files = [("values.yaml", values), ("templates/x.yaml.tera", template), ("templates/_y.tera", partial)];
    let Some(chart) = chart(&files) else { return };
    _ = render_with(&chart, &input(), &[&Tera]);
});
