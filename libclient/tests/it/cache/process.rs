//! fork(2), which changes a whole process. The test starts itself again in a process of its own,
//! which runs the `child_` function with the broker of this process.

use super::broker::*;
use crate::shared::full_name;
use crate::support::*;
use fdbroker_client::{Access, Client, Deadline, ErrorCode, ImportCache};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};

/// The variable that is set in the process that the test starts.
const CHILD: &str = "FDBROKER_TEST_CHILD";

#[test]
fn fork_when_imported_then_the_child_has_no_hit_and_the_parent_is_undisturbed() {
    if std::env::var_os(CHILD).is_some() {
        return child_that_forks();
    }
    let test = "fork_when_imported_then_the_child_has_no_hit_and_the_parent_is_undisturbed";
    let broker = FakeBroker::listen();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test)])
        .env("FDBROKER_SOCKET", &broker.path)
        .env(CHILD, "1")
        // Its result line must not count as one more test.
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let granting = Granting::start(broker.accept(Terms::default()));
    assert!(child.wait().unwrap().success());
    granting.log(|log| {
        // The parent acquired 1 and 2 before the fork and 3 after it; the child sent nothing.
        let asked: Vec<u32> = log.acquires.concat().iter().map(|id| id.slot).collect();
        assert_eq!(asked, [1, 2, 3]);
        assert!(log.released.concat().len() <= 3);
    });
}

fn child_that_forks() {
    let client = Client::connect().unwrap();
    let cache = ImportCache::new(&client, unbounded().print_stats(true));
    let import = |slot| cache.import(&handle(slot), Access::Read, soon());
    let used = import(1).unwrap();
    drop(import(2).unwrap());
    // SAFETY: the child only calls this library and _exit; glibc's allocator survives a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = catch_unwind(AssertUnwindSafe(|| {
                for slot in [1, 2, 3] {
                    assert!(cache.hit(&handle(slot), Access::Read).is_none());
                    let late = Deadline::from_ms(1000);
                    let error = cache.import(&handle(slot), Access::Read, late).unwrap_err();
                    assert_eq!(error.code, ErrorCode::NotConnected);
                }
                assert!(!used.is_current());
                let error = used.read_at(0, &mut [0]).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotConnected);
                assert_eq!(cache.empty(), 0);
            }));
            let pin = used.into_pin();
            let drops = catch_unwind(AssertUnwindSafe(|| {
                cache.release(pin).unwrap();
                drop(cache);
                drop(client);
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err() || drops.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(used.is_current() && cache.hit(&handle(2), Access::Read).is_some());
    assert_bytes(&used, 1);
    assert_bytes(&import(3).unwrap(), 3);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.pinned), (3, 1));
}
