//! Unit tests of `src/addresses.rs`, which is not public.

use super::*;

/// Both answer the same, and no chunk is empty, full beyond its size, or out of order.
fn assert_same(addresses: &Addresses, model: &BTreeMap<Place, u32>) {
    let mut all = Vec::new();
    for (key, chunk) in &addresses.chunks {
        assert!((1..=ADDRESSES_PER_CHUNK).contains(&chunk.len()));
        let place = |at: &[u32; 3]| (key.0, u64::from(at[0]) << 32 | u64::from(at[1]));
        assert!(*key <= place(&chunk[0]) && all.last().is_none_or(|(last, _)| last < key));
        all.extend(chunk.iter().map(|at| (place(at), at[2])));
    }
    assert!(all.iter().copied().eq(model.iter().map(|(place, slot)| (*place, *slot))));
}

#[test]
fn addresses_when_changed_at_random_then_as_a_sorted_map() {
    let (mut addresses, mut model) = (Addresses::default(), BTreeMap::new());
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..60_000u32 {
        // Fills, and then empties; the upper half of some addresses differs.
        let place = (random(2) as u32, (random(3_000) << 28) + 1);
        match random(10) < if round % 20_000 < 12_000 { 7 } else { 2 } {
            true => {
                let is_new = addresses.insert(place, round);
                assert_eq!(is_new, !model.contains_key(&place));
                model.entry(place).or_insert(round);
            }
            false => assert_eq!(addresses.remove(place), model.remove(&place)),
        }
        assert_eq!(addresses.get(place), model.get(&place).copied());
        let end = (place.0, place.1 + random(1 << 30));
        let last = model.range((end.0, 0)..end).next_back().map(|(_, slot)| *slot);
        assert_eq!(addresses.last_before(end), last);
        if round % 500 == 0 {
            assert_same(&addresses, &model);
        }
    }
    while let Some((place, slot)) = model.pop_first() {
        assert_eq!(addresses.remove(place), Some(slot));
    }
    assert!(addresses.is_empty());
}

#[test]
fn addresses_when_in_order_then_chunks_are_full_and_when_most_go_then_merged() {
    let count = 40 * ADDRESSES_PER_CHUNK as u64;
    for down in [false, true] {
        let mut addresses = Addresses::default();
        for number in 0..count {
            let address = if down { count - number } else { number + 1 };
            assert!(addresses.insert((0, address), 1));
        }
        assert_eq!(addresses.chunks.len(), 40);
        (1..=count).filter(|at| at % 64 != 0).for_each(|at| {
            assert!(addresses.remove((0, at)).is_some());
        });
        assert!(addresses.chunks.len() <= 4, "{}", addresses.chunks.len());
    }
}
