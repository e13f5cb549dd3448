//! `run --join` while another user has the name of the directory in which ranks meet, or takes and
//! frees such names. All ranks of a job must have one broker.

use crate::common::job::{MEMBER, Member, Node};
use crate::common::{Running, end};
use crate::shared::{as_user, not_run};
use std::collections::HashSet;
use std::fs::{Permissions, create_dir, remove_dir, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// A uid that no machine uses.
const MALLORY: u32 = 61_003;

/// Names that Mallory takes. More than that, and she has all.
const MANY: usize = 200;

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A node whose TMPDIR is for all users. `None`: this user cannot become another.
fn shared_node(name: &str, test: &str) -> Option<Node> {
    if !nix::unistd::Uid::effective().is_root() {
        not_run(test, "needs root, for another user");
        return None;
    }
    let node = Node::new(name);
    set_permissions(node.0.path(), Permissions::from_mode(0o1777)).expect("ours");
    Some(node)
}

/// The names in the order in which ranks try them. Not for a thread that is another user.
fn names(node: &Node) -> Vec<PathBuf> {
    assert!(nix::unistd::Uid::effective().is_root());
    let first = node.home().into_os_string().into_string().expect("UTF-8");
    let name = |number| match number {
        0 => first.clone().into(),
        _ => format!("{first}-{number}").into(),
    };
    (0..MANY).map(name).collect()
}

fn homes_of(node: &Node, uid: u32) -> Vec<PathBuf> {
    let is_its = |home: &PathBuf| home.symlink_metadata().is_ok_and(|found| found.uid() == uid);
    names(node).into_iter().filter(is_its).collect()
}

/// Waits for the end of the broker, wherever its directory is.
fn assert_left_clean(node: &Node) {
    node.wait_until_empty();
    for home in homes_of(node, 0) {
        let left: Vec<_> = std::fs::read_dir(&home).expect("there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn join_when_another_user_has_the_first_names_then_ranks_meet_at_the_next_whatever_it_frees_later()
{
    let Some(node) = shared_node("names-taken", "join_when_another_user_has_the_first_names")
    else {
        return;
    };
    let names = names(&node);
    let taken = &names[..3];
    as_user(MALLORY, || taken.iter().for_each(|it| create_dir(it).expect("free")));
    let first = Member::join(node.rank("a", MEMBER));
    as_user(MALLORY, || taken.iter().for_each(|it| remove_dir(it).expect("hers")));
    let second = Member::join(node.rank("a", MEMBER));
    assert_eq!(second.incarnation(), first.incarnation());
    as_user(MALLORY, || create_dir(&taken[1]).expect("free"));
    let third = Member::join(node.rank("a", MEMBER));
    assert_eq!(third.incarnation(), first.incarnation());
    assert_eq!(homes_of(&node, 0), names[3..4]);
    for member in [first, second, third] {
        assert_eq!(member.leave().0, Some(0));
    }
    assert_left_clean(&node);
}

#[test]
fn join_when_a_link_of_another_user_has_the_name_then_the_next_one() {
    let Some(node) = shared_node("names-link", "join_when_a_link_of_another_user") else { return };
    let (names, elsewhere) = (names(&node), node.0.path().join("elsewhere"));
    as_user(MALLORY, || {
        create_dir(&elsewhere).expect("free");
        std::os::unix::fs::symlink(&elsewhere, &names[0]).expect("free");
    });
    let member = Member::join(node.rank("a", MEMBER));
    assert_eq!(homes_of(&node, 0), names[1..2]);
    member.leave();
    assert_left_clean(&node);
}

#[test]
fn join_when_another_user_has_all_names_then_refused_with_its_uid_and_a_remedy() {
    let Some(node) = shared_node("names-all", "join_when_another_user_has_all_names") else {
        return;
    };
    let names = names(&node);
    as_user(MALLORY, || names.iter().for_each(|it| create_dir(it).expect("free")));
    let (code, stderr) = end(&Running::start(node.rank("a", "echo joined")).end());
    assert_eq!(code, Some(1), "{stderr}");
    for part in ["belong to uid 61003", "TMPDIR", node.home().to_str().expect("UTF-8")] {
        assert!(stderr.contains(part), "no `{part}` in: {stderr}");
    }
    // One that is free is enough.
    as_user(MALLORY, || remove_dir(&names[5]).expect("hers"));
    Member::join(node.rank("a", MEMBER)).leave();
}

#[test]
fn join_when_64_start_while_another_user_takes_and_frees_names_then_all_have_one_broker() {
    let Some(node) = shared_node("names-churn", "join_when_64_start_while_another_user") else {
        return;
    };
    let (names, is_over) = (names(&node), AtomicBool::new(false));
    let churn = || {
        as_user(MALLORY, || {
            let targets = &names[..8];
            while !is_over.load(Ordering::Relaxed) {
                targets.iter().for_each(|it| drop(create_dir(it)));
                targets.iter().for_each(|it| drop(remove_dir(it)));
            }
        });
    };
    std::thread::scope(|scope| {
        // Ends it however this ends.
        let _stop = Stop(&is_over);
        scope.spawn(churn);
        let ranks: Vec<_> = (0..64).map(|_| Running::start(node.rank("a", MEMBER))).collect();
        let members: Vec<_> = ranks.into_iter().map(Member::joined).collect();
        is_over.store(true, Ordering::Relaxed);
        let brokers: HashSet<_> = members.iter().map(|it| it.incarnation().to_owned()).collect();
        assert_eq!(brokers.len(), 1);
        // From now on nothing that she does changes it.
        as_user(MALLORY, || names.iter().for_each(|it| drop(create_dir(it))));
        let late = Member::join(node.rank("a", MEMBER));
        assert!(brokers.contains(late.incarnation()));
        members.into_iter().for_each(|it| drop(it.leave()));
        late.leave();
    });
    assert_left_clean(&node);
}
