//! Acts upon named objects. Must never pin a group: an input ends with everything gone by itself,
//! and pinned groups stay. The simulator (tests/sim) has them.

use super::{World, arrived};
use crate::bytes::Bytes;
use fdbroker_core::{
    Body, ClientId, Create, Deleted, GroupId, Inherits, NewObject, RequestId, Touch,
};
use fdbroker_protocol::ErrorCode;

/// Few, so that makers and readers meet; one begins like another, and one is as long as may be.
const NAMES: [&[u8]; 5] = [b"a", b"a/b", b"b", "ä".as_bytes(), &[b'x'; 255]];
const METADATA: [u8; 4080] = [7; 4080];

impl World {
    pub(super) fn objects(&mut self, client: ClientId, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let of_job = what & 128 != 0;
        let request = self.request(client, bytes);
        match what & 15 {
            0..=3 => self.create(client, request, what, bytes),
            4 => {
                let (group, objects) = (self.group(bytes), at_least_one(bytes, new_object));
                self.step(Body::AddObjects { group, objects: &objects }.by(client, request), 0);
            }
            5..=7 => {
                let group = self.group(bytes);
                let checked = match bytes.u8() & 7 {
                    7 => Err(ErrorCode::SealedBusy.into()),
                    _ => Ok(()),
                };
                self.step(Body::SealObjects { group, checked }.by(client, request), 0);
            }
            8 => {
                let group = self.group(bytes);
                self.step(Body::AbortObjects { group }.by(client, request), 0);
            }
            9..=11 => {
                let (names, deadline) = (at_least_one(bytes, name), self.deadline(bytes));
                let names = &names;
                self.step(Body::GetObjects { of_job, names, deadline }.by(client, request), 0);
            }
            12 => {
                let deleted = |bytes: &mut Bytes<'_>| {
                    let version = (bytes.u8() & 3).into();
                    Deleted { name: name(bytes), version }
                };
                let objects = &at_least_one(bytes, deleted);
                self.step(Body::DeleteObjects { of_job, objects }.by(client, request), 0);
            }
            13 => {
                let keep_us = bytes.bool().then(|| bytes.u16().into());
                let pin = bytes.bool().then_some(false);
                let names = &at_least_one(bytes, name);
                let touch = &Touch { of_job, keep_us, pin, names };
                self.step(Body::TouchObjects { touch }.by(client, request), 0);
            }
            _ => {
                let (is_wanted, prefix) = (what & 16 == 0, name(bytes));
                let prefix = &prefix[..prefix.len().min((bytes.u8() & 3).into())];
                let input = Body::WatchObjects { of_job, prefix, is_wanted }.by(client, request);
                self.step(input, 0);
            }
        }
    }

    fn create(&mut self, client: ClientId, request: RequestId, what: u8, bytes: &mut Bytes<'_>) {
        let objects = &at_least_one(bytes, new_object);
        let create = &Create {
            of_job: what & 128 != 0,
            replace: what & 16 != 0,
            keep_us: (what & 32 != 0).then(|| bytes.u16().into()),
            pin: false,
            inherits: Inherits { keep: what & 8 != 0, pin: what & 8 != 0 },
            outlives: what & 40 == 40,
            evictable: what & 64 != 0,
            deposit: arrived(bytes),
            credits_wanted: bytes.u8().into(),
            objects,
        };
        self.step(Body::CreateObjects { create }.by(client, request), 1);
    }

    /// One that was begun, or any number.
    fn group(&mut self, bytes: &mut Bytes<'_>) -> GroupId {
        let known = bytes.one_of(&self.groups);
        match bytes.u8() {
            0 => GroupId(bytes.u64()),
            _ => known.unwrap_or(GroupId(0)),
        }
    }
}

fn name(bytes: &mut Bytes<'_>) -> &'static [u8] {
    NAMES[bytes.below(NAMES.len())]
}

fn new_object(bytes: &mut Bytes<'_>) -> NewObject<'static> {
    let what = bytes.u8();
    NewObject {
        name: name(bytes),
        offset: u64::from(what & 3) * 256,
        size_bytes: u64::from(what >> 2 & 3) * 256,
        expect: (what & 16 != 0).then(|| (bytes.u8() & 3).into()),
        metadata: &METADATA[..usize::from(bytes.u8()) << (what >> 5 & 4)],
    }
}

/// One to eight.
fn at_least_one<T>(bytes: &mut Bytes<'_>, one: impl Fn(&mut Bytes<'_>) -> T) -> Vec<T> {
    let count = 1 + (bytes.u8() & 7);
    (0..count).map(|_| one(bytes)).collect()
}
