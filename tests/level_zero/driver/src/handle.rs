//! The bytes of an IPC handle in compute-runtime's layout on Linux. Must never make a system call.

use crate::settings::Layout;
use std::os::fd::RawFd;

/// ZE_MAX_IPC_HANDLE_SIZE of the specification.
pub const HANDLE_BYTES: usize = 64;

/// The type byte: the kind of memory that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Host,
}

/// The fields of a handle, in either layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Bytes 0..4: the exporter's fd, unless an importer has put its own there.
    pub fd: RawFd,
    /// Bytes 8..16: where in the exported object the allocation begins.
    pub pool_offset: u64,
    pub kind: Kind,
    /// The exporter; `None` in the legacy layout.
    pub origin: Option<Origin>,
}

/// The fields that the opaque layout adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub pid: u32,
    /// The exporter's fd number: the second copy, where there is one.
    pub fd: RawFd,
}

// Opaque, 63 bytes: fd u64 | pool offset u64 | pid u32 | handle type u8 | memory type u8 | fd u64 |
// 32 reserved | compressed u8. One number: the same without the second fd. Legacy: fd u64 | pool
// offset u64 | memory type u8.
const OFFSET: usize = 8;
const LEGACY_KIND: usize = 16;
const PID: usize = 16;
const OPAQUE_KIND: usize = 21;
const FD_COPY: usize = 22;

impl Handle {
    pub fn to_bytes(self, layout: Layout) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&self.fd.to_ne_bytes());
        bytes[OFFSET..OFFSET + 8].copy_from_slice(&self.pool_offset.to_ne_bytes());
        let kind = u8::from(self.kind == Kind::Host);
        match self.origin {
            None => bytes[LEGACY_KIND] = kind,
            Some(origin) => {
                bytes[PID..PID + 4].copy_from_slice(&origin.pid.to_ne_bytes());
                bytes[OPAQUE_KIND] = kind;
                if layout == Layout::Opaque {
                    bytes[FD_COPY..FD_COPY + 4].copy_from_slice(&origin.fd.to_ne_bytes());
                }
            }
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; HANDLE_BYTES], layout: Layout) -> Self {
        let (kind, origin) = match layout {
            Layout::Legacy => (bytes[LEGACY_KIND], None),
            Layout::Opaque => {
                let origin =
                    Origin { pid: u32::from_ne_bytes(at(bytes, PID)), fd: number(bytes, FD_COPY) };
                (bytes[OPAQUE_KIND], Some(origin))
            }
            Layout::OneNumber => {
                let pid = u32::from_ne_bytes(at(bytes, PID));
                let origin = Origin { pid, fd: number(bytes, 0) };
                (bytes[OPAQUE_KIND], Some(origin).filter(|_| pid != 0))
            }
        };
        Self {
            fd: number(bytes, 0),
            pool_offset: u64::from_ne_bytes(at(bytes, OFFSET)),
            kind: if kind == 0 { Kind::Device } else { Kind::Host },
            origin,
        }
    }
}

fn number(bytes: &[u8; HANDLE_BYTES], from: usize) -> RawFd {
    RawFd::from_ne_bytes(at(bytes, from))
}

fn at<const N: usize>(bytes: &[u8; HANDLE_BYTES], from: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[from + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_when_written_and_read_is_the_same_in_all_layouts() {
        let legacy = Handle { fd: 300, pool_offset: 1 << 33, kind: Kind::Host, origin: None };
        let opaque = Handle { origin: Some(Origin { pid: 70_000, fd: 301 }), ..legacy };
        let one_number = Handle { origin: Some(Origin { pid: 70_000, fd: 300 }), ..legacy };

        for (handle, layout) in
            [(legacy, Layout::Legacy), (opaque, Layout::Opaque), (one_number, Layout::OneNumber)]
        {
            assert_eq!(Handle::from_bytes(&handle.to_bytes(layout), layout), handle);
        }
    }

    #[test]
    fn both_layouts_when_written_have_fd_and_offset_where_programs_look() {
        for (origin, layout) in
            [(None, Layout::Legacy), (Some(Origin { pid: 1, fd: 5 }), Layout::Opaque)]
        {
            let bytes =
                Handle { fd: 5, pool_offset: 0x1000, kind: Kind::Device, origin }.to_bytes(layout);
            assert_eq!(bytes[..8], 5u64.to_ne_bytes());
            assert_eq!(bytes[8..16], 0x1000u64.to_ne_bytes());
            assert_eq!(bytes[63], 0, "63 bytes are used");
        }
    }
}
