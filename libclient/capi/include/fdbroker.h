/* fdbroker.h - share memory between the processes of a node without holding its fds.
 *
 * cbindgen makes this file from libclient/capi/src. Edit there, then run:
 *   FDBROKER_UPDATE_HEADER=1 cargo test -p fdbroker-capi --test header
 *
 * A producer registers an allocation and gets a handle of 64 bytes. It passes the handle on by value: through MPI, a
 * file, anything. A consumer imports the handle and gets the memory mapped, or acquires it and gets an fd. The broker,
 * fdbrokerd, keeps at most one fd per allocation, and keeps every number of fds below a cap.
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
 * Errors. A function answers FDBROKER_OK (0) or a positive code. fdbroker_strerror() gives the cause and the remedy
 * of a code; fdbroker_last_error() says what exactly failed in this thread's last failed call. NULL where a pointer
 * is needed answers FDBROKER_INVALID_ARGUMENT. A function that fails writes "nothing" to its results: pointer NULL,
 * fd -1, lease 0, handle and import all zero. A call for many items writes all results and all codes.
 *
 * Waiting. A function that may wait takes deadline_ms: milliseconds from the call, at most an hour. 0 waits for nothing
 * but the broker's answer. The call is back 50 ms after its deadline at the latest, whatever the broker and other processes
 * do (a driver's calls and callbacks take the time that they take); a refusal may come a little before it, by a quarter or
 * a second. A function without a deadline never waits, unless its comment says how long at most.
 * No function that waits answers FDBROKER_AGAIN because the broker was not ready yet: until the deadline it asks again itself,
 * and then it says FDBROKER_NO_QUOTA, with the full cap, or FDBROKER_TIMED_OUT. Where FDBROKER_AGAIN means something else,
 * the function's comment says what.
 *
 * Ownership. The caller keeps what it passes in (structs, arrays, strings, fds); the library does not look at it after
 * the call. The caller owns what a function writes: it closes fds, and it gives leases, imports, host memory, requests
 * and contexts back once, by the function that their comment names. Structs are plain data and can be copied.
 *
 * Threads. Any thread may call any function at any time, several threads at once, with two exceptions:
 * fdbroker_close(), and functions on the same fdbroker_request_t, fdbroker_object_group_t or fdbroker_object_list_t.
 * Nothing may wait inside a callback: a call that would wait answers FDBROKER_NOT_SUPPORTED there.
 *
 * fork(2). In the child every call with the parent's context answers FDBROKER_NOT_CONNECTED, except fdbroker_close()
 * and those whose comment says so. The child opens a context of its own, or calls exec. The parent notices nothing. In a
 * child
 *  - memory that nobody can change any more stays mapped and reads right: objects with FDBROKER_OBJECT_FINAL, and imports
 *    for which fdbroker_import_is_final() is 1. Nothing that the child calls or drops unmaps it there, or gives back what
 *    the parent holds.
 *  - other imports, and groups in the making, are not mapped: a touch is a SIGSEGV, and no other memory ever takes their
 *    addresses. Children of fork(3) close them by a handler of pthread_atfork(3), and end with status 1 if the system
 *    refuses that. Children of _Fork(3) and clone(2) run no handlers: they see the memory as it is until their first call
 *    of this library (fdbroker_import_is_current() is one). Until that, exec or their end, FDBROKER_SEALED_BUSY may refuse
 *    the seal of a group.
 *  - memory that the parent made (arenas, isolated buffers) stays mapped. Once the parent has freed it its bytes are
 *    undefined: the parent may use the pages for another buffer, which the child then sees; another program never does,
 *    and a touch never faults.
 *  - memory of an opener or a GPU driver is what these make of it. Ranges (FDBROKER_OPENED_RANGE) are left out of children,
 *    whose own memory may come to lie there: children must not touch them.
 *
 * fdbroker_open() in a child leases the memory that it has inherited so and that no other context of this child holds: then
 * the broker counts it for the child, too, until that context is closed, also after the parent's end. What the broker does
 * not grant (an object whose names were removed or replaced, an allocation that has ended, a full cap) stays mapped and
 * readable, and is counted for the parent alone, like all of it in a child that opens no context. The call succeeds in any
 * case, and waits for caps and owners 100 ms at most.
 *
 * All this holds for children of _Fork(3) and clone(2), and for their children. A child that shares its parent's memory
 * (vfork(2), CLONE_VM) may only call exec.
 *
 * File descriptors. A program may close fds that it has not opened, the library's too. The library knows its own by what
 * they are: it writes to, reads from, sends, maps and closes nothing else that has got their numbers. The call that finds
 * it answers FDBROKER_NOT_CONNECTED, and the next one works, over a new connection. Imports stay mapped. Leases and
 * registrations have ended with the connection, as the broker sees it: notices tell of them. Arena memory whose fd is
 * closed keeps its bytes and cannot be shared any more: FDBROKER_NOT_SUPPORTED; what is allocated after that lies in another
 * arena. The fds that the library keeps lie above half of RLIMIT_NOFILE, or above 4096, apart from fdbroker_event_fd(), and
 * never below 3; one that is on its way to or from the broker lies where the system has put it. An fd that a program closes
 * in one thread and opens again at the same moment, while another one calls, cannot be told in time.
 *
 * Signals. The library raises no signal (SIGPIPE neither) and handles none. A signal that interrupts a call only delays
 * it. Do not call the library in a signal handler.
 *
 * Without a broker, calls that need one answer FDBROKER_NOT_CONNECTED at once. The library looks for a broker and
 * connects again by itself (not with FDBROKER_OPEN_NO_RECONNECT). Handles, leases, imports and registrations then go
 * on. Those that the new broker could not take over are told one by one (FDBROKER_NOTICE_REVOKED,
 * FDBROKER_NOTICE_REGISTRATION_LOST), before FDBROKER_NOTICE_RECONNECTED. Imports stay mapped in any case, until they
 * are released.
 *
 * Growth. Structs that begin with struct_size get new fields at their end in later releases, and change in no other
 * way. Set struct_size to the sizeof of the struct and the rest to zero; for fdbroker_options_t call
 * fdbroker_options_init(). A program built against an older header works with a newer library. A program built
 * against a newer header works with an older library, unless it sets a field that this library does not know. In an
 * array, the struct_size of the first element is the distance between all elements.
 *
 * Log. Lines go to stderr, as long as it is what it was at fdbroker_open(). FDBROKER_LOG sets how much: error, warn (the default), info, debug or off. FDBROKER_SOCKET
 * names the broker's socket; without it the library takes the user's own broker, else the node's; else, with FDBROKER_START=1,
 * one that programs start (FDBROKER_OPEN_START).
 */
#ifndef FDBROKER_H
#define FDBROKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors and versions -------------------------------------------------------------------------------- */

/* The answer of a call: FDBROKER_OK, or the reason why it failed. A number never changes its
 * meaning. */
typedef int32_t fdbroker_code_t;

#define FDBROKER_OK 0                   /* Success. */
#define FDBROKER_NOT_CONNECTED 1        /* No broker, a lost connection, or a context of before fork(2). Retry later. */
#define FDBROKER_WRONG_NODE 2           /* The handle is of another node, or of this node before a reboot. */
#define FDBROKER_BAD_HANDLE 3           /* No handle (lease, pointer, import) of this broker, or one given back. */
#define FDBROKER_STALE 4                /* The allocation has ended: get a new handle from its owner. */
#define FDBROKER_NOT_PERMITTED 5        /* The allocation, or at open the socket, belongs to somebody else. */
#define FDBROKER_NO_QUOTA 6             /* A cap is full; fdbroker_last_error() names it and its largest holder. */
#define FDBROKER_AGAIN 7                /* Not ready yet; the comment of each function that answers it says what. */
#define FDBROKER_TIMED_OUT 8            /* The deadline passed. */
#define FDBROKER_CANCELLED 9            /* The request was cancelled. */
#define FDBROKER_OWNER_GONE 10          /* The process that owned the allocation has ended. */
#define FDBROKER_OWNER_SILENT 11        /* The owner did not export its memory again when asked. */
#define FDBROKER_LOCAL_FD_LIMIT 12      /* This process has no free fd. Nothing is lost: close some fds, retry. */
#define FDBROKER_UNSUPPORTED_FD 13      /* This fd cannot be shared; fdbroker_last_error() says what it is. */
#define FDBROKER_NOT_SUPPORTED 14       /* Not available here; or a call inside a callback that would wait. */
#define FDBROKER_PROTOCOL 15            /* Library and broker are of releases that do not fit together. */
#define FDBROKER_SHUTTING_DOWN 16       /* The broker is going away (the library reconnects), or is being drained. */
#define FDBROKER_INTERNAL 17            /* A fault in library or broker, or the system has no memory left. */
#define FDBROKER_EXISTS 18              /* Another object has the name, or is being made under it. */
#define FDBROKER_NOT_FOUND 19           /* No object has the name. */
#define FDBROKER_NOT_SEALED 20          /* The object is being made. */
#define FDBROKER_SEALED 21              /* The group of objects is sealed and cannot be changed. */
#define FDBROKER_SEALED_BUSY 22         /* The memory is still mapped, or used by a device: unmap it, then seal. */
#define FDBROKER_ABORTED 23             /* The group of objects is not in the making any more. */
#define FDBROKER_VERSION 24             /* The name has another version than was expected. */
#define FDBROKER_TOO_LONG 25            /* Too many objects, or too much for one answer: ask for less at a time. */

/* The broker was killed, and its owner, which lives, could not give the memory to the next one in
 * time: get a new handle. */
#define FDBROKER_LOST 26

#define FDBROKER_INVALID_ARGUMENT 64    /* Of this ABI alone: a pointer, size, flag or value that is not valid. */

/* The name of a code, such as "NO_QUOTA"; "UNKNOWN" for any other number. A static string, never
 * NULL. */
const char *fdbroker_error_name(fdbroker_code_t code);

/* The cause and the remedy of a code, in a sentence each. A static string, never NULL. */
const char *fdbroker_strerror(fdbroker_code_t code);

/* This thread's last failed call: what was tried, the cause and the remedy; for FDBROKER_NO_QUOTA
 * also the cap, its value and its largest holder. "" when no call of this thread has failed. Never
 * NULL; valid until the next call of this thread that fails, or the thread's end. */
const char *fdbroker_last_error(void);

/* The library's version, such as "0.1.0". A static string. */
const char *fdbroker_version(void);

/* The number in the soname: 0. A program built against a header of another number must not use
 * this library. */
uint32_t fdbroker_abi_version(void);

/* ---- Open and close ------------------------------------------------------------------------------------- */

/* No library thread: the application polls fdbroker_event_fd() and calls fdbroker_dispatch().
 * Calls that wait serve events, too. Callbacks run inside these calls.
 *
 * Between these calls nobody serves, which other processes feel: an acquire of memory of this
 * process whose fd the broker has closed waits, and answers FDBROKER_OWNER_SILENT after the
 * broker's limits.recall_timeout_ms (2 s unless configured), until this process dispatches again;
 * leases that the broker asks back for others stay; memory that has ended stays mapped in the
 * cache; of hundreds of releases in a row those that the socket has no room for wait. After a
 * crash of the broker nobody gets this process's memory until it dispatches, and its registrations
 * are lost if it does not within limits.grace_ms (10 s). Where a rank computes longer than that
 * without a call, use FDBROKER_OPEN_RECALL_THREAD. */
#define FDBROKER_OPEN_DISPATCH 1

#define FDBROKER_OPEN_NO_RECONNECT 2    /* When the connection is lost, do not look for a broker again. */

/* The library thread serves recalls and the reconnect, and runs the recall callback alone. Notices
 * wait, and the notice callback runs inside fdbroker_dispatch(), for which fdbroker_event_fd()
 * says when. Not with FDBROKER_OPEN_DISPATCH. */
#define FDBROKER_OPEN_RECALL_THREAD 4

#define FDBROKER_OPEN_NOTICES 8         /* Notices wait for fdbroker_notice_next(), and no callback is told of them. */

/* Where there is no broker, start one, for all programs of this user on the node that ask for it,
 * or those of the scheduler's job; FDBROKER_START=1 in the environment does the same. The program
 * fdbroker does it, which is found by FDBROKER_PROGRAM, beside the library or on PATH; it is no
 * child of this process. The broker ends some seconds after its last client, not while it holds
 * kept or pinned memory, or by `fdbroker stop`.
 *
 * Where a socket is named or a service is installed (/run/fdbroker is there) none is started:
 * fdbroker_open() waits for that one until connect_timeout_ms is over. A process with more rights
 * than its user (AT_SECURE, getauxval(3)) starts none. */
#define FDBROKER_OPEN_START 16

/* The default of cache_max_entries, cache_max_bytes, leave_pinned, empty_cache, cache_strict and
 * print_stats: the environment's value (FDBROKER_CACHE_MAX_ENTRIES, FDBROKER_CACHE_MAX_BYTES,
 * FDBROKER_LEAVE_PINNED, FDBROKER_EMPTY_CACHE, FDBROKER_CACHE_STRICT, FDBROKER_PRINT_STATS), else
 * the built-in value. */
#define FDBROKER_DEFAULT (-1)

/* A context: a connection to the node's broker, with its leases, host memory and import cache. One
 * per process is enough: all threads can share it. */
typedef struct fdbroker fdbroker_t;

/* Settings of fdbroker_open(). Call fdbroker_options_init(), then change fields. */
typedef struct fdbroker_options {
  uint64_t struct_size;          /* Set by fdbroker_options_init(). */
  /* Path of the broker's socket. NULL: FDBROKER_SOCKET, else the user's own broker, else the
   * node's. */
  const char *socket;
  const char *name;              /* This client's name on screens, cut to 16 bytes. NULL: the command's name. */
  uint32_t flags;                /* FDBROKER_OPEN_*, combined by |. */
  /* How many fds of shared memory this process will hold on its own; they are charged to it.
   * Each arena has a memfd, and at least one export is on its way to the broker. 0: the default,
   * 2. */
  uint32_t own_fds;
  /* Address space of each arena of host memory, in bytes; a page costs memory from its first
   * use. 0: 64 GiB, or less where the address space is limited. Set it low under valgrind, which
   * touches every page at the end. */
  uint64_t arena_bytes;
  int64_t cache_max_entries;     /* Most entries in the import cache; 0: no limit. */
  int64_t cache_max_bytes;       /* Most bytes of memory that the import cache keeps open; 0: no limit. */
  /* 1: an import stays in the cache when its last user releases it; 0: it is closed; -1: the
   * default. */
  int32_t leave_pinned;
  /* 1: a full cache closes all unused entries; 0: only as many as it must; -1: the default. */
  int32_t empty_cache;
  /* 1: fdbroker_close() prints a line of counters to stderr; 0: it does not; -1: the default. */
  int32_t print_stats;
  /* 1: an import that would pass a limit of the cache fails with FDBROKER_NO_QUOTA while all
   * that is open is in use; 0: the cache goes over its limits then; -1: the default. */
  int32_t cache_strict;
  /* Most fds of this process in the broker; 0: no limit but its caps; FDBROKER_DEFAULT: the
   * environment's value (FDBROKER_MAX_HELD), else no limit. Over it the broker closes the one
   * that was used least recently, and recalls it when it is wanted; what is neither host memory
   * nor FDBROKER_RECALLABLE is refused with FDBROKER_NO_QUOTA. */
  int64_t max_held_fds;
  int64_t connect_timeout_ms;    /* How long fdbroker_open() waits at most, in milliseconds; FDBROKER_DEFAULT: 10 s. */
} fdbroker_options_t;

/* Sets all options, struct_size included, to their defaults. NULL: does nothing. A macro of this
 * name passes the size of the struct; the function, for those that take its address, sets the
 * fields of the first release. */
void fdbroker_options_init(fdbroker_options_t *options);

/* The same for a struct of struct_size bytes: the caller's sizeof(fdbroker_options_t). */
void fdbroker_options_init_sized(fdbroker_options_t *options, size_t struct_size);

/* Connects to the broker. On success *out is a context, to be given back by fdbroker_close();
 * otherwise NULL. Waits at most connect_timeout_ms, for a broker that is stopped or hangs, or a
 * node whose fds are all in use. options NULL: all defaults.
 *
 * Starts one library thread, which serves recalls and calls the callbacks, with all signals
 * blocked. With FDBROKER_OPEN_DISPATCH there is no such thread. Not inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (at once when no broker listens; at the end of that time when one
 * listens and does not answer, which the text says), FDBROKER_NOT_PERMITTED (the socket refuses
 * this user; or its server is neither root nor the owner of the socket's directory nor this
 * process's effective user, and may be anybody, to whom nothing was sent: the text says which uid
 * serves), FDBROKER_NOT_SUPPORTED (the value of an environment variable; no program to start a
 * broker with; or inside a callback),
 * FDBROKER_PROTOCOL, FDBROKER_NO_QUOTA, FDBROKER_TIMED_OUT (too many others of this user connect),
 * FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_open(const fdbroker_options_t *options, fdbroker_t **out);

/* Ends the connection: gives back all leases, unmaps all imports, frees all host and GPU memory,
 * and waits for a running callback and for the library thread. Afterwards the context's pointers,
 * leases, imports and requests must not be used; the fds of grants stay the caller's. No other
 * thread may use the context meanwhile. NULL: does nothing.
 *
 * In a forked child it puts the child's copy aside; the parent notices nothing.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (inside a callback; nothing is closed). */
fdbroker_code_t fdbroker_close(fdbroker_t *broker);

/* The path of the broker's socket: other processes find the same broker by it. NULL: "". Valid
 * until fdbroker_close(). Sends nothing. Also inside a callback and in a forked child. */
const char *fdbroker_socket(const fdbroker_t *broker);

/* 1 when the broker can be called now; 0 while it is away, in a forked child, and for NULL. Sends
 * nothing. */
int32_t fdbroker_is_connected(const fdbroker_t *broker);

/* Returns when the broker has carried out all earlier releases and fdbroker_host_free() calls of
 * this context, which do not wait for it themselves. From then on the old handle of freed memory
 * is FDBROKER_STALE in every process, without the delay of a message. Waits until the deadline at
 * most.
 *
 * Errors: FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_flush(fdbroker_t *broker, uint32_t deadline_ms);

/* ---- The handle ----------------------------------------------------------------------------------------- */

/* A handle: 64 bytes that name an allocation of this node, and a place inside it. Pass on all 64
 * bytes unchanged, by value: through MPI, a file, anything. Compare handles by
 * fdbroker_handle_same(), not by memcmp(). */
typedef struct fdbroker_handle {
  uint8_t bytes[64];
} fdbroker_handle_t;

/* The fields of a handle, for printing. node, slot and generation name the allocation; the other
 * fields are hints of its owner. */
typedef struct fdbroker_handle_info {
  uint64_t struct_size;          /* sizeof(fdbroker_handle_info_t), set by the caller. */
  uint32_t version;              /* The version of the handle's layout. */
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint64_t node;                 /* A hash of the node's boot id. */
  uint32_t slot;
  uint32_t generation;
  uint64_t size_bytes;           /* The size of the allocation, in bytes. */
  uint64_t offset_bytes;         /* Where in the allocation the exported pointer is, in bytes. */
  uint64_t owner_allocation_id;
  uint32_t device;               /* The owner's own number of the device, which means nothing in other processes. */
  uint32_t reserved;
} fdbroker_handle_info_t;

/* Reads the fields of a handle. Needs no context and sends nothing. It proves nothing: only the
 * broker can tell whether the handle is genuine and current. Also inside a callback and in a
 * forked child.
 *
 * Errors: FDBROKER_BAD_HANDLE (the bytes are no handle of this version),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_handle_parse(const fdbroker_handle_t *handle, fdbroker_handle_info_t *info);

/* 1 when both handles name the same allocation, whatever their offsets; else 0, also for NULL and
 * for bytes that are no handle. Needs no context and sends nothing. Also inside a callback and in
 * a forked child. */
int32_t fdbroker_handle_same(const fdbroker_handle_t *handle, const fdbroker_handle_t *other);

/* ---- Producers: registering memory ---------------------------------------------------------------------- */

#define FDBROKER_KIND_DMA_BUF 1         /* A dma-buf: the broker proves its size. */
#define FDBROKER_KIND_CUDA_VMM 2        /* A CUDA VMM export: the broker takes the size that you claim. */

/* A range of a memfd with F_SEAL_SHRINK and F_SEAL_SEAL: size proved. For more than its uid it
 * needs F_SEAL_GROW, too. */
#define FDBROKER_KIND_MEMFD 3

#define FDBROKER_SHARE_UID 0            /* Clients of the same socket and user may acquire it. */
#define FDBROKER_SHARE_GID 1            /* Clients of the same socket that have the owner's group may, too. */
#define FDBROKER_SHARE_ANY 2            /* Every client that has the handle may. */
#define FDBROKER_RECALLABLE 1           /* The recall callback can export it again, so the broker may close its fd. */

/* The allocation outlives this process for a time (the broker's limits.keep_ttl_ms): its handle
 * still works, and the broker does not close its fd before. Charged to kept_allocations;
 * FDBROKER_NO_QUOTA when these are used up. */
#define FDBROKER_KEEP 2

/* The handle gets a virtual fd (fdbroker_handle_virtual_fd()), for programs that pass fd numbers
 * by value. An allocation that is registered without one already (with the same base) keeps the
 * handle that it has. */
#define FDBROKER_VIRTUAL_FD 8

/* One allocation, to be registered. */
typedef struct fdbroker_allocation {
  /* sizeof(fdbroker_allocation_t), set by the caller; in an array: of the first one, for all. */
  uint64_t struct_size;
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint32_t share;                /* FDBROKER_SHARE_*. */
  /* The owner's own number of the device, at most 65535: recalls have it, and addresses of
   * different devices never overlap. It means nothing in other processes: see gpu. */
  uint32_t device;
  uint32_t flags;                /* FDBROKER_RECALLABLE, FDBROKER_KEEP and FDBROKER_VIRTUAL_FD, combined by |. */
  uint64_t size_bytes;           /* Its size in bytes, more than 0. */
  uint64_t fd_offset;            /* Where in the fd's memory it begins, in bytes. */
  /* The owner's number of the allocation (Level Zero's allocation id, CUDA's buffer id). Another
   * number at the same address is another allocation. */
  uint64_t owner_allocation_id;
  uint64_t base;                 /* Its address in this process; 0: it has none. */
  /* The bytes of the driver's handle, which come with each grant. The library copies them. */
  const void *driver_data;
  uint64_t driver_data_len;      /* The number of these bytes, at most 64. */
  /* The GPU that it is on, in the form of fdbroker_grant_t; all 0: none, or not said. Who asks
   * for the owner's device finds it by this alone. */
  uint8_t gpu[24];
} fdbroker_allocation_t;

/* Registers one allocation: the broker gets a duplicate of its fd. The caller keeps its own fd and
 * may close it at once. The handle is good until fdbroker_unregister() or the end of this process.
 * An allocation that is FDBROKER_RECALLABLE survives a crash of the broker, one that is
 * FDBROKER_KEEP does where a service manager stores the broker's fds;
 * FDBROKER_NOTICE_REGISTRATION_LOST names each one that is lost.
 *
 * With base set there is one registration per allocation. The same device, base, size and id again
 * give the known handle, without asking the broker. Another size or id at this address, or a range
 * that overlaps, means that the memory there was freed: the old registration ends at once.
 *
 * Errors: FDBROKER_NO_QUOTA, FDBROKER_UNSUPPORTED_FD (fdbroker_last_error() says what it is),
 * FDBROKER_STALE (another thread registered other memory there meanwhile), FDBROKER_NOT_SUPPORTED
 * (inside a callback; or FDBROKER_RECALLABLE while no recall callback is set), FDBROKER_TIMED_OUT,
 * FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (also: the fd is not open). *handle is all
 * zero then. */
fdbroker_code_t fdbroker_register(fdbroker_t *broker, const fdbroker_allocation_t *allocation, int fd,
    uint32_t deadline_ms, fdbroker_handle_t *handle);

/* Registers count allocations, 253 per message. fds[i] belongs to allocations[i]; the same fd may
 * stand there many times. Fills all handles and all codes (codes may be NULL) in this order; the
 * handle of a failure is all zero. Answers FDBROKER_OK when all were registered, else the first
 * failure.
 *
 * Errors: for each allocation those of fdbroker_register(). */
fdbroker_code_t fdbroker_register_many(fdbroker_t *broker, size_t count,
    const fdbroker_allocation_t *allocations, const int *fds, uint32_t deadline_ms,
    fdbroker_handle_t *handles, fdbroker_code_t *codes);

/* Ends the registration of the allocation that a handle names: the broker grants it no more,
 * closes its fd and tells every holder. Consumers that have the memory keep it until they release
 * it. Use the memory anew after FDBROKER_NOTICE_DRAINED, or at once when
 * fdbroker_unregister_drained() says so. Host memory ends by fdbroker_host_free() alone. Waits at
 * most 10 s for the broker's answer.
 *
 * What is this context's ends whatever becomes of the broker. FDBROKER_OK while the broker is
 * away: the next one does not hear of it, and no notice says when its consumers have released it;
 * of kept memory it hears, and the notice comes. FDBROKER_TIMED_OUT: it ends when the broker reads
 * the message, and FDBROKER_NOTICE_DRAINED follows.
 *
 * Errors: FDBROKER_STALE (it ended before), FDBROKER_BAD_HANDLE, FDBROKER_NOT_PERMITTED (another
 * client's, or of host memory), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_TIMED_OUT,
 * FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_unregister(fdbroker_t *broker, const fdbroker_handle_t *handle);

/* As fdbroker_unregister(). *drained is 1 when no lease was left: then the memory may be used anew
 * at once, and FDBROKER_NOTICE_DRAINED does not come. Otherwise, and on failure, it is 0. */
fdbroker_code_t fdbroker_unregister_drained(fdbroker_t *broker, const fdbroker_handle_t *handle,
    int32_t *drained);

/* As fdbroker_unregister_drained(), within a deadline; drained may be NULL. */
fdbroker_code_t fdbroker_unregister_within(fdbroker_t *broker, const fdbroker_handle_t *handle,
    uint32_t deadline_ms, int32_t *drained);

/* Ends an allocation of this context, memory of fdbroker_host_alloc() and fdbroker_gpu_alloc(),
 * too, and waits until nobody has it any more: it is granted no more, and holders are told
 * (FDBROKER_NOTICE_REVOKED) and let go of what they do not use. The memory stays this context's:
 * from FDBROKER_OK on it may be used anew, though not be shared again, and is freed as before.
 * After FDBROKER_TIMED_OUT it can be called again, to wait for longer.
 *
 * Errors: FDBROKER_TIMED_OUT (others have it still; fdbroker_last_error() says how to see who),
 * FDBROKER_STALE (it had ended before, or with its broker, and nobody knows who has it),
 * FDBROKER_BAD_HANDLE, FDBROKER_NOT_PERMITTED (another client's), FDBROKER_NOT_SUPPORTED (inside a
 * callback), FDBROKER_NOT_CONNECTED (nothing was ended), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_retire(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t deadline_ms);

/* Finds the handle of the allocation that pointer points into, with the offset inside it: host
 * memory, GPU memory, or an allocation registered with a base. It looks in this process's tables
 * and sends nothing, with one exception: a buffer of an arena or of fdbroker_gpu_alloc() that is
 * not registered now is registered here, within the deadline. All pointers into one allocation
 * share one registration.
 *
 * Also inside a callback; there it registers nothing.
 *
 * Errors: FDBROKER_STALE (nothing at this address is registered now; FDBROKER_HOST_ISOLATED and
 * FDBROKER_HOST_DMA_HEAP memory cannot be shared any more after a crash of the broker), those of
 * fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. *handle is all zero
 * then. */
fdbroker_code_t fdbroker_get_handle(fdbroker_t *broker, const void *pointer, uint32_t device,
    uint32_t deadline_ms, fdbroker_handle_t *handle);

/* ---- Fd numbers instead of handles ---------------------------------------------------------------------- */

/* The virtual fd of an allocation that was registered with FDBROKER_VIRTUAL_FD: a number from 2^30
 * to 2^31-1 that no process has open. -1: it has none, or handle is NULL. Needs no context and
 * sends nothing. Also inside a callback and in a forked child. */
int fdbroker_handle_virtual_fd(const fdbroker_handle_t *handle);

/* The handle of the allocation that a virtual fd names, for clients of its owner's user and
 * socket, whoever it is shared with. Takes nothing: acquire or import it like any other. After a
 * crash of the broker it waits for the owner to come back, until the deadline at most.
 *
 * A number does not say which broker it is of. One of another broker names nothing here, but for a
 * chance of one in 2^30 for each live allocation.
 *
 * Errors: FDBROKER_BAD_HANDLE (no live allocation of this user has the number), FDBROKER_AGAIN
 * (its owner has not come back), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
 * FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT (also: the number is below
 * 2^30). *handle is all zero then. */
fdbroker_code_t fdbroker_resolve(fdbroker_t *broker, int virtual_fd, uint32_t deadline_ms,
    fdbroker_handle_t *handle);

/* ---- Producers: host memory ----------------------------------------------------------------------------- */

#define FDBROKER_HOST_ARENA 0           /* A range of an arena, a memfd: recallable, no fd of its own. */
#define FDBROKER_HOST_UDMABUF 1         /* A range of an arena, exported as a dma-buf (/dev/udmabuf): recallable. */
#define FDBROKER_HOST_ISOLATED 2        /* A memfd of its own, so consumers see no other memory: resident. */
#define FDBROKER_HOST_DMA_HEAP 3        /* A buffer of /dev/dma_heap/system: resident. */

/* Allocates memory that processes of the same user can share: size_bytes, more than 0, rounded up
 * to whole pages. memory is a FDBROKER_HOST_* number; "resident" there means that the broker keeps
 * an fd of it all the time. *ptr is mapped and writable, to be given back by fdbroker_host_free().
 * The memory is registered within the deadline. handle may be NULL: a buffer of an arena is then
 * registered later, by fdbroker_get_handle(). On failure *ptr is NULL, *handle all zero, and
 * nothing is left behind. A buffer of an arena may still contain bytes of an earlier one.
 *
 * A forked child shares the pages with its parent, until the parent frees the memory: then its
 * bytes are undefined there.
 *
 * Errors: FDBROKER_NO_QUOTA (the arena or a cap is full), FDBROKER_NOT_SUPPORTED (this kind of
 * memory is not available here; or inside a callback, where nothing can be registered),
 * FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL (the system has no memory left), those of
 * fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_host_alloc(fdbroker_t *broker, uint32_t memory, uint64_t size_bytes,
    uint32_t deadline_ms, void **ptr, fdbroker_handle_t *handle);

/* Frees host memory: its registration ends, every holder is told, and its pages are used anew once
 * the last consumer has released them. Never waits; fdbroker_flush() waits until the handle is
 * stale in every process. Also inside a callback.
 *
 * Errors: FDBROKER_BAD_HANDLE (not the first byte of a buffer, or freed before; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: the memory is the parent's),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_host_free(fdbroker_t *broker, void *ptr);

/* Uses memory of arenas again that was freed and of which no broker knows now. Memory that was
 * freed around the loss of a broker comes back by itself: when the next broker's grace time
 * (limits.grace_ms) is over and its last consumer has released it. That does not happen while
 * there is no broker, nor when the next one knows nothing of the one before, or this process came
 * back too late. Call this only when no process has memory mapped that this context freed then.
 * bytes (may be NULL) gets how many bytes. Never waits; also inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_host_reclaim(fdbroker_t *broker, uint64_t *bytes);

/* ---- GPU memory ----------------------------------------------------------------------------------------- */

#define FDBROKER_DRIVER_CUDA 1          /* NVIDIA's libcuda.so.1. Memory is shared as FDBROKER_KIND_CUDA_VMM. */
#define FDBROKER_DRIVER_LEVEL_ZERO 2    /* libze_loader.so.1. Memory is shared as FDBROKER_KIND_DMA_BUF. */

/* Instead of a device's ordinal: each import is opened on the device that is its owner's GPU,
 * whatever its ordinal here. */
#define FDBROKER_OWNERS_DEVICE 4294967295

/* How many devices a driver shows to this process. The library finds the driver at run time, in
 * this and all other functions; a driver that has come meanwhile is found by the next call. Needs
 * no context, and sends nothing.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (fdbroker_last_error() says what is missing: the driver's
 * library, a symbol in it, a device; or this is a child of fork(2), where drivers do not work),
 * FDBROKER_LOCAL_FD_LIMIT (drivers open some fds), FDBROKER_INVALID_ARGUMENT. *count is 0 then. */
fdbroker_code_t fdbroker_gpu_count(uint32_t driver_number, uint32_t *count);

/* Level Zero memory can be used in the context alone that it was made in. Names the program's
 * context (a ze_context_handle_t of the device's driver), in which this library then allocates and
 * imports memory of the device, and in which fdbroker_gpu_register() finds it. Call it before all
 * else with this device; without it the library makes a context of its own. Keep the context until
 * fdbroker_close().
 *
 * Errors: FDBROKER_EXISTS (the device is in use here already), FDBROKER_NOT_SUPPORTED (as for
 * fdbroker_gpu_count()), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_gpu_set_context(fdbroker_t *broker, uint32_t device, void *ze_context);

/* Allocates memory of a device that other processes can open: size_bytes, more than 0, rounded up
 * to what the driver shares (CUDA: 2 MiB on most devices). device is the driver's ordinal, share a
 * FDBROKER_SHARE_* number. *ptr is a device address, for kernels and copies, to be given back by
 * fdbroker_gpu_free(). The memory is registered within the deadline, and the library answers its
 * recalls. handle may be NULL: it is then registered later, by fdbroker_get_handle(). What the
 * memory contains is undefined. On failure *ptr is NULL, *handle all zero, and nothing is left
 * behind.
 *
 * CUDA memory belongs to the device's primary context, which the runtime API uses, too. An export
 * is an fd of this process until the broker has it (Level Zero: two), so own_fds of
 * fdbroker_options_t must be 1 (2) or more, and one more beside an arena of host memory.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (no such driver or device, as for fdbroker_gpu_count(); the
 * device shares no memory by fds; own_fds is too small; or inside a callback), FDBROKER_INTERNAL
 * (the driver's words, such as that the device has no memory left), FDBROKER_LOCAL_FD_LIMIT, those
 * of fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_gpu_alloc(fdbroker_t *broker, uint32_t driver_number, uint32_t device,
    uint64_t size_bytes, uint32_t share, uint32_t deadline_ms, void **ptr, fdbroker_handle_t *handle);

/* Frees memory of fdbroker_gpu_alloc(): its registration ends, and every holder is told. Consumers
 * that have it open keep it until they release it. No kernel and no copy may be using it: the
 * library knows no streams and waits for none. Never waits for the broker; fdbroker_flush() does.
 *
 * Errors: FDBROKER_BAD_HANDLE (not the first byte of a buffer, or freed before; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: the memory is the parent's),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_gpu_free(fdbroker_t *broker, void *ptr);

/* The handle of device memory that anybody in this process allocated, with the offset of ptr in
 * it: the driver says which allocation ptr lies in. The first call registers it, recallable, and
 * the library answers its recalls; later calls for any address in it send nothing. device is the
 * ordinal of the device that the memory is on. Memory of fdbroker_gpu_alloc() is found, too.
 *
 * CUDA: memory that cuMemMap() mapped, of an allocation made with
 * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, as PyTorch's expandable segments are. A tensor there
 * may lie in several mappings, each with a handle of its own. Memory of cuMemAlloc() and
 * cudaMalloc() can be shared under fdbroker run --cuda=malloc alone, from 2 MiB on. Level Zero:
 * all memory that zeMemGetIpcHandle() takes.
 *
 * Until fdbroker_gpu_retire() the broker's fd keeps the memory allocated, also when its owner
 * frees it.
 *
 * Errors: FDBROKER_STALE (no device memory is at ptr, or it was freed meanwhile),
 * FDBROKER_NOT_SUPPORTED (this memory cannot be shared; fdbroker_last_error() says why; otherwise
 * as for fdbroker_gpu_alloc()), FDBROKER_LOCAL_FD_LIMIT, those of fdbroker_register(),
 * FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. *handle is all zero then. */
fdbroker_code_t fdbroker_gpu_register(fdbroker_t *broker, uint32_t driver_number, uint32_t device,
    const void *ptr, uint32_t share, uint32_t deadline_ms, fdbroker_handle_t *handle);

/* Says that memory which fdbroker_gpu_register() has registered is about to be freed: its
 * registration ends at once, every holder is told, and the broker closes its fd. Call it before
 * the driver's function that frees; after it, only the first address finds the memory. Never
 * waits; also inside a callback.
 *
 * Errors: FDBROKER_BAD_HANDLE (nothing at ptr was registered so; nothing changes),
 * FDBROKER_NOT_SUPPORTED (no such driver or device), FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_gpu_retire(fdbroker_t *broker, uint32_t driver_number, uint32_t device,
    const void *ptr);

/* Has a driver open all memory of a kind that fdbroker_import() does not find in the cache: ptr of
 * an import is then a device address, and the memory stays open until fdbroker_import_release().
 * So it has what host memory has: hits without a message, batches, imports without waiting,
 * limits, suspend and resume. kind is that of the handle (fdbroker_handle_parse()):
 * FDBROKER_KIND_CUDA_VMM, or FDBROKER_KIND_DMA_BUF for Level Zero, whose dma-bufs of host memory
 * then go to the driver, too. device is an ordinal, or FDBROKER_OWNERS_DEVICE. A context opens
 * each allocation once; a program that needs it on two devices has a context for each.
 * fdbroker_set_opener() of the same kind replaces this, and with NULL functions undoes it.
 *
 * FDBROKER_IMPORT_READ maps CUDA memory for reading where the driver can do that; Level Zero has
 * no such mapping, and there the program must keep to it. Before a release no kernel and no copy
 * may be using the memory any more.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (no such driver or device, as for fdbroker_gpu_count(); nothing
 * changes), FDBROKER_LOCAL_FD_LIMIT, FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. An import then also answers FDBROKER_NOT_SUPPORTED (the device cannot
 * reach that memory; or, with FDBROKER_OWNERS_DEVICE, this process does not see the owner's GPU,
 * or the owner has not said which it is: fdbroker_last_error() names it, and what is seen) and
 * FDBROKER_UNSUPPORTED_FD (the driver does not know the fd). */
fdbroker_code_t fdbroker_set_gpu_opener(fdbroker_t *broker, uint32_t kind, uint32_t driver_number,
    uint32_t device);

/* Has fdbroker_pool_alloc() allocate for this context from now on. What it has given out stays
 * until fdbroker_pool_free(), also after fdbroker_close() of the context, from when on it cannot
 * be shared any more. The first context stays the process's for good.
 *
 * Errors: FDBROKER_EXISTS (another context has it), FDBROKER_NOT_SUPPORTED (CUDA is not there;
 * fdbroker_last_error() says what is missing), FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_pool_set(fdbroker_t *broker);

/* Allocates CUDA memory that can be shared: fdbroker_get_handle() of any address in it registers
 * it. For torch.cuda.memory.CUDAPluggableAllocator and its like, whose functions have these
 * arguments; stream is not looked at. NULL: no pool is set, or fdbroker_last_error() says why.
 * Sends nothing. */
void *fdbroker_pool_alloc(size_t size_bytes, int device, void *_stream);

/* Frees what fdbroker_pool_alloc() gave, and ends its registration. The caller has waited for the
 * streams that use it, as PyTorch's caching allocator does. */
void fdbroker_pool_free(void *ptr, size_t _size_bytes, int _device, void *_stream);

/* ---- Consumers: fds and leases -------------------------------------------------------------------------- */

/* A duplicate fd of an allocation, with its lease: the broker's record that this process holds the
 * allocation. */
typedef struct fdbroker_grant {
  /* sizeof(fdbroker_grant_t), set by the caller; in an array: of the first one, the library sets
   * the others. */
  uint64_t struct_size;
  int32_t fd;                    /* Close-on-exec, to be closed by the caller; -1: none. */
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint64_t lease;                /* This context's number of the lease, to be released once; 0: none. */
  uint64_t size_bytes;           /* The allocation's size in bytes: it bounds every offset, whatever the handle says. */
  uint64_t fd_offset;            /* Where in the fd's memory the allocation begins, in bytes. */
  uint64_t owner_allocation_id;
  /* The owner's own number of the device, which means nothing in other processes: see gpu. */
  uint32_t device;
  uint32_t slot;
  uint32_t generation;
  uint32_t driver_data_len;
  uint8_t driver_data[64];       /* The bytes of the driver's handle, as the owner registered them. */
  /* The GPU that the memory is on, as its owner claims: 16 bytes of UUID, the PCI address in 4
   * (little-endian: domain 16 bits, bus 8, device 5, function 3; all ones: not known), the tile
   * (255: all of the GPU), FDBROKER_DRIVER_*, and two of 0. All 0: none, or not said. */
  uint8_t gpu[24];
} fdbroker_grant_t;

/* Acquires one allocation: grant->fd is a duplicate of its fd, grant->lease its lease. Import the
 * memory with your driver, close the fd and call fdbroker_lease_mapped(); when the memory is
 * unmapped again, call fdbroker_release(). For memory that the CPU can map, fdbroker_import() does
 * all of this. On failure fd is -1 and lease 0. Waits until the deadline at most.
 *
 * Errors: FDBROKER_WRONG_NODE, FDBROKER_BAD_HANDLE, FDBROKER_STALE, FDBROKER_NOT_PERMITTED,
 * FDBROKER_NO_QUOTA, FDBROKER_OWNER_GONE, FDBROKER_OWNER_SILENT, FDBROKER_LOCAL_FD_LIMIT (nothing
 * lost: retry), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a
 * callback), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_acquire(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t deadline_ms,
    fdbroker_grant_t *grant);

/* Acquires count allocations, 253 per message. Fills all grants and all codes (codes may be NULL)
 * in the order of the handles; the grant of a failure has fd -1 and lease 0. All these fds are
 * open at once: for a large working set prefer fdbroker_import_many(), which keeps no fd. Answers
 * FDBROKER_OK when all were granted, else the first failure.
 *
 * Errors: for each handle those of fdbroker_acquire(). */
fdbroker_code_t fdbroker_acquire_many(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t deadline_ms, fdbroker_grant_t *grants, fdbroker_code_t *codes);

/* Tells the broker that the memory is imported and the fd closed; close it first. From then on the
 * lease counts in no cap of fds. A second call changes nothing. Never waits; also inside a
 * callback. The message may be 1 ms late, to take others with it, where a library thread serves.
 *
 * Errors: FDBROKER_BAD_HANDLE (no such lease, or given back before), FDBROKER_NOT_CONNECTED (in a
 * forked child). */
fdbroker_code_t fdbroker_lease_mapped(fdbroker_t *broker, uint64_t lease);

/* 1 when the allocation of a lease has not ended, and the broker lives and knows the lease; else
 * 0. After a reconnect it is 1 again for a lease that the broker took over. 0 also for a lease
 * given back, for NULL, and in a forked child. Sends nothing. */
int32_t fdbroker_lease_is_current(fdbroker_t *broker, uint64_t lease);

/* Gives a lease back; close the fd and unmap the memory first. Never waits; also inside a
 * callback. FDBROKER_OK also while the broker is away: the lease is not declared to it again. The
 * message may be 1 ms late, to take others with it; not when its fd was open, its allocation has
 * ended, the broker was short within the last second, or no library thread serves.
 *
 * Errors: FDBROKER_BAD_HANDLE (no such lease, or given back before; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: the lease is the parent's). */
fdbroker_code_t fdbroker_release(fdbroker_t *broker, uint64_t lease);

/* Gives count leases back, 253 per message. A number without a lease does not keep the others from
 * being given back.
 *
 * Errors: the first of those of fdbroker_release(). */
fdbroker_code_t fdbroker_release_many(fdbroker_t *broker, size_t count, const uint64_t *leases);

/* ---- Consumers: memory, through the import cache -------------------------------------------------------- */

#define FDBROKER_IMPORT_READ 0          /* Map for reading. */
#define FDBROKER_IMPORT_WRITE 1         /* Map for reading and writing. */

/* Combined with the others by |: what this import opens is closed by its last release, whatever
 * the settings of the import cache. Memory that is in the cache already serves this import, too,
 * and stays there. */
#define FDBROKER_IMPORT_NO_CACHE 2

/* What was opened is a range of this process's addresses, in whole pages. The library has the
 * kernel leave it out of forked children (MADV_DONTFORK), where memory of the child's own may come
 * to lie there; all else is left to the opener. */
#define FDBROKER_OPENED_RANGE 1

/* Memory of another process, mapped here and in use. Filled in by the library; to be released
 * once. */
typedef struct fdbroker_import {
  /* The allocation's first byte plus the handle's offset. In a forked child only if
   * fdbroker_import_is_final(); else a touch is a SIGSEGV there. */
  void *ptr;
  uint64_t size_bytes;           /* From ptr to the allocation's end, in bytes. */
  uint64_t pin;                  /* For the library; 0: no import. */
  uint32_t slot;
  uint32_t generation;
} fdbroker_import_t;

/* Memory that an opener has opened. It comes filled in with the size of the allocation. */
typedef struct fdbroker_opened {
  uint64_t struct_size;          /* Bytes of this struct in the library; do not change it. */
  /* The allocation's first byte, as users of the driver address it: ptr of an import is this
   * plus the handle's offset. */
  void *ptr;
  uint64_t size_bytes;           /* Bytes that may be used from there, more than 0. */
  void *data;                    /* The opener's own, such as the driver's handle. The library does not look at it. */
  uint32_t flags;                /* FDBROKER_OPENED_RANGE, or 0. */
  uint32_t reserved;
} fdbroker_opened_t;

/* Opens memory that an import does not find in the cache, on the thread that imports, and fills in
 * *opened. flags is FDBROKER_IMPORT_READ or FDBROKER_IMPORT_WRITE. The library closes grant->fd
 * after the call (a driver that closes the fd gets a dup(2) of it) and keeps the lease:
 * grant->lease is 0. FDBROKER_OK, or the code that the import answers. Many threads may be in it
 * at once. It must not throw or longjmp, nor call a function of this library that waits. */
typedef fdbroker_code_t (*fdbroker_open_fn)(void *user, const fdbroker_grant_t *grant, uint32_t flags,
    fdbroker_opened_t *opened);

/* Closes what fdbroker_open_fn has opened, once, when no import uses it and the cache does not
 * keep it any more. On any thread, the library thread too, and so under the rules of
 * fdbroker_recall_fn. */
typedef void (*fdbroker_close_fn)(void *user, const fdbroker_opened_t *opened);

/* Maps the memory of a handle; flags are FDBROKER_IMPORT_*, combined by |. When it is in the
 * import cache and current, that takes no message and no system call. The memory stays mapped
 * until fdbroker_import_release(), even when the allocation ends: ask fdbroker_import_is_current()
 * after reading and before trusting the bytes. On failure *import is all zero, and nothing is left
 * behind. Waits until the deadline at most.
 *
 * Errors: those of fdbroker_acquire(); FDBROKER_AGAIN while the cache is suspended
 * (fdbroker_suspend()), FDBROKER_NO_QUOTA also when a strict cache (cache_strict of
 * fdbroker_options_t) is full of memory in use, FDBROKER_BAD_HANDLE also when the offset is
 * outside the allocation, FDBROKER_NOT_SUPPORTED also for memory that the CPU cannot map and that
 * has no opener (fdbroker_set_opener()). */
fdbroker_code_t fdbroker_import(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t flags,
    uint32_t deadline_ms, fdbroker_import_t *import);

/* The same from the import cache or not at all: sends nothing, never waits, makes no system call,
 * also inside a callback.
 *
 * Errors: FDBROKER_AGAIN (the memory is not in the cache, or not current now: fdbroker_import()
 * can tell, and fdbroker_last_error() stays as it was), FDBROKER_NOT_CONNECTED (in a forked
 * child), FDBROKER_INVALID_ARGUMENT. *import is all zero then. */
fdbroker_code_t fdbroker_import_hit(fdbroker_t *broker, const fdbroker_handle_t *handle, uint32_t flags,
    fdbroker_import_t *import);

/* Maps count handles. Memory that is not in the cache comes 253 per message, and the fds are
 * closed as they come: a soft limit of 32 fds is enough for any number. Fills all imports and all
 * codes (codes may be NULL) in the order of the handles; the import of a failure is all zero. The
 * same handle twice gives two imports of one mapping. Answers FDBROKER_OK when all were mapped,
 * else the first failure.
 *
 * Errors: for each handle those of fdbroker_import(). */
fdbroker_code_t fdbroker_import_many(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t flags, uint32_t deadline_ms, fdbroker_import_t *imports, fdbroker_code_t *codes);

/* 1 when the allocation of an import has not ended, and the broker lives and knows of the import;
 * else 0. After a reconnect it is 1 again for an import that the broker took over. 0 also for
 * NULL, for an import given back, and in a forked child. Makes no system call. */
int32_t fdbroker_import_is_current(fdbroker_t *broker, const fdbroker_import_t *import);

/* 1 when nobody can change the memory of an import any more: it was imported for reading, and is a
 * memfd sealed against writing and shrinking. A forked child reads it, too. Else 0, also for NULL,
 * and for an import given back. Takes no lock; also in a forked child. */
int32_t fdbroker_import_is_final(fdbroker_t *broker, const fdbroker_import_t *import);

/* Gives an import back and zeroes the struct. Pointers into the memory must not be used any more;
 * the mapping may stay in the cache for the next import. Never waits; also inside a callback. Give
 * each import back once, not also a copy of its struct.
 *
 * Errors: FDBROKER_BAD_HANDLE (given back before, or all zero; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: the import is the parent's),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_import_release(fdbroker_t *broker, fdbroker_import_t *import);

/* On which device memory is open here that fdbroker_set_gpu_opener() has had opened:
 * *driver_number is a FDBROKER_DRIVER_* number, *device the driver's ordinal in this process. A
 * context opens each allocation once, so this is where it was opened first. Never waits; sends
 * nothing.
 *
 * Errors: FDBROKER_BAD_HANDLE (an import that no driver has opened, or given back before; both are
 * 0 then), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_import_device(fdbroker_t *broker, const fdbroker_import_t *import,
    uint32_t *driver_number, uint32_t *device);

/* Closes all unused entries of the import cache. *closed, unless NULL, is their number. Also
 * inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_empty_cache(fdbroker_t *broker, uint64_t *closed);

/* Has open and close open all memory of a kind (FDBROKER_KIND_*) that fdbroker_import() does not
 * find in the cache. So imports of memory that only a driver can open get what the cache gives: a
 * hit without a message, limits, and memory that has ended is never current. NULL for both: the
 * library opens it, if the CPU can map it.
 *
 * What is open already stays in the cache, and is closed by the close function that belongs to its
 * open function, at the latest in fdbroker_close(): keep the memory behind user until then.
 * Neither function is called in a forked child, which has none of it.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_set_opener(fdbroker_t *broker, uint32_t kind, fdbroker_open_fn open,
    fdbroker_close_fn close, void *user);

/* Before a checkpoint of this process (CRIU, cuda-checkpoint): closes all memory in the import
 * cache that no import uses, and gives its leases back. Until fdbroker_resume(), what its last
 * import releases is closed at once, and nothing is opened: an import of memory that is not open
 * answers FDBROKER_AGAIN. The connection, the event fd and the library thread stay, and recalls
 * are answered. Waits until the deadline for imports of other threads that are under way.
 *
 * FDBROKER_OK: nothing is in use. FDBROKER_AGAIN: *count is the number of allocations that are,
 * and the first room of them are in handles (NULL: room is 0), without their hints: imports not
 * released, and leases not given back, whose fds are the program's to close. Release them, and
 * call again to see what is left. End requests (fdbroker_request_t) before: the fds that one has
 * got, and that no test has handed out yet, are not named.
 *
 * Errors: FDBROKER_TIMED_OUT (another thread's import has not ended; it is suspended all the
 * same), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_suspend(fdbroker_t *broker, uint32_t deadline_ms, size_t room,
    fdbroker_handle_t *handles, size_t *count);

/* After the checkpoint: ends the suspend, and imports anew what it has closed, so that the import
 * cache is as it was. *count is the number of handles that it could not import. The first room of
 * them are in handles (NULL: room is 0), without their hints, and the reasons in codes (may be
 * NULL): FDBROKER_STALE or FDBROKER_OWNER_GONE when the allocation has ended meanwhile;
 * FDBROKER_NOT_CONNECTED and others when a later import may get it. Nothing is suspended:
 * FDBROKER_OK, and *count is 0.
 *
 * Errors: the first of those in codes; FDBROKER_NOT_CONNECTED (there is no broker now, and *count
 * is 0: it is still suspended, try again), FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_resume(fdbroker_t *broker, uint32_t deadline_ms, size_t room,
    fdbroker_handle_t *handles, fdbroker_code_t *codes, size_t *count);

/* ---- Event loops: one fd for many waits ----------------------------------------------------------------- */

/* The requests and watches of one event loop that may go on, by tokens of the program. Any thread
 * may use it. */
typedef struct fdbroker_due fdbroker_due_t;

/* Makes one, for any number of requests and watches of any context: fdbroker_request_tell(),
 * fdbroker_object_watch_tell(). To be given back by fdbroker_due_close(). On failure *due is NULL.
 *
 * Errors: FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_due_open(fdbroker_due_t **due);

/* An fd for poll(2) and POLLIN, readable while fdbroker_due_take() has a token. It stays the
 * library's: do not read or close it. After a program has closed it all the same, the next call
 * makes another. -1: NULL, or there is no fd for it. */
int fdbroker_due_fd(fdbroker_due_t *due);

/* The next token: test its request, or read its watch until it has no event. FDBROKER_AGAIN:
 * nothing is due, and fdbroker_last_error() stays as it was. A token may also come of a request
 * that is done or cancelled. Never waits.
 *
 * Errors: FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_due_take(fdbroker_due_t *due, uint64_t *token);

/* Puts in a token of the program's own. Never waits.
 *
 * Errors: FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_due_tell(fdbroker_due_t *due, uint64_t token);

/* Gives it back, before or after the requests and watches that tell it. NULL: does nothing. */
fdbroker_code_t fdbroker_due_close(fdbroker_due_t *due);

/* ---- Named objects -------------------------------------------------------------------------------------- */

#define FDBROKER_OBJECT_JOB 1           /* The names are those of this process's job (its cgroup), not of its user. */

/* To make: other objects may have the names; they lose them when the group is sealed. A name lasts
 * as it was asked to last: the new version inherits from the one that it replaces, at the seal,
 * what its maker has not said of keep, time to live and pin; of several the longest time, and the
 * pin if one has it. */
#define FDBROKER_OBJECT_REPLACE 2

/* To make or touch: the group outlives its creator, for ttl_ms after its last use. To make without
 * this flag: for the time of what it replaces, counted anew, unless FDBROKER_OBJECT_NO_KEEP; else
 * it ends with its creator. It outlives the broker only under a service manager that stores fds:
 * fdbroker_object_stat() says FDBROKER_OBJECT_ENDS_WITH_BROKER where it does not. */
#define FDBROKER_OBJECT_KEEP 4

/* To make or touch: the group ends neither by time nor to make room. To make without this flag: as
 * what it replaces, unless FDBROKER_OBJECT_NO_PIN. */
#define FDBROKER_OBJECT_PIN 8

#define FDBROKER_OBJECT_UNPIN 16        /* To touch: it may again. */
#define FDBROKER_OBJECT_EVICTABLE 32    /* To make: the group may end when bytes are short and nobody uses it. */

/* To get: from the cache of objects if the name still leads there, and into it. One object at a
 * time. */
#define FDBROKER_OBJECT_CACHED 64

#define FDBROKER_OBJECT_NO_KEEP 128     /* To make, without FDBROKER_OBJECT_KEEP: no time is inherited. */

/* To make, without FDBROKER_OBJECT_PIN: no pin is inherited. With FDBROKER_OBJECT_NO_KEEP, too,
 * the group ends with its creator. */
#define FDBROKER_OBJECT_NO_PIN 2048

/* fdbroker_object_get_start(): the broker answers at once, whatever the deadline: what is not
 * there is FDBROKER_NOT_FOUND or FDBROKER_NOT_SEALED. A watch tells when to ask again. */
#define FDBROKER_OBJECT_NO_WAIT 4096

/* Of an info: nothing but its maker's word keeps the memory from being written (GPU memory). */
#define FDBROKER_OBJECT_COOPERATIVE 256

#define FDBROKER_OBJECT_CREATOR_GONE 512 /* Of an info: its creator is gone. */

/* Of an info: the group is kept, and ends with the broker all the same (a private broker, or one
 * whose service manager stores no fds). */
#define FDBROKER_OBJECT_ENDS_WITH_BROKER 1024

/* Of an object that was got: its memory is sealed, nobody can change it any more, and children of
 * fork(2) read it at ptr, too. */
#define FDBROKER_OBJECT_FINAL 2048

#define FDBROKER_OBJECT_EXPECT 1        /* In fdbroker_new_object_t: expect is meant. */
#define FDBROKER_OBJECT_AT 2            /* In fdbroker_new_object_t: offset is meant. */
#define FDBROKER_PLACE_HOST 0           /* A memfd of its own, mapped for writing until it is sealed. */
#define FDBROKER_PLACE_CUDA 1           /* One CUDA VMM allocation on a device. */
#define FDBROKER_PLACE_LEVEL_ZERO 2     /* One Level Zero allocation on a device. */
#define FDBROKER_PLACE_FD 3             /* Memory behind an fd of the program's. */
#define FDBROKER_OBJECT_IS_SEALED 2     /* The state of an object that can be had. */
#define FDBROKER_OBJECT_IS_MAKING 1     /* The state of one whose group is not sealed. */

/* All that was put into this stream or queue before (CUstream, ze_command_queue_handle_t). */
#define FDBROKER_WORK_STREAM 1

#define FDBROKER_WORK_EVENT 2           /* An event (CUevent, ze_event_handle_t). */
#define FDBROKER_WATCH_SEALED 1         /* The object can be had. */
#define FDBROKER_WATCH_REPLACED 2       /* Another object has the name now. */

/* It is gone: deleted, its time is over, its creator is gone without KEEP, or an administrator has
 * ended it. */
#define FDBROKER_WATCH_DELETED 3

#define FDBROKER_WATCH_EVICTED 4        /* It is gone, to make room. */
#define FDBROKER_WATCH_ABORTED 5        /* It was being made, and is not any more. */

/* Events were lost: version says how many, 0 = nobody knows (the broker was lost). A list tells
 * how it stands. */
#define FDBROKER_WATCH_LOST 6

/* A group of objects in the making. Only one thread at a time may use it. */
typedef struct fdbroker_object_group fdbroker_object_group_t;

/* A list under way. Only one thread at a time may use it. */
typedef struct fdbroker_object_list fdbroker_object_list_t;

/* A watch. Any thread may use it, several at once. */
typedef struct fdbroker_object_watch fdbroker_object_watch_t;

/* One object, to be made. */
typedef struct fdbroker_new_object {
  /* sizeof(fdbroker_new_object_t), set by the caller; in an array: of the first one, for all. */
  uint64_t struct_size;
  const char *name;              /* 1 to 255 bytes of UTF-8, NUL-terminated; "/" by habit. */
  uint64_t size_bytes;           /* Its size in bytes; may be 0. */
  const void *bytes;             /* fdbroker_object_put(): what it is to be. Else NULL. */
  const void *metadata;          /* Opaque; the library copies it. */
  uint64_t metadata_bytes;       /* The number of these bytes, at most 4096. */
  /* With FDBROKER_OBJECT_EXPECT: the version that the name must have when the group is sealed;
   * 0: none. */
  uint64_t expect;
  /* With FDBROKER_OBJECT_AT: where in the group's memory it begins, in bytes. Else behind the
   * one before, aligned. */
  uint64_t offset;
  uint32_t flags;                /* FDBROKER_OBJECT_EXPECT and FDBROKER_OBJECT_AT, combined by |. */
  uint32_t reserved;
} fdbroker_new_object_t;

/* How objects are made, got or touched. Zero but struct_size, or NULL: host memory, names of the
 * user, which must be free. */
typedef struct fdbroker_object_options {
  uint64_t struct_size;          /* sizeof(fdbroker_object_options_t), set by the caller. */
  uint32_t flags;                /* FDBROKER_OBJECT_*, combined by |. */
  /* To make: FDBROKER_PLACE_*. To get: FDBROKER_PLACE_CUDA or FDBROKER_PLACE_LEVEL_ZERO opens
   * GPU memory for this device. */
  uint32_t place;
  uint32_t device;               /* The device's ordinal. */
  int32_t fd;                    /* FDBROKER_PLACE_FD: the fd, which the caller keeps. */
  /* With FDBROKER_OBJECT_KEEP: how long the group lives after its last use, in ms; 0: as long as
   * the broker allows. */
  uint64_t ttl_ms;
  uint64_t room_bytes;           /* To make: bytes of memory beside those of the objects, for fdbroker_object_add(). */
  /* FDBROKER_PLACE_FD: kind, size_bytes, fd_offset, device and driver data of that memory. A
   * memfd is sealed against writing when the group is. */
  const fdbroker_allocation_t *memory;
} fdbroker_object_options_t;

/* An object that was got, to be given back once by fdbroker_object_release(). */
typedef struct fdbroker_object {
  /* sizeof(fdbroker_object_t), set by the caller; in an array: of the first one, the library
   * sets the others. */
  uint64_t struct_size;
  /* Its bytes, for reading; NULL: memory of a device. In a forked child only with
   * FDBROKER_OBJECT_FINAL in flags. */
  const void *ptr;
  uint64_t size_bytes;           /* Its size in bytes. */
  uint64_t version;              /* Given when its group was sealed, above all versions before. */
  const void *metadata;          /* All of its metadata; good until the release. */
  uint64_t metadata_bytes;       /* The number of these bytes. */
  uint64_t device_ptr;           /* Its address on the device that it was opened for; 0: host memory. */
  uint64_t object;               /* For the library; 0: none. */
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint32_t slot;
  uint32_t generation;
  /* With device_ptr: the ordinal of that device, of CUDA when kind is FDBROKER_KIND_CUDA_VMM,
   * else of Level Zero. */
  uint32_t device;
  uint32_t flags;                /* FDBROKER_OBJECT_FINAL or 0. */
  uint32_t reserved;
} fdbroker_object_t;

/* What is known of an object. */
typedef struct fdbroker_object_info {
  /* sizeof(fdbroker_object_info_t), set by the caller; in an array: of the first one, the
   * library sets the others. */
  uint64_t struct_size;
  char name[256];                /* Its name, NUL-terminated. */
  uint64_t version;              /* Its version; 0 while it is being made. */
  uint64_t size_bytes;           /* Its size in bytes. */
  uint64_t offset;               /* Where in its group's memory it begins, in bytes. */
  uint64_t group;                /* Its group's number. */
  uint64_t group_bytes;          /* The size of its group's memory, in bytes. */
  uint64_t age_ms;               /* Since it was sealed, or its group was begun. */
  uint64_t ttl_left_ms;          /* Left to its group if nobody uses it; UINT64_MAX: no end by time. */
  uint32_t state;                /* FDBROKER_OBJECT_IS_*; 0: nothing is known of the name. */
  /* FDBROKER_OBJECT_KEEP, PIN, EVICTABLE, COOPERATIVE, CREATOR_GONE and ENDS_WITH_BROKER,
   * combined by |. */
  uint32_t flags;
  uint32_t kind;                 /* FDBROKER_KIND_*. */
  uint32_t metadata_bytes;       /* The number of bytes of its metadata: fdbroker_object_metadata() copies them. */
  uint32_t group_names;          /* Names that its group has. */
  uint32_t leases;               /* Leases of its group. */
  uint32_t creator_pid;          /* Its creator's pid as the broker sees it. */
  uint32_t slot;
  uint32_t generation;
  uint32_t reserved;
} fdbroker_object_info_t;

/* What has happened to a name. */
typedef struct fdbroker_object_event {
  uint64_t struct_size;          /* sizeof(fdbroker_object_event_t), set by the caller. */
  char name[256];                /* The name, NUL-terminated; "" for FDBROKER_WATCH_LOST. */
  uint64_t version;              /* The version that was sealed, or is gone; 0 of one that was being made. */
  uint32_t event;                /* FDBROKER_WATCH_*; 0: none. */
  uint32_t reserved;
} fdbroker_object_event_t;

/* Begins a group of count objects, at most 253: memory for them, writable by this process alone,
 * and charged from now on. Others see that the names are being made. Write the objects
 * (fdbroker_object_data(), fdbroker_object_write()), seal the group, and give it back by
 * fdbroker_object_close(), which gives up one that is not sealed. options NULL: all defaults. On
 * failure *group is NULL.
 *
 * Host memory is a memfd that this call makes, sizes and allocates, so that this process's cgroup
 * pays for its pages. What is 64 MiB or more and does not fit into what the machine and the
 * process's cgroups (v2) have left is not allocated. The group keeps one fd open in this process
 * until it is sealed.
 *
 * Errors: FDBROKER_EXISTS (a name is in use or being made, without FDBROKER_OBJECT_REPLACE or
 * FDBROKER_OBJECT_EXPECT), FDBROKER_TOO_LONG (a name, metadata, or too many objects),
 * FDBROKER_BAD_HANDLE (a name that cannot be, two of one name, objects outside the memory),
 * FDBROKER_NO_QUOTA, FDBROKER_NOT_SUPPORTED (the place is absent here, the broker has no objects,
 * objects of a job are to be kept or pinned, or inside a callback), FDBROKER_INTERNAL (no memory),
 * FDBROKER_UNSUPPORTED_FD, FDBROKER_LOCAL_FD_LIMIT, FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_create(fdbroker_t *broker, size_t count, const fdbroker_new_object_t *objects,
    const fdbroker_object_options_t *options, uint32_t deadline_ms, fdbroker_object_group_t **group);

/* Adds count objects to a group, all of them or none, in the room that options->room_bytes has
 * left. They are counted on from those before.
 *
 * Errors: those of fdbroker_object_create(); FDBROKER_SEALED, FDBROKER_ABORTED (the broker that
 * had the group is gone). */
fdbroker_code_t fdbroker_object_add(fdbroker_object_group_t *group, size_t count,
    const fdbroker_new_object_t *objects, uint32_t deadline_ms);

/* The bytes of object index (from 0) of a host group: *ptr, all 0 at first, to be written until
 * the seal; *size_bytes, unless NULL, is their number. Never waits.
 *
 * Errors: FDBROKER_BAD_HANDLE (no such object), FDBROKER_NOT_SUPPORTED (GPU or foreign memory),
 * FDBROKER_SEALED, FDBROKER_ABORTED, FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. *ptr is NULL then. */
fdbroker_code_t fdbroker_object_data(fdbroker_object_group_t *group, size_t index, void **ptr,
    uint64_t *size_bytes);

/* The address of object index (from 0) of a group on a device. Good until the seal. Never waits.
 *
 * Errors: those of fdbroker_object_data(); FDBROKER_NOT_SUPPORTED: no memory of a device.
 * *device_ptr is 0 then. */
fdbroker_code_t fdbroker_object_device_ptr(fdbroker_object_group_t *group, size_t index,
    uint64_t *device_ptr);

/* Copies count bytes into object index (from 0) at offset, of whatever memory but foreign.
 *
 * Errors: those of fdbroker_object_data(); FDBROKER_BAD_HANDLE: out of bounds; FDBROKER_INTERNAL:
 * the driver's words. */
fdbroker_code_t fdbroker_object_write(fdbroker_object_group_t *group, size_t index, uint64_t offset,
    const void *bytes, size_t count);

/* Seals a group: from one moment on all its names lead to its objects, with one version (*version,
 * unless NULL), and nobody can write them any more: pointers of fdbroker_object_data() must not be
 * used. A group on a device waits for all work of its context first (Level Zero: for none).
 *
 * After FDBROKER_SEALED_BUSY the group is as before: unmap what is still mapped (another mapping
 * of the fd, or a child of _Fork(3) or clone(2)), and seal again. A seal right after a fork(3)
 * waits for the child to begin, for a second at most. After FDBROKER_EXISTS, FDBROKER_VERSION and
 * FDBROKER_NO_QUOTA it can be sealed again, and not be written any more. FDBROKER_NO_QUOTA says so
 * when it is for what the group inherits (FDBROKER_OBJECT_REPLACE).
 *
 * Errors: also FDBROKER_SEALED (it is), FDBROKER_ABORTED (the broker that had it is gone),
 * FDBROKER_TIMED_OUT (it may be sealed all the same), FDBROKER_NOT_CONNECTED,
 * FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_seal(fdbroker_object_group_t *group, uint32_t deadline_ms, uint64_t *version);

/* The same for a group on a device, waiting for this work alone: what is FDBROKER_WORK_*, work the
 * driver's handle.
 *
 * Errors: those of fdbroker_object_seal(); FDBROKER_NOT_SUPPORTED: host memory, or the driver has
 * no such wait. */
fdbroker_code_t fdbroker_object_seal_after(fdbroker_object_group_t *group, uint32_t what, void *work,
    uint32_t deadline_ms, uint64_t *version);

/* Gives a group back: one that is not sealed is given up, and nothing of it is charged any more. A
 * seal that was started goes on; it is given up by fdbroker_request_cancel(), or when it fails.
 * Never waits; also inside a callback. NULL: does nothing. Must come before fdbroker_close(). */
fdbroker_code_t fdbroker_object_close(fdbroker_object_group_t *group);

/* Makes count host objects of the bytes that objects[i].bytes points to, in groups of at most 253:
 * those of a group can be had from one moment on. *versions, unless NULL, get count versions, in
 * the order of the objects; 0 of those that were not made (the groups before the one that failed
 * are made). options NULL: all defaults; place is FDBROKER_PLACE_HOST.
 *
 * Errors: those of fdbroker_object_create() and fdbroker_object_seal(). */
fdbroker_code_t fdbroker_object_put(fdbroker_t *broker, size_t count, const fdbroker_new_object_t *objects,
    const fdbroker_object_options_t *options, uint32_t deadline_ms, uint64_t *versions);

/* Gets count objects (1 to 253) of one moment, all or none: never two versions of a group mixed.
 * Waits until they are sealed, until the deadline at most. Each is filled in in the order of the
 * names and given back by fdbroker_object_release(). Objects of one group share one mapping, which
 * stays until the last is given back. options NULL: all defaults. On failure all elements of
 * objects are zero but struct_size.
 *
 * options->flags may have FDBROKER_OBJECT_JOB, and FDBROKER_OBJECT_CACHED for one object that is
 * asked for again and again: it is had without a message while its name still leads to it, if it
 * is the only one of its group. options->place and device: where GPU memory is opened; without
 * them CUDA memory is opened for the device with the maker's ordinal, and Level Zero's is mapped
 * for the CPU.
 *
 * Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED (deadline_ms is 0), FDBROKER_TIMED_OUT
 * (fdbroker_last_error() says whether the name is unknown, or which process makes it),
 * FDBROKER_TOO_LONG, FDBROKER_AGAIN (in more groups than one answer may have fds),
 * FDBROKER_NO_QUOTA, FDBROKER_LOCAL_FD_LIMIT (nothing lost: retry), FDBROKER_NOT_SUPPORTED (GPU
 * memory without a driver; inside a callback), FDBROKER_BAD_HANDLE (what cannot be a name),
 * FDBROKER_INTERNAL (no addresses), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_get(fdbroker_t *broker, size_t count, const char *const *names,
    const fdbroker_object_options_t *options, uint32_t deadline_ms, fdbroker_object_t *objects);

/* Copies out count bytes from offset of an object, of whatever memory: a device's, too.
 *
 * Errors: FDBROKER_BAD_HANDLE (out of bounds; or given back before), FDBROKER_INTERNAL (the
 * driver's words), FDBROKER_NOT_CONNECTED (in a forked child, but for an object with
 * FDBROKER_OBJECT_FINAL), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_read(fdbroker_t *broker, const fdbroker_object_t *object, uint64_t offset,
    void *into, size_t count);

/* 1 when the group of an object still has a name (of one that is the only object of its group:
 * when its name still leads to it), and the broker lives and counts this use of it; else 0, also
 * for NULL, for an object given back, and in a forked child. The bytes stay as they are in any
 * case. Makes no system call. */
int32_t fdbroker_object_is_current(fdbroker_t *broker, const fdbroker_object_t *object);

/* Gives an object back and zeroes the struct but struct_size; pointers into it must not be used
 * any more. Never waits; also inside a callback. Give each object back once, not also a copy of
 * its struct.
 *
 * Errors: FDBROKER_BAD_HANDLE (given back before, or none; nothing changes),
 * FDBROKER_NOT_CONNECTED (in a forked child: the object is the parent's),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_release(fdbroker_t *broker, fdbroker_object_t *object);

/* Gives up the objects that FDBROKER_OBJECT_CACHED keeps and nobody uses. *count, unless NULL, is
 * their number. Also inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_empty_cache(fdbroker_t *broker, uint64_t *count);

/* Takes the names from count objects. Readers keep the memory; it goes with the last of them and
 * the last name of its group. versions[i] is the version that it must have, 0: any; versions NULL:
 * any. Fills all codes (codes may be NULL); answers FDBROKER_OK when all were deleted, else the
 * first failure. flags: FDBROKER_OBJECT_JOB or 0.
 *
 * Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED (its maker can give it up), FDBROKER_VERSION,
 * FDBROKER_BAD_HANDLE and FDBROKER_TOO_LONG (what cannot be a name: then none is deleted),
 * FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_delete(fdbroker_t *broker, size_t count, const char *const *names,
    const uint64_t *versions, uint32_t flags, uint32_t deadline_ms, fdbroker_code_t *codes);

/* Counts as a use of the groups of count names, and sets what keeps them: options->flags are
 * FDBROKER_OBJECT_JOB, KEEP (with ttl_ms), PIN or UNPIN. A new process of the same user takes over
 * kept objects so, by name. Fills all codes (codes may be NULL); answers FDBROKER_OK when all were
 * touched, else the first failure.
 *
 * Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED, FDBROKER_NO_QUOTA, FDBROKER_NOT_SUPPORTED (of a
 * job; inside a callback), FDBROKER_NOT_PERMITTED, and those of fdbroker_object_delete(). */
fdbroker_code_t fdbroker_object_touch(fdbroker_t *broker, size_t count, const char *const *names,
    const fdbroker_object_options_t *options, uint32_t deadline_ms, fdbroker_code_t *codes);

/* Says what is known of count names, in their order; state is 0 where nothing is. flags:
 * FDBROKER_OBJECT_JOB or 0. On failure all elements of infos are zero but struct_size.
 *
 * Errors: FDBROKER_BAD_HANDLE and FDBROKER_TOO_LONG (what cannot be a name), FDBROKER_TIMED_OUT,
 * FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_stat(fdbroker_t *broker, size_t count, const char *const *names,
    uint32_t flags, uint32_t deadline_ms, fdbroker_object_info_t *infos);

/* Copies the metadata of an object: at most room bytes, to buffer. *bytes, unless NULL, is how
 * many it has (at most 4096). flags: FDBROKER_OBJECT_JOB or 0.
 *
 * Errors: FDBROKER_NOT_FOUND, FDBROKER_TOO_LONG (the room is too small: what fits is copied), and
 * those of fdbroker_object_stat(). */
fdbroker_code_t fdbroker_object_metadata(fdbroker_t *broker, const char *name, uint32_t flags,
    uint32_t deadline_ms, void *buffer, size_t room, uint64_t *bytes);

/* Begins to list the names that begin with prefix ("": all), in the order of their bytes, those
 * being made included. It asks the broker page by page, so names that come or go meanwhile may be
 * in it or not. deadline_ms is for all pages. To be given back by fdbroker_object_list_close().
 * flags: FDBROKER_OBJECT_JOB or 0. On failure *list is NULL.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_BAD_HANDLE (the prefix is not
 * UTF-8), FDBROKER_INVALID_ARGUMENT.
 * fdbroker_object_list_next() answers all others. */
fdbroker_code_t fdbroker_object_list(fdbroker_t *broker, const char *prefix, uint32_t flags,
    uint32_t deadline_ms, fdbroker_object_list_t **list);

/* The next of a list: *has_one is 1 and *info says what is known of it; or *has_one is 0 and the
 * list is over. After an error it is over, too.
 *
 * Errors: FDBROKER_TOO_LONG (the prefix), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
 * FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_list_next(fdbroker_object_list_t *list, fdbroker_object_info_t *info,
    int32_t *has_one);

/* Gives a list back. NULL: does nothing. Must come before fdbroker_close(). */
fdbroker_code_t fdbroker_object_list_close(fdbroker_object_list_t *list);

/* From now on tells what happens to names that begin with prefix ("": all), in its order:
 * fdbroker_object_watch_next(). What nobody reads in time is lost, and so is what happens while
 * there is no broker: FDBROKER_WATCH_LOST says so. To be given back by
 * fdbroker_object_watch_close(). flags: FDBROKER_OBJECT_JOB or 0. On failure *watch is NULL.
 *
 * Errors: FDBROKER_NO_QUOTA (too many), FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE (the prefix is not
 * UTF-8), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_watch(fdbroker_t *broker, const char *prefix, uint32_t flags,
    uint32_t deadline_ms, fdbroker_object_watch_t **watch);

/* The next event, waiting for it until the deadline. FDBROKER_AGAIN: none has come; event->event
 * is 0 and fdbroker_last_error() stays as it was.
 *
 * Errors: FDBROKER_NOT_CONNECTED (no broker: later calls go on when it is back, with
 * FDBROKER_WATCH_LOST first), FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_watch_next(fdbroker_object_watch_t *watch, uint32_t deadline_ms,
    fdbroker_object_event_t *event);

/* From now on the watch tells due this token when there is a new event, after
 * fdbroker_object_watch_next() has found none, and once now: read it then, with a deadline of 0,
 * until it answers FDBROKER_AGAIN. It tells the loss of the broker, too; ask now and then whether
 * there is one again.
 *
 * Errors: FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_object_watch_tell(fdbroker_object_watch_t *watch, fdbroker_due_t *due,
    uint64_t token);

/* Ends a watch. Never waits. NULL: does nothing. Must come before fdbroker_close(). */
fdbroker_code_t fdbroker_object_watch_close(fdbroker_object_watch_t *watch);

/* ---- Without waiting ------------------------------------------------------------------------------------ */

/* A request under way. Only one thread at a time may use it. */
typedef struct fdbroker_request fdbroker_request_t;

/* Starts to acquire count handles, without waiting. On success *request is a request, which ends
 * when fdbroker_request_test() says that it is done, or by fdbroker_request_cancel(); either must
 * come before fdbroker_close(). The handles are copied. Also inside a callback. On failure
 * *request is NULL.
 *
 * For every kind of request FDBROKER_AGAIN means that it is not done. Where other functions answer
 * FDBROKER_AGAIN, an item of a request ends with FDBROKER_CANCELLED: the import cache is
 * suspended, an opener answers it, the names to get are in too many groups.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. fdbroker_request_test() answers all
 * others. */
fdbroker_code_t fdbroker_acquire_start(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t deadline_ms, fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
 * written. Otherwise it is done and freed: all grants and codes (codes may be NULL) are filled as
 * by fdbroker_acquire_many(). Also inside a callback.
 *
 * Errors: the first of those of fdbroker_acquire(); FDBROKER_INVALID_ARGUMENT (the request stays
 * as it was). */
fdbroker_code_t fdbroker_request_test(fdbroker_request_t *request, fdbroker_grant_t *grants,
    fdbroker_code_t *codes);

/* Starts to import count handles through the import cache, without waiting; flags are
 * FDBROKER_IMPORT_*. Otherwise as fdbroker_acquire_start(); fdbroker_import_test() makes progress.
 * What is in the cache is in use at once.
 *
 * Errors: FDBROKER_NOT_CONNECTED (unless all is in the cache), FDBROKER_INVALID_ARGUMENT. All
 * others come from fdbroker_import_test(). */
fdbroker_code_t fdbroker_import_start(fdbroker_t *broker, size_t count, const fdbroker_handle_t *handles,
    uint32_t flags, uint32_t deadline_ms, fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
 * written. Otherwise it is done and freed: all imports and codes (codes may be NULL) are filled as
 * by fdbroker_import_many(). Each fd is closed as it comes. An opener (fdbroker_set_opener()) runs
 * inside this call. Not inside a callback.
 *
 * Errors: the first of those of fdbroker_import(); FDBROKER_NOT_SUPPORTED (inside a callback),
 * FDBROKER_INVALID_ARGUMENT: the request stays as it was. */
fdbroker_code_t fdbroker_import_test(fdbroker_request_t *request, fdbroker_import_t *imports,
    fdbroker_code_t *codes);

/* Starts to register count allocations, without waiting; fds[i] belongs to allocations[i].
 * Otherwise as fdbroker_acquire_start(); fdbroker_register_test() makes progress. The library
 * duplicates the fds and closes each duplicate when its allocation is registered: the caller may
 * close its own at once. Until the request is done, another registration of the same memory
 * (device and base) waits for it.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (an array). All others come from
 * fdbroker_register_test(). */
fdbroker_code_t fdbroker_register_start(fdbroker_t *broker, size_t count,
    const fdbroker_allocation_t *allocations, const int *fds, uint32_t deadline_ms,
    fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and nothing is
 * written. Otherwise it is done and freed: all handles and codes (codes may be NULL) are filled as
 * by fdbroker_register_many(). Also inside a callback.
 *
 * Errors: the first of those of fdbroker_register(); FDBROKER_LOCAL_FD_LIMIT (no fd for a
 * duplicate); FDBROKER_INVALID_ARGUMENT also when the request stays as it was, because handles is
 * NULL or it is another kind of request. */
fdbroker_code_t fdbroker_register_test(fdbroker_request_t *request, fdbroker_handle_t *handles,
    fdbroker_code_t *codes);

/* Starts to get count objects, without waiting; names and options as for fdbroker_object_get()
 * (not FDBROKER_OBJECT_CACHED). Otherwise as fdbroker_acquire_start(); fdbroker_object_get_test()
 * makes progress.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE (what cannot be a name),
 * FDBROKER_INVALID_ARGUMENT. All others come from fdbroker_object_get_test(). */
fdbroker_code_t fdbroker_object_get_start(fdbroker_t *broker, size_t count, const char *const *names,
    const fdbroker_object_options_t *options, uint32_t deadline_ms, fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way, and all elements
 * of objects are zero but struct_size. Otherwise it is done and freed, and objects are as after
 * fdbroker_object_get(); memory is opened inside this call. Also inside a callback.
 *
 * Errors: those of fdbroker_object_get(); FDBROKER_INVALID_ARGUMENT (the request stays as it was). */
fdbroker_code_t fdbroker_object_get_test(fdbroker_request_t *request, fdbroker_object_t *objects);

/* From now on a request tells due this token when there is something to test: an answer has come,
 * a place for its message is free, or the connection has ended.
 *
 * Errors: FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_request_tell(fdbroker_request_t *request, fdbroker_due_t *due, uint64_t token);

/* In how many milliseconds a request is to be tested though it has not told: its deadline comes
 * then, or a pause is over before it asks again. To be asked after each test. 0 for NULL. */
uint32_t fdbroker_request_due_ms(fdbroker_request_t *request);

/* Cancels a request and frees it: the broker is told, and what it has got or still gets is given
 * back (memory with a base that is registered already stays so, and the next registration of it
 * finds it; what was being sealed or put is given up, unless it is sealed by then). Never waits;
 * also inside a callback. NULL: does nothing. */
fdbroker_code_t fdbroker_request_cancel(fdbroker_request_t *request);

/* Starts to begin a group, without waiting for the broker; arguments as for
 * fdbroker_object_create(). Otherwise as fdbroker_acquire_start(); fdbroker_object_create_test()
 * makes progress. Memory is made inside this call, and what the pointers point to is copied.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE, FDBROKER_NOT_SUPPORTED,
 * FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT. All others come from
 * fdbroker_object_create_test(). */
fdbroker_code_t fdbroker_object_create_start(fdbroker_t *broker, size_t count,
    const fdbroker_new_object_t *objects, const fdbroker_object_options_t *options, uint32_t deadline_ms,
    fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
 * done and freed, and *group is as after fdbroker_object_create(). Also inside a callback.
 *
 * Errors: those of fdbroker_object_create(); FDBROKER_INVALID_ARGUMENT (the request stays as it
 * was). */
fdbroker_code_t fdbroker_object_create_test(fdbroker_request_t *request, fdbroker_object_group_t **group);

/* Starts to seal a group, without waiting for the broker: as fdbroker_object_seal() (what is 0),
 * or as fdbroker_object_seal_after(). Otherwise as fdbroker_acquire_start();
 * fdbroker_object_seal_test() makes progress. Memory is sealed inside this call, which waits for
 * a device's work and a child that begins as those do. Until the request has ended, and after
 * fdbroker_request_cancel(), the group can only be closed: all else is FDBROKER_ABORTED.
 *
 * Errors: FDBROKER_SEALED_BUSY (the group is as before), FDBROKER_SEALED, FDBROKER_ABORTED,
 * FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT.
 * All others come from fdbroker_object_seal_test(). */
fdbroker_code_t fdbroker_object_seal_start(fdbroker_object_group_t *group, uint32_t what, void *work,
    uint32_t deadline_ms, fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
 * done and freed, and the group and *version (unless NULL) are as after fdbroker_object_seal().
 * Also inside a callback.
 *
 * Errors: those of fdbroker_object_seal(); FDBROKER_INVALID_ARGUMENT (the request stays as it
 * was). */
fdbroker_code_t fdbroker_object_seal_test(fdbroker_request_t *request, uint64_t *version);

/* Starts to make count host objects, at most 253, that can be had from one moment on, without
 * waiting for the broker; arguments as for fdbroker_object_put(). Otherwise as
 * fdbroker_acquire_start(); fdbroker_object_put_test() makes progress. The bytes are copied inside
 * this call.
 *
 * Errors: FDBROKER_NOT_CONNECTED, FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE, FDBROKER_NOT_SUPPORTED,
 * FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL, FDBROKER_INVALID_ARGUMENT. All others come from
 * fdbroker_object_put_test(). */
fdbroker_code_t fdbroker_object_put_start(fdbroker_t *broker, size_t count,
    const fdbroker_new_object_t *objects, const fdbroker_object_options_t *options, uint32_t deadline_ms,
    fdbroker_request_t **request);

/* Makes progress without waiting. FDBROKER_AGAIN: the request is still under way. Otherwise it is
 * done and freed, and *version (unless NULL) is that of the objects; 0: they were not made. Also
 * inside a callback.
 *
 * Errors: those of fdbroker_object_put(); FDBROKER_INVALID_ARGUMENT (the request stays as it was). */
fdbroker_code_t fdbroker_object_put_test(fdbroker_request_t *request, uint64_t *version);

/* ---- Events: recalls, notices, dispatch ----------------------------------------------------------------- */

/* An allocation that this process has a lease of has ended. code says why: FDBROKER_STALE,
 * FDBROKER_OWNER_GONE or FDBROKER_LOST, or FDBROKER_NO_QUOTA when a broker that came back had no
 * room for the lease. The memory stays mapped, and the lease counted, until the lease is released.
 * lease is 0 when it belongs to the import cache. */
#define FDBROKER_NOTICE_REVOKED 1

/* The last lease of an ended allocation of this process is gone: its memory may be used anew. */
#define FDBROKER_NOTICE_DRAINED 2

/* The broker asks for this lease back, if it is not in use. (The import cache gives its own back.) */
#define FDBROKER_NOTICE_RECLAIM 3

#define FDBROKER_NOTICE_GOING_AWAY 4    /* The broker is about to end or to restart. */

/* The connection is lost. Until FDBROKER_NOTICE_RECONNECTED the broker grants nothing. Keep
 * handles, leases and pointers: they go on after it. */
#define FDBROKER_NOTICE_DISCONNECTED 5

/* Connected again. All handles, leases and registrations go on, except those that
 * FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_REGISTRATION_LOST named before this notice. */
#define FDBROKER_NOTICE_RECONNECTED 6

/* A registration of this process did not survive the loss of the broker: it is neither
 * FDBROKER_RECALLABLE nor was it kept, or the broker that came back did not take it. Its handle is
 * void: register again and pass on the new handle. */
#define FDBROKER_NOTICE_REGISTRATION_LOST 7

/* The broker has refused the fd that answered a recall; code says why. FDBROKER_UNSUPPORTED_FD: it
 * cannot be shared, or is a memfd other than the one that the handle names. The allocation stays
 * as it was, and its holders keep what they have. */
#define FDBROKER_NOTICE_SUPPLY_REFUSED 8

/* Of fdbroker_notice_next(): notices were lost, for the program did not read them;
 * owner_allocation_id is their number. */
#define FDBROKER_NOTICE_LOST 9

/* A recall: the broker has closed its fd of an allocation of this process, and asks for a new one. */
typedef struct fdbroker_recall {
  uint64_t struct_size;          /* Bytes of this struct in the library; it has no fields beyond them. */
  uint32_t slot;                 /* With generation: the allocation, as in fdbroker_handle_info_t. */
  uint32_t generation;
  uint64_t owner_allocation_id;  /* From here on: as registered. */
  uint64_t base;
  uint64_t size_bytes;
  uint64_t fd_offset;
  uint32_t device;
  uint32_t reserved;
} fdbroker_recall_t;

/* The answer to a recall. It comes filled in as registered, with fd -1. */
typedef struct fdbroker_recall_answer {
  uint64_t struct_size;          /* Bytes of this struct in the library; do not change it. */
  int32_t fd;                    /* The new export. After FDBROKER_OK the library owns it: sends it and closes it. */
  uint32_t reserved;
  uint64_t fd_offset;            /* Where in the fd's memory the allocation begins now, in bytes. */
  uint64_t size_bytes;           /* Must be as registered. */
  uint64_t owner_allocation_id;  /* The id of the memory at this address, read again after the export. */
} fdbroker_recall_answer_t;

/* Answers a recall. FDBROKER_OK: answer->fd is the new export. FDBROKER_STALE: the memory is gone,
 * and the allocation ends. Any other code: not now; an fd then stays the callback's.
 *
 * Runs on the library thread, with all signals blocked; with FDBROKER_OPEN_DISPATCH inside
 * fdbroker_dispatch() or a call that waits. A context runs one callback at a time (with
 * FDBROKER_OPEN_RECALL_THREAD one of each kind). It must return soon, and must not throw, longjmp
 * or wait: calls that wait answer FDBROKER_NOT_SUPPORTED there. It may call functions that never
 * wait, such as fdbroker_release(), fdbroker_host_free() and fdbroker_stats(). */
typedef fdbroker_code_t (*fdbroker_recall_fn)(void *user, const fdbroker_recall_t *recall,
    fdbroker_recall_answer_t *answer);

/* A notice from the broker. Fields that its kind does not have are 0. */
typedef struct fdbroker_notice {
  /* For a callback, the bytes of this struct in the library; for fdbroker_notice_next(),
   * sizeof(fdbroker_notice_t), set by the caller. It has no fields beyond them. */
  uint64_t struct_size;
  uint32_t kind;                 /* FDBROKER_NOTICE_*; ignore kinds that you do not know. */
  /* Why: of FDBROKER_NOTICE_REVOKED, FDBROKER_NOTICE_REGISTRATION_LOST and
   * FDBROKER_NOTICE_SUPPLY_REFUSED. */
  fdbroker_code_t code;
  uint32_t slot;                 /* With generation: the allocation, as in fdbroker_handle_info_t. */
  uint32_t generation;
  uint64_t lease;                /* Of FDBROKER_NOTICE_REVOKED and FDBROKER_NOTICE_RECLAIM; as in fdbroker_grant_t. */
  uint64_t owner_allocation_id;  /* Of FDBROKER_NOTICE_DRAINED and FDBROKER_NOTICE_REGISTRATION_LOST; as registered. */
  uint64_t base;                 /* Of the same kinds; as registered. */
} fdbroker_notice_t;

/* Receives a notice, under the rules of fdbroker_recall_fn. The struct lives until the callback
 * returns. With FDBROKER_OPEN_RECALL_THREAD it runs inside fdbroker_dispatch(), and calls that
 * wait are fine there. */
typedef void (*fdbroker_notice_fn)(void *user, const fdbroker_notice_t *notice);

/* Whether the call under way is to end: not 0. Also asked when no handler has run. */
typedef int32_t (*fdbroker_interrupt_fn)(void *user);

/* Sets the callback that exports registered memory again when the broker recalls it. Set it before
 * registering with FDBROKER_RECALLABLE. The library answers recalls of host memory itself. NULL:
 * no callback, and all other recalls fail. Returns when the callback set before has returned, so
 * that the memory behind its user may be freed; waits at most 10 s for that. Not inside a
 * callback.
 *
 * Errors: FDBROKER_TIMED_OUT (the callback is replaced, but the one before still runs),
 * FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_NOT_CONNECTED (in a forked child),
 * FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_set_recall_callback(fdbroker_t *broker, fdbroker_recall_fn callback, void *user);

/* Sets the callback that receives notices; NULL: none. Rules and errors as for
 * fdbroker_set_recall_callback(). */
fdbroker_code_t fdbroker_set_notice_callback(fdbroker_t *broker, fdbroker_notice_fn callback, void *user);

/* Lets signal handlers of the program end calls of the calling thread. After a handler has run in
 * this thread while a call waits in it, and now and then, check is called there; it may call this
 * library. When it answers other than 0, the call ends at once, with FDBROKER_CANCELLED, as at its
 * deadline: what it has got or still gets is given back. (An answer that came first: the call
 * succeeds. Then set check again before the next call.) For all contexts; NULL: waits go on, as
 * without this call. A driver's call, and the waits of other threads, are not interrupted.
 *
 * Errors: none. */
fdbroker_code_t fdbroker_set_interrupt(fdbroker_interrupt_fn check, void *user);

/* With FDBROKER_OPEN_DISPATCH or FDBROKER_OPEN_RECALL_THREAD: an fd for poll(2) and POLLIN,
 * readable when fdbroker_dispatch() has something to do. It stays the library's and the same until
 * fdbroker_close(): do not read or close it. After a program has closed it all the same, the next
 * call here or of fdbroker_dispatch() makes another. Otherwise -1. */
int fdbroker_event_fd(fdbroker_t *broker);

/* With FDBROKER_OPEN_NOTICES: the next notice, in their order, without waiting. FDBROKER_AGAIN:
 * there is none; notice->kind is 0 and fdbroker_last_error() stays as it was. At most 4,096 wait;
 * the oldest beyond are lost, which FDBROKER_NOTICE_LOST says.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_notice_next(fdbroker_t *broker, fdbroker_notice_t *notice);

/* From now on each notice tells due this token, and once now: read them then by
 * fdbroker_notice_next(), until it answers FDBROKER_AGAIN.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (opened without FDBROKER_OPEN_NOTICES), FDBROKER_NOT_CONNECTED
 * (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_notice_tell(fdbroker_t *broker, fdbroker_due_t *due, uint64_t token);

/* With FDBROKER_OPEN_DISPATCH: serves recalls, notices and the reconnect; with
 * FDBROKER_OPEN_RECALL_THREAD: notices. Callbacks run inside this call. When there is nothing to
 * serve, it waits up to timeout_ms; 0 does not wait. FDBROKER_OK also when nothing came, and while
 * the broker is away. Not inside a callback.
 *
 * Errors: FDBROKER_NOT_SUPPORTED (this context has a library thread; or inside a callback),
 * FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_dispatch(fdbroker_t *broker, uint32_t timeout_ms);

/* ---- Counters ------------------------------------------------------------------------------------------- */

/* What fdbroker_stats() reports: uses of the import cache, and what the context holds. */
typedef struct fdbroker_stats {
  uint64_t struct_size;          /* sizeof(fdbroker_stats_t), set by the caller. */
  uint64_t hits;                 /* Imports served from the cache, since open. */
  uint64_t misses;               /* Imports that had to ask the broker, since open. */
  uint64_t stale;                /* Imports that found their entry ended, since open. */
  uint64_t evicted;              /* Entries closed to stay within the limits, since open. */
  uint64_t entries;              /* Entries in the cache now. */
  uint64_t pinned;               /* Entries in use now: imported, not yet released. */
  uint64_t bytes;                /* Bytes of memory of the entries in the cache now. */
  uint64_t max_entries;          /* The limit of entries; 0: none. */
  uint64_t max_bytes;            /* The limit of bytes; 0: none. */
  /* Registrations now: allocations with a base, host memory, and memory of fdbroker_gpu_alloc(). */
  uint64_t registrations;
  uint64_t host_bytes;           /* Address space of arenas, isolated and dma-heap memory, in bytes. */
  uint64_t host_bytes_used;      /* Bytes of it in buffers that are not freed. */
  uint64_t leases;               /* Leases acquired and not released, imports not counted. */
  /* Bytes of arenas that are freed and not used again yet: a consumer still has a lease, or
   * could still declare one after the loss of a broker, until the next one's grace time is over;
   * or no broker knows of them (fdbroker_host_reclaim()). */
  uint64_t host_bytes_held_back;
} fdbroker_stats_t;

/* Reads the counters. Sends nothing and never waits; also inside a callback.
 *
 * Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT. */
fdbroker_code_t fdbroker_stats(fdbroker_t *broker, fdbroker_stats_t *stats);

/* Passes the size of the struct, so that options which this header has and an older one lacks are set, too. */
#define fdbroker_options_init(options) fdbroker_options_init_sized((options), sizeof(fdbroker_options_t))

#ifdef __cplusplus
}
#endif

#endif /* FDBROKER_H */
