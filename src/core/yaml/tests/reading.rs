use serde_json::Value;

use crate::core::yaml::{Error, parse};

/// Inputs and what `YAMLToJSON` of `sigs.k8s.io/yaml` v1.6.0 makes of them.
fn check(table: &[(&str, &str)]) {
    for (text, expected) in table {
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn booleans_are_those_of_yaml_1_1() {
    check(&[
        (
            "[y, Y, yes, Yes, YES, on, On, ON, true, True, TRUE]",
            "[true,true,true,true,true,true,true,true,true,true,true]",
        ),
        (
            "[n, N, no, No, NO, off, Off, OFF, false, False, FALSE]",
            "[false,false,false,false,false,false,false,false,false,false,false]",
        ),
        ("[yEs, oN, tRUE, nO, 'yes', \"no\"]", r#"["yEs","oN","tRUE","nO","yes","no"]"#),
    ]);
}

#[test]
fn null_has_four_words_and_nothing() {
    check(&[
        ("[~, null, Null, NULL, nULL]", r#"[null,null,null,null,"nULL"]"#),
        ("a:\nb: ''\n", r#"{"a":null,"b":""}"#),
        ("- \n-\n", "[null,null]"),
        ("", "null"),
        ("# only a comment\n", "null"),
        ("---\n", "null"),
        ("---\n...\n", "null"),
    ]);
}

#[test]
fn integers_come_in_all_of_go_s_bases() {
    check(&[
        (
            "[0777, 0o17, 0x1F, 0X1f, 0b11, 0B1, -0x10, +5, 00, 0o, 08, 09.5, 0b2]",
            r#"[511,15,31,31,3,1,-16,5,0,"0o",8,9.5,"0b2"]"#,
        ),
        ("[1_000, 1__0, -_1, _1, 0x_1F, +-1, 0b-1, -0b1, 0-0]", r#"[1000,10,-1,"_1",31,"+-1",-1,-1,"0-0"]"#),
        (
            "[9223372036854775807, 9223372036854775808, 18446744073709551615, 18446744073709551616, -9223372036854775808, -9223372036854775809, +9223372036854775808]",
            "[9223372036854775807,9223372036854775808,18446744073709551615,18446744073709552000,-9223372036854775808,-9223372036854776000,9223372036854776000]",
        ),
    ]);
}

#[test]
fn floats_without_a_fraction_become_integers() {
    check(&[
        (
            "[1.0, 1e3, 1E+03, 12e03, 1e20, 1e21, -0.0, 0.0, 1.5e1]",
            "[1,1000,1000,12000,100000000000000000000,1e+21,-0,0,15]",
        ),
        (
            "[.5, -.5, +.5, 5., .5e2, .5_0, ._5, 1e-7, 1.5, ., .e3, 1e400, 1e, e5, 1.2.3, 1_0.5]",
            r#"[0.5,-0.5,0.5,5,50,0.5,"._5",1e-7,1.5,".",".e3","1e400","1e","e5","1.2.3",10.5]"#,
        ),
        ("[944199103686736.2, 123456789012345678]", "[944199103686736.2,123456789012345678]"),
    ]);
}

#[test]
fn dates_and_base_60_stay_strings() {
    check(&[(
        "[2020-01-01, 2001-12-14 21:59:43.10, 2001-12-14T21:59:43Z, 1:20, 190:20:30]",
        r#"["2020-01-01","2001-12-14 21:59:43.10","2001-12-14T21:59:43Z","1:20","190:20:30"]"#,
    )]);
}

#[test]
fn keys_become_strings() {
    check(&[(
        "yes: a\n1: b\n0x10: c\n1.5: d\n1e9: e\n1.23456789: f\n.inf: g\n2020-01-01: h\n? x\n: i\n'': j\n",
        r#"{"":"j",".inf":"g","1":"b","1.2345679":"f","1.5":"d","16":"c","1e+09":"e","2020-01-01":"h","true":"a","x":"i"}"#,
    )]);
}

#[test]
fn the_last_of_equal_keys_wins() {
    check(&[("a: 1\nb: 2\na: 3\n", r#"{"a":3,"b":2}"#), ("true: 1\nyes: 2\n", r#"{"true":2}"#)]);
}

#[test]
fn merge_keys_take_effect_where_they_stand() {
    check(&[
        ("x: &x {a: 1, b: 2}\nz:\n  a: 5\n  <<: *x\n  b: 3\n", r#"{"x":{"a":1,"b":2},"z":{"a":1,"b":3}}"#),
        ("- &x {a: 1}\n- &z {a: 2, b: 2}\n- {<<: [*x, *z], c: 3}\n", r#"[{"a":1},{"a":2,"b":2},{"a":1,"b":2,"c":3}]"#),
        ("a: {<<: {b: 1}}\n", r#"{"a":{"b":1}}"#),
        ("'<<': 1\n", r#"{"<<":1}"#),
        ("a: <<\n", r#"{"a":"<<"}"#),
        ("- &x {a: &i {b: 1}}\n- {<<: *x, a: {c: 1}}\n", r#"[{"a":{"b":1}},{"a":{"c":1}}]"#),
    ]);
}

#[test]
fn aliases_repeat_what_they_name() {
    check(&[
        ("a: &x [1, {b: 2}]\nc: *x\n", r#"{"a":[1,{"b":2}],"c":[1,{"b":2}]}"#),
        ("a: &x 1\nb: &x 2\nc: *x\n", r#"{"a":1,"b":2,"c":2}"#),
        ("? &k key\n: *k\n", r#"{"key":"key"}"#),
        ("- &a a\n- *a : b\n", r#"["a",{"a":"b"}]"#),
    ]);
}

#[test]
fn tags_say_what_a_scalar_is() {
    check(&[
        (
            "[!!str 12, !!int '3', !!float 3, !!bool 'yes', !!null '', !!binary aGVsbG8=, !!timestamp 2020-01-01, ! 12, !own 12, !!set 12]",
            r#"["12",3,3,true,null,"hello","2020-01-01","12","12","12"]"#,
        ),
        ("!!map {a: !<tag:yaml.org,2002:str> 1}", r#"{"a":"1"}"#),
        ("%TAG !k! tag:yaml.org,2002:\n---\n!k!str 5\n", r#""5""#),
        ("a: !!str\nb: !!null\n", r#"{"a":"","b":null}"#),
        ("!!binary //8=\n", r#""\ufffd\ufffd""#),
    ]);
}

#[test]
fn block_scalars_keep_or_fold_lines() {
    check(&[
        ("a: |\n  x\n   y\n\n  z\n\n\nb: 1\n", r#"{"a":"x\n y\n\nz\n","b":1}"#),
        ("a: |-\n  x\n\n", r#"{"a":"x"}"#),
        ("a: |+\n  x\n\n\nb: 1\n", r#"{"a":"x\n\n\n","b":1}"#),
        ("a: >\n  x\n  y\n\n  z\n   more\n   lines\n  end\n", r#"{"a":"x y\nz\n more\n lines\nend\n"}"#),
        ("a: >-\n  x\n  y\n", r#"{"a":"x y"}"#),
        ("a: |2\n   x\n  y\n", r#"{"a":" x\ny\n"}"#),
        ("a: |1-\n  x\n", r#"{"a":" x"}"#),
        ("a: |\nb: 1\n", r#"{"a":"","b":1}"#),
        ("a: | # comment\n  x\n", r#"{"a":"x\n"}"#),
        ("a: |\n  x", r#"{"a":"x"}"#),
        ("- |\n x\n- >\n\n x\n", r#"["x\n","\nx\n"]"#),
        ("a: |\n\n\n  x\n", r#"{"a":"\n\nx\n"}"#),
        ("a: |\n  x\n # comment\nb: 1\n", r#"{"a":"x\n","b":1}"#),
        ("|\n x\n", r#""x\n""#),
    ]);
}

#[test]
fn plain_scalars_may_span_lines() {
    check(&[
        ("a: b\n  c\n\n  d\ne: f\n", r#"{"a":"b c\nd","e":"f"}"#),
        ("a b: c d\n", r#"{"a b":"c d"}"#),
        ("a: b#c #d\n", r#"{"a":"b#c"}"#),
        ("a: http://x/?y=z&a=b\n", r#"{"a":"http://x/?y=z&a=b"}"#),
        ("- a\n  - b\n", r#"["a - b"]"#),
        ("a: -b\nc: ?d\ne: :f\n", r#"{"a":"-b","c":"?d","e":":f"}"#),
        ("a: b:c", r#"{"a":"b:c"}"#),
    ]);
}

#[test]
fn quoted_scalars_may_span_lines_at_any_column() {
    check(&[
        ("a: 'b\nc'\n", r#"{"a":"b c"}"#),
        ("a:\n  b: \"c\n\n d\"\n", r#"{"a":{"b":"c\nd"}}"#),
        ("'it''s'", r#""it's""#),
        ("\"a\\tb\\u00e9\\x41\\U0001F600\"", "\"a\\tbéA😀\""),
        ("\"a\\\n   b\"", r#""ab""#),
        ("\"a \n b  \"", r#""a b  ""#),
        ("'a\n\n\nb'", r#""a\n\nb""#),
        (
            "\"\\0\\a\\b\\t\\n\\v\\f\\r\\e\\ \\\"\\'\\\\\\N\\_\\L\\P\"",
            "\"\\u0000\\u0007\\b\\t\\n\\u000b\\f\\r\\u001b \\\"'\\\\\u{85}\u{a0}\\u2028\\u2029\"",
        ),
    ]);
}

#[test]
fn flow_collections_may_close_at_any_column() {
    check(&[
        ("a: {\n  b: 1\n}\nc: [\n1,\n2,\n]\n", r#"{"a":{"b":1},"c":[1,2]}"#),
        ("{a: b, c, d: , 'e':f, \"g\": h}", r#"{"a":"b","c":null,"d":null,"e":"f","g":"h"}"#),
        ("[a: b, ? c : d, e]", r#"[{"a":"b"},{"c":"d"},"e"]"#),
        ("{a:b}", r#"{"a:b":null}"#),
        ("[a,b,]", r#"["a","b"]"#),
        ("{a: [b, {c: d}], }", r#"{"a":["b",{"c":"d"}]}"#),
        ("[-1]", "[-1]"),
        ("{? a : b}", r#"{"a":"b"}"#),
    ]);
}

#[test]
fn lists_need_no_indentation_under_a_key() {
    check(&[
        ("a:\n- b\n- c: d\n  e: f\ng: h\n", r#"{"a":["b",{"c":"d","e":"f"}],"g":"h"}"#),
        ("a:\n  - - b\n    - c\n  -\n    - d\n", r#"{"a":[["b","c"],["d"]]}"#),
        ("-\n- \n- a\n", r#"[null,null,"a"]"#),
        ("a: !!seq\n- b\n", r#"{"a":["b"]}"#),
    ]);
}

#[test]
fn tabs_separate_but_never_indent() {
    check(&[
        ("a:\tb\n", r#"{"a":"b"}"#),
        ("a: 'x\ty'\n", r#"{"a":"x\ty"}"#),
        ("a: x\ty\n", r#"{"a":"x\ty"}"#),
        ("{a:\tb}\n", r#"{"a":"b"}"#),
    ]);
}

#[test]
fn only_the_first_document_counts() {
    check(&[
        ("a: 1\n---\nb: 2\n", r#"{"a":1}"#),
        ("--- a\n--- b\n", r#""a""#),
        ("a\n...\n@\n", r#""a""#),
        ("%YAML 1.1\n---\na: 1\n", r#"{"a":1}"#),
        ("---\na: 1\n...\n---\n: ][\n", r#"{"a":1}"#),
    ]);
}

#[test]
fn line_ends_of_other_systems_are_line_ends() {
    check(&[
        ("a: 1\r\nb: |\r\n  x\r\n  y\r\n", r#"{"a":1,"b":"x\ny\n"}"#),
        ("a: 1\rb: 2\r", r#"{"a":1,"b":2}"#),
        ("\u{feff}a: 1\n", r#"{"a":1}"#),
        ("a: \"x\u{85}y\"\n", r#"{"a":"x y"}"#),
    ]);
}

#[test]
fn what_go_refuses_is_refused_with_line_and_column() {
    let table = [
        ("a: b: c", "line 1, column 5: mapping values are not allowed in this context"),
        ("\ta: b", "line 1, column 1: found character '\\t' that cannot start any token"),
        ("a:\n- b\n-\tc", "line 3, column 2: found character '\\t' that cannot start any token"),
        ("a: 'b", "line 1, column 4: found unexpected end of stream: the quote isn't closed"),
        ("a: \"\\q\"", "line 1, column 4: found unknown escape character in a quoted scalar"),
        ("a: @b", "line 1, column 4: found character '@' that cannot start any token"),
        ("a: `b", "line 1, column 4: found character '`' that cannot start any token"),
        ("a: %b", "line 1, column 4: found character '%' that cannot start any token"),
        ("a: [b", "line 1, column 6: did not find expected ',' or ']'"),
        ("a: {b: c", "line 1, column 9: did not find expected ',' or '}'"),
        ("a: ]", "line 1, column 4: did not find expected node content"),
        ("- a\nb", "line 2, column 1: could not find expected ':'"),
        ("a: 'b' c", "line 1, column 8: did not find expected key"),
        ("a: *b", "line 1, column 4: unknown anchor 'b' referenced"),
        ("a: &a [*a]", "line 1, column 8: anchor's value contains itself"),
        ("? [a]\n: b", "line 1, column 3: invalid map key: a list or a map"),
        ("null: a", "line 1, column 1: unsupported map key: \"null\""),
        ("a: .inf", "line 1, column 4: JSON has no infinite numbers and no .nan"),
        ("a: .nan", "line 1, column 4: JSON has no infinite numbers and no .nan"),
        ("18446744073709551615: a", "line 1, column 1: unsupported map key: \"18446744073709551615\""),
        ("a: !!int x", "line 1, column 10: cannot decode \"x\" as a !!int"),
        ("a: !!binary '***'", "line 1, column 13: !!binary value contains invalid base64 data"),
        ("<<: 1", "line 1, column 5: map merge requires map or sequence of maps as the value"),
        ("<<: [1]", "line 1, column 6: map merge requires map or sequence of maps as the value"),
        ("%YAML 1.2\n---\na", "line 1, column 1: found incompatible YAML document"),
        ("%FOO\n---\na", "line 1, column 1: found unknown directive name"),
        ("a: |0\n x", "line 1, column 4: found an indentation indicator equal to 0"),
        (
            "a: |x\n y",
            "line 1, column 4: did not find expected comment or line break after a block scalar's indicators",
        ),
        ("a: |\n\t x", "line 2, column 1: found a tab character where an indentation space is expected"),
        ("a: \u{7}", "line 1, column 4: control characters are not allowed (U+0007)"),
        ("a: !e!x y", "line 1, column 4: found undefined tag handle"),
        ("a: b\n  c: d", "line 2, column 4: mapping values are not allowed in this context"),
        ("...", "line 1, column 1: did not find expected node content"),
        ("a:\n  - b\n c", "line 3, column 2: did not find expected key"),
        ("\"\\ud800\"", "line 1, column 1: found invalid Unicode character escape code"),
        ("\"\\u12\"", "line 1, column 1: did not find expected hexdecimal number"),
        ("- [a, b\n- c", "line 2, column 4: did not find expected ',' or ']'"),
    ];
    for (text, expected) in table {
        assert_eq!(parse(text).map_err(|error: Error| error.to_string()), Err(expected.to_owned()), "{text}");
    }
}
