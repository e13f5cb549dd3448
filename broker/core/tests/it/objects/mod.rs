//! Named objects, rule by rule: what a world can do with them, for the tests of the files below.

use super::*;
use fdbroker_core::{Body, Create, GotObject, GroupId, Inherits, NewObject};
use fdbroker_protocol::object::ObjectState;

mod charges;
mod ending;
mod evicting;
mod getting;
mod keeping;
mod kept;
mod making;
mod watching;

/// Bytes of the memory of a group.
const SIZE: u64 = 4096;

/// An object without metadata at the begin of its group.
fn object(name: &str) -> NewObject<'_> {
    let (offset, size_bytes, expect, metadata) = (0, 64, None, &b""[..]);
    NewObject { name: name.as_bytes(), offset, size_bytes, expect, metadata }
}

fn create<'a>(objects: &'a [NewObject<'a>]) -> Create<'a> {
    Create {
        of_job: false,
        replace: false,
        keep_us: None,
        pin: false,
        inherits: Inherits::default(),
        outlives: false,
        evictable: false,
        deposit: arrived(sized(SIZE, deposit(0))),
        credits_wanted: 0,
        objects,
    }
}

/// What a get came to.
#[derive(Debug, PartialEq)]
enum Got {
    Objects(Vec<GotObject>, Vec<Granted>),
    Failed(Status),
    Waits,
}

impl Got {
    fn versions(&self) -> Vec<u64> {
        match self {
            Got::Objects(objects, _) => objects.iter().map(|object| object.version).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn grants(&self) -> &[Granted] {
        match self {
            Got::Objects(_, grants) => grants,
            other => panic!("{other:?}"),
        }
    }

    fn error(&self) -> ErrorCode {
        match self {
            Got::Failed(status) => status.result().expect_err("it failed"),
            other => panic!("{other:?}"),
        }
    }
}

impl World {
    fn create_with(&mut self, client: ClientId, create: &Create<'_>) -> Result<GroupId, Status> {
        let request = self.request();
        let effects = self.step(Body::CreateObjects { create }.by(client, request));
        let answer = effects.iter().find_map(|effect| match effect {
            Effect::ObjectsCreated { group, .. } => Some(Ok(*group)),
            Effect::Failed { status, .. } => Some(Err(*status)),
            _ => None,
        });
        answer.expect("an answer")
    }

    /// Begins a group of these objects.
    fn create(&mut self, client: ClientId, names: &[&str]) -> GroupId {
        let objects: Vec<_> = names.iter().map(|name| object(name)).collect();
        self.create_with(client, &create(&objects)).expect("begun")
    }

    fn seal(&mut self, client: ClientId, group: GroupId) -> Result<u64, Status> {
        self.seal_checked(client, group, Ok(()))
    }

    fn seal_checked(
        &mut self,
        client: ClientId,
        group: GroupId,
        checked: Result<(), Status>,
    ) -> Result<u64, Status> {
        let request = self.request();
        let effects = self.step(Body::SealObjects { group, checked }.by(client, request));
        let answer = effects.iter().find_map(|effect| match effect {
            Effect::ObjectsSealed { version, .. } => Some(Ok(*version)),
            Effect::Failed { request: of, status, .. } if *of == request => Some(Err(*status)),
            _ => None,
        });
        answer.expect("an answer")
    }

    /// Begins and seals a group of these objects; its version.
    fn put(&mut self, client: ClientId, names: &[&str]) -> u64 {
        let group = self.create(client, names);
        self.seal(client, group).expect("sealed")
    }

    fn abort(&mut self, client: ClientId, group: GroupId) -> Status {
        let request = self.request();
        self.step(Body::AbortObjects { group }.by(client, request));
        self.fx.statuses[0]
    }

    fn ask(&mut self, client: ClientId, names: &[&str], ms: u64) -> (RequestId, Got) {
        let (request, deadline) = (self.request(), Now(self.now.0 + ms * MS));
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let (of_job, names) = (false, &names[..]);
        let effects = self.step(Body::GetObjects { of_job, names, deadline }.by(client, request));
        (request, self.got(&effects, request))
    }

    /// A get that does not wait.
    fn get(&mut self, client: ClientId, names: &[&str]) -> Got {
        self.ask(client, names, 0).1
    }

    /// What these effects say of a get.
    fn got(&self, effects: &[Effect], request: RequestId) -> Got {
        let answer = effects.iter().find_map(|effect| match effect {
            Effect::ObjectsGot { request: of, objects, grants, .. } if *of == request => {
                let grants = self.fx.granted[grants.clone()].to_vec();
                Some(Got::Objects(self.fx.objects[objects.clone()].to_vec(), grants))
            }
            Effect::Failed { request: of, status, .. } if *of == request => {
                Some(Got::Failed(*status))
            }
            _ => None,
        });
        answer.unwrap_or(Got::Waits)
    }

    fn names(&self, client: ClientId, prefix: &str) -> Vec<String> {
        let all = self.core.names_for(client, false, prefix.as_bytes(), b"").expect("a domain");
        let all = all.filter_map(|(name, view)| view.map(|_| name.to_vec()));
        all.map(|name| String::from_utf8(name).expect("UTF-8")).collect()
    }

    /// Polls until nothing is left over.
    fn settle(&mut self) {
        while self.core.poll_timeout() == Some(Now(0)) {
            self.at(self.now.0 / MS);
        }
    }
}
