//! Where Helm 3 and Helm 4 differ: a row says what each gives, as their own engines say.

use super::{Capabilities, Chart, HelmVersion, KubeVersion, Release, RenderInput, render_texts};

const CHART: &str = "apiVersion: v2\nname: demo\nversion: 1.0.0\nkeywords: [a]\nmaintainers: [{name: m}]\n";
const VALUES: &str = "a: {x: 1, none: null}\ngone: null\n---\na: {z: 2}\nb: 3\n";

fn rendered(template: &str, helm: HelmVersion) -> Result<String, String> {
    let files = [("Chart.yaml", CHART), ("values.yaml", VALUES), ("templates/t.txt", template)];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned().into())).into();
    let chart = Chart::load(&files).map_err(|error| error.to_string())?;
    let kube_version = KubeVersion::parse_whole("v1.34.2-gke.1")?;
    let capabilities = Capabilities { kube_version, ..Capabilities::of(helm) };
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let input = RenderInput { helm, ..RenderInput::new(Release::new("demo", "ns"), &capabilities, now) };
    let mut texts = render_texts(&chart, &input).map_err(|error| error.to_string())?;
    Ok(texts.files.remove("demo/templates/t.txt").unwrap())
}

#[test]
fn each_helm_renders_in_its_way() {
    // `None` is a refusal.
    for (template, three, four) in [
        (
            "{{ toJson .Values }}",
            Some(r#"{"a":{"none":null,"x":1},"gone":null}"#),
            Some(r#"{"a":{"x":1,"z":2},"b":3}"#),
        ),
        ("{{ .Chart.Nope }}x", None, Some("x")),
        ("{{ kindOf .Chart }}", Some("struct"), Some("map")),
        (
            "{{ toJson .Chart.Sources }}{{ toJson .Chart.Annotations }}{{ .Chart.Annotations }}",
            Some("nullnullmap[]"),
            Some("[]nullmap[]"),
        ),
        (
            "{{ toJson .Chart }}",
            Some(
                r#"{"name":"demo","version":"1.0.0","keywords":["a"],"maintainers":[{"name":"m"}],"apiVersion":"v2","IsRoot":true}"#,
            ),
            Some(
                r#"{"APIVersion":"v2","Annotations":null,"AppVersion":"","Condition":"","Dependencies":[],"Deprecated":false,"Description":"","Home":"","Icon":"","IsRoot":true,"Keywords":["a"],"KubeVersion":"","Maintainers":[{"Email":"","Name":"m","URL":""}],"Name":"demo","Sources":[],"Tags":"","Type":"","Version":"1.0.0"}"#,
            ),
        ),
        ("{{ range .Chart.Maintainers }}{{ . }}{{ end }}", Some("{m  }"), Some("map[Email: Name:m URL:]")),
        (
            "{{ typeOf .Values }} {{ typeOf .Capabilities }} {{ printf \"%T\" .Capabilities.APIVersions }}",
            Some("chartutil.Values *chartutil.Capabilities chartutil.VersionSet"),
            Some("common.Values *common.Capabilities common.VersionSet"),
        ),
        ("{{ .Capabilities.KubeVersion.GitVersion }}", Some("v1.34.2-gke.1"), Some("v1.34.2-gke.1")),
        ("{{ print .Capabilities.KubeVersion }}", Some("{v1.34.2-gke.1 1 34}"), Some("{v1.34.2-gke.1 v1.34.2 1 34}")),
        ("{{ .Capabilities.KubeVersion }}", Some("v1.34.2-gke.1"), Some("v1.34.2")),
        (
            "{{ $k := .Capabilities.KubeVersion }}{{ $k }} {{ $k.String }}",
            Some("v1.34.2-gke.1 v1.34.2-gke.1"),
            Some("v1.34.2 v1.34.2"),
        ),
        ("{{ (dict \"k\" .Capabilities.KubeVersion).k.GitVersion }}", None, None),
        ("{{ (or nil .Capabilities.KubeVersion).GitVersion }}", Some("v1.34.2-gke.1"), Some("v1.34.2-gke.1")),
        ("{{ .Capabilities.HelmVersion.Version }}", Some("v3.21.4"), Some("v4.3.1")),
        ("{{ .Capabilities.APIVersions.Has \"lifecycle.k8s.io/v1alpha1\" }}", Some("false"), Some("true")),
        ("{{ mustToYaml (dict \"a\" 1) }}", None, Some("a: 1")),
        ("{{ mustToToml (dict \"a\" 1) }}", None, Some("a = 1\n")),
        ("{{ mustToToml (list (dict \"a\" 1)) }}", None, None),
        ("{{ if false }}{{ durationHours 1 }}{{ end }}", None, Some("")),
        ("{{ tpl \"{{ durationHours `90m` }}\" . }}", None, Some("1.5")),
        ("{{ mustToDuration \"x\" }}", None, None),
        (
            "{{ mustToDuration 2.5 }}|{{ durationSeconds \"1h2m3.5s\" }}|{{ durationWeeks \"36h\" }}|{{ durationDays \"x\" }}",
            None,
            Some("2.5s|3723.5|0.21428571428571427|0"),
        ),
        (
            "{{ durationRoundTo \"-2h15m\" \"30m\" }}|{{ durationTruncateTo \"-90m\" 3600 }}|{{ durationRoundTo \"2h\" 0 }}",
            None,
            Some("-2h30m0s|-1h0m0s|2h0m0s"),
        ),
    ] {
        assert_eq!(rendered(template, HelmVersion::V3).ok().as_deref(), three, "{template} with Helm 3");
        assert_eq!(rendered(template, HelmVersion::V4).ok().as_deref(), four, "{template} with Helm 4");
    }
}
