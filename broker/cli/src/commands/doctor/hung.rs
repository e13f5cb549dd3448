//! Finds brokers with a call that hangs in the kernel: the thread, where it waits, the fds that stay open with it. A broker that
//! was killed cannot end meanwhile. Must never touch one of those fds.

use super::check::{Area, Check};
use std::path::{Path, PathBuf};

const AREA: Area = Area("broker");

/// The programs in which a broker runs, as the kernel has their names.
const PROGRAMS: [&str; 3] = ["fdbrokerd", "fdbroker", "fdbroker-broker"];

/// The name of the threads that make such calls.
const LANE: &str = "lane";

/// Links of fds that are shown.
const SHOWN: usize = 3;

pub fn checks() -> Vec<Check> {
    let processes = numbered(Path::new("/proc"));
    let brokers = processes.filter(|dir| PROGRAMS.contains(&read(dir, "comm").trim()));
    brokers.filter_map(|dir| check(&dir)).collect()
}

fn check(process: &Path) -> Option<Check> {
    let is_hung = |thread: &PathBuf| {
        let is_lane = read(thread, "comm").trim() == LANE;
        is_lane && state(&read(thread, "stat")) == Some('D')
    };
    let thread = numbered(&process.join("task")).find(is_hung)?;
    let fds: Vec<PathBuf> = numbered(&thread.join("fd")).collect();
    let links = fds.iter().filter_map(|fd| std::fs::read_link(fd).ok());
    let unusual = links.filter(|link| !link.to_string_lossy().contains(":["));
    let links: Vec<String> = unusual.take(SHOWN).map(|link| link.display().to_string()).collect();
    let is_killed = state(&read(process, "stat")) == Some('Z');
    let found = format!(
        "{} {}, {}, thread {} in D state in {}, {} fds stay open{}{}",
        read(process, "comm").trim(),
        name(process),
        if is_killed { "killed" } else { "alive" },
        name(&thread),
        read(&thread, "wchan"),
        fds.len(),
        if links.is_empty() { "" } else { ": " },
        links.join(", ")
    );
    let remedy = "end or restart the file server or driver that its call waits for; new deposits of its user are refused until then, and a broker that was killed ends then";
    Some(AREA.warn("call that hangs", found, remedy))
}

/// Pids of brokers that are stopped (SIGSTOP, a debugger) and answer nobody until they are continued: `listener`, whatever its
/// name, and where that is the service manager any other.
pub fn stopped(listener: i32) -> Vec<String> {
    stopped_in(Path::new("/proc"), &listener.to_string())
}

fn stopped_in(proc: &Path, listener: &str) -> Vec<String> {
    let is_stopped = |dir: &PathBuf| {
        let is_broker = PROGRAMS.contains(&read(dir, "comm").trim()) || name(dir) == listener;
        is_broker && matches!(state(&read(dir, "stat")), Some('T' | 't'))
    };
    let pids: Vec<String> = numbered(proc).filter(is_stopped).map(|dir| name(&dir)).collect();
    match pids.iter().any(|pid| pid == listener) {
        true => vec![listener.to_owned()],
        false => pids,
    }
}

/// The entries of a folder whose names are numbers.
fn numbered(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| name(path).parse::<u32>().is_ok())
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// The state behind the name, which may have parentheses itself (proc_pid_stat(5)).
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_when_a_thread_is_in_d_state_then_it_and_what_stays_open_are_named() {
        let dir = std::env::temp_dir().join(format!("fdb-hung-{}", std::process::id()));
        let process = dir.join("71");
        let thread = process.join("task/73");
        std::fs::create_dir_all(thread.join("fd")).unwrap();
        for (folder, comm, state) in [(&process, "fdbrokerd", 'Z'), (&thread, "lane", 'D')] {
            std::fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(folder.join("stat"), format!("7 ({comm}) {state} 1 7")).unwrap();
        }
        std::fs::write(thread.join("wchan"), "request_wait_answer").unwrap();
        std::os::unix::fs::symlink("/mnt/hung", thread.join("fd/9")).unwrap();
        std::os::unix::fs::symlink("socket:[17]", thread.join("fd/10")).unwrap();
        let found = check(&process).unwrap().found;
        assert_eq!(
            found,
            "fdbrokerd 71, killed, thread 73 in D state in request_wait_answer, 2 fds stay open: /mnt/hung"
        );
        std::fs::write(thread.join("stat"), "7 (lane) S 1 7").unwrap();
        assert!(check(&process).is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }
    #[test]
    fn stopped_when_brokers_are_stopped_or_traced_then_their_pids_alone() {
        let dir = std::env::temp_dir().join(format!("fdb-stopped-{}", std::process::id()));
        let all = [("71", "fdbrokerd", 'T'), ("72", "fdbroker", 'S'), ("73", "sh", 'T')];
        for (pid, comm, state) in all {
            std::fs::create_dir_all(dir.join(pid)).unwrap();
            std::fs::write(dir.join(pid).join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(dir.join(pid).join("stat"), format!("{pid} ({comm}) {state} 1"))
                .unwrap();
        }
        assert_eq!(stopped_in(&dir, "1"), ["71"]);
        std::fs::write(dir.join("71/stat"), "71 (fdbrokerd) t 1").unwrap();
        assert_eq!(stopped_in(&dir, "72"), ["71"]);
        // It may have another name.
        assert_eq!(stopped_in(&dir, "73"), ["73"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
