//! HTML from what is shown. The templates are Tera's, which escapes all that is printed in them; what is not escaped is the
//! style sheet alone, which is ours.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::asked::Asked;
use super::list::{self, ListSeen};
use super::stack::{self, StackSeen};
use super::words::{Moment, clean};

const TEMPLATES: [(&str, &str); 5] = [
    ("layout.html", include_str!("layout.html")),
    ("parts.html", include_str!("parts.html")),
    ("list.html", include_str!("list.html")),
    ("stack.html", include_str!("stack.html")),
    ("notice.html", include_str!("notice.html")),
];
const STYLE: &str = include_str!("style.css");

/// A template can't be used: a fault of ours.
#[derive(Debug, Error)]
#[error("the web page can't be made: {0}")]
pub struct PageError(String);

/// Makes pages.
pub struct Markup {
    tera: tera::Tera,
    style: String,
}

/// What every page has beside its own.
#[derive(Serialize)]
struct Whole<'a, V> {
    view: &'a V,
    /// Who answers.
    replica: &'a str,
    style: &'static str,
    /// From this page to the list.
    home: &'a str,
}

/// A page that only says something.
#[derive(Serialize)]
struct Notice {
    title: String,
    message: String,
    refresh: Option<u16>,
    as_of: Moment,
}

impl From<http::header::InvalidHeaderValue> for PageError {
    fn from(error: http::header::InvalidHeaderValue) -> Self {
        Self(error.to_string())
    }
}

impl Markup {
    /// Parses the templates.
    ///
    /// # Errors
    /// One of them can't be parsed.
    pub fn new() -> Result<Self, PageError> {
        let mut tera = tera::Tera::default();
        tera.autoescape_on(vec![".html"]);
        tera.add_raw_templates(TEMPLATES).map_err(|error| PageError(error.to_string()))?;
        Ok(Self { tera, style: format!("sha256-{}", STANDARD.encode(Sha256::digest(STYLE))) })
    }

    /// The source of style that a policy has to allow.
    pub fn style_source(&self) -> &str {
        &self.style
    }

    /// The list of ClusterStacks.
    ///
    /// # Errors
    /// The template fails.
    pub fn list(&self, asked: &Asked, seen: &ListSeen, replica: &str, now: Timestamp) -> Result<String, PageError> {
        self.page("list.html", &list::view(asked, seen, now), replica, "./")
    }

    /// One ClusterStack.
    ///
    /// # Errors
    /// The template fails.
    pub fn stack(&self, asked: &Asked, seen: &StackSeen, replica: &str, now: Timestamp) -> Result<String, PageError> {
        self.page("stack.html", &stack::view(asked, seen, now), replica, "../../../")
    }

    /// A page that only says something. `home` leads to the list.
    ///
    /// # Errors
    /// The template fails.
    pub fn notice(&self, (title, message): (&str, &str), home: &str, now: Timestamp) -> Result<String, PageError> {
        let notice = Notice { title: clean(title), message: clean(message), refresh: None, as_of: now.into() };
        self.page("notice.html", &notice, "", home)
    }

    fn page<V: Serialize>(&self, template: &str, view: &V, replica: &str, home: &str) -> Result<String, PageError> {
        let whole = Whole { view, replica: &clean(replica), style: STYLE, home };
        let failed = |error: tera::Error| PageError(error.to_string());
        let context = tera::Context::from_serialize(&whole).map_err(failed)?;
        self.tera.render(template, &context).map_err(failed)
    }
}
