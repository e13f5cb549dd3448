//! Registering early: what a program will most likely register next is sent while it does other
//! things, and answered when it asks. Must never make anybody wait before that, nor leave a
//! registration that nobody takes.

use super::register::{Request, registered};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Registration};
use crate::error::Error;
use crate::limits::ROW_CREDITS;
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A registration that was sent, and whose answer is still to be taken; see
/// [`crate::Client::register_early`]. Dropping it ends it, without waiting. It does not keep its
/// client connected.
#[derive(Debug)]
#[must_use = "dropping it ends the registration"]
pub struct EarlyRegistration {
    connection: Arc<Connection>,
    deposit: Deposit,
    /// `None`: its answer was taken.
    request: Option<u64>,
}

/// Sends one, if a credit and room for it are at hand.
pub(crate) fn begin(
    connection: &Arc<Connection>,
    deposit: &Deposit,
    export: impl FnOnce() -> Option<OwnedFd>,
    deadline: Deadline,
) -> Option<EarlyRegistration> {
    connection.common.check_recallable(deposit).ok()?;
    if !connection.credits.claim_one_at_hand() {
        return None;
    }
    let request = export().and_then(|fd| {
        connection.common.holdings.supersede(std::iter::once(deposit));
        let (deposits, sent) = (std::slice::from_ref(deposit), &[(0, fd.as_fd())]);
        let request = Request { deposits, sent, follow: ROW_CREDITS, deadline };
        request.start_attended(connection).ok()?
    });
    if request.is_none() {
        connection.credits.give_back(1);
        return None;
    }
    Some(EarlyRegistration { connection: Arc::clone(connection), deposit: *deposit, request })
}

/// The answer, waiting for it if it has not come yet.
pub(crate) fn take(
    mut early: EarlyRegistration,
    deadline: Deadline,
) -> Result<Registration, Error> {
    if !early.connection.is_usable() {
        return Err(early.connection.lost("register"));
    }
    let id = early.request.take().expect("it is taken once");
    let deposits = std::slice::from_ref(&early.deposit);
    let call = Request { deposits, sent: &[], follow: 0, deadline }.call();
    let read = |reply: Reply<'_>| registered(&early.connection, deposits.iter(), &reply);
    let answers = early.connection.reply(id, &Call { deposits: 1, ..call }, read)?;
    let again = |error: Error| match error.asks_again() {
        true => error.because(
            "the broker had no room for it yet; register it in the ordinary way, which waits",
        ),
        false => error,
    };
    answers.into_iter().next().expect("one outcome per deposit").map_err(again)
}

impl Drop for EarlyRegistration {
    fn drop(&mut self) {
        if let Some(id) = self.request.take() {
            self.connection.forget(id);
        }
    }
}
