mod reading;
mod writing;

use serde::Deserialize;
use serde_json::json;

use super::*;

#[test]
fn all_documents_are_read_but_for_empty_ones() {
    let text = "# a licence\n---\n# nothing\n---\na: 1\n...\n---\n\nb: 2\n--- c\n---\n";
    let documents = parse_all(text).unwrap();
    let expected = [(json!({"a": 1}), 5), (json!({"b": 2}), 9), (json!("c"), 10)];
    assert_eq!(documents, expected.map(|(value, line)| Document { value, line }));
    assert_eq!(parse_all("").unwrap(), []);
}

#[test]
fn one_broken_document_fails_them_all() {
    let error = parse_all("a: 1\n---\nb: 'c\n").unwrap_err();
    assert_eq!((error.line(), error.column()), (3, 4));
    // An anchor is known in its own document only.
    let error = parse_all("a: &a 1\n---\nb: *a\n").unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 4: unknown anchor 'a' referenced");
    assert!(parse_all("a\nb: c\n").is_err());
}

#[derive(Debug, PartialEq, Deserialize)]
struct Stage {
    name: String,
    #[serde(default)]
    weight: u8,
}

#[test]
fn a_document_is_read_into_a_type() {
    let stages: Vec<Stage> = from_str("- name: cni\n- {name: csi, weight: 2}\n").unwrap();
    assert_eq!(stages, [Stage { name: "cni".into(), weight: 0 }, Stage { name: "csi".into(), weight: 2 }]);
    assert_eq!(from_str::<Option<Stage>>(""), Ok(None));
}

#[test]
fn what_does_not_fit_the_type_is_named_with_its_path_and_line() {
    type Stages = std::collections::BTreeMap<String, Vec<Stage>>;
    let error = from_str::<Stages>("x: []\nafter:\n- name: cni\n- name: csi\n  weight: 300\n").unwrap_err();
    assert_eq!((error.line(), error.column(), error.path()), (5, 11, Some("after[1].weight")));
    assert_eq!(error.to_string(), "line 5, column 11: after[1].weight: invalid value: integer `300`, expected u8");
    let error = from_str::<Stages>("a: &a [{name: x}]\nb: *a\nc: [{weight: 1}]\n").unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 5: c[0]: missing field `name`");
    let error = from_str::<Stage>("[").unwrap_err();
    assert_eq!(error.path(), None);
    let error = from_str::<Stage>("").unwrap_err();
    assert_eq!((error.line(), error.path()), (1, None));
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = 100_000;
    let texts = [
        "[".repeat(deep),
        "{".repeat(deep),
        "{a: ".repeat(deep),
        "[[],".repeat(deep),
        "- ".repeat(deep),
        "? ".repeat(deep),
        (0..10_000).map(|indent| format!("{:1$}a:\n", "", indent)).collect::<Vec<_>>().concat(),
    ];
    for text in texts {
        let error = parse(&text).unwrap_err();
        assert!(error.message().contains("nested more than 200 levels"), "{error}");
    }
    let allowed = format!("{}{}", "[".repeat(199), "]".repeat(199));
    assert!(parse(&allowed).is_ok());
    // Each part is allowed, one inside the other isn't.
    let nested = |inner: &str| format!("{}{inner}{}", "[".repeat(150), "]".repeat(150));
    let error = parse(&format!("- &a {}\n- {}\n", nested(""), nested("*a"))).unwrap_err();
    assert!(error.message().contains("nested more than"), "{error}");
}

#[test]
fn aliases_that_expand_without_end_are_an_error() {
    let laughs = (1..10)
        .map(|i| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(",")))
        .collect::<Vec<_>>()
        .concat();
    let error = parse(&format!("a0: &a0 lol\n{laughs}")).unwrap_err();
    assert!(error.message().contains("excessive aliasing"), "{error}");
    let merges = (1..10)
        .map(|i| format!("a{i}: &a{i} {{<<: [{}]}}\n", vec![format!("*a{}", i - 1); 10].join(",")))
        .collect::<Vec<_>>()
        .concat();
    assert!(parse(&format!("a0: &a0 {{a: b}}\n{merges}")).is_err());
    let large = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(","));
    let error = parse(&large).unwrap_err();
    assert!(error.message().contains("aliases expand to more than"), "{error}");
}

#[test]
fn long_texts_take_time_in_proportion() {
    // Each of these has been quadratic in some parser.
    let texts = [
        "a: b\n".repeat(100_000),
        "'".repeat(200_000),
        format!("\"{}\"", "\\\n".repeat(100_000)),
        format!("a: |\n{}", " \n".repeat(100_000)),
        format!("{}a", "\n".repeat(200_000)),
        format!("[{}]", "a, ".repeat(100_000)),
        format!("- {}\n", "a ".repeat(100_000)),
        "&a ".repeat(100_000),
        "!a ".repeat(100_000),
    ];
    for text in texts {
        let _ = parse(&text);
    }
}

#[test]
fn what_go_cannot_write_is_escaped() {
    // DEL and its like make `toYaml` fail in Go, which then prints nothing; a NEL becomes a space there.
    assert_eq!(to_string(&json!({"a": "b\u{7f}\u{85}\u{80}"})), "a: \"b\\x7F\\N\\x80\"\n");
}

#[test]
fn floats_print_as_with_go_s_verb_g() {
    let table = [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (100_000.0, "100000"),
        (1e6, "1e+06"),
        (1_234_567.0, "1.234567e+06"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (123.456, "123.456"),
        (-1.5e-10, "-1.5e-10"),
        (1e100, "1e+100"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ];
    for (number, expected) in table {
        assert_eq!(format_g(number), expected);
    }
}
