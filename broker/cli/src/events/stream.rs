//! Receives the broker's events in a thread with a connection of its own, and connects again when
//! the broker has been upgraded or restarted. Must never hold more than a few messages (the broker
//! counts the events that a slow watcher loses), nor retry without pauses.

use crate::admin::{Admin, Selection};
use crate::error::{Context, Error, Result};
use crate::mailbox::{self, Inbox, Outbox, Unheard};
use crate::output::Output;
use crate::signals::Signals;
use fdbroker_protocol::admin::{Act, EventRecord, act_flags};
use fdbroker_protocol::{ErrorCode, Kind};
pub use fdbrokerd::limits::WATCH_EVENTS_PER_MESSAGE as EVENTS_PER_MESSAGE;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most messages between the thread and its reader, of at most 257 events (22 KiB) each: as many
/// events as the broker keeps for a watcher. When there are so many the thread reads no more, and
/// the broker counts the lost events.
const MESSAGES_KEPT: usize = 16;
/// First pause between two tries to connect: a takeover takes some milliseconds.
const TRY_FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two tries to connect: a service manager starts a broker within a second.
const TRY_LAST: Duration = Duration::from_secs(1);

/// The identity of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broker {
    pub pid: u32,
    /// Number of its ledger: a broker that continues the ledger of another has the same.
    pub incarnation: u64,
}

/// The stream has connected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// Time without a connection. Events of this time are lost.
    pub gap: Duration,
    /// The broker that is watched now.
    pub broker: Broker,
    /// Whether it continues the ledger of the broker before; `None`: there was none before.
    pub is_continued: Option<bool>,
}

/// A message of the thread.
#[derive(Debug)]
pub enum Told {
    /// Events, oldest first.
    Events(Vec<EventRecord>),
    /// The connection is lost, and the thread tries to connect again. Sent once, until
    /// [`Told::Back`].
    Lost {
        /// Microseconds since 1970.
        unix_us: u64,
        error: Error,
    },
    /// The thread has connected again.
    Back(Back),
    /// The thread has given up. This is its last message.
    Over {
        /// Microseconds since 1970.
        unix_us: u64,
        error: Error,
    },
}

/// A connection on which the broker sends events.
#[derive(Debug)]
pub struct Watching {
    admin: Admin,
    broker: Broker,
}

impl Watching {
    /// Asks for the selected events from now on. Waits for at most two answers.
    pub fn begin(admin: Admin, selection: Selection) -> Result<Self> {
        Self::ask(admin, &selection.act(0, 0))
    }

    /// The same, after the selected events of the last milliseconds, `u32::MAX` = all that the
    /// broker has. Of these the last message [is not full](EVENTS_PER_MESSAGE).
    pub fn begin_since(admin: Admin, selection: Selection, ms: u32) -> Result<Self> {
        Self::ask(admin, &selection.act(ms, act_flags::SINCE))
    }

    fn ask(mut admin: Admin, act: &Act) -> Result<Self> {
        let status = admin.status()?;
        let broker = Broker { pid: status.pid.get(), incarnation: status.incarnation.get() };
        match admin.exchange(Kind::AdminWatch, act) {
            Ok(_) => {}
            Err(Error::Refused(ErrorCode::Again)) => {
                return Err(Error::TooManyWatch { path: admin.path().to_owned() });
            }
            Err(error) => return Err(error),
        }
        Ok(Watching { admin, broker })
    }

    /// Events that have arrived; `None`: none.
    pub fn try_next(&mut self) -> Result<Option<Vec<EventRecord>>> {
        self.admin.try_events()
    }

    /// Waits for the next events without a bound.
    pub fn next(&mut self) -> Result<Vec<EventRecord>> {
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

/// Prints what a thread tells until a signal asks for the end.
pub fn follow<T>(
    signals: &Signals,
    inbox: &Inbox<T>,
    mut print: impl FnMut(T, &mut Output) -> Result<()>,
) -> Result<()> {
    let mut out = Output::stdout();
    loop {
        if signals.next_end().is_some() {
            return out.finish();
        }
        signals.wait_beside(inbox)?;
        for told in inbox.take()? {
            print(told, &mut out)?;
        }
        out.flush()?;
    }
}

/// The thread that receives events, and its messages.
pub type Stream = Inbox<Told>;

/// Starts the thread with the connection `first`. When that is lost, or `None`, the thread calls
/// `connect` until it has tried for `patience`; `None`: for ever.
pub fn start(
    first: Option<Watching>,
    selection: Selection,
    patience: Option<Duration>,
    connect: impl Fn() -> Result<Admin> + Send + 'static,
) -> Result<Stream> {
    let begin = move || Watching::begin(connect()?, selection);
    // `Unheard`: the stream was dropped.
    mailbox::start("watcher", MESSAGES_KEPT, move |outbox| {
        drop(work(first, patience, begin, outbox));
    })
}

fn work(
    first: Option<Watching>,
    patience: Option<Duration>,
    begin: impl Fn() -> Result<Watching>,
    outbox: &Outbox<Told>,
) -> std::result::Result<(), Unheard> {
    let (mut watching, mut known) = (first, None);
    // Begin of the time without a connection, and whether `Lost` was sent.
    let (mut since, mut is_said) = (Instant::now(), false);
    let mut pause = Duration::ZERO;
    loop {
        let error = match watching.take() {
            Some(mut watching) => {
                let broker = watching.broker;
                if is_said {
                    let (unix_us, gap) = (unix_us(), since.elapsed());
                    let is_continued = known.map(|it: Broker| it.incarnation == broker.incarnation);
                    outbox.send(Told::Back(Back { unix_us, gap, broker, is_continued }))?;
                }
                known = Some(broker);
                let began_at = Instant::now();
                let error = read(&mut watching, outbox)?;
                (since, is_said) = (Instant::now(), false);
                // A broker that ends again and again is not asked without pauses.
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
            return outbox.send(Told::Over { unix_us: unix_us(), error });
        }
        if !is_said {
            is_said = true;
            outbox.send(Told::Lost { unix_us: unix_us(), error })?;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).clamp(TRY_FIRST, TRY_LAST);
    }
}

/// Sends events on until the connection is lost; gives the reason.
fn read(watching: &mut Watching, outbox: &Outbox<Told>) -> std::result::Result<Error, Unheard> {
    loop {
        match watching.next() {
            Ok(events) => outbox.send(Told::Events(events))?,
            Err(error) => return Ok(error),
        }
    }
}

/// The error after the last try.
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

#[cfg(test)]
mod tests;
