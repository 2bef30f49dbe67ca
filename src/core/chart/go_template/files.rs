//! `.Files`: the files of a chart that are neither templates nor charts.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use super::functions::url::base;
use super::value::lossy;
use crate::core::yaml;

/// The files as entries of a `ConfigMap`'s data.
pub(crate) fn as_config(files: &BTreeMap<Arc<str>, Bytes>) -> String {
    to_yaml(files, |data| lossy(data).into_owned())
}

/// The files as entries of a `Secret`'s data.
pub(crate) fn as_secrets(files: &BTreeMap<Arc<str>, Bytes>) -> String {
    to_yaml(files, |data| STANDARD.encode(data))
}

fn to_yaml(files: &BTreeMap<Arc<str>, Bytes>, encode: impl Fn(&[u8]) -> String) -> String {
    let entries: Map<String, Json> =
        files.iter().map(|(name, data)| (base(name), Json::String(encode(data)))).collect();
    let mut text = yaml::to_string(&Json::Object(entries));
    if text.ends_with('\n') {
        text.pop();
    }
    text
}
