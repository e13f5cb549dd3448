//! The subordinate uids of this machine's users: /etc/subuid (subuid(5)), where user namespaces of
//! containers get theirs. Must never ask a name service: that could wait for a network.

use fdbroker_core::SubordinateRange;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

const RANGES: &str = "/etc/subuid";
const USERS: &str = "/etc/passwd";

/// Bytes that are read of either file: some 20,000 users. What follows is users without subordinate
/// uids.
const MOST_BYTES: u64 = 1 << 20;

/// Those of this machine, each with its user as the file names it; none where that cannot be read.
pub(crate) fn of_this_machine() -> Vec<(String, SubordinateRange)> {
    parse(&text(RANGES), &text(USERS))
}

fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    // What was read before an error counts.
    let _ = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// From lines `USER:FIRST:COUNT`, where the user is a name or a uid, and from those of passwd(5). A
/// user of another name service goes by the first of its uids. Other lines count as comments.
fn parse(ranges: &str, users: &str) -> Vec<(String, SubordinateRange)> {
    let uid_of_line = |line: &'_ str| -> Option<(String, u32)> {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    let mut uids: HashMap<String, u32> = users.lines().filter_map(uid_of_line).collect();
    let range = |line: &str| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?.to_owned();
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let user = match name.parse() {
            Ok(uid) => uid,
            Err(_) => *uids.entry(name.clone()).or_insert(first),
        };
        (count > 0).then_some((name, SubordinateRange { first, count, user: Some(user) }))
    };
    ranges.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::SubordinateUids;

    #[test]
    fn parse_when_users_are_names_or_uids_then_their_ranges_and_nothing_of_other_lines() {
        let ranges = "ann:100000:65536\n1002:165536:65536\nldap:300000:10\nldap:400000:10\n\
            # comment\nann:x:5\nann:7\nann:900000:0\nbob:4294967290:65536\n";
        let users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001:::\nnonsense\n";
        let found: Vec<_> = parse(ranges, users);
        assert_eq!(found[1].0, "1002");
        let found = SubordinateUids::new(found.into_iter().map(|(_, range)| range).collect());
        for (uid, user) in [
            (100_000, Some(1000)),
            (1000, Some(1000)),
            (165_536, Some(1002)),
            (300_009, Some(300_000)),
            (400_009, Some(300_000)),
            (u32::MAX, Some(1001)),
            (900_000, None),
            (7, None),
            (0, None),
        ] {
            assert_eq!(found.user_of(uid), user, "{uid}");
        }
        assert_eq!(parse("", users), []);
    }
}
