//! The table of resources: what the broker counts and what a cap can bound. Wire, ledger,
//! configuration, commands, JSON, metrics and manual pages read it from here. Must never be listed
//! again anywhere else.

use crate::table::{table, wire_enum};

/// The value of a cap that does not exist.
pub const NO_CAP: u64 = u64::MAX;

wire_enum! {
    /// What a resource is counted in. The name of each resource ends in the name of its unit.
    Unit: u8 {
        /// Fds, open or declared.
        Fds = 1, "fds";
        /// Bytes of memory.
        Bytes = 2, "bytes";
        /// Leases, open or mapped.
        Leases = 3, "leases";
        /// Allocations in the registry.
        Allocations = 4, "allocations";
        /// Connections of clients.
        Connections = 5, "connections";
        /// Requests that are not answered yet.
        Requests = 6, "requests";
        /// Isolation domains: a listener and a uid each.
        Domains = 7, "domains";
        /// Items of messages.
        Items = 8, "items";
        /// Places for file descriptors, used or not.
        Places = 9, "places";
        /// Names of objects.
        Names = 10, "names";
        /// GPUs.
        Gpus = 11, "gpus";
    }
}

table! {
    /// Whose account a cap bounds. Each charge of a client is made on the accounts of all its
    /// scopes.
    enum Scope;
    /// One value per scope.
    struct ByScope;

    Client = 1, client, "one connection";
    Domain = 2, domain, "one isolation domain: a user on a listener";
    Job = 3, job, "one job of a domain: the cgroup that its launcher made, or else the clients' own";
    Node = 4, node, "the whole node";
}

#[allow(clippy::derivable_impls, reason = "a row of the table cannot be marked as the default")]
impl Default for Scope {
    fn default() -> Self {
        Scope::Node
    }
}

impl Scope {
    /// All scopes, the widest first: the order of lists for people.
    pub const WIDEST_FIRST: [Scope; 4] = [Scope::Node, Scope::Domain, Scope::Job, Scope::Client];
}

macro_rules! resources {
    ($(
        $variant:ident = $number:literal, $field:ident, $unit:ident, $narrowest:ident, [$($scope:ident)*],
        $help:literal, $remedy:expr;
    )*) => {
        table! {
            /// What the broker counts. `fds` is the sum of `held_fds` and `open_leases`. What is
            /// reserved is counted apart ([`Resource::reserved_by`]), and bounded by the same caps.
            enum Resource;
            /// One value per resource.
            struct ByResource;
            $($variant = $number, $field, $help;)*
        }

        impl Resource {
            /// What it is counted in.
            pub const fn unit(self) -> Unit {
                match self { $(Self::$variant => Unit::$unit,)* }
            }

            /// The narrowest scope whose accounts are charged for it. The accounts of narrower
            /// scopes never have any.
            pub const fn narrowest(self) -> Scope {
                match self { $(Self::$variant => Scope::$narrowest,)* }
            }

            /// The scopes that the administrator can cap it in (`[caps.SCOPE]`, `fdbroker limits
            /// set`).
            pub const fn scopes(self) -> &'static [Scope] {
                match self { $(Self::$variant => &[$(Scope::$scope),*],)* }
            }

            /// What to do when a cap of it is full: a phrase without a capital or a full stop. "it"
            /// is the cap.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}

/// The remedy for most caps.
const RELEASE: &str = "release leases or registrations, or raise the cap";

/// The remedy for caps of leases alone.
const RELEASE_LEASES: &str = "release leases, or raise the cap";

// Name, unit, the narrowest scope charged, the scopes with caps, help, remedy. CONTRIBUTING.md says
// what to do beside a new row.
resources! {
    Fds = 1, fds, Fds, Client, [Client Domain Job Node],
        "fds of shared memory that are open: held_fds and open_leases together", RELEASE;
    HeldFds = 2, held_fds, Fds, Client, [Client Domain Job Node],
        "fds that the broker has open for clients, until their close has returned", RELEASE;
    HeldBytes = 3, held_bytes, Bytes, Client, [Client Domain Job Node],
        "memory whose fd the broker holds or has asked for again", RELEASE;
    OpenLeases = 4, open_leases, Leases, Client, [Client Domain Job Node],
        "duplicates that clients have open", RELEASE_LEASES;
    MappedLeases = 5, mapped_leases, Leases, Client, [Client Domain Job Node],
        "memory imported, no fd kept; at its cap a lease counts as open, nothing is refused", RELEASE_LEASES;
    Allocations = 6, allocations, Allocations, Client, [Client Domain Job Node],
        "allocations registered, or ended and still leased",
        "release leases or registrations, or raise the cap, at most to limits.max_slots";
    OwnFds = 7, own_fds, Fds, Client, [],
        "fds that clients declare for their own memory, open or not",
        "declare fewer own fds";
    TablePlaces = 8, table_places, Places, Node, [],
        "places of the broker's own fd table, used or kept (limits.table_fds)",
        "end clients or release registrations, or raise limits.table_fds";
    Connections = 9, connections, Connections, Client, [Domain Job Node],
        "connections of clients",
        "end some of the clients that it counts, or raise the cap";
    ParkedRequests = 10, parked_requests, Requests, Client, [],
        "requests that wait for room or for a recall",
        "wait for the answers to earlier requests, or raise limits.max_parked_per_client";
    RefusedFds = 11, refused_fds, Fds, Domain, [],
        "fds of a type that cannot be shared, not closed yet",
        "wait until the refused fds are closed, or raise limits.max_refused_per_domain";
    PinnedBytes = 12, pinned_bytes, Bytes, Client, [],
        "ended memory that leases still pin: each holder is charged, the node counts each file once",
        "release leases";
    KeptAllocations = 13, kept_allocations, Allocations, Client, [Client Domain Job Node],
        "allocations that outlive their owner (keep)",
        "unregister kept allocations, or raise the cap";
    Domains = 14, domains, Domains, Node, [],
        "isolation domains with clients: users, on each listener",
        "end all clients of some user, or raise limits.max_domains";
    ParkedItems = 15, parked_items, Items, Client, [],
        "items of the requests that wait for room or for a recall",
        "wait for the answers to earlier requests";
    ReservedPlaces = 16, reserved_places, Places, Client, [],
        "places kept in the broker for fds to come: deposit credits and recalls",
        "let the clients deposit or end";
    PromisedLeases = 17, promised_leases, Leases, Client, [],
        "leases kept for requests that wait for a recall",
        "wait for the recalls";
    ObjectNames = 18, object_names, Names, Domain, [Domain Node],
        "names of objects, those in the making included",
        "delete objects, or raise the cap";
    MetadataBytes = 19, metadata_bytes, Bytes, Domain, [Domain Node],
        "names and metadata of objects, with their records, and names that requests wait for",
        "delete objects, or raise the cap";
    KeptBytes = 20, kept_bytes, Bytes, Domain, [Domain Node],
        "host memory of objects that outlive their creator",
        "delete kept objects, or raise the cap";
    KeptFds = 21, kept_fds, Fds, Domain, [Domain Node],
        "fds of objects that outlive their creator",
        "delete kept objects, or raise the cap";
    PermanentBytes = 22, permanent_bytes, Bytes, Domain, [Domain Node],
        "memory of objects that end neither by time nor to make room",
        "unpin objects, or raise the cap";
    Gpus = 23, gpus, Gpus, Domain, [],
        "GPUs that owners say their memory is on",
        "release allocations of other GPUs, or name the GPUs that there are";
    KeptGpuBytes = 24, kept_gpu_bytes, Bytes, Domain, [Domain Node],
        "memory of GPUs of objects that outlive their creator",
        "delete kept objects, or raise the cap";
}

impl Resource {
    /// The resources that it is counted in, too: their caps bound it.
    pub const fn counted_in(self) -> &'static [Resource] {
        match self {
            Self::HeldFds | Self::OpenLeases | Self::OwnFds => &[Self::Fds],
            Self::ReservedPlaces => &[Self::HeldFds, Self::Fds],
            Self::PromisedLeases => &[Self::OpenLeases, Self::Fds],
            _ => &[],
        }
    }

    /// The resources that say how much of it is reserved. Its cap bounds the sum of what is in use
    /// and what is reserved; a screen shows the two apart.
    pub const fn reserved_by(self) -> &'static [Resource] {
        match self {
            Self::Fds => &[Self::ReservedPlaces, Self::PromisedLeases, Self::OwnFds],
            Self::HeldFds => &[Self::ReservedPlaces],
            Self::OpenLeases => &[Self::PromisedLeases],
            _ => &[],
        }
    }

    /// Whether the administrator can cap it in this scope.
    pub fn is_capped_in(self, scope: Scope) -> bool {
        self.scopes().contains(&scope)
    }

    /// The resources that can be capped in any scope, in the table's order.
    pub fn capped() -> impl Iterator<Item = Resource> {
        Self::ALL.iter().copied().filter(|resource| !resource.scopes().is_empty())
    }

    /// The resources that a cap bounds: their own, or the cap of one that they are counted in.
    pub fn bounded() -> impl Iterator<Item = Resource> {
        let is_bounded = |it: &Resource| !it.scopes().is_empty() || !it.counted_in().is_empty();
        Self::ALL.iter().copied().filter(is_bounded)
    }

    /// The name without its unit: `held_` of `held_fds`, empty for `fds`.
    pub fn name_before_unit(self) -> &'static str {
        self.name().strip_suffix(self.unit().name()).unwrap_or(self.name())
    }
}

/// The caps of one account by resource; [`NO_CAP`] where there is none.
pub type Caps = ByResource<u64>;

impl Caps {
    /// [`NO_CAP`] for every resource.
    pub const NONE: Caps = Caps::all(NO_CAP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_when_any_resource_then_it_ends_in_its_unit() {
        for resource in Resource::ALL {
            let name = format!("{}{}", resource.name_before_unit(), resource.unit());
            assert_eq!(resource.name(), name);
        }
    }

    #[test]
    fn from_fn_when_indexed_then_each_row_has_its_own_value() {
        let numbers = ByResource::from_fn(|resource| resource as u8);
        assert!(numbers.iter().all(|(resource, number)| resource as u8 == *number));
        assert_eq!((numbers.fds, numbers.kept_allocations), (1, Resource::KeptAllocations as u8));
        assert_eq!(numbers.map(|number| number + 1)[Resource::HeldFds], 3);
    }

    #[test]
    fn narrowest_when_a_scope_has_a_cap_then_its_accounts_are_charged() {
        let narrower = |scope: Scope, than: Scope| {
            let place = |it| Scope::WIDEST_FIRST.iter().position(|scope| *scope == it);
            place(scope) > place(than)
        };
        for resource in Resource::ALL {
            let narrowest = resource.narrowest();
            assert!(
                !resource.scopes().iter().any(|scope| narrower(*scope, narrowest)),
                "{resource}"
            );
        }
        assert_eq!(Resource::Domains.narrowest(), Scope::Node);
    }

    #[test]
    fn reserved_by_when_a_resource_is_reserved_then_the_cap_counts_it() {
        for resource in Resource::ALL {
            let counted = |by: &Resource| by.counted_in().contains(resource);
            assert!(resource.reserved_by().iter().all(counted), "{resource}");
        }
    }

    #[test]
    fn is_capped_in_when_the_table_names_no_scope_then_never() {
        assert!(Scope::ALL.iter().all(|scope| Resource::Fds.is_capped_in(*scope)));
        assert!(!Scope::ALL.iter().any(|scope| Resource::OwnFds.is_capped_in(*scope)));
        assert_eq!(Resource::from_name("held_bytes"), Some(Resource::HeldBytes));
        assert_eq!(Resource::from_name("bytes"), None);
    }
}
