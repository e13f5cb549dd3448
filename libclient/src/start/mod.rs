//! A broker where there is none: whether the program `fdbroker` is run to start one, and where that
//! has put its socket. The program makes the place, keeps the broker and ends it. Must never start
//! one where a broker is named or a service is installed, which may just be starting: some
//! processes of a job would get another broker than the rest.

mod detached;
mod program;

use crate::deadline::Deadline;
use crate::env::{Variable, switch};
use crate::error::Error;
use crate::interrupt::{ask, sleep};
use crate::limits::{SERVICE_PAUSE, STARTER_WORDS};
use crate::wire::handshake::{Caller, Greeted, greet, no_answer};
use crate::wire::poll::{poll_one, shut_down};
use fdbroker_protocol::ErrorCode;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What to do where no broker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// Say so at once.
    Fail,
    /// Wait for the one that is named or installed.
    Wait,
    /// Start one.
    Start,
}

impl Absent {
    /// `wish`: what the program has said, in place of the environment. `is_named`: it or its user
    /// has named the socket.
    pub fn decide(wish: Option<bool>, is_named: bool, socket: &Path) -> Result<Self, Error> {
        let is_wanted = match (wish, Variable::of_process("FDBROKER_START")) {
            (Some(wish), _) => wish,
            (None, Some(variable)) => variable.read("1 or 0", switch)?,
            (None, None) => false,
        };
        // The environment, by which the program is found, is not that of the user's trust.
        // SAFETY: takes a number.
        let is_privileged = || unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let is_there = || is_named || socket.parent().is_some_and(Path::exists);
        Ok(match is_wanted && !is_privileged() {
            false => Absent::Fail,
            true if is_there() => Absent::Wait,
            true => Absent::Start,
        })
    }

    /// Connects; names the broker that was started in `caller`.
    pub fn greet(self, caller: &mut Caller, until: Deadline) -> Result<Greeted, Error> {
        loop {
            let starter = if self == Absent::Start { Some(Starter::run()?) } else { None };
            if let Some(starter) = &starter {
                caller.socket = starter.socket(until)?;
            }
            match greet(caller, until) {
                // One that was started was found at its end: its keeper was killed.
                Err(error)
                    if self != Absent::Fail
                        && error.code == ErrorCode::NotConnected
                        && !until.has_passed() =>
                {
                    sleep(SERVICE_PAUSE.min(until.remaining()));
                }
                outcome => return outcome,
            }
        }
    }
}

/// The program that starts the broker, or finds it. The broker stays while this is there.
struct Starter {
    program: PathBuf,
    /// Its stdin, stdout and stderr.
    answers: OwnedFd,
}

impl Starter {
    fn run() -> Result<Self, Error> {
        let program = program::find()?;
        let (kind, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
        let what = format!("start a broker by {}", program.display());
        let failed = |errno: Errno| Error::no_fd(ErrorCode::NotConnected, &what, errno);
        let (answers, stdio) =
            socketpair(AddressFamily::Unix, kind, None, flags).map_err(failed)?;
        let starter = Starter { program, answers };
        detached::run(&starter.program, "start", &environment(), stdio.as_fd()).map_err(failed)?;
        Ok(starter)
    }

    /// Waits for the path of the broker's socket.
    fn socket(&self, until: Deadline) -> Result<PathBuf, Error> {
        let mut said = Vec::new();
        while said.len() < STARTER_WORDS {
            let mut part = [0; 256];
            match recv(self.answers.as_raw_fd(), &mut part, MsgFlags::MSG_DONTWAIT) {
                Ok(count) if count > 0 => {
                    said.extend_from_slice(&part[..count]);
                    if let Some(path) = path_in(&said, b"READY ") {
                        return Ok(path);
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) if until.has_passed() => {
                    return Err(match path_in(&said, b"SILENT ") {
                        Some(path) => no_answer(&path).because(HUNG),
                        None => self.failed("it has not started one by the deadline"),
                    });
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {
                    poll_one(self.answers.as_fd(), PollFlags::POLLIN, until.remaining());
                    ask();
                }
                Ok(_) | Err(_) => break,
            }
        }
        let said = String::from_utf8_lossy(&said);
        Err(self.failed(match said.trim() {
            "" => "it has ended without a word; was it killed?",
            said => said.strip_prefix("fdbroker: ").unwrap_or(said),
        }))
    }

    fn failed(&self, why: &str) -> Error {
        let context = format!("start a broker by {}: {why}", self.program.display());
        Error::not_connected(context).because(
            "no broker was started; run `fdbroker doctor`, or name a broker in FDBROKER_SOCKET",
        )
    }
}

impl Drop for Starter {
    /// Forked children of the program may have the socket, too.
    fn drop(&mut self) {
        shut_down(self.answers.as_fd());
    }
}

/// Why a broker that programs have started does not answer in time.
const HUNG: &str = "it is stopped, hangs or is overloaded; `fdbroker stop` ends it, and the next program starts another";

/// `WORD PATH` in a whole line.
fn path_in(said: &[u8], word: &[u8]) -> Option<PathBuf> {
    let lines = said.split_inclusive(|byte| *byte == b'\n');
    let path = |line: &[u8]| Some(line.strip_suffix(b"\n")?.strip_prefix(word)?.to_owned());
    lines.filter_map(path).next().map(|path| OsStr::from_bytes(&path).into())
}

/// What the broker gets of the environment: neither what is preloaded into this program nor its
/// settings of fdbroker, which another program of the user may not have.
fn environment() -> Vec<Vec<u8>> {
    let is_passed = |name: &[u8]| {
        !name.starts_with(b"FDBROKER_") && !matches!(name, b"LD_PRELOAD" | b"LD_AUDIT")
    };
    std::env::vars_os()
        .filter(|(name, _)| is_passed(name.as_bytes()))
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect()
}
