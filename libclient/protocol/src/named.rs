//! Items with bytes behind them: a fixed part, then a name, then more. A message is walked once,
//! and all of it is checked before any item is given. Must never allocate, nor panic on any input.

use crate::codec::{DecodeError, Message};
use crate::limits::{
    DRIVER_DATA_BYTES, MAX_OBJECT_MESSAGE_BYTES, METADATA_BYTES, METADATA_IN_GOT_BYTES,
    NAME_OF_OBJECT_BYTES,
};
use crate::message::{GrantItem, Header};
use crate::object::{Named, ObjectGotHead, ObjectGotItem, ObjectPrefix};
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Whether these bytes can be the name of an object: 1 to 255 of UTF-8, none of them 0.
pub fn is_object_name(name: &[u8]) -> bool {
    (1..=NAME_OF_OBJECT_BYTES).contains(&name.len())
        && !name.contains(&0)
        && std::str::from_utf8(name).is_ok()
}

/// Items that have been checked, each with its name and the bytes behind it.
#[derive(Clone, Copy, Debug)]
pub struct NamedItems<'a, T> {
    left: &'a [u8],
    count: usize,
    of: PhantomData<T>,
}

/// The fixed part of an item, its name, and the bytes behind that.
type Parts<'a, T> = (&'a T, &'a [u8], &'a [u8]);

impl<'a, T: Named> NamedItems<'a, T> {
    /// The first item, and what is behind it; `None`: it is not whole, or not sound.
    fn split(bytes: &'a [u8]) -> Option<(Parts<'a, T>, &'a [u8])> {
        let (item, rest) = T::ref_from_prefix(bytes).ok()?;
        let (name, rest) = rest.split_at_checked(item.name_bytes())?;
        let (more, rest) = rest.split_at_checked(item.more_bytes())?;
        let is_sound = is_object_name(name) || T::MAY_BE_EMPTY && name.is_empty();
        (is_sound && more.len() <= METADATA_BYTES).then_some(((item, name, more), rest))
    }
}

impl<'a, T: Named + 'a> Iterator for NamedItems<'a, T> {
    type Item = Parts<'a, T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        let (item, rest) = Self::split(self.left)?;
        self.left = rest;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl<'a, T: Named + 'a> ExactSizeIterator for NamedItems<'a, T> {}

/// The answer to a get, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Got<'a> {
    /// One for each name.
    pub items: &'a [ObjectGotItem],
    /// One for each group.
    pub grants: &'a [GrantItem],
    /// Of those grants that have some, in their order.
    pub driver_data: &'a [[u8; DRIVER_DATA_BYTES]],
    /// Metadata of the items, one after the other: of each as much as it says is here.
    pub metadata: &'a [u8],
}

/// Bytes of an answer to a get of so many names in so many groups, of which so many have driver
/// data, without metadata.
pub const fn got_bytes(names: usize, grants: usize, blocks: usize) -> usize {
    size_of::<Header>()
        + size_of::<ObjectGotHead>()
        + names * size_of::<ObjectGotItem>()
        + grants * size_of::<GrantItem>()
        + blocks * DRIVER_DATA_BYTES
}

impl<'a> Message<'a> {
    /// The body as a head, then `count` items with the bytes behind each, and nothing else.
    pub fn head_and_named<H, T>(&self) -> Result<(&'a H, NamedItems<'a, T>), DecodeError>
    where
        H: FromBytes + KnownLayout + Immutable + Unaligned,
        T: Named,
    {
        self.check_object_size()?;
        let (head, rest) = self.head_and_rest::<H>()?;
        Ok((head, self.named_in(rest)?))
    }

    /// The body as `count` items with the bytes behind each, and nothing else.
    pub fn named<T: Named>(&self) -> Result<NamedItems<'a, T>, DecodeError> {
        self.check_object_size()?;
        self.named_in(self.body)
    }

    fn named_in<T: Named>(&self, bytes: &'a [u8]) -> Result<NamedItems<'a, T>, DecodeError> {
        let mut left = bytes;
        for at in 0..self.count {
            let (_, rest) = NamedItems::<T>::split(left).ok_or(DecodeError::Item(at))?;
            left = rest;
        }
        match left {
            [] => Ok(NamedItems { left: bytes, count: self.count, of: PhantomData }),
            _ => Err(DecodeError::Item(self.count)),
        }
    }

    /// The body of a list or a watch: the head, the prefix, and the name behind which the list goes
    /// on, which may be empty.
    pub fn prefix(&self) -> Result<(&'a ObjectPrefix, &'a [u8], &'a [u8]), DecodeError> {
        self.check_object_size()?;
        let (head, rest) = self.head_and_rest::<ObjectPrefix>()?;
        let parts = rest.split_at_checked(head.prefix_len.into());
        let (prefix, after) = parts.ok_or(DecodeError::Item(0))?;
        let is_name = |name: &[u8]| name.is_empty() || is_object_name(name);
        if is_name(after) && after.len() == usize::from(head.after_len) && self.count == 0 {
            // A prefix may end within a character.
            Ok((head, prefix, after))
        } else {
            Err(DecodeError::Item(0))
        }
    }

    /// The body of the answer to a get.
    pub fn got(&self) -> Result<Got<'a>, DecodeError> {
        self.check_object_size()?;
        let (head, rest) = self.head_and_rest::<ObjectGotHead>()?;
        let grants = usize::from(head.grants.get());
        let wrong = || DecodeError::Item(self.count);
        let (items, rest) =
            <[ObjectGotItem]>::ref_from_prefix_with_elems(rest, self.count).map_err(|_| wrong())?;
        let (grants, rest) =
            <[GrantItem]>::ref_from_prefix_with_elems(rest, grants).map_err(|_| wrong())?;
        let blocks = grants.iter().filter(|grant| grant.driver_data_len != 0).count();
        let (driver_data, metadata) =
            <[[u8; DRIVER_DATA_BYTES]]>::ref_from_prefix_with_elems(rest, blocks)
                .map_err(|_| wrong())?;
        let here: usize = items.iter().map(|item| usize::from(item.metadata_here)).sum();
        let are_sound = items.iter().all(|item| {
            let here = u16::from(item.metadata_here);
            usize::from(item.grant.get()) < grants.len()
                && (here == 0 || here == item.metadata_len.get())
                && usize::from(here) <= METADATA_IN_GOT_BYTES
        });
        if are_sound && here == metadata.len() {
            Ok(Got { items, grants, driver_data, metadata })
        } else {
            Err(wrong())
        }
    }

    fn check_object_size(&self) -> Result<(), DecodeError> {
        match size_of::<Header>() + self.body.len() {
            bytes if bytes > MAX_OBJECT_MESSAGE_BYTES => Err(DecodeError::TooLong(bytes)),
            _ => Ok(()),
        }
    }
}
