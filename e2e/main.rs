//! Tests against a real API server.
