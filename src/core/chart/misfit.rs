//! Values that do not fit where they were given, of which Helm warns while it renders nevertheless.

use std::collections::BTreeSet;
use std::fmt;

/// A value that does not fit, or an import that finds nothing. No value is quoted: it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The chart's default at this path is a map, and what stands in its place is none.
    NoMap(String),
    /// The chart's default at this path is no map, and a map stands in its place.
    Map(String),
    /// A condition of a dependency leads to what is no boolean, and decides nothing.
    Condition {
        /// Its path.
        path: String,
        /// The dependency, by its alias if it has one.
        chart: String,
    },
    /// A tag is no boolean, and decides nothing.
    Tag {
        /// The tag.
        tag: String,
        /// The dependency, as above.
        chart: String,
    },
    /// `global` of a chart is no map: its subcharts are given nothing of it.
    Globals(String),
    /// `global` of a subchart, or a part of it, is no map: it is not given what its parent has there.
    OwnGlobals(String),
    /// A line of `import-values` leads to no map: nothing is imported.
    Import {
        /// The path in the parent's values, with the subchart's name.
        path: String,
        /// The subchart.
        chart: String,
    },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMap(path) => write!(f, "{path} replaces a map of the chart's by a value that is none"),
            Self::Map(path) => write!(f, "{path} replaces a value of the chart's that is no map by a map"),
            Self::Condition { path, chart } => {
                write!(f, "{path} is neither true nor false, and so neither enables nor disables the chart {chart}")
            }
            Self::Tag { tag, chart } => {
                write!(f, "tags.{tag} is neither true nor false, and so neither enables nor disables the chart {chart}")
            }
            Self::Globals(path) => write!(f, "{path} is no map, and so no subchart is given anything of it"),
            Self::OwnGlobals(path) => {
                write!(f, "{path} is not the map that its parent chart has there, and so is given nothing of it")
            }
            Self::Import { path, chart } => {
                write!(f, "{path} is no map, and so nothing of it is imported from the chart {chart}")
            }
        }
    }
}

/// Those that were found, each once.
pub(super) type Misfits = BTreeSet<Misfit>;

/// Where in the values one is: a path that is written out where something is found there alone.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    key: &'a str,
}

impl Place<'static> {
    /// The values as a whole.
    pub(super) const ROOT: Self = Self { parent: None, key: "" };
}

impl<'a> Place<'a> {
    /// What is called `key` here.
    pub(super) fn at<'b>(&'b self, key: &'b str) -> Place<'b>
    where
        'a: 'b,
    {
        Place { parent: Some(self), key }
    }

    /// As `--set` has it.
    pub(super) fn path(&self) -> String {
        match self.parent.map(Place::path) {
            None => String::new(),
            Some(parent) if parent.is_empty() => self.key.to_owned(),
            Some(parent) => format!("{parent}.{}", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Capabilities, Chart, Release, RenderInput, render};

    /// `one` has the subcharts `sub` and `more`, which `sub.enabled` and the tag `front` decide on.
    fn misfits(values: Value) -> Vec<String> {
        let files = [
            (
                "Chart.yaml",
                "apiVersion: v2\nname: one\nversion: 1.0.0\ndependencies:\n\
                 - {name: sub, version: 1.0.0, condition: sub.enabled, import-values: [data, {child: there, parent: here}]}\n\
                 - {name: sub, alias: more, version: 1.0.0, tags: [front]}\n",
            ),
            ("values.yaml", "image: {tag: v1, map: {}}\nscalar: 1\nnothing:\ntags: {front: false}\n"),
            ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n"),
            (
                "charts/sub/values.yaml",
                "exports: {data: {a: 1}}\nthere: {b: 1}\nown: {deep: {x: 1}}\nglobal: {flat: 1}\n",
            ),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let input = RenderInput { values, ..RenderInput::new(Release::new("r", "n"), &capabilities, now) };
        let rendered = render(&Chart::load(&files).unwrap(), &input).unwrap();
        rendered.misfits.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_does_not_fit_is_told_once_by_its_path_and_never_by_its_value() {
        let no_boolean = "neither true nor false, and so neither enables nor disables the chart";
        for (values, expected) in [
            (json!({}), vec![]),
            (
                json!({"image": {"tag": "v2"}, "scalar": 2, "nothing": {"a": 1}, "other": {}, "sub": {"enabled": true}}),
                vec![],
            ),
            // As with Helm: at the top level a value takes a map's place without a word.
            (json!({"image": "s3cret"}), vec![]),
            (
                json!({"image": {"map": "s3cret"}}),
                vec!["image.map replaces a map of the chart's by a value that is none".to_owned()],
            ),
            (
                json!({"image": {"tag": {"s3cret": 1}}, "scalar": {}}),
                vec![
                    "image.tag replaces a value of the chart's that is no map by a map".to_owned(),
                    "scalar replaces a value of the chart's that is no map by a map".to_owned(),
                ],
            ),
            (
                json!({"sub": {"own": {"deep": "s3cret"}}}),
                vec!["sub.own.deep replaces a map of the chart's by a value that is none".to_owned()],
            ),
            (json!({"sub": {"enabled": "s3cret"}}), vec![format!("sub.enabled is {no_boolean} sub")]),
            (json!({"sub": {"enabled": null}}), vec![]),
            (json!({"tags": {"front": "false"}}), vec![format!("tags.front is {no_boolean} more")]),
            (json!({"global": 1}), vec!["global is no map, and so no subchart is given anything of it".to_owned()]),
            (
                json!({"sub": {"global": 1}}),
                vec![
                    "sub.global replaces a map of the chart's by a value that is none".to_owned(),
                    "sub.global is not the map that its parent chart has there, and so is given nothing of it"
                        .to_owned(),
                ],
            ),
            (
                json!({"global": {"flat": {}}, "sub": {"global": {"flat": 1}}}),
                vec![
                    "sub.global.flat is not the map that its parent chart has there, and so is given nothing of it"
                        .to_owned(),
                ],
            ),
        ] {
            let told = misfits(values.clone());
            assert_eq!(told, expected, "{values}");
        }
    }
}
