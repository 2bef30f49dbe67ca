//! Tests that need no API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::pedantic, missing_docs)]

mod architecture;
mod bounds;
mod cli;
mod crds;
mod destination;
mod differential;
mod docs;
mod golden;
mod image;
mod images;
mod install;
mod lint;
mod publish;
mod source;
mod spec_edits;
mod stacks;
mod templates_page;
mod threats;
