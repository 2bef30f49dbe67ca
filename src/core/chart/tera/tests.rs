use std::collections::BTreeSet;

use serde_json::json;

use super::*;

const FILE: &str = "templates/x.yaml.tera";

fn context() -> TeraContext {
    TeraContext {
        values: json!({
            "name": "demo", "n": 3, "f": 1.5, "big": 1_000_000, "flag": false, "null": null, "empty": "", "zero": 0,
            "list": [1, "a", null], "multi": "x\ny\n", "yes": "yes",
            "map": {"b": 1, "a": {"c": [1, 2]}, "a10": 1, "a2": 2},
        }),
        release: json!({"name": "docker-hello-1-34", "namespace": "org"}),
        chart: json!({"name": "class", "version": "v1"}),
        files: BTreeMap::from([
            ("config/a.txt".into(), "text\n".into()),
            ("logo".into(), Bytes::from_static(b"\xff\x00")),
        ]),
        ..TeraContext::default()
    }
}

fn render(template: &str) -> Result<String, TeraError> {
    TeraTemplates::parse([(FILE, template)])?.render(&context()).map(|mut files| files.remove(0).1)
}

#[track_caller]
fn check(table: &[(&str, &str)]) {
    for (template, expected) in table {
        assert_eq!(render(template).as_deref(), Ok(*expected), "{template}");
    }
}

/// Template, line, column, message.
#[track_caller]
fn check_errors(table: &[(&str, usize, usize, &str)]) {
    for (template, line, column, message) in table {
        let error = render(template).unwrap_err();
        assert_eq!(
            (error.details.location.file.as_str(), error.details.location.line, error.details.location.column),
            (FILE, *line, *column),
            "{template}: {error}"
        );
        assert!(error.details.message.contains(message), "{template}: {error}");
    }
}

#[test]
fn values_are_printed_as_they_are() {
    check(&[
        (
            "{{ values.name }}-{{ values.n }} {{ values.f }} {{ values.big }} {{ values.flag }}",
            "demo-3 1.5 1000000 false",
        ),
        ("{{ release.name }}-{{ chart.version }}", "docker-hello-1-34-v1"),
        ("{{ files['config/a.txt'] }}{{ files['logo'] | b64enc }}", "text\n/wA="),
        ("{{ '<a href=\"b\">&' }}", "<a href=\"b\">&"),
        ("{% for key, value in values.map %}{{ key }} {% endfor %}", "a a10 a2 b "),
        ("{{ values.null }}|{{ values.empty }}|", "||"),
    ]);
}

#[test]
fn filters_do_what_helm_s_functions_do() {
    check(&[
        ("{{ values.map | to_yaml }}", "a:\n  c:\n  - 1\n  - 2\na2: 2\na10: 1\nb: 1"),
        ("{{ values.list | to_yaml }}", "- 1\n- a\n- null"),
        ("{{ values.yes | to_yaml }}", "\"yes\""),
        ("a:{{ values.map.a | to_yaml | nindent(n=2) }}", "a:\n  c:\n  - 1\n  - 2"),
        ("{{ 'a\nb\n\nc' | indent(n=2) }}", "  a\n  b\n  \n  c"),
        ("{{ values.map | to_json }}", r#"{"a":{"c":[1,2]},"a10":1,"a2":2,"b":1}"#),
        ("{{ values.map.a | to_pretty_json }}", "{\n  \"c\": [\n    1,\n    2\n  ]\n}"),
        ("{{ 'b: [0777, yes]\na: 1' | from_yaml | to_json }}", r#"{"a":1,"b":[511,true]}"#),
        ("{{ '{\"a\": [1]}' | from_json | get(key='a') | to_json }}", "[1]"),
        ("{{ values.multi | quote }} {{ values.n | quote }} {{ 'a\"\\\\b' | quote }}", r#""x\ny\n" "3" "a\"\\b""#),
        ("{{ values.yes | squote }} {{ \"it's\" | squote }}", "'yes' 'it''s'"),
        ("{{ values.name | b64enc }} {{ 'ZGVtbw==' | b64dec }}", "ZGVtbw== demo"),
        ("{{ values.name | b64encode | b64decode }}", "demo"),
        ("{{ 'abc' | sha256 }}", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("{{ 'abcdef' | trunc(n=3) }} {{ 'abcdef' | trunc(n=-2) }} {{ 'é' | trunc(n=63) }}", "abc ef é"),
        ("{{ 'a--' | trim_suffix(pat='-') }} {{ 'vv1' | trim_prefix(pat='v') }}", "a- v1"),
        ("{{ 'a.b' | replace(from='.', to='-') }}", "a-b"),
        (
            "{{ values.map | merge(with={'b': 2, 'a': {'d': 1} }) | to_json }}",
            r#"{"a":{"c":[1,2],"d":1},"a10":1,"a2":2,"b":1}"#,
        ),
        ("{{ lookup(api_version='v1', kind='Secret') | to_json }}", "{}"),
        ("{{ 'v1.34.2' | semver_compare(constraint='>=1.30-0') }}", "true"),
        ("{% if '1.29.9' | semver_compare(constraint='~1.30 || ^2') %}a{% else %}b{% endif %}", "b"),
        ("{{ values.n | str ~ 'x' }}", "3x"),
    ]);
}

#[test]
fn default_fills_what_is_undefined_or_null() {
    check(&[
        ("{{ values.nope | default(value=1) }}", "1"),
        ("{{ nope | default(value=1) }}", "1"),
        ("{{ values.null | default(value=1) }}", "1"),
        ("{{ values.zero | default(value=1) }}", "0"),
        ("{{ values.zero | default(value=1, boolean=true) }}", "1"),
        ("{{ values.nope or 2 }}", "2"),
        ("{% if values.nope is defined %}a{% else %}b{% endif %}", "b"),
        ("{% if cluster is defined %}a{% else %}b{% endif %}", "b"),
        ("{{ values.name | required(message='no name') }}", "demo"),
    ]);
}

#[test]
fn what_is_undefined_is_an_error_with_its_place() {
    check_errors(&[
        ("{{ nope }}", 1, 4, "Variable `nope` is not defined. Available variables: chart, files, release, values"),
        ("a\n  {{ values.nope }}", 2, 13, "Field `nope` is not defined. Available fields: big, empty"),
        ("{{ values.nope.deeper | default(value=1) }}", 1, 11, "Field `nope` is not defined"),
        ("{{ values.null.x }}", 1, 16, "Field `x` is not defined"),
        ("{{ cluster.metadata.name }}", 1, 4, "Variable `cluster` is not defined"),
        ("{% for x in values.nope %}{% endfor %}", 1, 13, "Iteration not possible on type `undefined`"),
        ("{{ values.nope | required(message='set nope') }}", 1, 18, "set nope"),
        ("{{ values.empty | required(message='set empty') }}", 1, 19, "set empty"),
        ("{{ [values.nope] | to_json }}", 1, 20, "`to_json` is undefined, or a part of it"),
        ("{{ {'a': values.nope} | to_yaml }}", 1, 25, "`to_yaml` is undefined, or a part of it"),
        ("{{ values.map | merge(with=values.nope) }}", 1, 17, "only maps can be merged"),
    ]);
    let filters = [
        "to_yaml",
        "from_yaml",
        "to_json",
        "to_pretty_json",
        "from_json",
        "indent(n=1)",
        "nindent(n=1)",
        "quote",
        "squote",
        "b64enc",
        "b64dec",
        "sha256",
        "trunc(n=1)",
        "trim_prefix(pat='a')",
        "trim_suffix(pat='a')",
        "merge(with={})",
        "safe",
        "str",
        "int",
        "float",
        "upper",
        "lower",
        "title",
        "capitalize",
        "trim",
        "trim_start",
        "trim_end",
        "replace(from='a', to='b')",
        "length",
        "reverse",
        "split(pat='a')",
        "abs",
        "round",
        "first",
        "last",
        "nth(n=0)",
        "join",
        "sort",
        "unique",
        "get(key='a')",
        "values",
        "keys",
        "pairs",
        "group_by(attribute='a')",
        "pluralize",
        "truncate(length=1)",
        "wordcount",
        "escape",
        "escape_html",
        "escape_xml",
        "newlines_to_br",
    ];
    for filter in filters {
        let error = render(&format!("{{{{ values.nope | {filter} }}}}")).unwrap_err();
        assert_eq!((error.kind, error.details.location.line), (TeraErrorKind::Render, 1), "{filter}");
        assert!(error.details.message.contains("undefined"), "{filter}: {error}");
    }
}

#[test]
fn syntax_and_unknown_names_are_errors_before_rendering() {
    let table = [
        ("line\n  {{ values.name ", 2, 17, "Unexpected end of input"),
        ("{% if %}", 1, 7, "Found `%}`"),
        ("{{ 'x' | nope }}", 1, 10, "Unknown filter `nope`"),
        ("{% if false %}{{ nope() }}{% endif %}", 1, 18, "Unknown function `nope`"),
        ("{% if 1 is nope %}{% endif %}", 1, 12, "Unknown test `nope`"),
        ("{% include 'nope' %}", 1, 12, "Unknown template `nope`"),
        ("{{ <nope /> }}", 1, 4, "Unknown component `nope`"),
    ];
    check_errors(&table);
    for (template, ..) in table {
        assert_eq!(render(template).unwrap_err().kind, TeraErrorKind::Parse, "{template}");
    }
}

#[test]
fn arguments_are_checked() {
    check_errors(&[
        ("{{ 'x' | indent(width=2) }}", 1, 10, "unknown argument `width`, known: n"),
        ("{{ 'x' | quote(n=2) }}", 1, 10, "unknown argument `n`"),
        ("{{ 'x' | indent }}", 1, 10, "Missing keyword argument `n`"),
        ("{{ 'x' | indent(n=100000) }}", 1, 10, "`n` is more than 1000"),
        ("{{ 'x' | trunc(n='a') }}", 1, 4, "Invalid type"),
        ("{{ values.map | quote }}", 1, 17, "a map/struct is no text: to_yaml or to_json makes one of it"),
        ("{{ '*' | b64dec }}", 1, 10, "no base64"),
        ("{{ 'a: [' | from_yaml }}", 1, 13, "no YAML: line 1"),
        ("{{ '[' | from_json }}", 1, 10, "no JSON"),
        ("{{ fail(message='no way') }}", 1, 4, "no way"),
        ("{{ lookup(kind='Secret') }}", 1, 4, "Missing keyword argument `api_version`"),
        ("{{ lookup(api_version='v1', kind='Secret', nam='x') }}", 1, 4, "unknown argument `nam`"),
    ]);
}

#[test]
fn an_error_shows_the_line_and_the_way_to_it() {
    let templates = TeraTemplates::parse([
        (FILE, "metadata:\n  {{ <labels name={values.name} /> | indent(n=2) }}\n"),
        (
            "templates/_labels.tera",
            "{% component labels(name: string) %}\napp: {{ name | trunc(n=name) }}\n{% endcomponent labels %}",
        ),
    ]);
    let error = templates.unwrap().render(&context()).unwrap_err();
    insta::assert_snapshot!(error, @r"
    templates/_labels.tera:2:9: Invalid type for the value, expected `i64` but got `string`
      | app: {{ name | trunc(n=name) }}
      |         ^
      included from templates/x.yaml.tera:2:6
    ");
}

#[test]
fn partial_templates_are_used_but_not_rendered() {
    let templates = TeraTemplates::parse([
        ("templates/b.yaml.tera", "{{ <labels name={values.name} /> | nindent(n=2) }}"),
        ("templates/a.yaml.tera", "{% include 'templates/sub/_part.tera' %}"),
        (
            "templates/_labels.tera",
            "{% component labels(name: string) %}app: {{ name }}\nn: x{% endcomponent labels %}",
        ),
        ("templates/sub/_part.tera", "part of {{ release.name }}"),
    ])
    .unwrap();
    let expected =
        [("templates/a.yaml.tera", "part of docker-hello-1-34"), ("templates/b.yaml.tera", "\n  app: demo\n  n: x")];
    let files = templates.render(&context()).unwrap();
    assert_eq!(files, expected.map(|(path, text)| (path.to_owned(), text.to_owned())));
    assert!(TeraTemplates::parse([]).unwrap().is_empty());
}

#[test]
fn lookups_are_answered_or_remembered() {
    let secret = |name: &str| Lookup {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: "org".into(),
        name: name.into(),
    };
    let template = "{% set a = lookup(api_version='v1', kind='Secret', namespace=release.namespace, name='a') %}\
                    {% set b = lookup(api_version='v1', kind='Secret', namespace='org', name='b') %}\
                    {{ a.data.key }}{{ b.data?.key | default(value='none') }}";
    let templates = TeraTemplates::parse([(FILE, template)]).unwrap();
    let answers = BTreeMap::from([(secret("a"), json!({"data": {"key": "x"}}))]);
    let texts = templates.render_with(&context(), &answers, &Limits::default(), None).unwrap();
    assert_eq!(texts.files[FILE], "xnone");
    assert_eq!(texts.missing_lookups, BTreeSet::from([secret("b")]));
    let error = templates.render_with(&context(), &BTreeMap::new(), &Limits::default(), None).unwrap_err();
    assert_eq!(error.details.lacks.lookups, BTreeSet::from([secret("a"), secret("b")]));
}

#[test]
fn a_rendering_that_wants_too_much_ends() {
    let endless = "{% for a in range(end=100000) %}{% for b in range(end=100000) %}x{% endfor %}{% endfor %}";
    let silent = "{% for a in range(end=100000) %}{% for b in range(end=100000) %}\
                  {%- set x = b | str -%}{% endfor %}{% endfor %}";
    let stop = Arc::new(AtomicBool::new(true));
    let little = Limits { output: 1000, ..Limits::default() };
    let few = Limits { steps: 1000, ..Limits::default() };
    let idle = "{% for a in range(end=100000) %}{% for b in range(end=100000) %}{% endfor %}{% endfor %}";
    let doubling = "{% set x = 'x' %}{% for a in range(end=100) %}{% set_global x = x ~ x %}{% endfor %}";
    let block =
        "{% set x = 'x' %}{% for a in range(end=100) %}{% set_global x %}{{ x }}{{ x }}{% endset %}{% endfor %}";
    let list = "{% set x = [1] %}{% for a in range(end=100) %}{% set_global x = [x, x] %}{% endfor %}";
    let replaced = "{% set x = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}\
                    {{ x | replace(from='a', to=x) | replace(from='a', to=x) }}";
    let indented =
        "{% set n = '\n' %}{% for i in range(end=8) %}{% set_global n = n ~ n %}{% endfor %}{{ n | indent(n=1000) }}";
    let escaped = format!("{{{{ '\"' {} }}}}", "| to_json ".repeat(20));
    let shared = |filter: &str| {
        format!("{{% set x = '{}' %}}{{{{ [{}] | {filter} | length }}}}", "x".repeat(900), "x, ".repeat(100))
    };
    let of_shared = ["to_yaml", "to_json", "to_pretty_json", "join"].map(shared);
    // Text that is captured reaches no writer.
    let nested = format!(
        "{{% component d() %}}{}{{% endcomponent %}}{{% set q %}}{}{}{}{{% endset %}}",
        "{{ body }}".repeat(8),
        "{% <d> %}".repeat(15),
        "x".repeat(100),
        "{% </d> %}".repeat(15)
    );
    let large = format!("{{% set x = '{}' %}}{{% set q %}}{}{{% endset %}}", "x".repeat(999), "{{ x }}".repeat(9999));
    let rounds =
        format!("{{% set q %}}{{% for a in range(end=100000) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(99999));
    let calls = format!(
        "{{% component d() %}}{}{{% endcomponent %}}{{% set q %}}{{% for a in range(end=100000) %}}{{{{ <d/> }}}}{{% endfor %}}{{% endset %}}",
        "x".repeat(99999)
    );
    for (template, limits, stop, message) in [
        (indented, &little, None, "a text is larger than may be written"),
        (escaped.as_str(), &little, None, "a text is larger than may be written"),
        (&of_shared[0], &little, None, "a filter is given more than may be written"),
        (&of_shared[1], &little, None, "a filter is given more than may be written"),
        (&of_shared[2], &little, None, "a filter is given more than may be written"),
        (&of_shared[3], &little, None, "a filter is given more than may be written"),
        (&nested, &Limits::default(), None, "writes more than allowed"),
        (&large, &little, None, "writes more than allowed"),
        (&rounds, &Limits::default(), None, "writes more than allowed"),
        (&calls, &Limits::default(), None, "writes more than allowed"),
        (idle, &few, None, "takes more steps than allowed"),
        (doubling, &little, None, "a variable holds more than may be written"),
        (block, &little, None, "a variable holds more than may be written"),
        (list, &little, None, "a variable holds more than may be written"),
        (replaced, &little, None, "a text is larger than may be written"),
        (endless, &little, None, "writes more than allowed"),
        (endless, &few, None, "takes more steps than allowed"),
        (silent, &few, None, "takes more steps than allowed"),
        (endless, &Limits::default(), Some(&stop), "stopped: it took too long"),
    ] {
        let templates = TeraTemplates::parse([(FILE, template)]).unwrap();
        let error = templates.render_with(&context(), &BTreeMap::new(), limits, stop).unwrap_err();
        assert_eq!((error.kind, error.details.message.as_str()), (TeraErrorKind::Limit, message));
        assert_eq!(error.details.location.file, FILE);
        // The next one starts afresh.
        assert!(render("{{ 'x' | str }}").is_ok());
    }
}

#[test]
fn includes_that_branch_and_write_nothing_are_steps() {
    for tag in ["{% include '_N.tera' %}", "{%include'_N.tera'%}", "{%- include\"_N.tera\" -%}"] {
        let wide = |i: usize| tag.replace('N', &(i + 1).to_string()).repeat(20);
        let mut templates: Vec<_> = (0..15).map(|i| (format!("_{i}.tera"), wide(i))).collect();
        templates.extend([("_15.tera".into(), String::new()), (FILE.into(), "{% include '_0.tera' %}".into())]);
        let parts = templates.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let templates = TeraTemplates::parse(parts).unwrap();
        let few = Limits { steps: 1000, ..Limits::default() };
        let error = templates.render_with(&context(), &BTreeMap::new(), &few, None).unwrap_err();
        let limit = (TeraErrorKind::Limit, "takes more steps than allowed");
        assert_eq!((error.kind, error.details.message.as_str()), limit, "{tag}");
    }
}

#[test]
fn recursion_ends() {
    let component = "{% component a(n: integer) %}{{ <a n={n + 1} /> }}{% endcomponent a %}{{ <a n={1} /> }}";
    let error = render(component).unwrap_err();
    assert!(error.details.message.contains("recursion"), "{error}");
    let circular = TeraTemplates::parse([
        ("templates/a.tera", "{% include 'templates/b.tera' %}"),
        ("templates/b.tera", "{% include 'templates/a.tera' %}"),
    ]);
    let error = circular.err().unwrap();
    assert_eq!(
        (error.details.location.file.as_str(), error.details.location.line, error.details.location.column),
        ("templates/a.tera", 1, 4)
    );
    assert_eq!(error.details.message, "templates include each other in a circle, or more than 16 deep");
    let deep = 100_000;
    for template in [
        format!("{{{{ {}1{} }}}}", "(".repeat(deep), ")".repeat(deep)),
        format!("{{{{ {}1 }}}}", "-".repeat(deep)),
        format!("{{{{ {}1 }}}}", "not ".repeat(deep)),
        format!("{{{{ {}1{} }}}}", "[".repeat(deep), "]".repeat(deep)),
        format!("{{{{ a{} }}}}", "[a".repeat(deep)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(deep)),
        format!("{{{{ 1{} }}}}", " | str".repeat(deep)),
        "{% if a %}".repeat(deep),
        "{% for a in b %}".repeat(deep),
        "{% if a %}".to_owned() + &"{% elif b %}".repeat(deep),
    ] {
        let error = render(&template).unwrap_err();
        assert_eq!(error.kind, TeraErrorKind::Parse, "{}", error.details.message);
    }
}

#[test]
fn all_nesting_that_is_allowed_has_room() {
    // A component that calls itself behind 15 includes, 20 times.
    let mut templates: Vec<_> =
        (0..15).map(|i| (format!("_{i}.tera"), format!("{{% include '_{}.tera' %}}", i + 1))).collect();
    templates.push(("_15.tera".into(), "{{ <a n={n + 1} /> }}".into()));
    let component = "{% component a(n: integer) %}{% if n < 20 %}{% include '_0.tera' %}{% else %}end{% endif %}\
                     {% endcomponent a %}{{ <a n={1} /> }}";
    templates.push((FILE.into(), component.into()));
    let parse = || TeraTemplates::parse(templates.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    assert_eq!(parse().unwrap().render(&context()).unwrap()[0].1, "end");
    // Includes that branch are looked at in time.
    let wide = |i| format!("{{% include '_{0}.tera' %}}", i + 1).repeat(20);
    let templates: Vec<_> =
        (0..16).map(|i| (format!("_{i}.tera"), wide(i))).chain([("_16.tera".into(), String::new())]).collect();
    assert!(TeraTemplates::parse(templates.iter().map(|(name, text)| (name.as_str(), text.as_str()))).is_ok());
}

#[test]
fn templates_are_shared_between_threads() {
    let templates = TeraTemplates::parse([(FILE, "{{ values.map | to_yaml }}")]).unwrap();
    let context = context();
    let expected = templates.render(&context).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(templates.render(&context).unwrap(), expected));
        }
    });
}

mod in_charts {
    use super::*;
    use crate::core::chart::{Capabilities, Chart, Release, RenderError, RenderInput, render};
    use crate::core::files::FileTree;

    fn rendered(files: &[(&str, &str)]) -> Result<Vec<(String, Value)>, RenderError> {
        let files: FileTree =
            files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::copy_from_slice(text.as_bytes()))).collect();
        let chart = Chart::load(&files).unwrap();
        let capabilities = Capabilities::for_kube_version("v1.34.2").unwrap();
        let release = Release::new("docker-hello-1-34", "org");
        let mut input = RenderInput::new(release, &capabilities, jiff::Timestamp::UNIX_EPOCH);
        input.extra.insert("Cluster".into(), json!({"metadata": {"name": "demo"}}));
        let rendered = render(&chart, &input)?;
        assert_eq!(rendered.notes.as_deref(), Some("Thanks for docker-hello-1-34"));
        Ok(rendered.documents.into_iter().map(|document| (document.source, document.object)).collect())
    }

    const CHART: (&str, &str) = ("Chart.yaml", "apiVersion: v2\nname: class\nversion: 1.2.3\nappVersion: v1\n");
    const NOTES: (&str, &str) = ("templates/NOTES.txt.tera", "Thanks for {{ release.name }}");
    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n";

    #[test]
    fn a_chart_may_hold_templates_of_both_kinds() {
        let go = format!("{MAP}  name: go-{{{{ .Release.Name }}}}-{{{{ .Values.size }}}}\n");
        let both = format!(
            "{MAP}  name: tera-{{{{ release.name }}}}-{{{{ chart.appVersion }}}}\n  labels:\n\
             {{{{ <labels cluster={{cluster.metadata.name}} /> | indent(n=4) }}}}\n\
             data:\n  {{{{ values.data | to_yaml | indent(n=2) | trim }}}}\n\
             {{% if 'v1' in capabilities.api_versions and \
                capabilities.kube_version.version | semver_compare(constraint='>=1.34') %}}\
             \n  new: \"true\"\n{{% endif %}}",
        );
        let documents = rendered(&[
            CHART,
            NOTES,
            ("values.yaml", "size: 1\ndata: {a10: \"1\", a2: \"yes\"}\nsub: {size: 2}\n"),
            ("templates/a.yaml", &go),
            ("templates/b.yaml.tera", &both),
            (
                "templates/_labels.tera",
                "{% component labels(cluster: string) %}cluster: {{ cluster }}{% endcomponent labels %}",
            ),
            ("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 0.1.0\n"),
            ("charts/sub/templates/c.yaml.tera", &format!("{MAP}  name: sub-{{{{ values.size }}}}\n")),
        ]);
        let map = |rest: Value| {
            let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap"});
            map.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            map
        };
        let expected = [
            ("class/charts/sub/templates/c.yaml.tera", map(json!({"metadata": {"name": "sub-2"}}))),
            ("class/templates/a.yaml", map(json!({"metadata": {"name": "go-docker-hello-1-34-1"}}))),
            (
                "class/templates/b.yaml.tera",
                map(json!({
                    "metadata": {"name": "tera-docker-hello-1-34-v1", "labels": {"cluster": "demo"}},
                    "data": {"a2": "yes", "a10": "1", "new": "true"},
                })),
            ),
        ];
        let mut documents = documents.unwrap();
        documents.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert_eq!(documents, expected.map(|(source, object)| (source.to_owned(), object)));
    }

    #[test]
    fn errors_name_the_file_in_the_whole_chart() {
        let error = rendered(&[CHART, NOTES, ("templates/b.tera", "{% if %}")]).unwrap_err();
        assert!(matches!(&error, RenderError::Parse(_)), "{error}");
        insta::assert_snapshot!(error, @r"
        parse error at class/templates/b.tera:1:7: Found `%}` but expected one of: integer, float, string, bool, ident, `-`, `not`, `<`, `{`, `[` or `(`
          | {% if %}
          |       ^
        ");
        let error = rendered(&[CHART, NOTES, ("templates/b.tera", "a\n  {{ values.nope }}")]).unwrap_err();
        assert!(matches!(&error, RenderError::Template(_)), "{error}");
        insta::assert_snapshot!(error, @r"
        class/templates/b.tera:2:13: Field `nope` is not defined.
          | {{ values.nope }}
          |           ^
        ");
    }
}
