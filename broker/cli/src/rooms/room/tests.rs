//! Rooms in a directory of the test: their locks, removal and safety.

use super::*;
use crate::private_broker::RuntimeDir;
use crate::rooms::home::Home;

fn home() -> (RuntimeDir, Home) {
    let dir = RuntimeDir::create().expect("a directory");
    let home = Home(dir.path().to_owned());
    (dir, home)
}

fn room(home: &Home, name: &str) -> Room {
    home.room(name).expect("made").expect("there")
}

fn file(room: &Room, name: &str) -> File {
    room.open(name).expect("opened").expect("there")
}

#[test]
fn is_current_when_the_room_was_removed_and_made_anew_then_not() {
    let (_dir, home) = home();
    let room = room(&home, "job-1-a");
    let gate = file(&room, GATE);
    assert!(room.is_current(&gate, GATE));
    room.remove();
    assert!(!room.is_current(&gate, GATE));
    assert!(room.open(GATE).expect("no error").is_none(), "no room, no file");
    home.room("job-1-a").expect("made").expect("there");
    let anew = file(&room, GATE);
    assert!(!room.is_current(&gate, GATE));
    assert!(room.is_current(&anew, GATE));
}

#[test]
fn sweep_when_any_lock_is_held_then_left_alone_else_removed() {
    let (_dir, home) = home();
    for name in [GATE, MEMBERS, KEEPER] {
        let room = room(&home, "job-1-a");
        let held = file(&room, name);
        assert!(try_lock(&held).expect("no error"));
        home.sweep(&["job-1-".into()]);
        assert!(room.path().exists(), "{name}");
        assert!(room.is_current(&held, name));
        drop(held);
        home.sweep(&["job-1-".into()]);
        assert!(!room.path().exists(), "{name}");
    }
}

#[test]
fn sweep_when_of_another_boot_then_left_alone_and_a_half_removed_one_goes() {
    let (_dir, home) = home();
    let others = room(&home, "job-2-a");
    let half = room(&home, "job-1-a.gone");
    drop(file(&half, GATE));
    home.sweep(&["job-1-".into()]);
    assert!(others.path().exists());
    assert!(!half.path().exists());
}

#[test]
fn remove_when_a_half_removed_one_is_in_the_way_then_both_go() {
    let (_dir, home) = home();
    drop(file(&room(&home, "job-1-a.gone"), GATE));
    room(&home, "job-1-a").remove();
    let left = std::fs::read_dir(&home.0).expect("there").flatten();
    assert_eq!(left.filter(|entry| entry.path().is_dir()).count(), 0);
}
