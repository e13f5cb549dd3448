#![doc = include_str!("../PROTOCOL.md")]
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]
#![deny(unreachable_pub)]

mod table;

pub mod admin;
mod cap_text;
pub mod codec;
// zerocopy makes a hidden type without it for each struct that a macro writes.
#[allow(missing_debug_implementations)]
pub mod count;
#[allow(missing_debug_implementations)] // as `count`
pub mod error;
pub mod facts;
#[allow(missing_debug_implementations)] // as `count`
pub mod gpu;
#[allow(missing_debug_implementations)] // as `count`
pub mod handle;
pub mod layouts;
pub mod limits;
pub mod memory;
pub mod message;
pub mod named;
pub mod object;
pub mod page;
#[allow(missing_debug_implementations)] // as `count`
pub mod resource;
pub mod virtual_fd;

pub use cap_text::{parse_amount, parse_cap};
pub use codec::{DecodeError, Message, Writer};
pub use count::{ByCounter, ByGauge, ByLogTopic, Counter, Gauge, LogTopic};
pub use error::{ErrorCode, FdType, Status, StatusItem};
pub use facts::{Facts, FactsItem};
pub use gpu::{Gpu, GpuApi, GpuItem};
pub use handle::{
    AllocationId, Handle, HandleItem, HandlePrefix, HandlePrefixItem, NodeKey, Share, node_id,
};
pub use limits::MAX_BATCH;
pub use memory::MemoryKind;
pub use message::{Kind, PROTOCOL_VERSION};
pub use named::{Got, NamedItems, is_object_name};
pub use object::Named;
pub use resource::{ByResource, ByScope, Caps, NO_CAP, Resource, Scope, Unit};
pub use virtual_fd::VirtualFd;
