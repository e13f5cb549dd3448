//! Which job a client is of: any text as its `/proc/PID/cgroup`. The name is a piece of one line's path, and of itself the
//! job again. Must never depend on what stands in the path below the job that a launcher made.

use fdbrokerd::fuzzing::job_name;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(name) = job_name(text) else { return };
    assert!(!name.is_empty() && !name.contains('\n'), "{text:?}: {name:?}");
    let is_of_a_line = |line: &str| line.splitn(3, ':').nth(2).is_some_and(|p| p.starts_with(name));
    assert!(text.lines().any(is_of_a_line), "{text:?}: {name:?}");
    assert_eq!(job_name(&format!("0::{name}")), Some(name), "the job of the job");
    // Where a launcher's job is known, its steps are of the same one.
    let step = format!("0::{name}/step_0");
    let is_known = job_name(&step) == Some(name);
    assert!(is_known || job_name(&step) == Some(&step[3..]), "{name:?}");
}
