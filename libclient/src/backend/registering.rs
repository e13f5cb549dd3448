//! Registering buffers that the library allocated, each once. Must never leave a registration that
//! no buffer knows.

use crate::api::client::Client;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Export, Registration};
use crate::error::Error;
use crate::requests::register::Batch;
use fdbroker_protocol::Handle;
use std::collections::{HashMap, HashSet};

/// A buffer that knows its registration.
pub(super) trait Registers {
    /// Its first address, which no other buffer has.
    fn base(&self) -> u64;
    /// Whether it is not registered yet: it is about to be.
    fn begin(&self) -> bool;
    fn deposit(&self) -> Deposit;
    fn export(&self) -> Result<Export<'_>, Error>;
    /// Notes its registration, unless it does not last, which is asked under the lock under which a
    /// loss is noted. `false`: it was so already (by another thread meanwhile), and now counts
    /// twice at the broker.
    fn note(&self, registration: &Registration, lasts: &dyn Fn() -> bool) -> bool;
    /// Its handle, while it is registered.
    fn handle(&self) -> Option<Handle>;
}

/// Registers those that are not registered; one handle each, in their order. `fresh`: their exports
/// are new fds.
pub(super) fn register_all<B: Registers>(
    client: &Client,
    buffers: &[&B],
    fresh: bool,
    deadline: Deadline,
) -> Result<Vec<Result<Handle, Error>>, Error> {
    client.connection("register", deadline)?;
    let mut sending = HashSet::new();
    let mut is_new = |buffer: &&&B| buffer.begin() && sending.insert(buffer.base());
    // Once, should the caller name it twice.
    let new: Vec<&B> = buffers.iter().filter(|buffer| is_new(buffer)).copied().collect();
    let deposits: Vec<Deposit> = new.iter().map(|buffer| buffer.deposit()).collect();
    let mut export = |index: usize| new[index].export();
    let mut batch = Batch { deposits: &deposits, export: &mut export, fresh };
    let outcomes = client.register_batch(&mut batch, deadline)?;

    let common = client.common();
    let (mut twice, mut failed) = (Vec::new(), HashMap::new());
    for (buffer, outcome) in new.iter().zip(outcomes) {
        match outcome {
            Ok(made) if buffer.note(&made, &|| common.holdings.has(&made)) => {}
            Ok(made) => twice.push(made),
            Err(error) => drop(failed.insert(buffer.base(), error)),
        }
    }
    common.retire(twice.iter().map(Into::into));
    let handle_of = |buffer: &&B| {
        let lost = || Error::not_connected("register: the connection was lost meanwhile");
        let failure = || failed.get(&buffer.base()).cloned().unwrap_or_else(lost);
        buffer.handle().ok_or_else(failure)
    };
    Ok(buffers.iter().map(handle_of).collect())
}
