//! A helper process that plays a rank: each line of its test is one thing to do with the library.
//! Must never end by itself while its test lives.

use super::memory::{BLOCK_BYTES, Blocks, host_memory, pattern};
use super::peer::{Link, Peer, from_words, to_line};
use super::wait::patience;
use fdbroker_client::{
    Access, Arena, Client, Error, Grant, HostBuffer, Import, Progress, Share, VirtualFd,
};
use fdbroker_protocol::Handle;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::str::SplitAsciiWhitespace;
use std::time::Duration;

/// All that the rank holds.
#[derive(Default)]
struct Rank {
    client: Option<Client>,
    buffers: Vec<HostBuffer>,
    grants: Vec<Grant>,
    imports: Vec<Import>,
}

/// Plays the rank until the test has ended.
pub fn play(mut link: Link) {
    let mut rank = Rank::default();
    while let Some(line) = rank.hear(&mut link) {
        let mut words = line.split_ascii_whitespace();
        let answer = match rank.act(&mut words) {
            Ok(answer) => answer,
            Err(error) => error.code.name().to_owned(),
        };
        link.say(&answer);
    }
}

impl Rank {
    /// The next line. In dispatch mode the rank serves until the line comes, like a progress
    /// engine.
    fn hear(&self, link: &mut Link) -> Option<String> {
        let serving = self.client.as_ref().filter(|client| client.event_fd().is_ok());
        while let Some(client) = serving {
            let events = client.event_fd().expect("in dispatch mode");
            let mut entries = [link.as_fd(), events].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            poll(&mut entries, PollTimeout::NONE).expect("poll");
            if !entries[0].revents().expect("known events").is_empty() {
                break;
            }
            client.dispatch(Duration::ZERO).expect("in dispatch mode");
        }
        link.hear()
    }

    fn act(&mut self, words: &mut SplitAsciiWhitespace<'_>) -> Result<String, Error> {
        let verb = words.next().expect("a verb");
        match verb {
            "user" => become_user(number(words), number(words), words.map(group).collect()),
            "connect" => {
                let path = words.next().expect("a path");
                let builder = Client::builder().socket(path).name("rank").own_fds(2);
                self.client = Some(builder.dispatch(words.next() == Some("dispatch")).connect()?);
            }
            "deposit" => {
                let whom = words.next().expect("for whom");
                return self.deposit(whom, words.next() == Some("keep"));
            }
            "share" => return self.share(number(words), number(words)),
            "hold" => {
                for handle in from_words(words) {
                    self.grants.push(self.client().acquire(&handle, patience())?);
                }
            }
            "hold-virtual" => {
                let number = words.next().and_then(|word| word.parse().ok());
                let fd = number.and_then(VirtualFd::new).expect("a virtual fd");
                self.grants.push(self.client().acquire_virtual(fd, patience())?);
            }
            "import" => {
                for handle in from_words(words) {
                    let grant = self.client().acquire(&handle, patience())?;
                    self.imports.push(grant.import(Access::Read, 0)?);
                }
            }
            "cycle" => {
                let first = usize::try_from(number(words)).expect("few");
                return self.cycle(first, &from_words(words));
            }
            "check" => return self.check(number(words), &from_words(words)),
            "progress" => return self.progress(number(words), &from_words(words)),
            "check-file" => {
                let seed = number(words);
                let path = words.next().expect("a path");
                let bytes = std::fs::read(path).expect("read the handle");
                let handle = Handle::from_slice(&bytes).expect("64 bytes");
                return self.check(seed, &[handle]);
            }
            "drop" => {
                self.grants.clear();
                self.imports.clear();
            }
            verb => panic!("no such verb: {verb}"),
        }
        Ok("OK".into())
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("connected")
    }

    /// Shares `count` buffers of an arena; buffer `i` has the bytes of `pattern(seed + i)`.
    fn share(&mut self, count: u64, seed: u64) -> Result<String, Error> {
        let count = usize::try_from(count).expect("few");
        let arena = Arena::new(self.client(), host_memory(), count * BLOCK_BYTES)?;
        for index in 0..count as u64 {
            let buffer = arena.alloc(BLOCK_BYTES)?;
            buffer.write_at(0, &pattern(seed + index))?;
            self.buffers.push(buffer);
        }
        let handles = arena.register(&self.buffers, patience())?;
        Ok(to_line(&handles.into_iter().collect::<Result<Vec<_>, _>>()?))
    }

    /// Shares one resident block with the bytes of `pattern(0)`, registered with `keep` or not.
    fn deposit(&mut self, whom: &str, keep: bool) -> Result<String, Error> {
        let blocks = Blocks::new(1);
        let mut deposit = blocks.deposit(0);
        deposit.recallable = false;
        deposit.keep = keep;
        let is_it = |share: &&Share| share.name() == whom;
        deposit.share = *Share::ALL.iter().find(is_it).expect("uid, gid or any");
        let fd = blocks.export(0);
        let registered = self.client().register(&deposit, fd.as_fd(), patience())?;
        Ok(to_line(&[registered.handle]))
    }

    /// Acquires all handles one after the other, from the one at `first` on, and compares every
    /// byte.
    fn cycle(&mut self, first: usize, handles: &[Handle]) -> Result<String, Error> {
        for place in 0..handles.len() {
            let index = (first + place) % handles.len();
            let answer = self.check(index as u64, &handles[index..=index])?;
            if answer != "OK" {
                return Ok(answer);
            }
        }
        Ok("OK".into())
    }

    /// Acquires each handle with a request of its own, all at once and without blocking. Compares
    /// every byte, releases all.
    fn progress(&mut self, seed: u64, handles: &[Handle]) -> Result<String, Error> {
        let start = |(handle, n)| Ok((self.client().acquire_start(&[handle], patience())?, n));
        let started = handles.iter().copied().zip(seed..).map(start);
        let mut requests = started.collect::<Result<Vec<_>, Error>>()?;
        while !requests.is_empty() {
            for (request, n) in std::mem::take(&mut requests) {
                match request.test() {
                    Progress::UnderWay(request) => requests.push((request, n)),
                    Progress::Done(mut outcomes) => {
                        let import = outcomes.remove(0)?.import(Access::Read, 0)?;
                        let mut bytes = vec![0; BLOCK_BYTES];
                        import.read_at(0, &mut bytes)?;
                        if bytes != pattern(n) {
                            return Ok(format!("block {n} has other bytes"));
                        }
                    }
                }
            }
        }
        Ok("OK".into())
    }

    /// Acquires all handles, compares every byte, releases all.
    fn check(&mut self, seed: u64, handles: &[Handle]) -> Result<String, Error> {
        let mut failed = None;
        let mut wrong = 0;
        self.client().acquire_each(handles, patience(), |index, outcome| {
            let import = outcome.and_then(|grant| grant.import(Access::Read, 0));
            let mut bytes = vec![0; BLOCK_BYTES];
            let read = import.and_then(|import| import.read_at(0, &mut bytes));
            match read {
                Ok(()) => wrong += usize::from(bytes != pattern(seed + index as u64)),
                Err(error) => failed = Some(error),
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None if wrong > 0 => Ok(format!("{wrong} blocks have other bytes")),
            None => Ok("OK".into()),
        }
    }
}

fn number(words: &mut SplitAsciiWhitespace<'_>) -> u64 {
    words.next().and_then(|word| word.parse().ok()).expect("a number")
}

fn group(word: &str) -> nix::unistd::Gid {
    word.parse::<u32>().expect("a gid").into()
}

/// Gives up root for good.
fn become_user(uid: u64, gid: u64, groups: Vec<nix::unistd::Gid>) {
    let (uid, gid) = (u32::try_from(uid).expect("a uid"), u32::try_from(gid).expect("a gid"));
    nix::unistd::setgroups(&groups).expect("setgroups");
    nix::unistd::setgid(gid.into()).expect("setgid");
    nix::unistd::setuid(uid.into()).expect("setuid");
}

/// A rank, connected.
pub fn rank(socket: &Path) -> Peer {
    let mut rank = Peer::start("rank");
    assert_eq!(rank.ask(&format!("connect {}", socket.display())), "OK");
    rank
}

/// A rank without a library thread. It serves within calls that wait, and while it is idle.
pub fn dispatching_rank(socket: &Path) -> Peer {
    let mut rank = Peer::start("rank");
    assert_eq!(rank.ask(&format!("connect {} dispatch", socket.display())), "OK");
    rank
}

impl Peer {
    /// Has the rank share buffers of an arena.
    #[track_caller]
    pub fn share(&mut self, count: usize, seed: u64) -> Vec<Handle> {
        let answer = self.ask(&format!("share {count} {seed}"));
        let handles = from_words(answer.split_ascii_whitespace());
        assert_eq!(handles.len(), count);
        handles
    }

    /// Has the rank do something with handles; returns its answer.
    #[track_caller]
    pub fn with_handles(&mut self, verb: &str, handles: &[Handle]) -> String {
        self.ask(&format!("{verb} {}", to_line(handles)))
    }
}
