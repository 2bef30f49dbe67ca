//! Effects without decisions: the API server, sources, the disk.

pub mod apply;
pub mod client;
pub mod dry_run;
pub mod kinds;
pub mod lease;
pub mod lookup;
pub mod observe;
pub mod pack;
pub mod publish;
pub mod registry;
pub mod release;
pub mod render;
pub mod report;
pub mod seed;
pub mod source;
pub mod stack;
pub mod store;
pub mod telemetry;
pub mod unpack;
pub mod usage;
pub mod watch;
