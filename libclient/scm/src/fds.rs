//! The fds of one received message, owned, and the control buffer they come through.
//! It must never leave an fd that the kernel installed without an owner, nor close one unasked.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use crate::cmsg::{ControlMessages, MAX_FDS, space_for};
use crate::identity::off_stdio;

/// Control buffer for a full message, in 8-byte words. The fds need `space_for(253 * 4)` = 1032
/// bytes; the rest is for what the socket's owner may have turned on and the kernel puts first:
/// credentials (32), a pidfd (24), a security label (up to 256, and 16).
const CONTROL_WORDS: usize = 192;
const _: () = assert!(CONTROL_WORDS * 8 >= space_for(MAX_FDS * 4) + 32 + 24 + 256 + 16);

/// `SCM_PIDFD` of the kernel's `include/linux/socket.h` (6.5): a pidfd of the sender, sent only
/// when the receiver has set `SO_PASSPIDFD`.
const SCM_PIDFD: i32 = 0x04;

/// Bytes of control buffer for `capacity` fds.
fn room_for(capacity: usize) -> usize {
    match capacity {
        0 => 0,
        1..MAX_FDS => space_for(capacity * 4),
        _ => CONTROL_WORDS * 8,
    }
}

/// The fds of the last message received, in the sender's order, owned and close-on-exec.
///
/// One is made per connection (or per thread) and reused: receiving allocates nothing.
///
/// **Take every fd out before the next receive.** Dropping a received fd closes it. That blocks for
/// ever when the fd is of a hung FUSE server, and takes milliseconds with some drivers. So this
/// crate closes none by itself, and the caller chooses the thread that does.
/// [`clear`](Self::clear), dropping this value, and dropping [`drain`](Self::drain)'s iterator
/// early close what is left on the calling thread.
pub struct ReceivedFds {
    fds: VecDeque<OwnedFd>,
    control: Box<[u64]>,
    /// Bytes of `control` the kernel may fill.
    room: usize,
}

impl ReceivedFds {
    /// Room for every message the kernel can carry: [`MAX_FDS`] fds.
    #[must_use]
    pub fn new() -> Self {
        Self::with_room(MAX_FDS, CONTROL_WORDS * 8)
    }

    /// Room for messages of at most `capacity` fds, so that a peer cannot make the kernel install
    /// more. The kernel closes the others and [`Message::fds_truncated`](crate::Message) tells.
    /// Because of alignment an odd `capacity` admits one more: count what came. 0 admits none.
    /// A socket with `SO_PASSCRED`, `SO_PASSSEC` or `SO_PASSPIDFD` needs [`new`](Self::new).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with_room(capacity, room_for(capacity))
    }

    /// The same for the messages to come, as in [`with_capacity`](Self::with_capacity): a receiver
    /// may know how many fds it is owed next. Allocates at most once.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.room = room_for(capacity);
    }

    fn with_room(capacity: usize, room: usize) -> Self {
        Self {
            fds: VecDeque::with_capacity(capacity + 1),
            control: vec![0; CONTROL_WORDS].into_boxed_slice(),
            room,
        }
    }

    /// The number of fds that have not been taken out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fds.len()
    }

    /// Whether all fds have been taken out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fds.is_empty()
    }

    /// Hands over all fds, first to last. What the iterator still has when dropped is closed.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = OwnedFd> + '_ {
        self.fds.drain(..)
    }

    /// Hands over the fd at `index`; those behind it move one place forward.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.fds.remove(index)
    }

    /// Hands over the first fd.
    pub fn pop_front(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Borrows the fds, to look at them or to send them on.
    #[must_use]
    pub fn as_borrowed(&self) -> &[BorrowedFd<'_>] {
        // One slice holds all: `adopt` makes them contiguous, and taking out keeps them so.
        let (owned, none) = self.fds.as_slices();
        debug_assert!(none.is_empty());
        // SAFETY: `OwnedFd` and `BorrowedFd` are both documented as `repr(transparent)` over a host
        // file descriptor, and the borrow of `self` keeps the fds open.
        unsafe { std::slice::from_raw_parts(owned.as_ptr().cast(), owned.len()) }
    }

    /// Closes all fds, on the calling thread; may block, see the type.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// The buffer for `recvmsg`: address and bytes.
    pub(crate) fn control_mut(&mut self) -> (*mut libc::c_void, usize) {
        (self.control.as_mut_ptr().cast(), self.room)
    }

    /// Takes ownership of every fd in the first `used` bytes of the control buffer. Returns
    /// whether there was any control message.
    ///
    /// # Safety
    /// A `recvmsg` into [`control_mut`](Self::control_mut) has just returned this `msg_controllen`,
    /// and its fds have not been taken before.
    pub(crate) unsafe fn adopt(&mut self, used: usize) -> bool {
        let used = used.min(self.room);
        // SAFETY: `used` is within the allocation, all of which is initialised; any byte is valid.
        let control =
            unsafe { std::slice::from_raw_parts(self.control.as_ptr().cast::<u8>(), used) };
        let mut any = false;
        for message in ControlMessages::new(control) {
            any = true;
            if message.level != libc::SOL_SOCKET {
                continue;
            }
            // The kernel installs no negative fd; a failed pidfd is a negated errno.
            let numbers = message.fd_numbers().filter(|fd| *fd >= 0);
            // SAFETY: the kernel installed these for this message, and by this function's contract
            // nobody owns them yet.
            let owned = numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            let owned = owned.map(|fd| off_stdio(fd).unwrap_or_else(|as_it_was| as_it_was));
            match message.kind {
                libc::SCM_RIGHTS => self.fds.extend(owned),
                // Not sent by the peer and not asked for here; closing a pidfd cannot block.
                SCM_PIDFD => owned.for_each(drop),
                _ => {}
            }
        }
        self.fds.make_contiguous();
        any
    }
}

impl Default for ReceivedFds {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReceivedFds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.fds).finish()
    }
}
