//! Release manager for Kubernetes clusters.

pub mod api;
pub mod core;
pub mod io;
pub mod settings;
