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
fn templates_render_to_what_helm_renders() {
    for (template, text) in [
        ("{{ chunk -5 (list 1) }}", "[[1]]"),
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
    ] {
        assert!(render(template).is_err(), "{template}: {:?}", render(template));
    }
}
