//! Asks the broker for the data of all metrics. Must never keep data from one page to the next.

use crate::admin::{Admin, Selection, client_socket_of};
use crate::commands::health::greet;
use crate::error::Result;
use crate::records::gpus::{Gpus, Shared};
use crate::records::job_label;
use fdbroker_protocol::ByResource;
use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, LeaseRecord, Metrics, NodeStatus,
};
use std::collections::BTreeMap;

/// Most users, and most jobs, with series of their own: the ones with most fds. A dashboard shows
/// no more, and a scraper keeps each series for weeks. All others share the series [`OTHER`].
pub const MOST_ACCOUNTS: usize = 20;

/// Most GPUs with series of their own: eight of seven instances each, and some. Owners name them,
/// so there could be more; the ones with most bytes have series.
const MOST_GPUS: usize = 64;

/// Most allocations, most leases and most clients that are read for one page: what is told of more
/// has no series, since a page would take the broker longer than it may.
const MOST_RECORDS: usize = 65_536;

/// The label of all others. No uid and no job has this name.
pub const OTHER: &str = "other";

/// The charges of a user or a job.
pub type Sums = ByResource<u64>;

fn add(sums: &mut Sums, record: &AccountRecord) {
    for (resource, item) in record.uses.iter() {
        sums[resource] = sums[resource].saturating_add(item.now.get());
    }
}

/// Values of the metric's labels, in their order, with the charges.
pub type Accounts = Vec<(Vec<String>, Sums)>;

/// All data, of about one moment.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub status: NodeStatus,
    pub metrics: Metrics,
    /// By uid.
    pub users: Accounts,
    /// By job and uid.
    pub jobs: Accounts,
    /// What is shared of each.
    pub gpus: Vec<Shared>,
    /// The broker itself answers at the clients' socket.
    pub serves_clients: bool,
    /// Owners that have not answered a recall; `None`: there are too many clients to look at.
    pub silent_owners: Option<u64>,
    /// The age of the oldest lease that is open, and mapped, in ms; 0: there is none. `None`: there
    /// are too many to look at.
    pub oldest_ms: Option<[u64; 2]>,
}

/// Reads all data from the broker; jobs have no series of their own unless they are wanted.
pub fn gather(mut admin: Admin, with_jobs: bool) -> Result<Gathered> {
    let (status, metrics) = (admin.status()?, admin.metrics()?);
    let domains = admin.domains()?;
    let jobs = if with_jobs { admin.all::<AccountRecord>(Selection::ALL)? } else { Vec::new() };
    let uid = |record: &AccountRecord| record.uid.get().to_string();
    let user = |record: &AccountRecord| vec![uid(record)];
    let job = |record: &AccountRecord| {
        vec![job_label(record.key, &record.name).unwrap_or_default(), uid(record)]
    };
    let (users, jobs) = (largest(&domains, user), largest(&jobs, job));
    let gpus = gpus(&mut admin)?;
    let (clients, are_more) = admin.first::<ClientRecord>(Selection::ALL, MOST_RECORDS)?;
    let is_silent = |it: &&ClientRecord| it.silent.get() != 0;
    let silent_owners = (!are_more).then(|| clients.iter().filter(is_silent).count() as u64);
    let (leases, are_more) = admin.first::<LeaseRecord>(Selection::ALL, MOST_RECORDS)?;
    let oldest_ms = (!are_more).then(|| oldest_ms(&leases));
    let serves_clients = greet(&client_socket_of(admin.path()), &status).is_ok();
    Ok(Gathered { status, metrics, users, jobs, gpus, serves_clients, silent_owners, oldest_ms })
}

/// The age of the oldest lease in each state: open, mapped.
fn oldest_ms(leases: &[LeaseRecord]) -> [u64; 2] {
    [1, 2].map(|state| {
        let of_state = leases.iter().filter(|it| it.state.get() == state);
        of_state.map(|it| it.age_ms.get()).max().unwrap_or_default()
    })
}

fn gpus(admin: &mut Admin) -> Result<Vec<Shared>> {
    let (records, are_more) = admin.first::<AllocationRecord>(Selection::ALL, MOST_RECORDS)?;
    let mut gpus = Gpus::default();
    records.iter().filter(|_| !are_more).for_each(|record| gpus.count(record));
    let mut rows = gpus.into_rows();
    rows.sort_by_key(|it| std::cmp::Reverse(it.size_bytes));
    rows.truncate(MOST_GPUS);
    Ok(rows)
}

/// The charges by labels: of the ones with most fds, and of all others as one. Records with the
/// same labels are summed, since a page may have a series only once.
fn largest(records: &[AccountRecord], labels: impl Fn(&AccountRecord) -> Vec<String>) -> Accounts {
    let mut by_labels: BTreeMap<Vec<String>, Sums> = BTreeMap::new();
    for record in records {
        add(by_labels.entry(labels(record)).or_default(), record);
    }
    let mut accounts: Accounts = by_labels.into_iter().collect();
    // Stable: among equal numbers of fds always the same ones stay.
    accounts.sort_by_key(|(_, sums)| std::cmp::Reverse((sums.fds, sums.mapped_leases)));
    if accounts.len() > MOST_ACCOUNTS {
        let rest = accounts.split_off(MOST_ACCOUNTS);
        let all = |resource| rest.iter().map(move |(_, sums)| sums[resource]);
        let other = Sums::from_fn(|resource| all(resource).fold(0, u64::saturating_add));
        let labels = vec![OTHER.to_owned(); rest[0].0.len()];
        accounts.push((labels, other));
    }
    accounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn record(uid: u32, fds: u64) -> AccountRecord {
        let mut record = AccountRecord::new_zeroed();
        (record.uid, record.uses.fds.now) = (uid.into(), fds.into());
        record
    }

    #[test]
    fn largest_when_more_than_have_series_then_the_rest_is_one_and_nothing_is_lost() {
        let records: Vec<_> = (0..100).map(|uid| record(uid, uid.into())).collect();
        let accounts = largest(&records, |record| vec![record.uid.get().to_string()]);
        assert_eq!(accounts.len(), MOST_ACCOUNTS + 1);
        assert_eq!(accounts[0], (vec!["99".to_owned()], Sums { fds: 99, ..Sums::default() }));
        assert_eq!(accounts[MOST_ACCOUNTS].0, [OTHER]);
        assert_eq!(accounts.iter().map(|(_, sums)| sums.fds).sum::<u64>(), 4950);
    }

    #[test]
    fn largest_when_two_have_the_same_labels_then_they_are_one() {
        let accounts = largest(&[record(7, 1), record(7, 2)], |_| vec!["7".to_owned()]);
        assert_eq!(accounts, [(vec!["7".to_owned()], Sums { fds: 3, ..Sums::default() })]);
        assert!(largest(&[], |_| vec![]).is_empty());
    }
}
