//! Checks the node's service under systemd: whether it is installed, runs, and keeps its fds over a
//! restart. Must never start or change a unit.

use super::check::{Area, Check};
use super::program::answer;
use fdbrokerd::limits::{MAX_TABLE_FDS, store_entries};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const AREA: Area = Area("service");

/// Longest wait. The service manager needs milliseconds, under load a second.
const PATIENCE: Duration = Duration::from_secs(5);

const PROPERTIES: &str =
    "LoadState,ActiveState,FileDescriptorStoreMax,NFileDescriptorStore,LimitNOFILE";

/// All checks of the service; none without systemd.
pub fn checks() -> Vec<Check> {
    if !Path::new("/run/systemd/system").exists() {
        return Vec::new();
    }
    match show() {
        Ok(text) => judge(&properties(&text)),
        Err(why) => vec![AREA.warn("fdbrokerd.service", why, "see `systemctl status fdbrokerd`")],
    }
}

fn show() -> Result<String, String> {
    let mut command = Command::new("systemctl");
    command.args(["show", "fdbrokerd.service", "--no-pager", "--property", PROPERTIES]);
    let (status, text) =
        answer(&mut command, PATIENCE).map_err(|why| format!("systemctl: {why}"))?;
    if status.success() { Ok(text) } else { Err(format!("systemctl failed: {status}")) }
}

/// Reads lines of the form `NAME=VALUE`.
fn properties(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

fn judge(found: &HashMap<&str, &str>) -> Vec<Check> {
    let word = |name: &str| found.get(name).copied().unwrap_or_default();
    let number = |name: &str| word(name).parse::<u64>().unwrap_or_default();
    let name = "fdbrokerd.service";
    if word("LoadState") != "loaded" {
        return vec![
            AREA.ok(name, "not installed: jobs start brokers of their own with `fdbroker run`"),
        ];
    }
    let state = word("ActiveState");
    let running = match state {
        "active" => AREA.ok(name, state),
        "inactive" => AREA.ok(name, "inactive: its socket starts it"),
        _ => AREA.fail(name, state, "journalctl -u fdbrokerd; systemctl restart fdbrokerd"),
    };
    let (most, held) = (number("FileDescriptorStoreMax"), number("NFileDescriptorStore"));
    let stored = format!("{held} of {most} fds");
    let needed = store_entries(MAX_TABLE_FDS.min(number("LimitNOFILE")));
    let store = match most {
        0 => AREA.fail(
            "fd store",
            "off: a restart loses every fd",
            "FileDescriptorStoreMax= of systemd/fdbrokerd.service; systemctl daemon-reload",
        ),
        most if most < needed => AREA.warn(
            "fd store",
            format!("{stored}, too few for what may be kept"),
            format!(
                "what finds no place there is lost in a crash: FileDescriptorStoreMax={needed}"
            ),
        ),
        _ => AREA.ok("fd store", stored),
    };
    vec![running, store]
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn verdicts(text: &str) -> Vec<Verdict> {
        judge(&properties(text)).into_iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn judge_when_not_installed_then_ok_and_said() {
        assert_eq!(verdicts("LoadState=not-found\nActiveState=inactive\n"), [Verdict::Ok]);
    }

    #[test]
    fn judge_when_the_store_is_too_small_for_what_may_be_kept_then_the_number_that_is_needed() {
        let store = |most: u32| {
            let text = format!(
                "LoadState=loaded\nActiveState=active\nFileDescriptorStoreMax={most}\nNFileDescriptorStore=3\n\
                 LimitNOFILE=1048576\n"
            );
            judge(&properties(&text)).remove(1)
        };
        assert_eq!(store(384).verdict, Verdict::Ok);
        assert_eq!(store(140).verdict, Verdict::Warn);
        assert!(store(140).remedy.unwrap_or_default().contains("FileDescriptorStoreMax=384"));
    }

    #[test]
    fn judge_when_failed_or_without_a_store_then_fail() {
        let text = "LoadState=loaded\nActiveState=failed\nFileDescriptorStoreMax=0\nNFileDescriptorStore=0\n";
        assert_eq!(verdicts(text), [Verdict::Fail, Verdict::Fail]);
        let text = "LoadState=loaded\nActiveState=active\nFileDescriptorStoreMax=8192\nNFileDescriptorStore=3\n";
        assert_eq!(verdicts(text), [Verdict::Ok, Verdict::Ok]);
    }
}
