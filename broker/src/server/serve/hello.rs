//! A client's first message. Must never let in a client that speaks another version.

use crate::clients::connection::{Connection, Phase, index};
use crate::limits::WORK_PER_WAKE;
use crate::messages::requests::{self, Breach};
use crate::server::parts::Server;
use fdbroker_core::{Body, ClientId, Input, OwnerKey, RequestId};
use fdbroker_protocol::Kind;
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::message::{HELLO_MAGIC, Hello, PROTOCOL_VERSION};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

impl Server {
    /// Takes the first message, which says who the client is.
    pub(super) fn take_hello(
        &mut self,
        client: ClientId,
        message: &Message<'_>,
    ) -> Result<(), Breach> {
        let hello = check_hello(message, &self.connections[index(client)])?;
        self.connections.advance(index(client), Phase::Greeted);
        self.connections[index(client)].name = hello.name;
        let (own_fds, max_held_fds) = (hello.own_fds.get(), hello.max_held_fds.get());
        let deadline = requests::deadline(self.now, hello.deadline_ms.get());
        // The answer takes as long as a whole turn.
        self.schedule.spend(WORK_PER_WAKE);
        self.identify(client, hello.key.get().into());
        if max_held_fds != 0 {
            self.step(Input::BoundHeld { client, fds: max_held_fds });
        }
        self.step(Body::Hello { own_fds, deadline }.by(client, RequestId(message.id)));
        self.refuse_rest(client);
        Ok(())
    }

    /// Tells the core by which key the client can be known after a crash. Without a key it cannot
    /// be.
    fn identify(&mut self, client: ClientId, random: u64) {
        let Connection { pid, start, .. } = self.connections[index(client)];
        if random != 0 {
            self.step(Input::Identify {
                client,
                key: OwnerKey { pid, started: start.ticks, random },
            });
        }
    }
}

fn check_hello<'m>(message: &Message<'m>, connection: &Connection) -> Result<&'m Hello, Breach> {
    if message.kind != Kind::Hello || connection.phase != Phase::Silent {
        return Err(Breach::OutOfTurn(message.kind));
    }
    if message.fd_count != 0 {
        let arrived = message.fd_count.into();
        let error = fdbroker_protocol::DecodeError::FdCount { announced: 0, arrived };
        return Err(Breach::Decode(error));
    }
    // Magic and versions keep their place in every version; what follows may be longer or shorter
    // in another.
    let (versions, _) = HelloStart::ref_from_prefix(message.body).map_err(|_| Breach::Magic)?;
    let (min, max) = (versions.min.get(), versions.max.get());
    if versions.magic != HELLO_MAGIC {
        return Err(Breach::Magic);
    }
    if !(min..=max).contains(&u16::from(PROTOCOL_VERSION)) {
        return Err(Breach::NoVersion { min, max });
    }
    if message.id == 0 {
        return Err(Breach::NoId(message.kind));
    }
    message.body_as::<Hello>().map_err(Breach::Decode)
}

/// The part of a hello that every version has.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloStart {
    magic: [u8; 8],
    min: U16,
    max: U16,
}
