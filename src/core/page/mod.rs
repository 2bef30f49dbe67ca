//! The web page: what every ClusterStack has come to, as HTML. Pure: from objects as last seen to text.
//!
//! Guarantees: whatever stands in an object is shown as text, never taken as markup; a page is bounded, however many
//! objects there are; nothing of an object is shown but names, conditions and states: neither logs nor the way to them.

mod asked;
mod branch;
pub mod guard;
mod images;
mod list;
mod markup;
mod stack;
mod words;

#[cfg(test)]
mod tests;

pub use asked::{Asked, AskedError};
pub use list::{ClusterSeen, ListSeen, PER_PAGE};
pub use markup::{Markup, PageError};
pub use stack::StackSeen;
