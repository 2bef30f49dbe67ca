//! Effects without decisions: the API server, sources, the disk.

pub mod apply;
pub mod client;
pub mod kinds;
pub mod observe;
pub mod report;
pub mod source;
pub mod store;
pub mod telemetry;
pub mod unpack;
pub mod usage;
pub mod watch;
