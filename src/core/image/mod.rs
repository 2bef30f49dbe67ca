//! Node images: how one is described, and how its build goes on.

pub mod adoption;
pub mod bounds;
pub mod build;
pub mod command;
pub mod disk;
pub mod files;
pub mod garbage;
pub mod grant;
pub mod job;
pub mod leftover;
pub mod log;
pub mod naming;
pub mod pace;
pub mod pipeline;
pub mod presence;
pub mod queue;
pub mod recipe;
pub mod record;
pub mod room;
pub mod turn;
