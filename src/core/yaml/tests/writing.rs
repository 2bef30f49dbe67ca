use serde_json::Value;

use crate::core::yaml::{parse, to_string};

/// JSON and what `Marshal` of `sigs.k8s.io/yaml` v1.6.0 makes of it; what is written reads as the same again.
fn check(table: &[(&str, &str)]) {
    for (json, expected) in table {
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(to_string(&value), *expected, "{json}");
        let again = parse(expected).unwrap();
        assert_eq!(to_string(&again), *expected, "{json}");
    }
}

#[test]
fn strings_that_mean_something_else_are_quoted() {
    check(&[
        (r#""""#, "\"\"\n"),
        (r#""null""#, "\"null\"\n"),
        (r#""~""#, "\"~\"\n"),
        (r#""true""#, "\"true\"\n"),
        (r#""y""#, "\"y\"\n"),
        (r#""No""#, "\"No\"\n"),
        (r#""on""#, "\"on\"\n"),
        (r#""1""#, "\"1\"\n"),
        (r#""-1""#, "\"-1\"\n"),
        (r#""0x1F""#, "\"0x1F\"\n"),
        (r#""0o7""#, "\"0o7\"\n"),
        (r#""017""#, "\"017\"\n"),
        (r#""08""#, "\"08\"\n"),
        (r#""1_000""#, "\"1_000\"\n"),
        (r#""0b1""#, "\"0b1\"\n"),
        (r#""1e3""#, "\"1e3\"\n"),
        (r#""1.""#, "\"1.\"\n"),
        (r#""+.5""#, "\"+.5\"\n"),
        (r#"".inf""#, "\".inf\"\n"),
        (r#""-.INF""#, "\"-.INF\"\n"),
        (r#"".nan""#, "\".nan\"\n"),
        (r#""2020-01-01""#, "\"2020-01-01\"\n"),
        (r#""2020-1-1 1:2:3""#, "\"2020-1-1 1:2:3\"\n"),
        (r#""2020-01-01T00:00:00Z""#, "\"2020-01-01T00:00:00Z\"\n"),
        (r#""2020-02-30""#, "2020-02-30\n"),
        (r#""1:20""#, "\"1:20\"\n"),
        (r#""-190:20:30.15""#, "\"-190:20:30.15\"\n"),
        (r#""1:60""#, "1:60\n"),
        (r#""9223372036854775808""#, "\"9223372036854775808\"\n"),
    ]);
}

#[test]
fn strings_that_look_like_something_else_are_not_quoted() {
    check(&[
        (r#""yEs""#, "yEs\n"),
        (r#""0-0""#, "0-0\n"),
        (r#""1.2.3""#, "1.2.3\n"),
        (r#""v1""#, "v1\n"),
        (r#""0x""#, "0x\n"),
        (r#""1e""#, "1e\n"),
        (r#""=""#, "=\n"),
        (r#""<<""#, "<<\n"),
        (r#"".""#, ".\n"),
        (r#""..""#, "..\n"),
        (r#""1,5""#, "1,5\n"),
        (r#""+""#, "+\n"),
        (r#""e5""#, "e5\n"),
        (r#""2020-01""#, "2020-01\n"),
        (r#""a'b""#, "a'b\n"),
        (r#""a\"b""#, "a\"b\n"),
        (r#""_1""#, "_1\n"),
    ]);
}

#[test]
fn strings_with_indicators_are_quoted() {
    check(&[
        (r#"" a""#, "' a'\n"),
        (r#""a ""#, "'a '\n"),
        (r#""a: b""#, "'a: b'\n"),
        (r#""a:b""#, "a:b\n"),
        (r#""a:""#, "'a:'\n"),
        (r#"":a""#, ":a\n"),
        (r#"": a""#, "': a'\n"),
        (r#"":""#, "':'\n"),
        (r#""a #b""#, "'a #b'\n"),
        (r#""a#b""#, "a#b\n"),
        ("\"#a\"", "'#a'\n"),
        (r#""- a""#, "'- a'\n"),
        (r#""-""#, "'-'\n"),
        (r#""-a""#, "-a\n"),
        (r#""--""#, "--\n"),
        (r#""---""#, "'---'\n"),
        (r#""--- a""#, "'--- a'\n"),
        (r#""---a""#, "'---a'\n"),
        (r#""...""#, "'...'\n"),
        (r#""? a""#, "'? a'\n"),
        (r#""?a""#, "?a\n"),
        (r#""?""#, "'?'\n"),
        (r#""[a""#, "'[a'\n"),
        (r#""a]""#, "a]\n"),
        (r#""a, b""#, "a, b\n"),
        (r#"",a""#, "',a'\n"),
        (r#""{a""#, "'{a'\n"),
        (r#""a}""#, "a}\n"),
        (r#""&a""#, "'&a'\n"),
        (r#""*a""#, "'*a'\n"),
        (r#""!a""#, "'!a'\n"),
        (r#""|a""#, "'|a'\n"),
        (r#""|""#, "'|'\n"),
        (r#"">a""#, "'>a'\n"),
        (r#""'a'""#, "'''a'''\n"),
        (r#""it's: x""#, "'it''s: x'\n"),
        (r#""%a""#, "'%a'\n"),
        (r#""@a""#, "'@a'\n"),
        (r#""`a""#, "'`a'\n"),
        (r#""\"a\"""#, "'\"a\"'\n"),
        (r#""a\\b""#, "a\\b\n"),
        (r#""%""#, "'%'\n"),
        (r#""!""#, "'!'\n"),
        (r#""&""#, "'&'\n"),
        (r#""*""#, "'*'\n"),
        (r#""<a>""#, "<a>\n"),
    ]);
}

#[test]
fn unicode_is_kept_and_control_characters_are_escaped() {
    check(&[
        (r#""é""#, "é\n"),
        (r#""日本""#, "日本\n"),
        (r#""😀""#, "\"\\U0001F600\"\n"),
        (r#""a\tb""#, "\"a\\tb\"\n"),
        (r#""\t""#, "\"\\t\"\n"),
        (r#""\u0000\u0007\b\u000b\f\u001b""#, "\"\\0\\a\\b\\v\\f\\e\"\n"),
        ("\"\u{a0}\"", "\u{a0}\n"),
        ("\"\u{2028}\"", "'\u{2028}'\n"),
        ("\"a\u{2029}b\"", "'a\u{2029}  b'\n"),
        ("\"\u{feff}ab\"", "\"\\uFEFF\\x61\\x62\"\n"),
        ("\"a\u{feff}\"", "\"a\\uFEFF\"\n"),
        (r#""a\rb""#, "\"a\\rb\"\n"),
    ]);
}

#[test]
fn strings_of_more_than_one_line_are_literal_blocks() {
    check(&[
        (r#""a\nb""#, "|-\n  a\n  b\n"),
        (r#""a\nb\n""#, "|\n  a\n  b\n"),
        (r#""a\nb\n\n""#, "|+\n  a\n  b\n\n"),
        (r#""a\n""#, "|\n  a\n"),
        (r#""\n""#, "|2+\n\n"),
        (r#""\n\n""#, "|2+\n\n\n"),
        (r#""\na""#, "|2-\n\n  a\n"),
        (r#""\n\na\n""#, "|2\n\n\n  a\n"),
        (r#"" a\nb""#, "|2-\n   a\n  b\n"),
        (r#""  a\n b\n""#, "|2\n    a\n   b\n"),
        (r#""a\n  b\n""#, "|\n  a\n    b\n"),
        (r#""a\n\nb""#, "|-\n  a\n\n  b\n"),
        (r#""a \nb""#, "\"a \\nb\"\n"),
        (r#""a\nb ""#, "\"a\\nb \"\n"),
        (r#""a\r\nb\r\n""#, "\"a\\r\\nb\\r\\n\"\n"),
        (r#""a\tb\nc""#, "\"a\\tb\\nc\"\n"),
        (r#""a\n\tb""#, "\"a\\n\\tb\"\n"),
        (r#""- a\n# b\n""#, "|\n  - a\n  # b\n"),
        (r#""a\n😀""#, "\"a\\n\\U0001F600\"\n"),
        (r#""a: b\nc: d\n""#, "|\n  a: b\n  c: d\n"),
    ]);
}

#[test]
fn long_lines_are_folded_at_single_spaces() {
    check(&[
        (
            r#""lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore\n",
        ),
        (
            r#""lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore\n",
        ),
        (
            r#""'lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore: lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "'''lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore: lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore'\n",
        ),
        (
            r#""a: lorem  ipsum  dolor  sit  amet  consectetur  adipiscing  elit  sed  do  eiusmod  tempor  incididunt  ut  labore""#,
            "'a: lorem  ipsum  dolor  sit  amet  consectetur  adipiscing  elit  sed  do  eiusmod  tempor  incididunt  ut  labore'\n",
        ),
        (
            r#""lorem-ipsum-dolor-sit-amet-consectetur-adipiscing-elit-sed-do-eiusmod-tempor-incididunt-ut-laborelorem-ipsum-dolor-sit-amet-consectetur-adipiscing-elit-sed-do-eiusmod-tempor-incididunt-ut-labore""#,
            "lorem-ipsum-dolor-sit-amet-consectetur-adipiscing-elit-sed-do-eiusmod-tempor-incididunt-ut-laborelorem-ipsum-dolor-sit-amet-consectetur-adipiscing-elit-sed-do-eiusmod-tempor-incididunt-ut-labore\n",
        ),
        (
            r#""lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore x""#,
            "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore x\n",
        ),
        (
            r#""yesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyes lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "yesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyesyes\n  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore\n",
        ),
        (
            r#""\tlorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "\"\\tlorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore\"\n",
        ),
        (
            r#""\tlorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore  ""#,
            "\"\\tlorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore  \"\n",
        ),
        (
            r#""\"lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore 'lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "'\"lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore ''lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore'\n",
        ),
        (
            r#"" lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "' lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n  ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n  tempor incididunt ut labore'\n",
        ),
        (
            r#""lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore\nlorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore""#,
            "|-\n  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore\n  lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore\n",
        ),
        (
            r#""xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y z""#,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y\n  z\n",
        ),
        (
            r#""xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y z""#,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y\n  z\n",
        ),
        (
            r#""xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y z""#,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n  y z\n",
        ),
    ]);
}

#[test]
fn numbers_are_written_by_way_of_json() {
    check(&[
        ("0", "0\n"),
        ("-1", "-1\n"),
        ("80", "80\n"),
        ("1000000", "1000000\n"),
        ("9007199254740992", "9007199254740992\n"),
        ("9223372036854775807", "9223372036854775807\n"),
        ("-9223372036854775808", "-9223372036854775808\n"),
        ("9223372036854775808", "9223372036854775808\n"),
        ("18446744073709551615", "18446744073709551615\n"),
        ("1.5", "1.5\n"),
        ("0.1", "0.1\n"),
        ("1000000.0", "1000000\n"),
        ("1234567.5", "1.2345675e+06\n"),
        ("123456.5", "123456.5\n"),
        ("1e+20", "1e+20\n"),
        ("1e+21", "1e+21\n"),
        ("1e-05", "1e-05\n"),
        ("1e-07", "1e-07\n"),
        ("0.0001", "0.0001\n"),
        ("1.234e-05", "1.234e-05\n"),
        ("-0.0", "0\n"),
        ("5e-324", "5e-324\n"),
        ("1.7976931348623157e+308", "1.7976931348623157e+308\n"),
        ("944199103686736.2", "9.441991036867362e+14\n"),
        ("1e+19", "10000000000000000000\n"),
        ("1.8446744073709552e+19", "1.8446744073709552e+19\n"),
    ]);
}

#[test]
fn collections_are_in_block_style_unless_empty() {
    check(&[
        ("{}", "{}\n"),
        ("[]", "[]\n"),
        ("[[]]", "- []\n"),
        ("[{}]", "- {}\n"),
        (r#"{"a": {}}"#, "a: {}\n"),
        (r#"{"a": []}"#, "a: []\n"),
        (r#"{"a": null}"#, "a: null\n"),
        (r#"{"a": [1, [2, [3]], {"b": 4, "c": 5}]}"#, "a:\n- 1\n- - 2\n  - - 3\n- b: 4\n  c: 5\n"),
        (r#"[{"a": [1], "b": {"c": [2]}}]"#, "- a:\n  - 1\n  b:\n    c:\n    - 2\n"),
        (r#"[[{"a": 1}]]"#, "- - a: 1\n"),
        (r#"{"a": {"b": {"c": true}}}"#, "a:\n  b:\n    c: true\n"),
        (r#"[null, false, "x"]"#, "- null\n- false\n- x\n"),
        ("null", "null\n"),
        ("true", "true\n"),
        (r#""x""#, "x\n"),
    ]);
}

#[test]
fn keys_are_in_natural_order() {
    check(&[
        (
            r#"{"a10": 0, "a2": 0, "a1": 0, "a01": 0, "a100": 0, "a": 0}"#,
            "a: 0\na1: 0\na01: 0\na2: 0\na10: 0\na100: 0\n",
        ),
        (
            r#"{"b": 0, "A": 0, "a": 0, "B": 0, "_": 0, "1": 0, "-": 0, "": 0}"#,
            "\"\": 0\n'-': 0\n_: 0\n\"1\": 0\nA: 0\nB: 0\na: 0\nb: 0\n",
        ),
        (
            r#"{"a-b": 0, "ab": 0, "a.b": 0, "a/b": 0, "a b": 0, "a_b": 0}"#,
            "a b: 0\na-b: 0\na.b: 0\na/b: 0\na_b: 0\nab: 0\n",
        ),
        (
            r#"{"é": 0, "e": 0, "z": 0, "日": 0, "1é": 0, "ä2": 0, "ä10": 0}"#,
            "1é: 0\ne: 0\nz: 0\nä2: 0\nä10: 0\né: 0\n日: 0\n",
        ),
        (
            r#"{"v1": 0, "v1beta1": 0, "v1alpha1": 0, "v2": 0, "v10": 0}"#,
            "v1: 0\nv10: 0\nv1alpha1: 0\nv1beta1: 0\nv2: 0\n",
        ),
        (
            r#"{"100": 0, "10": 0, "1": 0, "001": 0, "01": 0, "0": 0, "00": 0}"#,
            "\"0\": 0\n\"00\": 0\n\"1\": 0\n\"01\": 0\n\"001\": 0\n\"10\": 0\n\"100\": 0\n",
        ),
        (r#"{"k8s.io/x": 0, "k8s.io/a": 0, "k8s": 0}"#, "k8s: 0\nk8s.io/a: 0\nk8s.io/x: 0\n"),
    ]);
}

#[test]
fn what_go_does_not_write_so_that_it_reads_back_is_written_as_go_writes_it() {
    // Both found by fuzzing; Helm's `toYaml` gives the same.
    for (json, expected) in [(r"[-0.0]", "- 0\n"), (r#"{"<<":1}"#, "<<: 1\n")] {
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(to_string(&value), expected);
        assert_ne!(parse(expected), Ok(value));
    }
}

#[test]
fn keys_are_quoted_as_values_are() {
    check(&[
        (r#"{"": 0}"#, "\"\": 0\n"),
        (r#"{"yes": 0}"#, "\"yes\": 0\n"),
        (r#"{"1": 0}"#, "\"1\": 0\n"),
        (r#"{"a b": 0}"#, "a b: 0\n"),
        (r#"{"a: b": 0}"#, "'a: b': 0\n"),
        ("{\"#\": 0}", "'#': 0\n"),
        (r#"{"é": 0}"#, "é: 0\n"),
        (r#"{"😀": 0}"#, "\"\\U0001F600\": 0\n"),
        (r#"{"a\tb": 0}"#, "\"a\\tb\": 0\n"),
        (r#"{"- ": 0}"#, "'- ': 0\n"),
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": 0}"#,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: 0\n",
        ),
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": 0}"#,
            "? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n: 0\n",
        ),
        (r#"{"a\nb": 0}"#, "? |-\n  a\n  b\n: 0\n"),
        (r#"{"a\n": 0}"#, "? |\n  a\n: 0\n"),
        (r#"{"?": 0}"#, "'?': 0\n"),
        (r#"{"a'b": 0}"#, "a'b: 0\n"),
        (r#"{": ": 0}"#, "': ': 0\n"),
    ]);
}

#[test]
fn long_keys_take_lists_and_maps_behind_a_colon() {
    check(&[
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": [1, 2]}"#,
            "? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n: - 1\n  - 2\n",
        ),
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": {"a": 1, "b": 2}}"#,
            "? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n: a: 1\n  b: 2\n",
        ),
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": []}"#,
            "? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n: []\n",
        ),
        (r#"{"a\nb": {"c": ["d"]}}"#, "? |-\n  a\n  b\n: c:\n  - d\n"),
        (
            r#"[{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": ["a"]}]"#,
            "- ? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n  : - a\n",
        ),
        (
            r#"{"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx y": "z"}"#,
            "? xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n  y\n: z\n",
        ),
    ]);
}

#[test]
fn nested_long_strings_fold_at_their_indentation() {
    check(&[
        (
            r#"{"a": {"b": "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"}}"#,
            "a:\n  b: lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor\n    incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed\n    do eiusmod tempor incididunt ut labore\n",
        ),
        (
            r#"[["lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"]]"#,
            "- - lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt\n    ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod\n    tempor incididunt ut labore\n",
        ),
        (
            r#"{"a": ["'lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"]}"#,
            "a:\n- '''lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor\n  incididunt ut labore lorem ipsum dolor sit amet consectetur adipiscing elit sed\n  do eiusmod tempor incididunt ut labore'\n",
        ),
        (r#"{"a": {"b": "c\nd\n"}}"#, "a:\n  b: |\n    c\n    d\n"),
        (r#"[{"a": "b\n"}, "c\nd"]"#, "- a: |\n    b\n- |-\n  c\n  d\n"),
        (r#"{"a": ["\n  b\n"]}"#, "a:\n- |2\n\n    b\n"),
    ]);
}
