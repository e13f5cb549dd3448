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
