//! Tests that need no API server.
