//! Differences that the comparison with Helm's own engine found, with what Helm 3.21.4 says.

use serde_json::json;

use super::super::{Capabilities, Release, RenderInput, render_text};

fn render(template: &str) -> Result<String, String> {
    let capabilities = Capabilities::default();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let input = RenderInput::new(Release::new("demo", "ns"), &capabilities, now);
    render_text("x.yaml", template, &json!({}), &input).map_err(|error| error.to_string())
}

#[test]
fn pretty_yaml_is_that_of_yaml_v3() {
    for (template, text) in [
        (
            r#"{{ toYamlPretty (dict "node-10" 1 "node-9" 2 "A" 3 "_b" 4 "a1b" 5 "a1_" 6 "a10" 7) }}"#,
            "_b: 4\nA: 3\na1b: 5\na1_: 6\na10: 7\nnode-9: 2\nnode-10: 1",
        ),
        (
            r#"{{ toYamlPretty (dict "conf" "server {\n\tlisten 80;\n}\n" "t" "a\tb") }}"#,
            "conf: |\n  server {\n  \tlisten 80;\n  }\nt: \"a\\tb\"",
        ),
        (
            r#"{{ toYamlPretty (dict "k1\nk2" "v" "b" (dict "x\ny" (dict "c" 1 "d" (list 1 2)))) }}"#,
            "b:\n  ? |-\n    x\n    y\n  : c: 1\n    d:\n      - 1\n      - 2\n? |-\n  k1\n  k2\n: v",
        ),
        (r#"{{ toYamlPretty (dict "a\rb" (list 1 "x\ny")) }}"#, "? \"a\\rb\"\n: - 1\n  - |-\n    x\n    y"),
        (
            r#"{{ toYamlPretty (list "\tx\ny" "a\n\tb " "x\u0085\ty\n") }}"#,
            "- |-\n  \tx\n  y\n- \"a\\n\\tb \"\n- \"x\\N\\ty\\n\"",
        ),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn templates_render_to_what_helm_renders() {
    for (template, text) in [
        ("{{ chunk -5 (list 1) }}", "[[1]]"),
        (
            r#"{{ printf "%+q|%q|%#q|%-6q|%06q|%6c|%06c" 233 233 233 233 233 65 65 }}"#,
            "'\\u00e9'|'é'|'é'|'é'   |000'é'|     A|00000A",
        ),
        (
            r#"{{ printf "%U|%#U|%.6U|%8U|%08U|%#10U" -3 233 65 65 65 65 }}"#,
            "U+FFFFFFFFFFFFFFFD|U+00E9 'é'|U+000041|  U+0041|  U+0041|U+0041 'A'",
        ),
        (
            r#"{{ printf "%x|%.17x|%#x|%#.3x|%#.3X|%.1x" 0.1 0.5 1.5 1.5 1.5 1.999 }}"#,
            "0x1.999999999999ap-04|0x1.00000000000000000p-01|0x1.8000p+00|0x1.800p+00|0X1.800P+00|0x1.0p+01",
        ),
        (r#"{{ printf "%8b|%-30b|%b" 1.5 0.1 3 }}"#, "6755399441055744p-52|7205759403792794p-56          |11"),
        (
            r#"{{ printf "%x|%X|% x|%#x" (list 1.5 "a") (list 1.5) (list "abc" 2) (dict "a" 1.5) }}"#,
            "[0x1.8p+00 61]|[0X1.8P+00]|[61 62 63  2]|map[0x61:0x1.8000p+00]",
        ),
        (r#"{{ printf "%.2T|%6.2T" "a" "a" }}"#, "st|    st"),
        (r#"{{ "9_05E_5" | float64 }}|{{ "9_05E5" | float64 }}|{{ "0x_1p4" | float64 }}"#, "0|9.05e+07|16"),
        (
            r#"{{ toDate "15:Mon Jan" "3:tue jUL" }}|{{ toDate "03" "13" }}|{{ toDate "06Z07:00" "70+25:00" }}"#,
            "0000-07-01 03:00:00 +0000 UTC|0001-01-01 00:00:00 +0000 UTC|0001-01-01 00:00:00 +0000 UTC",
        ),
        (
            r#"{{ toYamlPretty (list "x\ny" (list "x\ny") (dict "k" (list "x\ny"))) }}"#,
            "- |-\n  x\n  y\n- - |-\n    x\n    y\n- k:\n    - |-\n      x\n      y",
        ),
        (
            r#"{{ printf "%[1]2d|%[1].1d|%[1].*d|%.[1]d|%[1]d|%[1][1]d" 3 }}"#,
            "%!d(BADINDEX)|%!d(BADINDEX)|%!d(BADINDEX)|3|3|%![(int=3)1]d",
        ),
        (r#"{{ printf "%T|%8T|" nil .nope }}"#, "<nil>|   <nil>|"),
        (
            r#"{{ printf "%+v|%+v|%+d|%+v|%+8v|%+v" (add 0) 1.5 5 "s" (list 1 2.5) (dict "a" 1) }}"#,
            "0|1.5|+5|s|[       1      2.5]|map[a:1]",
        ),
        (
            r#"{{ printf "%6.2v|%08.3f|%-6v|%x" (list 1 "a" nil) (list nil 1.0) (dict "a" nil) (list nil) }}"#,
            "[    01      a <nil>]|[<nil> 0001.000]|map[a     :<nil>]|[<nil>]",
        ),
        (
            r#"{{ toYamlPretty (dict "long" (repeat 18 "word ") "list" (list "x" nil)) }}"#,
            "list:\n  - x\n  - null\nlong: 'word word word word word word word word word word word word word word word word word word '",
        ),
        ("{{ chunk -5 (list 1 2 3) }}{{ chunk -1 (list 1 2) }}", "[][]"),
        ("{{ sortAlpha nil }}{{ any (sortAlpha nil) }}", "[<nil>]true"),
        (
            r#"{{ b32dec "1" }}|{{ b32dec "MY" }}|{{ b32dec "MY=====" }}|{{ b32dec "MY======" }}|{{ b32dec "<a href=\"x\">" }}"#,
            "illegal base32 data at input byte 0|illegal base32 data at input byte 0|illegal base32 data at input byte 7|f|illegal base32 data at input byte 0",
        ),
        (
            r#"{{ b64dec "aGVsbG8==" }}|{{ b64dec "aGVsbG8" }}|{{ b64dec "aGVsbG9=" }}|{{ b64dec "!!" }}|{{ b64dec "aGVs\nbG8=" }}|{{ b64dec "YQ=x" }}"#,
            "illegal base64 data at input byte 8|illegal base64 data at input byte 4|hello|illegal base64 data at input byte 0|hello|illegal base64 data at input byte 2",
        ),
        (
            r#"{{ urlquery nil }}|{{ html nil "a" }}|{{ js nil }}|{{ print nil }}"#,
            "%3Cno+value%3E|&lt;no value&gt;a|\\u003Cno value\\u003E|<nil>",
        ),
        (
            r#"{{ toDate "2006-01-02T15:04:05Z07:00" "2024-07-01T12:34:56.789+02:00" }}|{{ toDate "2006-01-02T15:04:05Z07:00" "2024-07-01T12:34:56-09:30" | date "MST" }}"#,
            "2024-07-01 12:34:56.789 +0200 +0200|UTC",
        ),
        (
            r#"{{ printf "%.0f|%5t|%-10q|%08.3f" "a" 0.0 true "" }}"#,
            "%!f(string=)|%!t(float64=    0)|%!q(bool=true      )|%!f(string=00000000)",
        ),
        (
            "{{ printf \"%#x\" (list 1 nil \"a\") }}|{{ printf \"%d\" (list nil) }}|{{ printf \"%d\" nil }}",
            "[0x1 <nil> 0x61]|[<nil>]|%!d(<nil>)",
        ),
        (
            "{{ printf \"%#o\" \"demo\" }}|{{ printf \"%x %X\" 1.5 8080.0 }}|{{ printf \"%x\" (list 3.0 -1e6 0.1) }}",
            "%!o(string=demo)|0x1.8p+00 0X1.F9P+12|[0x1.8p+01 -0x1.e848p+19 0x1.999999999999ap-04]",
        ),
        (r#"{{ printf "%x" (toDate "2006" "2024") }}"#, "323032342d30312d30312030303a30303a3030202b3030303020555443"),
        (
            r#"{{ regexMatch "a**" "a" }}|{{ regexMatch "a+?b??" "ab" }}|{{ regexMatch "(?:a)*" "a" }}|{{ regexMatch "[*+]+" "*" }}|{{ regexMatch "a{2}?" "aa" }}"#,
            "false|true|true|true|true",
        ),
        (r#"{{ (urlParse "http://u:p%20w@h%C3%B6st/").userinfo }}"#, "u:p%20w"),
        (
            r#"{{ toToml (dict "a" 1234567.0 "b" 100000.0 "c" 0.00001 "d" 123456.5 "e" 1e20) }}"#,
            "a = 1.234567e+06\nb = 100000.0\nc = 1e-05\nd = 123456.5\ne = 1e+20\n",
        ),
        (
            r#"{{ range list "1_000" "0x1p4" "0x1F" "1e999" "1__0" "_1" "inf" "-nan" "5." }}{{ float64 . }} {{ end }}"#,
            "1000 16 0 0 0 0 +Inf 0 5 ",
        ),
        (r#"{{ camelcase "-" }}|{{ camelcase "--" }}|{{ camelcase "a" }}|{{ camelcase "-a" }}"#, "--|---|A|-A"),
        (r#"{{ nospace "grüße ß" }}|{{ nospace "grüße" }}|{{ initials "über alles" }}"#, "grÃ¼ÃeÃ|grüße|Ãa"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn nil_numbers_and_verbs_are_as_helm_has_them() {
    for (template, text) in [
        (r#"{{ divf 0 -7 1e100 }}|{{ toYamlPretty (list (toDate "2006" "2024")) }}"#, "0|- 2024-01-01T00:00:00Z"),
        (
            r#"{{ toToml "" }}|{{ toToml 5 }}|{{ toToml (list "a" 1.5) }}|{{ toToml (list) }}|{{ toToml (semver "1.2.3") }}|{{ toToml (list (dict "a" 1)) }}"#,
            "\"\"|5|[\"a\", 1.5]|[]|\"1.2.3\"|toml: top-level values must be Go maps or structs",
        ),
        (r#"{{ toToml (dict "a" (fromJson "null") "b" (rest (list)) "c" 1) }}"#, "c = 1\n"),
        (
            r#"{{ fromJson "null" | toJson }}|{{ fromYaml "null" | toJson }}|{{ fromJsonArray "null" | toJson }}|{{ fromYamlArray "null" | toJson }}"#,
            "null|{}|null|[]",
        ),
        (
            r#"{{ concat | toJson }}|{{ rest (list) | toJson }}|{{ initial (list 1) | toJson }}|{{ regexFindAll "x" "a" -1 | toJson }}|{{ regexSplit "x" "a" 0 | toJson }}"#,
            "null|null|[]|null|null",
        ),
        (
            r#"{{ toYaml (dict "a" (rest (list))) }}|{{ toYamlPretty (dict "a" (rest (list)) "b" (fromJson "null")) }}"#,
            "a: null|a: []\nb: {}",
        ),
        (
            r#"{{ deepEqual (fromJson "null") (dict) }}|{{ eq (fromJson "null") nil }}|{{ eq nil (rest (list)) }}|{{ eq (fromJson "null") (dict) }}|{{ merge (fromJson "null") (dict "a" 1) }}"#,
            "false|true|true|false|map[a:1]",
        ),
        (
            r#"{{ deepCopy (fromJson "null") | toJson }}|{{ deepCopy (semver "1.2.3") }}|{{ deepCopy (list (semver "1.2.3")) }}"#,
            "null|0.0.0|[0.0.0]",
        ),
        (
            r#"{{ printf "%#v" (list 1 "a" nil) }}|{{ printf "%#v" (dict "a" 1.5) }}|{{ printf "%#v %#v" (rest (list)) (fromJson "null") }}"#,
            "[]interface {}{1, \"a\", interface {}(nil)}|map[string]interface {}{\"a\":1.5}|[]interface {}(nil) map[string]interface {}(nil)",
        ),
        (
            r#"{{ printf "%#g %#x %#X %#o" 0.5 0.0 1.5 -0.5 }}|{{ printf "%#q %#q" "a" "a\n" }}"#,
            "0.500000 0x0.0000p+00 0X1.8P+00 %!o(float64=-0.500000)|`a` \"a\\n\"",
        ),
        (r#"{{ b64dec "8J+O" }}|{{ b64dec "/w==" | toJson }}"#, "\u{fffd}\u{fffd}\u{fffd}|\"\\ufffd\""),
        (
            r#"{{ fromJson "0x1F" }}|{{ fromJson "'" }}|{{ fromJson "ü" }}|{{ fromJson "\\" }}"#,
            r"map[Error:invalid character 'x' after top-level value]|map[Error:invalid character '\'' looking for beginning of value]|map[Error:invalid character 'Ã' looking for beginning of value]|map[Error:invalid character '\\' looking for beginning of value]",
        ),
        (
            r"{{ toYaml (list 12345678901234567890.0 1234567890123456789.0 -1234567890123456789.0 9007199254740993.0) }}",
            "- 12345678901234567000\n- 1234567890123456800\n- -1234567890123456800\n- 9007199254740992",
        ),
        (
            r#"{{ printf "%#o %#o|%q %c|%.*f|%+q" 0 8 -1 -1 -7 1.5 "gü🎈" }}"#,
            r#"0 010|'�' �|%!(BADPREC)1.500000|"g\u00fc\U0001f388""#,
        ),
        (r#"{{ urlquery (b64dec "YSD/Yg==") }}"#, "a+%FFb"),
        ("{{ `a\r\nb\r` | len }}|{{ `\r` | quote }}", "3|\"\""),
        // Bytes that are no UTF-8 stay themselves.
        (
            r#"{{ $b := b64dec "IP8g" }}{{ trim $b | b64enc }}|{{ trimAll " " $b | b64enc }}|{{ tpl $b . | b64enc }}"#,
            "/w==|/w==|IP8g",
        ),
        (r#"{{ $b := b64dec "Yf9i" }}{{ trimPrefix "a" $b | b64enc }}|{{ trimSuffix "b" $b | b64enc }}"#, "/2I=|Yf8="),
        (r#"{{ $b := b64dec "Yf9i" }}{{ replace "a" "x" $b | b64enc }}|{{ replace $b "x" $b }}"#, "eP9i|x"),
        (
            r#"{{ $b := b64dec "Yf9i" }}{{ contains (b64dec "/w==") $b }}|{{ hasPrefix (b64dec "/g==") (b64dec "/w==") }}"#,
            "true|false",
        ),
        (
            r#"{{ join "-" (list (b64dec "/w==") 1) | b64enc }}|{{ toStrings (list (b64dec "/w==")) | first | b64enc }}"#,
            "/y0x|/w==",
        ),
        (
            r#"{{ range splitList "," (b64dec "YSz/LA==") }}{{ b64enc . }};{{ end }}{{ (splitn "," 2 (b64dec "YSz/LA=="))._1 | b64enc }}"#,
            "YQ==;/w==;;/yw=",
        ),
        (r#"{{ abbrev 5 (b64dec "/////////w==") | b64enc }}|{{ wrap 1 (b64dec "/yD/") | b64enc }}"#, "//8uLi4=|/wr/"),
        (r#"{{ range sortAlpha (list (b64dec "/w==") "z") }}{{ b64enc . }} {{ end }}"#, "eg== /w== "),
        (
            r#"{{ fromYaml (b64dec "YTog/w==") }}"#,
            "map[Error:error converting YAML to JSON: yaml: invalid leading UTF-8 octet]",
        ),
        (r#"{{ camelcase "a_ß" }}|{{ atoi "12345678901234567890" }}|{{ atoi "x" }}"#, "Aß|9223372036854775807|0"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

/// Helm works on the bytes; ours would be others.
#[test]
fn what_is_no_text_is_refused_where_it_would_change() {
    for call in [
        r#"tpl (printf "{{ 1 }}%s" $b) $"#,
        r#"regexReplaceAll "x" $b "y""#,
        r#"regexFind "." $b"#,
        r#"regexFindAll "." $b -1"#,
        r#"regexSplit "x" $b -1"#,
        "regexQuoteMeta $b",
        r#"replace "" "x" $b"#,
        r#"splitList "" $b"#,
        "snakecase $b",
    ] {
        let template = format!(r#"{{{{ $b := b64dec "Yf9i" }}}}{{{{ {call} }}}}"#);
        let error = render(&template).unwrap_err();
        assert!(error.contains("it is not in UTF-8"), "{call}: {error}");
    }
}

#[test]
fn what_helm_refuses_is_refused() {
    for template in [
        "{{ chunk -1 (list 1 2 3) }}",
        "{{ chunk 0 (list 1) }}",
        "{{ deepCopy nil }}",
        r#"{{ dig "a" true "" (dict) }}"#,
        r#"{{ regexFind "a**" "a" }}"#,
        r#"{{ regexFind "x{2}{3}" "x" }}"#,
        r#"{{ regexSplit "\\C" "a" 0 }}"#,
        r#"{{ urlParse "http://üser@host/" }}"#,
        "{{ toToml nil }}",
        r#"{{ addf "inf" 1 }}"#,
        r#"{{ set (fromJson "null") "a" 1 }}"#,
        r"{{ mustToYaml 1 }}",
        r"{{ if false }}{{ durationHours 1 }}{{ end }}",
        r#"{{ tpl "{{ durationHours 1 }}" . }}"#,
    ] {
        assert!(render(template).is_err(), "{template}: {:?}", render(template));
    }
}
