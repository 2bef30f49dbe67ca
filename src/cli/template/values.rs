//! The user's values: files and assignments, merged in Helm's order.

use std::cell::RefCell;
use std::io::{ErrorKind, Read};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value};

use super::strvals::{self, Values};
use crate::cli::report::Hinted;
use crate::core::yaml;

/// Flags that give values. They win in this order: files, `--set-json`, `--set`, `--set-string`, `--set-file`,
/// `--set-literal`; of one kind, the later one.
#[derive(Args, Clone, Debug, Default)]
pub struct ValuesArgs {
    /// Files with values, `-` for standard input; later ones win
    #[arg(short = 'f', long = "values", value_name = "FILES", value_delimiter = ',')]
    pub files: Vec<String>,

    /// Values: `a.b=1,list[0]=x,set={a,b}`, with `\` before a literal comma or dot; null removes a default
    #[arg(long, value_name = "ASSIGNMENTS")]
    pub set: Vec<String>,

    /// As --set, every value a text
    #[arg(long, value_name = "ASSIGNMENTS")]
    pub set_string: Vec<String>,

    /// As --set with JSON values, or a JSON object that is merged as a file is
    #[arg(long, value_name = "JSON")]
    pub set_json: Vec<String>,

    /// As --set, every value the name of a file with the text
    #[arg(long, value_name = "ASSIGNMENTS")]
    pub set_file: Vec<String>,

    /// One value as it is written, commas, braces and backslashes too: `args=--a=1,--b={2}`
    #[arg(long, value_name = "ASSIGNMENT")]
    pub set_literal: Vec<String>,
}

impl ValuesArgs {
    /// All of them as one, files read from disk or standard input.
    ///
    /// # Errors
    /// A file that can't be read or is no map, an assignment that Helm would refuse.
    pub fn read(&self) -> Result<Map<String, Value>> {
        self.merged(&text_of, Numbers::AsWritten)
    }

    /// The same, with a fraction in every number that Helm reads as YAML or JSON, also `7.0`: whole ones are those of
    /// `--set`, which alone are integers there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_as_helm(&self) -> Result<Map<String, Value>> {
        self.merged(&text_of, Numbers::Floats)
    }

    fn merged(&self, read: &dyn Fn(&str) -> Result<String>, numbers: Numbers) -> Result<Map<String, Value>> {
        let mut all = Map::new();
        for file in &self.files {
            let text = read(file)?;
            merge(&mut all, map(yaml::parse(&text).map_err(|error| unread(file, &error.to_string()))?, file)?);
        }
        for text in &self.set_json {
            if text.trim_start().starts_with('{') {
                let value = serde_json::from_str(text).with_context(|| format!("--set-json {text:?} is no JSON"))?;
                merge(&mut all, map(value, "--set-json")?);
            } else {
                assign("--set-json", text, &Values::Json, &mut all)?;
            }
        }
        if numbers == Numbers::Floats {
            all.values_mut().for_each(floats);
        }
        // What is no file has nothing to do with how it is written.
        let unread = RefCell::new(None);
        let from_file = |name: &str| {
            read(name).map_err(|error| {
                let text = format!("{error:#}");
                *unread.borrow_mut() = Some(error);
                text
            })
        };
        for (flag, texts, values) in [
            ("--set", &self.set, Values::Typed),
            ("--set-string", &self.set_string, Values::Text),
            ("--set-file", &self.set_file, Values::File(&from_file)),
            ("--set-literal", &self.set_literal, Values::Literal),
        ] {
            for text in texts {
                let assigned = assign(flag, text, &values, &mut all);
                match unread.take() {
                    Some(error) => return Err(error.context(format!("{flag} {text:?}"))),
                    None => assigned?,
                }
            }
        }
        Ok(all)
    }
}

/// What becomes of numbers that are no assignments of `--set`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    AsWritten,
    Floats,
}

fn floats(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().and_then(serde_json::Number::from_f64) {
                *number = float;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(floats),
        Value::Object(map) => map.values_mut().for_each(floats),
        _ => {}
    }
}

fn assign(flag: &str, text: &str, values: &Values<'_>, all: &mut Map<String, Value>) -> Result<()> {
    strvals::set(text, values, all).map_err(|error| {
        let hint =
            "assignments are name=value,name.part=value,list[0]=value,list={a,b}; write \\, for a comma in a value";
        Hinted::new(format!("{flag} {text:?} can't be understood"), hint).because(error).into()
    })
}

/// The values of a file; an empty one has none.
fn map(value: Value, file: &str) -> Result<Map<String, Value>> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(unread(file, "it is no map").into()),
    }
}

fn unread(file: &str, why: &str) -> Hinted {
    let hint = "values are a YAML map, as in a chart's values.yaml";
    Hinted::new(format!("values in {file} can't be read: {why}"), hint)
}

/// Puts `over` onto `base`: maps are merged, everything else (null too) replaces what is there.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over),
            (_, value) => _ = base.insert(key, value),
        }
    }
}

/// The text of a file, `-` for standard input.
fn text_of(name: &str) -> Result<String> {
    let mut text = String::new();
    let read = match name {
        "-" => std::io::stdin().read_to_string(&mut text).map(|_| text),
        path => std::fs::read_to_string(path),
    };
    let shown = if name == "-" { "standard input" } else { name };
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidData => {
            let hint = "values are text: give what is none in base64, and let the chart put it into `data` as it is, or use b64dec";
            Hinted::new(format!("{shown} is not in UTF-8"), hint).into()
        }
        _ => anyhow::Error::from(error).context(format!("cannot read {shown}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(args: &ValuesArgs) -> Result<Value> {
        let read = |name: &str| match name {
            "a.yaml" => Ok("image: {tag: v1, pull: Always}\nlist: [1, 2]\nport: 80\n".to_owned()),
            "b.yaml" => Ok("image: {tag: v2}\nlist: [3]\nport: null\n".to_owned()),
            "empty.yaml" => Ok("# nothing\n".to_owned()),
            "list.yaml" => Ok("- a\n".to_owned()),
            "broken.yaml" => Ok("a: [".to_owned()),
            other => anyhow::bail!("{other} does not exist"),
        };
        args.merged(&read, Numbers::AsWritten).map(Value::Object)
    }

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn later_files_win_and_null_stays_for_the_chart_to_see() {
        let args = ValuesArgs { files: strings(&["a.yaml", "empty.yaml", "b.yaml"]), ..ValuesArgs::default() };
        let expected = json!({"image": {"tag": "v2", "pull": "Always"}, "list": [3], "port": null});
        assert_eq!(merged(&args).unwrap(), expected);
    }

    #[test]
    fn assignments_win_over_files_in_helms_order() {
        let args = ValuesArgs {
            files: strings(&["a.yaml"]),
            set_json: strings(&[r#"{"image": {"digest": "d"}, "x": 0}"#, "list=[9]"]),
            set: strings(&["image.tag=v3,x=1", "port=81"]),
            set_string: strings(&["x=2"]),
            set_file: strings(&["text=empty.yaml", "raw=empty.yaml"]),
            set_literal: strings(&["raw=a,b={c}"]),
        };
        let expected = json!({
            "image": {"tag": "v3", "pull": "Always", "digest": "d"}, "list": [9], "port": 81, "x": "2", "text": "# nothing\n",
            "raw": "a,b={c}",
        });
        assert_eq!(merged(&args).unwrap(), expected);
    }

    #[test]
    fn integers_are_those_of_set_alone() {
        let args = ValuesArgs {
            files: strings(&["a.yaml"]),
            set_json: strings(&["list[2]=3"]),
            set: strings(&["list[1]=7,x=8"]),
            ..ValuesArgs::default()
        };
        let read = |_: &str| Ok("list: [1, 2]\nport: 80\n".to_owned());
        let all = Value::Object(args.merged(&read, Numbers::Floats).unwrap());
        assert_eq!(all, json!({"list": [1.0, 7, 3.0], "port": 80.0, "x": 8}));
    }

    #[test]
    fn what_is_no_map_of_values_is_refused() {
        for (file, part) in
            [("list.yaml", "it is no map"), ("broken.yaml", "broken.yaml can't be read"), ("gone", "does not exist")]
        {
            let args = ValuesArgs { files: strings(&[file]), ..ValuesArgs::default() };
            assert!(merged(&args).unwrap_err().to_string().contains(part), "{file}");
        }
        let args = ValuesArgs { set: strings(&["a"]), ..ValuesArgs::default() };
        assert!(merged(&args).unwrap_err().to_string().contains("--set \"a\""));
    }
}
