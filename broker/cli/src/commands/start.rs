//! The hidden command that the library runs to start a broker: joins the room of the programs that
//! do that, says where the broker's socket is, and stays until its program is connected. Must never
//! outlive the wait of its program, nor leave anything of that program's in the broker.

use crate::error::{Context, Result, exit};
use crate::joining::Joiner;
use crate::rooms::job::Job;
use crate::rooms::room::Room;
use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Its stdin and stdout are one socket of the library's, which the library shuts down when it needs
/// the broker's stay no more: because it is connected, or has given up.
pub fn run() -> Result<u8> {
    umask(Mode::from_bits_truncate(0o077));
    let job = Job::of_started(|name| std::env::var_os(name));
    // Its program gives up at a time of its own.
    let on_silent = |room: &Room| drop(say("SILENT", room));
    let (room, members) = Joiner { job: &job, max_fds: None, on_silent }.join()?;
    say("READY", &room)?;
    while nix::unistd::read(std::io::stdin().as_fd(), &mut [0]) == Err(Errno::EINTR) {}
    drop(members);
    Ok(exit::OK)
}

/// How it is with the broker, and the path of its socket.
fn say(word: &str, room: &Room) -> Result<()> {
    let line = [word.as_bytes(), b" ", room.socket().as_os_str().as_bytes(), b"\n"].concat();
    let mut out = std::io::stdout();
    out.write_all(&line).and_then(|()| out.flush()).context(|| "answer the program")
}
