//! Node images: the steps of a build carried out, and the places that images are brought to.

pub mod destination;
pub mod executor;
pub mod inside;
pub mod job;
pub mod journal;
pub mod log_server;
pub mod meter;
pub mod running;
pub mod task;
pub mod workshop;
