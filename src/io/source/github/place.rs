//! Where a repository and its API are.

use url::Url;

use crate::api::source::GithubSource as Spec;
use crate::core::source::{Refused, redact};

/// A repository of a GitHub server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Of the API, without a slash at its end.
    pub(super) api: Url,
    /// Organisation or user.
    pub(super) owner: String,
    /// Repository.
    pub(super) repo: String,
    /// What people open in a browser; the API's own where that is not known.
    pub(super) web: String,
}

impl Place {
    /// The place that the spec names: `url`, or `owner` and `repo`; `apiUrl` goes before what follows from them.
    pub(super) fn of(spec: &Spec) -> Result<Self, Refused> {
        let api = spec.api_url.as_deref().map(plain).transpose()?;
        let Some(url) = &spec.url else {
            let (owner, repo) = (name("owner", &spec.owner)?, name("repo", &spec.repo)?);
            let web = match &api {
                Some(api) => format!("{api}/repos/{owner}/{repo}"),
                None => format!("https://github.com/{owner}/{repo}"),
            };
            let api = api.map_or_else(|| plain("https://api.github.com"), Ok)?;
            return Ok(Self { api, owner, repo, web });
        };
        let web = plain(url)?;
        let parts: Vec<&str> = web.path().split('/').filter(|part| !part.is_empty()).collect();
        let [owner, repo] = parts[..] else {
            return Err(refuse(url, "it is not https://<host>/<owner>/<repo>"));
        };
        let (owner, repo) = (name("owner", owner)?, name("repo", repo.strip_suffix(".git").unwrap_or(repo))?);
        let host = web.host_str().unwrap_or_default();
        let mut own = web.clone();
        own.set_path("");
        let root = own.as_str().trim_end_matches('/');
        let api = match api {
            Some(api) => api,
            None if host == "github.com" || host == "www.github.com" => plain("https://api.github.com")?,
            // Enterprise in GitHub's cloud.
            None if host.ends_with(".ghe.com") => plain(&format!("{}://api.{host}", web.scheme()))?,
            None => plain(&format!("{root}/api/v3"))?,
        };
        Ok(Self { api, web: format!("{root}/{owner}/{repo}"), owner, repo })
    }

    /// A path of the repository's API.
    pub(super) fn at(&self, path: &str) -> Url {
        let mut url = self.api.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let base = self.api.path().trim_end_matches('/');
        url.set_path(&format!("{base}/repos/{}/{}/{path}", self.owner, self.repo));
        url.set_query(query);
        url
    }

    /// The host that is asked, with its port.
    pub(super) fn host(&self) -> String {
        let url = &self.api;
        format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
    }

    /// Host and repository: `github.com/owner/repo`.
    pub(super) fn name(&self) -> String {
        let web = Url::parse(&self.web).unwrap_or_else(|_| self.api.clone());
        let port = web.port().map_or_else(String::new, |port| format!(":{port}"));
        format!("{}{port}/{}/{}", web.host_str().unwrap_or_default(), self.owner, self.repo)
    }
}

fn refuse(url: &str, problem: &str) -> Refused {
    Refused::NoUrl { url: redact(url), problem: problem.to_owned() }
}

/// A URL of http or https, without user, query and fragment.
fn plain(text: &str) -> Result<Url, Refused> {
    let url = Url::parse(text).map_err(|error| refuse(text, &error.to_string()))?;
    if !matches!(url.scheme(), "https" | "http") {
        return Err(Refused::Scheme { url: redact(text), scheme: url.scheme().to_owned() });
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse(text, "a token in it would be shown: put it into a Secret that secretRef names"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse(text, "it has a query or a fragment"));
    }
    Ok(url)
}

fn name(what: &str, text: &str) -> Result<String, Refused> {
    let is_name = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if text.is_empty() || !is_name || text == "." || text == ".." {
        return Err(refuse(text, &format!("it is no {what} of GitHub")));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: Option<&str>, names: [&str; 2], api: Option<&str>) -> Result<Place, Refused> {
        let [owner, repo] = names.map(ToOwned::to_owned);
        let (url, api_url) = (url.map(ToOwned::to_owned), api.map(ToOwned::to_owned));
        Place::of(&Spec { url, owner, repo, api_url, ..Spec::default() })
    }

    #[test]
    fn places_are_named_in_many_ways() {
        for (url, names, api, expected, shown) in [
            (None, ["o", "r"], None, "https://api.github.com/repos/o/r/releases", "github.com/o/r"),
            (
                Some("https://github.com/o/r.git"),
                ["", ""],
                None,
                "https://api.github.com/repos/o/r/releases",
                "github.com/o/r",
            ),
            (
                Some("https://github.com/o/r/"),
                ["", ""],
                None,
                "https://api.github.com/repos/o/r/releases",
                "github.com/o/r",
            ),
            (
                Some("https://git.corp:8443/o/r"),
                ["", ""],
                None,
                "https://git.corp:8443/api/v3/repos/o/r/releases",
                "git.corp:8443/o/r",
            ),
            (
                Some("https://corp.ghe.com/o/r"),
                ["", ""],
                None,
                "https://api.corp.ghe.com/repos/o/r/releases",
                "corp.ghe.com/o/r",
            ),
            (None, ["o", "r"], Some("https://x/api/v3/"), "https://x/api/v3/repos/o/r/releases", "x/o/r"),
            (Some("https://x/o/r"), ["", ""], Some("https://y/z"), "https://y/z/repos/o/r/releases", "x/o/r"),
        ] {
            let place = of(url, names, api).unwrap();
            assert_eq!((place.at("releases").as_str(), place.name().as_str()), (expected, shown));
        }
        let place = of(None, ["o", "r"], None).unwrap();
        assert_eq!(place.at("releases?per_page=100").query(), Some("per_page=100"));
    }

    #[test]
    fn what_is_no_repository_is_refused() {
        for (url, names) in [
            (Some("https://github.com/o"), ["", ""]),
            (Some("https://github.com/o/r/tree/main"), ["", ""]),
            (Some("https://token:hunter2@github.com/o/r"), ["", ""]),
            (Some("ssh://git@github.com/o/r"), ["", ""]),
            (Some("https://github.com/o/r?x=hunter2"), ["", ""]),
            (None, ["o/../x", "r"]),
            (None, ["..", "r"]),
            (None, ["o", ""]),
        ] {
            let error = of(url, names, None).unwrap_err().to_string();
            assert!(!error.contains("token:hunter2"), "{error}");
        }
    }
}
