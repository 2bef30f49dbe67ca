//! What is refused at the door, and what is only warned of: decisions over what the API server asks and what was read.
//!
//! What a look at the object itself can tell is refused by CEL in our CRDs; here is what needs other objects. An update is
//! judged by what it changes: what is stored stays as it is, and can be mended piece by piece.

pub mod cluster;
pub mod delete;
pub mod source;
pub mod stack;

use std::collections::BTreeSet;

use crate::core::in_use::User;

/// Names of users that a message lists.
const LISTED: usize = 10;

/// Who deletes on behalf of others, and is never refused: the garbage collector and the namespace controller by their own
/// accounts, or by that of a controller manager that gives them none (`--use-service-account-credentials`).
pub const CONTROLLERS: [&str; 3] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:kube-controller-manager",
];

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is refused, and what to do instead; `None` allows it.
    pub refusal: Option<String>,
    /// What is allowed and unwise.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// Allowed, and nothing to say.
    pub fn allow() -> Self {
        Self::default()
    }

    /// Allowed with a word.
    pub fn warn(warning: String) -> Self {
        Self { refusal: None, warnings: vec![warning] }
    }

    /// Refused: one refusal of these is enough, the first one is told.
    fn of(refusals: impl IntoIterator<Item = Option<String>>, warnings: Vec<String>) -> Self {
        match refusals.into_iter().flatten().next() {
            Some(refusal) => Self { refusal: Some(refusal), warnings: Vec::new() },
            None => Self { refusal: None, warnings },
        }
    }
}

/// Users as a text, the first ten of them.
fn listed(users: &BTreeSet<User>) -> String {
    let names: Vec<String> = users.iter().take(LISTED).map(ToString::to_string).collect();
    let more = users.len().saturating_sub(LISTED);
    if more == 0 { names.join(", ") } else { format!("{} and {more} more", names.join(", ")) }
}
