#![doc = include_str!("../PROTOCOL.md")]

pub mod admin;
pub mod codec;
pub mod error;
pub mod handle;
pub mod limits;
pub mod message;
pub mod page;

pub use codec::{DecodeError, Message, Writer};
pub use error::{ErrorCode, FdType, Resource, Scope, Status};
pub use handle::{
    AllocationId, Handle, HandleFields, HandlePrefix, MemoryKind, NodeKey, Share, node_id,
};
pub use limits::MAX_BATCH;
pub use message::{Kind, PROTOCOL_VERSION};
