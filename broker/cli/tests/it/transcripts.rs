//! Runs the transcripts of the documentation, and compares what they show.

use crate::shared::full_name;
use std::process::Command;

/// Set in the process that the test starts.
const CHILD: &str = "FDBROKER_TEST_CHILD";

/// Every block ```console of docs/ and of the README.
#[test]
fn transcripts_when_run_then_as_the_documentation_shows() {
    const NAME: &str = "transcripts_when_run_then_as_the_documentation_shows";
    let root = env!("CARGO_MANIFEST_DIR");
    if std::env::var_os(CHILD).is_none() {
        // trycmd replaces the name of the working directory in every output: from `/` that would be
        // every slash.
        let mut again = Command::new(std::env::current_exe().expect("own path"));
        again.args(["--exact", &full_name(NAME), "--nocapture"]).current_dir(root).env(CHILD, NAME);
        let output = again.output().expect("the test starts again");
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && text[0].contains("1 passed"), "{}{}", text[0], text[1]);
        return;
    }
    let program = env!("CARGO_BIN_EXE_fdbroker");
    let folder = std::path::Path::new(program).parent().expect("it is in a folder");
    let rest = std::env::var("PATH").expect("a shell is found by it");
    let cases = trycmd::TestCases::new();
    cases
        .register_bin("fdbroker", std::path::Path::new(program))
        .env("PATH", format!("{}:{rest}", folder.display()))
        .env("FDBROKER_ADMIN_SOCKET", "/nowhere/admin.sock")
        .env("FDBROKER_SOCKET", "/nowhere/broker.sock")
        .case("../../docs/*.md")
        .case("../../README.md");
}
