// Two programs that share memory by UMF's Level Zero provider, as its users write them, with its wheel unmodified: a producer with
// 600 allocations and a consumer, with `apart` in a PID namespace of its own. Must never know of fdbroker.
// Usage: umf [apart]. Exit status 0: every byte was right.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <umf.h>
#include <umf/ipc.h>
#include <umf/memory_pool.h>
#include <umf/pools/pool_proxy.h>
#include <umf/providers/provider_level_zero.h>
#include <unistd.h>

typedef void *handle; /* of driver, device, context, list */
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;
int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *);
int zeCommandListCreateImmediate(handle, handle, const queue_desc *, handle *);
int zeCommandListAppendMemoryCopy(handle, void *, const void *, size_t, handle, unsigned, handle *);

enum { HANDLES = 600, BYTES = 4096, MOST = 4096 };
static handle device, context, list;
static umf_memory_pool_handle_t pool;

#define CALL(call) \
    do { int code = (int)(call); if (code) { fprintf(stderr, "pid %d: " #call " = %#x\n", getpid(), (unsigned)code); exit(1); } } while (0)
#define NEED(condition) \
    do { if (!(condition)) { fprintf(stderr, "pid %d: not " #condition "\n", getpid()); exit(1); } } while (0)

static void start(void) {
    unsigned one = 1;
    handle driver;
    context_desc c = {0xd, NULL, 0};
    queue_desc q = {0xe, NULL, 0, 0, 0, 1 /* synchronous */, 0};
    umf_level_zero_memory_provider_params_handle_t parameters;
    umf_memory_provider_handle_t provider;
    CALL(zeInit(0));
    CALL(zeDriverGet(&one, &driver));
    CALL(zeDeviceGet(driver, &one, &device));
    CALL(zeContextCreate(driver, &c, &context));
    CALL(zeCommandListCreateImmediate(context, device, &q, &list));
    CALL(umfLevelZeroMemoryProviderParamsCreate(&parameters));
    CALL(umfLevelZeroMemoryProviderParamsSetContext(parameters, context));
    CALL(umfLevelZeroMemoryProviderParamsSetDevice(parameters, device));
    CALL(umfLevelZeroMemoryProviderParamsSetMemoryType(parameters, UMF_MEMORY_TYPE_DEVICE));
    CALL(umfMemoryProviderCreate(umfLevelZeroMemoryProviderOps(), parameters, &provider));
    CALL(umfPoolCreate(umfProxyPoolOps(), provider, NULL, 0, &pool));
}

static char byte_of(int number, int at) { return (char)(at * 31 + number * 7 + 1); }

static int consume(void) {
    static char bytes[BYTES], ipc[MOST];
    umf_ipc_handler_handle_t handler;
    void *memory;
    start();
    CALL(umfPoolGetIPCHandler(pool, &handler));
    for (int i = 0; recv(0, ipc, sizeof ipc, 0) > 0; i++) {
        CALL(umfOpenIPCHandle(handler, (umf_ipc_handle_t)ipc, &memory));
        CALL(zeCommandListAppendMemoryCopy(list, bytes, memory, BYTES, NULL, 0, NULL));
        for (int at = 0; at < BYTES; at++) NEED(bytes[at] == byte_of(i, at));
        CALL(umfCloseIPCHandle(memory));
        NEED(send(0, "k", 1, 0) == 1);
    }
    return 0;
}

static int produce(int consumer) {
    static char bytes[BYTES];
    static void *memory[HANDLES];
    static umf_ipc_handle_t ipc[HANDLES];
    size_t size;
    char answer;
    start();
    for (int i = 0; i < HANDLES; i++) {
        NEED(memory[i] = umfPoolMalloc(pool, BYTES));
        for (int at = 0; at < BYTES; at++) bytes[at] = byte_of(i, at);
        CALL(zeCommandListAppendMemoryCopy(list, memory[i], bytes, BYTES, NULL, 0, NULL));
        CALL(umfGetIPCHandle(memory[i], &ipc[i], &size));
        NEED(size <= MOST && send(consumer, ipc[i], size, MSG_NOSIGNAL) == (ssize_t)size);
        NEED(recv(consumer, &answer, 1, 0) == 1);
    }
    for (int i = 0; i < HANDLES; i++) {
        CALL(umfPutIPCHandle(ipc[i]));
        CALL(umfPoolFree(pool, memory[i]));
    }
    return 0;
}

int main(int count, char **arguments) {
    int ends[2], status;
    if (count > 1 && !strcmp(arguments[1], "consumer")) return consume();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 0);
        if (count > 1) execlp("unshare", "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", arguments[0], "consumer", NULL);
        else execl(arguments[0], arguments[0], "consumer", NULL);
        _exit(9);
    }
    close(ends[1]);
    if (produce(ends[0])) return 1;
    close(ends[0]);
    NEED(waitpid(child, &status, 0) == child && status == 0);
    printf("%d handles, every byte right\n", HANDLES);
    return 0;
}
