//! The broker's events, read by a thread on a connection of its own, which is made anew when the broker is taken over or
//! started again. Must never hold more than a few messages - a broker counts what its watcher is too slow for -, nor try
//! without pauses.

use crate::admin::{Admin, Selection};
use crate::error::{Context, Error, Result};
use fdbroker_protocol::admin::EventRecord;
use fdbroker_protocol::{ErrorCode, Kind};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Messages read and not taken yet, of at most 257 events each (22 KiB): as many events as the broker itself keeps for a
/// watcher. When they are full nothing is read, and the broker counts what is lost.
const MESSAGES_KEPT: usize = 16;
/// First and longest pause between two tries to reach a broker again: a takeover takes some milliseconds, a service
/// manager starts a broker within a second.
const TRY_FIRST: Duration = Duration::from_millis(20);
/// See [`TRY_FIRST`].
const TRY_LAST: Duration = Duration::from_secs(1);

/// Which broker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its process.
    pub pid: u32,
    /// The same in a broker that goes on with the ledger of another.
    pub incarnation: u64,
}

/// A broker that is watched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// For so long nothing was watched: what happened then is not told.
    pub gap: Duration,
    /// Which it is.
    pub broker: Broker,
    /// Whether it goes on with the ledger of the former one; `None`: there was none.
    pub is_continued: Option<bool>,
}

/// What the thread has to say.
#[derive(Debug)]
pub enum Told {
    /// These happened, in this order.
    Events(Vec<EventRecord>),
    /// There are no events from now on; it is tried again. Said once, until [`Told::Back`].
    Lost {
        /// Microseconds since 1970.
        unix_us: u64,
        /// Why.
        error: Error,
    },
    /// There are again.
    Back(Back),
    /// There will be none any more; the last thing said.
    Over {
        /// Microseconds since 1970.
        unix_us: u64,
        /// Why.
        error: Error,
    },
}

/// A connection that is told events.
#[derive(Debug)]
pub struct Watching {
    admin: Admin,
    broker: Broker,
}

impl Watching {
    /// Has `admin` told of what is selected from now on. At most two answers are waited for.
    pub fn begin(mut admin: Admin, selection: Selection) -> Result<Self> {
        let status = admin.status()?;
        let broker = Broker { pid: status.pid.get(), incarnation: status.incarnation.get() };
        match admin.exchange(Kind::AdminWatch, &selection.act(0, 0), Kind::AdminEvents) {
            Ok(_) => {}
            Err(Error::Refused(ErrorCode::Again)) => {
                return Err(Error::TooManyWatch { path: admin.path().to_owned() });
            }
            Err(error) => return Err(error),
        }
        Ok(Watching { admin, broker })
    }

    /// What has come already; `None`: nothing.
    pub fn try_next(&mut self) -> Result<Option<Vec<EventRecord>>> {
        self.admin.try_events()
    }

    /// The next events, however long it takes.
    fn next(&mut self) -> Result<Vec<EventRecord>> {
        loop {
            if let Some(events) = self.try_next()? {
                return Ok(events);
            }
            let mut fds = [PollFd::new(self.admin.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno).context(|| "wait for events"),
            }
        }
    }
}

/// The thread that watches; it ends with the process, since it may be waiting for a broker that hangs.
pub struct Stream {
    told: Receiver<Told>,
    came: Arc<EventFd>,
}

impl Stream {
    /// Goes on with `first`, and `connect`s anew when there is none or it has ended: for `patience`, then it is over;
    /// `None`: for ever.
    pub fn start(
        first: Option<Watching>,
        selection: Selection,
        patience: Option<Duration>,
        connect: impl Fn() -> Result<Admin> + Send + 'static,
    ) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let came = Arc::new(EventFd::from_flags(flags).context(|| "open an eventfd")?);
        let (tell, told) = sync_channel(MESSAGES_KEPT);
        let teller = Teller { tell, came: Arc::clone(&came) };
        let begin = move || Watching::begin(connect()?, selection);
        let thread = std::thread::Builder::new().name("watcher".into());
        // An error: nobody takes it any more.
        let work = move || drop(work(first, patience, begin, &teller));
        thread.spawn(work).context(|| "start a thread")?;
        Ok(Stream { told, came })
    }

    /// What has been said and not been taken yet: at most [`MESSAGES_KEPT`] and one. An error: the thread has ended.
    pub fn take(&self) -> Result<Vec<Told>> {
        // Before the messages are: what comes later shows up again. Empty when nothing has come.
        let _ = self.came.read();
        let mut all = Vec::new();
        while all.len() <= MESSAGES_KEPT {
            match self.told.try_recv() {
                Ok(told) => all.push(told),
                Err(TryRecvError::Disconnected) if all.is_empty() => return Err(ended()),
                Err(_) => break,
            }
        }
        Ok(all)
    }
}

impl AsFd for Stream {
    /// Readable when something has been said, or the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}

struct Teller {
    tell: SyncSender<Told>,
    came: Arc<EventFd>,
}

/// Nobody takes what is said.
struct Unheard;

impl Teller {
    /// Waits until there is room for it.
    fn tell(&self, told: Told) -> std::result::Result<(), Unheard> {
        self.tell.send(told).map_err(|_| Unheard)?;
        self.came.write(1).map(drop).map_err(|_| Unheard)
    }
}

impl Drop for Teller {
    /// Also after a panic: it must not be waited for.
    fn drop(&mut self) {
        let _ = self.came.write(1);
    }
}

fn work(
    first: Option<Watching>,
    patience: Option<Duration>,
    begin: impl Fn() -> Result<Watching>,
    teller: &Teller,
) -> std::result::Result<(), Unheard> {
    let (mut watching, mut known) = (first, None);
    // Since when nothing is watched, and whether that has been said.
    let (mut since, mut is_said) = (Instant::now(), false);
    let mut pause = Duration::ZERO;
    loop {
        let error = match watching.take() {
            Some(mut watching) => {
                let broker = watching.broker;
                if is_said {
                    let (unix_us, gap) = (unix_us(), since.elapsed());
                    let is_continued = known.map(|it: Broker| it.incarnation == broker.incarnation);
                    teller.tell(Told::Back(Back { unix_us, gap, broker, is_continued }))?;
                }
                known = Some(broker);
                let began_at = Instant::now();
                let error = read(&mut watching, teller)?;
                (since, is_said) = (Instant::now(), false);
                // One that ends again and again is not asked without rest.
                if began_at.elapsed() >= TRY_LAST {
                    pause = Duration::ZERO;
                }
                error
            }
            None => match begin() {
                Ok(begun) => {
                    watching = Some(begun);
                    continue;
                }
                Err(error) => error,
            },
        };
        let is_over = matches!(error, Error::Protocol(_))
            || (is_said && patience.is_some_and(|most| since.elapsed() >= most));
        if is_over {
            let error = gone(error, patience);
            return teller.tell(Told::Over { unix_us: unix_us(), error });
        }
        if !is_said {
            is_said = true;
            teller.tell(Told::Lost { unix_us: unix_us(), error })?;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).clamp(TRY_FIRST, TRY_LAST);
    }
}

/// Tells all that comes; gives why no more does.
fn read(watching: &mut Watching, teller: &Teller) -> std::result::Result<Error, Unheard> {
    loop {
        match watching.next() {
            Ok(events) => teller.tell(Told::Events(events))?,
            Err(error) => return Ok(error),
        }
    }
}

/// Why it is over.
fn gone(error: Error, patience: Option<Duration>) -> Error {
    let (path, cause) = match error {
        Error::NoBroker { path, cause } => (path, cause.to_string()),
        Error::Lost { path, cause } => (path, cause),
        error => return error,
    };
    Error::BrokerGone { path, cause, waited_s: patience.unwrap_or_default().as_secs() }
}

/// Now, in microseconds since 1970.
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn ended() -> Error {
    Error::Other("the thread that reads events has ended; this is a bug of fdbroker".into())
}

#[cfg(test)]
mod tests;
