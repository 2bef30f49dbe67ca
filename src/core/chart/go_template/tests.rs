//! Semantics that a trial against Helm found, and hostile templates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value as Json, json};

use super::super::{
    Capabilities, Chart, Drawn, HelmVersion, Limits, Lookup, Release, RenderError, RenderInput, Seed, render_text,
};

fn values() -> Json {
    json!({
        "n": null, "empty": "", "zero": 0, "f": 1.5, "big": 1_000_000, "t": true, "s": "hello",
        "l": [1, "two", null, {"a": 1}], "sl": ["b", "a", "c", "a"],
        "m": {"a": 1, "b": {"c": 2}, "z": null},
    })
}

fn render_with(template: &str, change: impl FnOnce(&mut RenderInput<'_>)) -> Result<String, RenderError> {
    let capabilities = Capabilities::default();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut input = RenderInput::new(Release::new("demo", "ns"), &capabilities, now);
    input.seed = Some(Seed([1; 32]));
    change(&mut input);
    render_text("x.yaml", template, &values(), &input)
}

fn render(template: &str) -> Result<String, String> {
    render_with(template, |_| {}).map_err(|error| match error {
        RenderError::Parse(error) | RenderError::Template(error) => error.message.clone(),
        other => other.to_string(),
    })
}

#[test]
fn values_print_as_in_helm() {
    for (template, text) in [
        ("{{ .big }} {{ .f }} {{ .zero }} {{ .t }}", "1e+06 1.5 0 true"),
        ("{{ .l }} {{ .m }}", "[1 two <nil> map[a:1]] map[a:1 b:map[c:2] z:<nil>]"),
        ("{{ .n }}|{{ .nope }}|{{ (.nope).a }}|{{ $x := .nope }}{{ $x.a }}", "|||"),
        ("{{ toYaml .big }} {{ toJson .m }}", r#"1000000 {"a":1,"b":{"c":2},"z":null}"#),
        (
            r#"{{ printf "%d" .zero }} {{ 1234567.0 }} {{ 1_000 }} {{ 0x1F }} {{ 'a' }}"#,
            "%!d(float64=0) 1.234567e+06 1000 31 97",
        ),
        ("{{ range $k, $v := .m }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=map[c:2];z=<no value>;"),
    ] {
        let text = text.replace("<no value>", "");
        assert_eq!(render(template).as_deref(), Ok(text.as_str()), "{template}");
    }
}

#[test]
fn months_and_days_of_the_week_are_integers_with_names() {
    let of = |expression: &str| {
        render(&format!("{{{{ $t := toDate \"2006-01-02\" \"2020-02-03\" }}}}{{{{ {expression} }}}}"))
    };
    for (expression, text) in [
        ("$t.Month", "February"),
        ("$t.Weekday", "Monday"),
        ("$t.Month | int", "2"),
        ("$t.Weekday | int", "1"),
        ("add $t.Month 1", "3"),
        ("list $t.Month | toJson", "[2]"),
        ("toYaml (dict \"m\" $t.Month)", "m: 2"),
        (r#"printf "%02d %v %s %T" $t.Month $t.Month $t.Month $t.Month"#, "02 February February time.Month"),
        ("eq $t.Month 2", "true"),
        ("lt $t.Weekday 2", "true"),
        ("index (list 0 1 2 3) $t.Month", "2"),
        ("$t.Month.String", "February"),
        ("$t.Month | quote", "\"February\""),
        ("kindOf $t.Month", "int"),
        ("deepEqual $t.Month $t.Month", "true"),
        ("range $t.Month }}{{ . }} {{ end", "%!Month(0) January "),
        ("float64 $t.Month", "2"),
        ("toToml (dict \"m\" $t.Month)", "m = 2\n"),
        (r#"printf "%#v %+d" $t.Month $t.Month"#, "2 +2"),
        ("empty ($t.AddDate 0 0 -1).Weekday", "true"),
        ("int (($t.AddDate 0 0 1).Sub $t)", "0"),
        ("float64 (($t.AddDate 0 0 1).Sub $t)", "0"),
        ("eq (($t.AddDate 0 0 1).Sub $t) 86400000000000", "true"),
        (r#"printf "%e %*d" $t.Month $t.Month 7"#, "%!e(time.Month=2)  7"),
        ("$t.Compare $t", "0"),
        ("(($t.AddDate 0 0 1).Sub $t).Abs", "24h0m0s"),
    ] {
        assert_eq!(of(expression).as_deref(), Ok(text), "{expression}");
    }
    let refused = of("range $i, $e := $t.Month }}{{ end").unwrap_err();
    assert!(refused.contains("can't use February to iterate over more than one variable"), "{refused}");
    let refused = of("len $t.Month").unwrap_err();
    assert!(refused.contains("len of type time.Month"), "{refused}");
}

#[test]
fn control_flow_is_gos() {
    for (template, text) in [
        ("{{ range .sl }}{{ if eq . \"c\" }}{{ break }}{{ end }}{{ . }}{{ end }}", "ba"),
        ("{{ range .sl }}{{ if eq . \"a\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "bc"),
        ("{{ range 3 }}{{ . }}{{ else }}none{{ end }}{{ range 0 }}{{ else }}none{{ end }}", "012none"),
        ("{{ with .n }}a{{ else with .s }}{{ . }}{{ else }}c{{ end }}", "hello"),
        ("{{ if .n }}a{{ else if .zero }}b{{ else if .t }}c{{ else }}d{{ end }}", "c"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", "1"),
        ("a {{- /* c */ -}} b {{/* d */ -}} c", "ab c"),
        (
            "{{ define \"t\" }}[{{ . }}]{{ end }}{{ template \"t\" 1 }}{{ include \"t\" 2 }}{{ block \"b\" 3 }}<{{ . }}>{{ end }}",
            "[1][2]<3>",
        ),
        ("{{ `raw\\n` }}{{ \"\\u00e9\\x41\" }}", "raw\\néA"),
        ("{{ 1 | print | }}{{ (print 2 |) }}", "12"),
        ("{{ if true }}{{ $x := 1 }}a{{ else }}{{ $x }}{{ end }}", "a"),
        ("{{ range list 1 }}{{ $x := 1 }}a{{ else }}{{ if $x.y }}{{ $x = 2 }}{{ end }}{{ end }}", "a"),
        ("{{ if false }}{{ $x = 1 }}{{ $x }}{{ end }}", ""),
        ("{{ and .t .s }} {{ or .empty .zero \"d\" }} {{ .nope | default \"x\" }}", "hello d x"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn maps_are_changed_in_place() {
    for (template, text) in [
        ("{{ $_ := set .m \"new\" 1 }}{{ .m.new }}", "1"),
        (
            "{{ $d := dict \"a\" (dict \"x\" 1) }}{{ $_ := merge $d (dict \"a\" (dict \"x\" 2 \"y\" 3)) }}{{ $d }}",
            "map[a:map[x:1 y:3]]",
        ),
        ("{{ mergeOverwrite (dict \"a\" 1 \"l\" (list 1)) (dict \"a\" 0 \"l\" list) }}", "map[a:0 l:[]]"),
        ("{{ $c := deepCopy .m }}{{ $_ := set $c \"a\" 9 }}{{ .m.a }}{{ $c.a }}", "19"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn errors_are_gos() {
    for (template, message) in [
        ("{{ .n.x }}", "nil pointer evaluating interface {}.x (.n is nil)"),
        ("{{ .nope.x.y }}", "nil pointer evaluating interface {}.x (.nope is nil)"),
        ("{{ .s.x }}", "can't evaluate field x in type string"),
        ("{{ eq .zero 0 }}", "error calling eq: incompatible types for comparison: float64 and int"),
        ("{{ if false }}{{ nofunc }}{{ end }}", "function \"nofunc\" not defined"),
        ("{{ upper .zero }}", "wrong type for value; expected string; got float64"),
        ("{{ .n | upper }}", "invalid value; expected string"),
        ("{{ trunc \"a\" \"b\" }}", "expected int; found a"),
        ("{{ upper }}", "wrong number of args for upper: want 1 got 0"),
        ("{{ 1 | 2 }}", "non executable command in pipeline stage 2"),
        ("{{ print 1 | | print }}", "unexpected \"|\" in command"),
        ("{{ if false }}{{ $x := 1 }}{{ else }}{{ upper $x }}{{ end }}", "undefined variable: $x"),
        ("{{ if false }}{{ $x := 1 }}{{ else }}{{ $x.y }}{{ end }}", "undefined variable: $x"),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", "undefined variable \"$x\""),
        ("{{ $nope }}", "undefined variable \"$nope\""),
        ("{{ break }}", "{{break}} outside {{range}}"),
        ("{{ if .t }}", "unexpected EOF"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ required \"give it\" .n }}", "error calling required: give it"),
        ("{{ div 1 0 }}", "error calling div: runtime error: integer divide by zero"),
        ("{{ define \"a\" }}1{{ end }}{{ define \"a\" }}2{{ end }}", "multiple definition of template \"a\""),
    ] {
        assert_eq!(render(template), Err(message.to_owned()), "{template}");
    }
}

#[test]
fn an_error_shows_the_place_and_the_chain_of_includes() {
    let template = "a: 1\n{{ define \"inner\" }}\n  b: {{ .n.x }}\n{{ end }}\nc: {{ include \"inner\" . | quote }}\n";
    let Err(RenderError::Template(error)) = render_with(template, |_| {}) else { panic!("renders") };
    assert_eq!((error.location.line, error.location.column, error.location.template.as_str()), (3, 9, "inner"));
    assert_eq!(
        (error.included_from[0].line, error.included_from[0].text.as_str()),
        (5, "c: {{ include \"inner\" . | quote }}")
    );
    assert_eq!(
        error.to_string(),
        "x.yaml:3:9 in \"inner\": nil pointer evaluating interface {}.x (.n is nil)\n  | b: {{ .n.x }}\n  |       ^\n  included from x.yaml:5:7"
    );
}

#[test]
fn hostile_templates_end_in_an_error() {
    let small = |input: &mut RenderInput<'_>| {
        input.limits = Limits { steps: 200_000, output: 1 << 20, ..Limits::default() };
    };
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let blocks = "{{ if true }}".repeat(100_000);
    // As many executions as there are ways through them, none of which writes anything.
    let twice =
        |n: usize| format!("{{{{define \"t{n}\"}}}}{0}{0}{{{{end}}}}", format!("{{{{template \"t{}\"}}}}", n + 1));
    let doubling = (0..60).map(twice).collect::<String>() + "{{define \"t60\"}}{{end}}{{template \"t0\"}}";
    let elses = format!("{{{{ if .n }}}}{}{{{{ end }}}}", "{{ else if .n }}".repeat(100_000));
    for template in [
        "{{ define \"a\" }}{{ include \"a\" . }}{{ end }}{{ include \"a\" . }}",
        "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}",
        "{{ define \"a\" }}{{ tpl \"{{ include \\\"a\\\" . }}\" . }}{{ end }}{{ include \"a\" . }}",
        "{{ repeat 1000000000 \"x\" }}",
        "{{ until 1000000000 }}",
        "{{ indent 1000000000 \"x\" }}",
        "{{ range until 10000 }}{{ range until 10000 }}{{ end }}{{ end }}",
        "{{ range until 10000 }}{{ repeat 1000 \"x\" }}{{ end }}",
        "{{ $s := \"x\" }}{{ range until 100 }}{{ $s = printf \"%s%s\" $s $s }}{{ end }}",
        "{{ $l := list 1 }}{{ range until 100 }}{{ $l = concat $l $l }}{{ end }}",
        "{{ randAlphaNum 1000000000 }}",
        &doubling,
        &nested,
        &blocks,
        &elses,
    ] {
        let result = render_with(template, small);
        assert!(result.is_err(), "{}", &template[..template.len().min(80)]);
    }
}

/// What a rendering may use where little is enough to tell.
fn little(input: &mut RenderInput<'_>) {
    input.limits = Limits { steps: 200_000, output: 1 << 20, ..Limits::default() };
}

#[test]
fn texts_that_grow_are_refused_before_they_are_made() {
    let grow =
        |by: &str| format!("{{{{ $x := \"a\\\"&'\" }}}}{{{{ range until 200 }}}}{{{{ $x = {by} }}}}{{{{ end }}}}");
    let shared = |with: &str| {
        let list =
            "{{ $b := repeat 500000 \"a\" }}{{ $l := list }}{{ range until 1000 }}{{ $l = append $l $b }}{{ end }}";
        format!("{list}{{{{ {with} }}}}")
    };
    let nested = |inner: &str, with: &str| {
        format!(
            "{{{{ $x := {inner} }}}}{{{{ range until 300 }}}}{{{{ $x = list $x }}}}{{{{ end }}}}{{{{ {with} $x }}}}"
        )
    };
    let kept = |make: &str| {
        format!(
            "{{{{ $b := repeat 500000 \"a\" }}}}{{{{ $all := list }}}}{{{{ range until 5000 }}}}\
             {{{{ $all = append $all ({make}) }}}}{{{{ end }}}}"
        )
    };
    let growing =
        ["print $x $x", "println $x $x", "cat $x $x", "quote $x", "squote $x $x", "html $x $x", "js $x", "b64enc $x"];
    let growing = growing.into_iter().chain(["b32enc $x", "urlquery $x $x", "toJson $x", "replace \"a\" \"aa\" $x"]);
    let of_shared = [
        "$l",
        "toYaml $l",
        "toYamlPretty $l",
        "toJson $l",
        "toPrettyJson $l",
        "toRawJson $l",
        "toToml (dict \"l\" $l)",
        "toString $l",
        "printf \"%v\" $l",
        "printf \"%s\" $l",
        "printf \"\" $l $l",
        "print $l",
        "cat $l $l",
        "quote $l",
        "squote $l",
        "html $l",
        "urlquery $l",
        "join \"\" $l",
        "toStrings (list $l) | len",
        "sortAlpha (list $l) | len",
        "dict $l 1 | len",
        "toYaml (dict \"a\" (dict \"b\" $l))",
        "splitList \"\" $b | len",
        "split \"a\" $b | len",
        "splitn \"a\" 400000 $b | len",
        "regexFindAll \"a\" (trunc 100000 $b) -1 | len",
        "regexSplit \"a\" (trunc 100000 $b) -1 | len",
        "regexReplaceAll \".+\" $b \"$0$0$0\" | len",
        "regexReplaceAll \"a\" (trunc 100000 $b) \"aaaaaaaaaaaa\" | len",
        "fromJson (print \"[\" (repeat 200000 \"1,\") \"1]\")",
        "printf \"%100000v\" (until 40000) | len",
    ];
    let of_nested = [
        nested("repeat 30000 \"a\\n\"", "toYaml"),
        nested("until 30000", "toYaml"),
        nested("until 30000", "toPrettyJson"),
        nested("until 30000", "toYamlPretty"),
    ];
    let of_kept =
        ["trunc 499999 $b", "upper $b", "list (print $b)", "splitList \"x\" $b", "fromJson (quote $b)", "until 100"];
    let copies = "{{ $d := dict }}{{ range $i := until 1000 }}{{ $_ := set $d (print $i) 1 }}{{ end }}{{ $all := list }}\
                  {{ range until 5000 }}{{ $all = append $all (omit $d \"1\") }}{{ end }}";
    let versions = "{{ $l := list }}{{ $all := list }}{{ range until 40000 }}{{ $l = append $l 1 }}{{ $all = append $all $l }}{{ end }}";
    let templates = growing.map(grow).chain(of_shared.into_iter().map(shared)).chain(of_nested);
    let templates = templates.chain(of_kept.into_iter().map(kept)).chain([copies, versions].map(str::to_owned));
    for template in templates {
        let Err(error) = render_with(&template, little) else { panic!("it renders: {template}") };
        let told = error.to_string();
        let of_text = ["more than 1048576 bytes of text", "more than 1048576 bytes of output"];
        let is_told = of_text.iter().any(|part| told.contains(part))
            || told.contains("lists and maps of more than 8388608 bytes");
        assert!(is_told, "{template}: {error}");
    }
}

#[test]
fn maps_are_counted_as_what_they_take() {
    // As many as fit 8 MiB by what they take: a map of one entry has room for eleven.
    for (template, fits) in [
        ("{{ $l := dict }}{{ range 5000 }}{{ $l = dict \"a\" $l }}{{ end }}", true),
        ("{{ $l := dict }}{{ range 20000 }}{{ $l = dict \"a\" $l }}{{ end }}", false),
        ("{{ $d := dict }}{{ range $i := 5000 }}{{ $_ := set $d (toString $i) (dict \"a\" 1) }}{{ end }}", true),
        ("{{ $d := dict }}{{ range $i := 20000 }}{{ $_ := set $d (toString $i) (dict \"a\" 1) }}{{ end }}", false),
        ("{{ $d := dict }}{{ range $i := 30000 }}{{ $_ := set $d (toString $i) 1 }}{{ end }}", true),
    ] {
        let rendered = render_with(template, little);
        assert_eq!(rendered.is_ok(), fits, "{template}: {rendered:?}");
    }
}

#[test]
fn what_is_held_many_times_and_never_written_is_no_text() {
    let template = "{{ $b := repeat 500000 \"a\" }}{{ $l := list }}{{ range until 1000 }}{{ $l = append $l $b }}{{ end }}\
                    {{ len (toStrings $l) }} {{ len (uniq $l) }} {{ has $b $l }} {{ default $b $b | len }} {{ len (deepCopy $l) }}";
    assert_eq!(render_with(template, little).unwrap(), "1000 1 true 500000 1000");
}

#[test]
fn values_without_end_do_no_harm() {
    for template in [
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ $_ := set $d \"b\" $d }}{{ $d | toYaml | len }}{{ toJson $d | len }}",
        "{{ $d := dict }}{{ $_ := set $d \"a\" $d }}{{ $_ := set $d \"b\" $d }}{{ printf \"%s\" $d | len }}{{ deepEqual $d (dict \"a\" 1) }}",
        "{{ $x := list }}{{ range until 20000 }}{{ $x = list $x }}{{ end }}{{ len $x }}",
        "{{ $root := dict }}{{ $at := $root }}{{ range until 20000 }}{{ $n := dict }}{{ $_ := set $at \"n\" $n }}{{ $at = $n }}{{ end }}{{ len $root }}",
        "{{ $x := dict }}{{ range until 60 }}{{ $x = dict \"a\" $x \"b\" $x }}{{ end }}{{ toYaml $x | len }}",
    ] {
        let result = render_with(template, |_| {});
        assert!(result.is_ok(), "{template}: {result:?}");
    }
}

#[test]
fn a_set_flag_stops_the_rendering() {
    let stop = Arc::new(AtomicBool::new(true));
    let result = render_with("{{ range until 10000 }}{{ . }}{{ end }}", |input| input.stop = Some(stop));
    assert!(result.unwrap_err().to_string().contains("stopped"));
}

#[test]
fn a_search_for_matches_that_look_far_ahead_stops() {
    for call in
        ["regexFindAll $p $b -1", "regexReplaceAll $p $b \"$0\"", "regexReplaceAll $p $b \"\"", "regexSplit $p $b -1"]
    {
        let template =
            format!("{{{{ $p := \".*[^A-Z]|[A-Z]\" }}}}{{{{ $b := repeat 1000000 \"A\" }}}}{{{{ {call} | len }}}}");
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let error = render_with(&template, |input| input.stop = Some(stop)).unwrap_err().to_string();
        assert!(error.contains("stopped"), "{call}: {error}");
    }
}

#[test]
fn regular_expressions_match_as_in_go() {
    for (template, text) in [
        (r#"{{ regexFindAll "a*" "baac" -1 | toJson }}"#, r#"["","aa",""]"#),
        (r#"{{ regexFindAll "a*" "baac" 2 | toJson }}"#, r#"["","aa"]"#),
        (r#"{{ regexReplaceAll "a*" "baac" "x" }}"#, "xbxcx"),
        (r#"{{ regexReplaceAll "(a)(b)?" "ab a" "[$2$1]" }}"#, "[ba] [a]"),
        (r#"{{ regexReplaceAll "(a)" "xay" "${1}$$" }}"#, "xa$y"),
        (r#"{{ regexReplaceAllLiteral "a" "xay" "$1" }}"#, "x$1y"),
        (r#"{{ regexReplaceAll "q" "xay" "z" }}"#, "xay"),
        (r#"{{ regexSplit "a*" "baac" -1 | toJson }}"#, r#"["b","c"]"#),
    ] {
        assert_eq!(render(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn random_functions_follow_the_seed() {
    let template = "{{ randAlphaNum 10 }} {{ randAlphaNum 10 }} {{ uuidv4 }}";
    let draw = |seed: u8| render_with(template, |input| input.seed = Some(Seed([seed; 32]))).unwrap();
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let words: Vec<String> = draw(1).split(' ').map(str::to_owned).collect();
    assert_ne!(words[0], words[1]);
}

#[test]
fn a_lookup_without_an_answer_is_reported() {
    let asked = Lookup { api_version: "v1".into(), kind: "Secret".into(), namespace: "ns".into(), name: "x".into() };
    let template = "{{ required \"no secret\" (lookup \"v1\" \"Secret\" \"ns\" \"x\").data }}";
    let error = render_with(template, |_| {}).unwrap_err();
    assert_eq!(error.lacks().lookups.iter().collect::<Vec<_>>(), [&asked]);
    let answers = BTreeMap::from([(asked, json!({"data": "found"}))]);
    let capabilities = Capabilities::default();
    let mut input =
        RenderInput::new(Release::new("demo", "ns"), &capabilities, "2026-01-01T00:00:00Z".parse().unwrap());
    input.lookups = &answers;
    assert_eq!(render_text("x", template, &json!({}), &input).unwrap(), "found");
}

#[test]
fn names_of_certificates_are_of_any_length() {
    let long = format!("{}.svc.cluster.local", "n".repeat(80));
    for name in ["", "*.example.com", "Zoë", &long] {
        let template = format!(r#"{{{{ (genSignedCert "{name}" nil (list "x.ns") 10 (genCA "{name}" 30)).Cert }}}}"#);
        let pem = render_with(&template, |_| {}).unwrap();
        let cert = openssl::x509::X509::from_pem(pem.as_bytes()).unwrap();
        let entries: Vec<_> = cert.subject_name().entries().map(|entry| entry.data().as_slice().to_vec()).collect();
        let expected: Vec<_> =
            [name].iter().filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(entries, expected, "{name}");
    }
}

#[test]
fn certificates_verify_and_follow_the_seed() {
    let template = "{{ $ca := genCA \"ca\" 30 }}{{ $c := genSignedCert \"x\" (list \"10.0.0.1\") (list \"x.ns\") 10 $ca }}\
                    {{ $ca.Cert }}|{{ $c.Cert }}|{{ $c.Key }}";
    let text = render_with(template, |_| {}).unwrap();
    let parts: Vec<&str> = text.split('|').collect();
    let read = |pem: &str| openssl::x509::X509::from_pem(pem.as_bytes()).unwrap();
    let (authority, cert) = (read(parts[0]), read(parts[1]));
    assert!(cert.verify(&authority.public_key().unwrap()).unwrap());
    assert_eq!(authority.issued(&cert), openssl::x509::X509VerifyResult::OK);
    let key = openssl::rsa::Rsa::private_key_from_pem(parts[2].as_bytes()).unwrap();
    assert!(key.check_key().unwrap());
    assert_eq!(cert.subject_alt_names().unwrap().len(), 2);
    assert_eq!(text, render_with(template, |_| {}).unwrap());
}

#[test]
fn every_function_of_helm_is_there() {
    const NAMES: &str = "abbrev abbrevboth add add1 add1f addf adler32sum ago all \
and any append atoi b32dec b32enc b64dec b64enc base \
bcrypt biggest buildCustomCert call camelcase cat ceil chunk clean \
coalesce compact concat contains date dateInZone dateModify date_in_zone date_modify \
decryptAES deepCopy deepEqual default derivePassword dict dig dir div \
divf duration durationRound empty encryptAES eq ext fail first \
float64 floor fromJson fromJsonArray fromToml fromYaml fromYamlArray ge genCA \
genCAWithKey genPrivateKey genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey get getHostByName gt \
has hasKey hasPrefix hasSuffix hello html htmlDate htmlDateInZone htpasswd \
include indent index initial initials int int64 isAbs join \
js kebabcase keys kindIs kindOf last le len list \
lookup lower lt max maxf merge mergeOverwrite min minf \
mod mul mulf mustAppend mustChunk mustCompact mustDateModify mustDeepCopy mustFirst \
mustFromJson mustHas mustInitial mustLast mustMerge mustMergeOverwrite mustPrepend mustPush mustRegexFind \
mustRegexFindAll mustRegexMatch mustRegexReplaceAll mustRegexReplaceAllLiteral mustRegexSplit mustRest mustReverse mustSlice mustToDate \
mustToJson mustToPrettyJson mustToRawJson mustUniq mustWithout must_date_modify ne nindent nospace \
not now omit or osBase osClean osDir osExt osIsAbs \
pick pluck plural prepend print printf println push quote \
randAlpha randAlphaNum randAscii randBytes randInt randNumeric regexFind regexFindAll regexMatch \
regexQuoteMeta regexReplaceAll regexReplaceAllLiteral regexSplit repeat replace required rest reverse \
round semver semverCompare seq set sha1sum sha256sum sha512sum shuffle \
slice snakecase sortAlpha split splitList splitn squote sub subf \
substr swapcase ternary title toDate toDecimal toJson toPrettyJson toRawJson \
toString toStrings toToml toYaml toYamlPretty tpl trim trimAll trimPrefix \
trimSuffix trimall trunc tuple typeIs typeIsLike typeOf uniq unixEpoch \
unset until untilStep untitle upper urlJoin urlParse urlquery uuidv4 \
values without wrap wrapWith";
    let ours = super::super::function_names(super::super::HelmVersion::V3);
    let missing: Vec<&str> = NAMES.split_whitespace().filter(|name| !ours.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!ours.contains(&"env") && !ours.contains(&"expandenv"));
}

#[test]
fn charts_and_values_can_be_shared_between_threads() {
    fn assert_shared<T: Send + Sync>() {}
    assert_shared::<super::super::Chart>();
    assert_shared::<RenderInput<'_>>();
}

/// The keys and certificates that a chart of one template uses.
fn drawn<'a>(template: &str, change: impl FnOnce(&mut RenderInput<'a>), capabilities: &'a Capabilities) -> Drawn {
    let chart = [("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"), ("templates/x.yaml", template)];
    let chart =
        Chart::load_directory(&chart.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into()).unwrap();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut input = RenderInput::new(Release::new("demo", "ns"), capabilities, now);
    input.seed = Some(Seed([1; 32]));
    change(&mut input);
    crate::core::chart::render(&chart, &input).unwrap().drawn
}

#[test]
fn draws_survive_edits_elsewhere_and_differ_from_each_other() {
    let draw = |template: &str| render(template).unwrap().lines().last().unwrap().to_owned();
    let alone = draw("a: {{ randAlphaNum 16 }}");
    assert_eq!(draw("# an edit\nb: {{ randAlphaNum 8 }}\n\na: {{ randAlphaNum 16 }}"), alone);
    assert_eq!(draw("b: {{ randAlphaNum 16 }}\na: {{ randAlphaNum 16 }}"), alone, "the same call on another line");
    assert_ne!(draw("b: {{ randAlphaNum 16 }}")[3..], alone[3..], "another place");
    let twice = render("{{ range until 2 }}\n{{ uuidv4 }}{{ end }}").unwrap();
    let twice: Vec<&str> = twice.trim().lines().collect();
    assert_ne!(twice[0], twice[1], "the same place twice");
}

#[test]
fn without_a_seed_nothing_is_drawn_and_the_error_says_so() {
    let error = render_with("{{ randAlphaNum 8 }}", |input| input.seed = None).unwrap_err();
    assert!(error.lacks().seed, "{error}");
    assert!(!render_with("{{ fail \"no\" }}", |input| input.seed = None).unwrap_err().lacks().seed);
}

#[test]
fn what_a_renewed_authority_signs_is_as_young_as_it() {
    let template = r#"{{ $ca := genCA "x" 30 }}cert: {{ (genSignedCert "y" nil nil 30 $ca).Cert | b64enc }}"#;
    let capabilities = Capabilities::default();
    let first = drawn(template, |_| {}, &capabilities);
    let set = |input: &mut RenderInput<'_>| input.clock = "2026-01-22T00:00:00Z".parse().ok();
    let second = drawn(
        template,
        |input| {
            set(input);
            input.drawn = &first;
        },
        &capabilities,
    );
    let renewals: Vec<_> = second.values().map(|kept| kept.renew).collect();
    assert_eq!(renewals, ["2026-02-11T00:00:00Z".parse().ok(); 2]);
}

#[test]
fn errors_show_nothing_that_was_drawn_or_read_from_a_secret() {
    let secret = Lookup { api_version: "v1".into(), kind: "Secret".into(), namespace: "ns".into(), name: "s".into() };
    let lookups = BTreeMap::from([(secret, json!({"data": {"password": "c3dvcmRmaXNo"}}))]);
    let capabilities = Capabilities::default();
    for template in [
        "a: *{{ randAlphaNum 16 }}",
        "{{ fail (randAlphaNum 16) }}",
        "{{ mustToDate \"2006\" (randAlphaNum 16) }}",
        "{{ tpl (printf \"a: {{ nope }} %s\" (randAlphaNum 16)) . }}",
        "{{ fail ((lookup \"v1\" \"Secret\" \"ns\" \"s\").data.password | b64dec) }}",
        "a: *{{ (lookup \"v1\" \"Secret\" \"ns\" \"s\").data.password }}",
    ] {
        let chart = [("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"), ("templates/x.yaml", template)];
        let chart = chart.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into();
        let chart = Chart::load_directory(&chart).unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut input = RenderInput::new(Release::new("demo", "ns"), &capabilities, now);
        (input.seed, input.lookups) = (Some(Seed([1; 32])), &lookups);
        let error = crate::core::chart::render(&chart, &input).unwrap_err().to_string();
        assert!(error.contains("[secret]") && !error.contains("swordfish"), "{template}: {error}");
    }
}

#[test]
fn private_keys_of_each_kind_can_be_read_and_are_kept() {
    for kind in ["rsa", "dsa", "ecdsa", "ed25519"] {
        let template = format!("key: {{{{ genPrivateKey \"{kind}\" | b64enc }}}}");
        let capabilities = Capabilities::default();
        let made = drawn(&template, |_| {}, &capabilities);
        let (_, kept) = made.iter().next().unwrap();
        openssl::pkey::PKey::private_key_from_pem(kept.key.as_bytes()).unwrap();
        assert_eq!(kept.renew, None);
        let later = |input: &mut RenderInput<'_>| input.seed = Some(Seed([2; 32]));
        assert_ne!(drawn(&template, later, &capabilities), made, "{kind}: another seed");
    }
}

#[test]
fn kept_certificates_are_used_until_two_thirds_of_their_life() {
    let template = r#"cert: {{ (genSelfSignedCert "x" nil nil 30).Cert | b64enc }}"#;
    let capabilities = Capabilities::default();
    let first = drawn(template, |_| {}, &capabilities);
    let (_, made) = first.iter().next().unwrap();
    assert_eq!((made.generation, made.of.as_str()), (0, "genSelfSignedCert in c/templates/x.yaml"));
    assert_eq!(made.renew, "2026-01-21T00:00:00Z".parse().ok());
    let at = |clock: &str, seed: u8| {
        let later = |input: &mut RenderInput<'_>| {
            input.seed = Some(Seed([seed; 32]));
            input.clock = clock.parse().ok();
        };
        drawn(
            template,
            |input| {
                later(input);
                input.drawn = &first;
            },
            &capabilities,
        )
    };
    assert_eq!(at("2026-01-20T00:00:00Z", 2), first, "kept whatever the seed is");
    let second = at("2026-01-22T00:00:00Z", 1);
    let (_, renewed) = second.iter().next().unwrap();
    assert_eq!((renewed.generation, renewed.renew), (1, "2026-02-11T00:00:00Z".parse().ok()));
    assert_ne!(renewed.key, made.key);
    // A release that is older than the life of what it makes.
    let late = drawn(template, |input| input.clock = "2027-01-01T00:00:00Z".parse().ok(), &capabilities);
    assert_eq!(late.values().next().unwrap().renew, "2027-01-21T00:00:00Z".parse().ok());
}

#[test]
fn what_is_rendered_for_the_cluster_is_text() {
    for (template, refused) in [
        ("a: b\nc: {{ \"/w==\" | b64dec }}", Some("line 2 is no text: it is not in UTF-8")),
        ("# {{ .Files.Get \"icon\" }}", Some("line 1 is no text: it is not in UTF-8")),
        ("a: {{ \"/w==\" | b64dec | b64enc }}{{ .Files.AsSecrets | b64enc }}", None),
        ("a: {{ \"ä\" }}", None),
    ] {
        let chart = [
            ("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n".as_bytes()),
            ("icon", b"\x89PNG"),
            ("templates/NOTES.txt", b"{{ .Files.Get \"icon\" }}"),
            ("templates/x.yaml", template.as_bytes()),
        ];
        let files = chart.map(|(path, data)| (path.to_owned(), data.to_vec().into())).into();
        let chart = Chart::load_directory(&files).unwrap();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let rendered =
            crate::core::chart::render(&chart, &RenderInput::new(Release::new("demo", "ns"), &capabilities, now));
        match (rendered, refused) {
            (Ok(rendered), None) => assert_eq!(rendered.notes.as_deref(), Some("\u{fffd}PNG")),
            (Err(error), Some(message)) => assert!(error.to_string().contains(message), "{error}"),
            (other, _) => panic!("{template}: {other:?}"),
        }
    }
}

#[test]
fn a_template_that_is_no_text_is_refused_by_its_name() {
    for (path, content, refused) in [
        ("templates/x.yaml", &b"a: b\nc: \xff"[..], Some("web/templates/x.yaml:2:4")),
        ("templates/x.yaml", b"a: {{ \"\xff\" | b64enc }}", Some("web/templates/x.yaml:1:8")),
        ("templates/_helpers.tpl", b"{{ define \"x\" }}\xff{{ end }}", Some("web/templates/_helpers.tpl:1:17")),
        ("templates/x.yaml.tera", b"a: \xff", Some("web/templates/x.yaml.tera")),
        ("templates/x.yaml", b"a: {{/* caf\xe9 */}}1\nb:{{- /* \xe9 */}} 2", None),
        ("templates/x.yaml", b"a: {{/* caf\xe9 */}}\xe9", Some("web/templates/x.yaml:1:18")),
        ("crds/x.yaml", b"a: \xff", Some("web/crds/x.yaml")),
    ] {
        let chart = [("Chart.yaml", &b"apiVersion: v2\nname: web\nversion: 1.0.0\n"[..]), (path, content)];
        let files = chart.map(|(path, data)| (path.to_owned(), data.to_vec().into())).into();
        let chart = Chart::load_directory(&files).unwrap();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let input =
            RenderInput { include_crds: true, ..RenderInput::new(Release::new("demo", "ns"), &capabilities, now) };
        match (crate::core::chart::render(&chart, &input), refused) {
            (Ok(rendered), None) => assert_eq!(rendered.documents[0].object, json!({"a": 1, "b": 2})),
            (Err(error), Some(place)) => {
                let error = error.to_string();
                assert!(error.contains(place) && error.contains("it is no text: it is not in UTF-8"), "{error}");
            }
            (other, _) => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn values_to_import_are_shown_written_out() {
    let files = [
        (
            "Chart.yaml",
            "apiVersion: v2\nname: c\nversion: 1.0.0\ndependencies:\n- name: sub\n  version: 1.0.0\n  \
             import-values: [data, {child: a, parent: b}, 1]\n",
        ),
        ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n"),
        ("templates/NOTES.txt", "{{ (index .Chart.Dependencies 0).ImportValues | toJson }}"),
    ];
    let chart = files.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into();
    let chart = Chart::load_directory(&chart).unwrap();
    let capabilities = Capabilities::default();
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let input = RenderInput::new(Release::new("demo", "ns"), &capabilities, now);
    let notes = crate::core::chart::render(&chart, &input).unwrap().notes.unwrap();
    assert_eq!(notes, r#"[{"child":"exports.data","parent":"."},{"child":"a","parent":"b"}]"#);
}

#[test]
fn a_file_among_the_charts_has_to_be_one() {
    let load = |more: &str| {
        let chart = [("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"), (more, "text")];
        Chart::load_directory(&chart.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into())
    };
    for path in ["charts/_README.md", "charts/.gitkeep", "charts/sub-1.0.0.tgz.prov"] {
        assert!(load(path).is_ok(), "{path}");
    }
    let error = load("charts/README.md").unwrap_err().to_string();
    assert!(error.contains("README.md") && error.contains("Chart.yaml"), "{error}");
}

#[test]
fn of_a_long_line_an_error_shows_what_is_around_its_place() {
    for (before, behind) in [(70_000, 0), (70_000, 70_000), (3, 70_000), (3, 3)] {
        let template = format!("{}{{{{ fail \"no\" }}}}{}", "ä".repeat(before), "x".repeat(behind));
        let error = render_with(&template, |_| {}).unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        let [_, text, mark] = lines[..] else { panic!("{error}") };
        let caret = mark.chars().position(|c| c == '^').unwrap();
        let shown: String = text.chars().skip(caret).take(9).collect();
        assert!(shown.starts_with("fail \"no\""), "{error}");
        assert!(text.chars().count() < 260, "{}", text.len());
    }
}

#[test]
fn charts_below_listed_ones_keep_their_place() {
    // `web` and `api` are listed and list nothing themselves: what is in their `charts/` counts all the same.
    for (alias, of_web) in [("", "web"), ("  alias: shop\n", "shop")] {
        let listed = format!(
            "apiVersion: v2\nname: app\nversion: 1.0.0\ndependencies:\n- name: web\n  version: 1.0.0\n{alias}- name: api\n  version: 1.0.0\n"
        );
        let chart = |name: &str| format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n");
        let template =
            "a: {{ .Template.Name }}\nb: {{ .Chart.IsRoot }}\nc: {{ include \"who\" . }}\nd: {{ .Values | toJson }}\n";
        let who = |name: &str| format!("{{{{ define \"who\" }}}}{name}{{{{ end }}}}");
        let mut files = vec![("Chart.yaml".to_owned(), listed), ("templates/_who.tpl".to_owned(), who("app"))];
        for parent in ["web", "api"] {
            files.push((format!("charts/{parent}/Chart.yaml"), chart(parent)));
            files.push((format!("charts/{parent}/templates/_who.tpl"), who(parent)));
            files.push((format!("charts/{parent}/charts/redis/Chart.yaml"), chart("redis")));
            files.push((format!("charts/{parent}/charts/redis/templates/_who.tpl"), who("redis")));
            files.push((format!("charts/{parent}/charts/redis/templates/x.yaml"), template.to_owned()));
        }
        let files = files.into_iter().map(|(path, text)| (path, text.into())).collect();
        let chart = Chart::load_directory(&files).unwrap();
        let capabilities = Capabilities::default();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        for helm in [HelmVersion::V3, HelmVersion::V4] {
            let input = RenderInput { helm, ..RenderInput::new(Release::new("demo", "ns"), &capabilities, now) };
            let rendered = crate::core::chart::render(&chart, &input).unwrap();
            let mut found: Vec<_> = rendered.documents.iter().map(|document| document.object.clone()).collect();
            found.sort_by_key(|object| object["a"].to_string());
            // Helm 3 copies a chart that has an alias, and its subcharts stay where they were.
            let of_web = if helm == HelmVersion::V3 { "web" } else { of_web };
            let mut places = [of_web, "api"];
            places.sort_unstable();
            let expected = places.iter().map(|parent| {
                json!({
                    "a": format!("app/charts/{parent}/charts/redis/templates/x.yaml"), "b": false, "c": "app",
                    "d": {"global": {}},
                })
            });
            assert_eq!(found, expected.collect::<Vec<_>>(), "{alias:?} {helm:?}");
        }
    }
}
