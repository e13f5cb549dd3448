//! A file whose file server hangs, and a client of the broker that has the file open. Must never
//! have the file open in a process that forks.

use super::memory::BLOCK_BYTES;
use super::peer::{Link, Peer};
use super::raw::Raw;
use super::wait::patience;
use fdbroker_client::{Client, Deposit};
use fdbroker_protocol::MemoryKind;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// A hung file: the process that serves it, and the process that has it open and can deposit it. No
/// process that forks may have the file open, since its close hangs, at exec too. The fields stand
/// in the order in which they must end.
#[derive(Debug)]
pub struct HungFile {
    pub server: Peer,
    depositor: Peer,
}

impl HungFile {
    /// Makes a hung file in `dir`, and a client of the broker at `socket` that has it open.
    pub fn new(dir: &Path, socket: &Path) -> HungFile {
        let mut server = Peer::start("hung file server");
        // Only the path of its thread in /proc leads into the server's mount namespace.
        let thread = server.ask(&dir.display().to_string());
        let path = format!("/proc/{}/task/{thread}/root{}/hung", server.pid(), dir.display());
        let mut depositor = Peer::start("hung file depositor");
        depositor.link.say(&format!("{} {path}", socket.display()));
        assert_eq!(server.hear(), "hung");
        assert_eq!(depositor.hear(), "open");
        HungFile { server, depositor }
    }

    /// Deposits the file; returns the outcome.
    pub fn deposit(&mut self) -> String {
        self.depositor.ask("deposit")
    }

    /// Sends a broken message with `count` fds of the file.
    pub fn send_broken(&mut self, count: usize) {
        assert_eq!(self.depositor.ask(&format!("break {count}")), "sent");
    }
}

pub fn play_depositor(mut link: Link) {
    let line = link.hear().expect("a socket and a path");
    let (socket, path) = line.split_once(' ').expect("two words");
    let client = Client::builder().socket(socket).name("depositor").connect().expect("connect");
    let file = File::open(path).expect("the server answers this");
    link.say("open");
    while let Some(line) = link.hear() {
        let answer = match line.strip_prefix("break ") {
            Some(count) => {
                let raw = Raw::connect(Path::new(socket));
                let count = count.parse().expect("a number");
                raw.send(&[0], &vec![file.as_fd(); count]).expect("sent");
                raw.assert_ended();
                "sent".to_owned()
            }
            None => {
                let deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
                let outcome = client.register(&deposit, file.as_fd(), patience());
                outcome.expect_err("it is no memory").to_string()
            }
        };
        link.say(&answer);
    }
}
