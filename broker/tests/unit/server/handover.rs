//! A state that another broker goes on with: what is done with one that its checksum vouches for
//! and that is wrong all the same.

use super::*;
use crate::clients::connection::{Phase, client_id};
use crate::clients::metrics::Metrics;
use crate::fds::files::Files;
use crate::handover::ledger;
use crate::handover::packing::Way;
use crate::handover::state::{SavedSlot, State};

type Change<'a> = &'a dyn Fn(&mut State);

/// A broker with two clients hands over; its state is changed; another one starts with it.
fn gone_on_with(close: CloseFn, change: impl FnOnce(&mut State)) -> (Bench, [(Peer, Peer); 2]) {
    let mut bench = Bench::new(&[]);
    let clients = [bench.client(), bench.client()];
    bench.register(&clients[0].0);
    (succeed(bench, close, change), clients)
}

/// The broker that goes on with the changed state of this one.
pub(super) fn succeed(mut bench: Bench, close: CloseFn, change: impl FnOnce(&mut State)) -> Bench {
    let parcel = bench.server.pack(Way::Store).unwrap();
    bench.server.leave_places();
    let Bench { server, dir, .. } = bench;
    drop(server);
    let mut state = ledger::read(parcel.ledger).unwrap();
    change(&mut state);
    let inherited = Inherited {
        ledger: Some(ledger::write(&state).unwrap()),
        carriers: parcel.carriers,
        ..Inherited::default()
    };
    let calls = Calls { close, ..calls() };
    Bench::in_directory(dir, &[], KernelFeatures::ALL, calls, inherited)
}

#[test]
fn state_when_as_it_was_then_its_clients_are_served() {
    let (mut bench, [(client, _event), _other]) = gone_on_with(Arc::new(|fd, _| drop(fd)), |_| {});
    assert_eq!(bench.server.connections.len(), 2);
    client.send(&release(1), &[]);
    bench.rest();
    assert_eq!(client.count(), 1);
}

#[test]
fn state_when_it_has_times_then_they_go_on_with_the_counters_or_begin_anew_with_them() {
    let gone_on = |is_sound: bool| {
        let (bench, _clients) = gone_on_with(Arc::new(|fd, _| drop(fd)), |state| {
            state.metrics.grant_latency.observe(7);
            if !is_sound {
                // Found only when all else has been taken over.
                state.connections[1].phase = Phase::Gone;
            }
        });
        let Metrics { grant_latency, recall_time } = *bench.server.waits.metrics();
        let deposits = bench.server.core.totals().counters.deposits;
        (grant_latency.count(), recall_time.count(), deposits)
    };
    assert_eq!(gone_on(true), (1, 0, 1));
    assert_eq!(gone_on(false), (0, 0, 0));
}

#[test]
fn state_when_clients_are_of_a_job_then_its_key_and_name_go_on() {
    let (bench, _clients) = gone_on_with(Arc::new(|fd, _| drop(fd)), |_| {});
    let (key, name) =
        crate::clients::job::of_text(&std::fs::read("/proc/self/cgroup").unwrap()).unwrap();
    let jobs: Vec<_> = bench.server.core.clients(0).map(|view| view.job).collect();
    assert_eq!(jobs, [Some(key); 2]);
    let all = bench.server.core.jobs(0);
    let jobs: Vec<_> = all.map(|(_, job, _)| (job.key.1, job.name)).collect();
    assert_eq!(jobs, [(key, name)]);
}

#[test]
fn state_when_a_number_in_it_is_absurd_then_refused_before_it_is_used() {
    let slot =
        |slot| SavedSlot { slot, kind: MemoryKind::Memfd as u8, fd: None, files: Files::default() };
    let changes: [(&str, Change<'_>); 8] = [
        ("slot beyond the page", &|state| state.slots.push(slot(state.page_slots))),
        ("largest slot", &|state| state.slots.push(slot(u32::MAX))),
        ("serials", &|state| state.next_serial = u64::MAX),
        ("serial", &|state| state.connections[1].serial = u64::MAX),
        ("number", &|state| state.connections[1].index = u32::MAX),
        ("number twice", &|state| state.connections[1].index = state.connections[0].index),
        ("unread fds", &|state| state.connections[1].unread_fds = u64::MAX),
        ("unread messages", &|state| state.connections[1].unread_messages = u32::MAX),
    ];
    for (what, change) in changes {
        let (mut bench, _clients) = gone_on_with(Arc::new(|fd, _| drop(fd)), change);
        assert_eq!(bench.server.connections.len(), 0, "{what}");
        let (client, _event) = bench.client();
        bench.register(&client);
    }
}

#[test]
fn state_when_refused_in_the_midst_of_its_connections_then_no_socket_is_closed_on_the_loop() {
    let (closed, count) = counter();
    let close: CloseFn = Arc::new(move |fd, _| {
        count();
        std::mem::forget(fd);
    });
    let (mut bench, clients) = gone_on_with(close, |state| {
        state.connections[1].phase = Phase::Gone;
    });
    bench.until(|_| counted(&closed) >= 4);
    assert_eq!(bench.server.connections.len(), 0);
    for socket in clients.iter().flat_map(|(main, event)| [main, event]) {
        assert!(matches!(socket.recv(), Err(RecvError::WouldBlock)), "a closer has it");
    }
}

/// The kernels of today send every socket, so that a try that fails for one is not had here.
#[test]
fn connection_when_it_cannot_be_sent_then_nothing_of_it_is_in_the_way_lingering_or_not() {
    for is_lingering in [false, true] {
        let (mut bench, [(client, _a), _other], handles) = tight_bench();
        // One of the three is beyond its share.
        bench.server.in_flight = InFlight::new(Shares::new(8, 2, 8));
        for id in 1..=3 {
            client.send(&acquire(id, &handles[0], 0), &[]);
        }
        if is_lingering {
            client.send(&[0], &[]);
        }
        bench.rest();
        let connections = bench.server.connections.iter();
        let it = connections.map(|(index, it)| (client_id(index), it));
        let (id, it) = it.max_by_key(|(_, it)| it.unread.fds).unwrap();
        assert_eq!((it.unread.fds, it.lingering.is_some()), (3, is_lingering));

        bench.server.leave_behind(id);

        bench.rest();
        assert_eq!(bench.server.connections.len(), 1);
        assert!(bench.server.in_flight.is_pool_unused());
        let parcel = bench.server.pack(Way::Store).unwrap();
        assert_eq!(parcel.clients, 1);
        assert_eq!(client.count(), if is_lingering { 4 } else { 3 }, "what it was sent is its own");
        assert!(matches!(client.recv(), Err(RecvError::Eof)));
    }
}
