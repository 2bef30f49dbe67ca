use super::*;

#[test]
fn secrets_are_taken_out_whole_and_line_by_line() {
    let redactor =
        Redactor::new(["hunter2", "hunter2-long", "-----BEGIN X-----\nAAAABBBB\nCCCCDDDD\n-----END X-----", "abc", ""]);
    assert_eq!(redactor.line(b"user hunter2-long hunter2!"), "user *** ***!");
    assert_eq!(redactor.line(b"key AAAABBBB"), "key ***");
    assert_eq!(redactor.line(b"abc stays"), "abc stays");
    assert!(!format!("{redactor:?}").contains("hunter"));
}

#[test]
fn passwords_within_files_of_settings_are_taken_out() {
    let clouds = "clouds:\n  openstack:\n    auth: {auth_url: https://keystone.example.com, username: builder, password: hunter2 x}\n    \
                  region_name: RegionOne\n    token: 12345678\n";
    let docker = r#"{"auths": {"r.example.com": {"username": "builder", "password": "docker-pw", "auth": "YnVpbGRlcjpkb2NrZXItcHc="}}}"#;
    let only_auth = r#"{"auths": {"q.example.com": {"auth": "dTpvdGhlci1wdw=="}}}"#;
    let redactor = Redactor::new([clouds, docker, only_auth]);
    for (text, shown) in [
        (
            "--os-password hunter2 x at https://keystone.example.com",
            "--os-password *** at https://keystone.example.com",
        ),
        ("curl -u builder:docker-pw r.example.com", "curl -u *** r.example.com"),
        ("Basic YnVpbGRlcjpkb2NrZXItcHc=", "Basic ***"),
        ("other-pw", "***"),
        ("?password=hunter2+x", "?password=***"),
        ("aHVudGVyMiB4", "***"),
        ("12345678 of RegionOne by builder", "*** of RegionOne by builder"),
    ] {
        assert_eq!(redactor.line(text.as_bytes()), shown, "{text}");
    }
}

#[test]
fn a_secret_is_not_cut_in_two_by_the_bound_of_a_line() {
    let redactor = Redactor::new(["hunter2hunter2"]);
    let mut long = vec![b'x'; LINE - 4];
    long.extend_from_slice(b"hunter2hunter2");
    let line = redactor.line(&long);
    assert!(!line.contains("hunt"), "{line}");
    assert!(line.len() <= LINE + '…'.len_utf8());
}

#[test]
fn lines_end_at_both_ends_of_line_and_are_bounded() {
    let mut lines = Lines::default();
    let mut seen = Vec::new();
    for part in [&b"one\ntw"[..], b"o\r\n\n10%\r20%", b"\r", b"rest"] {
        lines.take(part, |line| seen.push(String::from_utf8_lossy(line).into_owned()));
    }
    lines.end(|line| seen.push(String::from_utf8_lossy(line).into_owned()));
    assert_eq!(seen, ["one", "two", "10%", "20%", "rest"]);
    for _ in 0..100 {
        lines.take(&[b'y'; 10_000], |_| panic!("no line ended"));
    }
    assert!(lines.open.len() <= LOOKED_AT);
}

#[test]
fn nothing_of_a_terminal_is_left_in_a_line() {
    assert_eq!(Redactor::default().line(b"\x1b[2J\x07bell \xff\ttab  "), " [2J bell \u{fffd}\ttab");
}

#[test]
fn the_tail_keeps_whole_last_lines() {
    let mut tail = Tail::default();
    for number in 0..1000 {
        tail.push(&format!("line {number}"));
    }
    assert!(tail.text().len() <= TAIL && tail.text().ends_with("line 999\n"));
    assert!(tail.text().starts_with("line "), "{}", tail.text());
    tail.push(&"ü".repeat(TAIL));
    assert!(tail.text().len() <= TAIL && tail.text().starts_with('ü'));
}

#[test]
fn a_text_that_was_cut_within_a_secret_shows_no_half_of_it() {
    let redactor = Redactor::new(["SuperSecretPassword-0123456789"]);
    for (text, expected) in [
        ("tPassword-0123456789 login", "*** login"),
        ("login SuperSecretPass", "login ***"),
        ("6789\nlogin Supe", "*** login ***"),
        ("789 login Sup", "789 login Sup"),
        ("Password-0123456789", "***"),
        ("SuperSecretPassword-0123456789", "***"),
        ("login SuperSecretPassword-0123456789 é", "login *** é"),
        ("NDU2Nzg5, U3VwZXJTZWN", "***, ***"),
        ("", ""),
    ] {
        assert_eq!(redactor.piece(text), expected, "{text}");
    }
}
