//! What jobs and domains are charged for, for whoever asks. Must never change anything.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::page::write_page;
use crate::admin::view::View;
use fdbroker_core::{Account, Caps, DomainKey, DomainView, JobKey, JobName, JobView};
use fdbroker_protocol::admin::{AccountRecord, Use};
use fdbroker_protocol::{ByResource, Kind, Writer};

/// An account with what is needed to show it.
struct Shown<'a> {
    job: Option<(JobKey, JobName)>,
    domain: DomainKey,
    /// Kept allocations that its clients have left.
    orphans: u32,
    account: &'a Account,
    caps: &'a Caps,
}

impl View<'_> {
    /// One page of jobs.
    pub(crate) fn answer_jobs<'w>(
        &self,
        writer: &'w mut Writer,
        id: u64,
        cursor: u32,
        chosen: Chosen,
    ) -> &'w [u8] {
        let caps = self.caps();
        let all = self.jobs(cursor).map(|(number, view)| {
            let record = view.and_then(|view| {
                let JobView { domain, key, name, ref account, orphans, .. } = view;
                let (job, caps) = (Some((key, name)), &caps.job);
                account_record(chosen, &Shown { job, domain, orphans, account, caps })
            });
            (number, record)
        });
        write_page(writer, Kind::AdminJobsReply, id, all, None)
    }

    /// One page of domains.
    pub(crate) fn answer_domains<'w>(
        &self,
        writer: &'w mut Writer,
        id: u64,
        cursor: u32,
        chosen: Chosen,
    ) -> &'w [u8] {
        let caps = self.caps();
        let all = self.domains(cursor).map(|(number, view)| {
            let record = view.and_then(|view| {
                let DomainView { key: domain, ref account, .. } = view;
                // Its own account has the orphans.
                let (job, orphans, caps) = (None, 0, &caps.domain);
                account_record(chosen, &Shown { job, domain, orphans, account, caps })
            });
            (number, record)
        });
        write_page(writer, Kind::AdminDomainsReply, id, all, None)
    }
}

/// Its record, if it is chosen.
fn account_record(chosen: Chosen, shown: &Shown<'_>) -> Option<AccountRecord> {
    let Shown { job, domain, orphans, account, caps } = *shown;
    let traits = Traits { allocation: None, pid: 0, uid: domain.uid, job: job.map(|(key, _)| key) };
    if !chosen.has(traits) {
        return None;
    }
    let (key, name) = job.unwrap_or((JobKey(0), JobName::NONE));
    Some(AccountRecord {
        key: key.0.into(),
        uid: domain.uid.into(),
        listener: domain.listener.into(),
        left_allocations: orphans.into(),
        reserved: 0.into(),
        uses: ByResource::from_fn(|resource| {
            Use::new(account.now(resource), account.peak(resource), caps[resource])
        }),
        name: name.bytes(),
    })
}
