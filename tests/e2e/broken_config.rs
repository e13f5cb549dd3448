//! One wrong line in the configuration of a service: the broker goes on with what it had. Must
//! never depend on time.

use crate::fd_store::bound;
use crate::support::admin::Admin;
use crate::support::manager::Manager;
use crate::support::memory::{BLOCK_BYTES, all_seals, memfd};
use crate::support::raw::{Raw, block_item};
use crate::support::wait::eventually;
use fdbroker_protocol::Handle;
use fdbroker_protocol::message::{RegisterItem, register_flags};
use fdbroker_protocol::object::object_flags::PIN;
use nix::sys::signal::Signal;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A service with sockets of its manager, by a configuration with these lines of its listener.
struct Node {
    manager: Manager,
    client: PathBuf,
    admin: PathBuf,
    sockets: [(&'static str, std::os::fd::OwnedFd); 2],
}

impl Node {
    fn new() -> Node {
        let mut manager = Manager::new(&[]);
        let at = |name: &str| manager.dir().join(name);
        let (client, admin) = (at("a/broker.sock"), at("admin/admin.sock"));
        let sockets = [("client", bound(&client)), ("admin", bound(&admin))];
        manager.listen_in(&["a"]);
        Node { manager, client, admin, sockets }
    }

    /// The file has these lines behind those of its listener.
    fn write(&mut self, more: &str) {
        self.manager.listen_in(&["a"]);
        let path = self.manager.dir().join("config.toml");
        let text = std::fs::read_to_string(&path).expect("written") + more;
        std::fs::write(path, text).expect("written");
    }

    fn start(&mut self) {
        self.manager.start(&self.sockets);
    }

    fn is_refused(&self) -> bool {
        Admin::connect(&self.admin).status().gauges.config_refused.get() == 1
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn broker_when_its_file_breaks_then_kept_objects_and_handles_are_good_over_restarts_and_crashes() {
    let mut node = Node::new();
    node.write("mode = 0o600\n[caps.node]\nallocations = 77\n");
    node.start();
    assert_eq!(mode(&node.client), 0o600, "it is given to the manager's socket");
    let mut owner = Raw::connect(&node.client);
    owner.put_bytes("w", b"weights", PIN);
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let item = RegisterItem { flags: register_flags::KEEP, ..block_item() };
    let handle = owner.register(&[item], &[block.as_fd()])[0].handle;
    let assert_is_there = |node: &Node, handle: &Handle| {
        let mut client = Raw::connect(&node.client);
        assert_eq!(client.read("w").expect("it is there").0, b"weights");
        assert!(client.acquire(&[*handle]).0[0].status.get().is_ok());
        let status = Admin::connect(&node.admin).status();
        assert_eq!(status.uses.allocations.cap.get(), 77);
    };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        node.write("mode = 0o600\n[caps.node]\nallocations = 78\ncolour = 1\n");
        node.manager.end(signal);
        node.start();
        assert_is_there(&node, &handle.get());
        assert!(node.is_refused());
    }
    let said = "`colour = 1`: unknown field";
    assert_eq!(node.manager.log().matches(said).count(), 2, "{}", node.manager.log());
    // A mended file is taken at once.
    node.write("mode = 0o600\n[caps.node]\nallocations = 77\n");
    node.manager.signal(Signal::SIGHUP);
    eventually("it is taken", || !node.is_refused());
    node.manager.end(Signal::SIGTERM);
    node.start();
    assert_is_there(&node, &handle.get());
    assert!(!node.is_refused());
}

#[test]
fn broker_when_the_store_is_too_small_for_what_may_be_kept_then_said_at_the_start_and_counted() {
    let mut manager = Manager::new(&[]);
    manager.set("FDSTORE", "130");
    manager.start(&[]);
    let admin = manager.dir().join("fdbroker-admin/admin.sock");
    let short = Admin::connect(&admin).status().gauges.store_short.get();
    assert!(short > 0, "{short}");
    let said = format!("raise FileDescriptorStoreMax= of the unit by {short}");
    // Whoever takes the log down may be behind.
    eventually("it is said", || manager.log().contains(&said));
}
