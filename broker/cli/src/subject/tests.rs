//! Subjects as users write them, and jobs with the same name.

use super::*;
use zerocopy::FromZeros;

#[test]
fn keys_of_when_two_jobs_have_one_name_then_both_and_by_its_key_one() {
    let record = |key: u64, uid: u32, name: &str| {
        let mut record = AccountRecord::new_zeroed();
        (record.key, record.uid) = (key.into(), uid.into());
        record.name[..name.len()].copy_from_slice(name.as_bytes());
        record
    };
    let jobs = [
        record(0xa, 1, "slurm:81"),
        record(0xa, 2, "slurm:81"),
        record(0xb, 3, "slurm:81"),
        record(0xc, 1, ""),
        record(0, 1, "none"),
    ];
    let found = |name: &str| Vec::from_iter(keys_of(name, &jobs));
    for name in ["slurm:81", "job:slurm:81"] {
        assert_eq!(found(name), [0xa, 0xb], "{name}");
    }
    assert_eq!(found("job:000000000000000b"), [0xb]);
    assert_eq!(found("job:000000000000000c"), [0xc]);
    for name in ["slurm:8", "", "job:", "none", "job:0000000000000000"] {
        assert_eq!(found(name), [0; 0], "{name}");
    }
}

#[test]
fn subject_when_each_form_then_parsed() {
    assert_eq!("pid:7".parse(), Ok(Subject::Pid(7)));
    assert_eq!("uid:1000".parse(), Ok(Subject::Uid(1000)));
    assert_eq!("uid:root".parse(), Ok(Subject::Uid(0)));
    for name in
        ["slurm:4711", "flux:f1", "job:slurm:4711", "job:00000000000000ab", "unit:x.service"]
    {
        assert_eq!(name.parse(), Ok(Subject::Job(name.to_owned())));
    }
    let id = AllocationId { slot: 12, generation: 3 };
    assert_eq!("12.3".parse(), Ok(Subject::Allocation(id)));
    assert!("+12.3".parse::<Subject>().is_err(), "it may be a name");
    let fd = VirtualFd::new(1 << 30).expect("the first");
    assert_eq!("1073741824".parse(), Ok(Subject::VirtualFd(fd)));
    let hex = format!("46444248010300{}", "0".repeat(114));
    assert!(matches!(hex.parse(), Ok(Subject::Handle(_))));
}

#[test]
fn subject_when_nonsense_then_the_forms_are_named() {
    for text in ["", "x", "12", "pid:x", "é", &"zz".repeat(64), &"00".repeat(64)] {
        assert!(text.parse::<Subject>().is_err(), "{text}");
    }
    let error = "4818".parse::<Subject>().expect_err("no subject");
    assert!(error.contains("pid:4818"), "{error}");
    let error = "x".parse::<Subject>().expect_err("no subject");
    assert!(error.contains("SLOT.GENERATION"), "{error}");
}
