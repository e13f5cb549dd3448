//! What these tests alone ask of objects, and a helper process that does what its test says. Must
//! never check what it sends.

use crate::support::objects::{Got, Group, News, code, memory, seal_memory};
use crate::support::peer::{Link, Peer};
use crate::support::raw::Raw;
use crate::support::wait::PATIENCE;
use fdbroker_protocol::object::{ObjectEvent, object_flags};
use fdbroker_protocol::{ErrorCode, Status};
use std::os::fd::OwnedFd;
use std::path::Path;

pub use object_flags::{EVICTABLE, JOB, KEEP, PIN, REPLACE, UNPIN};

/// Deadline of a get that is to wait for as long as its test, in ms.
pub const LONG_MS: u32 = 600_000;

const _: () = assert!(LONG_MS as u128 >= PATIENCE.as_millis());

/// Memory of this many zeros, without seals.
pub fn zeros(bytes: u64) -> OwnedFd {
    memory(&vec![0; usize::try_from(bytes).expect("small")])
}

/// A group of this size.
pub fn sized(size: u64) -> Group {
    Group { size, ..Group::default() }
}

/// The error of what is refused.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> ErrorCode {
    code(&outcome.expect_err("it is refused"))
}

/// A helper that is connected to the broker there.
pub fn maker_at(socket: &Path) -> Peer {
    let mut peer = Peer::start("maker");
    assert_eq!(peer.ask(&format!("connect {}", socket.display())), "OK");
    peer
}

impl Raw {
    /// Gets one, and gives its bytes and its version; its lease is given back.
    #[track_caller]
    pub fn read(&mut self, name: &str) -> Result<(Vec<u8>, u64), Status> {
        let got = self.get(&[name])?;
        let found = (got.bytes(0), got.versions()[0]);
        self.give_back(got);
        Ok(found)
    }

    /// Closes the fds, and gives the leases back.
    #[track_caller]
    pub fn give_back(&mut self, got: Got) {
        let leases = got.leases();
        drop(got);
        assert!(self.release(&leases).iter().all(Status::is_ok));
    }

    /// The events until one is this.
    #[track_caller]
    pub fn events_until(&self, wanted: ObjectEvent, name: &str) -> Vec<News> {
        let mut all = Vec::new();
        while !all.iter().any(|(event, _, its)| *event == wanted && its == name) {
            all.extend(self.next_news());
        }
        all
    }
}

/// A helper that makes objects: each line of its test is one thing to do. What it answers is a
/// version, a number of a group, OK, or the name of the error.
pub fn play(mut link: Link) {
    let mut objects = None;
    let mut groups = Vec::new();
    while let Some(line) = link.hear() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["replace", one, other] = words[..] {
            link.say("OK");
            replace(&mut link, objects.as_mut().expect("connected"), one, other);
            continue;
        }
        let said = act(&words, &mut objects, &mut groups);
        link.say(&said.unwrap_or_else(|status| match status.result() {
            Err(code) => code.name().to_owned(),
            Ok(()) => "OK".to_owned(),
        }));
    }
}

/// Replaces two objects of one group again and again until a line comes: both have the same text,
/// another each time.
fn replace(link: &mut Link, objects: &mut Raw, one: &str, other: &str) {
    for round in 0_u64.. {
        let text = round.to_string();
        let group = [(one, text.as_bytes()), (other, text.as_bytes())];
        objects.put_group(&group, REPLACE).expect("a name may be replaced");
        if link.has_line() {
            return link.say(&text);
        }
    }
}

fn text(got: &Got) -> String {
    String::from_utf8(got.bytes(0)).expect("text")
}

fn act(
    words: &[&str],
    objects: &mut Option<Raw>,
    groups: &mut Vec<(u64, OwnedFd)>,
) -> Result<String, Status> {
    if let ["user", uid] = words {
        let uid = nix::unistd::Uid::from_raw(uid.parse().expect("a uid"));
        nix::unistd::setgroups(&[]).expect("root");
        let gid = nix::unistd::Gid::from_raw(uid.as_raw());
        nix::unistd::setresgid(gid, gid, gid).expect("root");
        nix::unistd::setresuid(uid, uid, uid).expect("root");
        return Ok("OK".into());
    }
    if let ["join", job] = words {
        let process = std::process::id().to_string();
        std::fs::write(Path::new(job).join("cgroup.procs"), process).expect("root");
        return Ok("OK".into());
    }
    if let ["connect", socket] = words {
        *objects = Some(Raw::connect(Path::new(socket)));
        return Ok("OK".into());
    }
    let objects = objects.as_mut().expect("connected");
    let flags = |word: &str| word.parse::<u32>().expect("bits");
    match words {
        ["put", name, text, bits] => objects
            .put_group(&[(name, text.as_bytes())], flags(bits))
            .map(|version| version.to_string()),
        ["begin", name, text, bits] => {
            groups.push(objects.begin(&[(name, text.as_bytes())], flags(bits))?);
            Ok("OK".into())
        }
        ["seal"] => {
            let (group, memfd) = groups.pop().expect("a group");
            seal_memory(&memfd);
            objects.seal(group).map(|version| version.to_string())
        }
        ["read", name] => Ok(text(&objects.get(&[name])?)),
        ["read", name, bits] => Ok(text(&objects.get_within(&[name], 0, flags(bits))?)),
        ["delete", name] => Err(objects.delete(&[name])[0]),
        ["pin", name] => Err(objects.touch(&[name], PIN, 0)?[0]),
        // What a get says that waits in vain: the error, and who makes it.
        ["late", name] => match objects.get_within(&[name], 50, 0) {
            Err(status) => {
                let code = status.result().expect_err("an error");
                Ok(format!("{} {}", code.name(), status.pid))
            }
            Ok(_) => Ok("OK".into()),
        },
        ["list"] => Ok(objects.list("").len().to_string()),
        _ => panic!("no such thing to do: {words:?}"),
    }
}
