//! Messages from a thread to a loop that polls fds. Must never store messages without a bound, nor
//! leave the loop waiting for a thread that has ended.

use crate::error::{Context, Error, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// The thread's end.
pub struct Outbox<T> {
    messages: SyncSender<T>,
    came: Arc<EventFd>,
}

/// The loop's end.
pub struct Inbox<T> {
    messages: Receiver<T>,
    came: Arc<EventFd>,
    thread: &'static str,
    most: usize,
}

/// The other end was dropped.
pub struct Unheard;

/// Starts a thread that sends messages, of which `most` wait at a time. The thread is never joined:
/// it may wait for a broker that hangs.
pub fn start<T: Send + 'static>(
    thread: &'static str,
    most: usize,
    work: impl FnOnce(&Outbox<T>) + Send + 'static,
) -> Result<Inbox<T>> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let came = Arc::new(EventFd::from_flags(flags).context(|| "open an eventfd")?);
    let (sender, messages) = sync_channel(most);
    let outbox = Outbox { messages: sender, came: Arc::clone(&came) };
    let builder = std::thread::Builder::new().name(thread.into());
    builder.spawn(move || work(&outbox)).context(|| "start a thread")?;
    Ok(Inbox { messages, came, thread, most })
}

impl<T> Outbox<T> {
    /// Sends a message; waits for room.
    pub fn send(&self, message: T) -> std::result::Result<(), Unheard> {
        self.messages.send(message).map_err(|_| Unheard)?;
        self.came.write(1).map(drop).map_err(|_| Unheard)
    }
}

impl<T> Drop for Outbox<T> {
    /// After a panic too: the loop must not wait for a thread that has ended.
    fn drop(&mut self) {
        let _ = self.came.write(1);
    }
}

impl<T> Inbox<T> {
    /// All messages that wait. An error: the thread has ended.
    pub fn take(&self) -> Result<Vec<T>> {
        // Before the messages are read: later messages make the eventfd readable again. Fails if
        // nothing has arrived.
        let _ = self.came.read();
        let mut all = Vec::new();
        while all.len() <= self.most {
            match self.messages.try_recv() {
                Ok(message) => all.push(message),
                Err(TryRecvError::Disconnected) if all.is_empty() => {
                    let thread = self.thread;
                    let text = format!("the thread {thread} has ended; this is a bug of fdbroker");
                    return Err(Error::Other(text));
                }
                Err(_) => break,
            }
        }
        Ok(all)
    }
}

impl<T> AsFd for Inbox<T> {
    /// Readable when a message waits, or when the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }
}
