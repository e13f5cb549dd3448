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
