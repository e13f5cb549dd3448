//! Runs the transcripts of the documentation, and compares what they show.

/// Every block ```console of docs/ and of the README.
#[test]
fn transcripts_when_run_then_as_the_documentation_shows() {
    let program = env!("CARGO_BIN_EXE_fdbroker");
    let folder = std::path::Path::new(program).parent().expect("it is in a folder");
    let rest = std::env::var("PATH").expect("a shell is found by it");
    let cases = trycmd::TestCases::new();
    cases
        .register_bin("fdbroker", std::path::Path::new(program))
        .env("PATH", format!("{}:{rest}", folder.display()))
        .env("FDBROKER_ADMIN_SOCKET", "/nowhere/admin.sock")
        .env("FDBROKER_SOCKET", "/nowhere/broker.sock")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/*.md"))
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
}
