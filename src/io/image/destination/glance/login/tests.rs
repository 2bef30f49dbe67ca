use super::*;

fn keystone(cloud: &str) -> Result<Keystone, String> {
    let text = format!("clouds:\n  one: {cloud}\n");
    match read_clouds(&text, None, None)? {
        Login::Keystone(keystone) => Ok(*keystone),
        Login::Open(_) => panic!("no login"),
    }
}

#[test]
fn logins_are_read_as_openstacks_client_reads_them() {
    for (auth, identity, scope) in [
        (
            "{auth_url: 'https://id/v3', application_credential_id: a, application_credential_secret: s3cret}",
            json!({"methods": ["application_credential"], "application_credential": {"id": "a", "secret": "s3cret"}}),
            Value::Null,
        ),
        (
            "{auth_url: 'https://id', username: u, password: s3cret, project_name: p, project_domain_name: d}",
            json!({"methods": ["password"],
                "password": {"user": {"name": "u", "domain": {"id": "default"}, "password": "s3cret"}}}),
            json!({"project": {"name": "p", "domain": {"name": "d"}}}),
        ),
        (
            "{auth_url: 'https://id/', user_id: u, password: s3cret, project_id: p}",
            json!({"methods": ["password"], "password": {"user": {"id": "u", "password": "s3cret"}}}),
            json!({"project": {"id": "p"}}),
        ),
    ] {
        let keystone = keystone(&format!("{{auth: {auth}}}")).unwrap();
        assert_eq!(keystone.tokens.as_str(), "https://id/v3/auth/tokens");
        assert_eq!(keystone.body["auth"]["identity"], identity);
        assert_eq!(keystone.body["auth"]["scope"], scope);
        assert_eq!(keystone.secret, "s3cret");
    }
}

#[test]
fn what_is_missing_is_said_and_nothing_is_quoted() {
    let login = "auth_url: 'https://id', username: u, password: s3cret";
    for (cloud, says) in [
        ("{auth: {}}".to_owned(), "auth_url"),
        ("{auth: {auth_url: 'https://id', username: u}}".to_owned(), "password"),
        (
            "{auth: {auth_url: 'https://id', application_credential_secret: s3cret}}".to_owned(),
            "application_credential_id",
        ),
        (format!("{{verify: false, auth: {{{login}}}}}"), "cacert"),
        (format!("{{verify: [s3cret], auth: {{{login}}}}}"), "can't be read"),
    ] {
        let error = keystone(&cloud).map(drop).unwrap_err();
        assert!(error.contains(says) && !error.contains("s3cret"), "{cloud}: {error}");
    }
    let two = format!("clouds: {{a: {{auth: {{{login}}}}}, b: {{auth: {{{login}}}}}}}");
    assert!(read_clouds(&two, None, None).map(drop).unwrap_err().contains("a, b"));
    assert!(read_clouds(&two, Some("c"), None).map(drop).unwrap_err().contains("no cloud c"));
    assert!(read_clouds(&two, Some("b"), None).is_ok());
}

#[test]
fn the_catalogue_is_asked_for_interface_and_region() {
    let answer = json!({"token": {"catalog": [
        {"type": "compute", "endpoints": [{"interface": "public", "region_id": "r", "url": "https://compute"}]},
        {"type": "image", "endpoints": [
            {"interface": "internal", "region_id": "r", "url": "https://inside"},
            {"interface": "public", "region_id": "other", "url": "https://other"},
            {"interface": "public", "region_id": "r", "url": "https://images/glance/v2/"},
        ]},
    ]}});
    let login = "auth: {auth_url: 'https://id', username: u, password: s}";
    for (extra, found) in [
        ("region_name: r, ", Some("https://images/glance/")),
        ("", Some("https://other/")),
        ("interface: internalURL, ", Some("https://inside/")),
        ("region_name: nowhere, ", None),
    ] {
        let keystone = keystone(&format!("{{{extra}{login}}}")).unwrap();
        let endpoint = keystone.endpoint_of(&answer).map(|url| root(&url).to_string());
        assert_eq!(endpoint.as_deref(), found, "{extra}");
    }
}

#[test]
fn a_token_is_used_until_shortly_before_its_end_whatever_the_server_says_that_is() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let least = Timestamp::MIN.to_string();
    for (end, expected) in [
        (json!("2026-01-01T08:00:00.000000Z"), "2026-01-01T07:50:00Z".parse().unwrap()),
        (json!(least), Timestamp::MIN),
        (json!(Timestamp::MAX.to_string()), Timestamp::MAX.checked_sub(MARGIN).unwrap()),
        (json!("-20000-01-01T00:00:00Z"), now.checked_add(LIFE).unwrap()),
        (json!("soon"), now.checked_add(LIFE).unwrap()),
        (Value::Null, now.checked_add(LIFE).unwrap()),
    ] {
        assert_eq!(until(&json!({"token": {"expires_at": end}}), now), expected, "{end}");
    }
}
