//! Unit tests of `src/slots.rs`, which is not public.

use super::*;

type Restored = Result<Slots<u8>, (&'static str, u64)>;

#[test]
fn holding_when_given_pairs_then_never_gives_one_of_them_again() {
    let all = [(1, 3, Ok('a')), (2, 5, Err(7)), (3, 8, Ok('b'))];
    let mut slots = Slots::holding(4, 9, 0, all.into_iter()).expect("fits");
    assert_eq!(slots.get(1, 3), Some(&'a'));
    assert_eq!((slots.note(2, 5), slots.note(2, 4), slots.note(1, 3)), (Some(7), None, None));
    slots.remove(1);
    assert_eq!(slots.insert('c'), Some((0, 9)));
    assert_eq!(slots.insert('d'), Some((2, 9)));
    assert_eq!(slots.insert('e'), Some((1, 9)));
    assert_eq!(slots.insert('f'), None);
}

#[test]
fn holding_when_pairs_are_no_former_ones_then_refused() {
    for pairs in
        [[(1, 3), (1, 4)], [(2, 3), (1, 3)], [(1, 9), (2, 3)], [(1, 0), (2, 3)], [(1, 3), (4, 3)]]
    {
        let values = pairs.into_iter().map(|(slot, generation)| (slot, generation, Ok(())));
        assert!(Slots::holding(4, 9, 0, values).is_none(), "{pairs:?}");
    }
}

#[test]
fn restore_when_saved_then_gives_the_same_slots_in_the_same_order() {
    let mut slots = Slots::new(8, LAST_GENERATION - 1, 0);
    (0..5).for_each(|value| assert!(slots.insert(value).is_some()));
    [3, 1, 4].into_iter().for_each(|slot| assert!(slots.remove(slot) < 5));
    assert!(slots.insert(7).is_some());
    slots.remove_noting(3, 4);
    let saved = slots.save(|_, value| *value);
    assert_eq!(saved.notes, [(3, 4)]);
    let restored: Restored = Slots::restore(8, 0, saved.clone(), |_, value| Ok(value));
    let mut restored = restored.expect("sound");
    assert_eq!(restored.save(|_, value| *value), saved);
    for _ in 0..8 {
        assert_eq!(restored.insert(1), slots.insert(1));
    }
}

#[test]
fn restore_when_damaged_then_refused() {
    let sound = SavedSlots {
        first_generation: 1,
        generations: vec![2, 1, 1],
        free: vec![0, 2],
        full: vec![(1, 5u8)],
        notes: vec![(2, 4)],
    };
    let damages: [fn(&mut SavedSlots<u8>); 11] = [
        |saved| saved.notes = vec![(1, 4)],
        |saved| saved.notes = vec![(3, 4)],
        |saved| saved.first_generation = 0,
        |saved| saved.generations[1] = 0,
        |saved| saved.free = vec![0, 2, 2],
        |saved| saved.free = vec![0, 0],
        |saved| saved.free = vec![0, 1],
        |saved| saved.free = vec![0, 9],
        |saved| saved.free = vec![0],
        |saved| saved.full = vec![(7, 5)],
        |saved| saved.full = vec![(1, 5), (1, 5)],
    ];
    let restore = |saved| -> Restored { Slots::restore(8, 0, saved, |_, value| Ok(value)) };
    assert!(restore(sound.clone()).is_ok());
    for (number, damage) in damages.into_iter().enumerate() {
        let mut saved = sound.clone();
        damage(&mut saved);
        assert!(restore(saved).is_err(), "damage {number}");
    }
}

#[test]
fn insert_when_several_are_free_then_takes_the_oldest() {
    let mut slots = Slots::new(8, 1, 0);
    for value in 0..4 {
        assert_eq!(slots.insert(value), Some((value, 1)));
    }
    slots.remove(2);
    slots.remove(0);
    assert_eq!(slots.insert(7), Some((2, 2)));
    assert_eq!(slots.insert(8), Some((0, 2)));
    assert_eq!(slots.insert(9), Some((4, 1)));
}

#[test]
fn insert_when_fewer_than_the_spread_were_used_then_takes_a_new_one() {
    let mut slots = Slots::new(8, 1, 3);
    let used: Vec<_> = (0..7)
        .map(|value| {
            let (slot, generation) = slots.insert(value).expect("room");
            slots.remove(slot);
            (slot, generation)
        })
        .collect();
    assert_eq!(used, [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2), (0, 3)]);
}

#[test]
fn insert_when_several_segments_are_used_then_each_value_is_found() {
    let mut slots = Slots::new(NONE, 1, 0);
    let count = 3 * (1 << Slots::<u64>::SEGMENT) + 5;
    for value in 0..count {
        assert_eq!(slots.insert(u64::from(value)), Some((value, 1)));
    }
    assert!(slots.iter_from(0).eq((0..count).map(|slot| (slot, &slots[slot]))));
    assert!((0..count).all(|slot| slots[slot] == u64::from(slot)));
    assert_eq!((slots.get(count, 1), slots.slots()), (None, count));
}

#[test]
fn get_when_the_generation_is_old_then_none() {
    let mut slots = Slots::new(8, 5, 0);
    let (slot, generation) = slots.insert('a').expect("room");
    slots.remove(slot);
    slots.insert('b').expect("room");
    assert_eq!(slots.get(slot, generation), None);
    assert_eq!(slots.get(slot, generation + 1), Some(&'b'));
}

#[test]
fn remove_when_the_generation_is_used_up_then_the_slot_is_retired() {
    let mut slots = Slots::new(1, LAST_GENERATION, 0);
    let (slot, generation) = slots.insert(1).expect("room");
    assert_eq!(generation, LAST_GENERATION);
    slots.remove(slot);
    assert_eq!(slots.insert(2), None);
    assert!(!slots.has_room());
}
