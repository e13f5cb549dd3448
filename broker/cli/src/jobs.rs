//! `fdbroker jobs`: the jobs that use the broker, and what each is charged for. Must never show a job under a name
//! that another command would not find it by.

use crate::admin::{Admin, Pages};
use crate::error::Result;
use crate::ls::Style;
use crate::output::{Column, Columns, Output, Side, commas, human_size};
use crate::records::{UseView, name};
use fdbroker_protocol::admin::AccountRecord;
use serde::Serialize;

/// One job of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the protocol's names: see `AccountRecord`
pub struct JobView {
    pub job: String,
    pub key: String,
    pub uid: u32,
    pub listener: u32,
    pub clients: u32,
    pub fds: UseView,
    pub held_fds: UseView,
    pub held_bytes: UseView,
    pub open_leases: UseView,
    pub mapped_leases: UseView,
    pub allocations: UseView,
    pub kept_allocations: UseView,
}

/// What a job is called: its name, or its key where it has none.
pub fn job_label(key: u64, job_name: &[u8]) -> String {
    match name(job_name) {
        none if none.is_empty() => format!("job:{key:016x}"),
        name => name,
    }
}

impl From<&AccountRecord> for JobView {
    fn from(record: &AccountRecord) -> Self {
        JobView {
            job: job_label(record.key.get(), &record.name),
            // As text: JSON readers round numbers beyond 2^53.
            key: format!("{:016x}", record.key.get()),
            uid: record.uid.get(),
            listener: record.listener.get(),
            clients: record.clients.get(),
            fds: UseView::from(&record.fds),
            held_fds: UseView::from(&record.held_fds),
            held_bytes: UseView::from(&record.held_bytes),
            open_leases: UseView::from(&record.open_leases),
            mapped_leases: UseView::from(&record.mapped_leases),
            allocations: UseView::from(&record.allocations),
            kept_allocations: UseView::from(&record.kept_allocations),
        }
    }
}

const COLUMNS: &[Column] = &[
    Column("JOB", Side::Left),
    Column("UID", Side::Right),
    Column("CLIENTS", Side::Right),
    Column("FDS", Side::Right),
    Column("PEAK", Side::Right),
    Column("CAP", Side::Right),
    Column("HELD", Side::Right),
    Column("BYTES", Side::Right),
    Column("OPEN", Side::Right),
    Column("MAPPED", Side::Right),
    Column("ALLOCATIONS", Side::Right),
];

impl JobView {
    fn row(&self) -> Vec<String> {
        vec![
            self.job.clone(),
            self.uid.to_string(),
            commas(self.clients.into()),
            commas(self.fds.now),
            commas(self.fds.peak),
            self.fds.cap.map_or_else(|| "none".into(), commas),
            commas(self.held_fds.now),
            human_size(self.held_bytes.now),
            commas(self.open_leases.now),
            commas(self.mapped_leases.now),
            commas(self.allocations.now),
        ]
    }
}

#[derive(Serialize)]
struct Jobs<'a> {
    jobs: &'a [JobView],
}

/// Prints the jobs of the broker that the environment names, those with most fds first.
pub fn run(style: Style) -> Result<()> {
    let records = Admin::from_env()?.accounts(Pages::JOBS)?;
    let mut jobs: Vec<JobView> = records.iter().map(JobView::from).collect();
    jobs.sort_by(|a, b| b.fds.now.cmp(&a.fds.now).then_with(|| a.job.cmp(&b.job)));
    let mut out = Output::stdout();
    if style.json {
        out.json(&Jobs { jobs: &jobs })?;
        out.text("\n")?;
    } else {
        let rows = jobs.iter().map(JobView::row).collect();
        Columns::new(COLUMNS, !style.no_headings).write(rows, &mut out)?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn job_when_it_has_no_name_then_its_key_names_it() {
        let mut record = AccountRecord::new_zeroed();
        record.key = 0xab.into();
        assert_eq!(JobView::from(&record).job, "job:00000000000000ab");
        record.name[..8].copy_from_slice(b"slurm:81");
        assert_eq!(JobView::from(&record).job, "slurm:81");
    }
}
