//! Unit tests of `src/slots.rs`, which is not public.

use super::*;

impl Flat for u8 {
    fn flat(&self) -> Self {
        *self
    }
}

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
    let mut restored = Slots::restore(8, 0, slots.save(|_| true)).expect("sound");
    assert_eq!(restored.note(3, LAST_GENERATION), Some(4));
    for _ in 0..8 {
        assert_eq!(restored.insert(1), slots.insert(1));
    }
}

#[test]
fn save_when_a_value_is_not_to_be_kept_then_its_slot_is_free_and_comes_first() {
    let mut slots = Slots::new(8, 1, 0);
    (0..4).for_each(|value| assert!(slots.insert(value).is_some()));
    slots.remove(0);
    let mut restored = Slots::restore(8, 0, slots.save(|value| *value != 2)).expect("sound");
    assert_eq!(restored.iter_from(0).map(|(slot, _)| slot).collect::<Vec<_>>(), [1, 3]);
    assert_eq!([9; 3].map(|value| restored.insert(value)), [(2, 2), (0, 2), (4, 1)].map(Some));
}

#[test]
fn restore_when_damaged_then_refused() {
    let mut slots = Slots::new(8, 1, 0);
    (0..3).for_each(|value| assert!(slots.insert(value).is_some()));
    [2, 0].into_iter().for_each(|slot| assert!(slots.remove(slot) < 3));
    let sound = slots.save(|_| true);
    fn free(next: u32) -> Content<u8> {
        Content::Free { next, note: 0 }
    }
    let damages: [fn(&mut SavedSlots<u8>); 9] = [
        |saved| saved.first_generation = 0,
        |saved| saved.free_head = 1,
        |saved| saved.free_head = 9,
        |saved| saved.free_head = 0,
        |saved| saved.entries[1].generation = 0,
        |saved| saved.entries[1].generation = LAST_GENERATION + 1,
        |saved| saved.entries[0].generation = LAST_GENERATION,
        |saved| saved.entries[0].content = free(2),
        |saved| saved.entries[1].content = free(NONE),
    ];
    assert!(Slots::restore(8, 0, sound.clone()).is_ok());
    assert!(Slots::restore(2, 0, sound.clone()).is_err(), "more slots than there may be");
    for (number, damage) in damages.into_iter().enumerate() {
        let mut saved = sound.clone();
        damage(&mut saved);
        assert!(Slots::restore(8, 0, saved).is_err(), "damage {number}");
    }
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
