//! Real paths and variables of each scheduler, and what only looks like them.

use super::*;
use fdbroker_protocol::limits::JOB_NAME_BYTES;

const FLUX_UNITS: &str = "/user.slice/user-765.slice/user@765.service/app.slice";

fn expect(text: &str, path: &str, name: &str) {
    let found = job_cgroup(text).map(|cgroup| (cgroup.path, cgroup.name.as_str().to_owned()));
    assert_eq!(found, Some((path, name.to_owned())), "{text}");
}

/// That nothing in this path is a scheduler's job.
fn expect_unknown(path: &str) {
    let cgroup = job_cgroup(path).expect("a path");
    assert_eq!(cgroup, Cgroup { path: &path[3..], name: unit_name(path) }, "{path}");
}

#[test]
fn job_cgroup_when_a_scheduler_is_known_then_the_path_down_to_its_job_and_its_id() {
    // What stands before the path, the path down to the job, what stands below it, and the name.
    let table = [
        ("0::", "/system.slice/slurmstepd.scope/job_81", "/step_0/user/task_3", "slurm:81"),
        ("0::", "/system.slice/n7_slurmstepd.scope/job_81", "/step_batch/user/task_0", "slurm:81"),
        ("4:devices:", "/slurm/uid_1000/job_81", "/step_0/task_1\n0::/init.scope", "slurm:81"),
        ("4:memory:", "/slurm_n7/uid_1000/job_81", "/step_0", "slurm:81"),
        ("9:cpuset:", "/pbs_jobs.service/jobid/12.server", "/extra", "pbs:12.server"),
        ("9:cpuset:", "/pbs_jobs.service/jobid/12[3].server", "", "pbs:12[3].server"),
        ("0::", "/system.slice/pbs_jobs.service/jobs/12.server", "", "pbs:12.server"),
        ("0::", "/jobs/7186710", "\n", "pbs:7186710"),
        ("0::", "/kubepods/burstable/pod1f3a-8e0c", "/0123abcd", "k8s:1f3a-8e0c"),
        ("0::", "/kubepods/pod1f3a-8e0c", "/0123abcd", "k8s:1f3a-8e0c"),
        // Seen from another pod's cgroup namespace.
        ("0::", "/../../pod1f3a-8e0c", "/0123abcd", "k8s:1f3a-8e0c"),
        ("0::", "/../../../burstable/pod1f3a-8e0c", "/0123abcd", "k8s:1f3a-8e0c"),
        (
            "11:memory:",
            "/kubepods/besteffort/pod1f3a-8e0c",
            "/0123abcd\n1:name=systemd:/",
            "k8s:1f3a-8e0c",
        ),
    ];
    for (start, path, below, name) in table {
        expect(&format!("{start}{path}{below}"), path, name);
    }
}

#[test]
fn job_cgroup_when_it_is_a_pods_slice_then_the_uid_with_its_dashes() {
    let pod = "pod1f3a8e0c_5a0b_4a55_9d0c_0c3b6d7e8f90.slice";
    let name = "k8s:1f3a8e0c-5a0b-4a55-9d0c-0c3b6d7e8f90";
    for slice in [
        format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{pod}"),
        format!("/kubepods.slice/kubepods-{pod}"),
        format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{pod}"),
    ] {
        expect(&format!("0::{slice}/cri-containerd-0123abcd.scope\n"), &slice, name);
    }
}

#[test]
fn job_cgroup_when_it_is_a_unit_of_flux_then_its_id_in_base_58() {
    for (unit, name) in [
        ("imp-shell-450-fPY66riwfnP.service", "flux:fPY66riwfnP"),
        ("shell-0-fTE9HHdZvi3.service", "flux:fTE9HHdZvi3"),
        // The least and the greatest id.
        ("shell-0-f1.service", "flux:f1"),
        ("shell-0-fjpXCZedGfVQ.service", "flux:fjpXCZedGfVQ"),
    ] {
        let path = format!("{FLUX_UNITS}/{unit}");
        expect(&format!("0::{path}\n"), &path, name);
        expect(&format!("0::{path}/inner.scope"), &path, name);
    }
}

#[test]
fn job_cgroup_when_only_like_a_unit_of_flux_then_that_unit() {
    for unit in [
        "imp-shell-450-.service",
        "imp-shell-450-f.service",
        "imp-shell--fPY66riwfnP.service",
        "imp-shell-x-fPY66riwfnP.service",
        "imp-shell-450-fPY66riwfnP.scope",
        "imp-shell-450-fPY66riwfnP",
        "shell-450.service",
        "my-shell-450-fPY66riwfnP.service",
        "imp-imp-shell-450-fPY66riwfnP.service",
        // Too long for 64 bits; a digit that base 58 has not; the sign that Flux prints; an escape
        // of systemd's.
        "imp-shell-450-f111111111111.service",
        "imp-shell-450-f0.service",
        "imp-shell-450-\u{192}PY66riwfnP.service",
        "imp-shell-450-fPY\\x2d66.service",
        // Flux's own, with all jobs in it where they are no units.
        "flux.service",
        "housekeeping-0-fBJRyBTRMod.service",
    ] {
        expect_unknown(&format!("0::{FLUX_UNITS}/{unit}"));
    }
}

#[test]
fn job_cgroup_when_schedulers_are_nested_then_the_outer_ones_job() {
    let outer = "/system.slice/slurmstepd.scope/job_81";
    let inner = format!("{outer}/step_0/user@7.service/imp-shell-0-fTE9HHdZvi3.service");
    expect(&format!("0::{inner}"), outer, "slurm:81");
}

#[test]
fn job_cgroup_when_pals_launched_it_then_the_job_of_pbs_or_the_unit_of_pals() {
    let job = "/pbs_jobs.service/jobs/7186710.polaris-pbs-01";
    expect(&format!("0::{job}"), job, "pbs:7186710.polaris-pbs-01");
    expect("0::/system.slice/palsd.service", "/system.slice/palsd.service", "unit:palsd.service");
}

#[test]
fn job_cgroup_when_no_scheduler_is_known_then_the_whole_path_and_the_nearest_unit() {
    let session = "/user.slice/user-1000.slice/session-3.scope";
    let service = "/user.slice/user-1000.slice/user@1000.service";
    let app = format!("{service}/app.slice/app-x.scope/inner");
    let table = [
        (format!("0::{session}\n"), session, "unit:session-3.scope"),
        (format!("0::{service}/init"), &format!("{service}/init"), "unit:user@1000.service"),
        (format!("0::{app}"), &app, "unit:app-x.scope"),
        (format!("1:name=systemd:{session}"), session, "unit:session-3.scope"),
        (
            "12:pids:/user.slice\n1:name=systemd:/user.slice/user-1000.slice\n".into(),
            "/user.slice/user-1000.slice",
            "",
        ),
        ("1:name=systemd:/a\n0::/b\n".into(), "/b", ""),
        ("0::/\n".into(), "/", ""),
        // A colon in a name.
        ("0::/a:b/c".into(), "/a:b/c", ""),
    ];
    for (text, path, name) in table {
        expect(&text, path, name);
    }
}

#[test]
fn job_cgroup_when_only_like_a_schedulers_then_the_whole_path() {
    for path in [
        "/home/job_7/x",
        "/system.slice/slurmstepd.scope/job_x/y",
        "/system.slice/slurmstepd.scope/job_/y",
        "/slurm/job_81",
        "/x/pbs_jobs.service/other/jobid/3/4",
        "/pbs_jobs.service/jobs",
        "/pbs_jobs.service/jobs/",
        "/a/jobs/7186710",
        "/jobs/worker",
        "/jobs/71\\x2d86710",
        "/a/podman/pod7",
        "/kubepods/podman",
        "/../../podman",
        "/kubepods.slice/kubepods-besteffort.slice",
    ] {
        expect_unknown(&format!("0::{path}"));
    }
}

#[test]
fn name_when_too_long_or_not_printable_then_cut_and_a_question_mark() {
    let name = |path: &str| job_cgroup(&format!("0::{path}")).expect("a path").name;
    let unit = format!("docker-{}.scope", "0123456789abcdef".repeat(4));
    let long = name(&format!("/system.slice/{unit}"));
    assert_eq!(long.as_str(), &format!("unit:{unit}")[..JOB_NAME_BYTES]);
    let id = "7".repeat(2 * JOB_NAME_BYTES);
    let long = name(&format!("/system.slice/slurmstepd.scope/job_{id}"));
    assert_eq!(long.as_str(), &format!("slurm:{id}")[..JOB_NAME_BYTES]);
    let odd = name("/a\u{1b}[2Jb\u{e4}.scope");
    assert_eq!(odd.as_str(), "unit:a?[2Jb??.scope");
    assert_eq!(JobName::new(odd.as_str()), odd);
    assert_eq!(name("/pbs_jobs.service/jobs/1\u{1b}[m").as_str(), "pbs:1?[m");
    // systemd's escapes stand as they are.
    assert_eq!(name("/app-a\\x2db.scope").as_str(), "unit:app-a\\x2db.scope");
}

#[test]
fn job_cgroup_when_there_is_nothing_to_read_then_none() {
    for text in ["", "\n", "nonsense", "0::", "1:cpu:"] {
        assert_eq!(job_cgroup(text), None, "{text:?}");
    }
}

#[test]
fn is_job_name_when_it_begins_like_one_then_so() {
    for name in ["slurm:81", "flux:fTE9HHdZvi3", "pbs:12.server", "k8s:1f3a", "unit:x.service"] {
        assert!(is_job_name(name), "{name}");
    }
    for text in ["", ":", ":81", "slurm", "slurmy:81", "pid:7", "12.3"] {
        assert!(!is_job_name(text), "{text}");
    }
}

fn ids(environment: &[(&str, &str)]) -> Ids {
    Ids::find(|name| {
        environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn ids_when_flux_launched_it_then_its_id_for_crays_mpi_too() {
    let flux = [("FLUX_JOB_ID", "fTE9HHdZvi3"), ("FLUX_TASK_RANK", "3")];
    assert_eq!(ids(&flux).job, [("FLUX_JOB_ID", "fTE9HHdZvi3".into())]);
    let cray = [flux[0], ("PALS_APID", "69088542720"), ("PALS_RANKID", "3"), ("PALS_NODEID", "0")];
    let expected = [("FLUX_JOB_ID", "fTE9HHdZvi3".into()), ("PALS_APID", "69088542720".into())];
    assert_eq!(ids(&cray).job, expected);
}

#[test]
fn ids_when_pals_launched_it_under_pbs_then_the_application_and_the_allocation() {
    let apid = "f7ac4ba4-4f8f-4a23-8f2c-1de6cd3f9a51";
    let found = ids(&[
        ("PBS_JOBID", "7186710.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"),
        ("PALS_APID", apid),
        ("PALS_RANKID", "0"),
        ("PALS_LOCAL_RANKID", "0"),
        ("PALS_NODEID", "0"),
    ]);
    assert_eq!(found.job, [("PALS_APID", apid.into())]);
    let allocation = "7186710.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov";
    assert_eq!(found.allocation, [("PBS_JOBID", allocation.into())]);
}

#[test]
fn ids_when_they_differ_between_the_ranks_of_a_job_then_not_used() {
    let found = ids(&[
        ("PALS_RANKID", "1"),
        ("PALS_NODEID", "2"),
        ("PMI_RANK", "1"),
        ("SLURM_PROCID", "1"),
        ("OMPI_COMM_WORLD_RANK", "1"),
    ]);
    assert_eq!(found, Ids::default());
}

#[test]
fn ids_when_half_a_pair_or_empty_then_not_used() {
    let found = ids(&[("SLURM_JOB_ID", "5"), ("PMIX_NAMESPACE", ""), ("PBS_JOBID", "")]);
    assert_eq!(found, Ids::default());
    assert_eq!(ids(&[("SLURM_STEP_ID", "0")]), Ids::default());
}

#[test]
fn ids_when_over_long_or_with_escapes_then_as_they_are() {
    let odd = format!("\u{1b}[2J\n{}", "x".repeat(100_000));
    assert_eq!(ids(&[("PALS_APID", &odd)]).job, [("PALS_APID", odd.clone())]);
}

#[test]
fn is_launcher_when_it_starts_all_ranks_of_a_node_then_so() {
    for name in ["hydra_pmi_proxy", "slurmstepd", "orted", "prted", "flux-shell", "palsd"] {
        assert!(is_launcher(name), "{name}");
    }
    for name in ["", "bash", "mpirun_wrapper.", "flux-imp", "flux-broker"] {
        assert!(!is_launcher(name), "{name}");
    }
}

#[test]
fn the_table_when_read_then_no_name_or_variable_stands_twice_and_comms_are_whole() {
    let mut seen = std::collections::HashSet::new();
    for it in &SCHEDULERS {
        let variables = it.job.iter().chain(it.allocation).chain(it.processes);
        for text in variables.chain((!it.name.is_empty()).then_some(&it.name)) {
            assert!(seen.insert(*text), "{text} twice");
        }
        // TASK_COMM_LEN of the kernel, less its zero.
        assert!(it.processes.iter().all(|name| name.len() <= 15));
    }
}
