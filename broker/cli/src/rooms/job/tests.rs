//! The job of made-up processes and environments.

use super::*;

/// Pids from 10 on; each one's parent is the next.
fn found(environment: &[(&str, &str)], names: &[&str]) -> Vec<(String, String)> {
    let ids = Ids::find(|name| {
        environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    });
    parts(ids.job, 10, |pid| {
        let index = usize::try_from(pid - 10).ok()?;
        let name = (*names.get(index)?).to_owned();
        Some(Process { name, parent: pid + 1, started: 7 })
    })
}

fn process_of(parts: &[(String, String)]) -> Option<&str> {
    parts.iter().find(|(name, _)| name == "process").map(|(_, value)| value.as_str())
}

#[test]
fn parts_when_nothing_names_the_job_then_the_parent_is_it() {
    assert_eq!(process_of(&found(&[], &["bash", "sshd"])), Some("10 (bash) started 7"));
    assert!(found(&[], &[]).is_empty());
}

#[test]
fn parts_when_a_shell_is_between_then_the_launcher_is_it() {
    let parts = found(&[], &["sh", "mpirun_wrapper.", "hydra_pmi_proxy", "mpirun"]);
    assert_eq!(process_of(&parts), Some("12 (hydra_pmi_proxy) started 7"));
}

#[test]
fn parts_when_a_launcher_gave_an_id_then_parents_do_not_count() {
    let slurm = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0")];
    let (a, b) = (found(&slurm, &["sh"]), found(&slurm, &["bash", "login"]));
    assert_eq!(a, b);
    assert_eq!(process_of(&a), None);
    assert_ne!(a, found(&[("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "1")], &["sh"]));
}

#[test]
fn parts_when_an_id_is_of_an_outer_job_then_the_inner_launcher_counts_too() {
    let slurm = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0")];
    let parts = found(&slurm, &["hydra_pmi_proxy", "mpirun", "bash", "slurmstepd"]);
    assert_eq!(process_of(&parts), Some("10 (hydra_pmi_proxy) started 7"));
}

#[test]
fn parts_when_half_an_id_or_an_allocations_then_not_used() {
    let parts = found(&[("SLURM_JOB_ID", "5"), ("PBS_JOBID", "6"), ("PMIX_NAMESPACE", "")], &[]);
    assert!(parts.is_empty(), "{parts:?}");
}

#[test]
fn parts_when_ancestors_never_end_then_it_does() {
    let loops = |_: i32| Some(Process { name: "sh".into(), parent: 10, started: 7 });
    assert_eq!(parts(Vec::new(), 10, loops).len(), 1);
}

#[test]
fn name_in_when_anything_differs_then_another_name() {
    let job = |name: &str| Job::find(Some(name)).expect("a name");
    let name = job("a").name_in("boot", Uid::from_raw(1));
    assert_eq!(name, job("a").name_in("boot", Uid::from_raw(1)));
    assert_eq!(name.len(), "job-".len() + BOOT_DIGITS + 1 + JOB_DIGITS);
    assert!(name.starts_with(&boot_prefix(JOINED, "boot")));
    for other in [
        job("b").name_in("boot", Uid::from_raw(1)),
        job("a").name_in("boot", Uid::from_raw(2)),
        job("a").name_in("toob", Uid::from_raw(1)),
    ] {
        assert_ne!(name, other);
        assert!(name[name.len() - JOB_DIGITS..] != other[other.len() - JOB_DIGITS..]);
    }
}

#[test]
fn display_when_in_an_allocation_then_both_and_escapes_are_seen() {
    let apid = "f7ac\u{1b}[2J\n".to_owned();
    let allocation = vec![("PBS_JOBID", "12.server".to_owned())];
    let job = Job { kind: JOINED, parts: vec![("PALS_APID".into(), apid)], allocation };
    let shown = "PALS_APID f7ac\\u{1b}[2J\\n, within PBS_JOBID 12.server";
    assert_eq!(job.to_string(), shown);
    // The allocation may be seen by some ranks only.
    let alone = Job { kind: JOINED, parts: job.parts.clone(), allocation: Vec::new() };
    assert_eq!(job.name_in("boot", Uid::from_raw(1)), alone.name_in("boot", Uid::from_raw(1)));
}

#[test]
fn parse_when_the_name_is_hostile_then_read_right() {
    let tail = "S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 2222 23";
    let it = Process::parse(&format!("3 (a) S 9 (b) {tail}")).expect("a process");
    assert_eq!((it.name.as_str(), it.parent, it.started), ("a) S 9 (b", 4, 2222));
    let own = Process::read(std::process::id().cast_signed()).expect("this process");
    assert_eq!(own.parent, getppid().as_raw());
    assert!(own.started > 0);
}

fn started_in(environment: &[(&str, &str)]) -> String {
    let job = Job::of_started(|name| {
        environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
    });
    assert!(job.is_started());
    job.name_in("boot", Uid::from_raw(1))
}

#[test]
fn of_started_when_a_scheduler_gives_a_job_then_its_room_else_the_users() {
    let user = started_in(&[]);
    assert!(is_of_started(Path::new(&user)) && user.starts_with(&boot_prefix(STARTED, "boot")));
    assert!(!is_of_started(Path::new("/tmp/fdbroker-1/job-000000-000000000000")));
    // A launcher's job ends, and nobody kills what it leaves.
    assert_eq!(user, started_in(&[("PMIX_NAMESPACE", "5"), ("OMPI_MCA_ess_base_jobid", "6")]));
    let batch = started_in(&[("SLURM_JOB_ID", "7")]);
    let step = started_in(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")]);
    let pbs = started_in(&[("PBS_JOBID", "7")]);
    let all = [&user, &batch, &step, &pbs];
    assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])), "{all:?}");
}
