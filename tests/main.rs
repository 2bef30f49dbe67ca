//! Tests that need no API server.

mod source;
