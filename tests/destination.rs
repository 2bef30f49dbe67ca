//! The places that images are brought to: one suite for all of them, against real servers on loopback.

mod conformance;
mod directory;
mod glance;
mod http;
mod oci;
mod program;
mod put_server;
mod s3;
mod wire;

use self::program::Server;
