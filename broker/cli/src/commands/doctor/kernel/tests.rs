//! Verdicts on made-up kernels, mounts and settings of Yama.

use super::super::check::Verdict;
use super::*;

#[test]
fn fd_fetching_when_yama_or_seccomp_refuse_then_warn_and_each_is_named() {
    let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
    assert_eq!(fd_fetching(Ok(()), None).verdict, Verdict::Ok);
    assert_eq!(fd_fetching(Ok(()), Some(0)).verdict, Verdict::Ok);
    for (own, yama, word) in
        [(refused(), None, "seccomp"), (Ok(()), Some(1), "children"), (Ok(()), Some(3), "root")]
    {
        let check = fd_fetching(own, yama);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains(word), "{check:?}");
    }
}

#[test]
fn proc_visibility_when_mounted_with_hidepid_then_warn() {
    let mounts =
        |options: &str| format!("sysfs /sys sysfs rw 0 0\nproc /proc proc {options} 0 0\n");
    assert_eq!(proc_visibility(Some(&mounts("rw,nosuid"))).verdict, Verdict::Ok);
    assert_eq!(proc_visibility(Some(&mounts("rw,hidepid=invisible"))).verdict, Verdict::Warn);
    assert_eq!(proc_visibility(Some("")).verdict, Verdict::Ok);
}

#[test]
fn proc_visibility_when_there_is_no_proc_then_warn() {
    let check = proc_visibility(None);
    assert_eq!(check.verdict, Verdict::Warn);
    assert!(check.found.contains("no /proc"), "{check:?}");
}

#[test]
fn features_when_one_is_absent_then_warn_with_the_version_that_has_it() {
    let found = KernelFeatures { pass_rights: false, ..KernelFeatures::ALL };
    let checks = features(Ok(found));
    let warned: Vec<_> = checks.iter().filter(|it| it.verdict == Verdict::Warn).collect();
    assert_eq!(warned.len(), 1);
    assert!(warned[0].remedy.as_ref().is_some_and(|it| it.contains("6.16")), "{warned:?}");
}
