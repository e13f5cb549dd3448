//! Takes messages apart and puts them together on borrowed buffers: every length is checked before
//! a byte is believed. Must never allocate per message, do IO, or panic on any input.

use crate::error::{Status, StatusItem};
use crate::limits::{DRIVER_DATA_BYTES, MAX_BATCH};
use crate::message::{GrantItem, Header, Kind, PROTOCOL_VERSION};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U16, little_endian::U64,
};

/// Why bytes are not a message. Answered with PROTOCOL and, on a client's socket, the end of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than a header.
    #[error("a message of {0} bytes is shorter than its header of 16")]
    Short(usize),
    /// Another protocol version; hello is exempt.
    #[error("the peer speaks protocol version {0}, this side speaks {PROTOCOL_VERSION}")]
    Version(u8),
    /// A kind this build does not know.
    #[error("message kind {0:#x} is unknown")]
    UnknownKind(u16),
    /// The body does not hold what the header says.
    #[error("a {kind} message of {got} body bytes should have {expected}")]
    Length {
        /// The header's `kind`.
        kind: Kind,
        /// Bytes after the header.
        got: usize,
        /// Bytes that its head and items need.
        expected: usize,
    },
    /// More items than a message may have.
    #[error("{0} items exceed the 253 a message may carry")]
    TooMany(u16),
    /// Fds that arrived and fds that the header announces differ.
    #[error("the message announces {announced} fds and {arrived} arrived")]
    FdCount {
        /// The header's `fd_count`.
        announced: u16,
        /// Installed in the receiver.
        arrived: usize,
    },
    /// An item whose name, metadata or numbers are not sound; or bytes behind the last one.
    #[error("item {0} of the message is not sound")]
    Item(usize),
    /// A message about objects above its limit.
    #[error("a message of {0} bytes about objects exceeds 32 KiB")]
    TooLong(usize),
    /// A message that this side does not take.
    #[error("a {0} message is not expected here")]
    Unexpected(Kind),
}

/// A message taken apart: header fields and the body not yet interpreted.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The header's `kind`.
    pub kind: Kind,
    /// The header's `id`.
    pub id: u64,
    /// The header's item count, at most [`MAX_BATCH`] (checked).
    pub count: usize,
    /// The header's fd count.
    pub fd_count: u16,
    /// The bytes after the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Checks header, version and item count. Hello passes whatever its version: its body says
    /// more.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) =
            Header::ref_from_prefix(bytes).map_err(|_| DecodeError::Short(bytes.len()))?;
        let kind = Kind::from_number(header.kind.get())
            .ok_or(DecodeError::UnknownKind(header.kind.get()))?;
        if header.version != PROTOCOL_VERSION && !matches!(kind, Kind::Hello | Kind::Failed) {
            return Err(DecodeError::Version(header.version));
        }
        if usize::from(header.count.get()) > MAX_BATCH && !is_admin(kind) {
            return Err(DecodeError::TooMany(header.count.get()));
        }
        Ok(Message {
            kind,
            id: header.id.get(),
            count: header.count.get().into(),
            fd_count: header.fd_count.get(),
            body,
        })
    }

    /// Compares the fds that arrived with those announced.
    pub fn check_fds(&self, arrived: usize) -> Result<(), DecodeError> {
        if usize::from(self.fd_count) == arrived {
            Ok(())
        } else {
            Err(DecodeError::FdCount { announced: self.fd_count, arrived })
        }
    }

    /// The body as one fixed structure and nothing else.
    pub fn body_as<H: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<&'a H, DecodeError> {
        let expected = size_of::<H>();
        H::ref_from_bytes(self.body).map_err(|_| self.length_error(expected))
    }

    /// The body as `count` items and nothing else.
    pub fn items<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<&'a [T], DecodeError> {
        self.items_in(self.body, 0)
    }

    /// The body as one status and nothing else.
    pub fn status(&self) -> Result<Status, DecodeError> {
        self.body_as::<StatusItem>().map(|item| item.get())
    }

    /// The body as `count` statuses and nothing else.
    pub fn statuses(&self) -> Result<impl ExactSizeIterator<Item = Status> + 'a, DecodeError> {
        Ok(self.items::<StatusItem>()?.iter().map(|item| item.get()))
    }

    /// The body as a head, then `count` items, and nothing else.
    pub fn head_and_items<H, T>(&self) -> Result<(&'a H, &'a [T]), DecodeError>
    where
        H: FromBytes + KnownLayout + Immutable + Unaligned,
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let expected = size_of::<H>() + self.count * size_of::<T>();
        let (head, rest) =
            H::ref_from_prefix(self.body).map_err(|_| self.length_error(expected))?;
        Ok((head, self.items_in(rest, size_of::<H>())?))
    }

    /// The body as a head, and the bytes behind it.
    pub(crate) fn head_and_rest<H: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<(&'a H, &'a [u8]), DecodeError> {
        H::ref_from_prefix(self.body).map_err(|_| self.length_error(size_of::<H>()))
    }

    /// A `Granted` body: its items, and the driver data blocks that follow them.
    pub fn grants(&self) -> Result<(&'a [GrantItem], &'a [[u8; DRIVER_DATA_BYTES]]), DecodeError> {
        let expected = self.count * size_of::<GrantItem>();
        let (items, rest) = <[GrantItem]>::ref_from_prefix_with_elems(self.body, self.count)
            .map_err(|_| self.length_error(expected))?;
        let blocks = items.iter().filter(|item| item.driver_data_len != 0).count();
        let expected = expected + blocks * DRIVER_DATA_BYTES;
        let blocks = <[[u8; DRIVER_DATA_BYTES]]>::ref_from_bytes_with_elems(rest, blocks)
            .map_err(|_| self.length_error(expected))?;
        Ok((items, blocks))
    }

    fn items_in<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        bytes: &'a [u8],
        head: usize,
    ) -> Result<&'a [T], DecodeError> {
        <[T]>::ref_from_bytes_with_elems(bytes, self.count)
            .map_err(|_| self.length_error(head + self.count * size_of::<T>()))
    }

    fn length_error(&self, expected: usize) -> DecodeError {
        DecodeError::Length { kind: self.kind, got: self.body.len(), expected }
    }
}

fn is_admin(kind: Kind) -> bool {
    kind as u16 >= Kind::AdminStatus as u16
}

/// Puts one message together in a buffer that is reused from message to message.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Holds no message until [`Writer::start`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a message: drops what was there and writes the header, with count and fd count 0.
    pub fn start(&mut self, kind: Kind, id: u64) -> &mut Self {
        self.bytes.clear();
        let header = Header {
            kind: U16::new(kind as u16),
            version: PROTOCOL_VERSION,
            flags: 0,
            count: U16::ZERO,
            fd_count: U16::ZERO,
            id: U64::new(id),
        };
        self.push(&header)
    }

    /// Appends a head or an item.
    pub fn push<T: IntoBytes + Immutable + ?Sized>(&mut self, part: &T) -> &mut Self {
        self.bytes.extend_from_slice(part.as_bytes());
        self
    }

    /// Sets the header's counts and gives the whole message.
    ///
    /// # Panics
    /// When no message was started, or a count exceeds u16: both are bugs of the caller.
    pub fn finish(&mut self, count: usize, fd_count: usize) -> &[u8] {
        let (header, _) = Header::mut_from_prefix(&mut self.bytes).expect("start() wrote a header");
        header.count = U16::new(u16::try_from(count).expect("at most 253 items"));
        header.fd_count = U16::new(u16::try_from(fd_count).expect("at most 253 fds"));
        &self.bytes
    }

    /// A whole [`Kind::Failed`] message, the answer to the request `id`.
    pub fn failed(&mut self, id: u64, status: Status) -> &[u8] {
        self.start(Kind::Failed, id).push(&StatusItem::from(status));
        self.finish(0, 0)
    }

    /// The message that was finished last.
    pub fn written(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the message so far, its header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no message was started.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
