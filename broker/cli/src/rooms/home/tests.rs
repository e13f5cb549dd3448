//! Many ranks look for their home at once, while another user takes names and gives them up. All of
//! them must find one home.

use super::*;
use crate::private_broker::RuntimeDir;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// A uid that no machine uses.
const MALLORY: u32 = 61_003;

fn parent() -> (RuntimeDir, Vec<PathBuf>) {
    let dir = RuntimeDir::create().expect("a directory");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("ours");
    let names = names(dir.path(), "job-000000-000000000000");
    assert_eq!(names.len(), NAMES);
    (dir, names)
}

fn find(dir: &RuntimeDir, names: &[PathBuf]) -> Result<PathBuf> {
    Home::agree(dir.path(), names, Instant::now() + Duration::from_secs(30)).map(|home| home.0)
}

/// Becomes another user with this thread alone. `false`: this process may not.
fn becomes_mallory() -> bool {
    // The C library would change all threads.
    // SAFETY: takes numbers alone.
    unsafe { libc::syscall(libc::SYS_setresuid, -1, MALLORY, -1) == 0 }
}

#[test]
fn agree_when_ranks_have_made_two_directories_then_all_take_the_settled_one() {
    for settled in [0, 1, 5] {
        let (dir, names) = parent();
        make_directory(&names[settled]).expect("made");
        assert_eq!(find(&dir, &names).expect("found"), names[settled]);
        // A rank that had seen no directory comes late.
        make_directory(&names[0]).expect("made");
        make_directory(&names[7]).expect("made");
        assert_eq!(find(&dir, &names).expect("found"), names[settled]);
        assert_eq!(std::fs::read_dir(&names[settled]).expect("there").count(), 0);
    }
}

#[test]
fn settle_when_another_rank_has_one_of_the_locks_then_not_before_it_is_free() {
    let (dir, names) = parent();
    for name in [0, 3] {
        make_directory(&names[name]).expect("made");
    }
    let held = Room::at(&names[3]).open(GATE).expect("opened").expect("there");
    assert!(try_lock(&held).expect("no error"));
    let homes = [names[0].clone(), names[3].clone()];
    assert!(!settle(&names, &homes).expect("no error"));
    assert_eq!(own(&names).expect("safe"), Own::Unsettled(homes.to_vec()));
    drop(held);
    assert!(!settle(&names, &homes[..1]).expect("no error"), "there is another directory");
    assert_eq!(find(&dir, &names).expect("found"), names[0]);
}

#[test]
fn own_when_a_file_of_ours_has_the_name_then_taken_for_somebody_elses() {
    let (dir, names) = parent();
    // As by link(2) or rename(2) of another user.
    std::fs::write(&names[0], "").expect("written");
    assert_eq!(find(&dir, &names).expect("found"), names[1]);
}

#[test]
fn agree_when_another_user_takes_and_frees_names_then_all_ranks_find_one_home() {
    if !Uid::effective().is_root() {
        return println!("not run: agree_when_another_user_takes_and_frees_names: needs root");
    }
    for round in 0..60 {
        let (dir, names) = parent();
        let (is_over, start) = (AtomicBool::new(false), Barrier::new(17));
        let found: Vec<_> = std::thread::scope(|scope| {
            // Each rank's outcome is a value, so that nothing panics before it is over.
            // Of one, of few and of all names.
            let targets = &names[..[1, 4, NAMES - 1][round % 3]];
            scope.spawn(|| {
                assert!(becomes_mallory());
                start.wait();
                while !is_over.load(Ordering::Relaxed) {
                    targets.iter().for_each(|it| drop(make_directory(it)));
                    targets.iter().for_each(|it| drop(std::fs::remove_dir(it)));
                }
            });
            let rank = || {
                start.wait();
                find(&dir, &names)
            };
            let ranks: Vec<_> = (0..16).map(|_| scope.spawn(rank)).collect();
            let found = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
            is_over.store(true, Ordering::Relaxed);
            found
        });
        let found: Vec<_> = found.into_iter().map(|it: Result<_>| it.expect("a home")).collect();
        assert!(found.iter().all(|home| *home == found[0]), "round {round}: {found:?}");
    }
}
