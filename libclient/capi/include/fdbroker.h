/* fdbroker.h - share memory between the processes of a node without holding its fds.
 *
 * Made from libclient/capi/src by cbindgen; edit there, then:
 *   FDBROKER_UPDATE_HEADER=1 cargo test -p fdbroker-capi --test header
 *
 * A producer registers an allocation and gets a handle of 64 bytes, which it passes on by value: through MPI, a file,
 * anything. A consumer imports the handle and gets memory (or acquires it and gets an fd). The broker, fdbrokerd, keeps
 * at most one fd per allocation, and every count of fds under a cap.
 *
 *   fdbroker_t *broker;                                        // both sides
 *   if (fdbroker_open(NULL, &broker) != FDBROKER_OK) puts(fdbroker_last_error());
 *
 *   void *mine; fdbroker_handle_t handle;                      // producer: memory, and its handle
 *   fdbroker_host_alloc(broker, FDBROKER_HOST_ARENA, 4096, 1000, &mine, &handle);
 *
 *   fdbroker_import_t theirs;                                  // consumer: mapped at theirs.ptr
 *   fdbroker_import(broker, &handle, FDBROKER_IMPORT_READ, 1000, &theirs);
 *   fdbroker_import_release(broker, &theirs);
 *
 *   fdbroker_close(broker);                                    // both sides
 *
 * Rules that hold for every function:
 *
 * Errors. A function answers FDBROKER_OK (0) or a positive code; fdbroker_strerror() says cause and remedy of a code,
 * fdbroker_last_error() what exactly failed in this thread's last failed call. NULL where a pointer is needed answers
 * FDBROKER_INVALID_ARGUMENT. What a function gives is written on failure too, as "nothing": pointer NULL, fd -1,
 * lease 0, handle and import all zero. A call for many writes all its results and all its codes.
 *
 * Waiting. Whatever may wait takes deadline_ms, in milliseconds from the call, at most an hour; 0: do not wait for
 * anything but the broker's answer. Where no deadline is said, the function never waits, or says how long at most.
 *
 * Ownership. What a function reads (structs, arrays, strings, fds) stays the caller's and is not looked at after it
 * returns. What it writes is the caller's: fds to be closed; leases, imports, host memory, requests and contexts to be
 * given back by the function named, once. Structs are plain: copy them as you like.
 *
 * Threads. Any thread may call anything at any time, several at once, except fdbroker_close() and what one
 * fdbroker_request_t is used for. Inside a callback nothing may wait: such a call answers FDBROKER_NOT_SUPPORTED.
 *
 * fork(2). In the child every call with the parent's context answers FDBROKER_NOT_CONNECTED, except fdbroker_close();
 * imports are not mapped there. Open anew, or exec. The parent notices nothing.
 *
 * Signals. The library raises none (no SIGPIPE), handles none, and a handler that interrupts a call only delays it.
 * Do not call it in a handler.
 *
 * Without a broker every call answers FDBROKER_NOT_CONNECTED at once; when one is back the library finds it by itself.
 * Handles, leases and registrations of before are void then; imports stay mapped until they are released.
 *
 * Growth. Structs that begin with struct_size grow at the end in later releases, and never otherwise: set it to sizeof,
 * zero the rest (for fdbroker_options_t use fdbroker_options_init()). A program built against an older header works
 * with a newer library, and the other way round unless it sets a field that the library does not know. In arrays the
 * first one's struct_size is the distance between all.
 *
 * The log goes to stderr: FDBROKER_LOG = error, warn (the default), info, debug or off. The socket is that of
 * FDBROKER_SOCKET, else the user's own, else the node's.
 */
#ifndef FDBROKER_H
#define FDBROKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors and versions -------------------------------------------------------------------------------- */

/* What a call answers: FDBROKER_OK, or why it was not done. The numbers never change their meaning. */
typedef int32_t fdbroker_code_t;

#define FDBROKER_OK 0                   /* Done. */
#define FDBROKER_NOT_CONNECTED 1        /* No broker, the connection is lost, or a forked child's copy. Retry later. */
#define FDBROKER_WRONG_NODE 2           /* The handle is of another node, or of this one before a reboot. */
#define FDBROKER_BAD_HANDLE 3           /* No handle (lease, pointer, import) of this broker, or given back before. */
#define FDBROKER_STALE 4                /* The allocation has ended: get a new handle from its owner. */
#define FDBROKER_NOT_PERMITTED 5        /* Another user's or client's allocation; at open, others' socket. */
#define FDBROKER_NO_QUOTA 6             /* A cap is full; fdbroker_last_error() names it and its largest holder. */
#define FDBROKER_AGAIN 7                /* Not ready yet: ask again. */
#define FDBROKER_TIMED_OUT 8            /* The deadline passed. */
#define FDBROKER_CANCELLED 9            /* The request was cancelled. */
#define FDBROKER_OWNER_GONE 10          /* The process that owned the allocation has ended. */
#define FDBROKER_OWNER_SILENT 11        /* The owner did not export its memory again when asked. */
#define FDBROKER_LOCAL_FD_LIMIT 12      /* This process has no free fd. Nothing is lost: close some and retry. */
#define FDBROKER_UNSUPPORTED_FD 13      /* This fd cannot be shared; fdbroker_last_error() says what it is. */
#define FDBROKER_NOT_SUPPORTED 14       /* Absent here; or a call that waits, made inside a callback. */
#define FDBROKER_PROTOCOL 15            /* Library and broker are not of the same release. */
#define FDBROKER_SHUTTING_DOWN 16       /* The broker is going away (the library reconnects), or is being drained. */
#define FDBROKER_INTERNAL 17            /* A fault in the library or the broker, or an exhausted system. */
#define FDBROKER_INVALID_ARGUMENT 64    /* Of this ABI alone: a NULL, struct_size, flag or value that cannot be. */

/* The name of a code, such as "NO_QUOTA"; "UNKNOWN" for a number of a later release. Static, never NULL. */
const char *fdbroker_error_name(fdbroker_code_t code);

/* Cause and remedy of a code, in a sentence each. Static, never NULL. */
const char *fdbroker_strerror(fdbroker_code_t code);

/* This thread's last failed call: what was tried, cause and remedy; for FDBROKER_NO_QUOTA the cap, its value and
 * its largest holder. "" when none failed. Never NULL; valid until this thread's next failing call or its end. */
const char *fdbroker_last_error(void);

/* The library's version, such as "0.1.0". Static. */
const char *fdbroker_version(void);

/* The soname's number: 0. A program built against another one's header must not use this library. */
uint32_t fdbroker_abi_version(void);

/* ---- Open and close ------------------------------------------------------------------------------------- */

/* No library thread: the application polls fdbroker_event_fd() and calls fdbroker_dispatch(); blocking calls
 * serve events too. Callbacks run on the threads that do either. */
#define FDBROKER_OPEN_DISPATCH 1

#define FDBROKER_OPEN_NO_RECONNECT 2    /* Do not look for a broker again when the connection is lost. */

/* For cache_max_entries and cache_max_bytes, and what -1 means in the other settings: the environment's value
 * (FDBROKER_CACHE_MAX_ENTRIES, FDBROKER_CACHE_MAX_BYTES, FDBROKER_LEAVE_PINNED, FDBROKER_EMPTY_CACHE,
 * FDBROKER_PRINT_STATS), else the built-in one. */
#define FDBROKER_DEFAULT (-1)

/* A connection to the node's broker, with its leases, host memory and import cache. One per process is enough: all
 * threads share it, and every function may be called by several threads at once, unless it says otherwise. */
typedef struct fdbroker fdbroker_t;

/* Settings of fdbroker_open(). Fill by fdbroker_options_init(), then change what shall differ. */
typedef struct fdbroker_options {
  uint64_t struct_size;          /* Set by fdbroker_options_init(). */
  /* Path of the broker's socket. NULL: FDBROKER_SOCKET, else the user's own, else the node's. */
  const char *socket;
  const char *name;              /* For display, cut to 16 bytes. NULL: the command's name. */
  uint32_t flags;                /* FDBROKER_OPEN_*. */
  /* Fds of shared memory that this process will hold by itself, charged to it: a memfd for each arena, and at
   * least one export on its way to the broker. 0: 2. */
  uint32_t own_fds;
  /* Address space of each arena of host memory, in bytes; pages come as they are used. 0: 64 GiB, or less where
   * the address space is limited. Ask for little under valgrind, which touches every page of it at the end. */
  uint64_t arena_bytes;
  int64_t cache_max_entries;     /* Entries in the import cache; 0: no limit. */
  int64_t cache_max_bytes;       /* Bytes of the memory that the import cache keeps open; 0: no limit. */
  /* 1: imports stay in the cache when their last user releases them; 0: they are closed; -1: default. */
  int32_t leave_pinned;
  /* 1: a full cache closes all that it does not use; 0: only as many as needed; -1: default. */
  int32_t empty_cache;
  int32_t print_stats;           /* 1: fdbroker_close() prints a line of counters on stderr; 0: not; -1: default. */
  uint32_t reserved;             /* 0. */
} fdbroker_options_t;

/* Sets every option to its default, struct_size included. NULL: does nothing. */
void fdbroker_options_init(fdbroker_options_t *options);

/* Connects to the broker. On success *out is a context, the caller's until fdbroker_close(); otherwise NULL. Waits at
 * most 7 s: 5 s for a broker that hangs, 2 s for a node whose fds are all in use. options NULL: all defaults.
 *
 * Starts one library thread, with all signals blocked, that serves recalls and calls the callbacks; none with
 * FDBROKER_OPEN_DISPATCH. Not inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (at once when nobody listens), FDBROKER_NOT_PERMITTED (the socket refuses this
 * user), FDBROKER_PROTOCOL, FDBROKER_NO_QUOTA, FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_open(const fdbroker_options_t *options, fdbroker_t **out);

/* Ends the connection: gives back all leases, unmaps all imports, frees all host memory, waits for a running
 * callback and for the library thread. No pointer, lease, import or request of it may be used afterwards; fds of
 * grants stay the caller's. No other thread may be using the context. NULL: does nothing.
 *
 * In a forked child: puts the child's copy aside; the parent notices nothing.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (inside a callback; nothing is closed). */
fdbroker_code_t fdbroker_close(fdbroker_t *broker);

/* 1 when calls can be made now; 0 while the broker is away, in a forked child, and for NULL. Sends nothing. */
int32_t fdbroker_is_connected(const fdbroker_t *broker);

/* Returns when the broker has carried out what this context did before without waiting for it: releases, and memory
 * freed by fdbroker_host_free(). After it (and a barrier) no process gets freed memory by its old handle any more, not
 * even for the moment that the message takes: it is FDBROKER_STALE for all. Waits until the deadline at most.
 *
 * Errors: FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_flush(fdbroker_t *broker, uint32_t deadline_ms);

/* ---- The handle ----------------------------------------------------------------------------------------- */

/* A handle: 64 bytes that name an allocation, and a place inside it, on this node. Copy it by value through MPI,
 * a file, anything; all 64 bytes, unchanged. Compare two by fdbroker_handle_parse, not by memcmp. */
typedef struct fdbroker_handle {
  uint8_t bytes[64];
} fdbroker_handle_t;

/* What a handle says of itself, for printing. node, slot and generation name the allocation; the rest are its
 * owner's hints. */
typedef struct fdbroker_handle_info {
  uint64_t struct_size;          /* sizeof(fdbroker_handle_info_t), set by the caller. */
  uint32_t version;              /* Of the handle's layout. */
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint64_t node;                 /* Hash of the node's boot id. */
  uint32_t slot;
  uint32_t generation;
  uint64_t size_bytes;           /* Of the allocation, in bytes. */
  uint64_t offset_bytes;         /* Of the pointer that was exported, inside the allocation, in bytes. */
  uint64_t owner_allocation_id;
  uint32_t device;               /* The owner's device ordinal. */
  uint32_t reserved;
} fdbroker_handle_info_t;

/* Reads what a handle says of itself. Needs no context, sends nothing, and proves nothing: only the broker can tell
 * whether it is genuine and current. Any thread, also in a callback and in a forked child.
 *
 * Errors: FDBROKER_BAD_HANDLE (these 64 bytes are no handle of this version), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_handle_parse(const fdbroker_handle_t *handle, fdbroker_handle_info_t *info);

/* ---- Producers: registering memory ---------------------------------------------------------------------- */

#define FDBROKER_KIND_DMA_BUF 1         /* A dma-buf: the broker proves its size. */
#define FDBROKER_KIND_CUDA_VMM 2        /* A CUDA VMM export: its size is claimed. */
#define FDBROKER_KIND_MEMFD 3           /* A range of a memfd with F_SEAL_SHRINK and F_SEAL_SEAL: size proved. */
#define FDBROKER_SHARE_UID 0            /* Clients of the same socket and user may acquire it. */
#define FDBROKER_SHARE_GID 1            /* Clients of the same socket that have the owner's group. */
#define FDBROKER_SHARE_ANY 2            /* Whoever presents the handle. */
#define FDBROKER_RECALLABLE 1           /* The recall callback exports it again: the broker may close its fd. */

/* It outlives this process, for a time (the broker's limits.keep_ttl_ms): its handle works on, and the broker never
 * closes its fd before. Charged to kept_allocations; FDBROKER_NO_QUOTA when those are used up. */
#define FDBROKER_KEEP 2

/* An allocation to register. */
typedef struct fdbroker_allocation {
  /* sizeof(fdbroker_allocation_t), set by the caller; in arrays of the first, for all. */
  uint64_t struct_size;
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint32_t share;                /* FDBROKER_SHARE_*. */
  uint32_t device;               /* The owner's device ordinal. */
  uint32_t flags;                /* FDBROKER_RECALLABLE, FDBROKER_KEEP. */
  uint64_t size_bytes;           /* More than 0. */
  uint64_t fd_offset;            /* Where in the fd it begins, in bytes. */
  /* The owner's id of it (Level Zero's allocation id, CUDA's buffer id): another id at the same address is
   * another allocation. */
  uint64_t owner_allocation_id;
  uint64_t base;                 /* Its address in this process; 0: none. */
  const void *driver_data;       /* The driver's handle bytes, given with each grant; copied, the caller's. */
  uint64_t driver_data_len;      /* At most 64. */
} fdbroker_allocation_t;

/* Registers one allocation: the broker gets a duplicate of its fd. The caller's stays the caller's, and may be closed
 * at once. The handle is good until fdbroker_unregister() or the end of this process; over a crash of the broker if it is
 * FDBROKER_RECALLABLE or FDBROKER_KEEP (FDBROKER_NOTICE_REGISTRATION_LOST tells which were lost).
 *
 * With base set there is one registration per allocation: the same device, base, size and id again give the handle
 * known, without asking the broker. Another size or id there, or a range that overlaps, means that the memory
 * there was freed: the old registration ends at once.
 *
 * Errors: FDBROKER_NO_QUOTA, FDBROKER_UNSUPPORTED_FD (fdbroker_last_error() says what it is), FDBROKER_STALE (another
 * thread registered other memory there meanwhile), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_TIMED_OUT,
 * FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (fd not open, too). *handle is all zero then. */
fdbroker_code_t fdbroker_register(fdbroker_t *broker, const fdbroker_allocation_t *allocation, int fd,
    uint32_t deadline_ms, fdbroker_handle_t *handle);

/* Registers count allocations, fds[i] being that of allocations[i] (the same fd may stand there many times), 253 per
 * message. Fills all handles and all codes (codes may be NULL), in their order; those that failed are all zero.
 * FDBROKER_OK when all were registered, else the first failure.
 *
 * Errors: of each as fdbroker_register(). */
fdbroker_code_t fdbroker_register_many(fdbroker_t *broker, size_t count,
    const fdbroker_allocation_t *allocations, const int *fds, uint32_t deadline_ms,
    fdbroker_handle_t *handles, fdbroker_code_t *codes);

/* Ends the registration of the allocation that a handle names: no more grants, the broker's fd closed, every holder
 * told. Consumers that have the memory keep it until they release it: use the memory anew after
 * FDBROKER_NOTICE_DRAINED, or at once when fdbroker_unregister_drained() says so. Not for host memory, which
 * fdbroker_host_free() ends. Waits at most 10 s for the broker's answer.
 *
 * Errors: FDBROKER_STALE (ended before), FDBROKER_BAD_HANDLE, FDBROKER_NOT_PERMITTED (another client's),
 * FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_unregister(fdbroker_t *broker, const fdbroker_handle_t *handle);

/* The same, and *drained = 1 when no lease was left: FDBROKER_NOTICE_DRAINED does not come then, and the memory may
 * be used anew at once. Otherwise, and on failure, 0. */
fdbroker_code_t fdbroker_unregister_drained(fdbroker_t *broker, const fdbroker_handle_t *handle,
    int32_t *drained);

/* The handle of the allocation that pointer points into, with the offset inside it: of host memory, or registered
 * with a base. A lookup, no message: 253 pointers into one allocation are one registration. Host memory of the
 * arenas is registered here when it is not yet, or no more: that takes until the deadline at most.
 *
 * Also inside a callback, where only what is registered already is found.
 *
 * Errors: FDBROKER_STALE (pointer into nothing that is registered now; of FDBROKER_HOST_ISOLATED and
 * FDBROKER_HOST_DMA_HEAP memory also after a crash of the broker, which ends its sharing), as fdbroker_register(),
 * FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. *handle is all zero then. */
fdbroker_code_t fdbroker_get_handle(fdbroker_t *broker, const void *pointer, uint32_t device,
    uint32_t deadline_ms, fdbroker_handle_t *handle);

/* ---- Producers: host memory ----------------------------------------------------------------------------- */

#define FDBROKER_HOST_ARENA 0           /* A range of the memfd arena: recallable, costs no fd. */
#define FDBROKER_HOST_UDMABUF 1         /* A range of an arena, exported as dma-bufs by /dev/udmabuf: recallable. */
#define FDBROKER_HOST_ISOLATED 2        /* A memfd of its own, so that a consumer sees nothing else: resident. */
#define FDBROKER_HOST_DMA_HEAP 3        /* A buffer of /dev/dma_heap/system: resident. */

/* Allocates size_bytes (more than 0, in whole pages) of memory to share with processes of the same user: *ptr is
 * mapped and writable, the caller's until fdbroker_host_free(). It is registered within the deadline; for the arenas
 * handle may be NULL, and fdbroker_get_handle() registers it later. On failure *ptr is NULL, *handle all zero, and
 * nothing is left behind. What was written in an arena before may still be there.
 *
 * A forked child shares the pages with its parent.
 *
 * Errors: FDBROKER_NO_QUOTA (the arena or a cap is full), FDBROKER_NOT_SUPPORTED (this memory is absent here; or inside
 * a callback, when it is to be registered), FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL (the system has no memory), as
 * fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_host_alloc(fdbroker_t *broker, uint32_t memory, uint64_t size_bytes,
    uint32_t deadline_ms, void **ptr, fdbroker_handle_t *handle);

/* Frees host memory: it is unregistered, every holder is told, and the pages are used anew when the last consumer
 * has released them. Never waits (fdbroker_flush() does, until its handle is stale for all); also inside a
 * callback.
 *
 * Errors: FDBROKER_BAD_HANDLE (unknown pointer, not the first byte, or freed before; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: it is the parent's), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_host_free(fdbroker_t *broker, void *ptr);

/* ---- Consumers: fds and leases -------------------------------------------------------------------------- */

/* A duplicate fd of an allocation, with the lease that says so on the broker's ledger. */
typedef struct fdbroker_grant {
  /* sizeof(fdbroker_grant_t), set by the caller; in arrays of the first, and the library sets the others. */
  uint64_t struct_size;
  int32_t fd;                    /* The caller's, close-on-exec; -1: none. */
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint64_t lease;                /* This context's number of the lease, to be given back once; 0: none. */
  uint64_t size_bytes;           /* Of the allocation, in bytes: bounds every offset, whatever the handle says. */
  uint64_t fd_offset;            /* Where in the fd it begins, in bytes. */
  uint64_t owner_allocation_id;
  uint32_t device;               /* The owner's device ordinal. */
  uint32_t slot;
  uint32_t generation;
  uint32_t driver_data_len;
  uint8_t driver_data[64];       /* The driver's handle bytes, as the owner registered them. */
} fdbroker_grant_t;

/* Acquires one allocation: grant->fd is a duplicate of its fd, grant->lease its lease. Import the memory, close the
 * fd, call fdbroker_lease_mapped(), and fdbroker_release() when it is unmapped. (fdbroker_import() does all that.)
 * On failure fd is -1 and lease 0. Waits until the deadline at most.
 *
 * Errors: FDBROKER_WRONG_NODE, FDBROKER_BAD_HANDLE, FDBROKER_STALE, FDBROKER_NOT_PERMITTED, FDBROKER_NO_QUOTA,
 * FDBROKER_OWNER_GONE, FDBROKER_OWNER_SILENT, FDBROKER_LOCAL_FD_LIMIT (nothing lost: retry), FDBROKER_TIMED_OUT,
 * FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_acquire(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t deadline_ms,
    fdbroker_grant_t *grant);

/* Acquires count allocations, 253 per message. Fills all grants and all codes (codes may be NULL), in the order of
 * the handles, also those of what failed: fd -1, lease 0. All their fds are open at once: import a working set by
 * fdbroker_import_many(), which needs none. FDBROKER_OK when all were granted, else the first failure.
 *
 * Errors: of each as fdbroker_acquire(). */
fdbroker_code_t fdbroker_acquire_many(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t deadline_ms, fdbroker_grant_t *grants, fdbroker_code_t *codes);

/* Tells the broker that the memory is imported and the fd closed: close it first. From then on the lease costs no
 * fd of any cap. Twice is once. Never waits; also inside a callback.
 *
 * Errors: FDBROKER_BAD_HANDLE (no such lease, or given back), FDBROKER_NOT_CONNECTED (in a forked child). */
fdbroker_code_t fdbroker_lease_mapped(fdbroker_t *broker, uint64_t lease);

/* 1 when the allocation of a lease lives, the broker lives, and the lease is of the present connection; else 0 (also
 * for a lease given back, for NULL, and in a forked child). Sends nothing. */
int32_t fdbroker_lease_is_current(fdbroker_t *broker, uint64_t lease);

/* Gives a lease back: close the fd and unmap the memory first. Never waits; also inside a callback. FDBROKER_OK while
 * there is no broker, too: the next one does not hear of the lease.
 *
 * Errors: FDBROKER_BAD_HANDLE (no such lease, or given back before; nothing changes), FDBROKER_NOT_CONNECTED (in a
 * forked child: the lease is the parent's). */
fdbroker_code_t fdbroker_release(fdbroker_t *broker, uint64_t lease);

/* Gives count leases back, 253 per message: those that are there, whatever the others are.
 *
 * Errors: as fdbroker_release(), the first. */
fdbroker_code_t fdbroker_release_many(fdbroker_t *broker, size_t count, const uint64_t *leases);

/* ---- Consumers: acquiring without waiting --------------------------------------------------------------- */

/* Acquires under way. One thread at a time may use it. */
typedef struct fdbroker_request fdbroker_request_t;

/* Starts to acquire count handles without waiting for anything. On success *request is the caller's until
 * fdbroker_request_test() says it is done or fdbroker_request_cancel(), which must be before fdbroker_close(); the
 * handles need not stay. Also inside a callback. On failure *request is NULL.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT; all else is told by fdbroker_request_test(). */
fdbroker_code_t fdbroker_acquire_start(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t deadline_ms, fdbroker_request_t **request);

/* Does what can be done now, without waiting. FDBROKER_AGAIN: still under way, nothing is written. Otherwise it is
 * done: all grants and codes (codes may be NULL) are filled as by fdbroker_acquire_many(), and the request is freed.
 * Also inside a callback.
 *
 * Errors: of each as fdbroker_acquire(), the first; FDBROKER_INVALID_ARGUMENT (the request stays as it was). */
fdbroker_code_t fdbroker_request_test(fdbroker_request_t *request, fdbroker_grant_t *grants,
    fdbroker_code_t *codes);

/* Gives a request up and frees it: the broker is told, and what it grants all the same is given back. Never waits;
 * also inside a callback. NULL: does nothing. */
fdbroker_code_t fdbroker_request_cancel(fdbroker_request_t *request);

/* ---- Consumers: memory, through the import cache -------------------------------------------------------- */

#define FDBROKER_IMPORT_READ 0          /* Map for reading. */
#define FDBROKER_IMPORT_WRITE 1         /* Map for reading and writing. */

/* Memory of another process, mapped here and in use: filled by the library, kept by the caller, given back once. */
typedef struct fdbroker_import {
  /* The allocation's first byte plus the handle's offset. Not mapped in a forked child. */
  void *ptr;
  uint64_t size_bytes;           /* From there to the allocation's end, in bytes. */
  uint64_t pin;                  /* The library's; 0: nothing. */
  uint32_t slot;
  uint32_t generation;
} fdbroker_import_t;

/* Maps the memory of a handle, from the import cache when it is there and current: no message, no syscall then. The
 * memory stays mapped until fdbroker_import_release(), whatever becomes of the allocation; ask
 * fdbroker_import_is_current() before trusting what was read. On failure *import is all zero, and nothing is left
 * behind. Waits until the deadline at most.
 *
 * Errors: as fdbroker_acquire(); FDBROKER_BAD_HANDLE also when the offset is not inside the allocation,
 * FDBROKER_NOT_SUPPORTED also for memory that the CPU cannot map. */
fdbroker_code_t fdbroker_import(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t flags,
    uint32_t deadline_ms, fdbroker_import_t *import);

/* Maps count handles; those not in the cache come 253 per message, and each fd is closed before the next ones come, so
 * that a soft limit of 32 fds suffices for any number. Fills all imports and all codes (codes may be NULL), in
 * their order; those that failed are all zero. The same handle twice is two imports of one mapping. FDBROKER_OK when
 * all were mapped, else the first failure.
 *
 * Errors: of each as fdbroker_import(). */
fdbroker_code_t fdbroker_import_many(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t flags, uint32_t deadline_ms, fdbroker_import_t *imports, fdbroker_code_t *codes);

/* 1 when the allocation of an import lives, the broker lives, and the import is of the present connection; else 0
 * (also for NULL, one given back, and in a forked child). Two loads, no syscall. */
int32_t fdbroker_import_is_current(fdbroker_t *broker, const fdbroker_import_t *import);

/* Gives an import back and zeroes it: no pointer into it may be used any more. The mapping may stay in the cache for
 * the next one who wants it. Never waits; also inside a callback. Give back each import once: not a copy of the
 * struct besides it.
 *
 * Errors: FDBROKER_BAD_HANDLE (given back before, or nothing; no count changes), FDBROKER_NOT_CONNECTED (in a forked
 * child: it is the parent's), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_import_release(fdbroker_t *broker, fdbroker_import_t *import);

/* Closes what the import cache keeps and nobody uses; *closed, unless NULL, says how many. Also inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_empty_cache(fdbroker_t *broker, uint64_t *closed);

/* ---- Events: recalls, notices, dispatch ----------------------------------------------------------------- */

/* An allocation of which this process has a lease has ended; code says why: FDBROKER_STALE or FDBROKER_OWNER_GONE.
 * The memory stays mapped, and the lease on the ledger, until released. lease is 0 for those of the import cache. */
#define FDBROKER_NOTICE_REVOKED 1

/* An ended allocation of this process has no lease left: its memory may be used anew. */
#define FDBROKER_NOTICE_DRAINED 2

/* The broker would like this lease back if it is not in use. (The import cache sees to its own.) */
#define FDBROKER_NOTICE_RECLAIM 3

#define FDBROKER_NOTICE_GOING_AWAY 4    /* The broker is about to end or to restart. */

/* The connection is lost: nothing can be had until FDBROKER_NOTICE_RECONNECTED. Keep handles, leases and pointers. */
#define FDBROKER_NOTICE_DISCONNECTED 5

/* Connected again: handles, leases and registrations of before are good, but for those told of one by one before
 * this (FDBROKER_NOTICE_REVOKED, FDBROKER_NOTICE_REGISTRATION_LOST). */
#define FDBROKER_NOTICE_RECONNECTED 6

/* A registration of this process has ended with the broker that was lost: it is not FDBROKER_RECALLABLE and was not
 * kept, or the broker that came back did not take it. Its handle is void; register anew, pass on the new handle. */
#define FDBROKER_NOTICE_REGISTRATION_LOST 7

/* The broker has closed its fd of an allocation of this process and asks for another one. */
typedef struct fdbroker_recall {
  uint64_t struct_size;          /* Bytes of this struct in the library: fields beyond it are not there. */
  uint32_t slot;
  uint32_t generation;
  uint64_t owner_allocation_id;  /* As registered, like the fields after it. */
  uint64_t base;
  uint64_t size_bytes;
  uint64_t fd_offset;
  uint32_t device;
  uint32_t reserved;
} fdbroker_recall_t;

/* The answer to a recall. Comes filled in for the allocation unchanged, with fd -1. */
typedef struct fdbroker_recall_answer {
  uint64_t struct_size;          /* Bytes of this struct in the library; leave it. */
  int32_t fd;                    /* The new export: the library's from FDBROKER_OK on, which sends and closes it. */
  uint32_t reserved;
  uint64_t fd_offset;            /* Where in the fd the allocation begins now. */
  uint64_t size_bytes;           /* Must not have changed. */
  uint64_t owner_allocation_id;  /* The id of the memory at that address, read again after the export. */
} fdbroker_recall_answer_t;

/* Answers a recall: FDBROKER_OK with answer->fd; FDBROKER_STALE when the memory is no longer there (the allocation
 * ends); any other code: not now (an fd is then still the callback's).
 *
 * Runs on the library thread, all signals blocked, or with FDBROKER_OPEN_DISPATCH on the thread that serves; never
 * two at once per context. Must return soon, must not throw, longjmp or wait: what waits answers
 * FDBROKER_NOT_SUPPORTED there. Releases, fdbroker_host_free(), fdbroker_stats() and the like are fine. */
typedef fdbroker_code_t (*fdbroker_recall_fn)(void *user, const fdbroker_recall_t *recall,
    fdbroker_recall_answer_t *answer);

/* News from the broker. Fields that do not belong to a kind are 0. */
typedef struct fdbroker_notice {
  uint64_t struct_size;          /* Bytes of this struct in the library: fields beyond it are not there. */
  uint32_t kind;                 /* FDBROKER_NOTICE_*; ignore those you do not know. */
  fdbroker_code_t code;          /* Of FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_REGISTRATION_LOST. */
  uint32_t slot;
  uint32_t generation;
  uint64_t lease;                /* Of FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_RECLAIM, as in fdbroker_grant_t. */
  uint64_t owner_allocation_id;  /* Of FDBROKER_NOTICE_DRAINED and FDBROKER_NOTICE_REGISTRATION_LOST, as registered. */
  uint64_t base;                 /* Likewise. */
} fdbroker_notice_t;

/* Hears a notice, under the same rules as a fdbroker_recall_fn. The notice is gone when it returns. */
typedef void (*fdbroker_notice_fn)(void *user, const fdbroker_notice_t *notice);

/* Sets the callback that exports registered memory again when the broker recalls it; NULL: none, and recalls of
 * what is not host memory (which the library exports itself) fail. Set it before registering with
 * FDBROKER_RECALLABLE. Returns when the callback of before has returned, so that what its user points to may go
 * then; waits at most 10 s for that. Any thread, but not inside a callback.
 *
 * Errors: FDBROKER_TIMED_OUT (replaced, but the one of before still runs), FDBROKER_NOT_SUPPORTED (inside a
 * callback), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_set_recall_callback(fdbroker_t *broker, fdbroker_recall_fn callback, void *user);

/* Sets the callback that hears notices; NULL: none. Rules and errors as fdbroker_set_recall_callback(). */
fdbroker_code_t fdbroker_set_notice_callback(fdbroker_t *broker, fdbroker_notice_fn callback, void *user);

/* With FDBROKER_OPEN_DISPATCH: the fd to poll(2) for POLLIN, readable when fdbroker_dispatch() has something to do.
 * The library's: do not read or close it; the same until fdbroker_close(). Otherwise -1. */
int fdbroker_event_fd(fdbroker_t *broker);

/* With FDBROKER_OPEN_DISPATCH: serves what there is to serve (recalls, notices, reconnecting), and when there is
 * nothing waits up to timeout_ms for something; 0 does not wait. FDBROKER_OK either way, and also while no broker
 * is there: looking for it is part of it. Callbacks run in here. Not inside a callback.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (a library thread serves; or inside a callback), FDBROKER_NOT_CONNECTED (in a
 * forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_dispatch(fdbroker_t *broker, uint32_t timeout_ms);

/* ---- Counters ------------------------------------------------------------------------------------------- */

/* Counters. "In use": imported and not yet given back. */
typedef struct fdbroker_stats {
  uint64_t struct_size;          /* sizeof(fdbroker_stats_t), set by the caller. */
  uint64_t hits;                 /* Imports served from the cache, since open. */
  uint64_t misses;               /* Imports that asked the broker, since open. */
  uint64_t stale;                /* Entries found ended when wanted, since open. */
  uint64_t evicted;              /* Entries closed to stay within the limits, since open. */
  uint64_t entries;              /* Entries in the cache now. */
  uint64_t pinned;               /* Of these, in use. */
  uint64_t bytes;                /* Bytes of those entries. */
  uint64_t max_entries;          /* The limits; 0: none. */
  uint64_t max_bytes;
  /* Allocations of this process that are registered now: with a base, and host memory. */
  uint64_t registrations;
  uint64_t host_bytes;           /* Address space of the arenas, and isolated and dma-heap memory, in bytes. */
  uint64_t host_bytes_used;      /* Of these, in buffers that are not freed. */
  uint64_t leases;               /* Leases acquired and not given back (imports not counted). */
} fdbroker_stats_t;

/* The counters of now. Sends nothing, waits for nothing; also inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_stats(fdbroker_t *broker, fdbroker_stats_t *stats);

#ifdef __cplusplus
}
#endif

#endif /* FDBROKER_H */
