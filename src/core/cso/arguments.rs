//! What CSO is started with: flags in its container's `args` or behind the program in its `command`, with their value behind `=`
//! or as an argument of its own.

use serde_json::{Map, Value};

/// Flags that mean the same here.
const FLAGS: &[&str] = &["watch-filter", "namespace", "log-level", "source"];

/// Those of them that a container gives; the last one counts.
pub fn flags(container: &Value) -> Map<String, Value> {
    let list = |field: &str| container[field].as_array().into_iter().flatten().filter_map(Value::as_str);
    // The first one of a command is the program.
    let mut arguments = list("command").skip(1).chain(list("args")).peekable();
    let mut flags = Map::new();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix('-').map(|flag| flag.trim_start_matches('-')) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value),
            None if FLAGS.contains(&flag) => (flag, arguments.next().unwrap_or_default()),
            None => continue,
        };
        if FLAGS.contains(&name) && !value.is_empty() {
            flags.insert(name.to_owned(), value.into());
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_are_found_wherever_and_however_they_stand() {
        for (container, expected) in [
            (json!({"args": ["--watch-filter=blue", "--qps=50"]}), json!({"watch-filter": "blue"})),
            (
                json!({"args": ["--watch-filter", "blue", "-source", "oci"]}),
                json!({"watch-filter": "blue", "source": "oci"}),
            ),
            (json!({"command": ["/manager", "--watch-filter=blue"]}), json!({"watch-filter": "blue"})),
            (
                json!({"command": ["/manager", "--log-level", "debug"], "args": ["--leader-elect", "--namespace", "team"]}),
                json!({"log-level": "debug", "namespace": "team"}),
            ),
            (json!({"command": ["--namespace=program"]}), json!({})),
            (json!({"args": ["--watch-filter=a", "--watch-filter", "b"]}), json!({"watch-filter": "b"})),
            (json!({"args": ["--watch-filter=", "--leader-elect", "namespace", "--source"]}), json!({})),
            (json!({}), json!({})),
        ] {
            assert_eq!(Value::Object(flags(&container)), expected, "{container}");
        }
    }
}
