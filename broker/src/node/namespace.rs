//! Whether the broker runs in a user namespace of its own, and which ids then stand for users outside it. Must never
//! change after the start.

/// The uid that stands for users unknown in this user namespace; `None` in the first namespace,
/// where all are known and this uid is a user like any other (user_namespaces(7)).
pub(crate) fn overflow_uid() -> Option<u32> {
    overflow_id("/proc/self/uid_map", "/proc/sys/fs/overflowuid")
}

/// The same of groups.
pub(crate) fn overflow_gid() -> Option<u32> {
    overflow_id("/proc/self/gid_map", "/proc/sys/fs/overflowgid")
}

fn overflow_id(map: &str, overflow: &str) -> Option<u32> {
    if is_identity_map(&std::fs::read_to_string(map).unwrap_or_default()) {
        return None;
    }
    let text = std::fs::read_to_string(overflow).unwrap_or_default();
    Some(text.trim().parse().unwrap_or(65534))
}

fn is_identity_map(map: &str) -> bool {
    let words: Vec<&str> = map.split_whitespace().collect();
    words == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_identity_map_when_first_namespace_then_true() {
        assert!(is_identity_map("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "0 0 65536\n", "0 0 1000\n1000 1000 4294966295\n"] {
            assert!(!is_identity_map(map), "{map}");
        }
    }
}
