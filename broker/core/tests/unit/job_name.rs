//! Unit tests of `src/job_name.rs`, which is not public.

use super::*;

#[test]
fn new_when_too_long_or_unprintable_then_cut_and_marked() {
    assert_eq!(JobName::new("slurm:4711").as_str(), "slurm:4711");
    assert_eq!(JobName::new("a\u{1b} b").as_str(), "a??b");
    assert_eq!(JobName::new(&"x".repeat(1000)).as_str(), "x".repeat(JOB_NAME_BYTES));
    assert_eq!(JobName::new(""), JobName::NONE);
}
