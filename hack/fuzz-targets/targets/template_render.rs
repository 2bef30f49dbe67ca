//! Go templates and their values: what they do ends within the limits.
#![no_main]

use clusterstack::core::chart::{GoTemplate, render_with};
use clusterstack::core::yaml;
use fuzz_targets::{chart, input, parts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (values, template, partial) = parts(text);
    let files = [("values.yaml", values), ("templates/x.yaml", template), ("templates/_y.tpl", partial)];
    let Some(chart) = chart(&files) else { return };
    let mut input = input();
    // Given values win over the chart's own: the same ones, so that both ways are taken.
    input.values = yaml::parse(values).unwrap_or_default();
    _ = render_with(&chart, &input, &[&GoTemplate]);
});
