//! Finds the broker's socket, connects and says hello. Must never wait longer than its caller says.

use super::dial::{open, what};
use super::joining::{Joining, Membership};
use super::poll::poll_one;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::interrupt::{ask, now, sleep};
use crate::limits::{AT_THE_DOOR_FIRST, AT_THE_DOOR_LAST, BACKLOG_PAUSE, RECONNECT_LAST};
use crate::own_fds::{CLOSED_HERE, OwnFd};
use fdbroker_protocol::error::OUTSIDE_PODS;
use fdbroker_protocol::limits::{MAX_MESSAGE_BYTES, NAME_BYTES};
use fdbroker_protocol::message::{Hello, HelloReply, Role};
use fdbroker_protocol::{ErrorCode, Kind, Message, PROTOCOL_VERSION, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::poll::PollFlags;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where a client connects, and what it says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub socket: PathBuf,
    pub name: String,
    pub own_fds: u32,
    /// The most fds that the broker is to hold for it; 0: no bound of its own.
    pub max_held_fds: u32,
    /// What a broker after a crash knows this client by, with its process. Not 0.
    pub key: u32,
}

/// A connection's two sockets, its page, and what the broker said.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub socket: OwnFd,
    pub events: OwnFd,
    pub page: OwnedFd,
    pub reply: HelloReply,
    pub place: Place,
    pub membership: Membership,
}

/// Which socket a path leads to: its device and inode. `None`: to none.
pub(crate) type Place = Option<(u64, u64)>;

pub(crate) fn place_of(path: &Path) -> Place {
    std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// The socket to use when the caller names none: `FDBROKER_SOCKET`, else the user's own if it
/// exists, else the node's.
pub fn default_socket_path() -> PathBuf {
    if let Some(path) = named_socket() {
        return path;
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let own = runtime.map(|runtime| Path::new(&runtime).join("fdbroker/broker.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| "/run/fdbroker/broker.sock".into())
}

/// The socket that the environment names.
pub(crate) fn named_socket() -> Option<PathBuf> {
    std::env::var_os("FDBROKER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Connects and exchanges hello; waits for it, and tries again while too many others of this user
/// connect.
pub(crate) fn greet(caller: &Caller, until: Deadline) -> Result<Greeted, Error> {
    let mut pause = AT_THE_DOOR_FIRST;
    loop {
        match greet_once(caller, until) {
            Err(error) if error.code == ErrorCode::Again && pause < until.remaining() => {
                sleep(pause);
                pause = (pause * 2).min(AT_THE_DOOR_LAST);
            }
            outcome => return outcome.map_err(Error::not_again),
        }
    }
}

fn greet_once(caller: &Caller, until: Deadline) -> Result<Greeted, Error> {
    let mut greeting = loop {
        match Greeting::begin(caller, until)? {
            Some(greeting) => break greeting,
            None if !until.has_passed() => sleep(BACKLOG_PAUSE),
            None => return Err(no_answer(&caller.socket)),
        }
    };
    loop {
        if let Some(greeted) = greeting.look() {
            return greeted;
        }
        poll_one(
            greeting.socket(),
            PollFlags::POLLIN,
            greeting.look_at().saturating_duration_since(now()),
        );
        ask();
    }
}

/// A connection whose hello is sent, until the hello is answered and the event socket has joined.
/// Never waits.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// `None` once that is done.
    socket: Option<OwnFd>,
    path: PathBuf,
    place: Place,
    until: Deadline,
    welcome: Option<Box<Welcome>>,
}

/// The answer to hello, and what follows it.
#[derive(Debug)]
struct Welcome {
    reply: HelloReply,
    page: OwnedFd,
    membership: Membership,
    events: Joining,
}

impl Greeting {
    /// Connects and says hello. `None`: the listener's backlog is full.
    pub fn begin(caller: &Caller, until: Deadline) -> Result<Option<Greeting>, Error> {
        // Before the connect: a socket that comes between the two is taken for another one at the
        // next look, which is safe.
        let place = place_of(&caller.socket);
        let Some(socket) = open(&caller.socket)? else { return Ok(None) };
        Greeting::over(socket, place, caller, until).map(Some)
    }

    /// Says hello over a connected socket.
    fn over(
        socket: OwnedFd,
        place: Place,
        caller: &Caller,
        until: Deadline,
    ) -> Result<Greeting, Error> {
        let hello = Hello {
            own_fds: caller.own_fds.into(),
            deadline_ms: until.answer_ms().into(),
            key: caller.key.into(),
            max_held_fds: caller.max_held_fds.into(),
            ..Hello::new(std::process::id(), padded(&caller.name))
        };
        let mut writer = Writer::new();
        writer.start(Kind::Hello, 1).push(&hello);
        let socket = Some(OwnFd::guarded(socket)?);
        let (path, welcome) = (caller.socket.clone(), None);
        let greeting = Greeting { socket, path, place, until, welcome };
        match fdbroker_scm::send(greeting.socket(), writer.finish(0, 0), &[]) {
            // Refused before hello: the reason can still be read.
            Ok(()) | Err(SendError::PeerGone) => Ok(greeting),
            Err(error) => Err(Error::not_connected(greeting.context(&error.to_string()))),
        }
    }

    /// Readable when the answer is there. To be polled.
    pub fn socket(&self) -> BorrowedFd<'_> {
        let joining = self.welcome.as_ref().and_then(|welcome| welcome.events.socket());
        joining.unwrap_or_else(|| self.socket.as_ref().expect("not answered yet").polled())
    }

    /// Whether the program has closed it: polled, it might say nothing for long.
    pub fn is_closed_here(&self) -> bool {
        self.socket.as_ref().is_none_or(|socket| socket.proved().is_none())
    }

    /// When to look without an event: whether it is to be given up, or another broker has come.
    pub fn look_at(&self) -> Instant {
        let next = self.welcome.as_ref().and_then(|welcome| welcome.events.look_at());
        let last = Instant::now() + RECONNECT_LAST;
        self.until.given_up_at().min(next.unwrap_or(last)).min(last)
    }

    /// The connection, if it is there or time is over; not to be asked again after.
    pub fn look(&mut self) -> Option<Result<Greeted, Error>> {
        if self.welcome.is_none() {
            match self.look_for_answer() {
                None => return self.may_wait(),
                Some(Ok(welcome)) => self.welcome = Some(Box::new(welcome)),
                Some(Err(error)) => return Some(Err(error)),
            }
        }
        match self.welcome.as_mut().expect("it has come").events.look() {
            None => self.may_wait(),
            Some(Ok(events)) => {
                let Welcome { reply, page, membership, .. } = *self.welcome.take()?;
                let (socket, place) = (self.socket.take()?, self.place);
                Some(Ok(Greeted { socket, events, page, reply, place, membership }))
            }
            Some(Err(error)) => Some(Err(error)),
        }
    }

    /// `None`: it may.
    fn may_wait(&self) -> Option<Result<Greeted, Error>> {
        if self.is_left() {
            let context = self.context("another socket is in its place");
            return Some(Err(Error::new(ErrorCode::Again, context)));
        }
        let is_over = now() >= self.until.given_up_at();
        is_over.then(|| Err(no_answer(&self.path)))
    }

    fn look_for_answer(&mut self) -> Option<Result<Welcome, Error>> {
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let mut fds = ReceivedFds::with_capacity(1);
        let socket = self.socket.as_ref().and_then(OwnFd::proved);
        let Some(socket) = socket else {
            return Some(Err(Error::not_connected(self.context(CLOSED_HERE))));
        };
        match fdbroker_scm::recv(socket, &mut buf, &mut fds) {
            Ok(received) => Some(self.read(&buf[..received.len], received.fds_truncated, fds)),
            Err(RecvError::WouldBlock) => None,
            Err(error) => Some(Err(Error::not_connected(self.context(&error.to_string())))),
        }
    }

    /// Whether the path leads to another broker's socket: this one's may be a killed broker's,
    /// which a hung thread keeps open.
    fn is_left(&self) -> bool {
        let now = place_of(&self.path);
        now.is_some() && now != self.place
    }

    fn read(
        &self,
        bytes: &[u8],
        fds_truncated: bool,
        mut fds: ReceivedFds,
    ) -> Result<Welcome, Error> {
        let protocol = |what: &str| Error::new(ErrorCode::Protocol, self.context(what));
        let message = Message::parse(bytes).map_err(|error| protocol(&error.to_string()))?;
        let reply = match message.kind {
            Kind::HelloReply => {
                *message.body_as::<HelloReply>().map_err(|error| protocol(&error.to_string()))?
            }
            Kind::Failed => return Err(refused(&message, &|what| self.context(what))),
            kind => return Err(protocol(&format!("it answers hello with {kind}"))),
        };
        if fds_truncated && fds.is_empty() {
            let context = self.context("no fd left for the connection");
            return Err(Error::new(ErrorCode::LocalFdLimit, context));
        }
        let version = reply.version.get();
        if version != u16::from(PROTOCOL_VERSION) {
            let what = format!("it chose protocol version {version}, which this library lacks");
            return Err(protocol(&what));
        }
        let Some(page) = fds.pop_front() else {
            return Err(protocol("hello's reply lacks its fd"));
        };
        let membership = Membership::new(&self.path, &reply);
        let events = Joining::new(membership.clone(), Role::Events);
        Ok(Welcome { reply, page, membership, events })
    }

    fn context(&self, event: &str) -> String {
        format!("{}: {event}", what(&self.path))
    }
}

/// Why a broker that listens does not answer in time.
const NO_ANSWER: &str = "it is stopped, hangs or is overloaded; look at its process and its log, continue it (SIGCONT) or restart it";

pub(crate) fn no_answer(path: &Path) -> Error {
    let context = format!("{}: the broker does not answer", what(path));
    Error::not_connected(context).because(NO_ANSWER)
}

/// Why a broker ends a connection before it has answered hello.
const LATE: &str =
    "it can start no process to look at this one (its log says so), or is overloaded; try again";

/// Why a broker does not greet a user that its socket lets in.
const UNKNOWN_USER: &str = "the broker's user namespace does not know the user of this process, whom it could not tell from other \
     such users; run this as a user that is mapped there, or run the broker outside of that namespace";

/// Before the seconds that are left.
const SHUT_OUT: &str = "messages of this user took the broker long again and again, as thousands of polls of one socket or a filter on it make \
     them; stop the processes that do this. The broker lets the user in again in";

fn refused(message: &Message<'_>, context: &dyn Fn(&str) -> String) -> Error {
    let Ok(status) = message.status() else {
        return Error::new(ErrorCode::Protocol, context("it refuses hello in a way unknown here"));
    };
    let what = match status.result() {
        Err(ErrorCode::Protocol) if status.value == 0 => {
            "the broker has let in nobody for so long that it gave this client up".to_owned()
        }
        Err(ErrorCode::Protocol) => format!(
            "the broker speaks protocol version {}, this library {PROTOCOL_VERSION}",
            status.value
        ),
        _ => "the broker refuses this client".to_owned(),
    };
    let error = Error::from_status(status, context(&what));
    match error.code {
        // Of hello it means nothing else, and its own words are about allocations.
        ErrorCode::NotPermitted if status == Status::NO_POD => error.because(OUTSIDE_PODS),
        ErrorCode::NotPermitted if status.value > 0 => {
            error.because(format!("{SHUT_OUT} {} s", status.value))
        }
        ErrorCode::NotPermitted => error.because(UNKNOWN_USER),
        ErrorCode::Protocol if status.value == 0 => error.because(LATE),
        _ => error,
    }
}

fn padded(name: &str) -> [u8; NAME_BYTES] {
    let mut padded = [0; NAME_BYTES];
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    padded[..end].copy_from_slice(&name.as_bytes()[..end]);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
    use std::os::fd::{AsFd, AsRawFd};

    fn caller(path: &Path) -> Caller {
        Caller { socket: path.to_owned(), name: "t".into(), own_fds: 1, max_held_fds: 0, key: 1 }
    }

    fn greet_at(path: &Path) -> Result<Greeted, Error> {
        greet_once(&caller(path), Deadline::from_ms(9000))
    }

    #[test]
    fn hello_when_refused_at_connect_and_closed_then_the_reason_is_told() {
        let (ours, theirs) = fdbroker_scm::seqpacket_pair().unwrap();
        let status = ErrorCode::NotPermitted.into();
        fdbroker_scm::send(theirs.as_fd(), Writer::new().failed(0, status), &[]).unwrap();
        drop(theirs);
        let mut greeting =
            Greeting::over(ours, None, &caller(Path::new("/run/x")), Deadline::from_ms(9000))
                .unwrap();
        let Some(Err(error)) = greeting.look() else { panic!("it is welcome") };
        assert_eq!(error.code, ErrorCode::NotPermitted);
        let text = error.to_string();
        assert!(text.contains("user namespace") && !text.contains("allocation"), "{text}");
    }

    #[test]
    fn padded_when_name_too_long_then_cut_at_a_character() {
        assert_eq!(&padded("rank")[..5], b"rank\0");
        assert_eq!(padded("0123456789abcdef9"), *b"0123456789abcdef");
        assert_eq!(&padded("0123456789abcdeé")[..], b"0123456789abcde\0");
    }

    #[test]
    fn greet_when_nothing_listens_then_not_connected() {
        let error = greet_at(Path::new("/nonexistent/broker.sock")).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
    }

    /// What connecting says to a user that is not root; `None` where this process cannot become
    /// one.
    fn said_to_another_user(path: &Path) -> Option<Error> {
        let nobody = nix::unistd::Uid::from_raw(65_534);
        if !nix::unistd::geteuid().is_root() {
            return greet_at(path).err();
        }
        // This thread alone, through the system call itself: the C library would change all
        // threads.
        std::thread::scope(|scope| {
            let greet_as_nobody = || {
                // SAFETY: takes numbers alone; no memory is involved.
                let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, nobody.as_raw(), -1) };
                (done == 0).then(|| greet_at(path).expect_err("it is not let in"))
            };
            scope.spawn(greet_as_nobody).join().unwrap()
        })
    }

    #[test]
    fn greet_when_the_socket_or_its_folder_is_for_others_then_names_it_and_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("fdb-no-access-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&folder, 0o755);
        let path = folder.join("broker.sock");
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
        nix::sys::socket::bind(
            socket.as_ref().unwrap().as_raw_fd(),
            &UnixAddr::new(&path).unwrap(),
        )
        .unwrap();
        mode(&path, 0o400);
        let of_socket = said_to_another_user(&path);
        mode(&folder, 0o000);
        let of_folder = said_to_another_user(&path);
        mode(&folder, 0o755);
        std::fs::remove_dir_all(&folder).unwrap();
        let at_fault = [(of_socket, &path, "mode 400"), (of_folder, &folder, "mode 0")];
        for (error, place, mode) in at_fault {
            let Some(error) = error else { continue };
            assert_eq!(error.code, ErrorCode::NotPermitted);
            let text = error.to_string();
            let place = format!("{} belongs to uid ", place.display());
            for part in ["NOT_PERMITTED: ", &place, mode, "`mode`", "FDBROKER_SOCKET"] {
                assert!(text.contains(part), "no `{part}` in: {text}");
            }
            assert!(!text.contains("allocation"), "{text}");
        }
    }

    #[test]
    fn greet_when_path_too_long_then_says_so() {
        let path = format!("/{}", "x".repeat(200));
        let error = greet_at(Path::new(&path)).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
        assert!(error.to_string().contains("107"));
    }
}
