//! Decisions: pure functions over plain data. No client, no clock, no file system, no logging.

pub mod chart;
pub mod files;
pub mod name;
pub mod yaml;
