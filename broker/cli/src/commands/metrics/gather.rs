//! Asks the broker for everything that its metrics are made of. Must never keep anything from one time to the next.

use crate::admin::{Admin, Selection};
use crate::error::Result;
use crate::records::job_label;
use fdbroker_protocol::ByResource;
use fdbroker_protocol::admin::{AccountRecord, Metrics, NodeStatus};
use std::collections::BTreeMap;

/// Users, and jobs, that have series of their own: those with most fds. A dashboard shows no more, and a scraper keeps
/// each for weeks; the others are one series, [`OTHER`].
pub const MOST_ACCOUNTS: usize = 20;

/// What the others are called; no uid, and no job, is.
pub const OTHER: &str = "other";

/// What one user or one job is charged for.
pub type Sums = ByResource<u64>;

fn add(sums: &mut Sums, record: &AccountRecord) {
    for (resource, item) in record.uses.iter() {
        sums[resource] = sums[resource].saturating_add(item.now.get());
    }
}

/// Values of labels, in the order of the metric's labels, with what they are charged for.
pub type Accounts = Vec<(Vec<String>, Sums)>;

/// Everything, as it was at about one time.
#[derive(Debug)]
pub struct Gathered {
    pub status: NodeStatus,
    pub metrics: Metrics,
    /// By uid.
    pub users: Accounts,
    /// By job and uid.
    pub jobs: Accounts,
}

/// Asks the broker.
pub fn gather(mut admin: Admin) -> Result<Gathered> {
    let (status, metrics) = (admin.status()?, admin.metrics()?);
    let domains = admin.domains()?;
    let jobs = admin.all::<AccountRecord>(Selection::ALL)?;
    let uid = |record: &AccountRecord| record.uid.get().to_string();
    let user = |record: &AccountRecord| vec![uid(record)];
    let job = |record: &AccountRecord| {
        vec![job_label(record.key, &record.name).unwrap_or_default(), uid(record)]
    };
    let (users, jobs) = (largest(&domains, user), largest(&jobs, job));
    Ok(Gathered { status, metrics, users, jobs })
}

/// The sums by labels of those with most fds, and of the rest in one. Records of the same labels are one: series must
/// not be there twice.
fn largest(records: &[AccountRecord], labels: impl Fn(&AccountRecord) -> Vec<String>) -> Accounts {
    let mut by_labels: BTreeMap<Vec<String>, Sums> = BTreeMap::new();
    for record in records {
        add(by_labels.entry(labels(record)).or_default(), record);
    }
    let mut accounts: Accounts = by_labels.into_iter().collect();
    // Stable: of those with as many fds the same ones stay.
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
