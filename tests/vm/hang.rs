//! A user whose file server hangs: deposits a file of it, whose close never returns while the
//! server lives. Must never be root when it talks to the broker.

use crate::{Outcome, deadline};
use fdbroker_client::{Client, Deposit};
use fdbroker_protocol::MemoryKind;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

#[path = "../e2e/support/fuse_server.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod fuse_server;

mod peer {
    use super::{Receiver, Sender};

    /// Between the thread that serves the file and the one that deposits it.
    pub struct Link(pub Receiver<String>, pub Sender<String>);

    impl Link {
        pub fn hear(&mut self) -> Option<String> {
            self.0.recv().ok()
        }

        pub fn say(&mut self, word: &str) {
            let _ = self.1.send(word.to_owned());
        }
    }
}

/// Serves DIR/hung until it is open, and prints the number of the thread in whose mount namespace
/// it is.
pub fn serve(dir: &Path) -> Outcome<()> {
    let ((say, told), (tell, hear)) = (channel(), channel());
    std::thread::spawn(move || fuse_server::play(peer::Link(told, tell)));
    say.send(dir.display().to_string())?;
    println!("{}", hear.recv()?);
    loop {
        std::thread::park();
    }
}

/// Opens the file at this path, and deposits it as this user. Another process serves it: else
/// neither could end.
pub fn deposit(path: &Path, uid: u32) -> Outcome<()> {
    let file = File::open(path)?;
    nix::unistd::setgid(uid.into())?;
    nix::unistd::setuid(uid.into())?;
    let client = Client::builder().name("hang").connect()?;
    let deposit = Deposit::new(MemoryKind::Memfd, 4096);
    match client.register(&deposit, file.as_fd(), deadline()) {
        Ok(_) => return Err("it is no memory".into()),
        Err(error) => println!("{error}"),
    }
    loop {
        std::thread::park();
    }
}
