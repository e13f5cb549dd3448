// What handles cost between MPI ranks that pass them by value (compute-runtime issue 448): rank 0 exports, rank 1 opens, checks
// every byte and copies. Rank 0 prints one line of a table. Must never know of fdbroker, nor assert a time.
// Usage: mpirun -n 2 issue448 [NAME [BUFFERS [BYTES]]]. Exit status 0: every byte was right.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *handle; /* of driver, device, context, list */
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;

int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *);
int zeCommandListCreateImmediate(handle, handle, const queue_desc *, handle *);
int zeCommandListAppendMemoryCopy(handle, void *, const void *, size_t, handle, unsigned, handle *);
int zeMemAllocDevice(handle, const alloc_desc *, size_t, size_t, handle, void **), zeMemFree(handle, void *);
int zeMemGetIpcHandle(handle, const void *, ipc_handle *);
int zeMemOpenIpcHandle(handle, handle, ipc_handle, unsigned, void **), zeMemCloseIpcHandle(handle, const void *);

enum { AGAIN = 10, BOUND = 100000 };

static handle context, device, list;

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, #call " = %#x\n", (unsigned)code); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void start(void) {
    unsigned one = 1;
    handle driver;
    context_desc c = {0xd, NULL, 0};
    queue_desc q = {0xe, NULL, 0, 0, 0, 1 /* synchronous */, 0};
    CALL(zeInit(0));
    CALL(zeDriverGet(&one, &driver));
    CALL(zeDeviceGet(driver, &one, &device));
    CALL(zeContextCreate(driver, &c, &context));
    CALL(zeCommandListCreateImmediate(context, device, &q, &list));
}

static void copy(void *to, const void *from, size_t bytes) {
    CALL(zeCommandListAppendMemoryCopy(list, to, from, bytes, NULL, 0, NULL));
}

/* The costs in us, and the bandwidth of copies of opened memory in GB/s. */
struct costs { double get, again, open, close, reopen, copy; };

static void produce(int buffers, size_t bytes, char *pattern, struct costs *costs) {
    alloc_desc d = {0x15, NULL, 0, 0};
    void **memory = calloc(buffers, sizeof *memory);
    ipc_handle *handles = calloc(buffers, sizeof *handles);
    double begin;
    if (!memory || !handles) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < buffers; i++) {
        memset(pattern, i, bytes);
        CALL(zeMemAllocDevice(context, &d, bytes, 1, device, &memory[i]));
        copy(memory[i], pattern, bytes);
    }
    /* The first one pays for what a process pays once. */
    CALL(zeMemGetIpcHandle(context, memory[0], &handles[0]));
    begin = now_us();
    for (int i = 1; i < buffers; i++) CALL(zeMemGetIpcHandle(context, memory[i], &handles[i]));
    costs->get = (now_us() - begin) / (buffers - 1);
    begin = now_us();
    for (int round = 0; round < AGAIN; round++)
        for (int i = 0; i < buffers; i++) CALL(zeMemGetIpcHandle(context, memory[i], &handles[i]));
    costs->again = (now_us() - begin) / AGAIN / buffers;
    MPI_Send(handles, buffers * (int)sizeof *handles, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(&costs->open, 4, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < buffers; i++) CALL(zeMemFree(context, memory[i]));
    free(memory);
    free(handles);
}

static void consume(int buffers, size_t bytes, char *seen, struct costs *costs) {
    void **memory = calloc(buffers, sizeof *memory);
    ipc_handle *handles = calloc(buffers, sizeof *handles);
    double begin;
    if (!memory || !handles) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Recv(handles, buffers * (int)sizeof *handles, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CALL(zeMemOpenIpcHandle(context, device, handles[0], 0, &memory[0]));
    begin = now_us();
    for (int i = 1; i < buffers; i++) CALL(zeMemOpenIpcHandle(context, device, handles[i], 0, &memory[i]));
    costs->open = (now_us() - begin) / (buffers - 1);
    begin = now_us();
    for (int i = 0; i < buffers; i++) copy(seen, memory[i], bytes);
    costs->copy = bytes * (double)buffers / (now_us() - begin) / 1e3;
    for (int i = 0; i < buffers; i++) {
        copy(seen, memory[i], bytes);
        for (size_t at = 0; at < bytes; at++)
            if (seen[at] != (char)i) {
                fprintf(stderr, "buffer %d: byte %zu is %d\n", i, at, seen[at]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    }
    begin = now_us();
    for (int i = 0; i < buffers; i++) CALL(zeMemCloseIpcHandle(context, memory[i]));
    costs->close = (now_us() - begin) / buffers;
    begin = now_us();
    for (int round = 0; round < AGAIN; round++)
        for (int i = 0; i < buffers; i++) {
            CALL(zeMemOpenIpcHandle(context, device, handles[i], 0, &memory[i]));
            CALL(zeMemCloseIpcHandle(context, memory[i]));
        }
    costs->reopen = (now_us() - begin) / AGAIN / buffers;
    MPI_Send(&costs->open, 4, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
    free(memory);
    free(handles);
}

int main(int count, char **arguments) {
    struct costs costs = {0};
    const char *name = count > 1 ? arguments[1] : "";
    int buffers = count > 2 ? atoi(arguments[2]) : 100, rank, ranks;
    size_t bytes = count > 3 ? strtoul(arguments[3], NULL, 10) : 1 << 20;
    char *host = malloc(bytes);
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2 || buffers < 2 || buffers > BOUND || !bytes || !host) {
        fprintf(stderr, "usage: mpirun -n 2 issue448 [NAME [BUFFERS [BYTES]]]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    start();
    if (rank == 0) {
        produce(buffers, bytes, host, &costs);
        printf("| %s | %d x %zu KiB | %.2f | %.2f | %.1f | %.1f | %.1f | %.1f |\n", name, buffers, bytes >> 10, costs.get, costs.again,
               costs.open, costs.close, costs.reopen, costs.copy);
    } else {
        consume(buffers, bytes, host, &costs);
    }
    free(host);
    return MPI_Finalize() != MPI_SUCCESS;
}
