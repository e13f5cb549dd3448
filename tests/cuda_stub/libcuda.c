// A stand-in for libcuda.so.1 in tests: the calls that fdbroker uses, on files of a tmpfs. It has no GPU, says so in its
// device's name, and figures measured with it mean nothing. Must never be shipped, nor report success for a call that it
// did not carry out.
//
// "Device memory" is a file in FDBROKER_CUDA_STUB_DIR (default /dev/shm/fdbroker-cuda-stub), unlinked when its handle is
// released. As with the real driver, handles, mappings and exported fds keep it allocated, in any process, and a process
// holds no fd of it but the exported ones. The next cuMemGetInfo unlinks the files of processes that have died.
//
// The broker knows a VMM fd by its device number (/dev/nvidiactl, 195:255), and a file has none. So this library is also
// preloaded into programs that shall take these files for VMM fds: for these files its statx(2) answers as the kernel does
// for /dev/nvidiactl. The broker itself is the real one, unchanged.
//
// Build: cc -shared -fPIC -O2 -o libcuda.so.1 libcuda.c     (-DWITHOUT_EXPORT leaves a symbol out)
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

// CUresult, cuda.h 13.0.
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_DEVICE = 101,
    OPERATING_SYSTEM = 304, NOT_SUPPORTED = 801,
};
enum { GRANULE = 65536, MOST = 1 << 16, STACK = 64 };
enum { KIND_FD = 1, DEVICE = 1, PINNED = 1, READ_WRITE = 3 };

typedef struct { int kind, id; } Location;
typedef struct { int kind, handle_types; Location location; void *win32; unsigned char flags[8]; } Prop;
typedef struct { Location location; int flags; } Access;

// An allocation: a hidden mapping keeps the file; `path` is for exporting (empty: imported).
typedef struct { char *view; size_t bytes; char path[256]; } Allocation;
// A range of reserved addresses, and whether something is mapped there.
typedef struct { char *base; size_t bytes; int mapped; } Range;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Allocation allocations[MOST];
static Range ranges[MOST];
static unsigned next_file, retained;
static _Thread_local unsigned depth;

static const char *directory(void) {
    const char *dir = getenv("FDBROKER_CUDA_STUB_DIR");
    return dir && *dir ? dir : "/dev/shm/fdbroker-cuda-stub";
}

static int os_error(void) {
    return errno == ENOSPC || errno == ENOMEM ? OUT_OF_MEMORY : OPERATING_SYSTEM;
}

#define API __attribute__((visibility("default"))) int
// Calls that need a current context fail without one, as in the driver.
#define NEED_CONTEXT if (!depth || !retained) return INVALID_CONTEXT

API cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (getenv("FDBROKER_CUDA_STUB_NO_DEVICE")) return 100;
    return mkdir(directory(), 0700) && errno != EEXIST ? OPERATING_SYSTEM : SUCCESS;
}
API cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
API cuGetErrorName(int error, const char **text) {
    switch (error) {
    case SUCCESS: *text = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *text = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case OPERATING_SYSTEM: *text = "CUDA_ERROR_OPERATING_SYSTEM"; break;
    case NOT_SUPPORTED: *text = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *text = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}
API cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
API cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_DEVICE : SUCCESS; }
API cuDeviceGetName(char *name, int bytes, int device) {
    snprintf(name, bytes, "stub of fdbroker's tests, no GPU");
    return device ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 102 || attribute == 103;  // VMM, POSIX fds; no dma-buf, no RDMA
    return device ? INVALID_DEVICE : SUCCESS;
}
API cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device) return INVALID_DEVICE;
    __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    *context = &retained;
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    if (device || !retained) return INVALID_CONTEXT;
    __atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
API cuCtxPushCurrent_v2(void *context) {
    if (context != &retained || !retained || depth == STACK) return INVALID_CONTEXT;
    depth++;
    return SUCCESS;
}
API cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    depth--;
    *context = &retained;
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
    pthread_mutex_unlock(&mutex);
    return pending.bytes || !length ? SUCCESS : OUT_OF_MEMORY;
}
API cuStreamSynchronize(void *stream) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    arrive();
    pthread_mutex_unlock(&mutex);
    return stream ? INVALID_VALUE : SUCCESS;
}

// Unlinks the files of processes that are gone.
static void reap(void) {
    DIR *dir = opendir(directory());
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        int pid = atoi(entry->d_name);
        if (pid > 0 && kill(pid, 0) && errno == ESRCH) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
}
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEED_CONTEXT;
    reap();
    struct statfs info;
    if (statfs(directory(), &info)) return OPERATING_SYSTEM;
    *free_bytes = info.f_bfree * info.f_bsize;
    *total = info.f_blocks * info.f_bsize;
    return SUCCESS;
}
API cuMemGetAllocationGranularity(size_t *bytes, const Prop *prop, int option) {
    if (prop->kind != PINNED || prop->location.kind != DEVICE || option > 1) return INVALID_VALUE;
    *bytes = GRANULE;
    return SUCCESS;
}

// The caller holds the lock. 0: no room.
static unsigned long long new_handle(int fd, size_t bytes, const char *path) {
    for (unsigned i = 0; i < MOST; i++) {
        if (allocations[i].view) continue;
        char *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (view == MAP_FAILED) return 0;
        allocations[i] = (Allocation){ .view = view, .bytes = bytes };
        strcpy(allocations[i].path, path);
        return i + 1;
    }
    return 0;
}
static Allocation *allocation(unsigned long long handle) {
    if (!handle || handle > MOST || !allocations[handle - 1].view) return NULL;
    return &allocations[handle - 1];
}

API cuMemCreate(unsigned long long *handle, size_t bytes, const Prop *prop, unsigned long long flags) {
    NEED_CONTEXT;
    if (!bytes || bytes % GRANULE || flags || prop->handle_types != KIND_FD) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    char path[256];
    snprintf(path, sizeof path, "%s/%d-%u", directory(), getpid(), next_file++);
    int result = SUCCESS, fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        result = os_error();
    } else {
        if (fallocate(fd, 0, 0, bytes)) result = os_error();
        else if (!(*handle = new_handle(fd, bytes, path))) result = OUT_OF_MEMORY;
        close(fd);
        if (result) unlink(path);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemRelease(unsigned long long handle) {
    pthread_mutex_lock(&mutex);
    Allocation *found = allocation(handle);
    if (found) {
        if (*found->path) unlink(found->path);
        munmap(found->view, found->bytes);
        found->view = NULL;
    }
    pthread_mutex_unlock(&mutex);
    return found ? SUCCESS : INVALID_VALUE;
}
#ifndef WITHOUT_EXPORT
API cuMemExportToShareableHandle(void *out, unsigned long long handle, int kind, unsigned long long flags) {
    if (kind != KIND_FD || flags) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    Allocation *found = allocation(handle);
    int result = !found ? INVALID_VALUE : *found->path ? SUCCESS : NOT_SUPPORTED;
    if (!result) {
        // Each export is another file description, and not close-on-exec.
        int fd = open(found->path, O_RDWR);
        if (fd < 0) result = OPERATING_SYSTEM;
        else *(int *)out = fd;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
#endif

static int is_ours(int fd) {
    char link[32], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t prefix = strlen(directory());
    return length > (ssize_t)prefix && !memcmp(path, directory(), prefix) && path[prefix] == '/';
}
API cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int kind) {
    NEED_CONTEXT;
    int fd = (int)(intptr_t)shareable;
    struct stat info;
    if (kind != KIND_FD || !is_ours(fd) || fstat(fd, &info)) return INVALID_VALUE;
    // The driver has fds open for a moment.
    int passing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (passing < 0) return OPERATING_SYSTEM;
    close(passing);
    pthread_mutex_lock(&mutex);
    *handle = new_handle(fd, info.st_size, "");
    pthread_mutex_unlock(&mutex);
    return *handle ? SUCCESS : OUT_OF_MEMORY;
}

static Range *range(uint64_t base, size_t bytes) {
    for (unsigned i = 0; i < MOST; i++)
        if (ranges[i].base == (char *)base && ranges[i].bytes == bytes) return &ranges[i];
    return NULL;
}
API cuMemAddressReserve(uint64_t *base, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags) {
    if (!bytes || bytes % GRANULE || flags || alignment) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int result = OUT_OF_MEMORY;
    for (unsigned i = 0; i < MOST; i++) {
        if (ranges[i].base) continue;
        // The address is a hint, honoured where it is free.
        char *got = mmap((void *)wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) break;
        ranges[i] = (Range){ .base = got, .bytes = bytes };
        *base = (uint64_t)got;
        result = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemAddressFree(uint64_t base, size_t bytes) {
    pthread_mutex_lock(&mutex);
    Range *found = range(base, bytes);
    int result = found && !found->mapped ? SUCCESS : INVALID_VALUE;
    if (!result) {
        munmap(found->base, bytes);
        *found = (Range){0};
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemMap(uint64_t base, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    Range *found = range(base, bytes);
    Allocation *what = allocation(handle);
    int result = SUCCESS;
    if (!found || found->mapped || !what || bytes > what->bytes || offset || flags) {
        result = INVALID_VALUE;
    } else {
        // From size 0 mremap(2) makes a second mapping of shared memory, for which no fd is needed.
        int how = MREMAP_MAYMOVE | MREMAP_FIXED;
        if (mremap(what->view, 0, bytes, how, found->base) == MAP_FAILED) result = OUT_OF_MEMORY;
        else mprotect(found->base, bytes, PROT_NONE), found->mapped = 1;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemSetAccess(uint64_t base, size_t bytes, const Access *desc, size_t count) {
    pthread_mutex_lock(&mutex);
    Range *found = range(base, bytes);
    int result = SUCCESS;
    if (!found || !found->mapped || count != 1 || desc->location.kind != DEVICE || desc->location.id)
        result = INVALID_VALUE;
    // Some drivers cannot map for reading only.
    else if (desc->flags != READ_WRITE) result = NOT_SUPPORTED;
    else mprotect(found->base, bytes, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemUnmap(uint64_t base, size_t bytes) {
    pthread_mutex_lock(&mutex);
    arrive();
    Range *found = range(base, bytes);
    int result = found && found->mapped ? SUCCESS : INVALID_VALUE;
    if (!result) {
        mmap(found->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        found->mapped = 0;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { NEED_CONTEXT; return send_off(to, from, 0, bytes); }
API cuMemsetD8_v2(uint64_t to, unsigned char byte, size_t bytes) { NEED_CONTEXT; return send_off(to, NULL, byte, bytes); }
API cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    arrive();
    memcpy(to, (void *)from, bytes);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

// Memory of cuMemAlloc can only be shared as a dma-buf, which needs a device.
API cuMemAlloc_v2(uint64_t *base, size_t bytes) {
    NEED_CONTEXT;
    void *got = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    *base = (uint64_t)got;
    return got ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFree_v2(uint64_t base) { NEED_CONTEXT; free((void *)base); return SUCCESS; }

// For the preloaded library: the files above look like the fds that they stand for.
API statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict info) {
    int result = syscall(SYS_statx, dir, path, flags, mask, info);
    if (result || !S_ISREG(info->stx_mode)) return result;
    char link[64], target[PATH_MAX];
    const char *volatile name = path;  // declared never null, but it may be
    if (!name || !*name) snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    else if (!strncmp(path, "/proc/", 6) && strlen(path) < sizeof link) strcpy(link, path);
    else return result;
    int before = errno;
    ssize_t length = readlink(link, target, sizeof target);
    errno = before;
    size_t prefix = strlen(directory());
    if (length > (ssize_t)prefix && !memcmp(target, directory(), prefix) && target[prefix] == '/') {
        info->stx_mode = S_IFCHR | 0666;
        info->stx_rdev_major = 195;
        info->stx_rdev_minor = 255;
        info->stx_size = 0;
    }
    return result;
}
