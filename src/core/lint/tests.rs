use bytes::Bytes;
use serde_json::json;

use super::*;

const CSCTL: &str = "config:\n  kubernetesVersion: v1.34.7\n  clusterStackName: scs\n  provider:\n    type: docker\n";
const CHART: &str = "apiVersion: v2\nname: docker-scs-1-34-cluster-class\nversion: v1\n";
const CLASS: &str = "apiVersion: cluster.x-k8s.io/v1beta1
kind: ClusterClass
metadata:
  name: {{ .Release.Name }}-{{ .Chart.Version }}
spec:
  infrastructure:
    ref: {apiVersion: x.io/v1, kind: Thing, name: thing}
---
apiVersion: x.io/v1
kind: Thing
metadata:
  name: thing
spec:
  size: {{ .Values.size }}
";
const STAGES: &str = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n";
const TWO_STAGES: &str = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n    - {name: csi, action: apply}\n";
const ADDON: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: kube-system\ndata:\n  cluster: {{ .Values.cluster }}\n";

fn stack(changes: &[(&str, Option<&str>)]) -> FileTree {
    let mut files: FileTree = [
        ("csctl.yaml", CSCTL),
        ("cluster-class/Chart.yaml", CHART),
        ("cluster-class/values.yaml", "size: 1\n"),
        ("cluster-class/templates/class.yaml", CLASS),
        ("cluster-addon/cni/Chart.yaml", "apiVersion: v2\nname: cni\nversion: v1\n"),
        ("cluster-addon/cni/templates/a.yaml", ADDON),
        ("cluster-addon/cni/overwrite.yaml", "values: |\n  cluster: {{ .Cluster.metadata.name }}\n"),
        ("clusteraddon.yaml", STAGES),
        ("node-images.yaml", "dockerImages: [a]\n"),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), Bytes::from(text)))
    .collect();
    for (path, text) in changes {
        match text {
            Some(text) => files.insert((*path).to_owned(), Bytes::from((*text).to_owned())),
            None => files.remove(*path),
        };
    }
    files
}

fn schemas() -> Schemas {
    let mut schemas = Schemas::default();
    let spec = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
    for (group, kind, version, spec) in [
        ("x.io", "Thing", "v1", spec),
        (
            "cluster.x-k8s.io",
            "ClusterClass",
            "v1beta1",
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        ),
    ] {
        schemas.add(&json!({
            "kind": "CustomResourceDefinition",
            "spec": {"group": group, "names": {"kind": kind}, "versions": [
                {"name": version, "served": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}},
            ]},
        }));
    }
    schemas
}

fn findings(files: &FileTree) -> Vec<Finding> {
    let schemas = schemas();
    let options = Options {
        schemas: Some(&schemas),
        kubernetes: None,
        cluster: None,
        namespace: "default",
        now: Timestamp::UNIX_EPOCH,
    };
    lint(files, files, &options).findings
}

#[test]
fn a_good_stack_is_clean() {
    assert_eq!(findings(&stack(&[])), []);
    // Versions that packaging fills in.
    let chart = "apiVersion: v2\nname: cni\nversion: << .ClusterAddonVersion >>\n";
    let class = CHART.replace("version: v1", "version: << .ClusterClassVersion >>");
    let files = stack(&[("cluster-addon/cni/Chart.yaml", Some(chart)), ("cluster-class/Chart.yaml", Some(&class))]);
    assert_eq!(findings(&files), []);
}

/// What breaks a stack, the rule that finds it, where, and a part of what it says.
type Case<'a> = (&'a [(&'a str, Option<&'a str>)], &'a str, Option<&'a str>, Option<usize>, &'a str);

const UNVERIFIED: &str = "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1
images:
- {name: ubuntu, url: 'https://images.example.org/ubuntu.qcow2', format: qcow2}
";
const STEP_WITH_CODE: &str = "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1
images:
- name: ubuntu
  format: raw
  steps: [{build: {command: [tool, x], env: {LD_PRELOAD: ./x.so}, output: x.raw}}]
";
const STEP_BY_PATH: &str = "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1
images:
- name: ubuntu
  steps: [{build: {command: [/bin/sh, -c, x], output: x.raw}}]
";
const STEP_WITHOUT_FILE: &str = "apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1
images:
- name: ubuntu
  steps: [{convert: {format: qcow2}}]
";

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn one_broken_thing_is_one_finding() {
    let second = format!("{CLASS}---\napiVersion: x.io/v1\nkind: Thing\nmetadata: {{name: thing}}\n");
    let elsewhere = format!("{CLASS}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: other}}\n");
    let nameless = format!("{CLASS}---\napiVersion: v1\nkind: ConfigMap\n");
    let hook = "metadata: {name: a, annotations: {helm.sh/hook: pre-instal}}";
    let misspelt = format!("{CLASS}---\napiVersion: v1\nkind: ConfigMap\n{hook}\n");
    let newer = format!("{CLASS}---\napiVersion: x.io/v2\nkind: Thing\nmetadata: {{name: other}}\n");
    let unknown = format!("{CLASS}---\napiVersion: x.io/v1\nkind: Thong\nmetadata: {{name: other}}\n");
    let undeclared = format!("{CLASS}  sizes: 2\n");
    let dangling = CLASS.replace("name: thing}", "name: thong}");
    let fixed = CLASS.replace("{{ .Release.Name }}-{{ .Chart.Version }}", "fixed");
    let no_class = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    let long = CSCTL.replace("scs", &"s".repeat(60));
    let dependency = "apiVersion: v2\nname: cni\nversion: v1\ndependencies:\n- name: cilium\n  version: 1.18.9\n  repository: https://x/\n";
    let gate = "addonStages:
  AfterControlPlaneInitialized:
    - name: cni
      action: apply
      waitForPostCondition:
        objects: [{key: second, apiVersion: v1, kind: ConfigMap, name: a}]
        conditions: secnd.data.a == 'b'
";
    let two = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n    - {name: csi, action: apply}\n";
    let last = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n    - {name: net, action: apply}\n  BeforeClusterDelete:\n    - {name: net, action: delete}\n";
    let network = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: net, namespace: kube-system}\nspec: {template: {spec: {volumes: [{hostPath: {path: /etc/cni/net.d}}]}}}\n";
    let sum = "0".repeat(64);
    let list = |entries: &str| format!("apiVersion: nodeimages.clusterstack.x-k8s.io/v1alpha1\nimages:\n{entries}");
    let one = |name: &str| format!("- name: '{name}'\n  url: https://x/y\n  checksum: sha256:{sum}\n");
    let named = |name: &str| list(&one(name));
    let too_many = list(&(0..257).map(|number| one(&format!("u{number}"))).collect::<String>());
    let schema = r#"{"properties": {"size": {"type": "string"}}}"#;
    let class = "cluster-class/templates/class.yaml";
    let cases: &[Case<'_>] = &[
        (&[("csctl.yaml", None)], "csctl", None, None, "has no csctl.yaml"),
        (
            &[("csctl.yaml", Some("config:\n  kubernetesVersion: 1\n"))],
            "csctl",
            Some("csctl.yaml"),
            Some(2),
            "can't be used",
        ),
        (
            &[("csctl.yaml", Some(&long)), ("cluster-class/Chart.yaml", Some(&CHART.replace("scs", &"s".repeat(60))))],
            "name-length",
            Some("csctl.yaml"),
            None,
            "shorten it",
        ),
        (
            &[
                ("csctl.yaml", Some(&CSCTL.replace("scs", "s-cs"))),
                ("cluster-class/Chart.yaml", Some(&CHART.replace("scs", "s-cs"))),
            ],
            "name-dash",
            Some("csctl.yaml"),
            Some(3),
            "splits release names",
        ),
        (
            &[("metadata.yaml", Some("versions: {clusterStack: v1, kubernetes: v1.33.0}"))],
            "metadata",
            Some("metadata.yaml"),
            None,
            "csctl.yaml says v1.34.7",
        ),
        (&[("cluster-class/Chart.yaml", None)], "class-chart", None, None, "add the chart"),
        (
            &[("cluster-class/Chart.yaml", Some(&CHART.replace("1-34", "1-33")))],
            "chart-name",
            Some("cluster-class/Chart.yaml"),
            Some(2),
            "docker-scs-1-33",
        ),
        (
            &[("cluster-class/Chart.yaml", Some("{apiVersion: v2, name: docker-scs-1-34-cluster-class, version: v1}"))],
            "chart-version",
            Some("cluster-class/Chart.yaml"),
            Some(1),
            "on a line of its own",
        ),
        (
            &[("cluster-addon/cni/Chart.yaml", Some("apiVersion: v2\nversion: v1\n"))],
            "chart-load",
            Some("cluster-addon/cni/Chart.yaml"),
            None,
            "chart.metadata.name is required",
        ),
        (
            &[("cluster-addon/cni/Chart.yaml", Some(dependency))],
            "dependency",
            Some("cluster-addon/cni/Chart.yaml"),
            Some(5),
            "cilium 1.18.9 from https://x/",
        ),
        (
            &[("cluster-class/values.schema.json", Some(schema))],
            "values-schema",
            Some("cluster-class/values.schema.json"),
            None,
            "size",
        ),
        (
            &[("cluster-addon/cni/templates/a.yaml", Some("a: b\n{{ fail \"no\" }}\n"))],
            "render",
            Some("cluster-addon/cni/templates/a.yaml"),
            Some(2),
            "no",
        ),
        (
            &[("cluster-addon/cni/templates/a.yaml", Some("a: b\n{{ end }}\n"))],
            "render",
            Some("cluster-addon/cni/templates/a.yaml"),
            Some(2),
            "end",
        ),
        (
            &[
                (
                    "cluster-addon/cni/Chart.yaml",
                    Some(
                        "apiVersion: v2\nname: cni\nversion: v1\ndependencies: [{name: sub, version: v1, condition: wanted}]\n",
                    ),
                ),
                ("cluster-addon/cni/charts/sub/Chart.yaml", Some("apiVersion: v2\nname: sub\nversion: v1\n")),
                ("cluster-addon/cni/values.yaml", Some("wanted: \"false\"\n")),
            ],
            "value-misfit",
            Some("cluster-addon/cni/values.yaml"),
            None,
            "wanted is neither true nor false",
        ),
        (
            &[(class, Some(&misspelt))],
            "hook-unknown",
            Some(class),
            None,
            "ConfigMap a is left out: its helm.sh/hook \"pre-instal\"",
        ),
        (
            &[("cluster-addon/cni/templates/a.yaml", Some("a: [\n"))],
            "render",
            Some("cluster-addon/cni/templates/a.yaml"),
            None,
            "can't be read",
        ),
        (&[(class, Some(no_class))], "class", Some("cluster-class/Chart.yaml"), None, "no ClusterClass"),
        (&[(class, Some(&fixed))], "class-name", Some(class), None, "called \"fixed\""),
        (&[(class, Some(&dangling))], "class-reference", Some(class), None, "Thing thong"),
        (
            &[("clusteraddon.yaml", Some("addonStages:\n  Never: []\n"))],
            "addon-config",
            Some("clusteraddon.yaml"),
            Some(2),
            "unknown variant",
        ),
        (&[("clusteraddon.yaml", None)], "addon-config", None, None, "neither clusteraddon.yaml"),
        (
            &[("cluster-class/VALUES.yaml", Some("size: 2\n"))],
            "file-case",
            Some("cluster-class/values.yaml"),
            None,
            "\"cluster-class/VALUES.yaml\" and \"cluster-class/values.yaml\" are at one place",
        ),
        (
            &[("clusteraddon.yaml", Some(gate))],
            "stage-condition",
            Some("clusteraddon.yaml"),
            Some(3),
            "waitForPostCondition of the stage cni: the expression reads secnd",
        ),
        (
            &[
                ("clusteraddon.yaml", Some(last)),
                ("cluster-addon/net/Chart.yaml", Some("apiVersion: v2\nname: net\nversion: v1\n")),
                ("cluster-addon/net/templates/a.yaml", Some(network)),
            ],
            "stage-deletion",
            Some("cluster-addon/net/templates/a.yaml"),
            None,
            "would delete DaemonSet kube-system/net: the network of the nodes (CNI)",
        ),
        (
            &[("clusteraddon.yaml", Some(two))],
            "stage-chart",
            Some("clusteraddon.yaml"),
            Some(4),
            "the stage csi has no chart",
        ),
        (
            &[("cluster-addon/csi/Chart.yaml", Some("apiVersion: v2\nname: csi\nversion: v1\n"))],
            "chart-stage",
            Some("cluster-addon/csi/Chart.yaml"),
            None,
            "never applied",
        ),
        (
            &[("clusteraddon.yaml", Some("addonStages: {}\n")), ("cluster-addon/cni/Chart.yaml", None)],
            "no-addon",
            Some("clusteraddon.yaml"),
            None,
            "names no stage",
        ),
        (
            &[("cluster-addon/cni/overwrite.yaml", Some("values: |\n  a: {{ .Cluster.spec.a.b.c }}\n"))],
            "addon-values",
            Some("cluster-addon/cni/overwrite.yaml"),
            None,
            "do not render",
        ),
        (
            &[
                ("cluster-addon/cni/overwrite.yaml", None),
                ("cluster-addon/cni/overwrite.yaml.tera", Some("a: 1\nb: {{ cluster.spec.a.b.c }}\n")),
            ],
            "addon-values",
            Some("cluster-addon/cni/overwrite.yaml.tera"),
            Some(2),
            "can't be rendered",
        ),
        (
            &[("cluster-addon/cni/overwrite.yaml.tera", Some("a: 1\n"))],
            "addon-values",
            Some("cluster-addon/cni/overwrite.yaml"),
            None,
            "keep one",
        ),
        (
            &[("cluster-addon/cni/overwrite.yaml", Some("values: |\n  - a\n"))],
            "addon-values",
            Some("cluster-addon/cni/overwrite.yaml"),
            None,
            "no map",
        ),
        (
            &[("cluster-addon-values.yaml", Some("values: |\n  a: b\n"))],
            "values-unread",
            Some("cluster-addon-values.yaml"),
            None,
            "no stage reads it",
        ),
        (
            &[("cluster-addon/cni/templates/a.yaml", Some("# nothing\n"))],
            "empty-render",
            Some("cluster-addon/cni/Chart.yaml"),
            None,
            "renders no object",
        ),
        (
            &[("node-images.yaml", Some("openStackNodeImages: [{createOpts: {name: x}}]"))],
            "node-images",
            Some("node-images.yaml"),
            Some(1),
            "url",
        ),
        (
            &[("node-images.yaml", Some(UNVERIFIED))],
            "image-checksum",
            Some("node-images.yaml"),
            Some(3),
            "nothing vouches for what step download gets",
        ),
        (
            &[("node-images.yaml", Some("openStackNodeImages:\n- url: https://x/y.img\n  createOpts: {name: u}"))],
            "image-unverified",
            Some("node-images.yaml"),
            Some(2),
            "nothing vouches for what step download gets",
        ),
        (
            &[("node-images.yaml", Some(STEP_WITH_CODE))],
            "image-command",
            Some("node-images.yaml"),
            Some(3),
            "step build: env LD_PRELOAD is the provider's to set",
        ),
        (
            &[("node-images.yaml", Some(STEP_BY_PATH))],
            "image-command",
            Some("node-images.yaml"),
            Some(3),
            "step build: \"/bin/sh\" is a path",
        ),
        (
            &[("node-images.yaml", Some(&named("../x")))],
            "image-name",
            Some("node-images.yaml"),
            Some(3),
            "No destination takes the name: directory, http and s3 (it begins with '.')",
        ),
        (
            &[("node-images.yaml", Some(&named("a/b")))],
            "image-name-narrow",
            Some("node-images.yaml"),
            Some(3),
            "Some destinations can't take the name: directory, http and s3 (it holds '/'",
        ),
        (
            &[("node-images.yaml", Some(&named("")))],
            "node-images",
            Some("node-images.yaml"),
            Some(1),
            "its name is empty",
        ),
        (
            &[("node-images.yaml", Some(&too_many))],
            "node-images",
            Some("node-images.yaml"),
            None,
            "257 images are to be brought, and a release has room for 256",
        ),
        (
            &[("node-images.yaml", Some(STEP_WITHOUT_FILE))],
            "node-images",
            Some("node-images.yaml"),
            Some(3),
            "image ubuntu, step 1 (convert): there is no file yet",
        ),
        (
            &[("node-images.yaml", Some("dockerImages:\n- a\n- a\n"))],
            "node-images",
            Some("node-images.yaml"),
            Some(1),
            "two images",
        ),
        (&[(class, Some(&nameless))], "object", Some(class), None, "no metadata.name"),
        (
            &[
                ("clusteraddon.yaml", Some(TWO_STAGES)),
                ("cluster-addon/csi/Chart.yaml", Some("apiVersion: v2\nname: csi\nversion: v1\n")),
                ("cluster-addon/csi/values.yaml", Some("cluster: x\n")),
                ("cluster-addon/csi/templates/a.yaml", Some(ADDON)),
            ],
            "object-in-stages",
            Some("cluster-addon/csi/templates/a.yaml"),
            None,
            "ConfigMap kube-system/a is applied by the stages cni and csi",
        ),
        (&[(class, Some(&second))], "object-twice", Some(class), None, "Thing thing is rendered twice"),
        (&[(class, Some(&elsewhere))], "object-namespace", Some(class), None, "ConfigMap other/a"),
        (&[(class, Some(&newer))], "kind-version", Some(class), None, "but v1"),
        (&[(class, Some(&unknown))], "kind-unknown", Some(class), None, "Thong"),
        (&[(class, Some(&undeclared))], "object-schema", Some(class), None, ".spec: Additional properties"),
        (&[("cluster-class/values.yaml", Some("size: large\n"))], "object-schema", Some(class), None, ".spec.size"),
    ];
    let mut seen = std::collections::BTreeSet::from(["server", "server-later"]);
    let mut wrong = Vec::new();
    for (changes, rule, file, line, part) in cases {
        let found = findings(&stack(changes));
        let is_meant = |finding: &Finding| {
            (finding.rule.id, finding.file.as_deref(), finding.line) == (*rule, *file, *line)
                && finding.message.contains(part)
        };
        if found.len() != 1 || !is_meant(&found[0]) {
            let found: Vec<_> = found.iter().map(|f| (f.rule.id, &f.file, f.line, &f.message)).collect();
            wrong.push(format!("{rule} {file:?} {line:?} {part:?} of {changes:?}:\n  {found:?}"));
        }
        seen.insert(rule);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all: std::collections::BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(seen, all, "every rule has a broken stack");
}

#[test]
fn what_a_stack_brings_along_is_known() {
    let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: nets.y.io}\nspec:\n  group: y.io\n  names: {kind: Net}\n  versions: [{name: v1, served: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: string}}}}}]\n";
    let net = format!("{ADDON}---\napiVersion: y.io/v1\nkind: Net\nmetadata: {{name: a}}\nspec: 1\n");
    let found = findings(&stack(&[
        ("cluster-addon/cni/crds/net.yaml", Some(crd)),
        ("cluster-addon/cni/templates/a.yaml", Some(&net)),
    ]));
    let [only] = found.as_slice() else { panic!("{found:#?}") };
    assert!(only.rule.id == "object-schema" && only.message.contains(".spec"), "{only:?}");
}

#[test]
fn values_in_tera_are_taken_as_they_are_in_go() {
    let files = stack(&[
        ("cluster-addon/cni/overwrite.yaml", None),
        ("cluster-addon/cni/overwrite.yaml.tera", Some("values: |\n  cluster: {{ cluster.metadata.name }}\n")),
    ]);
    assert_eq!(findings(&files), []);
}

#[test]
fn values_may_stand_in_a_plain_map() {
    let plain = "cluster: {{ .Cluster.metadata.name | quote }}\n";
    assert_eq!(findings(&stack(&[("cluster-addon/cni/overwrite.yaml", Some(plain))])), []);
    let wrapped = "values:\n  cluster: x\n";
    let found = findings(&stack(&[("cluster-addon/cni/overwrite.yaml", Some(wrapped))]));
    let [only] = found.as_slice() else { panic!("{found:#?}") };
    assert!(only.rule.id == "addon-values" && only.message.contains("values: |"), "{only:?}");
}

#[test]
fn an_object_may_go_over_to_another_stage() {
    let stages = "addonStages:\n  AfterControlPlaneInitialized:\n    - {name: cni, action: apply}\n    - {name: csi, action: delete}\n";
    let files = stack(&[
        ("clusteraddon.yaml", Some(stages)),
        ("cluster-addon/csi/Chart.yaml", Some("apiVersion: v2\nname: csi\nversion: v1\n")),
        ("cluster-addon/csi/values.yaml", Some("cluster: x\n")),
        ("cluster-addon/csi/templates/a.yaml", Some(ADDON)),
    ]);
    assert_eq!(findings(&files), []);
}

#[test]
fn addons_can_be_rendered_for_a_cluster_of_ones_own() {
    let files = stack(&[(
        "cluster-addon/cni/overwrite.yaml",
        Some("values: |\n  cluster: {{ required \"a label\" .Cluster.metadata.labels.tier }}\n"),
    )]);
    assert_eq!(findings(&files).len(), 1);
    let cluster = json!({"metadata": {"name": "a", "labels": {"tier": "front"}}, "spec": {}});
    let options = Options {
        schemas: None,
        kubernetes: Some("1.33"),
        cluster: Some(&cluster),
        namespace: "default",
        now: Timestamp::UNIX_EPOCH,
    };
    let looked = lint(&files, &files, &options);
    assert_eq!(looked.findings, []);
    let (object, file) = &looked.rendered[1].objects[0];
    assert_eq!(
        (&object.object["data"]["cluster"], file.as_str()),
        (&json!("front"), "cluster-addon/cni/templates/a.yaml")
    );
}

#[test]
fn reports_name_each_finding() {
    let found = findings(&stack(&[
        ("cluster-class/Chart.yaml", Some(&CHART.replace("1-34", "1-33"))),
        ("node-images.yaml", Some("dockerImages: <a & \"b\">\n")),
    ]));
    assert_eq!(found.iter().map(|finding| finding.rule.id).collect::<Vec<_>>(), ["chart-name", "node-images"]);
    let xml = report::junit("a/b", &found, false, &["server", "csctl"]);
    assert!(xml.contains("name=\"server\"><skipped/></testcase>") && xml.contains("skipped=\"2\""), "{xml}");
    assert!(xml.contains(&format!("tests=\"{}\" failures=\"1\"", RULES.len())), "{xml}");
    assert!(xml.contains("name=\"chart-name\">\n      <system-out>cluster-class/Chart.yaml:2: the chart is called &quot;docker-scs-1-33"), "{xml}");
    assert!(!xml.contains("<a &"), "{xml}");
    assert!(report::junit("a/b", &found, true, &[]).contains("failures=\"2\""));
    let sarif = report::sarif("./stacks/my stack/", &found);
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "chart-name");
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "stacks/my%20stack/cluster-class/Chart.yaml");
    assert_eq!(place["region"]["startLine"], 2);
    let at = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][at]["id"], "chart-name");
}

#[test]
fn rules_have_names_of_their_own() {
    let ids: std::collections::BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), RULES.len());
}
