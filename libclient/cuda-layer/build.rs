//! Keeps the layer's code in memory after dlclose(3). Must never read anything but its own
//! arguments.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfdbroker_cuda.so");
    // Programs keep addresses of its functions, the library thread may run, and the C library knows
    // handlers of ours.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
