//! Command line of `clusterstack`.
fn main() {}
