//! Unit tests of `src/lists.rs`, which is not public.

use super::*;

struct Links(Vec<Link>);

impl Nodes for Links {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node as usize]
    }
}

#[test]
fn list_when_pushed_and_removed_anywhere_then_keeps_order() {
    let mut links = Links(vec![Link::OUT; 5]);
    let mut list = List::EMPTY;
    (0..5).for_each(|node| list.push(&mut links, node));
    for (gone, left) in [(2, vec![0, 1, 3, 4]), (0, vec![1, 3, 4]), (4, vec![1, 3])] {
        list.remove(&mut links, gone);
        assert_eq!(list.checked(&mut links), left);
        assert!(!links.0[gone as usize].is_in());
    }
    list.push(&mut links, 0);
    assert_eq!((list.pop(&mut links), list.pop(&mut links)), (Some(1), Some(3)));
    assert_eq!((list.pop(&mut links), list.pop(&mut links)), (Some(0), None));
    assert_eq!(list, List::EMPTY);
}

#[test]
#[should_panic(expected = "in the list already")]
fn push_when_in_the_list_then_panics() {
    let mut links = Links(vec![Link::OUT; 1]);
    let mut list = List::EMPTY;
    list.push(&mut links, 0);
    list.push(&mut links, 0);
}
