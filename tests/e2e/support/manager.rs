//! Stands in for the service manager: receives notifications and fds on a socket, stores the fds,
//! and starts the daemon with them. It follows sd_notify(3) and sd_listen_fds(3). Systemd itself is
//! tested in a virtual machine.

use super::broker::{admin_socket, open_fds, settled_fds};
use super::wait::{PATIENCE, eventually, eventually_some};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::fstat;
use nix::unistd::{Pid, dup2_raw};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// First fd of a service (SD_LISTEN_FDS_START), and a place above all of them to move them from.
const FIRST_FD: i32 = 3;
const ASIDE_FD: i32 = 400;

/// Message that the test sends to the manager after a daemon's end.
const ENDED: &str = "ENDED=1";

#[derive(Debug, Default)]
struct Heard {
    said: Vec<String>,
    store: Vec<(String, OwnedFd)>,
}

/// A service manager with one service, the daemon.
#[derive(Debug)]
pub struct Manager {
    dir: tempfile::TempDir,
    heard: Arc<Mutex<Heard>>,
    is_over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    child: Option<Child>,
    flags: Vec<String>,
    is_node: bool,
    is_configured: bool,
    environment: Vec<(String, String)>,
}

impl Manager {
    /// Manages a private daemon that has these flags too.
    pub fn new(flags: &[&str]) -> Manager {
        let dir = tempfile::Builder::new().prefix("fdb-").tempdir().expect("a directory");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("bind");
        let (heard, is_over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (into, until) = (Arc::clone(&heard), Arc::clone(&is_over));
        let listener = std::thread::spawn(move || listen(&socket, &into, &until));
        Manager {
            dir,
            heard,
            is_over,
            listener: Some(listener),
            child: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            is_node: false,
            is_configured: false,
            environment: vec![("FDSTORE".into(), "4096".into())],
        }
    }

    /// The next daemon is not private.
    pub fn serve_all_users(&mut self) {
        self.is_node = true;
    }

    /// The next daemon has a listener in each of these directories, by its configuration.
    pub fn listen_in(&mut self, names: &[&str]) {
        self.is_configured = true;
        let listeners = names.iter().map(|name| {
            format!("[[listener]]\npath = {:?}\n", self.dir().join(name).join("broker.sock"))
        });
        let admin = format!("admin_socket = {:?}\n", self.dir().join("admin/admin.sock"));
        let config = std::iter::once(admin).chain(listeners).collect::<String>();
        std::fs::write(self.dir().join("config.toml"), config).expect("written");
    }

    /// Sets the flags of the next daemon.
    pub fn use_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("fdbroker/broker.sock")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Starts the daemon with all stored fds and with `sockets`, and waits until it is ready.
    pub fn start(&mut self, sockets: &[(&str, OwnedFd)]) {
        let ready = self.count("READY=1");
        let mut names = Vec::new();
        let mut fds: Vec<OwnedFd> = Vec::new();
        let aside = |fd: &OwnedFd| {
            let moved = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(ASIDE_FD)).expect("dup");
            // SAFETY: fcntl(2) has just made this fd, so nothing else owns it.
            unsafe { OwnedFd::from_raw_fd(moved) }
        };
        for (name, fd) in sockets {
            names.push((*name).to_owned());
            fds.push(aside(fd));
        }
        for (name, fd) in &self.heard.lock().expect("no panic").store {
            names.push(name.clone());
            fds.push(aside(fd));
        }
        let log = File::options().create(true).append(true).open(self.dir().join("log"));
        // Only the new process knows its pid for LISTEN_PID.
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""]).arg(super::broker::program());
        if self.is_configured {
            command.arg("--config").arg(self.dir().join("config.toml"))
        } else if self.is_node {
            command.arg("--socket").arg(self.socket())
        } else {
            command.arg("--private").arg(self.dir())
        };
        command.args(&self.flags).env_clear();
        command.env("NOTIFY_SOCKET", self.dir().join("notify"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if !fds.is_empty() {
            command.env("LISTEN_FDS", fds.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log"));
        let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: dup2(2) is async-signal-safe; the fds are open until the child has been started.
        unsafe {
            command.pre_exec(move || {
                for (place, number) in (FIRST_FD..).zip(&numbers) {
                    let source = std::os::fd::BorrowedFd::borrow_raw(*number);
                    let _ = dup2_raw(source, place)?.into_raw_fd();
                }
                Ok(())
            });
        }
        self.child = Some(command.spawn().expect("start fdbrokerd"));
        eventually("the daemon is ready", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("wait"));
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.count("READY=1") > ready
        });
    }

    /// How often the daemon has sent this line.
    pub fn count(&self, line: &str) -> usize {
        let heard = self.heard.lock().expect("no panic");
        heard.said.iter().filter(|said| said.starts_with(line)).count()
    }

    /// Lines that the daemon has sent so far.
    pub fn said(&self) -> Vec<String> {
        self.heard.lock().expect("no panic").said.clone()
    }

    /// Names of the stored fds, but for what is there for what is kept from the start on.
    pub fn stored(&self) -> Vec<String> {
        self.names(|name| !name.starts_with('o'))
    }

    /// Names of what is stored for what is kept: its table, and the ends of carriers.
    pub fn stored_for_kept(&self) -> Vec<String> {
        self.names(|name| name.starts_with('o'))
    }

    /// Fds that lie in the stored carriers.
    pub fn carried(&self) -> usize {
        self.carried_inodes().len()
    }

    /// The inodes of these, in order.
    pub fn carried_inodes(&self) -> Vec<u64> {
        let heard = self.heard.lock().expect("no panic");
        let is_far = |name: &str| name.starts_with('o') && name.ends_with(".0");
        let (mut inodes, mut bytes, mut fds) = (Vec::new(), [0; 64], ReceivedFds::new());
        for (_, far) in heard.store.iter().filter(|(name, _)| is_far(name)) {
            let each = |_, _: &[u8], fds: &mut ReceivedFds| {
                inodes.extend(fds.drain().map(|fd| fstat(&fd).expect("fstat").st_ino));
            };
            fdbroker_scm::peek_all(far.as_fd(), 1024, &mut bytes, &mut fds, each).expect("a look");
        }
        inodes.sort_unstable();
        inodes
    }

    fn names(&self, which: impl Fn(&str) -> bool) -> Vec<String> {
        let heard = self.heard.lock().expect("no panic");
        let names = heard.store.iter().map(|(name, _)| name.clone());
        names.filter(|name| which(name)).collect()
    }

    /// Replaces a stored fd by another one.
    pub fn replace(&self, name: &str, change: impl FnOnce(&OwnedFd) -> OwnedFd) {
        let mut heard = self.heard.lock().expect("no panic");
        let (_, fd) = heard.store.iter_mut().find(|(its, _)| its == name).expect("it is stored");
        *fd = change(fd);
    }

    /// Loses a stored fd.
    pub fn lose(&self, name: &str) {
        self.heard.lock().expect("no panic").store.retain(|(its, _)| its != name);
    }

    /// Duplicates of all stored fds, in the order of the store.
    pub fn copy(&self) -> Vec<(String, OwnedFd)> {
        let heard = self.heard.lock().expect("no panic");
        let copy = |fd: &OwnedFd| fd.try_clone().expect("dup");
        heard.store.iter().map(|(name, fd)| (name.clone(), copy(fd))).collect()
    }

    /// Adds these fds to the store, as if they had never been removed.
    pub fn put_back(&self, fds: Vec<(String, OwnedFd)>) {
        self.heard.lock().expect("no panic").store.extend(fds);
    }

    /// Calls `run` while the manager reads nothing and its socket is full. `run` may use only the
    /// manager's log.
    pub fn while_stuck(&self, run: impl FnOnce(&Manager)) {
        let heard = self.heard.lock().expect("no panic");
        let socket = UnixDatagram::unbound().expect("a socket");
        socket.connect(self.dir().join("notify")).expect("connect");
        // The manager may still take one message off the socket, which makes room for another.
        socket.set_write_timeout(Some(LOOK * 10)).expect("a timeout");
        while socket.send(b"FILLED=1\n").is_ok() {}
        run(self);
        drop(heard);
    }

    pub fn pid(&self) -> Pid {
        let child = self.child.as_ref().expect("it runs");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("kill");
    }

    /// Fds open in the daemon.
    pub fn open_fds(&self) -> usize {
        open_fds(self.pid())
    }

    pub fn settled_fds(&self) -> usize {
        settled_fds(self.pid(), &admin_socket(self.dir()))
    }

    /// Ends the daemon with `signal`, and waits for its end and for all that it has sent.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        let mut child = self.child.take().expect("it runs");
        let end = eventually_some("the daemon has ended", || child.try_wait().expect("wait"));
        // Messages arrive in the order of sending: after this one none of the daemon's is left.
        let (socket, heard) = (UnixDatagram::unbound().expect("a socket"), self.count(ENDED));
        socket.send_to(ENDED.as_bytes(), self.dir().join("notify")).expect("the listener reads");
        eventually("all is heard", || self.count(ENDED) > heard);
        end
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.listener.take().map(JoinHandle::join);
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}", self.log());
        } else {
            assert!(!self.log().contains("panicked at"), "{}", self.log());
        }
    }
}

/// Pause between two looks at whether the test has ended.
const LOOK: Duration = Duration::from_millis(20);
const _: () = assert!(LOOK.as_millis() < PATIENCE.as_millis());

fn listen(socket: &UnixDatagram, heard: &Mutex<Heard>, is_over: &AtomicBool) {
    let (mut bytes, mut fds) = (vec![0; 4096], ReceivedFds::new());
    while !is_over.load(Ordering::Relaxed) {
        let message =
            match fdbroker_scm::recv_timeout(socket.as_fd(), &mut bytes, &mut fds, Some(LOOK)) {
                Ok(message) => message,
                Err(RecvError::TimedOut) => continue,
                Err(error) => panic!("{error}"),
            };
        let text = String::from_utf8(bytes[..message.len].to_vec()).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        let mut heard = heard.lock().expect("no panic");
        for fd in fds.drain() {
            if let (Some(name), true) = (name, lines.contains(&"FDSTORE=1")) {
                assert!(lines.contains(&"FDPOLL=0"), "{text}");
                // Like systemd (service_add_fd_store), closes a duplicate of a stored open file,
                // whatever its name, and tells no one.
                if !heard.store.iter().any(|(_, stored)| is_same_file(stored, &fd)) {
                    heard.store.push((name.to_owned(), fd));
                }
            }
        }
        if lines.contains(&"FDSTOREREMOVE=1") {
            heard.store.retain(|(its, _)| Some(its.as_str()) != name);
        }
        heard.said.extend(lines.into_iter().map(str::to_owned));
    }
}

/// Whether two fds are duplicates of each other.
fn is_same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let features = fdbrokerd::kernel::KernelFeatures::ALL;
    fdbrokerd::kernel::is_same_file(one.as_fd(), other.as_fd(), features)
        .expect("the kernel says so")
}
