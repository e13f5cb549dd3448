//! Telling duplicates apart: files with a made-up order, and the kernel's own answers.

use super::*;
use std::os::fd::AsRawFd;

/// The file behind an fd of these tests, in an order that is not that of the numbers.
fn file(place: Place) -> i32 {
    (place.1 * 7) % 10
}

#[test]
fn files_when_some_are_duplicates_then_each_by_the_lowest_of_ours() {
    let mut compare = |a: Place, b: Place| Ok(Some(file(a).cmp(&file(b))));
    let ours = vec![(1, 22), (1, 3), (1, 12), (1, 14), (1, 2)];
    let others = [(2, 13), (2, 17), (3, 32), (3, 9)];
    let mut found = files(ours, &others, &mut compare).expect("an order");
    found.sort_unstable();
    let of_ours = [((1, 2), 2), ((1, 3), 3), ((1, 12), 2), ((1, 14), 14), ((1, 22), 2)];
    assert_eq!(found, [&of_ours[..], &[((2, 13), 3), ((3, 32), 2)]].concat());
}

#[test]
fn files_when_some_are_closed_meanwhile_then_the_others_all_the_same() {
    for gone in 0..10 {
        let mut compare = |a: Place, b: Place| {
            let is_gone = [a, b].contains(&(1, gone));
            Ok((!is_gone).then(|| file(a).cmp(&file(b))))
        };
        let ours = (0..10).map(|fd| (1, fd)).collect();
        let found = files(ours, &[(2, 11), (2, 15)], &mut compare).expect("an order");
        let of = |place| found.iter().find(|found| found.0 == place).map(|found| found.1);
        let kept: Vec<_> = (0..10).filter(|fd| of((1, *fd)).is_some()).collect();
        assert_eq!(kept, (0..10).filter(|fd| *fd != gone).collect::<Vec<_>>());
        assert_eq!(of((2, 11)), (gone != 1).then_some(1));
        assert_eq!(of((2, 15)), (gone != 5).then_some(5));
    }
}

#[test]
fn files_when_the_kernel_refuses_then_its_reason() {
    let mut refuse = |_: Place, _: Place| Err("no".to_owned());
    assert_eq!(files(vec![(1, 1)], &[(2, 1)], &mut refuse), Err("no".to_owned()));
    assert_eq!(files(vec![], &[(2, 1)], &mut refuse), Ok(Vec::new()));
}

#[test]
fn kcmp_when_own_fds_then_a_duplicate_is_equal_and_another_file_is_not() {
    let (a, b) = std::io::pipe().expect("a pipe");
    let copy = a.try_clone().expect("a duplicate");
    let place = |fd: i32| (std::process::id(), fd);
    let is_equal = |x: i32, y: i32| {
        kcmp(Question::File, place(x), place(y)).map(|o| o == Some(Ordering::Equal))
    };
    // A kernel without kcmp(2) says so, and nothing else.
    match is_equal(a.as_raw_fd(), copy.as_raw_fd()) {
        Ok(equal) => assert!(equal),
        Err(why) => return assert!(why.contains("ENOSYS") || why.contains("EPERM"), "{why}"),
    }
    assert_eq!(is_equal(a.as_raw_fd(), b.as_raw_fd()), Ok(false));
    assert_eq!(kcmp(Question::File, place(a.as_raw_fd()), place(i32::MAX)), Ok(None));
}
