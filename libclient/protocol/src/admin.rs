//! Messages on the administrator's socket. Answers come in pages, so that none holds the daemon's
//! loop for long. Framing and header are the same as on the client's socket; there is no hello.
//! Must never hold IO or state.

mod acts;
mod events;
mod limits;
mod metrics;
mod query;
mod records;
mod status;
mod takeover;
mod tombstones;

pub use acts::{Act, ActOutcome, ActRecord, act_flags};
pub use events::{EventKind, EventRecord};
pub use limits::{LimitChange, Limits, LimitsReply, SetLimit};
pub use metrics::{BUCKET_BOUNDS_US, Histogram, Journal, Metrics};
pub use query::{Filter, Page, Query};
pub use records::{
    AccountRecord, AllocationRecord, AllocationState, ClientRecord, LeaseRecord, NO_AGE, NO_OWN_FD,
    OTHER_OWNER, ObjectLabel, OwnedObject,
};
pub use status::{NodeStatus, Use};
pub use takeover::{TakeoverOffer, TakeoverStep, step};
pub use tombstones::TombstoneRecord;
