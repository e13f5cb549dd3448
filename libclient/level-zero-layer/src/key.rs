//! The key: the 64 bytes of `ze_ipc_mem_handle_t` that a program gets and passes on by value. Must
//! never contain a pointer, nor rely on a part of a driver's private layout that is not checked
//! when it is made.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | the fd's number, where programs look for it and put their own: a virtual fd, else the driver's |
//! | 8..16 | where in the fd's memory the allocation begins, as in the driver's handle |
//! | 16..20 | magic |
//! | 20..24 | the fd's number again: a different number in 0..4 is the program's own fd |
//! | 24..56 | the first 32 bytes of fdbroker's handle, which are enough to resolve it |
//! | 56..64 | the rest of the driver's handle, so that it can be restored without the broker |

use fdbroker_client::Handle;
use fdbroker_protocol::handle::{HANDLE_MAGIC, HANDLE_PREFIX_BYTES, HANDLE_VERSION};
use fdbroker_virtual_fds::VirtualFd;
use std::os::fd::RawFd;

/// The bytes of a `ze_ipc_mem_handle_t`: a driver's handle or a key.
pub type Bytes = [u8; 64];

/// The first 32 bytes of fdbroker's handle: they name one allocation.
pub type Prefix = [u8; HANDLE_PREFIX_BYTES];

/// In compute-runtime's opaque handles the exporter's pid stands here. No pid is this large.
const MAGIC: [u8; 4] = *b"FZE1";
const OFFSET: usize = 8;
const MAGIC_AT: usize = 16;
const FD_COPY: usize = 20;
const PREFIX: usize = 24;
const REST: usize = 56;

/// The other fields of compute-runtime's handles. Legacy: a type. Opaque: pid and types, the fd
/// again as u64, one more byte.
const DRIVER_WORDS: std::ops::Range<usize> = 16..22;
const DRIVER_FD_COPY: usize = 22;
const DRIVER_LAST: usize = 62;

/// How to restore the driver's handle from the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Form {
    /// Its layout does not fit: only the broker has it.
    Elsewhere = 0,
    /// The key contains all of it.
    Whole = 1,
    /// The key contains all of it, and the fd number goes to [`DRIVER_FD_COPY`], too.
    FdTwice = 2,
}

/// A handle of this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: Bytes,
}

impl Key {
    /// Makes the key of an allocation from the broker's and the driver's handle of it. Where the
    /// broker's has a virtual fd, it stands in the place of the driver's.
    pub fn new(handle: &Handle, driver: &Bytes) -> Self {
        let renumbered = handle.virtual_fd().map(|fd| renumbered(*driver, fd.number()));
        let driver = renumbered.as_ref().unwrap_or(driver);
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&driver[..4]);
        bytes[OFFSET..OFFSET + 8].copy_from_slice(&driver[OFFSET..OFFSET + 8]);
        bytes[MAGIC_AT..MAGIC_AT + 4].copy_from_slice(&MAGIC);
        bytes[FD_COPY..FD_COPY + 4].copy_from_slice(&driver[..4]);
        bytes[PREFIX..REST].copy_from_slice(&handle.to_bytes()[..HANDLE_PREFIX_BYTES]);
        bytes[REST..REST + 6].copy_from_slice(&driver[DRIVER_WORDS]);
        bytes[REST + 6] = driver[DRIVER_LAST];
        let mut key = Key { bytes };
        let form = [Form::Whole, Form::FdTwice].into_iter().find(|form| {
            key.bytes[REST + 7] = *form as u8;
            key.driver_handle().as_ref() == Some(driver)
        });
        key.bytes[REST + 7] = form.unwrap_or(Form::Elsewhere) as u8;
        key
    }

    /// Reads a key; `None`: the bytes are a driver's own handle.
    pub fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let is_ours = bytes[MAGIC_AT..MAGIC_AT + 4] == MAGIC
            && bytes[PREFIX..PREFIX + 4] == HANDLE_MAGIC
            && bytes[PREFIX + 4] == HANDLE_VERSION;
        is_ours.then_some(Key { bytes: *bytes })
    }

    /// The 64 bytes that the program passes on.
    pub fn to_bytes(self) -> Bytes {
        self.bytes
    }

    /// The fd in bytes 0..4: the key's, or one of the program's own.
    pub fn fd(&self) -> RawFd {
        fd_at(&self.bytes, 0)
    }

    /// The virtual fd that it was made with; `None`: it was made with the driver's fd.
    pub fn virtual_fd(&self) -> Option<VirtualFd> {
        VirtualFd::new(fd_at(&self.bytes, FD_COPY))
    }

    /// Whether the program has put an fd of its own into the handle.
    pub fn has_programs_fd(&self) -> bool {
        self.fd() != fd_at(&self.bytes, FD_COPY)
    }

    /// The allocation's name at the broker.
    pub fn prefix(&self) -> Prefix {
        std::array::from_fn(|i| self.bytes[PREFIX + i])
    }

    /// fdbroker's handle, without its hints.
    pub fn handle(&self) -> Handle {
        let mut bytes = [0; 64];
        bytes[..HANDLE_PREFIX_BYTES].copy_from_slice(&self.prefix());
        Handle::from_bytes(bytes)
    }

    /// Restores the driver's handle, with the number in the place of the driver's fd; `None`: only
    /// the broker has it.
    pub fn driver_handle(&self) -> Option<Bytes> {
        let form = self.bytes[REST + 7];
        if form != Form::Whole as u8 && form != Form::FdTwice as u8 {
            return None;
        }
        let mut driver = [0; 64];
        driver[..4].copy_from_slice(&self.bytes[FD_COPY..FD_COPY + 4]);
        driver[OFFSET..OFFSET + 8].copy_from_slice(&self.bytes[OFFSET..OFFSET + 8]);
        driver[DRIVER_WORDS].copy_from_slice(&self.bytes[REST..REST + 6]);
        driver[DRIVER_LAST] = self.bytes[REST + 6];
        if form == Form::FdTwice as u8 {
            driver[DRIVER_FD_COPY..DRIVER_FD_COPY + 4]
                .copy_from_slice(&self.bytes[FD_COPY..FD_COPY + 4]);
        }
        Some(driver)
    }

    /// Puts this key's offset into the driver's handle that the broker has, which may be of another
    /// pointer into the allocation. `None`: the offset lies outside an allocation of `size_bytes`.
    pub fn put_offset(&self, driver: &mut Bytes, size_bytes: u64) -> Option<()> {
        let here = offset_of(&self.bytes);
        if here != offset_of(driver) && here.abs_diff(offset_of(driver)) >= size_bytes {
            return None;
        }
        driver[OFFSET..OFFSET + 8].copy_from_slice(&self.bytes[OFFSET..OFFSET + 8]);
        Some(())
    }
}

/// The fd in bytes 0..4 of a driver's handle or a key.
pub fn fd_of(handle: &Bytes) -> RawFd {
    fd_at(handle, 0)
}

/// The handle with another fd in bytes 0..4.
pub fn with_fd(mut handle: Bytes, fd: RawFd) -> Bytes {
    handle[..4].copy_from_slice(&fd.to_ne_bytes());
    handle
}

/// The driver's handle with a number in all places where it has its fd.
fn renumbered(mut handle: Bytes, number: RawFd) -> Bytes {
    let fd = fd_of(&handle);
    if fd != 0 && fd_at(&handle, DRIVER_FD_COPY) == fd {
        handle[DRIVER_FD_COPY..DRIVER_FD_COPY + 4].copy_from_slice(&number.to_ne_bytes());
    }
    with_fd(handle, number)
}

/// Where in the fd's memory a pooled allocation begins, in bytes.
pub fn offset_of(handle: &Bytes) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| handle[OFFSET + i]))
}

fn fd_at(bytes: &Bytes, at: usize) -> RawFd {
    RawFd::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_client::MemoryKind;
    use fdbroker_protocol::{AllocationId, Facts, NodeKey};

    fn handle() -> Handle {
        let id = AllocationId { slot: 12, generation: 3 };
        let facts = Facts::new(MemoryKind::DmaBuf, 4096).owner_allocation_id(5);
        NodeKey::from_bytes([7; 32]).seal(42, id, &facts)
    }

    fn legacy() -> Bytes {
        let mut driver = [0; 64];
        driver[0] = 41;
        driver[9] = 0x10;
        driver[16] = 1;
        driver
    }

    fn opaque() -> Bytes {
        let mut driver = legacy();
        driver[16..22].copy_from_slice(&[1, 2, 3, 0, 2, 1]);
        driver[22] = 41;
        driver[62] = 1;
        driver
    }

    #[test]
    fn key_when_of_a_known_layout_then_the_drivers_handle_comes_out_again() {
        for driver in [legacy(), opaque()] {
            let key = Key::from_bytes(&Key::new(&handle(), &driver).to_bytes()).expect("ours");
            assert_eq!(key.driver_handle(), Some(driver));
            assert_eq!(key.handle().prefix, handle().prefix);
            assert_eq!((key.fd(), key.has_programs_fd()), (41, false));
        }
    }

    #[test]
    fn key_when_the_layout_has_more_then_the_broker_alone_has_it() {
        let mut driver = legacy();
        driver[40] = 9;
        let key = Key::new(&handle(), &driver);
        assert_eq!(key.driver_handle(), None);
        assert_eq!(key.handle().prefix, handle().prefix);
    }

    #[test]
    fn key_when_the_program_puts_its_fd_there_then_it_is_seen_and_the_drivers_stays_known() {
        let swapped = with_fd(Key::new(&handle(), &opaque()).to_bytes(), 99);
        let key = Key::from_bytes(&swapped).expect("ours");
        assert!(key.has_programs_fd());
        assert_eq!(key.fd(), 99);
        assert_eq!(key.driver_handle(), Some(opaque()));
    }

    #[test]
    fn key_when_the_broker_gives_a_virtual_fd_then_it_stands_wherever_the_drivers_fd_does() {
        let number = VirtualFd::FIRST + 5;
        let mut handle = handle();
        handle.virtual_fd = number.cast_unsigned();
        for driver in [legacy(), opaque()] {
            let key = Key::from_bytes(&Key::new(&handle, &driver).to_bytes()).expect("ours");
            assert_eq!((key.fd(), key.has_programs_fd()), (number, false));
            assert_eq!(key.virtual_fd(), VirtualFd::new(number));
            assert_eq!(key.driver_handle(), Some(renumbered(driver, number)));
            assert!(!key.to_bytes().windows(4).any(|word| word == 41i32.to_ne_bytes()));
        }
        assert_eq!(renumbered(opaque(), 41), opaque());
    }

    #[test]
    fn from_bytes_when_a_drivers_own_or_broken_then_not_ours() {
        assert_eq!(Key::from_bytes(&legacy()), None);
        assert_eq!(Key::from_bytes(&opaque()), None);
        for at in [MAGIC_AT, PREFIX, PREFIX + 4] {
            let mut bytes = Key::new(&handle(), &legacy()).to_bytes();
            bytes[at] ^= 1;
            assert_eq!(Key::from_bytes(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn put_offset_when_outside_the_allocation_then_refused() {
        let key = Key::new(&handle(), &legacy());
        let mut registered = legacy();
        registered[9] = 0;
        assert_eq!(key.put_offset(&mut registered, 4096), None);
        assert_eq!(key.put_offset(&mut registered, 4097), Some(()));
        assert_eq!(offset_of(&registered), 4096);
    }
}
