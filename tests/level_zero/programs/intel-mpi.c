// Two ranks of Intel MPI: rank 0 sends device memory, rank 1 receives it into device memory, in buffers of several sizes, each of them
// several times. Must never know of fdbroker.
// Usage: mpiexec -n 2 intel-mpi. Exit status 0: every byte was right. Rank 1 prints the microseconds of a message.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void *handle; /* of driver, device, context, list */
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;
int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *);
int zeCommandListCreateImmediate(handle, handle, const queue_desc *, handle *);
int zeCommandListAppendMemoryCopy(handle, void *, const void *, size_t, handle, unsigned, handle *);
int zeMemAllocDevice(handle, const alloc_desc *, size_t, size_t, handle, void **), zeMemFree(handle, void *);

enum { BUFFERS = 40, ROUNDS = 5, MOST = 1 << 20 };
static handle device, context, list;

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, #call " = %#x\n", (unsigned)code); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

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

static int size_of(int buffer) { return MOST >> buffer % 6; }
static char byte_of(int buffer, int round, int at) { return (char)(at * 31 + (at >> 8) + buffer * 7 + round * 13 + 1); }

int main(int count, char **arguments) {
    static char bytes[MOST];
    void *memory[BUFFERS];
    alloc_desc d = {0x15, NULL, 0, 0};
    double begin, us = 0;
    int rank, ranks;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2) MPI_Abort(MPI_COMM_WORLD, 2);
    start();
    for (int i = 0; i < BUFFERS; i++) CALL(zeMemAllocDevice(context, &d, size_of(i), 1, device, &memory[i]));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < BUFFERS; i++) {
            int size = size_of(i);
            if (rank == 0) {
                for (int at = 0; at < size; at++) bytes[at] = byte_of(i, round, at);
                copy(memory[i], bytes, size);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
            if (rank == 0) MPI_Send(memory[i], size, MPI_BYTE, 1, i, MPI_COMM_WORLD);
            else MPI_Recv(memory[i], size, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            us += (MPI_Wtime() - begin) * 1e6;
            if (rank == 0) continue;
            copy(bytes, memory[i], size);
            for (int at = 0; at < size; at++)
                if (bytes[at] != byte_of(i, round, at)) {
                    fprintf(stderr, "round %d, buffer %d: byte %d is wrong\n", round, i, at);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
        }
    if (rank == 1) printf("%d messages, every byte right, %.0f us each\n", BUFFERS * ROUNDS, us / BUFFERS / ROUNDS);
    for (int i = 0; i < BUFFERS; i++) CALL(zeMemFree(context, memory[i]));
    return MPI_Finalize() != MPI_SUCCESS;
}
