//! Gives the shared library its soname, and keeps its code in memory after dlclose(3).
//! Must never read anything but its own arguments.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number grows when a program built against an older header would no longer work.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfdbroker.so.0");
    // A dlclose with a context still open, or while the library thread runs its last instructions, must not
    // unmap running code; nor may the handler that pthread_atfork knows go away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
