// A program that is linked to the Level Zero loader, like most, and passes an IPC handle by value through a pipe.
// Must never know of fdbroker, nor need a header: it declares the functions that it calls. With `apart` its
// children are in a PID namespace of their own. Exit status 0: it shared.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

typedef void *handle; /* of driver, device, context, list */
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;

int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *), zeContextDestroy(handle);
int zeCommandListCreateImmediate(handle, handle, const queue_desc *, handle *), zeCommandListDestroy(handle);
int zeCommandListAppendMemoryCopy(handle, void *, const void *, size_t, handle, unsigned, handle *);
int zeMemAllocDevice(handle, const alloc_desc *, size_t, size_t, handle, void **), zeMemFree(handle, void *);
int zeMemGetIpcHandle(handle, const void *, ipc_handle *);
int zeMemOpenIpcHandle(handle, handle, ipc_handle, unsigned, void **), zeMemCloseIpcHandle(handle, const void *);

static handle driver, device, context, list;
static const char text[] = "written by the producer";

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, #call " = %#x\n", (unsigned)code); return 1; } } while (0)

static int start(void) {
    unsigned one = 1;
    context_desc c = {0xd, NULL, 0};
    queue_desc q = {0xe, NULL, 0, 0, 0, 1 /* synchronous */, 0};
    CALL(zeInit(0));
    CALL(zeDriverGet(&one, &driver));
    CALL(zeDeviceGet(driver, &one, &device));
    CALL(zeContextCreate(driver, &c, &context));
    CALL(zeCommandListCreateImmediate(context, device, &q, &list));
    return 0;
}

static int produce(int to, int until) {
    alloc_desc d = {0x15, NULL, 0, 0};
    ipc_handle h;
    void *memory;
    char end;
    if (start()) return 1;
    CALL(zeMemAllocDevice(context, &d, 4096, 1, device, &memory));
    CALL(zeCommandListAppendMemoryCopy(list, memory, text, sizeof text, NULL, 0, NULL));
    CALL(zeMemGetIpcHandle(context, memory, &h));
    if (write(to, &h, sizeof h) != sizeof h) return 1;
    if (read(until, &end, 1) != 0) return 1; /* the end: the consumer has closed its side */
    CALL(zeMemFree(context, memory));
    CALL(zeCommandListDestroy(list));
    CALL(zeContextDestroy(context));
    return 0;
}

static int consume(int from) {
    ipc_handle h;
    void *memory;
    char seen[sizeof text] = "";
    if (start()) return 1;
    if (read(from, &h, sizeof h) != sizeof h) return 1;
    CALL(zeMemOpenIpcHandle(context, device, h, 0, &memory));
    CALL(zeCommandListAppendMemoryCopy(list, seen, memory, sizeof seen, NULL, 0, NULL));
    CALL(zeMemCloseIpcHandle(context, memory));
    return memcmp(seen, text, sizeof text) != 0;
}

int main(int count, char **arguments) {
    int handles[2], life[2], status = 1, failed;
    pid_t producer;
    /* From here on this process can start no thread. */
    if (count > 1 && strcmp(arguments[1], "apart") == 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID)) return 77;
    if (pipe(handles) || pipe(life) || (producer = fork()) < 0) return 1;
    if (producer == 0) {
        close(life[1]);
        return produce(handles[1], life[0]);
    }
    close(handles[1]);
    failed = consume(handles[0]);
    close(life[1]);
    waitpid(producer, &status, 0);
    return failed || status != 0;
}
