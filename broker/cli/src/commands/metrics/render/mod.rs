//! The metrics page: its families with names, types and help. The resources and counts come from
//! the protocol's tables, the text from `prometheus-client`. Must never ask the broker, nor change
//! the meaning of a name: dashboards rely on it.

mod audit;
mod plain;
#[cfg(test)]
mod tests;

pub use audit::audit;
pub use plain::plain;

use super::gather::{Accounts, Gathered};
use crate::records::gpus::Shared;
use fdbroker_protocol::admin::{BUCKET_BOUNDS_US, Histogram, Journal, Metrics, NodeStatus};
use fdbroker_protocol::{GpuApi, Resource, Scope, Unit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as FamilyUnit};
use std::fmt;
use zerocopy::little_endian::U64;

/// The whole page. Without a broker it has only `fdbroker_up`.
pub fn page(gathered: Option<Gathered>) -> String {
    text(Page(gathered))
}

fn text(page: impl Collector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes every text");
    text
}

/// The families of a page.
#[derive(Debug)]
struct Page(Option<Gathered>);

impl Collector for Page {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "the release of the command that gives these numbers";
        let mut build = to.encode_descriptor("fdbroker_build", help, None, MetricType::Info)?;
        build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let help = "1 if the broker answers; else this is all there is";
        gauge(&mut to, "fdbroker_up", help, None, &u64::from(self.0.is_some()))?;
        let Some(gathered) = &self.0 else { return Ok(()) };
        state(&mut to, gathered)?;
        counts(&mut to, &gathered.status)?;
        resources(&mut to, &gathered.status)?;
        caps_used(&mut to, &gathered.status)?;
        let metrics = &gathered.metrics;
        let help = "from reading a request to sending the fds it was granted, waiting included";
        histogram(&mut to, "fdbroker_grant_latency", help, &metrics.grant_latency)?;
        let help = "from asking an owner for an fd again to getting it";
        histogram(&mut to, "fdbroker_recall_time", help, &metrics.recall_time)?;
        let help = "the longest time that the broker took between two waits for something to do, since its process started";
        let longest = seconds(metrics.longest_wake_us.get());
        gauge(&mut to, "fdbroker_longest_wake", help, Some(&FamilyUnit::Seconds), &longest)?;
        remembered(&mut to, metrics)?;
        journal(&mut to, &metrics.journal)?;
        accounts(&mut to, "user", &["uid"], &gathered.users)?;
        // Scrapers have a label `job` of their own.
        accounts(&mut to, "job", &["job_name", "uid"], &gathered.jobs)?;
        gpus(&mut to, &gathered.gpus)
    }
}

/// A family of one value that goes up and down; its unit follows the name.
fn gauge(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&FamilyUnit>,
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    to.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(value)
}

/// Whether the broker does its work, and who keeps it from that.
fn state(to: &mut DescriptorEncoder<'_>, gathered: &Gathered) -> fmt::Result {
    let status = &gathered.status;
    let help = "1 if the broker itself answers at the clients' socket";
    gauge(to, "fdbroker_serves_clients", help, None, &u64::from(gathered.serves_clients))?;
    let help = "1 while the broker is drained: it takes nothing new";
    gauge(to, "fdbroker_draining", help, None, &u64::from(status.draining.get()))?;
    let help =
        "the broker's process: another number is another process, after a planned restart, too";
    gauge(to, "fdbroker_pid", help, None, &u64::from(status.pid.get()))?;
    if let Some(silent) = gathered.silent_owners {
        let help = "owners of memory that have not answered when the broker asked for an fd again";
        gauge(to, "fdbroker_silent_owners", help, None, &silent)?;
    }
    let Some(oldest) = gathered.oldest_ms else { return Ok(()) };
    let (unit, help) =
        (FamilyUnit::Seconds, "age of the oldest lease in this state, 0 without one");
    let mut family =
        to.encode_descriptor("fdbroker_oldest_lease", help, Some(&unit), MetricType::Gauge)?;
    for (state, ms) in ["open", "mapped"].into_iter().zip(oldest) {
        family
            .encode_family(&[("state", state)])?
            .encode_gauge(&seconds(ms.saturating_mul(1000)))?;
    }
    Ok(())
}

/// How full the node is, by cap.
#[allow(clippy::cast_precision_loss)] // a share needs few digits
fn caps_used(to: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let unit = FamilyUnit::Other("ratio".to_owned());
    let help = "share of the node's cap that is used or reserved; a cap of 0 has none";
    let mut family =
        to.encode_descriptor("fdbroker_cap_used", help, Some(&unit), MetricType::Gauge)?;
    for (resource, item) in status.uses.iter() {
        let Some(cap) = item.known_cap().filter(|cap| *cap > 0) else { continue };
        let counted = item.now.get().saturating_add(status.uses.reserved(resource));
        let share = if counted >= cap { 1.0 } else { counted as f64 / cap as f64 };
        family.encode_family(&[("cap", resource.name())])?.encode_gauge(&share)?;
    }
    Ok(())
}

fn counts(to: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let uptime = seconds(status.uptime_ms.get().saturating_mul(1000));
    let help = "time since the broker started; it goes on over a planned restart, not over a crash";
    gauge(to, "fdbroker_uptime", help, Some(&FamilyUnit::Seconds), &uptime)?;
    for (row, count) in status.gauges.iter() {
        gauge(to, &format!("fdbroker_{row}"), row.help(), None, &count.get())?;
    }
    for (row, count) in status.counters.iter() {
        counter(to, &format!("fdbroker_{row}"), row.help(), count.get())?;
    }
    Ok(())
}

fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, count: u64) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    family.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

/// What the broker knows of what is over.
fn remembered(to: &mut DescriptorEncoder<'_>, metrics: &Metrics) -> fmt::Result {
    let mut both = |name: &str, help: &str, now: U64, dropped: U64| {
        gauge(to, name, help, None, &now.get())?;
        let of_dropped = format!("dropped for newer ones: {help}");
        counter(to, &format!("{name}_dropped"), &of_dropped, dropped.get())
    };
    let help = "files of ended allocations that the broker remembers for fdbroker audit";
    both("fdbroker_tombstones", help, metrics.tombstones, metrics.tombstones_dropped)?;
    let help = "events that the broker has for fdbroker watch --since";
    both("fdbroker_events", help, metrics.events, metrics.events_dropped)
}

/// What has gone wrong.
fn journal(to: &mut DescriptorEncoder<'_>, journal: &Journal) -> fmt::Result {
    let help =
        "refusals by the cap that was full; fdbroker_refusals has those of other reasons, too";
    let mut family =
        to.encode_descriptor("fdbroker_cap_refusals", help, None, MetricType::Counter)?;
    for (scope, counts) in journal.refusals.iter() {
        for (resource, count) in counts.iter().map(|(resource, count)| (resource, count.get())) {
            // Bounds that are no caps have a series once they have refused something.
            if resource.is_capped_in(scope) || count > 0 {
                let labels = [("scope", scope.name()), ("cap", resource.name())];
                let mut series = family.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
    }
    let help = "system calls on fds of clients that had not returned after a second";
    counter(to, "fdbroker_hangs", help, journal.hangs.get())?;
    let help = "sockets of the broker that were put back after somebody had removed, replaced or closed them";
    counter(to, "fdbroker_sockets_mended", help, journal.sockets_mended.get())?;
    let help = "lines that the broker's log would have had, beyond those that a user may cause in a minute";
    let mut family =
        to.encode_descriptor("fdbroker_log_lines_left_out", help, None, MetricType::Counter)?;
    for (topic, count) in journal.lines_left_out.iter() {
        let labels = [("topic", topic.name())];
        let mut series = family.encode_family(&labels)?;
        series.encode_counter::<NoLabelSet, _, u64>(&count.get(), None)?;
    }
    Ok(())
}

/// Use, peak and cap of each resource. The unit is the end of a name. A cap that is not set has no
/// sample.
fn resources(to: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    for (resource, item) in status.uses.iter() {
        let (unit, help) = (unit(resource), resource.help());
        gauge(to, &name("fdbroker", resource, ""), help, Some(&unit), &item.now.get())?;
        let most = format!("the most since start: {help}");
        gauge(to, &name("fdbroker", resource, "_peak"), &most, Some(&unit), &item.peak.get())?;
        let cap = item.known_cap();
        if cap.is_none() && !resource.is_capped_in(Scope::Node) {
            continue;
        }
        let (name, help) = (name("fdbroker", resource, "_cap"), format!("the cap: {help}"));
        let mut family = to.encode_descriptor(&name, &help, Some(&unit), MetricType::Gauge)?;
        cap.map_or(Ok(()), |cap| family.encode_gauge(&cap))?;
    }
    Ok(())
}

/// The name of a resource's family without its unit, such as `fdbroker_held_peak`.
fn name(before: &str, resource: Resource, after: &str) -> String {
    let middle = resource.name_before_unit().trim_end_matches('_');
    let mark = if middle.is_empty() { "" } else { "_" };
    format!("{before}{mark}{middle}{after}")
}

fn unit(resource: Resource) -> FamilyUnit {
    match resource.unit() {
        Unit::Bytes => FamilyUnit::Bytes,
        unit => FamilyUnit::Other(unit.name().to_owned()),
    }
}

fn histogram(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    histogram: &Histogram,
) -> fmt::Result {
    let bounds = BUCKET_BOUNDS_US.map(seconds).into_iter().chain([f64::INFINITY]);
    let counts = histogram.buckets.iter().map(|bucket| bucket.get());
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    let count = buckets.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    let seconds = seconds(histogram.sum_us.get());
    let unit = Some(&FamilyUnit::Seconds);
    let mut family = to.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    family.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
}

/// The charges of users or jobs, for each resource that a cap bounds.
fn accounts(
    to: &mut DescriptorEncoder<'_>,
    of: &str,
    labels: &[&str],
    accounts: &Accounts,
) -> fmt::Result {
    // Jobs are not charged for what their domain alone is.
    let is_its = |it: &Resource| of == "user" || it.narrowest() != Scope::Domain;
    for resource in Resource::bounded().filter(is_its) {
        let name = name(&format!("fdbroker_{of}"), resource, "");
        let help = format!("{}, of each {of}; those with few fds are one, other", resource.help());
        let unit = unit(resource);
        let mut family = to.encode_descriptor(&name, &help, Some(&unit), MetricType::Gauge)?;
        for (values, sums) in accounts {
            let pairs: Vec<_> =
                labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            family.encode_family(&pairs)?.encode_gauge(&sums[resource])?;
        }
    }
    Ok(())
}

/// What is shared of each GPU, as owners name them.
fn gpus(to: &mut DescriptorEncoder<'_>, gpus: &[Shared]) -> fmt::Result {
    type Number = fn(&Shared) -> u64;
    let families: [(&str, &str, Option<&FamilyUnit>, Number); 2] = [
        (
            "fdbroker_gpu_shared",
            "bytes of each GPU that are shared",
            Some(&FamilyUnit::Bytes),
            |it| it.size_bytes,
        ),
        ("fdbroker_gpu_allocations", "allocations on each GPU", None, |it| it.allocations),
    ];
    for (name, what, unit, number) in families {
        let help = format!(
            "{what}, as owners name it; of the ones with most bytes, and of none where there are very many allocations"
        );
        let mut family = to.encode_descriptor(name, &help, unit, MetricType::Gauge)?;
        for it in gpus {
            // All that can tell two of them: a page has a series once.
            let api = GpuApi::from_number(it.gpu.api).map_or("unknown", GpuApi::name).to_owned();
            let pci = it.gpu.pci_address().unwrap_or_default();
            let pairs = [("gpu", it.gpu.to_string()), ("pci", pci), ("api", api)];
            family.encode_family(&pairs)?.encode_gauge(&number(it))?;
        }
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // exact up to 285 years
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
