//! The client: what a rank calls. Finds the connection of the moment, refuses what cannot work,
//! leaves the rest. Must never block in a callback or in a forked child.

use super::builder::ClientBuilder;
use crate::books::common::Common;
use crate::books::grant::Grant;
use crate::books::roles::Dispatcher;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Drained, Export, Registration, RegistrationRef};
use crate::error::Error;
use crate::fork::Process;
use crate::interrupt::{now, sleep};
use crate::limits::{CLOSED_HERE_PATIENCE, CONNECT_TIMEOUT, RECONNECT_FIRST, UNREGISTER_TIMEOUT};
use crate::requests::acquire::{Handed, acquire_each, acquire_one};
use crate::requests::acquiring::{AcquireRequest, Acquires};
use crate::requests::ahead::{fetch, resolve_ahead, take};
use crate::requests::early::{self, EarlyRegistration};
use crate::requests::flush::{flush, settle};
use crate::requests::inherited::{self, Heritage};
use crate::requests::register::{Batch, Registrations, register};
use crate::requests::resolve::resolve;
use crate::requests::started::Request;
use crate::requests::unregister::unregister;
use crate::serve::dispatch::Dispatch;
use crate::serve::session::Session;
use crate::serve::thread::LibraryThread;
use crate::sync::{is_in_callback, lock};
use crate::wire::connection::Connection;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle, VirtualFd};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A connection to the node's broker, for all threads of a process; clones share it.
///
/// Blocking calls take a [`Deadline`]. A broker that goes away answers them with NOT_CONNECTED at
/// once, and later calls too until the library has found a broker again. It then names to it what
/// this client has, before any call gets through: registrations that can be exported again or are
/// kept, and leases. These go on with their handles; what does not is told by [`crate::Notice`]s. A
/// child of fork(2) must connect anew: here everything answers NOT_CONNECTED.
///
/// Dropping the last clone (arenas hold one) ends the connection: the broker takes back all leases
/// and ends all registrations. Memory already imported stays mapped until its [`crate::Import`] is
/// dropped. The library thread is gone when drop returns, so the code may be unloaded; not so when
/// a callback does not end within a second, or when it is a callback that drops the last clone.
#[derive(Clone, Debug)]
pub struct Client {
    owner: Arc<Owner>,
    /// The one of the owner, without a look there.
    process: Process,
}

/// Ends the connection and the library thread when the last client is dropped.
#[derive(Debug)]
struct Owner {
    session: Arc<Session>,
    /// Of a client that the application serves (dispatch mode).
    dispatch: Option<Arc<Dispatch>>,
    /// Of any other client; `None` once it is told to end.
    thread: Mutex<Option<LibraryThread>>,
    heritage: Mutex<Heritage>,
    /// Said: the library thread is cut off from its fds, and no other one can be made.
    is_cut_off: AtomicBool,
}

impl ClientBuilder {
    /// Connects, and starts the library thread unless it is to do without. In a child of fork(2)
    /// the client leases the memory that the process has inherited and that no other client of it
    /// has leased, as far as its broker grants it, until it ends.
    ///
    /// # Errors
    /// NOT_CONNECTED: nobody answers at the socket within 10 s. NOT_PERMITTED: the socket refuses
    /// this user, or is served by a user that may not serve it: neither root nor the owner of the
    /// socket's directory nor this thread's effective user. PROTOCOL: another version. NO_QUOTA:
    /// `own_fds` or another connection do not fit. LOCAL_FD_LIMIT. NOT_SUPPORTED: a value of an
    /// environment variable that cannot be used, or no program `fdbroker` to start a broker with.
    pub fn connect(self) -> Result<Client, Error> {
        self.connect_within(Deadline::after(CONNECT_TIMEOUT))
    }

    /// The same within a deadline. Looking for a broker later, when this one is lost, is not
    /// bounded by it.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`]; NOT_CONNECTED says when a broker listens and does not answer
    /// in time.
    pub fn connect_within(self, deadline: Deadline) -> Result<Client, Error> {
        let (mut settings, absent) = self.resolve()?;
        let window = settings.caller.own_fds.saturating_sub(1).max(1);
        let max_held_fds = settings.caller.max_held_fds;
        let can_recall = settings.on_recall.is_some();
        let common = Common::new(window, max_held_fds, can_recall, settings.dispatch)?;
        let common = Arc::new(common);
        let greeted = absent.greet(&mut settings.caller, deadline)?;
        let (connection, page) = Connection::new(1, greeted, Arc::clone(&common))?;
        let connection = Arc::new(connection);
        connection.begin_books();
        connection.show_page(&page)?;
        let session = Arc::new(Session::new(settings, common, connection));
        let (mut dispatch, mut thread) = (None, None);
        if session.settings.dispatch {
            let made = Arc::new(Dispatch::new(Arc::clone(&session))?);
            let dispatcher: Weak<dyn Dispatcher> = Arc::<Dispatch>::downgrade(&made);
            session.common.set_dispatcher(dispatcher);
            // The event fd watches the connection from now on.
            made.serve();
            dispatch = Some(made);
        } else {
            thread = Some(LibraryThread::start(Arc::clone(&session))?);
        }
        let process = session.common.process;
        let heritage = Mutex::new(inherited::lease(&session.current(), deadline));
        let owner = Arc::new(Owner {
            session,
            dispatch,
            thread: Mutex::new(thread),
            heritage,
            is_cut_off: AtomicBool::new(false),
        });
        Ok(Client { owner, process })
    }
}

impl Client {
    /// Connects to the broker at the default socket ([`crate::default_socket_path`]) with default
    /// settings.
    ///
    /// # Errors
    /// See [`ClientBuilder::connect`].
    pub fn connect() -> Result<Client, Error> {
        Self::builder().connect()
    }

    /// Settings for a connection.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The path of the broker's socket: for other processes, which find the same broker by it.
    pub fn socket(&self) -> &Path {
        &self.owner.session.settings.caller.socket
    }

    /// Registers one allocation: the broker gets its fd, the caller may close its own at once.
    ///
    /// # Errors
    /// BAD_HANDLE: the deposit is no allocation, such as one of no bytes. NO_QUOTA (with the cap),
    /// UNSUPPORTED_FD (with what it is), NOT_SUPPORTED (recallable without a recall callback, too),
    /// TIMED_OUT, NOT_CONNECTED.
    pub fn register(
        &self,
        deposit: &Deposit,
        fd: BorrowedFd<'_>,
        deadline: Deadline,
    ) -> Result<Registration, Error> {
        let registrations = self.register_many(std::slice::from_ref(deposit), &[fd], deadline)?;
        registrations.into_iter().next().expect("one outcome per deposit")
    }

    /// Registers any number of allocations, `fds[i]` being that of `deposits[i]` (the same fd may
    /// stand there many times). One outcome each, in their order. They travel in chunks of what the
    /// broker has room for, so those of a batch that does not fit fail one by one with NO_QUOTA at
    /// the deadline.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    ///
    /// # Panics
    /// When `deposits` and `fds` differ in length.
    pub fn register_many(
        &self,
        deposits: &[Deposit],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<Registrations, Error> {
        assert_eq!(deposits.len(), fds.len(), "one fd per deposit");
        let mut export = |index: usize| Ok(Export::Shared(fds[index]));
        self.register_batch(&mut Batch { deposits, export: &mut export, fresh: false }, deadline)
    }

    /// The same, making each fd just before it is sent and closing it right after, so that no more
    /// than the export window (`own_fds` - 1, at least 1) exist at once, over all threads. `export`
    /// is called once per deposit that can be registered, in their order, and must not wait for
    /// anything; its error is the outcome of that deposit.
    ///
    /// # Errors
    /// As [`Client::register_many`].
    pub fn register_with(
        &self,
        deposits: &[Deposit],
        mut export: impl FnMut(usize) -> Result<OwnedFd, Error>,
        deadline: Deadline,
    ) -> Result<Registrations, Error> {
        let mut export = |index: usize| export(index).and_then(Export::fresh);
        self.register_batch(&mut Batch { deposits, export: &mut export, fresh: true }, deadline)
    }

    /// Registers early what a program will most likely register next, at most 253 allocations. They
    /// are sent in one message, and each answer is taken when the program asks for it
    /// ([`Client::take_early`]), so that nobody waits. Never waits itself. `export` makes the fd of
    /// the deposit at an index; it is called where the broker has a place at hand, and must not
    /// wait for anything. What comes back is for the first deposits, in their order; those behind
    /// have no place or no fd, or the broker could not be asked: register them when they are
    /// wanted.
    pub fn register_early(
        &self,
        deposits: &[Deposit],
        export: impl FnMut(usize) -> Option<OwnedFd>,
        deadline: Deadline,
    ) -> Vec<EarlyRegistration> {
        let begun = self.usable("register");
        begun.map_or_else(|_| Vec::new(), |it| early::begin(&it, deposits, export, deadline))
    }

    /// The answer to an early registration, waiting for it if it has not come yet.
    ///
    /// # Errors
    /// As [`Client::register`]; AGAIN: there was no room for it yet, or its place was given to
    /// others meanwhile. NOT_CONNECTED: the connection that it was sent by is lost. In every case
    /// there is no registration, and one can be made as if nothing had been tried.
    pub fn take_early(
        &self,
        early: EarlyRegistration,
        deadline: Deadline,
    ) -> Result<Registration, Error> {
        self.check_may_wait("register")?;
        early::take(early, deadline)
    }

    pub(crate) fn register_batch(
        &self,
        batch: &mut Batch<'_, '_>,
        deadline: Deadline,
    ) -> Result<Registrations, Error> {
        match self.connection("register", deadline) {
            Ok(connection) => Ok(register(&connection, batch, deadline)),
            Err(error) => {
                if error.code == ErrorCode::NotConnected && !self.is_forked_copy() {
                    // What was in these ranges before is not there any more.
                    self.common().holdings.supersede(batch.deposits.iter());
                }
                Err(error)
            }
        }
    }

    /// Ends one registration. When the last of its count is gone, so is the allocation: every
    /// holder is told. Waits at most 10 s; see [`Client::unregister_many`].
    ///
    /// # Errors
    /// STALE: it had ended before. BAD_HANDLE, NOT_PERMITTED: not this client's, or a buffer's,
    /// which is ended by its drop. TIMED_OUT: see [`Client::unregister_many`]. NOT_CONNECTED in a
    /// child of fork(2), NOT_SUPPORTED in a callback.
    pub fn unregister(&self, what: impl Into<RegistrationRef>) -> Result<Drained, Error> {
        self.unregister_within(what, Deadline::after(UNREGISTER_TIMEOUT))
    }

    /// The same within a deadline.
    ///
    /// # Errors
    /// As [`Client::unregister`].
    pub fn unregister_within(
        &self,
        what: impl Into<RegistrationRef>,
        deadline: Deadline,
    ) -> Result<Drained, Error> {
        let outcomes = self.unregister_many([what.into()], deadline)?;
        outcomes.into_iter().next().expect("one outcome per registration")
    }

    /// Ends many, one outcome each, in their order. Each that is this client's ends, whatever the
    /// outcome: while the broker is away the answer is `Drained(false)`, and the next broker does
    /// not hear of it. Nobody can say then when its consumers have released it, and no notice of
    /// that comes; but of a kept one ([`Deposit::keep`]) the next broker hears, and the notice
    /// comes. One that the broker has not answered by the deadline (TIMED_OUT) ends when the broker
    /// reads the message, and [`crate::Notice::Drained`] follows, also when no lease was left.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED in a child of fork(2), or NOT_SUPPORTED in a callback.
    pub fn unregister_many<R: Into<RegistrationRef>>(
        &self,
        what: impl IntoIterator<Item = R>,
        deadline: Deadline,
    ) -> Result<Vec<Result<Drained, Error>>, Error> {
        let connection = match self.connection("unregister", deadline) {
            Ok(connection) => Some(connection),
            Err(error) if error.code == ErrorCode::NotConnected && !self.is_forked_copy() => None,
            Err(error) => return Err(error),
        };
        let what = what.into_iter().map(Into::into);
        Ok(unregister(self.common(), connection.as_deref(), what, deadline))
    }

    /// Ends many without waiting for the broker, which hears of them within a millisecond, or
    /// before what is asked of it next, and is not asked what has become of them:
    /// [`crate::Notice::Drained`] follows for those of which others have leases. A buffer of this
    /// library, and what had ended before, are left as they are. [`Client::flush`] and
    /// [`Client::settle`] wait for them.
    pub fn unregister_soon<R: Into<RegistrationRef>>(&self, what: impl IntoIterator<Item = R>) {
        let common = self.common();
        if !self.is_forked_copy() {
            let what = what.into_iter().map(Into::into);
            common.retire_soon(what.filter(|one: &RegistrationRef| !common.is_a_buffers(one.id)));
        }
    }

    /// Ends an allocation of this client, a buffer's too, whose memory stays here, and waits until
    /// nobody has it any more: it is granted no more, holders are told ([`crate::Notice::Revoked`])
    /// and let go of what they do not use. From `Ok` on its memory may be used anew. It can be
    /// called again, to wait for longer.
    ///
    /// # Errors
    /// TIMED_OUT: others have it still; the text says how to see who. STALE: it had ended before,
    /// or with its broker, and nobody knows who has it. BAD_HANDLE: another broker's.
    /// NOT_PERMITTED: another client's. NOT_CONNECTED: nothing was ended. NOT_SUPPORTED in a
    /// callback.
    pub fn retire(&self, handle: &Handle, deadline: Deadline) -> Result<(), Error> {
        let connection = self.connection("retire", deadline)?;
        let (holdings, id) = (&self.common().holdings, handle.id());
        let failed = |code, why| Err(Error::new(code, format!("retire {id}")).because(why));
        if holdings.is_another(handle) {
            return failed(ErrorCode::BadHandle, "another broker has made this handle");
        }
        if let (Some(line), told) = holdings.retire(id) {
            line.post_all(&mut told.into_iter());
        }
        let known = connection.patiently(deadline.at(), |until| {
            let is_drained = holdings.wait_drained(id, until);
            (is_drained != Some(false)).then_some(is_drained.is_some())
        });
        match known {
            Some(true) => Ok(()),
            Some(false) if self.is_current(id) => {
                failed(ErrorCode::NotPermitted, "it is another client's")
            }
            Some(false) => failed(ErrorCode::Stale, "it had ended before"),
            None => {
                let why = format!(
                    "others have it still, and have been asked to let go of it; `fdbroker holders {id}` says who"
                );
                failed(ErrorCode::TimedOut, &why)
            }
        }
    }

    /// Acquires one allocation: a duplicate fd and a lease.
    ///
    /// # Errors
    /// WRONG_NODE, BAD_HANDLE, STALE, NOT_PERMITTED, NO_QUOTA (with the cap), OWNER_GONE,
    /// OWNER_SILENT, LOCAL_FD_LIMIT (nothing lost: retry), TIMED_OUT, NOT_CONNECTED; NOT_SUPPORTED
    /// in a callback.
    pub fn acquire(&self, handle: &Handle, deadline: Deadline) -> Result<Grant, Error> {
        let connection = self.connection("acquire", deadline)?;
        acquire_one(&connection, handle, deadline)
    }

    /// The handle behind a virtual fd, for clients of its owner's domain; behind it those of
    /// allocations that the same owner has registered next with a virtual fd, at most `neighbours`
    /// and 31: a program that asks for one will most likely ask for these, too, and one acquire
    /// gets them all. Good as long as the allocations are current ([`Client::is_current`]).
    ///
    /// # Errors
    /// BAD_HANDLE: no live allocation of this domain has the number. AGAIN: after a crash of the
    /// broker its owner has not come back by the deadline. TIMED_OUT, NOT_CONNECTED; NOT_SUPPORTED
    /// in a callback.
    pub fn resolve(
        &self,
        fd: VirtualFd,
        neighbours: u32,
        deadline: Deadline,
    ) -> Result<Vec<Handle>, Error> {
        let connection = self.connection("resolve", deadline)?;
        resolve(&connection, fd, (neighbours, 0), deadline)
    }

    /// The same, and [`Client::fetch_ahead`] for all of these at once, in one message; how many
    /// were asked for, the first of them. 0 before `fetch_ahead` was called.
    ///
    /// # Errors
    /// As [`Client::resolve`].
    pub fn resolve_ahead(
        &self,
        fd: VirtualFd,
        neighbours: u32,
        deadline: Deadline,
    ) -> Result<(Vec<Handle>, usize), Error> {
        let connection = self.connection("resolve", deadline)?;
        resolve_ahead(&connection, fd, neighbours, deadline)
    }

    /// Asks the broker to send the fds behind these ahead: a program that fetches one fd after the
    /// other will most likely want these next, in this order. They are taken by
    /// [`Client::take_ahead`]. Until then they are not in this process's fd table. The broker sends
    /// what it holds, as far as there is room that nobody misses (at most 32 fds and 640 MiB at a
    /// time), and takes back what is not taken within 100 ms. The first call waits for the broker
    /// until the deadline, and no later one waits. Answers how many were asked for, the first of
    /// them: 0 where the broker has nothing to spare for this client.
    pub fn fetch_ahead(&self, handles: &[Handle], deadline: Deadline) -> usize {
        self.connection("fetch ahead", deadline).map_or(0, |it| fetch(&it, handles, deadline))
    }

    /// The grant for a handle, without asking the broker, if it was sent ahead and its allocation
    /// is current. What was sent before it is given back. `None`: acquire it.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn take_ahead(&self, handle: &Handle) -> Option<Result<Grant, Error>> {
        let connection = self.connection("acquire", Deadline::from_ms(0)).ok()?;
        take(&connection, handle)
    }

    /// Acquires the allocation of a virtual fd.
    ///
    /// # Errors
    /// As [`Client::resolve`] and [`Client::acquire`].
    pub fn acquire_virtual(&self, fd: VirtualFd, deadline: Deadline) -> Result<Grant, Error> {
        let connection = self.connection("acquire", deadline)?;
        let handles = resolve(&connection, fd, (0, 0), deadline)?;
        acquire_one(&connection, &handles[0], deadline)
    }

    /// Acquires any number, one outcome each, in their order. All grants are held until the call
    /// returns, so many need as many fds: [`Client::acquire_each`] does not.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    pub fn acquire_many(
        &self,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<Vec<Result<Grant, Error>>, Error> {
        let mut grants: Vec<Option<Result<Grant, Error>>> = Vec::new();
        grants.resize_with(handles.len(), || None);
        self.acquire_each(handles, deadline, |index, outcome| grants[index] = Some(outcome))?;
        let outcome = |one: Option<_>| one.expect("acquire_each hands over each index once");
        Ok(grants.into_iter().map(outcome).collect())
    }

    /// Acquires any number and hands each over as it comes, in any order, each index once: import
    /// it and close its fd at once, and the room is used for the next. `each` runs on the calling
    /// thread and may call this client.
    ///
    /// # Errors
    /// When nothing was tried (`each` was not called): NOT_CONNECTED, or NOT_SUPPORTED in a
    /// callback.
    pub fn acquire_each(
        &self,
        handles: &[Handle],
        deadline: Deadline,
        mut each: impl FnMut(usize, Result<Grant, Error>),
    ) -> Result<(), Error> {
        let connection = self.connection("acquire", deadline)?;
        acquire_each(&connection, handles, deadline, |handed| match handed {
            Handed::One(index, outcome) => each(index, outcome),
            Handed::End => {}
        });
        Ok(())
    }

    /// Starts to acquire any number, without waiting for anything: see [`AcquireRequest`]. What
    /// does not fit now (a full socket, too many requests under way) is sent by a later test. May
    /// be called in a callback.
    ///
    /// # Errors
    /// When nothing was started: NOT_CONNECTED. All else is said by [`Request::test`],
    /// handle by handle: as [`Client::acquire`].
    pub fn acquire_start(
        &self,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<AcquireRequest, Error> {
        let connection = self.usable("acquire")?;
        Ok(Request::of(Acquires::start(connection, handles, deadline)))
    }

    /// In dispatch mode ([`ClientBuilder::dispatch`]): an fd to poll for reading (POLLIN), readable
    /// when there is something for [`Client::dispatch`] to serve. The same one as long as the
    /// client lives, whatever becomes of the connection; only to be polled. A program that has
    /// closed it asks for another one after the next call.
    ///
    /// # Errors
    /// NOT_SUPPORTED: a library thread serves. NOT_CONNECTED: in a child of fork(2).
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.dispatching("event fd").map(Dispatch::event_fd)
    }

    /// In dispatch mode: serves what there is to serve (recalls, notices, replies that nobody waits
    /// for, messages that did not fit, a lost connection and the next try to reach a broker), and
    /// when there is nothing waits up to `timeout` (at most an hour) for something. How many things
    /// were served; 0 after a timeout. Callbacks run in here.
    ///
    /// # Errors
    /// NOT_SUPPORTED: a library thread serves, or in a callback. NOT_CONNECTED: in a child of
    /// fork(2). A lost broker is no error: looking for it is what dispatch does then.
    pub fn dispatch(&self, timeout: Duration) -> Result<usize, Error> {
        let dispatch = self.dispatching("dispatch")?;
        if is_in_callback() {
            let context = "dispatch: a callback is part of one already";
            return Err(Error::new(ErrorCode::NotSupported, context));
        }
        Ok(dispatch.run(timeout))
    }

    fn dispatching(&self, what: &str) -> Result<&Dispatch, Error> {
        if self.is_forked_copy() {
            return Err(Error::forked(what));
        }
        self.owner.dispatch.as_deref().ok_or_else(|| {
            let why = "a library thread serves this client; ask for dispatch mode when you connect";
            Error::new(ErrorCode::NotSupported, what).because(why)
        })
    }

    /// Waits until the broker has carried out what drops and one-way calls have sent before: leases
    /// given back, buffers freed, allocations retired. After it no other process gets a buffer that
    /// was freed before, whatever its handle.
    ///
    /// # Errors
    /// TIMED_OUT, NOT_CONNECTED; NOT_SUPPORTED in a callback.
    pub fn flush(&self, deadline: Deadline) -> Result<(), Error> {
        let connection = self.connection("flush", deadline)?;
        flush(&connection, deadline)
    }

    /// Waits until the broker has closed its fds of what this client has ended before: then their
    /// memory is back, unless others have it open or mapped. A close takes microseconds, of CUDA
    /// memory up to milliseconds.
    ///
    /// # Errors
    /// TIMED_OUT: the closes take longer, or the broker was restarted meanwhile. AGAIN: 64 calls
    /// wait. NOT_CONNECTED; NOT_SUPPORTED in a callback.
    pub fn settle(&self, deadline: Deadline) -> Result<(), Error> {
        let connection = self.connection("settle", deadline)?;
        settle(&connection, deadline)
    }

    /// Whether the allocation lives, the broker lives, and this client is connected to it. Two
    /// loads, no syscall. Ask after putting something into a cache, and on every hit. An id is
    /// never used twice by brokers that keep their directory. Whether a lease is still this
    /// client's says [`crate::Lease::is_current`].
    pub fn is_current(&self, id: AllocationId) -> bool {
        let common = self.common();
        common.page.is_current(id) && common.process.is_current()
    }

    /// The node, see [`fdbroker_protocol::node_id`]; as of the last connection.
    pub fn node(&self) -> u64 {
        self.owner.session.last.node.load(Ordering::Relaxed)
    }

    /// Of the broker, random per start; as of the last connection.
    pub fn incarnation(&self) -> u64 {
        self.owner.session.last.incarnation.load(Ordering::Relaxed)
    }

    /// This client's number at the broker, as `fdbroker clients` shows it; as of the last
    /// connection.
    pub fn id(&self) -> u32 {
        self.owner.session.last.client.load(Ordering::Relaxed)
    }

    /// Whether the caller is a child of fork(2), and this a copy of its parent's client: everything
    /// answers NOT_CONNECTED then. One load, no lock: to be asked before taking a lock that the
    /// fork may have copied.
    #[inline]
    pub fn is_forked_copy(&self) -> bool {
        !self.process.is_current()
    }

    /// Whether calls can be made now.
    pub fn is_connected(&self) -> bool {
        let is_usable = !self.is_forked_copy() && self.current().is_usable();
        if !is_usable && !self.is_forked_copy() {
            // Who waits for it makes no other call.
            self.owner.see_to_thread();
        }
        is_usable
    }

    /// Ends the connection now, as dropping the last clone does, whoever else has one (caches and
    /// arenas do, and the library thread has those for a moment while it tells them something), and
    /// waits for the library thread. Every later call of any clone answers NOT_CONNECTED. In a
    /// child of fork(2) it does nothing.
    pub fn end(&self) {
        if !self.is_forked_copy() {
            self.owner.end();
        }
    }

    /// The connection of the moment, if the caller may wait for it, until its deadline.
    pub(crate) fn connection(
        &self,
        what: &str,
        deadline: Deadline,
    ) -> Result<Arc<Connection>, Error> {
        self.check_may_wait(what)?;
        let usable = self.usable(what);
        match self.current().closed_here().filter(|_| self.owner.session.settings.reconnect) {
            Some(since) if usable.is_err() => {
                self.after_close(what, deadline.at().min(since + CLOSED_HERE_PATIENCE))
            }
            _ => usable,
        }
    }

    /// The program has closed the fds of the connection, not the broker: another one is a moment
    /// away.
    fn after_close(&self, what: &str, until: Instant) -> Result<Arc<Connection>, Error> {
        loop {
            let usable = self.usable(what);
            if usable.is_ok() || now() >= until {
                return usable;
            }
            sleep(RECONNECT_FIRST);
        }
    }

    /// Refuses what waits in a callback, and everything in a child of fork(2).
    pub(crate) fn check_may_wait(&self, what: &str) -> Result<(), Error> {
        if self.is_forked_copy() {
            return Err(Error::forked(what));
        }
        if is_in_callback() {
            let context = format!("{what}: a callback must not wait; do it on another thread");
            Err(Error::new(ErrorCode::NotSupported, context))
        } else {
            Ok(())
        }
    }

    /// The connection of the moment, if it works.
    pub(crate) fn usable(&self, what: &str) -> Result<Arc<Connection>, Error> {
        if self.is_forked_copy() {
            // Before any lock: it may be held by a thread that this child does not have.
            return Err(Error::forked(what));
        }
        let mut connection = self.current();
        if !connection.is_usable() {
            match &self.owner.dispatch {
                // It may be time to look for a broker.
                Some(dispatch) => drop(dispatch.serve()),
                None => self.owner.see_to_thread(),
            }
            connection = self.current();
        }
        if connection.is_usable() { Ok(connection) } else { Err(connection.lost(what)) }
    }

    /// The connection of the moment, dead or alive.
    pub(crate) fn current(&self) -> Arc<Connection> {
        self.owner.session.current()
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.owner.session.common
    }

    pub(crate) fn own_fds(&self) -> u32 {
        self.owner.session.settings.caller.own_fds
    }
}

impl Owner {
    /// The fds by which the library thread is woken may have gone with those of the connection.
    fn see_to_thread(&self) {
        if let Some(thread) = &mut *lock(&self.thread)
            && let Err(error) = thread.relieve(&self.session)
            && !self.is_cut_off.swap(true, Ordering::Relaxed)
        {
            // Once: calls find it again and again until there is room.
            log::error!("no thread in the place of one that this program has cut off: {error}");
        }
    }

    fn end(&self) {
        drop(std::mem::take(&mut *lock(&self.heritage)));
        self.session.stop();
        let thread = lock(&self.thread).take();
        // Nobody can wake a thread whose fds are closed: it ends when it looks.
        let thread = thread.filter(|_| !self.session.common.wake.is_lost());
        // A callback must not wait, least of all for the thread that it runs on.
        if let Some(thread) = thread.filter(|_| !is_in_callback()) {
            thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A child closes its copies of the fds and leaves everything else to its parent.
        if !self.session.common.process.is_current() {
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            return thread.take().map_or((), LibraryThread::forget);
        }
        self.end();
    }
}
