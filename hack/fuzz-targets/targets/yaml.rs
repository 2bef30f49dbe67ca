//! Any text as YAML: it is read or refused, and what is written of it reads back equal.
#![no_main]

use clusterstack::core::yaml;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let first = yaml::parse(text);
    if let Ok(documents) = yaml::parse_all(text) {
        let first = first.as_ref().ok().filter(|value| !value.is_null());
        assert!(first.is_none_or(|first| documents.first().is_some_and(|document| document.value == *first)));
    }
    if let Ok(mut value) = first {
        without_exceptions(&mut value);
        reads_back(&value);
        let texts = yaml::parse_all(&format!("---\n{}---\n{}", yaml::to_string(&value), yaml::to_string(&value)));
        assert!(value.is_null() || texts.is_ok_and(|texts| texts.iter().all(|text| text.value == value)));
    }
    // Any text is a value and a key.
    reads_back(&Value::from(text));
    if text != "<<" {
        reads_back(&serde_json::json!({text: [text, {"a": {text: text}}]}));
    }
});

fn reads_back(value: &Value) {
    let text = yaml::to_string(value);
    assert_eq!(yaml::parse(&text).as_ref(), Ok(value), "{text}");
}

/// Takes out what Go doesn't write so that it reads back equal, and neither do we: `-0.0` and the key `<<`.
fn without_exceptions(value: &mut Value) {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => *value = Value::from(0),
        Value::Array(items) => items.iter_mut().for_each(without_exceptions),
        Value::Object(map) => {
            map.remove("<<");
            map.values_mut().for_each(without_exceptions);
        }
        _ => {}
    }
}
