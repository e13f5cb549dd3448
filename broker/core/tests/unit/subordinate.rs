use super::*;

fn range(first: u32, count: u32, user: u32) -> SubordinateRange {
    SubordinateRange { first, count, user: Some(user) }
}

#[test]
fn user_of_when_in_a_range_or_its_owner_then_the_owner_and_else_nobody() {
    let uids = SubordinateUids::new(vec![
        range(300_000, 65_536, 1001),
        range(100_000, 65_536, 1000),
        range(u32::MAX - 1, 5, 1000),
    ]);
    for (uid, user) in [
        (1000, Some(1000)),
        (1001, Some(1001)),
        (1002, None),
        (99_999, None),
        (100_000, Some(1000)),
        (165_535, Some(1000)),
        (165_536, None),
        (365_535, Some(1001)),
        (365_536, None),
        (u32::MAX, Some(1000)),
    ] {
        assert_eq!(uids.user_of(uid), user, "{uid}");
    }
    assert_eq!(SubordinateUids::default().user_of(0), None);
}

#[test]
fn user_of_when_ranges_overlap_then_the_first_one_has_its_uids() {
    let uids = SubordinateUids::new(vec![range(15, 100, 2), range(10, 10, 1), range(20, 5, 3)]);
    let of = [10, 15, 19, 20, 24, 25].map(|uid| uids.user_of(uid));
    assert_eq!(of, [Some(1), Some(1), Some(1), Some(3), Some(3), None]);
    assert_eq!(uids.user_of(2), None, "it has no range");
}

#[test]
fn user_of_when_an_engine_has_the_range_then_each_container_is_a_user_and_the_engine_is_none() {
    let pool = SubordinateRange { first: 65_536, count: 65_536 * 110, user: None };
    let uids = SubordinateUids::new(vec![pool, range(100_000_000, 65_536, 1000)]);
    for (uid, user) in [
        (65_535, None),
        (65_536, Some(65_536)),
        (131_071, Some(65_536)),
        (131_072, Some(131_072)),
        (131_072 + 1000, Some(131_072)),
        (65_536 * 111 - 1, Some(65_536 * 110)),
        (65_536 * 111, None),
        (100_000_001, Some(1000)),
    ] {
        assert_eq!(uids.user_of(uid), user, "{uid}");
    }
    // podman's range begins at no multiple.
    let uids = SubordinateUids::new(vec![SubordinateRange {
        first: 2_147_483_647,
        count: 2_147_483_648,
        user: None,
    }]);
    assert_eq!(uids.user_of(2_147_483_646), None);
    assert_eq!(uids.user_of(2_147_483_647 + 65_536 + 5), Some(2_147_483_647 + 65_536));
    assert_eq!(uids.user_of(u32::MAX - 1), Some(u32::MAX - 65_536));
}

#[test]
fn user_of_domain_when_in_a_pod_then_it_is_the_pods_whatever_its_uid() {
    let uids = SubordinateUids::new(vec![range(100_000, 65_536, 1000)]);
    for uid in [1000, 100_000] {
        let key = DomainKey::new(0, uid);
        assert_eq!(uids.user_of_domain(key), Some((1000, PodKey::NONE)));
        let pod = PodKey([7, 7]);
        assert_eq!(uids.user_of_domain(DomainKey { pod, ..key }), Some((u32::MAX, pod)));
    }
}
