//! Tests that need no API server.

mod architecture;
mod cli;
mod crds;
mod golden;
