//! The families: names, types and help in one place. Names never change their meaning: dashboards go by them. Must never
//! ask the broker.

use super::gather::{Accounts, Gathered, Sums};
use super::page::{Page, seconds};
use fdbroker_protocol::admin::{BUCKET_BOUNDS_US, Histogram, NodeStatus, Use};

/// On the wire: no cap. Then there is no sample.
const NO_CAP: u64 = u64::MAX;

/// The whole page; without a broker, that there is none.
pub fn page(gathered: Option<&Gathered>) -> String {
    let mut page = Page::default();
    page.family("fdbroker_build", "info", "The release of the command that gives these numbers.");
    page.sample("fdbroker_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    let is_up = u8::from(gathered.is_some());
    page.gauge("fdbroker_up", "1 if the broker answers; else this is all there is.", is_up);
    if let Some(gathered) = gathered {
        counts(&mut page, &gathered.status);
        resources(&mut page, &gathered.status);
        counters(&mut page, &gathered.status);
        histogram(
            &mut page,
            "fdbroker_grant_latency_seconds",
            "From reading a request to sending the fds it was granted, waiting included.",
            &gathered.metrics.grant_latency,
        );
        histogram(
            &mut page,
            "fdbroker_recall_time_seconds",
            "From asking an owner for an fd again to getting it.",
            &gathered.metrics.recall_time,
        );
        accounts(&mut page, "user", "a user", &["uid"], &gathered.users);
        // Scrapers have a label `job` of their own.
        accounts(&mut page, "job", "a job", &["job_name", "uid"], &gathered.jobs);
    }
    page.finish()
}

fn counts(page: &mut Page, status: &NodeStatus) {
    let uptime = seconds(status.uptime_ms.get().saturating_mul(1000));
    page.gauge("fdbroker_uptime_seconds", "Time since the broker started.", uptime);
    let gauges = [
        ("clients", "Connected clients.", status.clients.get().into()),
        ("users", "Isolation domains: users, on each listener.", status.domains.get().into()),
        ("jobs", "Jobs with clients.", status.jobs.get().into()),
        (
            "requests_waiting",
            "Requests that wait for room or a recall.",
            status.parked.get().into(),
        ),
        ("stored_fds", "Fds that the broker holds.", status.held_now.get()),
        ("closing_fds", "Fds whose close has not returned.", status.closing_now.get()),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("fdbroker_{name}"), help, value);
    }
}

/// Resources that have no cap of their own.
const UNCAPPED: [&str; 2] = ["own_", "pinned_"];

/// Each resource: in use, most ever, cap. Units stand last in a name.
fn resources(page: &mut Page, status: &NodeStatus) {
    let all = [
        ("", "fds", "Fds of shared memory on the node.", &status.fds),
        ("held_", "fds", "Fds in the broker, or promised a place there.", &status.held_fds),
        ("own_", "fds", "Fds that clients keep for their own memory.", &status.own_fds),
        ("table_", "fds", "Fds in the broker's own table.", &status.table_fds),
        ("held_", "bytes", "Memory whose fd the broker holds.", &status.held_bytes),
        (
            "pinned_",
            "bytes",
            "Ended memory that leases still pin, charged to each holder.",
            &status.pinned_bytes,
        ),
        ("open_", "leases", "Duplicates that clients have open.", &status.open_leases),
        ("mapped_", "leases", "Memory imported, no fd kept.", &status.mapped_leases),
        ("", "allocations", "Allocations, or ended and still leased.", &status.allocations),
        ("kept_", "allocations", "Allocations that outlive their owner.", &status.kept_allocations),
    ];
    for (what, unit, help, Use { now, peak, cap }) in all {
        page.gauge(&format!("fdbroker_{what}{unit}"), help, now.get());
        let most = format!("The most since start: {}", lowercase(help));
        page.gauge(&format!("fdbroker_{what}peak_{unit}"), &most, peak.get());
        if UNCAPPED.contains(&what) {
            continue;
        }
        let name = format!("fdbroker_{what}cap_{unit}");
        page.family(&name, "gauge", &format!("The cap, if there is one: {}", lowercase(help)));
        if cap.get() != NO_CAP {
            page.sample(&name, &[], cap.get());
        }
    }
}

fn lowercase(text: &str) -> String {
    text[..1].to_lowercase() + &text[1..]
}

fn counters(page: &mut Page, status: &NodeStatus) {
    let all = [
        ("grants", "Leases granted.", status.grants),
        ("registrations", "Allocations registered.", status.registrations),
        ("evictions", "Fds closed to make room.", status.evictions),
        ("recalls", "Fds asked for again.", status.recalls),
        ("recalls_unanswered", "Recalls not answered in time.", status.recalls_silent),
        ("requests_parked", "Requests that had to wait.", status.parkings),
        (
            "requests_refused",
            "Requests refused because a cap was full or the broker was being drained.",
            status.refusals,
        ),
        ("leases_reclaimed", "Leases that their holders were asked for.", status.reclaims),
    ];
    for (name, help, value) in all {
        page.counter(&format!("fdbroker_{name}"), help, value.get());
    }
}

fn histogram(page: &mut Page, name: &str, help: &str, histogram: &Histogram) {
    page.family(name, "histogram", help);
    let bounds = BUCKET_BOUNDS_US.map(seconds);
    let bounds = bounds.iter().map(String::as_str).chain(std::iter::once("+Inf"));
    let mut sum: u64 = 0;
    for (bound, bucket) in bounds.zip(&histogram.buckets) {
        sum = sum.saturating_add(bucket.get());
        page.sample(&format!("{name}_bucket"), &[("le", bound)], sum);
    }
    page.sample(&format!("{name}_count"), &[], sum);
    page.sample(&format!("{name}_sum"), &[], seconds(histogram.sum_us.get()));
}

/// A value of an account, with what it is called.
type Field = (&'static str, &'static str, fn(&Sums) -> u64);

fn accounts(page: &mut Page, of: &str, who: &str, labels: &[&str], accounts: &Accounts) {
    let fields: [Field; 6] = [
        ("clients", "Clients", |sums| sums.clients),
        ("fds", "Fds of shared memory", |sums| sums.fds),
        ("held_bytes", "Memory whose fd the broker holds", |sums| sums.held_bytes),
        ("open_leases", "Duplicates open", |sums| sums.open_leases),
        ("mapped_leases", "Memory imported", |sums| sums.mapped_leases),
        ("allocations", "Allocations", |sums| sums.allocations),
    ];
    for (field, what, value) in fields {
        let name = format!("fdbroker_{of}_{field}");
        let help = format!("{what} of {who}; those with few fds are one, other.");
        page.family(&name, "gauge", &help);
        for (values, sums) in accounts {
            let pairs = labels.iter().zip(values).map(|(label, text)| (*label, text.as_str()));
            page.sample(&name, &pairs.collect::<Vec<_>>(), value(sums));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let sums = Sums {
            clients: n,
            fds: n,
            held_bytes: n,
            open_leases: n,
            mapped_leases: n,
            allocations: n,
        };
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
        let (before, after) = (page(Some(&all(1))), page(Some(&all(2))));
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
        let page = page(Some(&all(1)));
        assert!(page.ends_with("\n# EOF\n") && !page.contains("\n\n"));
        let mut families = BTreeSet::new();
        let (mut family, mut kind) = ("", "");
        for line in page.lines().filter(|line| *line != "# EOF") {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", "TYPE", name, of] => {
                    assert!(families.insert(name), "{name} twice");
                    (family, kind) = (name, of);
                }
                ["#", "UNIT" | "HELP", name, ..] => assert_eq!(name, family),
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
        for counter in ["fdbroker_grants_total", "fdbroker_requests_refused_total"] {
            assert!(names(&page).contains(counter));
        }
    }

    #[test]
    fn histogram_when_counted_then_buckets_add_up_and_bounds_are_seconds() {
        let mut gathered = all(0);
        gathered.metrics.recall_time.buckets[0] = 2.into();
        gathered.metrics.recall_time.buckets[8] = 1.into();
        gathered.metrics.recall_time.sum_us = 2_010.into();
        let page = page(Some(&gathered));
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
        gathered.status.fds.cap = NO_CAP.into();
        let text = page(Some(&gathered));
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
        let page = page(Some(&all(1)));
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
