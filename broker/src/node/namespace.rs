//! Whether the broker runs in a user namespace of its own, and which ids then stand for users outside it. Must never
//! change after the start.

/// The ids that stand for users and groups which are unknown in this user namespace; `None` in the first namespace,
/// where all are known and these ids are like any other (user_namespaces(7)).
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Namespace {
    /// This process's.
    pub fn of_this_process() -> Self {
        Namespace {
            uid: overflow_id("/proc/self/uid_map", "/proc/sys/fs/overflowuid"),
            gid: overflow_id("/proc/self/gid_map", "/proc/sys/fs/overflowgid"),
        }
    }

    /// Whether several users may have this uid.
    pub fn hides_user(self, uid: u32) -> bool {
        self.uid == Some(uid)
    }

    /// Whether several groups may have this gid.
    pub fn hides_group(self, gid: u32) -> bool {
        self.gid == Some(gid)
    }
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
