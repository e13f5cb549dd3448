//! Talks to the broker over its admin socket, or the socket for users that look, and reads answers
//! page by page. Must never hold more than one page, nor wait for an answer without a bound.

pub mod again;
#[cfg(test)]
mod tests;
pub mod viewing;

use crate::error::{Context, Error, Result};
use crate::rooms;
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, EventRecord, Filter, LeaseRecord,
    LimitChange, LimitsReply, Metrics, NodeStatus, OwnedObject, Page, Query, SetLimit,
    TombstoneRecord,
};
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::{ErrorCode, Kind, Message, Resource, Scope, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use fdbrokerd::settings::sockets::admin_socket_of;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest wait for one answer. The broker makes a page in less than a millisecond; after this time
/// it hangs.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The admin socket's name in its directory.
pub const ADMIN_SOCKET_NAME: &str = "admin.sock";

/// The end of the name of an administrators' directory.
const ADMIN_SUFFIX: &str = "-admin";

/// The name in JSON of what belongs to the user alone.
pub const OWN_PART: &str = "own";

/// The name in JSON of all that there is.
pub const WHOLE: &str = "node";

/// The admin socket that the environment names: `FDBROKER_ADMIN_SOCKET`, else beside
/// `FDBROKER_SOCKET`, else the user's own, else the node's; where there is no node service, that of
/// the broker that programs of the user have started.
pub fn find_socket(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = set("FDBROKER_ADMIN_SOCKET") {
        return path.into();
    }
    if let Some(path) = set("FDBROKER_SOCKET") {
        return admin_socket_of(Path::new(&path));
    }
    let own = set("XDG_RUNTIME_DIR")
        .map(|dir| PathBuf::from(dir).join("fdbroker-admin").join(ADMIN_SOCKET_NAME));
    match own {
        Some(path) if path.exists() => path,
        _ => {
            let has_service = Path::new("/run/fdbroker").exists();
            let started = if has_service { None } else { rooms::started(set) };
            let node = || Path::new("/run/fdbroker-admin").join(ADMIN_SOCKET_NAME);
            started.map_or_else(node, |room| room.admin_socket())
        }
    }
}

/// The clients' socket of the broker that this environment leads to, if programs have started it.
pub fn started_socket() -> Option<PathBuf> {
    let admin_socket = find_socket(|name| std::env::var_os(name));
    rooms::of_started(&admin_socket).map(|room| room.socket())
}

/// The clients' socket of a broker that is seen by this one: what `FDBROKER_SOCKET` names, else the
/// one beside it.
pub fn client_socket_of(seen: &Path) -> PathBuf {
    if let Some(named) = std::env::var_os("FDBROKER_SOCKET").filter(|path| !path.is_empty()) {
        return named.into();
    }
    let folder = seen.parent().and_then(Path::to_str).unwrap_or_default();
    let folder = folder.strip_suffix(ADMIN_SUFFIX).unwrap_or(folder);
    Path::new(folder).join("broker.sock")
}

/// A connection to the admin socket.
#[derive(Debug)]
pub struct Admin {
    socket: OwnedFd,
    path: PathBuf,
    buffer: Box<[u8]>,
    fds: ReceivedFds,
    writer: Writer,
    last_id: u64,
    patience: Duration,
    /// What is seen over this connection: of the node all, of a domain the user's own part.
    scope: Option<Scope>,
}

/// The records that a query or an act is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    filter: Filter,
    value: u64,
}

impl Selection {
    pub const ALL: Selection = Selection { filter: Filter::None, value: 0 };

    /// An allocation, or its leases.
    pub fn allocation(id: fdbroker_protocol::AllocationId) -> Self {
        let value = u64::from(id.generation) << 32 | u64::from(id.slot);
        Selection { filter: Filter::Allocation, value }
    }

    pub fn pid(pid: u32) -> Self {
        Selection { filter: Filter::Pid, value: pid.into() }
    }

    pub fn uid(uid: u32) -> Self {
        Selection { filter: Filter::Uid, value: uid.into() }
    }

    /// Records of a job, by its key.
    pub fn job(key: u64) -> Self {
        Selection { filter: Filter::Job, value: key }
    }

    fn query(self, cursor: u32) -> Query {
        Query {
            cursor: U32::new(cursor),
            filter: U32::new(self.filter as u32),
            value: U64::new(self.value),
            reserved: U64::ZERO,
        }
    }

    /// The message for an act upon the selection, from a cursor on.
    pub fn act(self, cursor: u32, flags: u32) -> Act {
        Act {
            cursor: U32::new(cursor),
            filter: U32::new(self.filter as u32),
            value: U64::new(self.value),
            flags: U32::new(flags),
            reserved: U32::ZERO,
        }
    }
}

/// A kind of record that the broker sends in pages.
pub trait Record: FromBytes + KnownLayout + Immutable + Unaligned {
    const QUERY: Kind;
}

impl Record for AllocationRecord {
    const QUERY: Kind = Kind::AdminAllocations;
}
impl Record for LeaseRecord {
    const QUERY: Kind = Kind::AdminLeases;
}
impl Record for ClientRecord {
    const QUERY: Kind = Kind::AdminClients;
}
impl Record for OwnedObject {
    const QUERY: Kind = Kind::AdminObjects;
}
impl Record for TombstoneRecord {
    const QUERY: Kind = Kind::AdminTombstones;
}

/// Accounts of jobs. [`Admin::domains`] gives the accounts of domains.
impl Record for AccountRecord {
    const QUERY: Kind = Kind::AdminJobs;
}

impl Admin {
    /// Connects to the broker that this process's environment names.
    pub fn from_env() -> Result<Self> {
        Self::connect(&find_socket(|name| std::env::var_os(name)))
    }

    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_within(path, ANSWER_LIMIT)
    }

    /// Connects to `path`. `patience` bounds the wait for each answer, and for room in the queue of
    /// the socket.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self> {
        let socket = open(path, patience)?;
        fdbroker_scm::check_server(socket.as_fd(), path)
            .map_err(|who| Error::Stranger { path: path.to_owned(), who })?;
        Ok(Admin { patience, ..Self::on(socket, path) })
    }

    fn on(socket: OwnedFd, path: &Path) -> Self {
        Admin {
            socket,
            path: path.to_owned(),
            buffer: vec![0; MAX_ADMIN_MESSAGE_BYTES].into_boxed_slice(),
            fds: ReceivedFds::with_capacity(0),
            writer: Writer::new(),
            last_id: 0,
            patience: ANSWER_LIMIT,
            scope: Some(Scope::Node),
        }
    }

    /// The same with so long a wait for each answer.
    pub fn within(self, patience: Duration) -> Self {
        Admin { patience, ..self }
    }

    /// Whether this user sees no more than what is their own.
    pub fn is_own_part(&self) -> bool {
        self.scope != Some(Scope::Node)
    }

    /// What is seen, as JSON names it.
    pub fn scope_name(&self) -> &'static str {
        if self.is_own_part() { OWN_PART } else { WHOLE }
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Inode of this end of the connection.
    pub fn inode(&self) -> Result<u64> {
        Ok(nix::sys::stat::fstat(&self.socket).context(|| "look at the own socket")?.st_ino)
    }

    /// The broker's user, as the kernel says.
    pub fn server_uid(&self) -> Result<u32> {
        let peer = getsockopt(&self.socket, PeerCredentials);
        Ok(peer.context(|| "look for the broker's user")?.uid())
    }

    pub fn status(&mut self) -> Result<NodeStatus> {
        self.one(Kind::AdminStatus)
    }

    fn one<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(
        &mut self,
        query: Kind,
    ) -> Result<T> {
        Ok(*self.exchange(query, &Selection::ALL.query(0))?.body_as::<T>()?)
    }

    /// The caps of every level, in force and configured.
    pub fn limits(&mut self) -> Result<LimitsReply> {
        self.one(Kind::AdminLimits)
    }

    /// Changes a cap and gives its former value and the value in force; `u64::MAX` is no cap. With
    /// `dry_run` nothing is changed.
    pub fn set_limit(
        &mut self,
        (scope, resource): (Scope, Resource),
        value: u64,
        dry_run: bool,
    ) -> Result<LimitChange> {
        let (scope, resource, dry_run) = (scope as u8, resource as u8, dry_run.into());
        let set = SetLimit { scope, resource, dry_run, reserved: [0; 5], value: value.into() };
        let change = self
            .exchange(Kind::AdminSetLimit, &set)
            .and_then(|reply| Ok(*reply.body_as::<LimitChange>()?));
        match change {
            Err(Error::Refused(ErrorCode::NotPermitted)) => Err(refusal(&self.path)),
            change => change,
        }
    }

    /// Times of grants and recalls.
    pub fn metrics(&mut self) -> Result<Metrics> {
        match self.one(Kind::AdminMetrics) {
            Err(Error::Refused(ErrorCode::NotPermitted)) => Err(Error::OfWhole("metrics are")),
            metrics => metrics,
        }
    }

    /// Hands all selected records to `each`, page by page. Ends at the first error of `each`.
    pub fn each_page<R: Record>(
        &mut self,
        selection: Selection,
        mut each: impl FnMut(&[R]) -> Result<()>,
    ) -> Result<()> {
        let body = |cursor| selection.query(cursor);
        self.pages(R::QUERY, body, |page| each(page).map(|()| true)).map(drop)
    }

    pub fn domains(&mut self) -> Result<Vec<AccountRecord>> {
        Ok(self.collect(Kind::AdminDomains, Selection::ALL, usize::MAX)?.0)
    }

    /// The first selected records, page by page until there are `enough`, and whether there are
    /// more.
    pub fn first<R: Record + Copy>(
        &mut self,
        selection: Selection,
        enough: usize,
    ) -> Result<(Vec<R>, bool)> {
        self.collect(R::QUERY, selection, enough)
    }

    fn collect<R: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(
        &mut self,
        query: Kind,
        selection: Selection,
        enough: usize,
    ) -> Result<(Vec<R>, bool)> {
        let mut records = Vec::new();
        let body = |cursor| selection.query(cursor);
        let is_all = self.pages(query, body, |page: &[R]| {
            records.extend_from_slice(page);
            Ok(records.len() < enough)
        })?;
        Ok((records, !is_all))
    }

    /// Hands pages to `each` while it returns true; gives whether all pages were read. `body` makes
    /// the query for the page at a cursor.
    pub fn pages<R: FromBytes + KnownLayout + Immutable + Unaligned, B: IntoBytes + Immutable>(
        &mut self,
        query: Kind,
        body: impl Fn(u32) -> B,
        mut each: impl FnMut(&[R]) -> Result<bool>,
    ) -> Result<bool> {
        let mut cursor = 0;
        loop {
            let message = self.exchange(query, &body(cursor))?;
            let (page, records) = message.head_and_items::<Page, R>()?;
            let (next, is_last) = (page.next_cursor.get(), page.done.get() != 0);
            let wants_more = each(records)?;
            if is_last || !wants_more {
                return Ok(is_last);
            }
            // Growing cursors bound this loop.
            if next <= cursor {
                return Err(lost(&self.path, format!("cursor {next} follows {cursor}")));
            }
            cursor = next;
        }
    }

    /// All selected records. Only for selections that are known to be small.
    pub fn all<R: Record + Copy>(&mut self, selection: Selection) -> Result<Vec<R>> {
        Ok(self.first(selection, usize::MAX)?.0)
    }

    /// Events that the broker has sent; `None`: none yet.
    pub fn try_events(&mut self) -> Result<Option<Vec<EventRecord>>> {
        let socket = self.socket.as_fd();
        match fdbroker_scm::recv(socket, &mut self.buffer, &mut self.fds) {
            Ok(received) => {
                let message = Message::parse(&self.buffer[..received.len])?;
                Ok(Some(message.items::<EventRecord>()?.to_vec()))
            }
            Err(RecvError::WouldBlock) => Ok(None),
            Err(RecvError::Eof) => Err(Error::BrokerEnded { path: self.path.clone() }),
            Err(cause) => Err(lost(&self.path, cause)),
        }
    }

    /// Sends a message and waits for its answer, whose kind is the next number.
    pub fn exchange(
        &mut self,
        query: Kind,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<Message<'_>> {
        self.last_id += 1;
        self.writer.start(query, self.last_id).push(body);
        let bytes = self.writer.finish(0, 0);
        let is_first = self.last_id == 1;
        let patience = Some(self.patience);
        let sent = fdbroker_scm::send_timeout(self.socket.as_fd(), bytes, &[], patience);
        match sent {
            Ok(()) => {}
            Err(SendError::PeerGone) if is_first => return Err(refusal(&self.path)),
            Err(cause) => return Err(lost(&self.path, cause)),
        }

        let received = fdbroker_scm::recv_timeout(
            self.socket.as_fd(),
            &mut self.buffer,
            &mut self.fds,
            patience,
        );
        let received = match received {
            Ok(received) => received,
            Err(RecvError::Eof) if is_first => return Err(refusal(&self.path)),
            Err(RecvError::TimedOut) => return Err(Error::NoAnswer { path: self.path.clone() }),
            Err(cause) if is_first => return Err(unless_gone(&self.path, lost(&self.path, cause))),
            Err(cause) => return Err(lost(&self.path, cause)),
        };
        let message = Message::parse(&self.buffer[..received.len])?;
        match message.kind {
            kind if kind as u16 == query as u16 + 1 && message.id == self.last_id => Ok(message),
            Kind::Failed => match message.status()?.result() {
                Err(_) if message.status()? == Status::NO_POD => {
                    Err(Error::OutsidePods { path: self.path.clone() })
                }
                Err(code) => Err(Error::Refused(code)),
                Ok(()) => Err(lost(&self.path, "a failure without a code")),
            },
            kind => Err(lost(&self.path, format!("a {kind} message is no answer to {query}"))),
        }
    }
}

impl AsFd for Admin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects, whoever serves there.
fn open(path: &Path, patience: Duration) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let failed = |errno: Errno| connect_error(path, errno.into());
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(failed)?;
    let address = UnixAddr::new(path).map_err(failed)?;
    // Bounds the connect too (socket(7), unix(7)).
    let (whole_s, part_us) = (patience.as_secs(), patience.subsec_micros());
    let limit = TimeVal::new(i64::try_from(whole_s).unwrap_or(i64::MAX), part_us.into());
    setsockopt(&socket, SendTimeout, &limit).map_err(failed)?;
    // With a bound, connect(2) is not restarted after a signal (signal(7)).
    while let Err(errno) = connect(socket.as_raw_fd(), &address) {
        if errno != Errno::EINTR {
            return Err(failed(errno));
        }
    }
    Ok(socket)
}

/// The error of a connection that the broker closes at once: the broker does not admit this user.
fn refusal(path: &Path) -> Error {
    let cause = io::Error::from(io::ErrorKind::PermissionDenied);
    unless_gone(path, Error::Denied { path: path.to_owned(), cause })
}

/// The error of a connection that ends before its first answer, unless the broker has just ended
/// with the connection in its queue: then nothing listens any more.
fn unless_gone(path: &Path, otherwise: Error) -> Error {
    match open(path, ANSWER_LIMIT) {
        Err(gone @ Error::NoBroker { .. }) => gone,
        _ => otherwise,
    }
}

fn lost(path: &Path, cause: impl std::fmt::Display) -> Error {
    Error::Lost { path: path.to_owned(), cause: cause.to_string() }
}

fn connect_error(path: &Path, cause: io::Error) -> Error {
    let path = path.to_owned();
    match cause.kind() {
        io::ErrorKind::PermissionDenied => Error::Denied { path, cause },
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ConnectionRefused => Error::NoBroker { path, cause },
        // A socket of another type, and so of another program.
        _ if cause.raw_os_error() == Some(libc::EPROTOTYPE) => Error::NoBroker { path, cause },
        // The queue of the socket has stayed full.
        io::ErrorKind::WouldBlock => Error::NoAnswer { path },
        _ => Error::Os { what: format!("connect to {}", path.display()), cause },
    }
}
