//! What becomes of an image at its destination when its object goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use url::Url;

use crate::api::image_destination::Destination;
use crate::api::image_template::ImageDeletionPolicy;
use crate::core::duration::go_duration;

/// How long an image that no release has any more is kept, unless the template says.
const GRACE: Duration = Duration::from_hours(1);

/// How long an image that no release has any more is kept, by what its template says. `Err` where it says nothing that is understood:
/// then nobody knows when it may go.
pub fn grace(given: Option<&str>) -> Result<Duration, String> {
    let Some(text) = given else { return Ok(GRACE) };
    let why = || format!("imageGracePeriod {text:?} of its template is no duration: write 30m, 1h30m or 720h");
    go_duration(text).ok_or_else(why)
}

/// What makes two destinations the same, see [`place`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// What kind of destination it is.
    kind: &'static str,
    /// The server; empty where there is none, or none that a template tells.
    server: String,
    /// Where it is there.
    path: String,
}

/// An image that is at a destination, or may be soon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Namespace and name of the object that holds it.
    pub object: String,
    /// Its destination.
    pub place: Place,
    /// What it is called there.
    pub image: String,
    /// Digest of its file; empty while it is not there yet.
    pub digest: String,
    /// Where it is, as its destination called the place; empty where that is not known.
    pub location: String,
}

/// An object that goes.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// What it holds.
    pub held: &'a Held,
    /// What the template says.
    pub policy: ImageDeletionPolicy,
    /// How long the image is kept; why that is not known.
    pub grace: Result<Duration, String>,
    /// Since when nobody has it.
    pub since: Timestamp,
    /// Whether a release of this namespace wants it again.
    pub wanted: bool,
    /// The release that it was made for, where that is there and its list of images is not known again yet.
    pub unlisted: Option<&'a str>,
    /// Now.
    pub now: Timestamp,
}

/// What is done with the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never got there: there is nothing to do.
    Nothing,
    /// It stays, for this reason.
    Stays(String),
    /// It is looked at again then.
    Later(Timestamp),
    /// Whether somebody wants it is not known yet, for this reason.
    Unknown(String),
    /// It is removed.
    Removed,
}

/// What is done with the image of an object that goes; `others` hold images too.
pub fn fate<'h>(case: &Case<'_>, others: impl IntoIterator<Item = &'h Held>) -> Fate {
    if case.held.digest.is_empty() {
        return Fate::Nothing;
    }
    if case.policy == ImageDeletionPolicy::Retain {
        return Fate::Stays("imageDeletionPolicy is Retain".to_owned());
    }
    if case.wanted {
        return Fate::Stays("a release wants it again".to_owned());
    }
    if let Some(other) = others.into_iter().find(|other| is_same(case.held, other)) {
        return Fate::Stays(format!("{} has it too", other.object));
    }
    let grace = match &case.grace {
        Ok(grace) => *grace,
        Err(why) => return Fate::Unknown(why.clone()),
    };
    // One that the calendar does not reach never ends.
    match case.since.checked_add(grace).unwrap_or(Timestamp::MAX) {
        until if until > case.now => Fate::Later(until),
        _ => case.unlisted.map_or(Fate::Removed, |release| {
            Fate::Unknown(format!("ClusterStackRelease {release} is there, and which images it needs is not known yet"))
        }),
    }
}

/// Whether both are the same image at the same place. One that is not there yet may become it. A server may have several names:
/// what has the same path at two is taken for one.
fn is_same(one: &Held, other: &Held) -> bool {
    let is_there = !one.location.is_empty() && one.location == other.location;
    let has_same_path = (one.place.kind, &one.place.path) == (other.place.kind, &other.place.path);
    one.object != other.object
        && (is_there || one.place == other.place || (has_same_path && one.digest == other.digest))
        && one.image == other.image
        && (other.digest.is_empty() || one.digest == other.digest)
}

/// Where a destination is. Two clouds can't be told apart by what a template says of them: all are taken for one, so that
/// nothing is removed that somebody has.
pub fn place(destination: &Destination) -> Place {
    let Destination { directory, http, s3, oci, glance } = destination;
    let places = [
        directory.as_ref().map(|directory| {
            let path = Path::new(&directory.path).components().collect::<PathBuf>().display().to_string();
            Place { kind: "directory", path, ..Place::default() }
        }),
        http.as_ref().map(|http| on_server("http", &http.url)),
        s3.as_ref().map(|s3| {
            let Place { kind, server, path } = on_server("s3", &s3.endpoint);
            Place { kind, server, path: [&path, &s3.bucket, &s3.prefix].map(String::as_str).join(" ") }
        }),
        oci.as_ref().map(|oci| on_server("oci", &format!("https://{}", oci.repository.trim_start_matches("oci://")))),
        glance.as_ref().map(|_| Place { kind: "glance", ..Place::default() }),
    ];
    places.into_iter().flatten().next().unwrap_or_default()
}

fn on_server(kind: &'static str, url: &str) -> Place {
    // A port that goes without saying is none.
    let known = Url::parse(url).map_or_else(|_| url.to_owned(), |url| url.to_string()).to_lowercase();
    let known = known.trim_end_matches('/');
    let authority = known.find("://").map_or(0, |scheme| scheme + "://".len());
    let path = known[authority..].find('/').map_or(known.len(), |path| authority + path);
    let (server, path) = known.split_at(path);
    // What a server takes for one path: RFC 3986, 6.2.2.2, and slashes that are doubled.
    let path = percent_decode_str(path).decode_utf8_lossy().to_lowercase();
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    Place { kind, server: server.to_owned(), path: steps.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::image_destination::{
        DirectoryDestination, GlanceDestination, HttpDestination, OciDestination, S3Destination,
    };

    fn directory(path: &str) -> Destination {
        Destination { directory: Some(DirectoryDestination { path: path.into() }), ..Destination::default() }
    }

    fn http(url: &str) -> Destination {
        let http = HttpDestination { url: url.into(), ..HttpDestination::default() };
        Destination { http: Some(http), ..Destination::default() }
    }

    fn s3(endpoint: &str, bucket: &str, prefix: &str) -> Destination {
        let (endpoint, bucket, prefix) = (endpoint.into(), bucket.into(), prefix.into());
        let s3 = S3Destination { endpoint, bucket, prefix, ..S3Destination::default() };
        Destination { s3: Some(s3), ..Destination::default() }
    }

    fn oci(repository: &str) -> Destination {
        let oci = OciDestination { repository: repository.into(), ..OciDestination::default() };
        Destination { oci: Some(oci), ..Destination::default() }
    }

    fn glance() -> Destination {
        Destination { glance: Some(GlanceDestination::default()), ..Destination::default() }
    }

    fn held(object: &str, digest: &str) -> Held {
        let text = ToOwned::to_owned;
        Held {
            object: text(object),
            place: place(&directory("/i")),
            image: text("ubuntu"),
            digest: text(digest),
            location: String::new(),
        }
    }

    #[test]
    fn an_image_goes_only_when_nobody_has_it() {
        let (mine, never) = (held("a/x", "sha256:1"), held("a/x", ""));
        let at = |second| Timestamp::from_second(second).unwrap();
        let case = Case {
            held: &mine,
            policy: ImageDeletionPolicy::Delete,
            grace: Ok(Duration::from_secs(100)),
            since: at(1000),
            wanted: false,
            unlisted: None,
            now: at(1100),
        };
        let unlisted = Case { unlisted: Some("docker-x-1-34-v1"), ..case.clone() };
        let unknown = "ClusterStackRelease docker-x-1-34-v1 is there, and which images it needs is not known yet";
        let stays = |why: &str| Fate::Stays(why.to_owned());
        let located = Held { location: "/i/ubuntu".into(), ..mine.clone() };
        let linked =
            Held { place: place(&directory("/link")), location: "/i/ubuntu".into(), ..held("b/y", "sha256:1") };
        let elsewhere = |path: &str| Held { place: place(&directory(path)), ..held("b/y", "sha256:1") };
        for (case, others, expected) in [
            (case.clone(), vec![], Fate::Removed),
            (case.clone(), vec![mine.clone()], Fate::Removed),
            (case.clone(), vec![held("b/y", "sha256:2"), elsewhere("/j")], Fate::Removed),
            (Case { held: &located, ..case.clone() }, vec![linked.clone()], stays("b/y has it too")),
            (case.clone(), vec![linked], Fate::Removed),
            (case.clone(), vec![held("b/y", "sha256:1")], stays("b/y has it too")),
            // It may become this one.
            (case.clone(), vec![held("b/y", "")], stays("b/y has it too")),
            (
                Case { grace: grace(Some("99999999h")), now: at(1_000_000), ..case.clone() },
                vec![],
                Fate::Later(Timestamp::MAX),
            ),
            (Case { now: at(1099), ..case.clone() }, vec![], Fate::Later(at(1100))),
            (Case { now: at(1099), ..unlisted.clone() }, vec![], Fate::Later(at(1100))),
            (unlisted.clone(), vec![], Fate::Unknown(unknown.to_owned())),
            (unlisted, vec![held("b/y", "sha256:1")], stays("b/y has it too")),
            (
                Case { policy: ImageDeletionPolicy::Retain, ..case.clone() },
                vec![],
                stays("imageDeletionPolicy is Retain"),
            ),
            (Case { wanted: true, ..case.clone() }, vec![], stays("a release wants it again")),
            (
                Case { grace: grace(Some("30d")), ..case.clone() },
                vec![],
                Fate::Unknown(grace(Some("30d")).unwrap_err()),
            ),
            (Case { grace: grace(Some("30d")), ..case.clone() }, vec![held("b/y", "")], stays("b/y has it too")),
            (Case { held: &never, ..case }, vec![], Fate::Nothing),
        ] {
            assert_eq!(fate(&case, &others), expected, "{case:?} {others:?}");
        }
    }

    #[test]
    fn a_grace_that_is_not_understood_is_none() {
        for (text, expected) in [
            (None, Some(GRACE)),
            (Some("30m"), Some(Duration::from_mins(30))),
            (Some("0s"), Some(Duration::ZERO)),
            (Some("30d"), None),
            (Some("-5s"), None),
            (Some(""), None),
        ] {
            assert_eq!(grace(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_server_may_have_several_names() {
        let at = |object: &str, destination: &Destination, digest: &str| Held {
            place: place(destination),
            ..held(object, digest)
        };
        let on_s3 = |server: &str, bucket: &str, prefix: &str| s3(&format!("https://{server}"), bucket, prefix);
        for (one, other, same) in [
            (http("https://images.example.org/x"), http("https://10.0.0.7/x"), true),
            (http("https://images.example.org/x"), http("http://images.example.org:8080/x"), true),
            (http("https://images.example.org/x"), http("https://10.0.0.7/y"), false),
            (http("https://images.example.org"), http("https://10.0.0.7"), true),
            (on_s3("s3.example.org", "images", "a/"), on_s3("s3.internal", "images", "a/"), true),
            (on_s3("s3.example.org", "images", "a/"), on_s3("s3.internal", "images", "b/"), false),
            (on_s3("s3.example.org", "images", "a/"), on_s3("s3.internal", "others", "a/"), false),
            (on_s3("s3.example.org/1", "images", "a/"), on_s3("s3.example.org/2", "images", "a/"), false),
            (oci("r.example.org/i"), oci("r/i"), true),
            (oci("r.example.org/i"), http("https://r.example.org/i"), false),
            (directory("/i"), directory("/j"), false),
            (directory("/i"), directory("/i"), true),
            (glance(), glance(), true),
        ] {
            let is = |digest: &str| is_same(&at("a/x", &one, "sha256:1"), &at("b/y", &other, digest));
            assert_eq!(is("sha256:1"), same, "{one:?} {other:?}");
            assert!(!is("sha256:2"), "{one:?} {other:?}");
            // What was not made yet is brought to where its own template says.
            assert_eq!(is(""), one == other, "{one:?} {other:?}");
        }
    }

    #[test]
    fn places_are_told_apart_by_where_they_are() {
        for same in ["/i/", "//i", "/./i/./"] {
            assert_eq!(place(&directory(same)), place(&directory("/i")), "{same}");
        }
        assert_eq!(place(&http("https://H.example.org:443/x/")), place(&http("https://h.example.org/x")));
        assert_ne!(place(&http("https://h.example.org:8443/x")), place(&http("https://h.example.org/x")));
        for same in ["https://h.example.org/%69mg/", "https://h.example.org//img", "https://h.example.org/./img"] {
            assert_eq!(place(&http(same)), place(&http("https://h.example.org/img")), "{same}");
        }
        assert_eq!(place(&oci("oci://r.example.org:443/i")), place(&oci("r.example.org/i")));
        assert_eq!(place(&oci("registry:5000/i/")), place(&oci("oci://registry:5000/i")));
        assert_ne!(place(&directory("/i")), place(&directory("/j")));
        assert_eq!(place(&oci("oci://R.example.org/i")), place(&oci("r.example.org/i")));
    }
}
