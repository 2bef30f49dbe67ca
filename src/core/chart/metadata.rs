//! `Chart.yaml`.

use serde_json::{Map, Value as Json};

use super::go_template::print;
use super::version::Version;
use crate::core::yaml;

/// What `Chart.yaml` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The chart's name.
    pub name: String,
    /// Its version, semantic.
    pub version: String,
    /// `v1` or `v2`.
    pub api_version: String,
    /// The version of what it installs.
    pub app_version: String,
    /// One line.
    pub description: String,
    /// The project's page.
    pub home: String,
    /// An icon's URL.
    pub icon: String,
    /// URLs of sources.
    pub sources: Vec<String>,
    /// Words to find it by.
    pub keywords: Vec<String>,
    /// Who cares for it.
    pub maintainers: Vec<Maintainer>,
    /// Of no meaning for rendering.
    pub condition: String,
    /// Of no meaning for rendering.
    pub tags: String,
    /// No longer maintained.
    pub deprecated: bool,
    /// Free annotations.
    pub annotations: Vec<(String, String)>,
    /// The constraint on Kubernetes' version.
    pub kube_version: String,
    /// `application` (or empty) or `library`.
    pub kind: String,
    /// The charts it needs.
    pub dependencies: Vec<Dependency>,
}

/// A maintainer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintainer {
    /// A name.
    pub name: String,
    /// An address.
    pub email: String,
    /// A page.
    pub url: String,
}

/// A chart that another needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependency {
    /// The chart's name.
    pub name: String,
    /// A constraint on its version.
    pub version: String,
    /// Where it comes from; not used for rendering.
    pub repository: String,
    /// Paths of values that switch it, joined by commas.
    pub condition: String,
    /// Tags that switch it.
    pub tags: Vec<String>,
    /// Values to import.
    pub import_values: Vec<Json>,
    /// The name it goes by.
    pub alias: String,
}

/// What Go says of JSON's types.
pub(crate) fn json_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// A string as `sigs.k8s.io/yaml` reads it into a string: numbers and booleans are written out, null is empty.
pub(crate) fn string(json: &Json, field: &str) -> Result<String, String> {
    Ok(match json {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.to_string(),
            (None, Some(number)) => number.to_string(),
            _ => yaml::float_text(number.as_f64().unwrap_or_default()),
        },
        other => return Err(unfit(other, field, "string")),
    })
}

fn unfit(json: &Json, field: &str, wanted: &str) -> String {
    format!(
        "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go struct field {field} of type {wanted}",
        json_type(json)
    )
}

fn strings(json: &Json, field: &str) -> Result<Vec<String>, String> {
    match json {
        Json::Null => Ok(Vec::new()),
        Json::Array(items) => items.iter().map(|item| string(item, field)).collect(),
        other => Err(unfit(other, field, "[]string")),
    }
}

fn objects<'j, T>(
    json: &'j Json,
    field: &str,
    read: impl Fn(&'j Map<String, Json>) -> Result<T, String>,
    what: &str,
) -> Result<Vec<T>, String> {
    match json {
        Json::Null => Ok(Vec::new()),
        Json::Array(items) => items
            .iter()
            .map(|item| match item {
                Json::Object(map) => read(map),
                Json::Null => Err(format!("{what} must not contain empty or null nodes")),
                other => Err(unfit(other, field, "object")),
            })
            .collect(),
        other => Err(unfit(other, field, "list")),
    }
}

/// String pairs.
pub(crate) fn string_map(json: &Json, field: &str) -> Result<Vec<(String, String)>, String> {
    match json {
        Json::Null => Ok(Vec::new()),
        Json::Object(map) => map.iter().map(|(key, value)| Ok((key.clone(), string(value, field)?))).collect(),
        other => Err(unfit(other, field, "map[string]string")),
    }
}

impl Metadata {
    /// Takes over what a file says; fields it doesn't name stay.
    pub(crate) fn read(&mut self, json: &Json) -> Result<(), String> {
        let map = match json {
            Json::Null => return Ok(()),
            Json::Object(map) => map,
            other => {
                return Err(format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type chart.Metadata",
                    json_type(other)
                ));
            }
        };
        for (key, value) in fields(map, METADATA) {
            let field = format!("Metadata.{key}");
            let slot = match key {
                "name" => &mut self.name,
                "version" => &mut self.version,
                "apiVersion" => &mut self.api_version,
                "appVersion" => &mut self.app_version,
                "description" => &mut self.description,
                "home" => &mut self.home,
                "icon" => &mut self.icon,
                "condition" => &mut self.condition,
                "tags" => &mut self.tags,
                "kubeVersion" => &mut self.kube_version,
                "type" => &mut self.kind,
                "sources" => {
                    self.sources = strings(value, &field)?;
                    continue;
                }
                "keywords" => {
                    self.keywords = strings(value, &field)?;
                    continue;
                }
                "maintainers" => {
                    self.maintainers = objects(value, &field, maintainer, "maintainers")?;
                    continue;
                }
                "annotations" => {
                    self.annotations = string_map(value, &field)?;
                    continue;
                }
                "dependencies" => {
                    self.dependencies = objects(value, &field, dependency, "dependencies")?;
                    continue;
                }
                "deprecated" => {
                    match value {
                        Json::Null => {}
                        Json::Bool(value) => self.deprecated = *value,
                        other => return Err(unfit(other, &field, "bool")),
                    }
                    continue;
                }
                _ => continue,
            };
            if !value.is_null() {
                *slot = string(value, &field)?;
            }
        }
        Ok(())
    }

    /// Helm's checks; the messages are Helm's.
    pub(crate) fn validate(&mut self) -> Result<(), String> {
        for text in [
            &mut self.name,
            &mut self.description,
            &mut self.home,
            &mut self.icon,
            &mut self.condition,
            &mut self.tags,
            &mut self.app_version,
            &mut self.kube_version,
        ] {
            *text = sanitized(text);
        }
        for text in self.sources.iter_mut().chain(&mut self.keywords) {
            *text = sanitized(text);
        }
        if self.name.is_empty() {
            return Err("chart.metadata.name is required".into());
        }
        if self.name == "." || self.name == ".." {
            return Err(format!("chart.metadata.name {:?} is not allowed", self.name));
        }
        if self.name.contains('/') {
            return Err(format!("chart.metadata.name {:?} is invalid", self.name));
        }
        if self.version.is_empty() {
            return Err("chart.metadata.version is required".into());
        }
        if Version::parse(&self.version).is_err() {
            return Err(format!("chart.metadata.version {:?} is invalid", self.version));
        }
        if !matches!(self.kind.as_str(), "" | "application" | "library") {
            return Err("chart.metadata.type must be application or library".into());
        }
        for maintainer in &mut self.maintainers {
            maintainer.name = sanitized(&maintainer.name);
            maintainer.email = sanitized(&maintainer.email);
            maintainer.url = sanitized(&maintainer.url);
        }
        let mut seen: Vec<&str> = Vec::new();
        for dependency in &mut self.dependencies {
            dependency.sanitize();
            let known = dependency.alias.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            if !known {
                return Err(format!("dependency {:?} has disallowed characters in the alias", dependency.name));
            }
        }
        for dependency in &self.dependencies {
            let key = if dependency.alias.is_empty() { &dependency.name } else { &dependency.alias };
            if seen.contains(&key.as_str()) {
                return Err(format!("more than one dependency with name or alias {key:?}"));
            }
            seen.push(key);
        }
        Ok(())
    }
}

/// The fields of `chart.Metadata` in Helm.
const METADATA: &[&str] = &[
    "name",
    "version",
    "apiVersion",
    "appVersion",
    "description",
    "home",
    "icon",
    "condition",
    "tags",
    "kubeVersion",
    "type",
    "sources",
    "keywords",
    "maintainers",
    "annotations",
    "dependencies",
    "deprecated",
];

/// Those of `known` that a map has, in the order in which they are read: as Go's decoder of JSON takes them, which has no regard
/// to case, from an object whose keys were sorted on the way from YAML. The last one of a name counts.
fn fields<'j>(map: &'j Map<String, Json>, known: &[&'static str]) -> Vec<(&'static str, &'j Json)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    let field = |key: &str| known.iter().find(|name| name.eq_ignore_ascii_case(key)).copied();
    entries.into_iter().filter_map(|(key, value)| Some((field(key)?, value))).collect()
}

fn field<'j>(fields: &[(&str, &'j Json)], name: &str) -> Option<&'j Json> {
    fields.iter().rev().find(|(key, value)| *key == name && !value.is_null()).map(|(_, value)| *value)
}

fn maintainer(map: &Map<String, Json>) -> Result<Maintainer, String> {
    let map = fields(map, &["name", "email", "url"]);
    let text =
        |key: &str| field(&map, key).map_or(Ok(String::new()), |json| string(json, &format!("Maintainer.{key}")));
    Ok(Maintainer { name: text("name")?, email: text("email")?, url: text("url")? })
}

fn dependency(map: &Map<String, Json>) -> Result<Dependency, String> {
    let map = fields(map, &["name", "version", "repository", "condition", "tags", "import-values", "alias"]);
    let text =
        |key: &str| field(&map, key).map_or(Ok(String::new()), |json| string(json, &format!("Dependency.{key}")));
    let import_values = match field(&map, "import-values") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(items)) => items.clone(),
        Some(other) => return Err(unfit(other, "Dependency.import-values", "[]interface {}")),
    };
    Ok(Dependency {
        name: text("name")?,
        version: text("version")?,
        repository: text("repository")?,
        condition: text("condition")?,
        tags: field(&map, "tags").map_or(Ok(Vec::new()), |json| strings(json, "Dependency.tags"))?,
        import_values,
        alias: text("alias")?,
    })
}

impl Dependency {
    fn sanitize(&mut self) {
        for text in [&mut self.name, &mut self.version, &mut self.repository, &mut self.condition] {
            *text = sanitized(text);
        }
        for tag in &mut self.tags {
            *tag = sanitized(tag);
        }
    }
}

/// Blanks become spaces, what can't be printed goes.
fn sanitized(text: &str) -> String {
    text.chars().filter_map(|c| if c.is_whitespace() { Some(' ') } else { print::is_print(c).then_some(c) }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_have_no_case_and_the_last_one_counts() {
        let mut metadata = Metadata::default();
        let chart = json!({
            "Name": "c", "VERSION": "1.0.0", "APIVERSION": "v2", "appVersion": "1", "appversion": "2", "KubeVersion": null,
            "kubeVersion": ">=1.30", "Type": "library", "unknown": {},
            "Dependencies": [{"Name": "d", "ALIAS": "e", "Import-Values": ["x"], "version": "1", "Version": null}],
            "MAINTAINERS": [{"NAME": "m"}],
        });
        metadata.read(&chart).unwrap();
        let dependency = Dependency {
            name: "d".into(),
            version: "1".into(),
            alias: "e".into(),
            import_values: vec![json!("x")],
            ..Dependency::default()
        };
        let expected = Metadata {
            name: "c".into(),
            version: "1.0.0".into(),
            api_version: "v2".into(),
            app_version: "2".into(),
            kube_version: ">=1.30".into(),
            kind: "library".into(),
            dependencies: vec![dependency],
            maintainers: vec![Maintainer { name: "m".into(), ..Maintainer::default() }],
            ..Metadata::default()
        };
        assert_eq!(metadata, expected);
    }
}
