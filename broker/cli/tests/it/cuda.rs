//! The demo with device memory: what it says without a driver, and the whole of it against a
//! stand-in for one (tests/cuda_stub). What only a GPU can show is in tests/gpu.

use crate::common::*;
use std::path::Path;
use std::process::Command;

const DEMO: [&str; 4] = ["demo", "--memory", "cuda", "--json"];

/// The stub, built into `dir`.
fn build_stub(dir: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cuda_stub/libcuda.c");
    let library = dir.join("libcuda.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(library)
        .arg(source)
        .status();
    assert!(built.expect("cc, which linked this program").success());
}

/// The command with the stub as its driver, and for the broker's look at fds.
fn under_stub(dir: &TestDir, memory: &TestDir, arguments: &[&str]) -> Command {
    build_stub(dir.path());
    let mut command = fdbroker(arguments);
    command.env("LD_LIBRARY_PATH", dir.path());
    command.env("LD_PRELOAD", dir.path().join("libcuda.so.1"));
    command.env("FDBROKER_CUDA_STUB_DIR", memory.path());
    command
}

#[test]
fn demo_when_no_driver_then_an_error_that_says_what_is_missing() {
    // A file of its name that is no library: also where there is a real driver.
    let dir = TestDir::new("cuda-no-driver");
    std::fs::write(dir.path().join("libcuda.so.1"), "").unwrap();
    let mut command = fdbroker(&DEMO);
    let (code, stderr) = end(&command.env("LD_LIBRARY_PATH", dir.path()).output().unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    for word in ["no device memory here", "libcuda.so.1", "--memory"] {
        assert!(stderr.contains(word), "no {word:?} in: {stderr}");
    }
}

#[test]
fn demo_when_the_driver_has_no_device_then_an_error_in_its_words() {
    let (dir, memory) = (TestDir::new("cuda-none"), TestDir::new("cuda-none-memory"));
    let mut command = under_stub(&dir, &memory, &DEMO);
    command.env("FDBROKER_CUDA_STUB_NO_DEVICE", "1");
    let (code, stderr) = end(&command.output().unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("CUDA_ERROR_NO_DEVICE"), "{stderr}");
}

#[test]
fn demo_when_device_memory_then_every_byte_is_right_under_the_cap_and_directly_it_ends_at_the_limit()
 {
    let (dir, memory) = (TestDir::new("cuda-demo"), TestDir::new("cuda-demo-memory"));
    let arguments = [&DEMO[..], &["--ranks", "3", "--buffers", "60", "--max-fds", "100"]].concat();
    let arguments = [&arguments[..], &["--without-broker"]].concat();
    let output = under_stub(&dir, &memory, &arguments).output().unwrap();
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let report = one_json_line(&output);
    let number = |pointer: &str| report.pointer(pointer).and_then(|value| value.as_u64());
    assert_eq!(report["memory"], "cuda");
    assert_eq!((number("/mismatches"), number("/failures")), (Some(0), Some(0)), "{report}");
    assert_eq!(number("/verified_bytes"), Some(3 * 2 * 60 * 65536), "{report}");
    assert!(number("/fds/node_peak").is_some_and(|peak| peak <= 100), "{report}");
    assert!(number("/fds/rank_peak").is_some_and(|peak| peak > 0), "{report}");
    // All received fds are kept: 120 in each process, where there is room for fewer.
    assert!(number("/without_broker/failed_at").is_some_and(|fds| fds > 60), "{report}");
    assert!(number("/without_broker/rank_peak").is_some_and(|fds| fds < 100), "{report}");
}
