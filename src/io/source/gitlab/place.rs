//! Where a project and its API are.

use url::Url;

use crate::api::source::GitlabSource as Spec;
use crate::core::source::{Refused, redact};

/// A project of a GitLab server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The server, with the path below which it is installed.
    pub(super) server: Url,
    /// `group/name`, or its number.
    pub(super) project: String,
    /// What people open in a browser.
    pub(super) web: String,
}

impl Place {
    /// The place that the spec names.
    pub(super) fn of(spec: &Spec) -> Result<Self, Refused> {
        let text = spec.url.as_deref().unwrap_or("https://gitlab.com");
        let refuse = |problem: &str| Refused::NoUrl { url: redact(text), problem: problem.to_owned() };
        let server = Url::parse(text).map_err(|error| refuse(&error.to_string()))?;
        if !matches!(server.scheme(), "https" | "http") {
            return Err(Refused::Scheme { url: redact(text), scheme: server.scheme().to_owned() });
        }
        if !server.username().is_empty() || server.password().is_some() {
            return Err(refuse("a token in it would be shown: put it into a Secret that secretRef names"));
        }
        if server.query().is_some() || server.fragment().is_some() {
            return Err(refuse("it has a query or a fragment"));
        }
        let project = spec.project.trim_matches('/').to_owned();
        let is_part = |part: &str| {
            let known = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            known && !part.is_empty() && part != "." && part != ".."
        };
        if !project.split('/').all(is_part) {
            return Err(refuse(&format!("project {project:?} is not <group>/<name>")));
        }
        let web = format!("{}/{project}", server.as_str().trim_end_matches('/'));
        Ok(Self { server, project, web })
    }

    /// A path of the project's API.
    pub(super) fn at(&self, path: &[&str], query: &str) -> Url {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // A slash in a segment is encoded: so it must be in the project's.
            segments.pop_if_empty().extend(["api", "v4", "projects", self.project.as_str()]).extend(path);
        }
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        url
    }

    /// The host that is asked, with its port.
    pub(super) fn host(&self) -> String {
        let url = &self.server;
        format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
    }

    /// Host and project: `gitlab.com/group/name`.
    pub(super) fn name(&self) -> String {
        self.web.split_once("://").map_or(&*self.web, |(_, rest)| rest).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: Option<&str>, project: &str) -> Result<Place, Refused> {
        Place::of(&Spec { url: url.map(ToOwned::to_owned), project: project.to_owned(), ..Spec::default() })
    }

    #[test]
    fn a_project_is_one_part_of_the_path() {
        let place = of(None, "group/sub/name").unwrap();
        assert_eq!(
            place.at(&["releases"], "per_page=100").as_str(),
            "https://gitlab.com/api/v4/projects/group%2Fsub%2Fname/releases?per_page=100"
        );
        assert_eq!(place.name(), "gitlab.com/group/sub/name");
        let place = of(Some("https://corp:8443/gitlab/"), "17").unwrap();
        assert_eq!(place.at(&["releases"], "").as_str(), "https://corp:8443/gitlab/api/v4/projects/17/releases");
        assert_eq!(place.name(), "corp:8443/gitlab/17");
    }

    #[test]
    fn what_is_no_project_is_refused() {
        for (url, project) in [
            (None, "group/../x"),
            (None, ""),
            (None, "a b/c"),
            (Some("ssh://gitlab.com"), "a/b"),
            (Some("https://oauth2:hunter2@gitlab.com"), "a/b"),
            (Some("https://gitlab.com?private_token=hunter2"), "a/b"),
        ] {
            assert!(of(url, project).is_err(), "{url:?} {project}");
        }
    }
}
