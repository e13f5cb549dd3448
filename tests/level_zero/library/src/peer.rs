//! Another process of a case: a rank that carries out orders, line by line. Must never decide
//! anything; the cases decide.
//!
//! A line is a verb with words. The answer is `ok` with words, or `failed`, the library's code or
//! `-`, and the reason.

use crate::PEER;
use crate::counters::Counters;
use crate::fault::{Fault, Outcome};
use crate::rank::{Rank, count_fds, count_memory_fds};
use fdbroker_client::{Error, ErrorCode, Handle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The peer, from the case's side.
pub struct Peer {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer with a client of this broker. `fds` is its RLIMIT_NOFILE.
    pub fn start(socket: &Path, fds: Option<u64>) -> Result<Self, Fault> {
        let program = std::env::current_exe()?;
        let mut process =
            Command::new(program).arg(PEER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = (process.stdin.take(), process.stdout.take().ok_or("no pipe")?);
        let mut peer = Peer { process, to, from: BufReader::new(from) };
        let fds = fds.map_or_else(|| "-".to_owned(), |fds| fds.to_string());
        peer.tell(&format!("start {} {fds}", socket.display()))?;
        Ok(peer)
    }

    /// Sends a line and waits; the words of the answer, or a fault.
    pub fn tell(&mut self, line: &str) -> Result<Vec<String>, Fault> {
        match self.try_tell(line)? {
            Ok(words) => Ok(words),
            Err((code, why)) => {
                let verb = line.split(' ').next().unwrap_or_default();
                Err(format!("the peer's {verb}: {code}: {why}").into())
            }
        }
    }

    /// The same for lines that may fail: the inner error is the library's code and the reason.
    pub fn try_tell(&mut self, line: &str) -> Result<Result<Vec<String>, (String, String)>, Fault> {
        writeln!(self.to.as_ref().ok_or("the pipe is closed")?, "{line}")?;
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        let mut words = answer.trim_end().split(' ').map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(Ok(words.collect())),
            Some("failed") => {
                let code = words.next().unwrap_or_default();
                Ok(Err((code, words.collect::<Vec<_>>().join(" "))))
            }
            _ => Err(format!("the peer gave no answer to {line:.60}").into()),
        }
    }

    /// Sends a verb followed by handles.
    pub fn with(&mut self, verb: &str, handles: &[Handle]) -> Result<Vec<String>, Fault> {
        self.tell(&line(verb, handles))
    }

    /// The same for lines that must fail with this code of the library.
    pub fn refuses(&mut self, verb: &str, handles: &[Handle], code: ErrorCode) -> Outcome {
        match self.try_tell(&line(verb, handles))? {
            Err((found, _)) if found == format!("{code:?}") => Ok(()),
            Err((found, why)) => Err(format!("{verb}: {found}: {why}; expected {code:?}").into()),
            Ok(_) => Err(format!("{verb} succeeded; expected {code:?}").into()),
        }
    }

    /// Sends a line that is answered by handles.
    pub fn handles(&mut self, line: &str) -> Result<Vec<Handle>, Fault> {
        Ok(self.tell(line)?.iter().map(|word| word.parse()).collect::<Result<_, _>>()?)
    }

    /// Sends a line that is answered by one number.
    pub fn number(&mut self, line: &str) -> Result<u64, Fault> {
        let words = self.tell(line)?;
        Ok(words.first().ok_or("no number came")?.parse()?)
    }

    /// Kills the peer, so that it cannot clean up.
    pub fn kill(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Lets the peer end; a fault when it has anything left.
    pub fn finish(mut self) -> Outcome {
        self.tell("clear")?;
        let left = self.tell("left")?;
        if !left.is_empty() {
            return Err(format!("the peer has left: {}", left.join(" ")).into());
        }
        self.to = None;
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the peer ended with {status}").into()) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn line(verb: &str, handles: &[Handle]) -> String {
    let words = handles.iter().map(Handle::to_string);
    std::iter::once(verb.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The peer's main function: serves lines until its stdin ends.
pub fn serve() -> Outcome {
    let mut rank = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let answer = match obey(&mut rank, verb, &words) {
            Ok(words) => std::iter::once("ok".to_owned()).chain(words).collect::<Vec<_>>(),
            Err(fault) => {
                let code = fault.downcast_ref::<Error>().map(|error| format!("{:?}", error.code));
                let why = fault.to_string().replace('\n', " ");
                vec!["failed".to_owned(), code.unwrap_or_else(|| "-".to_owned()), why]
            }
        };
        println!("{}", answer.join(" "));
    }
    Ok(())
}

fn obey(rank: &mut Option<Rank>, verb: &str, words: &[&str]) -> Result<Vec<String>, Fault> {
    if verb == "start" {
        *rank = Some(start(words)?);
        return Ok(Vec::new());
    }
    let rank = rank.as_mut().ok_or("not started")?;
    let numbers = || words.iter().map(|word| word.parse()).collect::<Result<Vec<usize>, _>>();
    let handles = || words.iter().map(|word| word.parse()).collect::<Result<Vec<_>, _>>();
    let salt = |index: usize| Ok::<_, Fault>(u16::try_from(numbers()?[index])?);
    let hex = |handles: Vec<Handle>| handles.iter().map(Handle::to_string).collect();
    match verb {
        "own" => return Ok(hex(rank.own(numbers()?[0], numbers()?[1], salt(2)?)?)),
        "foreign" => return Ok(hex(rank.foreign(numbers()?[0], numbers()?[1], salt(2)?)?)),
        "import" => rank.import(&handles()?)?,
        "import-at-number" => rank.import_at_exporters_number(&handles()?[0])?,
        // Rounds of import and release, with a check of the bytes in each.
        "rounds" => {
            let handle = words[2].parse()?;
            for _ in 0..numbers_of(words[0])? {
                rank.import(&[handle])?;
                rank.check_imports(u16::try_from(numbers_of(words[1])?)?)?;
                rank.imports.clear();
            }
        }
        "check" => rank.check_imports(salt(0)?)?,
        "write" => rank.write_imports(salt(0)?)?,
        "check-own" => rank.check_own(numbers()?[0], salt(1)?)?,
        "release" => rank.imports.clear(),
        "clear" => rank.clear()?,
        "fds" => return Ok(vec![count_fds()?.to_string()]),
        "memory-fds" => return Ok(vec![count_memory_fds()?.to_string()]),
        // The objects that the driver still has; no words when there are none.
        "left" => {
            let left = rank.counters()?;
            return Ok(if left == Counters::default() {
                Vec::new()
            } else {
                vec![format!("{left:?}")]
            });
        }
        verb => return Err(format!("{verb} is no verb").into()),
    }
    Ok(Vec::new())
}

fn numbers_of(word: &str) -> Result<usize, Fault> {
    Ok(word.parse()?)
}

fn start(words: &[&str]) -> Result<Rank, Fault> {
    if let Ok(fds) = words[1].parse() {
        // Only the soft limit: the driver's helper, which stands for the kernel, raises its own
        // again.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, fds, hard)?;
    }
    Rank::start(Path::new(words[0]), 2)
}
