//! Tests that need no API server.

mod architecture;
mod golden;
