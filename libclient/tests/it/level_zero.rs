//! The Level Zero backend without a loader, without one of its symbols, and without a driver.
//! tests/level_zero has the tests with a driver.

use crate::shared::full_name;
use fdbroker_client::level_zero::Device;
use fdbroker_client::{ErrorCode, backend};
use std::path::PathBuf;
use std::process::Command;

/// The variable that is set in the process that a test starts.
const CHILD: &str = "FDBROKER_UNDER_ANOTHER_LOADER";

/// A directory for the library, removed on drop.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `body` in a process of this test whose libze_loader.so.1 is made from this C source.
/// `None`: a file that is no library, which also hides a real loader.
#[track_caller]
fn under_loader(test: &str, source: Option<&str>, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let name = format!("fdbroker-{test}-{}", std::process::id());
    let dir = Dir(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&dir.0).unwrap();
    let library = dir.0.join("libze_loader.so.1");
    match source {
        None => std::fs::write(library, "").unwrap(),
        Some(source) => {
            let file = dir.0.join("loader.c");
            std::fs::write(&file, source).unwrap();
            let mut command = Command::new("cc");
            command.args(["-shared", "-fPIC", "-o"]).arg(library).arg(file);
            assert!(command.status().expect("cc, which linked this program").success());
        }
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test), "--nocapture"])
        .env(CHILD, test)
        .env("LD_LIBRARY_PATH", &dir.0)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "under another loader: {}{}", text[0], text[1]);
    assert!(text[0].contains("1 passed"), "there is no test {test}: {}", text[0]);
}

/// Every entry point fails with these words.
fn assert_absent(words: &[&str]) {
    let error = Device::open(0).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "no {word:?} in: {error}");
    }
    assert_eq!(Device::count().unwrap_err(), error);
    let backend = backend::by_name("level-zero").unwrap();
    assert_eq!(backend.available().unwrap_err(), error);
    assert_eq!(backend.allocate(4096).unwrap_err(), error);
}

#[test]
fn open_when_no_loader_then_not_supported_and_named() {
    under_loader("open_when_no_loader_then_not_supported_and_named", None, || {
        assert_absent(&["level-zero", "libze_loader.so.1", "libze1"]);
    });
}

#[test]
fn open_when_a_symbol_is_missing_then_not_supported_and_named() {
    let source = "int zeInit(unsigned flags) { return 0; }";
    let name = "open_when_a_symbol_is_missing_then_not_supported_and_named";
    under_loader(name, Some(source), || assert_absent(&["level-zero", "no symbol zeDriverGet"]));
}

#[test]
fn open_when_the_library_is_no_loader_then_not_supported_and_said() {
    let source = "int zeSomethingElse(void) { return 0; }";
    let name = "open_when_the_library_is_no_loader_then_not_supported_and_said";
    under_loader(name, Some(source), || assert_absent(&["no Level Zero loader", "zeInit"]));
}
