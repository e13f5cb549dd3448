//! Runs a test again in a process of its own whose libcuda.so.1 is tests/cuda_stub: for tests
//! without a GPU. The stub must never be taken for CUDA: its device's name says what it is.

use crate::shared::full_name;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that is set in the process that a test starts.
const CHILD: &str = "FDBROKER_UNDER_CUDA_STUB";

/// The variants of the stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stub {
    /// With all symbols.
    Whole,
    /// Without cuMemExportToShareableHandle.
    WithoutExport,
    /// A file of the library's name that is no library, which also hides a real driver.
    NoLibrary,
}

/// A directory for stand-in device memory and the library, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(parent: &Path, name: &str) -> Self {
        let dir = parent.join(format!("fdbroker-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` with the stub, in a process of this test.
#[track_caller]
pub fn under_stub(test: &str, stub: Stub, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let library = Dir::new(&std::env::temp_dir(), test);
    match stub {
        Stub::NoLibrary => std::fs::write(library.0.join("libcuda.so.1"), "").unwrap(),
        Stub::Whole | Stub::WithoutExport => build(stub, &library.0),
    }
    let memory = Dir::new(Path::new("/dev/shm"), test);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test), "--nocapture"])
        .env(CHILD, test)
        .env("LD_LIBRARY_PATH", &library.0)
        .env("FDBROKER_CUDA_STUB_DIR", &memory.0)
        // Of its own: other programs change the free bytes of /dev/shm.
        .env("FDBROKER_CUDA_STUB_BYTES", (1u64 << 30).to_string())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "under the stub: {}{}", text[0], text[1]);
    assert!(text[0].contains("1 passed"), "there is no test {test}: {}", text[0]);
}

fn build(stub: Stub, dir: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cuda_stub/libcuda.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.join("libcuda.so.1")).arg(source);
    if stub == Stub::WithoutExport {
        command.arg("-DWITHOUT_EXPORT");
    }
    let status = command.status().expect("cc, which linked this program");
    assert!(status.success(), "the stub does not compile");
}
