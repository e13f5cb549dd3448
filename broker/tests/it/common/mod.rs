//! Shared by the daemon's tests: a broker in a directory of its own, and a client that speaks the
//! bare protocol. Must never use the client library: these tests send messages that it would not
//! send.

use fdbroker_protocol::codec::Message;
use fdbroker_protocol::handle::HandlePrefix;
use fdbroker_protocol::message::{
    AcquireHead, GrantItem, HELLO_MAGIC, Hello, HelloReply, Join, LeaseItem, RegisterHead,
    RegisterItem, RegisterReplyHead, Registered, Role, register_flags,
};
use fdbroker_protocol::{Facts, Handle, Kind, MemoryKind, PROTOCOL_VERSION, Share, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How long a test waits for an event that must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A broker for one test. Its drop ends it and removes its directory.
pub struct Broker {
    pub child: Child,
    pub dir: tempfile::TempDir,
}

impl Broker {
    /// Starts a private broker with these further flags.
    pub fn start(flags: &[&str]) -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let child = start_in(dir.path(), flags);
        Broker { child, dir }
    }

    pub fn socket(&self) -> PathBuf {
        socket_in(self.dir.path())
    }

    pub fn admin_dir(&self) -> PathBuf {
        self.dir.path().join("fdbroker-admin")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Asks the broker to end, and waits until it has ended.
    pub fn end(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }

    pub fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// The number of the broker's open fds.
    pub fn open_fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn socket_in(dir: &Path) -> PathBuf {
    dir.join("fdbroker/broker.sock")
}

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fdbrokerd"));
    for name in ["SOCKET", "ADMIN_SOCKET", "CONFIG", "MAX_FDS", "TABLE_FDS", "LOG"] {
        command.env_remove(format!("FDBROKER_{name}"));
    }
    command
}

/// Starts a private broker in `dir` and returns when clients can connect.
pub fn start_in(dir: &Path, flags: &[&str]) -> Child {
    let mut command = program();
    command.arg("--private").arg(dir).args(["--ready-fd", "1"]).args(flags);
    wait_ready(command)
}

/// Starts a broker whose `--ready-fd` is 1.
pub fn wait_ready(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    child.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
    if ready != "READY\n" {
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        panic!("the broker did not start: {error}");
    }
    child
}

/// A received message with its fds.
pub struct Reply {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Reply {
    pub fn message(&self) -> Message<'_> {
        Message::parse(&self.bytes).unwrap()
    }

    pub fn kind(&self) -> Kind {
        self.message().kind
    }

    /// The code of a `failed` reply.
    pub fn failed(&self) -> Status {
        assert_eq!(self.kind(), Kind::Failed);
        *self.message().body_as::<Status>().unwrap()
    }

    pub fn grants(&self) -> Vec<GrantItem> {
        assert_eq!(self.kind(), Kind::Granted);
        self.message().grants().unwrap().0.to_vec()
    }

    pub fn registered(&self) -> (RegisterReplyHead, Vec<Registered>) {
        assert_eq!(self.kind(), Kind::RegisterReply);
        let message = self.message();
        let (head, items) = message.head_and_items::<RegisterReplyHead, Registered>().unwrap();
        (*head, items.to_vec())
    }

    pub fn statuses(&self) -> Vec<Status> {
        assert!(matches!(self.kind(), Kind::UnregisterReply | Kind::LeaseReply));
        self.message().items::<Status>().unwrap().to_vec()
    }
}

/// A socket of the protocol.
pub struct Socket(pub OwnedFd);

impl Socket {
    pub fn connect(path: &Path) -> Socket {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        Socket(fd)
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        fdbroker_scm::send_timeout(self.0.as_fd(), bytes, fds, Some(PATIENCE)).unwrap();
    }

    pub fn try_recv(&self, patience: Duration) -> Result<Reply, RecvError> {
        let mut bytes = vec![0; 65536];
        let mut fds = ReceivedFds::new();
        let received =
            fdbroker_scm::recv_timeout(self.0.as_fd(), &mut bytes, &mut fds, Some(patience))?;
        assert!(!received.fds_truncated && !received.payload_truncated);
        bytes.truncate(received.len);
        Ok(Reply { bytes, fds: fds.drain().collect() })
    }

    pub fn recv(&self) -> Reply {
        self.try_recv(PATIENCE).unwrap()
    }

    /// Waits until the broker has ended the connection.
    pub fn expect_end(&self) {
        loop {
            match self.try_recv(PATIENCE) {
                Ok(_) => {}
                Err(RecvError::Eof) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether nothing has come and the connection is open.
    pub fn expect_silence(&self) {
        match self.try_recv(Duration::ZERO) {
            Err(RecvError::TimedOut) => {}
            Err(error) => panic!("{error}"),
            Ok(reply) => panic!("got {}", reply.kind()),
        }
    }
}

/// A client whose hello was answered.
pub struct Client {
    pub main: Socket,
    pub event: Socket,
    pub page: OwnedFd,
    pub hello: HelloReply,
    pub credits: u32,
    next_id: u64,
}

pub fn hello_body(min: u16, max: u16) -> Hello {
    Hello {
        magic: HELLO_MAGIC,
        version_min: min.into(),
        version_max: max.into(),
        flags: 0.into(),
        own_fds: 0.into(),
        pid: std::process::id().into(),
        name: *b"a test\0\0\0\0\0\0\0\0\0\0",
        deadline_ms: 0.into(),
        key: 0.into(),
        max_held_fds: 0.into(),
        reserved: 0.into(),
    }
}

pub fn hello_bytes(id: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .start(Kind::Hello, id)
        .push(&hello_body(PROTOCOL_VERSION.into(), PROTOCOL_VERSION.into()));
    writer.finish(0, 0).to_vec()
}

/// The event socket of the client that got this reply.
pub fn join(path: &Path, hello: &HelloReply) -> Socket {
    let event = Socket::connect(path);
    let role = (Role::Events as u32).into();
    let mut writer = Writer::new();
    writer.start(Kind::Join, 1).push(&Join { client: hello.client, role, secret: hello.secret });
    event.send(writer.finish(0, 0), &[]);
    assert_eq!(event.recv().kind(), Kind::Joined);
    event
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        let main = Socket::connect(path);
        main.send(&hello_bytes(1), &[]);
        let mut reply = main.recv();
        assert_eq!(reply.kind(), Kind::HelloReply);
        let hello = *reply.message().body_as::<HelloReply>().unwrap();
        let page = reply.fds.pop().unwrap();
        assert!(reply.fds.is_empty());
        let event = join(path, &hello);
        let credits = hello.deposit_credits.get();
        Client { main, event, page, hello, credits, next_id: 2 }
    }

    pub fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends a request of `items`; answers the reply.
    pub fn call(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.main.send(bytes, fds);
        self.main.recv()
    }

    /// Registers memfds of one page each; panics unless the broker takes all.
    pub fn register_memfds(&mut self, count: usize) -> Vec<Handle> {
        let mut handles = Vec::new();
        while handles.len() < count {
            let wanted = u32::try_from(count - handles.len()).unwrap();
            let now = wanted.min(self.credits).min(253) as usize;
            let fds: Vec<OwnedFd> = (0..now).map(|_| sealed_memfd(4096)).collect();
            let items: Vec<RegisterItem> = fds.iter().map(|_| memfd_item(4096)).collect();
            let id = self.id();
            let bytes = register_bytes(id, &items, wanted, now);
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let (head, registered) = self.call(&bytes, &borrowed).registered();
            self.credits = head.deposit_credits.get();
            for item in registered {
                assert!(item.status.is_ok(), "{}", item.status);
                handles.push(item.handle);
            }
        }
        handles
    }

    pub fn acquire(&mut self, handles: &[HandlePrefix], deadline_ms: u32) -> Reply {
        let id = self.id();
        self.call(&acquire_bytes(id, handles, deadline_ms), &[])
    }

    pub fn release(&mut self, leases: &[u64]) -> Vec<Status> {
        let id = self.id();
        self.call(&lease_bytes(Kind::Release, id, leases), &[]).statuses()
    }
}

pub fn acquire_bytes(id: u64, handles: &[HandlePrefix], deadline_ms: u32) -> Vec<u8> {
    let mut writer = Writer::new();
    let head = AcquireHead { deadline_ms: deadline_ms.into(), flags: 0.into() };
    writer.start(Kind::Acquire, id).push(&head).push(handles);
    writer.finish(handles.len(), 0).to_vec()
}

pub fn lease_bytes(kind: Kind, id: u64, leases: &[u64]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(kind, id);
    for lease in leases {
        writer.push(&LeaseItem { lease: (*lease).into() });
    }
    writer.finish(leases.len(), 0).to_vec()
}

pub fn register_bytes(id: u64, items: &[RegisterItem], wanted: u32, fd_count: usize) -> Vec<u8> {
    let mut writer = Writer::new();
    let head = RegisterHead { credits_wanted: wanted.into(), deadline_ms: 5000.into() };
    writer.start(Kind::Register, id).push(&head).push(items);
    writer.finish(items.len(), fd_count).to_vec()
}

pub fn memfd_item(size: u64) -> RegisterItem {
    RegisterItem {
        facts: Facts { owner_allocation_id: 7, ..Facts::new(MemoryKind::Memfd, size) }.into(),
        flags: register_flags::RECALLABLE,
        share: Share::Uid as u8,
        driver_data_len: 0,
        base: 0.into(),
        driver_data: [0; 64],
    }
}

pub fn memfd(size: i64, seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("test", flags).unwrap();
    nix::unistd::ftruncate(&fd, size).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

pub fn sealed_memfd(size: i64) -> OwnedFd {
    memfd(size, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL)
}

/// Waits until `holds` answers true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The inode of an open fd.
pub fn inode(fd: impl AsFd) -> u64 {
    fdbrokerd::kernel::stat(fd.as_fd()).unwrap().inode
}
