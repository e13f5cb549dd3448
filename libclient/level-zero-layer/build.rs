//! Keeps the layer's code in memory after dlclose(3). Must never read anything but its own
//! arguments.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfdbroker_ze.so");
    // The Level Zero loader closes its layers when it ends, while the library thread may still run,
    // and the C library knows handlers of ours (fork, exit).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
