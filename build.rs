//! How the command is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // At a fixed address, as Go links its own commands: moving tables of pointers to another one on each start takes
    // longer than to render a small chart. Stack, heap and libraries are at random places as ever.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-link-arg-bin=clusterstack=-no-pie");
    }
}
