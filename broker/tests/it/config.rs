//! The settings from an administrator's view: `--check-config`, precedence, errors with their
//! remedy, help.

use crate::common::program;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output, Stdio};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn check(command: &mut Command) -> (Output, String, String) {
    let output = command.arg("--check-config").output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[test]
fn check_config_when_good_then_every_value_with_its_origin() {
    let file = file("[caps.node]\nfds = 4000\n[limits]\nmax_clients = 7\n");
    let (output, out, _) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(0));
    for line in [
        "max_clients = 7  # file",
        "fds = 4000  # file",
        "recall_timeout_ms = 2000  # default",
        "keep_ttl_ms = 60000  # default",
        "object_ttl_ms = 86400000  # default",
        "base_credits = 3  # default",
        "mode = 0o666  # default",
    ] {
        assert!(out.lines().any(|have| have == line), "{line} in\n{out}");
    }
}

#[test]
fn check_config_when_max_clients_bounds_a_cap_then_the_cap_in_force_and_what_bounds_it() {
    for (asked, line) in
        [(8, "connections = 7  # limits.max_clients"), (6, "connections = 6  # file")]
    {
        let content = format!("[caps.node]\nconnections = {asked}\n[limits]\nmax_clients = 7\n");
        let file = file(&content);
        let (_, out, err) = check(program().arg("--config").arg(file.path()));
        assert!(out.lines().any(|have| have == line), "{out}{err}");
    }
}

#[test]
fn check_config_when_the_table_is_small_then_no_more_kept_objects_than_their_carriers_can_take() {
    for (asked, line) in
        [("", "default"), ("kept_fds = 9000", "limits.table_fds"), ("kept_fds = 7", "file")]
    {
        let file = file(&format!("[caps.node]\n{asked}\n"));
        let (_, out, err) =
            check(program().args(["--set", "limits.table_fds=1000", "--config"]).arg(file.path()));
        let value = if line == "file" { 7 } else { 250 };
        let line = format!("kept_fds = {value}  # {line}");
        assert!(out.lines().any(|have| have == line), "{line} in\n{out}{err}");
    }
}

#[test]
fn check_config_when_nobody_can_be_told_then_the_exit_status_tells() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for asked in ["--check-config", "--help", "--version"] {
        let output = program().arg(asked).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{asked}");
        assert!(text(&output.stderr).contains("No space left"), "{output:?}");
    }
    let mut command = program();
    command.args(["--check-config", "--config", "/no/such/file"]).stderr(full());
    assert_eq!(command.output().unwrap().status.code(), Some(1));
}

#[test]
fn check_config_when_printed_then_it_is_a_configuration_that_gives_the_same() {
    let settings = |out: &str| -> Vec<String> {
        let values = out.lines().filter(|line| !line.starts_with('#'));
        values.map(|line| line.split("  # ").next().unwrap_or_default().to_owned()).collect()
    };
    let (_, first, _) = check(program().args(["--set", "limits.max_clients=9", "--log", "debug"]));
    let file = file(&first);
    let (output, second, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(settings(&first), settings(&second));
}

#[test]
fn daemon_when_its_configuration_cannot_be_served_then_the_check_says_what_the_start_says() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("{:?}", dir.path().join(name));
    let listener = |path: &str| format!("[[listener]]\npath = {path}\n");
    let (a, b, long) = (at("c/a.sock"), at("d/b.sock"), at(&"x".repeat(107)));
    let (view, spelled) = (at("c/view.sock"), at("d/../c/a.sock"));
    let admin = format!("admin_socket = {}\n", at("admin/admin.sock"));
    for (content, part) in [
        (format!("{admin}{0}{1}{0}", listener(&a), listener(&b)), "another listener has the same"),
        (format!("admin_socket = {a}\n{}", listener(&a)), "admin_socket has the same path"),
        (format!("{admin}{}{}", listener(&a), listener(&view)), "the same path"),
        (format!("{admin}{}{}", listener(&a), listener(&spelled)), "a path of its own"),
        (format!("admin_socket = {long}\n{}", listener(&a)), "allows a socket's 107"),
        (admin.clone() + &listener(&long), "allows a socket's 107"),
        (format!("admin_socket = \"/proc/a/admin.sock\"\n{}", listener(&a)), "/proc/a"),
        (admin.clone() + &listener("\"a/b.sock\""), "the path is relative"),
        (format!("admin_socket = \"admin.sock\"\n{}", listener(&a)), "the path is relative"),
        (admin.clone() + &listener("\"/\""), "the path names a directory"),
        (format!("{admin}{}mode = 999\n", listener(&a)), "written in octal"),
        (format!("{admin}{}mode = 600\n", listener(&a)), "written in octal"),
    ] {
        let file = file(&content);
        let (output, _, err) = check(program().arg("--config").arg(file.path()));
        assert_eq!(output.status.code(), Some(1), "{content}");
        assert!(err.contains(part), "{part} in {err}");
        // A daemon that does start ends at once, without an error.
        let mut start = program();
        start.args(["--until-eof", "0", "--config"]).arg(file.path()).stdin(Stdio::piped());
        let started = start.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = started.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{content}");
        let said = without_program(&err);
        let at_start = text(&output.stderr);
        assert!(at_start.contains(said), "{said} in {at_start}");
    }
}

/// Exit status and log of a daemon that starts with this file and ends at once.
fn start_and_end(dir: &std::path::Path, content: &str) -> (Option<i32>, String) {
    let file = dir.join("fdbrokerd.toml");
    std::fs::write(&file, content).unwrap();
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let of = log.metadata().unwrap();
    let mut start = program();
    start.env("JOURNAL_STREAM", format!("{}:{}", of.dev(), of.ino()));
    start.arg("--config").arg(file).arg("--socket").arg(dir.join("c/s")).args(["--until-eof", "0"]);
    let mut started = start.stdin(Stdio::piped()).stderr(log).spawn().unwrap();
    drop(started.stdin.take());
    (started.wait().unwrap().code(), std::fs::read_to_string(dir.join("log")).unwrap())
}

#[test]
fn daemon_when_its_file_breaks_then_the_next_start_serves_as_the_last_good_one_and_says_why_once() {
    let dir = tempfile::tempdir().unwrap();
    let good = "[caps.node]\nfds = 1000\n";
    let broken = "[caps.node]\nfds = 1000\ncolour = 1\n";
    let records = |log: &str| -> Vec<String> {
        log.lines().filter(|line| line.starts_with("<3>")).map(str::to_owned).collect()
    };
    // Without a good start before, it does not serve, and says why in one record.
    let (status, log) = start_and_end(dir.path(), broken);
    assert_eq!((status, log.lines().count(), records(&log).len()), (Some(1), 1, 1), "{log}");
    assert_eq!(start_and_end(dir.path(), good).0, Some(0));
    let (status, log) = start_and_end(dir.path(), broken);
    assert_eq!(status, Some(0), "{log}");
    let [record] = &records(&log)[..] else { panic!("{log}") };
    for part in ["line 3, `colour = 1`", "unknown field", "correct the line", "last good start"] {
        assert!(record.contains(part), "{part} in {record}");
    }
    assert!(log.contains("serving"), "{log}");
}

#[test]
fn check_config_when_a_cap_lets_nobody_share_or_listeners_are_too_many_then_refused() {
    let listeners: String =
        (0..17).map(|n| format!("[[listener]]\npath = \"/tmp/x{n}/s\"\n")).collect();
    for (content, part) in [
        ("[caps.node]\nfds = 0\n", "caps.node.fds: 0 lets nobody share"),
        ("[caps.job]\nopen_leases = 0\n", "caps.job.open_leases: 0"),
        (&*listeners, "17 of them, at most 16"),
    ] {
        let file = file(content);
        // The environment names a socket in place of the listeners, here and not in the service.
        let mut command = program();
        command.env("FDBROKER_SOCKET", "/tmp/a/s").arg("--config").arg(file.path());
        let (output, _, err) = check(&mut command);
        assert_eq!(output.status.code(), Some(1), "{content}");
        assert!(err.contains(part), "{part} in {err}");
    }
    let file = file("[caps.client]\nkept_allocations = 0\n");
    let (output, _, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(0), "{err}");
}

#[test]
fn check_config_when_a_cap_is_above_one_that_bounds_it_then_warned() {
    let file =
        file("[caps.node]\nfds = 900\n[caps.domain]\nfds = 2000\n[caps.client]\nfds = 800\n");
    let (output, out, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(0), "{err}");
    let warned: Vec<_> = out.lines().filter(|line| line.contains("of no use")).collect();
    let [line] = warned[..] else { panic!("{out}") };
    assert!(line.contains("caps.domain.fds = 2000 is of no use: caps.node.fds = 900"), "{line}");
}

#[test]
fn check_config_when_a_directory_is_of_another_user_then_refused_as_by_the_start() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let admin = dir.path().join("admin");
    std::fs::create_dir(&admin).unwrap();
    std::os::unix::fs::chown(&admin, Some(61_234), None).unwrap();
    let content = format!("admin_socket = {:?}\n", admin.join("admin.sock"));
    let file = file(&content);
    let (output, _, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("belongs to uid 61234"), "{err}");
}

#[test]
fn check_config_when_a_time_of_zero_would_stop_everybody_then_refused_with_the_least_that_works() {
    for key in ["handshake_timeout_ms", "keep_ttl_ms", "object_ttl_ms"] {
        let file = file(&format!("[limits]\n{key} = 0\n"));
        let (output, _, err) = check(program().arg("--config").arg(file.path()));
        assert_eq!(output.status.code(), Some(1), "{key}");
        assert!(err.contains(key) && err.contains("at least 1"), "{err}");
    }
}

/// An error text without the program's name in front.
fn without_program(line: &str) -> &str {
    line.trim_end().trim_start_matches("fdbrokerd: ")
}

#[test]
fn check_config_when_a_directory_is_missing_then_said_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c/a.sock");
    let (output, out, err) = check(program().arg("--socket").arg(&socket));
    assert_eq!(output.status.code(), Some(0), "{err}");
    let missing = format!(
        "not tried, since it changes the machine: making the directory {}",
        dir.path().join("c").display()
    );
    assert!(out.contains(&missing), "{missing} in {out}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn daemon_when_it_serves_otherwise_than_its_file_reads_then_check_and_start_warn_alike() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let content = format!(
        "admin_socket = {:?}\nmonitor_group = \"no-such-group\"\n[[listener]]\npath = {:?}\n[[listener]]\npath = {:?}\n",
        at("admin/s"),
        at("a/s"),
        at("b/s"),
    );
    let (file, b) = (file(&content), at("b/s"));
    let configured = || {
        let mut command = program();
        command.env("FDBROKER_SOCKET", at("a/s")).arg("--config").arg(file.path());
        command
    };
    let (output, checked, err) = check(&mut configured());
    assert_eq!(output.status.code(), Some(0), "{err}");
    let mut start = configured();
    start.args(["--until-eof", "0"]).stdin(Stdio::null());
    let started = text(&start.output().unwrap().stderr);
    let of_listener = format!("listener {} is not served: FDBROKER_SOCKET", b.display());
    for warning in ["monitor_group no-such-group: it is not known here", &of_listener] {
        assert!(checked.contains(warning), "{warning} in {checked}");
        assert!(started.contains(warning), "{warning} in {started}");
    }
    assert!(!checked.contains(&format!("listener {}", at("a/s").display())), "{checked}");
}

#[test]
fn precedence_when_all_are_set_then_flag_environment_file_default() {
    let file = file("[caps.node]\nfds = 1000\n");
    let fds = |command: &mut Command| {
        let (_, out, err) = check(command.arg("--config").arg(file.path()));
        out.lines().find(|line| line.starts_with("fds = ")).unwrap_or(&err).to_owned()
    };
    assert_eq!(fds(&mut program()), "fds = 1000  # file");
    assert_eq!(fds(program().env("FDBROKER_MAX_FDS", "2000")), "fds = 2000  # environment");
    let flag = fds(program().env("FDBROKER_MAX_FDS", "2000").args(["--max-fds", "3000"]));
    assert_eq!(flag, "fds = 3000  # flag");
    let set = fds(program().env("FDBROKER_MAX_FDS", "2000").args(["--set", "caps.node.fds=5"]));
    assert_eq!(set, "fds = 5  # flag --set");
}

#[test]
fn check_config_when_a_key_is_unknown_then_file_line_key_and_remedy() {
    let file = file("[limits]\nmax_clients = 7\nmax_cleints = 8\n");
    let (output, _, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(1));
    let path = file.path().display().to_string();
    for part in [path.as_str(), "line 3", "unknown field `max_cleints`", "correct the line"] {
        assert!(err.contains(part), "{part} in {err}");
    }
}

#[test]
fn check_config_when_caps_have_units_then_those_of_limits_set() {
    let file = file(
        "[caps.node]\nheld_bytes = \"8Gi\"\nfds = \"none\"\n[caps.job]\nopen_leases = \"2K\"\nfds = 40\n",
    );
    let (output, out, err) = check(program().arg("--config").arg(file.path()));
    assert_eq!(output.status.code(), Some(0), "{err}");
    for line in [
        "held_bytes = 8589934592  # file",
        "# fds = none  # file",
        "open_leases = 2000  # file",
        "fds = 40  # file",
    ] {
        assert!(out.lines().any(|it| it == line), "{line} in\n{out}");
    }
    for (wrong, remedy) in [
        ("\"8X\"", "use digits and K, M, G, T, P, Ki, Mi, Gi, Ti or Pi, or none"),
        ("\"99999999T\"", "too large"),
        ("-1", "a number that is not negative"),
        ("1.5", "text such as \"8Gi\""),
    ] {
        let content = format!("[caps.node]\nheld_bytes = {wrong}\n");
        let (output, _, err) = check(program().arg("--config").arg(self::file(&content).path()));
        assert_eq!(output.status.code(), Some(1), "{wrong}");
        assert!(err.contains(remedy) && err.contains("held_bytes"), "{wrong}: {err}");
    }
}

#[test]
fn check_config_when_a_value_cannot_be_used_then_its_source_is_named() {
    for fds in ["many", "0"] {
        let (output, _, err) = check(program().env("FDBROKER_MAX_FDS", fds));
        assert_eq!(output.status.code(), Some(1));
        let value = format!("`{fds}`");
        assert!(err.contains("FDBROKER_MAX_FDS") && err.contains(&value), "{err}");
    }
    for misspelt in [OsStr::new("wran"), OsStr::from_bytes(b"warn\xff")] {
        let (output, _, err) = check(program().env("FDBROKER_LOG", misspelt));
        assert_eq!(output.status.code(), Some(1));
        assert!(err.contains("FDBROKER_LOG") && err.contains("off, error, warn, info"), "{err}");
    }
    let (output, _, err) = check(program().args(["--config", "/nonexistent/x.toml"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("cannot read /nonexistent/x.toml"), "{err}");
    let (output, _, err) = check(program().args(["--set", "limits.max_credits=300"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("max_credits = 300 must be from 1 to 253"), "{err}");
}

#[test]
fn places_when_named_then_the_admin_directory_follows() {
    let sockets = |command: &mut Command| {
        let (_, out, _) = check(command);
        let value = |key: &str| {
            let line = out.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
            line.unwrap().split('"').nth(1).unwrap().to_owned()
        };
        (value("path"), value("admin_socket"))
    };
    let pair = |path: &str, admin: &str| (path.to_owned(), admin.to_owned());
    assert_eq!(
        sockets(program().env("FDBROKER_SOCKET", "/x/y/b.sock")),
        pair("/x/y/b.sock", "/x/y-admin/admin.sock")
    );
    assert_eq!(
        sockets(program().args(["--private", "/job"]).env("FDBROKER_SOCKET", "/x/y/b.sock")),
        pair("/job/fdbroker/broker.sock", "/job/fdbroker-admin/admin.sock")
    );
    assert_eq!(
        sockets(program().env("FDBROKER_ADMIN_SOCKET", "/a/b").args(["--socket", "/x/c"])),
        pair("/x/c", "/a/b")
    );
    let file = file("[[listener]]\npath = \"/p/q/r.sock\"\n[[listener]]\npath = \"/s/t\"\n");
    assert_eq!(
        sockets(program().arg("--config").arg(file.path())),
        pair("/p/q/r.sock", "/p/q-admin/admin.sock")
    );
}

#[test]
fn usage_when_wrong_then_exit_2_and_help_teaches() {
    for wrong in [&["--no-such-flag"][..], &["--max-fds", "0"]] {
        let output = program().args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    let output = program().arg("--help").output().unwrap();
    let help = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    for part in ["Examples:", "Environment:", "FDBROKER_SOCKET", "--check-config", "Exit status:"] {
        assert!(help.contains(part), "{part} in\n{help}");
    }
}
