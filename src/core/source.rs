//! Where releases may come from: URLs that are permitted, and the places of a stack in a repository's tree.

mod allow;
pub mod hook;
mod known_hosts;
pub mod offer;
mod url;

pub use allow::{AllowError, AllowList};
pub use known_hosts::{HostKey, KnownHosts};
pub use url::{Scheme, SourceUrl, redact};

use std::net::IpAddr;

use thiserror::Error;

use crate::core::name::ReleaseName;

/// Why a URL is not used as a source.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is no URL.
    #[error(
        "source URL {url:?} can't be read: {problem}; write https://host/path, ssh://git@host/path or file:///path"
    )]
    NoUrl {
        /// The URL without user and password.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Its scheme is none of ours.
    #[error("source URL {url:?} has the scheme {scheme:?}, which is not supported: use https, ssh or file")]
    Scheme {
        /// The URL without user and password.
        url: String,
        /// Its scheme.
        scheme: String,
    },
    /// It holds `..`.
    #[error("source URL {url:?} holds a \"..\": write a path without it, below a root that --allow-source names")]
    Traversal {
        /// The URL.
        url: String,
    },
    /// It is a path outside of the permitted roots.
    #[error(
        "source {url:?} is a local path, and no --allow-source names a root that holds it: use a remote repository, or ask who runs the operator; a command of your own takes --allow-source too"
    )]
    Root {
        /// The URL.
        url: String,
    },
    /// It is a path within the permitted roots, from which a link leads out.
    #[error(
        "source {url:?} leads by a symbolic link, or in Git by alternates or a gitdir, to where no root of --allow-source is: put the files below a root, or ask who runs the operator to name the place itself"
    )]
    Link {
        /// The URL.
        url: String,
    },
    /// It is the machine of the operator or its link, or gives away the machine's credentials.
    #[error(
        "source host {host:?} is a loopback, link-local or unspecified address or a cloud's metadata service, and no --allow-source names {host}: use a public name, or ask who runs the operator; a command of your own takes --allow-source too"
    )]
    Host {
        /// Host and port.
        host: String,
    },
    /// It would be read in the clear.
    #[error(
        "source {url:?} is plain http, which anybody on the way can change: use https, set insecure, or ask who runs the operator for --allow-source {host}"
    )]
    Plain {
        /// The URL without user and password.
        url: String,
        /// Host and port.
        host: String,
    },
}

/// Reads a source's URL and says whether the operator may use it.
///
/// `file` is for paths under a root that `--allow-source` names; loopback, link-local and unspecified hosts, and plain
/// `http`, are for hosts that it names. Symbolic links are the caller's matter: it resolves the path and asks again.
pub fn permitted(url: &str, allow: &AllowList) -> Result<SourceUrl, Refused> {
    let url = SourceUrl::parse(url)?;
    if let Some(path) = url.local_path() {
        return if allow.holds_path(&path) { Ok(url) } else { Err(Refused::Root { url: url.redacted() }) };
    }
    if allow.holds_host(url.host(), url.port()) {
        return Ok(url);
    }
    if url.is_local_host() {
        return Err(Refused::Host { host: url.host_and_port() });
    }
    if url.scheme() == Scheme::Http && !allow.holds_plain_http() {
        return Err(Refused::Plain { url: url.redacted(), host: url.host_and_port() });
    }
    Ok(url)
}

/// Whether the operator may connect to `address`, to which the URL's host resolves: also a public name may lead to the
/// operator's own machine.
pub fn permitted_address(url: &SourceUrl, address: IpAddr, allow: &AllowList) -> Result<(), Refused> {
    if url::is_local_address(address) && !allow.holds_host(url.host(), url.port()) {
        return Err(Refused::Host { host: url.host_and_port() });
    }
    Ok(())
}

/// [`permitted_address`] for a name alone, where the port is not known: a flag for any port of the host is enough. The
/// caller sees to the port.
pub fn may_resolve_to(host: &str, address: IpAddr, allow: &AllowList) -> bool {
    !url::is_local_address(address) || allow.holds_name(host)
}

/// Where a source is, for people: a URL without user and password.
pub fn place(source: &crate::api::source::Source) -> String {
    let shown = |url: &str| SourceUrl::parse(url).map_or_else(|_| redact(url), |url| url.redacted());
    if let Some(git) = &source.git {
        shown(&git.url)
    } else if let Some(github) = &source.github {
        match (&github.url, &github.api_url) {
            (Some(url), _) => shown(url),
            (None, Some(api)) => format!("{} {}/{}", shown(api), github.owner, github.repo),
            (None, None) => format!("https://github.com/{}/{}", github.owner, github.repo),
        }
    } else if let Some(gitlab) = &source.gitlab {
        let server = gitlab.url.as_deref().map_or_else(|| "https://gitlab.com".to_owned(), shown);
        format!("{}/{}", server.trim_end_matches('/'), gitlab.project)
    } else if let Some(oci) = &source.oci {
        let bare = oci.repository.strip_prefix("oci://").unwrap_or(&oci.repository);
        format!("oci://{}", redact(bare))
    } else {
        source.directory.as_ref().map(|directory| directory.path.clone()).unwrap_or_default()
    }
}

/// The directories of a tree in which the stack of a release may lie, the one to prefer first; the empty path is the
/// root. A directory counts if it holds `cluster-class/Chart.yaml`; the first that counts is the stack.
///
/// A template is the only place. It may hold `{provider}`, `{name}` and `{kubernetesVersion}` (as `1-30`). Without one,
/// the places in use are tried: today's layout before the older ones, and of those the directory of the Kubernetes
/// minor before the one of all minors.
pub fn candidate_paths(path_template: Option<&str>, release: &ReleaseName) -> Vec<String> {
    let (provider, stack, minor) = (&release.provider, &release.stack, release.kubernetes.dashed());
    match path_template {
        Some(template) => {
            let path = template
                .replace("{provider}", provider)
                .replace("{name}", stack)
                .replace("{kubernetesVersion}", &minor);
            vec![normal(&path)]
        }
        None => vec![
            format!("stacks/{provider}/{stack}"),
            format!("providers/{provider}/{stack}/{minor}"),
            format!("providers/{provider}/{stack}"),
        ],
    }
}

/// A path without empty parts and `.`.
fn normal(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(flags: &[&str]) -> AllowList {
        AllowList::parse(flags.iter().copied()).unwrap()
    }

    #[test]
    fn public_hosts_are_permitted_without_a_flag() {
        for url in [
            "https://github.com/SovereignCloudStack/cluster-stacks",
            "https://github.com:8443/x.git",
            "https://10.1.2.3/x.git",
            "ssh://git@gitlab.example.com:2222/group/repo.git",
            "git@github.com:group/repo.git",
            "https://user:secret@example.com/x",
            "https://[2001:db8::1]/x",
            "https://[64:ff9b::10.1.2.3]/x",
        ] {
            assert!(permitted(url, &AllowList::default()).is_ok(), "{url}");
        }
    }

    #[test]
    fn local_hosts_need_a_flag() {
        for url in [
            "https://localhost/x",
            "https://LOCALHOST./x",
            "https://foo.localhost/x",
            "https://ip6-loopback/x",
            "https://127.0.0.1/x",
            "https://127.9.9.9:8443/x",
            "https://2130706433/x",
            "https://0x7f.1/x",
            "ssh://git@0x7f.1/x",
            "ssh://git@2130706433/x",
            "git@localhost:x",
            "https://0.0.0.0/x",
            "https://0.1.2.3/x",
            "https://169.254.169.254/latest",
            "https://[::1]/x",
            "https://[::]/x",
            "https://[fe80::1]/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://[64:ff9b::169.254.169.254]/x",
            "https://[64:ff9b::7f00:1]/x",
            "https://[2002:7f00:1::1]/x",
            "https://[::127.0.0.1]/x",
            "ssh://[::ffff:169.254.169.254]/x",
            "https://100.100.100.200/latest",
            "https://168.63.129.16/x",
            "https://[fd00:ec2::254]/latest",
            "https://[fd20:ce::254]/x",
            "https://[64:ff9b::100.100.100.200]/x",
        ] {
            let refused = permitted(url, &allow(&["other.example.com", "/srv"]));
            assert!(matches!(refused, Err(Refused::Host { .. })), "{url}: {refused:?}");
        }
        assert!(permitted("http://127.0.0.1:8080/x", &allow(&["127.0.0.1"])).is_ok());
        assert!(permitted("http://127.0.0.1:8080/x", &allow(&["127.0.0.1:8080"])).is_ok());
        assert!(permitted("https://[::1]:8080/x", &allow(&["[::1]:8080"])).is_ok());
        assert!(permitted("https://[::1]/x", &allow(&["::1"])).is_ok());
        assert!(permitted("git@localhost:x", &allow(&["Localhost:22"])).is_ok());
        assert!(permitted("http://127.0.0.1:8081/x", &allow(&["127.0.0.1:8080"])).is_err());
        assert!(permitted("http://127.0.0.2:8080/x", &allow(&["127.0.0.1"])).is_err());
    }

    #[test]
    fn a_public_name_may_not_lead_to_the_operators_machine() {
        let url = SourceUrl::parse("https://git.example.com/x").unwrap();
        for (address, allow, expected) in [
            ("192.0.2.1", allow(&[]), true),
            ("10.0.0.1", allow(&[]), true),
            ("127.0.0.1", allow(&[]), false),
            ("169.254.169.254", allow(&[]), false),
            ("fd00:ec2::254", allow(&[]), false),
            ("fd00:ec2::255", allow(&[]), true),
            ("100.100.100.201", allow(&[]), true),
            ("::1", allow(&["127.0.0.1"]), false),
            ("127.0.0.1", allow(&["git.example.com:443"]), true),
        ] {
            assert_eq!(permitted_address(&url, address.parse().unwrap(), &allow).is_ok(), expected, "{address}");
        }
    }

    #[test]
    fn plain_http_needs_a_flag() {
        let refused = permitted("http://git.example.com/x", &AllowList::default()).unwrap_err();
        assert!(matches!(refused, Refused::Plain { .. }), "{refused:?}");
        assert!(permitted("http://git.example.com/x", &allow(&["git.example.com"])).is_ok());
    }

    #[test]
    fn local_paths_need_a_root_that_holds_them() {
        let roots = allow(&["file:///srv/git", "/data/repos/"]);
        for url in ["file:///srv/git/a.git", "file:///srv/git", "file:///data/repos/x/y", "file://localhost/srv/git/a"]
        {
            assert!(permitted(url, &roots).is_ok(), "{url}");
        }
        for url in ["file:///srv/gitter/a", "file:///srv", "file:///etc/passwd", "file:///data/repos2/x"] {
            let refused = permitted(url, &roots);
            assert!(matches!(refused, Err(Refused::Root { .. })), "{url}: {refused:?}");
        }
        for url in ["file:///srv/git/../../etc", "file:///srv/git/%2e%2E/x", "file:///srv/git/.%2e"] {
            let refused = permitted(url, &roots);
            assert!(matches!(refused, Err(Refused::Traversal { .. })), "{url}: {refused:?}");
        }
        assert!(matches!(permitted("file://fileserver/srv/git/a", &roots), Err(Refused::NoUrl { .. })));
        assert!(permitted("file:///", &allow(&["/"])).is_ok());
    }

    #[test]
    fn other_schemes_and_no_urls_are_refused() {
        for url in ["git://example.com/x", "ftp://example.com/x", "ext::sh -c id", "javascript:alert(1)"] {
            assert!(permitted(url, &AllowList::default()).is_err(), "{url}");
        }
        for url in ["", "   ", "/srv/git", "relative/path", "https://", "https://exa\tmple.com/x", "ssh://-oProxy/x"] {
            assert!(matches!(permitted(url, &AllowList::default()), Err(Refused::NoUrl { .. })), "{url:?}");
        }
    }

    #[test]
    fn a_refusal_holds_no_secret() {
        for url in [
            "http://user:hunter2@example.com/x",
            "ftp://hunter2@example.com",
            "https://user:hunter2@127.0.0.1",
            "https://user:hunter2@exa mple/x",
            "https://user:hun/ter@2@/hunter2@x",
        ] {
            let message = permitted(url, &AllowList::default()).unwrap_err().to_string();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn a_source_is_shown_as_a_url_without_secrets() {
        for (source, expected) in [
            (serde_json::json!({"git": {"url": "https://me:hunter2@git.example.com/x"}}), "https://git.example.com/x"),
            (serde_json::json!({"git": {"url": "git@git.example.com:x"}}), "ssh://git@git.example.com/x"),
            (serde_json::json!({"github": {"owner": "o", "repo": "r"}}), "https://github.com/o/r"),
            (serde_json::json!({"github": {"url": "https://u:p@ghe.example.com/o/r"}}), "https://ghe.example.com/o/r"),
            (serde_json::json!({"gitlab": {"project": "g/n"}}), "https://gitlab.com/g/n"),
            (
                serde_json::json!({"gitlab": {"url": "https://git.example.com/", "project": "g/n"}}),
                "https://git.example.com/g/n",
            ),
            (
                serde_json::json!({"oci": {"repository": "oci://r.example.com:5000/a/b"}}),
                "oci://r.example.com:5000/a/b",
            ),
            (serde_json::json!({"oci": {"repository": "r.example.com/a"}}), "oci://r.example.com/a"),
            (serde_json::json!({"directory": {"path": "/srv/releases"}}), "/srv/releases"),
            (serde_json::json!({}), ""),
        ] {
            assert_eq!(place(&serde_json::from_value(source.clone()).unwrap()), expected, "{source}");
        }
    }

    #[test]
    fn the_places_of_a_stack_are_tried_in_order() {
        let release: ReleaseName = "openstack-scs-1-30-v3".parse().unwrap();
        assert_eq!(
            candidate_paths(None, &release),
            ["stacks/openstack/scs", "providers/openstack/scs/1-30", "providers/openstack/scs"]
        );
        let template = "./clouds/{provider}//{name}-{kubernetesVersion}/";
        assert_eq!(candidate_paths(Some(template), &release), ["clouds/openstack/scs-1-30"]);
        assert_eq!(candidate_paths(Some("/"), &release), [""]);
    }
}
