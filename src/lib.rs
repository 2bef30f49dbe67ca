//! Release manager for Kubernetes clusters.

pub mod api;
pub mod cli;
pub mod controllers;
pub mod core;
pub mod io;
pub mod settings;
