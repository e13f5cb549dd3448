//! Finding a client's job: any text as its `/proc/PID/cgroup`. The name is the beginning of one
//! line's path, and a line with the name alone gives the same job. The part of the path below a
//! launcher's job must never matter.

use fdbrokerd::fuzzing::job_name;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(name) = job_name(text) else { return };
    assert!(!name.is_empty() && !name.contains('\n'), "{text:?}: {name:?}");
    let is_of_a_line = |line: &str| line.splitn(3, ':').nth(2).is_some_and(|p| p.starts_with(name));
    assert!(text.lines().any(is_of_a_line), "{text:?}: {name:?}");
    assert_eq!(job_name(&format!("0::{name}")), Some(name), "the job of the job");
    // The steps of a known launcher belong to the same job.
    let step = format!("0::{name}/step_0");
    let is_known = job_name(&step) == Some(name);
    assert!(is_known || job_name(&step) == Some(&step[3..]), "{name:?}");
}
