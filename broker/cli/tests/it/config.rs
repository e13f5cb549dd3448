//! `fdbroker config` as an administrator meets it.

use crate::common::{TestDir, end, fdbroker, one_json_line, run};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Output;

fn config(action: &str, file: &Path, more: &[&str]) -> Output {
    let mut command = fdbroker(&["config", action]);
    command.env_remove("FDBROKER_ADMIN_SOCKET").env_remove("FDBROKER_CONFIG");
    command.arg(file).args(more).output().expect("it starts")
}

fn write(dir: &TestDir, text: &str) -> PathBuf {
    let path = dir.path().join("fdbrokerd.toml");
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn check_when_good_then_said_and_exit_0() {
    let dir = TestDir::new("config-good");
    let at = |name: &str| dir.path().join(name);
    for made in ["a", "c"] {
        std::fs::DirBuilder::new().mode(0o755).create(at(made)).expect("made");
    }
    for (admin, missing) in [("a", false), ("b", true)] {
        let listener = at("c/broker.sock");
        let places = format!(
            "admin_socket = {:?}\n[[listener]]\npath = {listener:?}\nmode = 0o660\n",
            at(admin).join("admin.sock")
        );
        let path = write(&dir, &places);
        let output = config("check", &path, &[]);
        assert_eq!(end(&output), (Some(0), String::new()));
        let mut expected = format!("{}: good\n", path.display());
        if missing {
            let directory = at(admin);
            expected += &format!(
                "not tried, since it changes the machine: making the directory {}\n",
                directory.display()
            );
            assert!(!directory.exists());
        }
        assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), expected);
    }
}

#[test]
fn check_when_wrong_then_exit_1_and_the_place() {
    let dir = TestDir::new("config-wrong");
    for (text, part) in [
        ("[caps.node]\nfdz = 4096\n", "fdz"),
        ("[caps.node]\nfds = -1\n", "line 2"),
        ("log = \"loud\"\n", "loud"),
        ("[[listener]]\npath = \"/x/a\"\n[[listener]]\npath = \"/x/a\"\n", "another listener"),
        ("admin_socket = \"/x/a\"\n[[listener]]\npath = \"/x/a\"\n", "admin_socket has the same"),
        ("admin_socket = \"/proc/a/admin.sock\"\n", "nobody can make a directory in /proc"),
        ("[[listener]]\npath = \"a/b.sock\"\n", "relative"),
        ("[[listener]]\npath = \"/x/b.sock\"\nmode = 999\n", "octal"),
        (&format!("admin_socket = \"/{}\"\n", "x".repeat(107)), "107"),
    ] {
        let (code, stderr) = end(&config("check", &write(&dir, text), &[]));
        assert_eq!(code, Some(1), "{text}");
        assert!(stderr.contains(part), "{text}: {stderr}");
    }
    let (code, stderr) = end(&config("check", &dir.path().join("none.toml"), &[]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("none.toml"), "{stderr}");
    assert!(!stderr.contains("--config"), "the command has no such flag: {stderr}");
}

#[test]
fn show_when_asked_then_each_value_with_its_origin() {
    let dir = TestDir::new("config-show");
    let path = write(&dir, "[caps.node]\nfds = 4096\n");
    let text = String::from_utf8(config("show", &path, &[]).stdout).expect("UTF-8");
    assert!(
        text.contains("fds = 4096  # file") && text.contains("log = \"info\"  # default"),
        "{text}"
    );

    let found = one_json_line(&config("show", &path, &["--json"]));
    assert_eq!(found["file"], path.display().to_string());
    let settings = found["settings"].as_array().expect("an array");
    let get = |key: &str| {
        let is_it = |setting: &&serde_json::Value| setting["setting"] == key;
        settings.iter().find(is_it).unwrap_or_else(|| panic!("no {key}"))
    };
    assert_eq!(
        (&get("caps.node.fds")["value"], &get("caps.node.fds")["from"]),
        (&4096.into(), &"file".into())
    );
    assert_eq!(get("log")["value"], "info");
    assert!(get("caps.job.fds")["value"].is_null());
}

#[test]
fn help_when_asked_then_it_says_that_no_running_broker_is_shown() {
    for action in ["check", "show"] {
        let output = run(&["config", action, "--help"]);
        let help = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(help.contains("what a daemon started here would use"), "{action}: {help}");
        assert!(help.contains("They ask no running broker"), "{action}: {help}");
    }
}
