//! Processes that play a part: this program again, as another user, on a processor of its choice,
//! with a socket to the test as stdin. Must never outlive the test: they are ended by the end of
//! that socket, by the death of their parent, by a limit on their time, and in the end as the
//! process group that they were started as.

use super::wait::PATIENCE;
use crate::users::User;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// First argument of a process that plays a part.
pub const PART_FLAG: &str = "--part";

/// Seconds after which a part that nobody has ended ends itself.
const LIFETIME_S: u32 = 900;

/// The time that a part has to end by itself, once it is told.
const TIME_TO_END: Duration = Duration::from_secs(5);

/// Fds that a part may have: room for 10,000 connections.
const PART_FDS: u64 = 40_000;

/// Who goes before whom on a processor that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Before all others: what is measured. Only as root (SCHED_RR); else it is as any other.
    Measured,
    /// Before all usual ones (nice -20), but not before the kernel's threads, which the broker may
    /// have to wait for: a loop that is always busy would starve them under SCHED_RR, and itself
    /// with them. Only as root.
    Serving,
    /// As any other.
    Usual,
    /// Behind what is measured: as any other when that is before all, else it yields to everybody
    /// (SCHED_IDLE).
    Behind,
}

/// How a part is started.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// What it plays.
    pub part: &'static str,
    pub user: User,
    pub cpu: usize,
    /// Its priority on that processor.
    pub rank: Rank,
}

/// Lines between the test and a part, both ways.
#[derive(Debug)]
pub struct Link {
    reader: BufReader<UnixStream>,
}

impl Link {
    fn new(stream: UnixStream) -> Link {
        Link { reader: BufReader::new(stream) }
    }

    /// Says a line. That the other side has ended is found out where its answer is missed.
    pub fn say(&mut self, line: &str) {
        let _ = writeln!(self.reader.get_mut(), "{line}");
    }

    /// The next line; `None` when the other side has ended or is silent for too long.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }

    /// A second end, to listen for the end of the first.
    pub fn try_clone(&self) -> Link {
        Link::new(self.reader.get_ref().try_clone().expect("dup"))
    }
}

/// A part, seen from the test.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    link: Option<Link>,
    role: Role,
}

impl Peer {
    pub fn start(role: Role) -> Peer {
        let (here, there) = UnixStream::pair().expect("a socket pair");
        here.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let child = Command::new("/proc/self/exe")
            .args([PART_FLAG, role.part, &role.user.uid().to_string(), &role.cpu.to_string()])
            .arg(role.rank.name())
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("start a part");
        Peer { child, link: Some(Link::new(here)), role }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub fn say(&mut self, line: &str) {
        self.link.as_mut().expect("not ended").say(line);
    }

    /// Its next line. `Err`: it has ended or is silent.
    pub fn hear(&mut self) -> Result<String, String> {
        let line = self.link.as_mut().expect("not ended").hear();
        line.ok_or_else(|| format!("the part {:?} says nothing", self.role.part))
    }

    /// Says a line and awaits the answer.
    pub fn ask(&mut self, line: &str) -> Result<String, String> {
        self.say(line);
        self.hear()
    }

    /// Tells it to end, and hears its last line.
    pub fn end(mut self) -> Result<String, String> {
        let link = self.link.as_mut().expect("not ended");
        let _ = link.reader.get_ref().shutdown(std::net::Shutdown::Write);
        self.hear()
    }
}

impl Drop for Peer {
    /// Ends what is left of its process group. The group's number is nobody else's until its leader
    /// is waited for.
    fn drop(&mut self) {
        drop(self.link.take());
        let until = Instant::now() + TIME_TO_END;
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while matches!(waitid(Id::Pid(self.pid()), look), Ok(WaitStatus::StillAlive))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Becomes what the arguments behind [`PART_FLAG`] say; the name of the part, and its link.
pub fn enter(arguments: &[String]) -> (String, Link) {
    let [part, uid, cpu, rank] = arguments else { panic!("a part, a uid, a processor, a rank") };
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    if setrlimit(Resource::RLIMIT_NOFILE, PART_FDS, PART_FDS.max(most)).is_err() {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most.min(PART_FDS), most);
    }
    pin(cpu.parse().expect("a processor"));
    Rank::of(rank).take(Pid::from_raw(0));
    crate::users::become_user(uid.parse().expect("a uid"));
    die_with_parent();
    limit_time(LIFETIME_S);
    let stdin = std::io::stdin();
    let socket = std::os::fd::AsFd::as_fd(&stdin).try_clone_to_owned().expect("dup");
    (part.clone(), Link::new(socket.into()))
}

/// Runs this process on one processor only.
pub fn pin(cpu: usize) {
    pin_thread(Pid::from_raw(0), cpu);
}

/// Runs a thread on one processor only, if it has not ended.
pub fn pin_thread(thread: Pid, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a processor's number");
    match sched_setaffinity(thread, &set) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("a processor that may be used: {error}"),
    }
}

impl Rank {
    fn name(self) -> &'static str {
        match self {
            Rank::Measured => "measured",
            Rank::Serving => "serving",
            Rank::Usual => "usual",
            Rank::Behind => "behind",
        }
    }

    fn of(name: &str) -> Rank {
        let is_it = |rank: &Rank| rank.name() == name;
        let all = [Rank::Measured, Rank::Serving, Rank::Usual, Rank::Behind];
        all.into_iter().find(is_it).expect("a rank")
    }

    /// Gives it to a thread (0 = this one); what that starts has it not.
    pub fn take(self, thread: Pid) {
        let (policy, priority) = match (self, crate::users::are_many()) {
            (Rank::Measured, true) => (libc::SCHED_RR, 1),
            (Rank::Behind, false) => (libc::SCHED_IDLE, 0),
            (Rank::Serving, true) => {
                let id = libc::id_t::try_from(thread.as_raw()).expect("a thread");
                // SAFETY: takes numbers, touches no memory.
                let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, id, -20) };
                assert_eq!(failed, 0, "{self:?}: {}", std::io::Error::last_os_error());
                (libc::SCHED_OTHER, 0)
            }
            _ => return,
        };
        let param = libc::sched_param { sched_priority: priority };
        let policy = policy | libc::SCHED_RESET_ON_FORK;
        // SAFETY: the pointer is to a whole sched_param, which the call only reads.
        let failed = unsafe { libc::sched_setscheduler(thread.as_raw(), policy, &raw const param) };
        assert_eq!(failed, 0, "{self:?}: {}", std::io::Error::last_os_error());
    }
}

/// Has the kernel end this process with its parent; to be said again after a change of user.
pub fn die_with_parent() {
    // SAFETY: takes numbers, touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Ends this process after so many seconds, whatever it does.
pub fn limit_time(seconds: u32) {
    // SAFETY: takes a number; the default action of SIGALRM ends the process.
    unsafe { libc::alarm(seconds) };
}
