//! The tables of counts that no cap bounds: how often something happened since the broker's start,
//! and how many of something there are now, and what the log tells of. Must never be listed again
//! anywhere else.

use crate::table::table;

table! {
    /// How often something has happened since the broker's start; a successor goes on counting.
    enum Counter;
    /// One value per counter.
    struct ByCounter;

    // The most telling first: where there is little room the last are left out.
    Grants = 1, grants, "duplicates granted, each with a lease";
    Refusals = 2, refusals, "connections, requests and deposits refused, because a cap was full or the broker was being drained";
    RequestsParked = 3, requests_parked, "requests that had to wait";
    Recalls = 4, recalls, "fds that owners were asked for again";
    Evictions = 5, evictions, "fds closed to make room";
    Deposits = 6, deposits, "deposits answered, those included that were refused";
    RecallsUnanswered = 7, recalls_unanswered, "recalls that the owner did not answer in time";
    Reclaims = 8, reclaims, "leases that holders were asked to give back";
    LongCalls = 9, long_calls, "times that messages of a user took the broker long, for which that user was not served for a while";
    NamedAgain = 10, named_again, "allocations of a killed broker that their owners named again, or that were kept";
    Lost = 11, lost, "allocations of a killed broker that are lost: their owners had ended, could not export them again, or did not name them in time";
}

table! {
    /// How many of something there are now.
    enum Gauge;
    /// One value per gauge.
    struct ByGauge;

    Jobs = 1, jobs, "jobs with clients, or with kept allocations that clients have left";
    StoredFds = 2, stored_fds, "fds of allocations that the broker has open";
    ClosingFds = 3, closing_fds, "fds whose close has not returned";
    LeasesEnding = 4, leases_ending, "leases of ended memory whose holders are not charged for it yet";
    UsersAway = 5, users_away, "users that are not served now, because their messages took the broker long";
    SocketsAway = 6, sockets_away, "sockets of the broker that somebody has removed or replaced, and that cannot be put back";
    SocketsUnkept = 7, sockets_unkept, "sockets of the broker that could not be put back if somebody removed or replaced them";
    ConfigRefused = 8, config_refused, "1 while the configuration file is refused: the broker serves with the settings of before";
    LanesHung = 9, lanes_hung, "processes of the broker that hang in a call on a client's fd";
    StoreShort = 10, store_short, "entries that the service manager's store lacks for what may be kept: what finds no place is lost in a crash";
}

table! {
    /// What lines of the broker's log are about, where their number is bounded by user and minute.
    enum LogTopic;
    /// One value per topic.
    struct ByLogTopic;

    BadInput = 1, bad_input, "bad input";
    Refusals = 2, refusals, "refusals";
    SilentOwners = 3, silent_owners, "owners that do not answer recalls";
    Evictions = 4, evictions, "evictions";
    Hangs = 5, hangs, "system calls that do not return";
    LongCalls = 6, long_calls, "messages that take long";
    Sockets = 7, sockets, "sockets that somebody has removed or replaced";
}
