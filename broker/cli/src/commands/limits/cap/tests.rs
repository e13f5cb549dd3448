//! Caps as users write them, well formed and broken.

use super::*;

#[test]
fn assignment_when_well_formed_then_level_resource_and_value() {
    let table = [
        ("node.fds=4096", Scope::Node, Resource::Fds, 4096),
        ("domain.held_bytes=8Gi", Scope::Domain, Resource::HeldBytes, 8 << 30),
        ("domain.held_bytes=8GiB", Scope::Domain, Resource::HeldBytes, 8 << 30),
        ("domain.held_bytes=8 GiB", Scope::Domain, Resource::HeldBytes, 8 << 30),
        ("job.open_leases=2K", Scope::Job, Resource::OpenLeases, 2000),
        ("client.kept_allocations=none", Scope::Client, Resource::KeptAllocations, NO_CAP),
        ("client.allocations=0", Scope::Client, Resource::Allocations, 0),
    ];
    for (text, scope, resource, value) in table {
        let expected = Assignment { limit: Limit { scope, resource }, value };
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
}

#[test]
fn assignment_when_broken_then_the_message_says_what_would_do() {
    let table = [
        ("fds=1", "SCOPE.RESOURCE=VALUE"),
        ("node.fds", "SCOPE.RESOURCE=VALUE"),
        ("host.fds=1", "node, domain, job, client"),
        ("node.own_fds=1", "a node has no cap of `own_fds`; it has caps of fds, held_fds,"),
        ("client.connections=1", "a client has no cap of `connections`; it has caps of fds,"),
        ("node.fdz=1", "no resource `fdz`; a node has caps of fds, held_fds, held_bytes,"),
        ("node.fds=", "digits"),
        ("node.fds=-1", "digits"),
        ("node.fds=1X", "digits"),
        ("node.fds=Ki", "digits"),
        ("node.fds=K", "digits"),
        ("node.fds=18446744073709551615", "too large; use at most 18446744073709551614, or none"),
        ("node.fds=99999999999999999999", "too large; use at most 18446744073709551614, or none"),
        ("node.fds=99999999T", "too large; use at most 18446744073709551614, or none"),
    ];
    for (text, remedy) in table {
        let error = text.parse::<Assignment>().expect_err(text);
        assert!(error.contains(remedy), "{text}: {error}");
    }
}
