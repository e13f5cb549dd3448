// A producer and a consumer with Intel's Level Zero driver over the node of node.c: they share memory in the ways that programs have
// (../README: UMF, oneCCL, MPICH), and each case prints one line of what the consumer found. Must never know of fdbroker, nor
// judge: run.sh knows what is to be found with the driver alone and under the layer.
// Usage: cases CASE. Exit status 0: the case came to its end.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *handle; /* of driver, device, context, list, event pool, event, physical memory */
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;
typedef struct { int stype; const void *next; unsigned flags, count; } pool_desc;
typedef struct { int stype; const void *next; unsigned index, signal, wait; } event_desc;
typedef struct { int stype; const void *next; unsigned flags; size_t size; } physical_desc;
typedef int get_all(handle, const void *, unsigned *, ipc_handle *);
typedef int open_all(handle, handle, unsigned, ipc_handle *, unsigned, void **);

int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *);
int zeCommandListCreateImmediate(handle, handle, const queue_desc *, handle *);
int zeCommandListAppendMemoryCopy(handle, void *, const void *, size_t, handle, unsigned, handle *);
int zeMemAllocDevice(handle, const alloc_desc *, size_t, size_t, handle, void **), zeMemFree(handle, void *);
int zeMemAllocHost(handle, const alloc_desc *, size_t, size_t, void **);
int zeMemGetIpcHandle(handle, const void *, ipc_handle *), zeMemPutIpcHandle(handle, ipc_handle);
int zeMemOpenIpcHandle(handle, handle, ipc_handle, unsigned, void **), zeMemCloseIpcHandle(handle, const void *);
int zeDriverGetExtensionFunctionAddress(handle, const char *, void **);
int zeEventPoolCreate(handle, const pool_desc *, unsigned, handle *, handle *), zeEventPoolDestroy(handle);
int zeEventPoolGetIpcHandle(handle, ipc_handle *), zeEventPoolOpenIpcHandle(handle, ipc_handle, handle *);
int zeEventPoolCloseIpcHandle(handle), zeEventCreate(handle, const event_desc *, handle *), zeEventDestroy(handle);
int zeEventHostSignal(handle), zeEventQueryStatus(handle);

enum { BYTES = 4096, SOME = 40, MANY = 600, FEW_FDS = 256, HOST_SCOPE = 4 };
static handle driver, device, context, list;

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, "pid %d: " #call " = %#x\n", getpid(), (unsigned)code); exit(1); } } while (0)
#define NEED(condition) \
    do { if (!(condition)) { fprintf(stderr, "pid %d: not " #condition " (errno %d)\n", getpid(), errno); exit(1); } } while (0)

static void start(void) {
    unsigned one = 1;
    context_desc c = {0xd, NULL, 0};
    queue_desc q = {0xe, NULL, 0, 0, 0, 1 /* synchronous */, 0};
    CALL(zeInit(0));
    CALL(zeDriverGet(&one, &driver));
    one = 1;
    CALL(zeDeviceGet(driver, &one, &device));
    CALL(zeContextCreate(driver, &c, &context));
    CALL(zeCommandListCreateImmediate(context, device, &q, &list));
}

/* The byte at `at` of buffer `number`. */
static char byte_of(unsigned number, size_t at) { return (char)(at * 31 + (at >> 8) + number * 7 + 1); }

/* Small copies are made by the processor, where the driver can: nothing here executes a command. */
static void fill(void *memory, unsigned number) {
    char bytes[BYTES];
    for (size_t at = 0; at < BYTES; at++) bytes[at] = byte_of(number, at);
    CALL(zeCommandListAppendMemoryCopy(list, memory, bytes, BYTES, NULL, 0, NULL));
}

static void *allocate(unsigned number) {
    alloc_desc d = {0x15, NULL, 0, 0};
    void *memory;
    if (zeMemAllocDevice(context, &d, BYTES, 1, device, &memory)) return NULL;
    fill(memory, number);
    return memory;
}

/* --- what one asks the other ------------------------------------------------------------------------------------------------- */
enum order {
    OPEN,       /* the 64 bytes */
    FETCHED,    /* the 64 bytes, with the fd that the producer has under the number in them */
    FD_ALONE,   /* a handle of that fd alone */
    SENT,       /* the 64 bytes, with the fd that comes along */
    SENT_ALONE, /* a handle of that fd alone */
    ZEX,        /* by zexMemOpenIpcHandles */
    STAY,       /* as OPEN, and leave it open */
    LOOK,       /* at what is open */
    POOL,       /* an event pool: is event 1 signalled? */
};
enum found { RIGHT, OTHER, REFUSED };
struct message { enum order order; unsigned number; int producer; ipc_handle handle; };

static int fd_in(ipc_handle h) { int fd; memcpy(&fd, h.data, sizeof fd); return fd; }
static ipc_handle with_fd(ipc_handle h, int fd) { memcpy(h.data, &fd, sizeof fd); return h; }

static void send_message(int socket, const void *bytes, size_t size, int fd) {
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {{0}};
    struct iovec part = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = &control, message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    NEED(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)size);
}

/* Whether a message came; not at the other's end. */
static int receive_message(int socket, void *bytes, size_t size, int *fd) {
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {{0}};
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    *fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)size) return 0;
    if (message.msg_controllen >= sizeof control.header) memcpy(fd, CMSG_DATA(&control.header), sizeof *fd);
    return 1;
}

/* --- the consumer ------------------------------------------------------------------------------------------------------------ */
static void *opened;

/* What the buffer holds that the driver has imported last, where the handle says that the allocation begins. */
static enum found look(unsigned number, uint64_t offset) {
    void *(*last_import)(size_t *) = (void *(*)(size_t *))dlsym(RTLD_DEFAULT, "node_last_import");
    size_t size;
    NEED(last_import);
    char *bytes = last_import(&size);
    enum found found = RIGHT;
    if (!bytes) return REFUSED;
    for (size_t at = 0; at < BYTES; at++)
        if (offset + at >= size || bytes[offset + at] != byte_of(number, at)) found = OTHER;
    munmap(bytes, size);
    return found;
}

static int open_as(struct message *order, int fd, ipc_handle h) {
    static const ipc_handle nothing;
    open_all *zex;
    switch (order->order) {
    case FETCHED: case SENT: return zeMemOpenIpcHandle(context, device, with_fd(h, fd), 0, &opened);
    case FD_ALONE: case SENT_ALONE: return zeMemOpenIpcHandle(context, device, with_fd(nothing, fd), 0, &opened);
    case ZEX:
        CALL(zeDriverGetExtensionFunctionAddress(driver, "zexMemOpenIpcHandles", (void **)&zex));
        return zex(context, device, 1, &h, 0, &opened);
    default: return zeMemOpenIpcHandle(context, device, h, 0, &opened);
    }
}

static enum found open_and_look(struct message *order, int fd) {
    uint64_t offset = 0;
    int is_alone = order->order == FD_ALONE || order->order == SENT_ALONE;
    if (order->order == FETCHED || order->order == FD_ALONE) {
        int process = (int)syscall(SYS_pidfd_open, order->producer, 0);
        fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd_in(order->handle), 0);
        if (process >= 0) close(process);
        if (fd < 0) return REFUSED;
    }
    if (!is_alone) memcpy(&offset, order->handle.data + 8, sizeof offset);
    int code = open_as(order, fd, order->handle);
    if (getenv("CASES_TRACE")) fprintf(stderr, "open %#x\n", code);
    enum found found = code ? REFUSED : look(order->number, offset);
    if (fd >= 0) close(fd);
    if (!code && order->order != STAY) CALL(zeMemCloseIpcHandle(context, opened));
    return found;
}

static enum found open_pool(struct message *order) {
    event_desc d = {0x11, NULL, 1, HOST_SCOPE, HOST_SCOPE};
    handle pool, event;
    int code = zeEventPoolOpenIpcHandle(context, order->handle, &pool);
    if (getenv("CASES_TRACE")) fprintf(stderr, "pool open %#x\n", code);
    if (code) return REFUSED;
    CALL(zeEventCreate(pool, &d, &event));
    enum found found = zeEventQueryStatus(event) == 0 ? RIGHT : OTHER;
    CALL(zeEventDestroy(event));
    CALL(zeEventPoolCloseIpcHandle(pool));
    return found;
}

static void consume(int socket) {
    struct message order;
    int fd;
    start();
    while (receive_message(socket, &order, sizeof order, &fd)) {
        enum found found = order.order == POOL ? open_pool(&order)
            : order.order == LOOK ? look(order.number, 0) : open_and_look(&order, fd);
        send_message(socket, &found, sizeof found, -1);
    }
}

/* --- the producer ------------------------------------------------------------------------------------------------------------ */
static int consumer;
static unsigned counts[3];

static enum found tell(enum order order, unsigned number, ipc_handle h, int fd) {
    struct message message = {order, number, getpid(), h};
    enum found found;
    int none;
    send_message(consumer, &message, sizeof message, fd);
    NEED(receive_message(consumer, &found, sizeof found, &none));
    counts[found]++;
    return found;
}

static void print_counts(unsigned exported) {
    printf("of %u: %u right, %u other memory, %u refused\n", exported, counts[RIGHT], counts[OTHER], counts[REFUSED]);
}

/* Exports as many as `most`, or until it fails, and has the consumer open each. */
static void share(enum order order, unsigned most) {
    static ipc_handle handles[MANY];
    unsigned exported = 0;
    for (; exported < most; exported++) {
        void *memory = allocate(exported);
        if (!memory || zeMemGetIpcHandle(context, memory, &handles[exported])) break;
    }
    for (unsigned i = 0; i < exported; i++) {
        int fd = order == SENT || order == SENT_ALONE ? dup(fd_in(handles[i])) : -1;
        tell(order, i, handles[i], fd);
        if (fd >= 0) close(fd);
    }
    print_counts(exported);
}

static const char *const names[] = {"right", "OTHER MEMORY", "refused"};

static void share_other_ways(void) {
    get_all *zex;
    ipc_handle h;
    unsigned one = 1;
    alloc_desc d = {0x16, NULL, 0, 0};
    void *host, *memory = allocate(1);
    NEED(memory);
    CALL(zeDriverGetExtensionFunctionAddress(driver, "zexMemGetIpcHandles", (void **)&zex));
    CALL(zex(context, memory, &one, &h));
    enum found of_tile = tell(ZEX, 1, h, -1);
    CALL(zeMemAllocHost(context, &d, BYTES, 1, &host));
    for (size_t at = 0; at < BYTES; at++) ((char *)host)[at] = byte_of(2, at);
    CALL(zeMemGetIpcHandle(context, host, &h));
    printf("zexMemGetIpcHandles %s, host memory %s\n", names[of_tile], names[tell(OPEN, 2, h, -1)]);
}

/* A pool's handle travels by value, and one event of it is signalled before. */
static void share_pool(void) {
    pool_desc p = {0x10, NULL, 1 | 2 /* host visible, shared */, 4};
    event_desc d = {0x11, NULL, 1, HOST_SCOPE, HOST_SCOPE};
    handle pool, event;
    ipc_handle h;
    CALL(zeEventPoolCreate(context, &p, 1, &device, &pool));
    CALL(zeEventCreate(pool, &d, &event));
    CALL(zeEventHostSignal(event));
    CALL(zeEventPoolGetIpcHandle(pool, &h));
    for (int round = 0; round < 3; round++) tell(POOL, 0, h, -1);
    print_counts(3);
    CALL(zeEventDestroy(event));
    CALL(zeEventPoolDestroy(pool));
}

/* The memory is freed, and other memory most likely has its address, and its fd's number. */
static void reuse(void) {
    enum { ROUNDS = 20 };
    unsigned of_freed[3] = {0}, of_new[3] = {0};
    for (unsigned i = 0; i < ROUNDS; i++) {
        ipc_handle before, now;
        void *memory = allocate(2 * i);
        NEED(memory);
        CALL(zeMemGetIpcHandle(context, memory, &before));
        of_new[tell(OPEN, 2 * i, before, -1)]++;
        CALL(zeMemFree(context, memory));
        NEED(memory = allocate(2 * i + 1));
        CALL(zeMemGetIpcHandle(context, memory, &now));
        of_freed[tell(OPEN, 2 * i, before, -1)]++;
        of_new[tell(OPEN, 2 * i + 1, now, -1)]++;
        CALL(zeMemFree(context, memory));
    }
    printf("freed memory: %u still open, %u other memory, %u refused; new memory: %u right, %u other memory, %u refused\n",
           of_freed[RIGHT], of_freed[OTHER], of_freed[REFUSED], of_new[RIGHT], of_new[OTHER], of_new[REFUSED]);
}

/* A third process owns memory and is killed: what is open stays. */
static void kill_owner(void) {
    ipc_handle h;
    int tube[2];
    NEED(!pipe(tube));
    pid_t owner = fork();
    if (!owner) {
        start();
        void *memory = allocate(5);
        NEED(memory);
        CALL(zeMemGetIpcHandle(context, memory, &h));
        NEED(write(tube[1], &h, sizeof h) == sizeof h);
        pause();
    }
    close(tube[1]);
    NEED(read(tube[0], &h, sizeof h) == sizeof h);
    enum found first = tell(STAY, 5, h, -1);
    kill(owner, SIGKILL);
    NEED(waitpid(owner, NULL, 0) == owner);
    usleep(300000); /* until everybody knows */
    enum found stays = tell(LOOK, 5, h, -1), again = tell(OPEN, 5, h, -1);
    printf("before %s, open memory after %s, opened again %s\n", names[first], names[stays], names[again]);
}

/* Starts the consumer: in a PID namespace of its own, or not. */
static pid_t start_consumer(char *program, int is_apart) {
    int ends[2];
    NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 0);
        if (is_apart) execlp("unshare", "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", program, "consumer", NULL);
        else execl(program, program, "consumer", NULL);
        _exit(9);
    }
    close(ends[1]);
    consumer = ends[0];
    return child;
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    int status;
    if (!strcmp(name, "consumer")) { consume(0); return 0; }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t child = start_consumer(arguments[0], strstr(name, "apart") != NULL);
    if (!strcmp(name, "owner-killed")) { kill_owner(); }
    else {
        if (!strcmp(name, "many")) {
            struct rlimit fds;
            getrlimit(RLIMIT_NOFILE, &fds);
            fds.rlim_cur = FEW_FDS;
            NEED(!setrlimit(RLIMIT_NOFILE, &fds));
        }
        start();
        if (!strcmp(name, "by-value") || !strcmp(name, "by-value-apart")) share(OPEN, SOME);
        else if (!strcmp(name, "fetched") || !strcmp(name, "fetched-apart")) share(FETCHED, SOME);
        else if (!strcmp(name, "fd-alone")) share(FD_ALONE, SOME);
        else if (!strcmp(name, "sent")) share(SENT, SOME);
        else if (!strcmp(name, "sent-alone")) share(SENT_ALONE, SOME);
        else if (!strcmp(name, "many")) share(FETCHED, MANY);
        else if (!strcmp(name, "other-ways")) share_other_ways();
        else if (!strcmp(name, "event-pool") || !strcmp(name, "event-pool-apart")) share_pool();
        else if (!strcmp(name, "reuse")) reuse();
        else { fprintf(stderr, "cases: no case `%s`\n", name); return 2; }
    }
    fflush(stdout);
    close(consumer);
    NEED(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
