//! Decisions: pure functions over plain data. No client, no clock, no file system, no logging.

pub mod addon_config;
pub mod artifact;
pub mod bundle;
pub mod chart;
pub mod digest;
pub mod fields;
pub mod files;
pub mod health;
pub mod in_use;
pub mod limits;
pub mod lint;

pub mod manifest;
pub mod metadata;
pub mod name;
pub mod node_images;
pub mod ownership;
pub mod package;
pub mod pin;
pub mod plan;
pub mod retry;
pub mod selection;
pub mod source;
pub mod status;
pub mod tree;
pub mod verification;
pub mod version_range;
pub mod yaml;
