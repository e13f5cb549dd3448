//! The list of scenarios: the name, the attack, the attackers, and the daemon. Must never have an
//! attack that does not end when it is told to.

use crate::attack::Attack;
use crate::attacks::{
    bytes, collector, connects, faults, file_lease, filters, floods, forged, heirs, hoards, hung,
    kept, places, ranks, readers, shared_end, slow, sockets, stopped, timers, traced, views, waits,
};
use crate::users::User;
use fdbroker_protocol::Counter;

/// One way to be hostile.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub attack: fn(&mut Attack),
    pub attackers: u32,
    /// The attackers' user: another than the good client's, the same, or one after the other.
    pub users: &'static [User],
    /// Whether each attacker is a user of its own instead.
    pub own_users: bool,
    /// Other users that come during the attack; each must get in and be served.
    pub newcomers: u32,
    /// What the good client's user does then: `join` or `reclaim` (good.rs).
    pub newcomer: &'static str,
    /// What must not be counted during the attack.
    pub never: &'static [Counter],
    /// Growth of the daemon's own memory that is no leak, beside what deposits leave by right
    /// (growth.rs): its tables grow to what the caps allow and stay so. The table of parked items
    /// alone takes 3 MiB.
    pub slack_kib: i64,
    /// Whether so little is left for the good client, by right, that its times are not judged.
    pub is_crowded: bool,
    /// Whether newcomers' times are judged, too, with --measure.
    pub is_join_judged: bool,
    /// Further arguments of the daemon.
    pub daemon: &'static [&'static str],
    /// Whether it needs a file whose server hangs.
    pub needs_hung_file: bool,
    /// Whether that server goes on until the file is to be written back.
    pub is_file_written: bool,
}

const OTHER: &[User] = &[User::Attacker(0)];
const SAME: &[User] = &[User::Good];
/// Who may do in the directories what root of a container may that has them mounted.
const OWNER: &[User] = &[User::Daemon];
const BOTH: &[User] = &[User::Attacker(0), User::Good];

/// Few kept allocations, and for a short time.
const KEPT_CAPS: &[&str] = &[
    "--set",
    "limits.keep_ttl_ms=1000",
    "--set",
    "caps.client.kept_allocations=48",
    "--set",
    "caps.domain.kept_allocations=128",
];

/// Leases that count as open for as long as they are cached.
const FEW_LEASES: &[&str] = &[
    "--set",
    "limits.max_clients=128",
    "--set",
    "caps.domain.open_leases=32",
    "--set",
    "caps.domain.mapped_leases=0",
];

const fn scenario(
    name: &'static str,
    users: &'static [User],
    attack: fn(&mut Attack),
    about: &'static str,
) -> Scenario {
    Scenario {
        name,
        about,
        attack,
        attackers: 1,
        users,
        own_users: false,
        newcomers: 0,
        newcomer: "join",
        never: &[],
        slack_kib: 4 * 1024,
        is_crowded: false,
        is_join_judged: false,
        daemon: &[],
        needs_hung_file: false,
        is_file_written: false,
    }
}

/// Every scenario, in the order in which they run.
pub const ALL: &[Scenario] = &[
    scenario(
        "random-bytes",
        BOTH,
        bytes::random,
        "packets of random bytes and fds, before and after hello",
    ),
    scenario(
        "mutated-messages",
        BOTH,
        bytes::mutated,
        "valid messages of every kind with a few bytes changed, cut or added",
    ),
    scenario("fds-accepted", BOTH, floods::accepted, "registers of 253 memfds, and their end"),
    scenario(
        "fds-refused",
        BOTH,
        floods::refused,
        "registers of 253 pipes, sockets, epolls, directories",
    ),
    scenario(
        "fds-without-credit",
        BOTH,
        floods::without_credit,
        "253 fds that nobody asked for, again and again",
    ),
    scenario(
        "fds-same",
        BOTH,
        floods::same,
        "one fd deposited thousands of times as the same allocation",
    ),
    scenario(
        "acquire-flood",
        BOTH,
        floods::acquires,
        "many connections, each with as many acquires under way as it may",
    ),
    scenario(
        "acquire-253-flood",
        BOTH,
        floods::big_acquires,
        "grants of 253 fds at once, on several connections",
    ),
    scenario(
        "register-storm",
        BOTH,
        floods::storm,
        "register and unregister of one allocation, pipelined, on many connections",
    ),
    scenario(
        "address-reuse",
        BOTH,
        floods::reuse,
        "253 small allocations ended by one that overlaps them",
    ),
    Scenario {
        needs_hung_file: true,
        ..scenario(
            "hung-fuse",
            BOTH,
            hung::flood,
            "fds of a FUSE server that has stopped, in whole messages",
        )
    },
    Scenario {
        needs_hung_file: true,
        // Linux 6.16 and later refuse such messages at the sender.
        daemon: &["--without-kernel-features", "pass_rights"],
        ..scenario(
            "hung-first-messages",
            OTHER,
            hung::first_messages,
            "hellos and joins that carry fds of a FUSE server that has stopped",
        )
    },
    Scenario {
        needs_hung_file: true,
        ..scenario(
            "hung-epoll",
            BOTH,
            hung::epoll,
            "an epoll fd whose lock somebody holds for ever, thanks to a FUSE server that has stopped",
        )
    },
    Scenario {
        daemon: &["--set", "caps.client.held_fds=48"],
        ..scenario(
            "big-close",
            OTHER,
            slow::big,
            "the last fd of a GiB of memory, given back again and again",
        )
    },
    scenario("many-watches", BOTH, slow::watches, "an inotify fd with 20,000 watches"),
    scenario(
        "sockets-in-sockets",
        BOTH,
        sockets::nested,
        "cycles and deep chains of sockets with fds in them",
    ),
    scenario(
        "own-socket",
        BOTH,
        sockets::own,
        "the connection's own sockets, sent to the broker, then abandoned",
    ),
    scenario(
        "lingering-sockets",
        BOTH,
        sockets::lingering,
        "TCP sockets whose last close waits for a reader that does not read",
    ),
    scenario("never-reads", BOTH, readers::never, "acquires and events are never read"),
    Scenario {
        // The tables of 800 connections and of their parked items: 4.4 MiB, after 5 rounds as after
        // 14.
        slack_kib: 5 * 1024,
        ..scenario(
            "unread-hellos",
            OTHER,
            readers::unread_hellos,
            "800 connections that do not read hello's answer, and grants unread",
        )
    },
    scenario(
        "one-byte",
        BOTH,
        readers::one_byte,
        "answers are read with room for one byte and no fd",
    ),
    scenario(
        "half-closed",
        BOTH,
        readers::half_closed,
        "one direction is shut down in the middle of requests",
    ),
    scenario("connects-10000", OTHER, connects::silent, "10,000 connections without a word"),
    scenario(
        "connect-storm",
        BOTH,
        connects::storm,
        "connect, hello, disconnect, as fast as it goes",
    ),
    Scenario {
        never: &[Counter::Evictions],
        ..scenario(
            "hello-absurd",
            OTHER,
            connects::absurd,
            "hellos that declare up to 2^32 fds of their own",
        )
    },
    Scenario {
        daemon: FEW_LEASES,
        newcomer: "reclaim",
        ..scenario(
            "idle-connections",
            OTHER,
            connects::idle,
            "as many idle connections as a user may have, with all credits; the good user needs leases back",
        )
    },
    Scenario {
        newcomers: 4,
        never: &[Counter::Evictions],
        ..scenario(
            "own-fds-claims",
            OTHER,
            connects::claims,
            "thousands of fds claimed in each hello, and four other users that come after it",
        )
    },
    Scenario {
        attackers: 8,
        slack_kib: 32 * 1024,
        own_users: true,
        newcomers: 2,
        ..scenario(
            "eight-users",
            OTHER,
            hoards::everything,
            "eight users, each with all that it may have, and two other users that come after them",
        )
    },
    Scenario {
        daemon: &["--max-fds", "80"],
        attackers: 4,
        is_crowded: true,
        ..scenario(
            "32-ranks",
            OTHER,
            ranks::start,
            "32 ranks with two fds each that start together at a cap of 80: all get in",
        )
    },
    Scenario {
        daemon: &["--max-fds", "600"],
        ..scenario(
            "stopped-in-recall",
            OTHER,
            stopped::owner,
            "owners stop (SIGSTOP) while others wait for their memory",
        )
    },
    scenario(
        "heirs",
        OTHER,
        heirs::fork_bomb,
        "dozens of forked heirs keep the socket of a dead client open",
    ),
    scenario("forged-handles", BOTH, forged::handles, "a million handles that nobody sealed"),
    Scenario {
        daemon: &["--set", "limits.keep_ttl_ms=3000"],
        ..scenario(
            "stolen-tokens",
            BOTH,
            forged::tokens,
            "re-deposits and declares of what is not the sender's, with tokens that nobody gave",
        )
    },
    Scenario {
        daemon: KEPT_CAPS,
        ..scenario(
            "kept-hoard",
            BOTH,
            kept::hoard,
            "as much kept memory as there may be, of owners that leave it behind; broken shares and flags",
        )
    },
    scenario("supplies", BOTH, hoards::supplies, "supplies that nobody asked for, with fds"),
    scenario(
        "cancels",
        SAME,
        hoards::cancels,
        "requests cancelled as fast as they come, and those that never were",
    ),
    Scenario {
        daemon: &["--max-fds", "600"],
        ..scenario(
            "parked-hoard",
            OTHER,
            hoards::parked,
            "as many parked requests as a client may have, on many connections",
        )
    },
    Scenario {
        daemon: &["--max-fds", "600"],
        // As above: 5.2 MiB after 5 rounds, and below 5 MiB after 15 and after 40. Parked wishes
        // are allocated one by one.
        slack_kib: 6 * 1024,
        ..scenario(
            "parked-items",
            OTHER,
            hoards::parked_items,
            "the same, with requests of 253 items",
        )
    },
    scenario(
        "looks",
        OTHER,
        views::looks,
        "queries, watches, acts and fds at the socket for looking, without a pause",
    ),
    Scenario {
        needs_hung_file: true,
        ..scenario(
            "shared-end",
            BOTH,
            shared_end::held,
            "all ends of clients held in recvmsg, which copies into a page of a stopped FUSE server",
        )
    },
    Scenario {
        needs_hung_file: true,
        ..scenario(
            "shared-end-faults",
            OTHER,
            faults::ends,
            "all ends of clients held in recvmsg, which copies into a page that userfaultfd does not fill",
        )
    },
    scenario(
        "shared-end-forks",
        BOTH,
        shared_end::forking,
        "all ends of a client peeked at without a pause, into pages of a large process that forks",
    ),
    Scenario {
        needs_hung_file: true,
        ..scenario(
            "held-pages",
            BOTH,
            faults::everywhere,
            "memory that a hung write has locked, and messages half sent",
        )
    },
    Scenario {
        daemon: &["--max-fds", "600"],
        ..scenario(
            "traced-clients",
            BOTH,
            traced::clients,
            "clients that ptrace stops: unknown, about to join, as owner, with full sockets, as they end",
        )
    },
    Scenario {
        needs_hung_file: true,
        is_file_written: true,
        ..scenario(
            "held-mm",
            BOTH,
            traced::mapping,
            "connections of a traced process whose address space is locked by an unmapping that hangs",
        )
    },
    Scenario {
        newcomer: "put",
        ..scenario(
            "file-lease",
            OTHER,
            file_lease::seals,
            "seals of memory on which the attacker has a file lease, beside a put of another user",
        )
    },
    Scenario {
        attackers: 9,
        own_users: true,
        is_join_judged: true,
        ..scenario(
            "collector",
            OTHER,
            collector::busy,
            "3,000 unread grants of one user, cycles of sockets in flight of eight others",
        )
    },
    scenario(
        "wait-queues",
        OTHER,
        waits::queues,
        "each message of a connection has the kernel walk 100,000 entries of poll()",
    ),
    scenario(
        "filters",
        OTHER,
        filters::attached,
        "a socket filter of 4,000 instructions that runs with each message that the broker sends",
    ),
    Scenario {
        attackers: 4,
        newcomers: 4,
        // Whoever has a processor is interrupted.
        is_crowded: true,
        ..scenario(
            "interrupts",
            OTHER,
            timers::interrupts,
            "9,000 timers of each processor expire at the same moment, and hit whosever call is under way",
        )
    },
    Scenario {
        // Nobody new finds the socket meanwhile.
        newcomer: "touch",
        ..scenario(
            "socket-replaced",
            OWNER,
            places::replace,
            "whoever may write into its directory removes and replaces the clients' socket, and floods the directory with files",
        )
    },
];

pub fn attack_of(name: &str) -> Option<fn(&mut Attack)> {
    ALL.iter().find(|scenario| scenario.name == name).map(|scenario| scenario.attack)
}

pub fn list() {
    for Scenario { name, about, .. } in ALL {
        println!("{name:<20} {about}");
    }
}
