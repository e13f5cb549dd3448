//! Every bound of the wire format, with its reason. Bounds of the daemon's own working (queues,
//! quotas, timeouts) live in the broker. Must never hold a bound without its reason.

/// Most items, and most fds, in one message: the kernel carries at most 253 fds per message,
/// all control messages summed (`SCM_MAX_FD`, include/net/scm.h).
pub const MAX_BATCH: usize = 253;

/// Most allocations that one message ends, by unregister or by deposits that overlap them: the
/// items beyond say AGAIN, and the same again goes on. Each costs the broker some 1 us, in which it
/// serves nobody else.
pub const ENDS_PER_MESSAGE: usize = 64;

/// Most handles that one virtual fd is answered with beside its own: what a consumer fetches ahead
/// at a time. A tensor of 512 MiB is 26 segments of 20 MiB (PyTorch, expandable segments). Each
/// costs the broker some 0.2 us.
pub const MAX_NEIGHBOURS: u32 = 31;

/// Most fds that are fetched ahead at a time: all neighbours that one answer names.
pub const AHEAD_FDS: usize = 1 + MAX_NEIGHBOURS as usize;

/// Most memory whose fds are fetched ahead at a time, in bytes: 32 segments of 20 MiB, so that a
/// tensor's come at once. Such an fd pins its memory, though nobody has asked for it.
pub const AHEAD_BYTES: u64 = 640 << 20;

/// Bytes of driver data that an allocation may carry: the size of `ze_ipc_mem_handle_t`
/// (`ZE_MAX_IPC_HANDLE_SIZE`, ze_api.h), the largest handle known in the field.
pub const DRIVER_DATA_BYTES: usize = 64;

/// Largest message on the client and event sockets, in bytes: a full `Granted` with driver data for
/// each item, 16 + 253 * (88 + 64) = 38,472, and a full `Redeposit`, 32 + 253 * 208 = 52,656;
/// rounded up to a power of two. Far below the 212,992 bytes of a default SO_SNDBUF, so EMSGSIZE
/// cannot happen.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Largest message on the administrator's socket, in bytes: answers are paged so that one never
/// holds the daemon's loop for long.
pub const MAX_ADMIN_MESSAGE_BYTES: usize = 32 * 1024;

/// Largest message about objects, in bytes: as on the administrator's socket, so that one never
/// holds the daemon's loop for long. Longer groups come in several messages.
pub const MAX_OBJECT_MESSAGE_BYTES: usize = 32 * 1024;

/// Most bytes of an object's name: what one byte counts, and what a file name has (NAME_MAX,
/// include/uapi/linux/limits.h).
pub const NAME_OF_OBJECT_BYTES: usize = 255;

/// Most bytes of an object's metadata: shapes, types and strides of a tensor take some hundred.
pub const METADATA_BYTES: usize = 4096;

/// Metadata up to so many bytes comes with the answer to a get, if that has room.
pub const METADATA_IN_GOT_BYTES: usize = 64;

/// Most objects of a group: as many as a message has items, so that one get can name them all.
pub const MAX_GROUP: usize = MAX_BATCH;

/// Bytes of a client's name: the kernel's `TASK_COMM_LEN` (include/linux/sched.h).
pub const NAME_BYTES: usize = 16;

/// Longest path of a configuration file that is told; a longer one is told as none.
pub const CONFIG_PATH_BYTES: usize = 512;

/// Bytes of the name of a process: TASK_COMM_LEN of include/linux/sched.h, its last byte always 0.
pub const COMMAND_BYTES: usize = 16;

/// How many earlier files of one allocation the broker remembers. An owner that exports a new
/// dma-buf at each recall has one per recall; copies of older files are rare.
pub const FORMER_FILES: usize = 3;

/// Bytes of a job's name: `k8s:` and a pod's UID are 40; a unit's name that is longer is cut.
pub const JOB_NAME_BYTES: usize = 48;

/// Longest wait a client may ask for, in ms: one hour. A longer one is cut to this, so that every
/// parked request has an end.
pub const MAX_DEADLINE_MS: u32 = 3_600_000;

const _: () = {
    assert!(ENDS_PER_MESSAGE <= MAX_BATCH && AHEAD_FDS <= MAX_BATCH);
    assert!(32 + MAX_BATCH * 208 <= MAX_MESSAGE_BYTES);
    assert!(MAX_ADMIN_MESSAGE_BYTES <= MAX_MESSAGE_BYTES);
    assert!(METADATA_IN_GOT_BYTES <= METADATA_BYTES && NAME_OF_OBJECT_BYTES <= u8::MAX as usize);
    assert!(METADATA_BYTES + NAME_OF_OBJECT_BYTES < MAX_OBJECT_MESSAGE_BYTES);
};
