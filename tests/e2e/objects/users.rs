//! Users and jobs: names belong to the domain, or to the job where that is asked for. What others
//! have cannot be told from what does not exist.

use super::maker::{JOB, KEEP};
use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::peer::Peer;
use crate::support::wait::eventually;
use std::path::{Path, PathBuf};

/// Two users.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

fn maker_of(broker: &Broker, uid: u32) -> Peer {
    let mut peer = Peer::start("maker");
    assert_eq!(peer.ask(&format!("user {uid}")), "OK");
    assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
    peer
}

#[test]
fn name_when_it_is_another_users_then_like_one_that_is_unknown() {
    const NAME: &str = "name_when_it_is_another_users_then_like_one_that_is_unknown";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "other users' processes need root");
    }
    let broker = Setup::new().service().start();
    let (mut alice, mut bob) = (maker_of(&broker, ALICE), maker_of(&broker, BOB));
    alice.ask(&format!("put secret of-alice {KEEP}")).parse::<u64>().expect("a version");
    assert_eq!(alice.ask("begin half of-alice 0"), "OK");
    for name in ["secret", "half", "unknown"] {
        assert_eq!(bob.ask(&format!("read {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("delete {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("pin {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("late {name}")), "TIMED_OUT 0", "nobody is named");
    }
    assert_eq!(bob.ask("list"), "0");
    // The name is free for another user.
    bob.ask("put secret of-bob 0").parse::<u64>().expect("a version");
    assert_eq!(bob.ask("read secret"), "of-bob");
    assert_eq!(alice.ask("read secret"), "of-alice");
    assert_eq!(bob.ask("delete secret"), "OK");
    // Another process of the same user has it, and may end it.
    alice.kill();
    let mut other = maker_of(&broker, ALICE);
    assert_eq!(other.ask("read secret"), "of-alice");
    assert_eq!(other.ask("delete secret"), "OK");
    assert_eq!(other.ask("read half"), "NOT_FOUND");
    drop((bob, other));
    broker.assert_nothing_left();
}

/// Two cgroups like those of two pods, which are two jobs.
struct Jobs(PathBuf);

impl Jobs {
    /// `None`: this process may make no cgroups.
    fn make() -> Option<Jobs> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(Path::new);
        let root = roots.into_iter().find(|it| it.join("cgroup.procs").exists())?;
        let jobs = Jobs(root.join(format!("fdbroker-test-{}/kubepods", std::process::id())));
        let made = ["pod1", "pod2"].map(|name| std::fs::create_dir_all(jobs.0.join(name)).is_ok());
        made.into_iter().all(|it| it).then_some(jobs)
    }

    /// A process of this job.
    fn maker(&self, broker: &Broker, job: &str) -> Peer {
        let mut peer = Peer::start("maker");
        assert_eq!(peer.ask(&format!("join {}", self.0.join(job).display())), "OK");
        assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
        peer
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        let above = self.0.parent().expect("it has one");
        for folder in [&self.0.join("pod1"), &self.0.join("pod2"), &self.0, above] {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[test]
fn name_when_it_is_a_jobs_then_apart_from_other_jobs_and_the_users_and_gone_with_its_maker() {
    const NAME: &str =
        "name_when_it_is_a_jobs_then_apart_from_other_jobs_and_the_users_and_gone_with_its_maker";
    let Some(jobs) = Jobs::make() else {
        return not_run(NAME, "no cgroups can be made");
    };
    let broker = Broker::start();
    let [mut one, mut same, mut other] =
        ["pod1", "pod1", "pod2"].map(|job| jobs.maker(&broker, job));
    let of_job = format!("read name {JOB}");
    one.ask(&format!("put name of-one {JOB}")).parse::<u64>().expect("a version");
    assert_eq!(other.ask(&of_job), "NOT_FOUND");
    assert_eq!(same.ask("read name"), "NOT_FOUND");
    other.ask(&format!("put name of-other {JOB}")).parse::<u64>().expect("another name");
    other.ask(&format!("put name of-user {KEEP}")).parse::<u64>().expect("another name");
    assert_eq!([same.ask(&of_job), same.ask("read name")], ["of-one", "of-user"]);
    assert_eq!([other.ask(&of_job), other.ask("read name")], ["of-other", "of-user"]);
    assert_eq!(one.ask(&format!("put kept x {}", JOB | KEEP)), "NOT_SUPPORTED");
    one.kill();
    eventually("it goes with its maker", || same.ask(&of_job) == "NOT_FOUND");
    assert_eq!(other.ask(&of_job), "of-other");
    other.kill();
    assert_eq!(same.ask("read name"), "of-user", "what a job keeps for its user stays");
    assert_eq!(same.ask("delete name"), "OK");
    drop((one, same, other));
    broker.assert_nothing_left();
}
