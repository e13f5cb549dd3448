// A stand-in for libcuda.so.1 in tests: the calls that fdbroker and its tests use, on files of a tmpfs. It has no GPU, says so
// in its device's name, and figures measured with it mean nothing. Must never be shipped, nor report success for a call that it
// did not carry out.
//
// "Device memory" is a file in FDBROKER_CUDA_STUB_DIR (default /dev/shm/fdbroker-cuda-stub; card.h). As with the real driver,
// handles, mappings and exported fds keep it allocated, in any process, and a process holds no fd of it but the exported ones.
// FDBROKER_CUDA_STUB_DEVICES is the number of GPUs (default 1), FDBROKER_CUDA_STUB_BYTES the memory of each, FDBROKER_CUDA_STUB_MIG=2,0
// cuts the first into two MIG instances, and with FDBROKER_CUDA_STUB_NO_PEERS no GPU reaches another's memory. All processes of a test
// get the same four; CUDA_VISIBLE_DEVICES says what one of them sees (devices.h). With FDBROKER_CUDA_STUB_NO_VMM devices say that
// they have no VMM memory. Programs that shall take these files for VMM fds
// preload this library, or looks.c alone.
//
// Build: cc -shared -fPIC -O2 -o libcuda.so.1 libcuda.c     (-DWITHOUT_EXPORT leaves a symbol out)
#define _GNU_SOURCE
#include "card.h"
#include "looks.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

// CUresult, cuda.h 13.0.
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, PEER_UNSUPPORTED = 217, OPERATING_SYSTEM = 304, INVALID_HANDLE = 400, NOT_FOUND = 500, PEER_ENABLED = 704,
    PEER_NOT_ENABLED = 705, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
};
enum { STACK = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised;
static _Thread_local unsigned depth;
static _Thread_local void *current[STACK];

// The driver calls itself, and gives its own functions by cuGetProcAddress, whatever is preloaded.
#define API __attribute__((visibility("protected"))) int
// Calls before cuInit fail, and so do all calls of a child that was forked after it, as in the driver.
#define NEED_INIT if (initialised != getpid()) return NOT_INITIALIZED
// Calls that need a current context fail without one, as in the driver.
#define NEED_CONTEXT NEED_INIT; if (!depth || !is_context(current[depth - 1])) return INVALID_CONTEXT

#include "devices.h"

#include "contexts.h"

// The driver looks around when it is loaded, which is before the constructors of libraries that are preloaded.
__attribute__((constructor)) static void look_around(void) {
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0) close(fd);
}

API cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (getenv("FDBROKER_CUDA_STUB_NO_DEVICE")) return NO_DEVICE;
    if (initialised && initialised != getpid()) return NOT_INITIALIZED;
    if (mkdir(directory(), 0700) && errno != EEXIST) return OPERATING_SYSTEM;
    pthread_mutex_lock(&mutex);
    int result = initialised ? SUCCESS : look_for_devices();
    if (!result) initialised = getpid();
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
API cuGetErrorName(int error, const char **text) {
    switch (error) {
    case SUCCESS: *text = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *text = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *text = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case PEER_UNSUPPORTED: *text = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"; break;
    case INVALID_HANDLE: *text = "CUDA_ERROR_INVALID_HANDLE"; break;
    case PEER_ENABLED: *text = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"; break;
    case PEER_NOT_ENABLED: *text = "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"; break;
    case CAPTURE_UNSUPPORTED: *text = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    case OPERATING_SYSTEM: *text = "CUDA_ERROR_OPERATING_SYSTEM"; break;
    case NOT_FOUND: *text = "CUDA_ERROR_NOT_FOUND"; break;
    case NOT_SUPPORTED: *text = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *text = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}
// The last copy to the device. With the real driver a copy may return before it has arrived; here it always does. It arrives
// when this process does its next work or waits for it; other processes see it no sooner.
static struct { char *to, *bytes; size_t length; } pending;
static void arrive(void) {
    if (pending.bytes) memcpy(pending.to, pending.bytes, pending.length);
    free(pending.bytes);
    pending.bytes = NULL;
}
static int send_off(uint64_t to, const void *from, int byte, size_t length) {
    pthread_mutex_lock(&mutex);
    arrive();
    pending.bytes = malloc(length);
    if (pending.bytes) {
        if (from) memcpy(pending.bytes, from, length);
        else memset(pending.bytes, byte, length);
        pending.to = (char *)to;
        pending.length = length;
    }
    int result = pending.bytes || !length ? SUCCESS : OUT_OF_MEMORY;
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuStreamSynchronize(void *stream) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    arrive();
    pthread_mutex_unlock(&mutex);
    return stream ? INVALID_VALUE : SUCCESS;
}
API cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }
// Any event but NULL is one that was recorded behind all that was sent off.
API cuEventSynchronize(void *event) { return event ? cuCtxSynchronize() : INVALID_VALUE; }
API cuMemsetD8_v2(uint64_t to, unsigned char byte, size_t bytes) { NEED_CONTEXT; return send_off(to, NULL, byte, bytes); }

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    int result = card_info(seen[current_device()], free_bytes, total) ? OPERATING_SYSTEM : SUCCESS;
    pthread_mutex_unlock(&mutex);
    return result;
}

#include "memory.h"
#include "copies.h"
#include "pointers.h"
#include "entry.h"
