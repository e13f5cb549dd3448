//! Builds the daemon again when the workspace's dependencies or profiles may have changed, so that systemd/install.sh finds a program
//! that is older than they are. Must never read anything.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../Cargo.toml");
    println!("cargo::rerun-if-changed=../Cargo.lock");
}
