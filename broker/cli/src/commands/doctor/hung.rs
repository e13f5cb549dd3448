//! Finds lanes of brokers, processes of theirs, that hang in a call in the kernel: where it waits,
//! the fds that stay open with it. Must never touch one of those fds.

use super::check::{Area, Check};
use std::path::{Path, PathBuf};

const AREA: Area = Area("broker");

/// The programs in which a broker runs, as the kernel has their names.
const PROGRAMS: [&str; 3] = ["fdbrokerd", "fdbroker", "fdbroker-broker"];

/// The name of the processes that make such calls, and of those that start them.
const LANE: &str = "fdbroker-lane";
const SPAWNER: &str = "fdbroker-lanes";

/// Links of fds that are shown.
const SHOWN: usize = 3;

pub fn checks() -> Vec<Check> {
    let proc = Path::new("/proc");
    numbered(proc).filter_map(|dir| check(proc, &dir)).collect()
}

fn check(proc: &Path, lane: &Path) -> Option<Check> {
    if read(lane, "comm").trim() != LANE || state(&read(lane, "stat")) != Some('D') {
        return None;
    }
    let fds: Vec<PathBuf> = numbered(&lane.join("fd")).collect();
    let links = fds.iter().filter_map(|fd| std::fs::read_link(fd).ok());
    let unusual = links.filter(|link| !link.to_string_lossy().contains(":["));
    let links: Vec<String> = unusual.take(SHOWN).map(|link| link.display().to_string()).collect();
    let found = format!(
        "process {} of {}, in D state in {}, {} fds stay open{}{}",
        name(lane),
        broker_of(proc, lane).unwrap_or("a broker that has ended".into()),
        read(lane, "wchan"),
        fds.len(),
        if links.is_empty() { "" } else { ": " },
        links.join(", ")
    );
    let remedy = "end or restart the file server or driver that its call waits for; new deposits of its user are refused until then, and what a broker that has ended had open stays open";
    Some(AREA.warn("call that hangs", found, remedy))
}

/// Pids of brokers that are stopped (SIGSTOP, a debugger) and answer nobody until they are
/// continued: `listener`, whatever its name, and where that is the service manager any other.
pub fn stopped(listener: i32) -> Vec<String> {
    stopped_in(Path::new("/proc"), &listener.to_string())
}

fn stopped_in(proc: &Path, listener: &str) -> Vec<String> {
    let is_stopped = |dir: &PathBuf| {
        let is_broker = PROGRAMS.contains(&read(dir, "comm").trim()) || name(dir) == listener;
        is_broker && matches!(state(&read(dir, "stat")), Some('T' | 't'))
    };
    let pids: Vec<String> = numbered(proc).filter(is_stopped).map(|dir| name(&dir)).collect();
    if pids.iter().any(|pid| pid == listener) { vec![listener.to_owned()] } else { pids }
}

/// The broker to which a lane belongs: the parent of its parent.
fn broker_of(proc: &Path, lane: &Path) -> Option<String> {
    let spawner = proc.join(parent(lane)?);
    if read(&spawner, "comm").trim() != SPAWNER {
        return None;
    }
    let broker = proc.join(parent(&spawner)?);
    Some(format!("{} {}", read(&broker, "comm").trim(), name(&broker)))
}

fn parent(process: &Path) -> Option<String> {
    let stat = read(process, "stat");
    Some(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.to_owned())
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
    fn check_when_a_lane_is_in_d_state_then_it_its_broker_and_what_stays_open_are_named() {
        let dir = std::env::temp_dir().join(format!("fdb-hung-{}", std::process::id()));
        let lane = dir.join("73");
        std::fs::create_dir_all(lane.join("fd")).unwrap();
        let put = |pid: &str, comm: &str, stat: &str| {
            std::fs::create_dir_all(dir.join(pid)).unwrap();
            std::fs::write(dir.join(pid).join("comm"), format!("{comm}\n")).unwrap();
            std::fs::write(dir.join(pid).join("stat"), format!("{pid} ({comm}) {stat} 7")).unwrap();
        };
        put("71", "fdbrokerd", "S 1");
        put("72", "fdbroker-lanes", "S 71");
        put("73", "fdbroker-lane", "D 72");
        std::fs::write(lane.join("wchan"), "request_wait_answer").unwrap();
        std::os::unix::fs::symlink("/mnt/hung", lane.join("fd/9")).unwrap();
        std::os::unix::fs::symlink("socket:[17]", lane.join("fd/10")).unwrap();
        let found = || check(&dir, &lane).map(|check| check.found);
        let said = |of: &str| {
            let rest = "in D state in request_wait_answer, 2 fds stay open: /mnt/hung";
            Some(format!("process 73 of {of}, {rest}"))
        };
        assert_eq!(found(), said("fdbrokerd 71"));
        // An orphan has another parent.
        put("1", "init", "S 0");
        put("73", "fdbroker-lane", "D 1");
        assert_eq!(found(), said("a broker that has ended"));
        put("73", "fdbroker-lane", "S 72");
        assert_eq!(found(), None);
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
