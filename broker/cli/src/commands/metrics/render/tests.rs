//! The page is well formed and complete.

use super::super::gather::Sums;
use super::*;
use fdbroker_protocol::admin::Metrics;
use fdbroker_protocol::{Gpu, NO_CAP};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

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
    let gpu = Gpu::cuda([7; 16], Gpu::pack_pci(0, 0xc0, 0, 0), false);
    let gpus =
        vec![Shared { gpu, allocations: n, size_bytes: n, leases: n, owners: BTreeSet::new() }];
    let (serves_clients, silent_owners) = (number.is_multiple_of(2), Some(n));
    let oldest_ms = Some([n, n]);
    Gathered { status, metrics, users, jobs, gpus, serves_clients, silent_owners, oldest_ms }
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
        // All that is used, and all caps, change alike.
        let fixed = ["fdbroker_build_info", "fdbroker_up", "fdbroker_cap_used_ratio"];
        let is_fixed = fixed.contains(&series.split('{').next().expect("a name"));
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
fn page_when_a_job_is_called_oddly_then_its_name_is_escaped_and_in_the_older_format_too() {
    let mut gathered = all(1);
    gathered.jobs[0].0[0] = "unit:a\"b\\c.scope".to_owned();
    let page = page(Some(gathered));
    let series = r#"fdbroker_job_fds{job_name="unit:a\"b\\c.scope",uid="1000"} 1"#;
    for text in [&page, &plain(&page)] {
        assert!(text.lines().any(|line| line == series), "no line {series}");
    }
}

#[test]
fn page_when_a_bound_that_is_no_cap_has_refused_then_it_has_a_series() {
    let mut gathered = all(0);
    let series = r#"fdbroker_cap_refusals_total{scope="domain",cap="refused_fds"}"#;
    let has = |page: &str| samples(page).iter().any(|(name, _)| *name == series);
    gathered.metrics.journal.refusals.domain.fds = 2.into();
    let text = page(Some(gathered.clone()));
    assert!(!has(&text));
    assert!(text.contains("fdbroker_cap_refusals_total{scope=\"domain\",cap=\"fds\"} 2\n"));
    gathered.metrics.journal.refusals.domain.refused_fds = 1.into();
    assert!(has(&page(Some(gathered))));
}

#[test]
fn page_when_a_cap_is_used_in_part_or_more_than_that_then_its_share_at_most_one() {
    let mut gathered = all(0);
    (gathered.status.uses.fds.now, gathered.status.uses.own_fds.now) = (2.into(), 1.into());
    gathered.status.uses.fds.cap = 4.into();
    let share = |gathered: Gathered, cap: &str| {
        let page = page(Some(gathered));
        let series = format!("fdbroker_cap_used_ratio{{cap=\"{cap}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series)).map(str::to_owned)
    };
    assert_eq!(share(gathered.clone(), "fds").as_deref(), Some("0.75"));
    assert_eq!(share(gathered.clone(), "connections"), None, "0 of 0");
    gathered.status.uses.fds.cap = NO_CAP.into();
    assert_eq!(share(gathered, "fds"), None);
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
