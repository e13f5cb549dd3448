//! Processes that help a test: this program again, with a variable that names the part to play, and
//! a socket to the test as stdin. They must never outlive their test: it ends them by pid, and they
//! end at the end of that socket.

use super::wait::PATIENCE;
use fdbroker_protocol::Handle;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// Variable that names the part to play; unset in a test.
const PART_VARIABLE: &str = "FDBROKER_TEST_PART";

/// The test below that plays the parts.
const ENTRANCE: &str = "support::peer::peer_when_its_part_fails_then_the_test_hears_it";

/// A part's name, and the function that plays it.
pub type Part = (&'static str, fn(Link));

/// The part of a helper that fails.
const FAILING: Part = ("fail", |_| panic!("as it was told"));

/// The part of this name, which the test program has.
fn part(name: &str) -> Option<&'static Part> {
    [&FAILING].into_iter().chain(crate::PARTS).find(|(its, _)| *its == name)
}

/// Lines between a test and its helper, both ways.
#[derive(Debug)]
pub struct Link {
    reader: BufReader<UnixStream>,
}

impl Link {
    fn new(stream: UnixStream) -> Link {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Link { reader: BufReader::new(stream) }
    }

    pub fn say(&mut self, line: &str) {
        assert!(!line.contains('\n'), "one line at a time");
        // The other side has ended. The test fails where it awaits the missing line.
        let _ = writeln!(self.reader.get_mut(), "{line}");
    }

    /// Fd that is readable when a line has come.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }

    /// Whether a line has come, or is coming.
    pub fn has_line(&self) -> bool {
        !self.reader.buffer().is_empty() || super::wait::is_readable_now(self.as_fd())
    }

    /// The next line; `None` when the other side has ended.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("the other side says nothing: {error}"),
        }
    }
}

/// A helper of a test.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    pub link: Link,
}

impl Peer {
    pub fn start(part: &str) -> Peer {
        assert!(self::part(part).is_some(), "nobody plays {part}");
        let (here, there) = UnixStream::pair().expect("a socket pair");
        let child = Command::new("/proc/self/exe")
            .args(["--exact", ENTRANCE, "--nocapture", "--test-threads=1"])
            .env(PART_VARIABLE, part)
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null())
            .spawn()
            .expect("start a helper");
        Peer { child, link: Link::new(here) }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Sends a line and awaits the answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.link.say(line);
        self.hear()
    }

    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.link.hear().expect("the helper has ended; its message is above")
    }

    /// Stops the process: it neither answers nor ends.
    pub fn stop(&self) {
        signal_and_await(self.pid(), Signal::SIGSTOP, 'T');
    }

    /// Lets the stopped process go on.
    pub fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).expect("SIGCONT");
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
    }
}

/// Sends a signal, and waits until /proc/PID/stat shows the state.
pub fn signal_and_await(pid: Pid, signal: Signal, wanted: char) {
    kill(pid, signal).expect("kill");
    super::wait::eventually("the process is in that state", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        state == Some(wanted)
    });
}

pub fn to_line(handles: &[Handle]) -> String {
    handles.iter().map(Handle::to_string).collect::<Vec<_>>().join(" ")
}

/// Handles from the words of such a line.
pub fn from_words<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Handle> {
    words.map(|word| word.parse().expect("a handle")).collect()
}

/// In a helper process, plays its part. In a test run, checks that the failure of a helper is
/// noticed.
#[test]
fn peer_when_its_part_fails_then_the_test_hears_it() {
    let Ok(name) = std::env::var(PART_VARIABLE) else {
        let mut peer = Peer::start("fail");
        assert_eq!(peer.link.hear(), None);
        assert_eq!(peer.child.wait().expect("wait").code(), Some(101));
        return;
    };
    let (_, play) = part(&name).expect("a part of the play");
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().expect("dup");
    play(Link::new(stdin.into()));
}
