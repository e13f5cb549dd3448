//! The page of an audit: how many findings of each kind, and whether it has seen all. Must never
//! name a process or a user.

use super::{gauge, text};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::fmt;

/// The page; `counts` has every kind of finding.
pub fn audit(is_complete: bool, counts: Vec<(&'static str, u64)>) -> String {
    text(Audit { is_complete, counts })
}

#[derive(Debug)]
struct Audit {
    is_complete: bool,
    counts: Vec<(&'static str, u64)>,
}

impl Collector for Audit {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 if the audit has looked at the broker and at all clients";
        gauge(&mut to, "fdbroker_audit_complete", help, None, &u64::from(self.is_complete))?;
        let help = "findings of fdbroker audit; its help says what each kind is";
        let name = "fdbroker_audit_findings";
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (kind, count) in &self.counts {
            family.encode_family(&[("finding", *kind)])?.encode_gauge(count)?;
        }
        Ok(())
    }
}
