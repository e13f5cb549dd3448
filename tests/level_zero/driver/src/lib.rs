//! A Level Zero driver for machines without a GPU: the real loader loads it through `ZE_ENABLE_ALT_DRIVERS=/abs/path`.
//! It must never be installed or shipped, and never be kinder than Intel's driver where a program could rely on it.
//!
//! "Device" memory is memfds (or udmabufs) that a helper process holds, as the kernel holds a GPU's buffers: an
//! allocation or an import costs this process no fd, only an export does. Device pointers are addresses of their own
//! without access: a program that dereferences one faults, as it would on a discrete card.
//!
//! Rules, after compute-runtime on Linux (`level_zero/core/source/context`):
//!
//! | what | rule |
//! |---|---|
//! | export | one fd per memory object, the driver's own: made at the first Get or `export_fd`, then the same number |
//! | Put | counts down what Get counted up; at 0 the fd is closed. Of an unknown handle: success, nothing happens |
//! | Free | closes the exported fd with the memory; in a pool the fd lives as long as the pool's memory does |
//! | Open | its fd stays the caller's. Each Open of one handle gives another pointer; Close takes that very pointer |
//! | `import_fd` | on success the driver closes the fd, or (older drivers) never does: see the switches |
//! | `...FromFileDescriptorExp` | knows only fds this process exported |
//! | pool | allocations without `export_desc` may share one object; only the handle's bytes 8..16 say the offset |
//! | opaque, both fd numbers equal | the fd is fetched from the exporter (`pidfd_getfd`) and kept while the import is |
//! | | open; for the same pid and number it is taken again, even if the exporter means other memory by now |
//! | opaque, numbers differ | bytes 0..4 are the caller's own fd |
//!
//! Switches, in the environment; a value not named here makes `zeInit` fail:
//!
//! | variable | values, the first is the default |
//! |---|---|
//! | `ZE_TEST_DRIVER_HANDLES` | `legacy`, `opaque` |
//! | `ZE_TEST_DRIVER_POOL` | `no`, `yes` |
//! | `ZE_TEST_DRIVER_IMPORT_FD` | `driver-closes`, `caller-closes` |
//! | `ZE_TEST_DRIVER_MEMORY` | `memfd`, `udmabuf` (needs /dev/udmabuf) |
//! | `ZE_TEST_DRIVER_TRACE` | `no`, `yes`: each call on stderr, and at exit what was not given back |
//! | `ZE_TEST_DRIVER_HELPER` | path of `ze-test-memory`; by default beside this library |

mod allocation;
mod answer;
mod api;
mod copy;
#[path = "../../counters.rs"]
#[allow(dead_code)] // the client has its use of each item
mod counters;
mod export;
mod handle;
mod import;
mod limits;
mod mapping;
mod memory;
mod object;
mod opaque;
#[allow(dead_code)] // the helper has its use of each item
mod protocol;
mod settings;
mod signal;
mod trace;
