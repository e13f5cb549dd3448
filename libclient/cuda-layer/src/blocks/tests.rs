//! The blocks' rules, without driver and broker. Must never need either.

use super::*;

const HERE: CuContext = 100;
const THERE: CuContext = 200;
const NAME: Name = [7; 32];

fn block(base: CuDevicePtr, context: CuContext, device: c_int) -> Block {
    Block { base, size_bytes: 4096, asked_bytes: 4000, twin: base + 1, context, device }
}

fn made(blocks: &mut Blocks<bool>, base: CuDevicePtr) -> Vec<c_int> {
    blocks.enter(block(base, HERE, 0), Origin::Made(base + 2), &[0])
}

fn opened(blocks: &mut Blocks<bool>, base: CuDevicePtr, context: CuContext) {
    let origin = Origin::Opened { name: NAME, opens: 1, lease: true };
    assert_eq!(blocks.enter(block(base, context, 0), origin, &[0]), vec![]);
}

#[test]
fn at_when_inside_what_was_asked_for_then_the_block() {
    let mut blocks = Blocks::default();
    made(&mut blocks, 8192);
    let base_at = |blocks: &Blocks<bool>, at| blocks.at(at).map(|(block, _)| block.base);
    assert_eq!([8191, 8192, 12191, 12192].map(|at| base_at(&blocks, at)), {
        [None, Some(8192), Some(8192), None]
    });
    assert_eq!(blocks.take_made(8193), None);
    assert_eq!(blocks.take_made(8192), Some((block(8192, HERE, 0), 8194)));
    assert_eq!(blocks.take_made(8192), None);
}

#[test]
fn open_again_when_open_in_this_context_then_the_same_address_counted() {
    let mut blocks = Blocks::default();
    opened(&mut blocks, 8192, HERE);
    assert_eq!(blocks.open_again(NAME, THERE, |_| true), None);
    assert_eq!(blocks.open_again([8; 32], HERE, |_| true), None);
    assert_eq!(blocks.open_again(NAME, HERE, |_| false), None);
    assert_eq!(blocks.open_again(NAME, HERE, |_| true), Some(8192));
    assert_eq!(blocks.close(8193), End::Drivers);
    assert_eq!(blocks.close(8192), End::Counted);
    let origin = Origin::Opened { name: NAME, opens: 1, lease: true };
    assert_eq!(blocks.close(8192), End::Last(block(8192, HERE, 0), origin));
    assert_eq!(blocks.close(8192), End::Drivers);
    assert_eq!(blocks.open_again(NAME, HERE, |_| true), None);
}

#[test]
fn close_and_take_when_it_is_of_the_other_kind_then_the_drivers() {
    let mut blocks = Blocks::default();
    made(&mut blocks, 8192);
    opened(&mut blocks, 65536, HERE);
    assert_eq!(blocks.close(8192), End::Drivers);
    assert_eq!(blocks.take_made(65536), None);
}

#[test]
fn enter_when_others_reach_the_context_then_they_are_told() {
    let mut blocks = Blocks::default();
    assert_eq!(made(&mut blocks, 8192), vec![]);
    let [first, second] = [(THERE, 1), (300, 1)].map(|(by, device)| Peer { by, device, of: HERE });
    assert_eq!(blocks.enable(first), vec![block(8192, HERE, 0)]);
    assert_eq!(blocks.enable(second), vec![block(8192, HERE, 0)]);
    assert_eq!(made(&mut blocks, 65536), vec![1]);
    // The other context of the same device reaches them still.
    assert_eq!(blocks.disable(first), vec![]);
    assert_eq!(blocks.disable(second).len(), 2);
    assert_eq!(made(&mut blocks, 131_072), vec![]);
    // Its own device is never shut out.
    let own = Peer { by: 400, device: 0, of: HERE };
    blocks.enable(own);
    assert_eq!(blocks.disable(own), vec![]);
}

#[test]
fn end_context_when_it_had_blocks_then_all_and_whom_it_reached() {
    let mut blocks = Blocks::default();
    made(&mut blocks, 8192);
    opened(&mut blocks, 65536, HERE);
    opened(&mut blocks, 131_072, THERE);
    blocks.enable(Peer { by: HERE, device: 0, of: THERE });
    blocks.enable(Peer { by: THERE, device: 1, of: HERE });
    assert_eq!(blocks.contexts_of(0), vec![HERE, THERE]);
    let ended = blocks.end_context(HERE);
    assert_eq!(ended.iter().map(|(block, _)| block.base).collect::<Vec<_>>(), vec![8192, 65536]);
    assert_eq!(blocks.open_again(NAME, HERE, |_| true), None);
    assert_eq!(blocks.open_again(NAME, THERE, |_| true), Some(131_072));
    assert!(blocks.peers.is_empty());
}

#[test]
fn context_when_it_has_ended_then_its_value_begins_anew() {
    let mut blocks = Blocks::<&str>::default();
    assert_eq!([1, 1, 2].map(|context| blocks.is_first_in(context)), [true, false, true]);
    blocks.end_context(1);
    assert_eq!([1, 2].map(|context| blocks.is_first_in(context)), [true, false]);
}
