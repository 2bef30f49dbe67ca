use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn only_listed_tools_run_and_a_path_is_no_name() {
    let tools = map(&[("virt-customize", "/usr/bin/virt-customize")]);
    assert_eq!(executable("virt-customize", &tools).unwrap(), "/usr/bin/virt-customize");
    for tool in ["sh", "/bin/sh", "/usr/bin/virt-customize", "./virt-customize", ""] {
        let error = executable(tool, &tools).unwrap_err().to_string();
        assert!(error.contains("(virt-customize)") && error.contains("executor Job"), "{error}");
    }
    assert!(executable::<String>("sh", &BTreeMap::new()).unwrap_err().to_string().contains("it lists none"));
}

#[test]
fn a_path_is_told_before_anybody_lists_tools() {
    for (tool, is_path) in [("virt-customize", false), ("/bin/sh", true), ("./x", true), ("", false)] {
        assert_eq!(check_tool(tool).is_err(), is_path, "{tool:?}");
    }
}

#[test]
fn arguments_do_not_lead_to_the_token() {
    for bad in [
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/run/secrets/kubernetes.io/serviceaccount/token",
        "--add=/var//run/./secrets/x",
        "@/var/run/././//secrets",
        "/proc/self/root/var/run",
        "/proc//1/environ",
        "../x",
        "a/../../b",
        "..",
        "file:../../run",
        "/etc/..",
    ] {
        assert!(check_arguments(&["--ok".to_owned(), bad.to_owned()]).is_err(), "{bad}");
    }
    for good in ["--add", "flatcar.raw", "/usr/share/x", "a..b", "v1..v2", "1:2", "a/b.c", "--run-command=echo ..."] {
        assert_eq!(check_arguments(&[good.to_owned()]), Ok(()), "{good}");
    }
}

#[test]
fn a_tool_that_no_flag_allows_names_files_of_its_own_alone() {
    for bad in [
        "/images/two",
        "-O/x",
        "backing_file=/images/two",
        "json:{\"driver\":\"file\",\"filename\":\"/images/two\"}",
        "file:///images/two",
        "nbd://10.0.0.1/x",
        "a//b",
        "driver=raw,file.filename=/x",
    ] {
        let error = check_confined("qemu-img", &["resize".to_owned(), bad.to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("argument 2 of qemu-img") && error.contains("--allow-image-tool"), "{error}");
    }
    for good in ["convert", "-O", "raw", "a.raw", "in/a.raw", "./a", "backing_file=a.qcow2", "1M"] {
        assert_eq!(check_confined("qemu-img", &[good.to_owned()]), Ok(()), "{good}");
    }
}

#[test]
fn a_step_adds_to_the_environment_and_replaces_nothing() {
    let template = map(&[("PATH", "/opt/bin"), ("PROXY", "p")]);
    let all = environment(&template, &map(&[("LIBGUESTFS_BACKEND", "direct")])).unwrap();
    assert_eq!(
        all,
        map(&[("LANG", "C.UTF-8"), ("LIBGUESTFS_BACKEND", "direct"), ("PATH", "/opt/bin"), ("PROXY", "p")])
    );
    assert_eq!(environment(&BTreeMap::new(), &BTreeMap::new()).unwrap()["PATH"], PATH);
    for name in ["PATH", "path", "LD_PRELOAD", "ld_audit", "PROXY", "HOME", "BASH_ENV", "PYTHONPATH", "PERL5OPT"] {
        let error = environment(&template, &map(&[(name, "x")])).unwrap_err();
        assert_eq!(error, Refused::Environment { name: name.to_owned() });
    }
    assert!(environment(&template, &map(&[("X", "/var/run/secrets/y")])).is_err());
}
