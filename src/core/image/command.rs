//! What a command of a release is given when it runs beside the operator: its executable, arguments and environment.
//!
//! A command comes from whoever may publish a release; the tools and the limits come from the provider. What a release says
//! is refused rather than mended.

use std::collections::BTreeMap;

use thiserror::Error;

/// Where executables are looked for by tools themselves, if the provider says nothing else.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Names that only the provider sets: they say which code a process loads, or where it writes.
const PROVIDERS: &[&str] =
    &["PATH", "HOME", "TMPDIR", "IFS", "ENV", "BASH_ENV", "SHELLOPTS", "GCONV_PATH", "NODE_OPTIONS", "GIT_EXEC_PATH"];
/// How such names begin.
const PROVIDERS_PREFIXES: &[&str] =
    &["LD_", "DYLD_", "MALLOC_", "GLIBC_", "PYTHON", "PERL", "RUBY", "JAVA_", "BASH_FUNC_"];
/// Where Kubernetes mounts the token of a pod's ServiceAccount, and the ways around.
const SECRET_PLACES: &[&str] = &["run/secrets", "/proc/"];

/// Why a command is not run as a task.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The provider's template does not list its tool.
    #[error(
        "{tool:?} is not among the tools of the provider's template ({}): add it there with its path, or use executor Job",
        listed(.allowed)
    )]
    Tool {
        /// First word of the command.
        tool: String,
        /// Tools that may be run.
        allowed: Vec<String>,
    },
    /// The first word is a path, which no tool is called.
    #[error(
        "{tool:?} is a path, and commands name tools: write the name of one of build.tools of the provider's template, which says its path, or use executor Job"
    )]
    Path {
        /// First word of the command.
        tool: String,
    },
    /// An argument or a value leads where the operator's own secrets lie.
    #[error(
        "{what} leads out of the work directory to where secrets may lie ({text:?}): name files of the work directory, or use executor Job"
    )]
    Secrets {
        /// `argument 2`, `env NAME`.
        what: String,
        /// The text, cut.
        text: String,
    },
    /// A tool that no flag of the operator allows is to read or write elsewhere.
    #[error(
        "argument {number} of {tool} leads out of the work directory ({text:?}): name files of the work directory, or ask who runs the operator for --allow-image-tool with the path of {tool}"
    )]
    Outside {
        /// The tool.
        tool: String,
        /// Which argument, from 1 on.
        number: usize,
        /// The text, cut.
        text: String,
    },
    /// The environment would change what the tool is.
    #[error(
        "env {name} is the provider's to set: leave it out of the release, or put it into build.env of the provider's template"
    )]
    Environment {
        /// Its name.
        name: String,
    },
}

fn listed(allowed: &[String]) -> String {
    if allowed.is_empty() { "it lists none".to_owned() } else { allowed.join(", ") }
}

/// The executable of a command whose first word is `tool`, by the provider's list. The word is a name, never a path.
///
/// # Errors
/// The tool is not listed.
pub fn executable<'t, P>(tool: &str, tools: &'t BTreeMap<String, P>) -> Result<&'t P, Refused> {
    tools.get(tool).ok_or_else(|| Refused::Tool { tool: cut(tool), allowed: tools.keys().cloned().collect() })
}

/// Looks at the first word of a command.
///
/// # Errors
/// It is a path.
pub fn check_tool(tool: &str) -> Result<(), Refused> {
    if tool.contains('/') { Err(Refused::Path { tool: cut(tool) }) } else { Ok(()) }
}

/// Looks at the arguments behind the tool.
///
/// # Errors
/// One leads to where the token of the operator's ServiceAccount lies, or out of the work directory by `..`.
pub fn check_arguments(arguments: &[String]) -> Result<(), Refused> {
    for (number, text) in arguments.iter().enumerate() {
        if leads_to_secrets(text) {
            return Err(Refused::Secrets { what: format!("argument {}", number + 1), text: cut(text) });
        }
    }
    Ok(())
}

/// Looks at the arguments of a tool that no flag of the operator allows, and whose arguments say what it reads and writes: it runs as
/// the operator's user, which may change images and logs of others.
///
/// # Errors
/// One names a path from the root on, or a server.
pub fn check_confined(tool: &str, arguments: &[String]) -> Result<(), Refused> {
    let is_relative = |text: &str| {
        let slashes = text.match_indices('/').map(|(at, _)| &text[..at]);
        // A slash goes on a name, as in a/b; else it begins at the root, or behind the scheme of a URL.
        slashes
            .into_iter()
            .all(|before| before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-')))
    };
    // A value may follow its short option without a blank: -O/x.
    let is_attached = |text: &str| text.starts_with('-') && !text.starts_with("--");
    let value = |text: &str| if is_attached(text) { text.chars().skip(2).collect() } else { text.to_owned() };
    match arguments.iter().position(|text| !is_relative(text) || !is_relative(&value(text))) {
        None => Ok(()),
        Some(at) => Err(Refused::Outside { tool: cut(tool), number: at + 1, text: cut(&arguments[at]) }),
    }
}

/// The whole environment of a tool: the default search path, what the provider's template gives, what the step gives.
///
/// # Errors
/// The step sets what the template sets, what says which code is loaded, or what leads to secrets.
pub fn environment(
    template: &BTreeMap<String, String>,
    step: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Refused> {
    let mut all = BTreeMap::from([("PATH", PATH), ("LANG", "C.UTF-8")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    all.extend(template.clone());
    for (name, value) in step {
        let upper = name.to_ascii_uppercase();
        let is_providers = template.contains_key(name)
            || PROVIDERS.contains(&upper.as_str())
            || PROVIDERS_PREFIXES.iter().any(|prefix| upper.starts_with(prefix));
        if is_providers {
            return Err(Refused::Environment { name: cut(name) });
        }
        if leads_to_secrets(value) {
            return Err(Refused::Secrets { what: format!("env {}", cut(name)), text: cut(value) });
        }
        all.insert(name.clone(), value.clone());
    }
    Ok(all)
}

/// Whether a text holds a path to the token, or one with `..`, however its slashes and dots are doubled.
fn leads_to_secrets(text: &str) -> bool {
    let mut plain = text.to_owned();
    loop {
        let shorter = plain.replace("//", "/").replace("/./", "/");
        if shorter == plain {
            break;
        }
        plain = shorter;
    }
    let is_separator = |c: char| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-'));
    let climbs = plain.contains('/') && plain.split(is_separator).any(|part| part == "..") || plain == "..";
    climbs || SECRET_PLACES.iter().any(|place| plain.contains(place))
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
