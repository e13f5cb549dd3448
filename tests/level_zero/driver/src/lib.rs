//! A Level Zero driver for machines without a GPU. The real loader loads it by
//! `ZE_ENABLE_ALT_DRIVERS=/abs/path`. Must never be installed or shipped, and never allow a program
//! what Intel's driver does not.
//!
//! Device memory consists of memfds (or udmabufs) that a helper process holds, as the kernel holds
//! a GPU's buffers. An allocation or an import costs this process no fd; an export does. Device
//! pointers are reserved addresses without access: a program that dereferences one faults, as on a
//! discrete card.
//!
//! Its rules are those of compute-runtime on Linux (`level_zero/core/source/context`):
//!
//! | what | rule |
//! |---|---|
//! | export | one fd per memory object, owned by the driver: made at the first Get or `export_fd`, then the same number |
//! | Put | counts down what Get counted up; at 0 the driver closes the fd. An unknown handle is no error |
//! | Free | closes the exported fd with the memory; in a pool the fd lives as long as the pool's memory does. An opened handle |
//! | | may be freed, too: Close is Free there |
//! | Unmap, Destroy | physical memory lives until it is destroyed, mapped or not, and its exported fd with it |
//! | Open | of device memory: the fd stays the caller's; of host memory and of an event pool: as `import_fd`. Each Open of one handle gives a new pointer; Close takes exactly that pointer |
//! | `import_fd` | on success the driver closes the fd; older drivers never do (a switch) |
//! | `...FromFileDescriptorExp` | knows only fds that this process exported |
//! | devices | `devices.rs`; ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK are read as Intel's driver reads them |
//! | place | memory is on the card and tile of the device that allocated it, in whichever process it is imported; an |
//! | | import's device is that which imported it. `zeTestDriverWhere` says the place, and so does a memfd's name |
//! | tiles | memory of a device of two tiles has an fd for each: `zexMemGetIpcHandles` gives both handles |
//! | event pool | one fd, which the driver keeps until the pool is destroyed; Put is not supported |
//! | pool | allocations without `export_desc` may share one object; the offset stands in the handle's bytes 8..16 only |
//! | opaque, both fd numbers equal | the driver fetches the fd from the exporter (`pidfd_getfd`) and keeps it while the |
//! | | import is open. It reuses that fd for the same pid and number, even when the number means other memory by now |
//! | opaque, numbers differ | bytes 0..4 are the caller's own fd |
//! | one number | with a pid, the fd is the exporter's, and the caller's own only where the exporter has no such fd; without a |
//! | | pid it is the caller's own |
//!
//! Switches, in the environment; a value not named here makes `zeInit` fail:
//!
//! | variable | values, the first is the default |
//! |---|---|
//! | `ZE_TEST_DRIVER_HANDLES` | `legacy`, `opaque`, `one-number` |
//! | `ZE_TEST_DRIVER_POOL` | `no`, `yes` |
//! | `ZE_TEST_DRIVER_CARDS` | `one`, `two`, `four` |
//! | `ZE_TEST_DRIVER_TILES` | `one`, `two`: of each card |
//! | `ZE_TEST_DRIVER_UUIDS` | `pci`, `ordinal`: as old runtimes, by the card's number in the process |
//! | `ZE_TEST_DRIVER_PEERS` | `yes`, `no`: what zeDeviceCanAccessPeer says of two cards |
//! | `ZE_TEST_DRIVER_FULL` | `no`, `at-first`: each allocation finds the card full, and has room when it is tried again |
//! | `ZE_TEST_DRIVER_IMPORT_FD` | `driver-closes`, `caller-closes` |
//! | `ZE_TEST_DRIVER_MEMORY` | `memfd`, `udmabuf` (needs /dev/udmabuf) |
//! | `ZE_TEST_DRIVER_TRACE` | `no`, `yes`: prints each call, and at exit what was not given back |
//! | `ZE_TEST_DRIVER_HELPER` | path of `ze-test-memory`; by default beside this library |

mod allocation;
mod answer;
mod api;
mod copy;
#[path = "../../counters.rs"]
#[allow(dead_code)] // the client uses the rest
mod counters;
mod devices;
mod event_pool;
mod export;
mod handle;
mod import;
mod limits;
mod mapping;
mod memory;
mod object;
mod opaque;
#[allow(dead_code)] // the helper uses the rest
mod protocol;
mod settings;
mod signal;
mod trace;
mod virtual_memory;
