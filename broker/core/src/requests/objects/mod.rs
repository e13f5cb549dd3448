//! Requests for named objects.

pub(crate) mod deleting;
pub(crate) mod getting;
pub(crate) mod making;
pub(crate) mod touching;
pub(crate) mod watching;
