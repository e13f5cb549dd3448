//! `run --report`: the picture and the table of a real job, and what is said where there is none.

use crate::common::{TestDir, end, fdbroker};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a shell script under a report; `$F` is the command. Returns the exit status, stderr and the
/// file's text, if there is a file.
fn report(path: &Path, script: &str) -> (Option<i32>, String, Option<String>) {
    let path = path.to_str().expect("UTF-8");
    let arguments = ["run", "--max-fds", "64", "--report", path, "--", "sh", "-c", script];
    let output = fdbroker(&arguments).env("F", env!("CARGO_BIN_EXE_fdbroker")).output();
    let (code, stderr) = end(&output.expect("the command starts"));
    (code, stderr, std::fs::read_to_string(path).ok())
}

/// Each rank holds the other rank's 40 buffers for longer than a look takes.
const SHARING: &str = "$F demo --ranks 2 --buffers 40 --hold 1";

/// Would leave a file if it was started; `path` is that of the report.
fn leaves_a_file(path: &Path) -> (PathBuf, String) {
    let proof = path.with_extension("started");
    (proof.clone(), format!("touch {}", proof.display()))
}

#[test]
fn run_when_the_report_is_a_picture_then_xml_with_every_line_and_its_peak() {
    let dir = TestDir::new("report-svg");
    let (code, stderr, picture) = report(&dir.path().join("fds.svg"), SHARING);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("fds.svg shows the job's fds over time"), "{stderr}");
    let picture = picture.expect("the report");
    let document = roxmltree::Document::parse(&picture).expect("XML");
    let all = |name: &'static str| {
        document.descendants().filter(move |node| node.tag_name().name() == name)
    };
    let texts: Vec<_> = all("text").filter_map(|it| it.text().map(str::trim)).collect();
    // At the end each rank has the 40 buffers of the other.
    let axes = ["open fds (logarithmic)", "seconds since the start of the job"];
    for text in ["direct way: max 80", "cap: 64"].into_iter().chain(axes) {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    assert!(texts.iter().any(|text| text.contains("sh -c $F demo --ranks 2")), "{texts:?}");
    // The ranks import at once, and close the fd.
    for (name, least) in [("node: max ", 1), ("broker: max ", 1), ("ranks: max ", 0)] {
        let peak = texts.iter().find_map(|text| text.strip_prefix(name));
        let peak = peak.and_then(|peak| peak.parse::<u64>().ok());
        assert!(peak.is_some_and(|peak| (least..=64).contains(&peak)), "{name}: {texts:?}");
    }
    // The strokes of curves and of their samples in the legend are alone two wide. A curve goes
    // from edge to edge, with two points if its count never changed: no look need have met a fd of
    // a rank.
    let width = |curve: roxmltree::Node<'_, '_>| {
        let points = curve.attribute("points").unwrap_or_default();
        let mut columns = points
            .split_whitespace()
            .filter_map(|point| point.split_once(',')?.0.parse::<u32>().ok());
        columns.next().zip(columns.next_back()).map_or(0, |(first, last)| last - first)
    };
    let widths: Vec<u32> =
        all("polyline").filter(|it| it.attribute("stroke-width") == Some("2")).map(width).collect();
    let widest = widths.iter().max().copied().unwrap_or_default();
    assert_eq!(widths.iter().filter(|width| **width == widest).count(), 4, "{widths:?} {picture}");
}

#[test]
fn run_when_the_report_is_a_table_then_a_heading_and_numbers_that_fit_together() {
    let dir = TestDir::new("report-csv");
    let (code, stderr, table) = report(&dir.path().join("fds.csv"), SHARING);
    assert_eq!(code, Some(0), "{stderr}");
    let table = table.expect("the report");
    let mut lines = table.lines();
    let heading = "seconds,direct_way_fds,fds,held_fds,rank_fds,fds_cap";
    assert_eq!(lines.next(), Some(heading));
    let rows: Vec<(f64, [u64; 5])> = lines
        .map(|line| {
            let (seconds, counts) = line.split_once(',').expect("columns");
            let counts: Vec<u64> =
                counts.split(',').map(|it| it.parse().expect("a number")).collect();
            (seconds.parse().expect("a number"), counts.try_into().expect("five columns"))
        })
        .collect();
    assert!(rows.len() > 10 && rows.is_sorted_by_key(|(seconds, _)| *seconds), "{table}");
    assert!(rows.last().is_some_and(|(seconds, _)| *seconds > 1.0), "{table}");
    for (_, [_, node, broker, ranks, cap]) in &rows {
        assert!(*cap == 64 && node <= cap && *node == broker + ranks, "{table}");
    }
    assert_eq!(rows.iter().map(|(_, counts)| counts[0]).max(), Some(80), "{table}");
}

#[test]
fn run_when_the_report_has_another_ending_then_a_usage_error_that_names_both() {
    let dir = TestDir::new("report-ending");
    for name in ["fds.png", "fds", "svg"] {
        let path = dir.path().join(name);
        let (proof, script) = leaves_a_file(&path);
        let (code, stderr, file) = report(&path, &script);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(".svg") && stderr.contains(".csv"), "{stderr}");
        assert!(file.is_none() && !proof.exists(), "{name}");
    }
}

#[test]
fn run_when_the_job_shares_nothing_then_why_there_is_no_report_and_the_jobs_status() {
    let dir = TestDir::new("report-nothing");
    for name in ["fds.svg", "fds.csv"] {
        let path = dir.path().join(name);
        let (code, stderr, file) = report(&path, "exit 7");
        assert_eq!(code, Some(7), "{stderr}");
        assert!(stderr.contains("nothing to draw in") && stderr.contains(name), "{stderr}");
        assert!(stderr.contains("the job shared no memory"), "{stderr}");
        assert_eq!(file, None);
    }
    // A former report is not lost.
    let path = dir.path().join("former.csv");
    std::fs::write(&path, "former").expect("writable");
    let (_, stderr, file) = report(&path, "exit 0");
    assert_eq!(file.as_deref(), Some("former"), "{stderr}");
}

#[test]
fn run_when_the_broker_ends_before_it_was_looked_at_then_why_there_is_no_report() {
    let dir = TestDir::new("report-broker");
    let path = dir.path().join("fds.svg");
    let script = "kill -KILL $($F status --json | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')";
    let (_, stderr, file) = report(&path, script);
    assert!(stderr.contains("nothing to draw in"), "{stderr}");
    assert_eq!(file, None);
}

#[test]
fn run_when_the_report_cannot_be_written_then_an_error_before_the_job_starts() {
    let dir = TestDir::new("report-unwritable");
    let (proof, script) = leaves_a_file(&dir.path().join("fds"));
    let path = dir.path().join("no/such/folder/fds.svg");
    let (code, stderr, _) = report(&path, &script);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("cannot write {}", path.display())), "{stderr}");
    assert!(!proof.exists(), "the job has run");
}

#[test]
fn run_when_the_report_is_cut_short_then_an_error_no_file_and_the_jobs_status() {
    let dir = TestDir::new("report-cut");
    let path = dir.path().join("fds.csv");
    let path_text = path.to_str().expect("UTF-8");
    // The job's parent is `fdbroker run`. With SIGXFSZ ignored a write beyond the limit fails
    // (setrlimit(2)).
    let script = format!("{SHARING} > /dev/null; prlimit --fsize=100 --pid $PPID; exit 7");
    let arguments = ["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_fdbroker")];
    let run = ["run", "--report", path_text, "--", "sh", "-c", &script];
    for former in [None, Some("former")] {
        if let Some(text) = former {
            std::fs::write(&path, text).expect("writable");
        }
        let mut command = Command::new("sh");
        command.args(arguments).args(run).env("F", env!("CARGO_BIN_EXE_fdbroker"));
        let output = command.env_remove("XDG_RUNTIME_DIR").output().expect("sh(1)");
        let (code, stderr) = end(&output);
        assert_eq!(code, Some(7), "{stderr}");
        assert!(stderr.contains(&format!("no report: cannot write {path_text}")), "{stderr}");
        assert!(!path.exists(), "half a table is left");
    }
}

#[test]
fn run_when_the_report_is_a_fifo_that_nobody_reads_then_an_error_before_the_job_starts() {
    let dir = TestDir::new("report-fifo");
    let (proof, script) = leaves_a_file(&dir.path().join("fds"));
    let path = dir.path().join("fifo.svg");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let path = path.to_str().expect("UTF-8");
    let output = fdbroker(&["run", "--report", path, "--", "sh", "-c", &script]).output();
    let (code, stderr) = end(&output.expect("the command starts"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("cannot write {path}")), "{stderr}");
    assert!(!proof.exists(), "the job has run");
}
