//! The metrics page: its families with names, types and help. The resources and counts come from the
//! protocol's tables, the text from `prometheus-client`. Must never ask the broker, nor change the meaning of a
//! name: dashboards rely on it.

use super::gather::{Accounts, Gathered};
use fdbroker_protocol::admin::{BUCKET_BOUNDS_US, Histogram, NodeStatus};
use fdbroker_protocol::{Resource, Scope, Unit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as FamilyUnit};
use std::fmt;

/// The whole page. Without a broker it has only `fdbroker_up`.
pub fn page(gathered: Option<Gathered>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(gathered)));
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
        let up = u64::from(self.0.is_some());
        gauge(
            &mut to,
            "fdbroker_up",
            "1 if the broker answers; else this is all there is",
            None,
            &up,
        )?;
        let Some(gathered) = &self.0 else { return Ok(()) };
        counts(&mut to, &gathered.status)?;
        resources(&mut to, &gathered.status)?;
        histogram(
            &mut to,
            "fdbroker_grant_latency",
            "from reading a request to sending the fds it was granted, waiting included",
            &gathered.metrics.grant_latency,
        )?;
        histogram(
            &mut to,
            "fdbroker_recall_time",
            "from asking an owner for an fd again to getting it",
            &gathered.metrics.recall_time,
        )?;
        accounts(&mut to, "user", &["uid"], &gathered.users)?;
        // Scrapers have a label `job` of their own.
        accounts(&mut to, "job", &["job_name", "uid"], &gathered.jobs)
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

fn counts(to: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let uptime = seconds(status.uptime_ms.get().saturating_mul(1000));
    let help = "time since the broker started";
    gauge(to, "fdbroker_uptime", help, Some(&FamilyUnit::Seconds), &uptime)?;
    for (row, count) in status.gauges.iter() {
        gauge(to, &format!("fdbroker_{row}"), row.help(), None, &count.get())?;
    }
    for (row, count) in status.counters.iter() {
        let name = format!("fdbroker_{row}");
        let mut counter = to.encode_descriptor(&name, row.help(), None, MetricType::Counter)?;
        counter.encode_counter::<NoLabelSet, _, u64>(&count.get(), None)?;
    }
    Ok(())
}

/// Use, peak and cap of each resource. The unit is the end of a name. A cap that is not set has no sample.
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

/// The charges of users or jobs, for each resource with a cap.
fn accounts(
    to: &mut DescriptorEncoder<'_>,
    of: &str,
    labels: &[&str],
    accounts: &Accounts,
) -> fmt::Result {
    for resource in Resource::capped() {
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

#[allow(clippy::cast_precision_loss)] // exact up to 285 years
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::super::gather::Sums;
    use super::*;
    use fdbroker_protocol::NO_CAP;
    use fdbroker_protocol::admin::Metrics;
    use std::collections::BTreeSet;
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    /// What is on the home page of the dashboards.
    const DASHBOARD: &str = include_str!("../../../../../systemd/grafana.json");

    /// A broker all of whose numbers are `number` or follow from it.
    fn all(number: u8) -> Gathered {
        let mut status = NodeStatus::new_zeroed();
        let bytes = status.as_mut_bytes();
        bytes.iter_mut().step_by(4).for_each(|byte| *byte = number);
        let metrics = Metrics::read_from_bytes(&[number; size_of::<Metrics>()]).expect("plain");
        let n = u64::from(number);
        let sums = Sums::all(n);
        let users = vec![(vec!["1000".to_owned()], sums)];
        let jobs = vec![(vec!["slurm:1".to_owned(), "1000".to_owned()], sums)];
        Gathered { status, metrics, users, jobs }
    }

    fn samples(page: &str) -> Vec<(&str, &str)> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').expect("a value")).collect()
    }

    fn names(page: &str) -> BTreeSet<&str> {
        samples(page).iter().map(|(series, _)| series.split('{').next().expect("one")).collect()
    }

    #[test]
    fn page_when_every_number_of_the_broker_changes_then_every_series_does() {
        let (before, after) = (page(Some(all(1))), page(Some(all(2))));
        let (before, after) = (samples(&before), samples(&after));
        assert_eq!(before.len(), after.len());
        for ((series, old), (same, new)) in before.into_iter().zip(after) {
            assert_eq!(series, same);
            let is_fixed = series.starts_with("fdbroker_build_info") || series == "fdbroker_up";
            assert_eq!(old == new, is_fixed, "{series}: {old}, {new}");
        }
    }

    #[test]
    fn page_when_read_by_the_rules_then_families_once_with_their_samples_and_an_end() {
        let page = page(Some(all(1)));
        assert!(page.ends_with("\n# EOF\n") && !page.contains("\n\n"));
        let mut families = BTreeSet::new();
        let (mut family, mut kind) = ("", "");
        for line in page.lines().filter(|line| *line != "# EOF") {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", "HELP", name, ..] => {
                    assert!(families.insert(name), "{name} twice");
                    family = name;
                }
                ["#", "TYPE", name, of] => {
                    assert_eq!(name, family);
                    kind = of;
                }
                ["#", "UNIT", name, ..] => assert_eq!(name, family),
                _ => {
                    let name = line.split(['{', ' ']).next().expect("a name");
                    let suffix = name.strip_prefix(family).expect("of its family");
                    let known: &[&str] = match kind {
                        "gauge" => &[""],
                        "counter" => &["_total"],
                        "info" => &["_info"],
                        "histogram" => &["_bucket", "_count", "_sum"],
                        other => panic!("type {other}"),
                    };
                    assert!(known.contains(&suffix), "{line}");
                }
            }
        }
        for counter in ["fdbroker_grants_total", "fdbroker_refusals_total"] {
            assert!(names(&page).contains(counter));
        }
    }

    #[test]
    fn histogram_when_counted_then_buckets_add_up_and_bounds_are_seconds() {
        let mut gathered = all(0);
        gathered.metrics.recall_time.buckets[0] = 2.into();
        gathered.metrics.recall_time.buckets[8] = 1.into();
        gathered.metrics.recall_time.sum_us = 2_010.into();
        let page = page(Some(gathered));
        for line in [
            "fdbroker_recall_time_seconds_bucket{le=\"0.000005\"} 2",
            "fdbroker_recall_time_seconds_bucket{le=\"0.001\"} 2",
            "fdbroker_recall_time_seconds_bucket{le=\"0.0025\"} 3",
            "fdbroker_recall_time_seconds_bucket{le=\"+Inf\"} 3",
            "fdbroker_recall_time_seconds_count 3",
            "fdbroker_recall_time_seconds_sum 0.00201",
        ] {
            assert!(page.lines().any(|it| it == line), "no line {line}");
        }
    }

    #[test]
    fn page_when_there_is_no_cap_or_no_broker_then_no_sample_of_it() {
        let mut gathered = all(1);
        gathered.status.uses.fds.cap = NO_CAP.into();
        let text = page(Some(gathered));
        assert!(!names(&text).contains("fdbroker_cap_fds"));
        assert!(names(&text).contains("fdbroker_held_cap_fds"));
        assert!(page(None).ends_with("fdbroker_up 0\n# EOF\n"));
    }

    #[test]
    fn dashboard_when_read_then_json_whose_metrics_are_all_on_the_page() {
        let json: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
        let panels = json["panels"].as_array().expect("panels");
        let exprs: Vec<&str> = panels
            .iter()
            .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
            .map(|target| target["expr"].as_str().expect("an expression"))
            .collect();
        assert!(exprs.len() >= panels.len() / 2, "{exprs:?}");
        let page = page(Some(all(1)));
        let names = names(&page);
        for expr in exprs {
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let used: Vec<&str> = words.filter(|word| word.starts_with("fdbroker_")).collect();
            assert!(!used.is_empty(), "{expr}");
            for name in used {
                assert!(names.contains(name), "{name} of {expr} is no metric");
            }
        }
    }
}
