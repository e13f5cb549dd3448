//! The messages between the driver and its helper over SEQPACKET: one request, one reply. Must
//! never contain anything but numbers; fds travel beside them.

/// Size of a request, and of a reply.
pub const MESSAGE_BYTES: usize = 16;

/// The place of an allocation is in the upper half of the code.
const PLACE_SHIFT: u32 = 32;

/// A request to the helper. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make memory of this size at this place (0: none); answers its id and a memfd to map.
    Allocate(u64, u32),
    /// Keep other memory, whose fd comes along; answers its id.
    Keep,
    /// Answers an fd of this id's memory: the memfd, or the fd that was kept.
    Export(u64),
    /// Like Export, as a udmabuf. It is always the same one: a GPU's driver has one dma-buf per
    /// buffer.
    ExportUdmabuf(u64),
    /// Forget this id's memory.
    Free(u64),
}

/// The helper's answer: a value, or an errno.
pub type Reply = Result<u64, i32>;

impl Request {
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        match self {
            Self::Allocate(size, place) => pair(1 | u64::from(place) << PLACE_SHIFT, size),
            Self::Keep => pair(2, 0),
            Self::Export(id) => pair(3, id),
            Self::ExportUdmabuf(id) => pair(4, id),
            Self::Free(id) => pair(5, id),
        }
    }

    pub fn from_bytes(bytes: [u8; MESSAGE_BYTES]) -> Option<Self> {
        let (code, value) = unpair(bytes);
        match code {
            code if code & 0xffff_ffff == 1 => {
                Some(Self::Allocate(value, (code >> PLACE_SHIFT) as u32))
            }
            2 => Some(Self::Keep),
            3 => Some(Self::Export(value)),
            4 => Some(Self::ExportUdmabuf(value)),
            5 => Some(Self::Free(value)),
            _ => None,
        }
    }
}

pub fn reply_to_bytes(reply: Reply) -> [u8; MESSAGE_BYTES] {
    match reply {
        Ok(value) => pair(0, value),
        Err(errno) => pair(1, u64::from(errno.unsigned_abs())),
    }
}

pub fn reply_from_bytes(bytes: [u8; MESSAGE_BYTES]) -> Reply {
    match unpair(bytes) {
        (0, value) => Ok(value),
        (_, errno) => Err(i32::try_from(errno).unwrap_or(libc::EPROTO)),
    }
}

fn pair(code: u64, value: u64) -> [u8; MESSAGE_BYTES] {
    (u128::from(code) | u128::from(value) << 64).to_le_bytes()
}

fn unpair(bytes: [u8; MESSAGE_BYTES]) -> (u64, u64) {
    let both = u128::from_le_bytes(bytes);
    (both as u64, (both >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_when_written_and_read_is_the_same() {
        let requests = [
            Request::Allocate(u64::MAX, 0),
            Request::Allocate(1, u32::MAX),
            Request::Keep,
            Request::Export(7),
            Request::ExportUdmabuf(8),
            Request::Free(9),
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(request.to_bytes()), Some(request));
        }
        for reply in [Ok(u64::MAX), Ok(0), Err(libc::ENOMEM)] {
            assert_eq!(reply_from_bytes(reply_to_bytes(reply)), reply);
        }
        assert_eq!(Request::from_bytes([0xff; MESSAGE_BYTES]), None);
    }
}
