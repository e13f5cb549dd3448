//! Each call that the simulated daemon makes of the core, as an owned value that a replay can
//! print. Must say no more than the core's API says.

use crate::jobs;
use fdbroker_core::{
    Arrived, Declared, DomainKey, Effect, Effects, Events, Granted, Input, LeaseId, Redeposit,
    RequestId, Supply, Ticket, Wanted,
};
use fdbroker_core::{Body, CapsOfScopes, ClientId, JobKey, Now, OwnerKey, Peer};
use fdbroker_protocol::{AllocationId, Status};
use std::fmt::Write;

/// One call of the core.
#[derive(Clone, Debug)]
pub enum Action {
    Connect {
        client: u32,
        domain: DomainKey,
        job: Option<JobKey>,
        pid: u32,
    },
    Identify {
        client: u32,
        key: OwnerKey,
    },
    BoundHeld {
        client: u32,
        fds: u32,
    },
    Hello {
        client: u32,
        request: u64,
        own_fds: u32,
        deadline: u64,
    },
    Gone {
        client: u32,
    },
    Register {
        client: u32,
        request: u64,
        deposits: Vec<Arrived>,
        credits_wanted: u32,
        deadline: u64,
    },
    Unregister {
        client: u32,
        request: u64,
        ids: Vec<AllocationId>,
    },
    Acquire {
        client: u32,
        request: u64,
        wanted: Vec<Wanted>,
        deadline: u64,
    },
    AcquireAhead {
        client: u32,
        wanted: Vec<Wanted>,
    },
    Unsent {
        client: u32,
        request: u64,
        grants: Vec<Granted>,
        deadline: u64,
        seq: u64,
    },
    Sendable {
        client: u32,
        sendable: bool,
    },
    Cancel {
        client: u32,
        request: u64,
    },
    Mapped {
        client: u32,
        request: Option<u64>,
        leases: Vec<LeaseId>,
    },
    Release {
        client: u32,
        request: Option<u64>,
        leases: Vec<LeaseId>,
    },
    Supply {
        client: u32,
        supplies: Vec<Supply>,
    },
    Closed {
        ticket: Ticket,
    },
    Redeposit {
        client: u32,
        request: u64,
        items: Vec<Redeposit>,
    },
    Declare {
        client: u32,
        request: u64,
        items: Vec<Declared>,
    },
    Complete {
        client: u32,
    },
    SetCaps {
        caps: Box<CapsOfScopes>,
    },
    Measured {
        files: Vec<(u32, u64)>,
    },
    Evict {
        ids: Vec<AllocationId>,
    },
    Revoke {
        ids: Vec<AllocationId>,
    },
    SetDraining {
        draining: bool,
    },
    /// `Core::poll`.
    Poll,
    /// `Core::settle_parked`, before a planned restart.
    Settle,
}

impl Action {
    /// The core's input; `None` for a poll.
    pub fn input(&self) -> Option<Input<'_>> {
        let input = match *self {
            Action::Connect { client, domain, job, pid } => {
                let (gid, groups) = groups_of(pid);
                let job = job.map(jobs::named);
                let peer = Peer { domain, job, pid, gid, groups };
                Input::Connect { client: ClientId(client), peer }
            }
            Action::Hello { client, request, own_fds, deadline } => {
                let (client, request) = (ClientId(client), RequestId(request));
                Body::Hello { own_fds, deadline: Now(deadline) }.by(client, request)
            }
            Action::Identify { client, key } => Input::Identify { client: ClientId(client), key },
            Action::BoundHeld { client, fds } => Input::BoundHeld { client: ClientId(client), fds },
            Action::Complete { client } => Body::Complete.by(ClientId(client), RequestId::ONE_WAY),
            Action::Gone { client } => Input::Gone { client: ClientId(client) },
            Action::Register { client, request, ref deposits, credits_wanted, deadline } => {
                Body::Register { deposits, credits_wanted, deadline: Now(deadline) }
                    .by(ClientId(client), RequestId(request))
            }
            Action::Unregister { client, request, ref ids } => {
                Body::Unregister { ids }.by(ClientId(client), RequestId(request))
            }
            Action::Acquire { client, request, ref wanted, deadline } => {
                Body::Acquire { wanted, deadline: Now(deadline) }
                    .by(ClientId(client), RequestId(request))
            }
            Action::AcquireAhead { client, ref wanted } => {
                Body::AcquireAhead { wanted }.by(ClientId(client), RequestId::ONE_WAY)
            }
            Action::Unsent { client, request, ref grants, deadline, seq } => Input::Unsent {
                client: ClientId(client),
                request: RequestId(request),
                grants,
                deadline: Now(deadline),
                seq,
            },
            Action::Sendable { client, sendable } => {
                Input::Sendable { client: ClientId(client), sendable }
            }
            Action::Cancel { client, request } => {
                Body::Cancel.by(ClientId(client), RequestId(request))
            }
            Action::Mapped { client, request, ref leases } => {
                Body::Mapped { leases }.by(ClientId(client), RequestId(request.unwrap_or(0)))
            }
            Action::Release { client, request, ref leases } => {
                Body::Release { leases }.by(ClientId(client), RequestId(request.unwrap_or(0)))
            }
            Action::Supply { client, ref supplies } => {
                Body::Supply { supplies }.by(ClientId(client), RequestId::ONE_WAY)
            }
            Action::Closed { ticket } => Input::Closed { ticket },
            Action::SetCaps { ref caps } => Input::SetCaps { caps },
            Action::Measured { ref files } => Input::Measured { files },
            Action::Evict { ref ids } => Input::Evict { ids },
            Action::Revoke { ref ids } => Input::Revoke { ids },
            Action::SetDraining { draining } => Input::SetDraining { draining },
            Action::Redeposit { client, request, ref items } => {
                Body::Redeposit { items }.by(ClientId(client), RequestId(request))
            }
            Action::Declare { client, request, ref items } => {
                Body::Declare { items }.by(ClientId(client), RequestId(request))
            }
            Action::Poll | Action::Settle => return None,
        };
        Some(input)
    }

    /// The client and its request, if only a welcomed client may make it.
    pub fn request(&self) -> Option<(u32, Option<u64>)> {
        match self {
            Action::Register { client, request, .. }
            | Action::Unregister { client, request, .. }
            | Action::Acquire { client, request, .. }
            | Action::Redeposit { client, request, .. }
            | Action::Declare { client, request, .. } => Some((*client, Some(*request))),
            Action::Mapped { client, request, .. } | Action::Release { client, request, .. } => {
                Some((*client, *request))
            }
            Action::AcquireAhead { client, .. } => Some((*client, None)),
            _ => None,
        }
    }

    /// Whether the core owes no answer to it.
    pub fn is_one_way(&self) -> bool {
        matches!(self.request(), Some((_, None)))
    }

    /// How many fds come with the message.
    pub fn arrived_fds(&self) -> usize {
        match self {
            Action::Register { deposits, .. } => deposits.len(),
            Action::Supply { supplies, .. } => supplies
                .iter()
                .map(|item| usize::from(item.fd.is_ok()) + usize::from(item.refused_fd.is_some()))
                .sum(),
            _ => 0,
        }
    }
}

/// The main group and the other groups that the simulated process `pid` has.
pub fn groups_of(pid: u32) -> (u32, &'static [u32]) {
    let groups: &[u32] = if pid.is_multiple_of(5) { &[100, 102] } else { &[] };
    (100 + pid % 3, groups)
}

/// One line for an action.
pub fn show_action(action: &Action) -> String {
    let mut out = String::new();
    match action {
        Action::Register { client, request, deposits, credits_wanted, deadline } => {
            let _ = write!(
                out,
                "Register c{client} r{request} credits_wanted {credits_wanted} deadline {deadline}"
            );
            for arrived in deposits {
                let Ok(d) = &arrived.judged else {
                    out.push_str("\n      [refused]");
                    continue;
                };
                let _ = write!(
                    out,
                    "\n      [{:?} {:?} dev {} of {} base {:#x} size {:#x} offset {:#x} id {}{}{}]",
                    d.facts.kind,
                    d.share,
                    d.facts.device,
                    d.facts.gpu,
                    d.base,
                    d.facts.size_bytes,
                    d.facts.fd_offset,
                    d.facts.owner_allocation_id,
                    if d.recallable { " recallable" } else { " resident" },
                    if d.driver_data.is_some() { " data" } else { "" },
                );
            }
        }
        Action::Unregister { client, request, ids } => {
            let _ = write!(out, "Unregister c{client} r{request} {}", show_ids(ids));
        }
        Action::Acquire { client, request, wanted, deadline } => {
            let items = some(wanted.iter().map(|item| match item {
                Ok(id) => id.to_string(),
                Err(code) => code.name().to_owned(),
            }));
            let _ = write!(out, "Acquire c{client} r{request} deadline {deadline} [{items}]");
        }
        Action::Unsent { client, request, grants, deadline, seq } => {
            let _ = write!(
                out,
                "Unsent c{client} r{request} deadline {deadline} seq {seq} [{} items]",
                grants.len()
            );
        }
        Action::Mapped { client, request, leases } => {
            let _ = write!(out, "Mapped c{client} {request:?} {}", show_leases(leases));
        }
        Action::Release { client, request, leases } => {
            let _ = write!(out, "Release c{client} {request:?} {}", show_leases(leases));
        }
        Action::Supply { client, supplies } => {
            let _ = write!(out, "Supply c{client}");
            for s in supplies {
                let _ = write!(
                    out,
                    "\n      [{} fd {:?} refused {:?} id {} size {:#x} offset {:#x}]",
                    s.id,
                    s.fd,
                    s.refused_fd,
                    s.facts.owner_allocation_id,
                    s.facts.size_bytes,
                    s.facts.fd_offset
                );
            }
        }
        other => {
            let _ = write!(out, "{other:?}");
        }
    }
    out
}

/// The first items of a list, in one line.
fn some(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(SHOWN_ITEMS);
    let mut line = items.take(SHOWN_ITEMS).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(line, ", and {more} more");
    }
    line
}

/// Most items of a list that a line shows.
const SHOWN_ITEMS: usize = 16;

fn show_ids(ids: &[AllocationId]) -> String {
    some(ids.iter().map(ToString::to_string))
}

fn show_leases(leases: &[LeaseId]) -> String {
    some(leases.iter().map(|lease| format!("{:#x}", lease.0)))
}

/// A status in a few words.
pub fn show_status(status: &Status) -> String {
    match status.result() {
        Ok(()) if status.value == 0 => "OK".into(),
        Ok(()) => format!("OK({})", status.value),
        Err(code) if status.resource == 0 && status.value == 0 => code.name().to_owned(),
        Err(code) => format!(
            "{}(resource {} scope {} value {} pid {})",
            code.name(),
            status.resource,
            status.scope,
            status.value,
            status.pid
        ),
    }
}

/// One line for an effect, with the items that its ranges stand for.
pub fn show_effect(effect: &Effect, all: &Effects) -> String {
    match effect {
        Effect::Granted { client, request, range, deadline, seq } => {
            let items = some(all.granted[range.clone()].iter().map(|g| match g.wanted {
                Ok(id) => format!("{id} {} {:#x}", show_status(&g.status), g.lease.0),
                Err(code) => format!("{} {}", code.name(), show_status(&g.status)),
            }));
            let (client, request, deadline) = (client.0, request.0, deadline.0);
            format!("Granted c{client} r{request} deadline {deadline} seq {seq} [{items}]")
        }
        Effect::Registered { client, request, range, deposit_credits } => {
            let items = all.registered[range.clone()].iter();
            let items = some(items.map(|r| format!("{} {}", r.id, show_status(&r.status))));
            let (client, request) = (client.0, request.0);
            format!("Registered c{client} r{request} credits {deposit_credits} [{items}]")
        }
        Effect::Statuses { client, request, reply, range } => {
            let items = some(all.statuses[range.clone()].iter().map(show_status));
            format!("Statuses c{} r{} {reply:?} [{items}]", client.0, request.0)
        }
        Effect::Failed { client, request, status } => {
            format!("Failed c{} r{} {}", client.0, request.0, show_status(status))
        }
        Effect::Disconnect { client, status } => {
            format!("Disconnect c{} {}", client.0, show_status(status))
        }
        other => format!("{other:?}"),
    }
}

/// One line for a message of the event socket.
pub fn show_events(events: &Events) -> String {
    match events {
        Events::Recall(list) => {
            let ids: Vec<AllocationId> = list.iter().map(|event| event.id).collect();
            format!("Recall {}", show_ids(&ids))
        }
        Events::Reclaim(leases) => format!("Reclaim {leases:x?}"),
        Events::Revoked(list) => {
            let items = list.iter();
            let items = items.map(|e| format!("{} {:#x} {}", e.id, e.lease.0, e.code.name()));
            format!("Revoked {}", some(items))
        }
        Events::Drained(list) => {
            let ids: Vec<AllocationId> = list.iter().map(|event| event.id).collect();
            format!("Drained {}", show_ids(&ids))
        }
        Events::Objects(news) => format!("Objects {news:?}"),
    }
}
