// A render node of an Intel GPU (Arc A770, driver i915) for Intel's own Level Zero driver, on a machine without one: preloaded
// before it. Buffers, their export and import are real; no command is executed. Must never answer what the kernel would refuse,
// nor keep an fd of the program's for a buffer: the kernel does not, either.
//
// Buffers are memory that a helper process holds (ze-test-memory, whose path NODE_HELPER names; its protocol.rs has the messages),
// as sealed memfds, or as real dma-bufs with NODE_MEMORY=udmabuf. NODE_TRACE=1 prints requests that are not known here.
#define _GNU_SOURCE
#include "i915.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
static const char path[] = "/dev/dri/renderD128";
enum { BUFFERS = 1 << 16, FDS = 1 << 16, HIGH = 20000, OFFSET_BITS = 40 };

/* A buffer by its handle; `id`: the helper's, 0 for memory of the program's. */
struct buffer { int is_used; uint64_t id, size; ino_t inode; };
static struct buffer buffers[BUFFERS];
static uint32_t last_import, last_number;
static ino_t nodes[FDS]; /* the inode that an fd of the node has */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int fail(int code) { errno = code; return -1; }

/* --- the helper ------------------------------------------------------------------------------------------------------------- */
enum { ALLOCATE = 1, KEEP = 2, EXPORT = 3, EXPORT_UDMABUF = 4, FREE = 5 };
static int helper = -1;
static pid_t helped; /* the process that has started it: a child has its own */

/* Out of the way of the numbers that a program's fds get. */
static int raised(int fd) {
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0) return fd;
    close(fd);
    return high;
}

static int start_helper(void) {
    extern char **environ;
    char *program = getenv("NODE_HELPER"), *arguments[] = {program, NULL}, *none[] = {NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], failed;
    pid_t child;
    if (helper >= 0 && helped == getpid()) return 0;
    if (!program || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    failed = posix_spawn(&child, program, &actions, NULL, arguments, none);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) { close(ends[0]); return fail(failed); }
    waitpid(child, NULL, 0); /* it goes on in the background */
    helper = raised(ends[0]), helped = getpid();
    return 0;
}

/* Sends a request, with an fd or without (-1), and takes the answer; `*fd_back`, where given, gets the answer's fd. */
static int ask(uint64_t code, uint64_t value, int fd, uint64_t *answer, int *fd_back) {
    uint64_t words[2] = {code, value};
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {{0}};
    struct iovec part = {words, sizeof words};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (start_helper()) return -1;
    if (fd >= 0) {
        message.msg_control = &control, message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    if (sendmsg(helper, &message, MSG_NOSIGNAL) < 0) return -1;
    message.msg_control = &control, message.msg_controllen = sizeof control;
    if (recvmsg(helper, &message, MSG_CMSG_CLOEXEC) != sizeof words) return fail(EIO);
    if (fd_back) *fd_back = -1;
    if (message.msg_controllen >= sizeof control.header) {
        memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
        if (fd_back) *fd_back = fd; else close(fd);
    } else if (fd_back && words[0] == 0) {
        return fail(EMFILE); /* it did not fit into this process's table */
    }
    if (words[0]) return fail((int)words[1]);
    if (answer) *answer = words[1];
    return 0;
}

/* --- buffers ---------------------------------------------------------------------------------------------------------------- */
static struct buffer *buffer_of(uint32_t handle) { return handle && handle < BUFFERS && buffers[handle].is_used ? &buffers[handle] : NULL; }

static int new_handle(struct buffer buffer, uint32_t *handle) {
    for (uint32_t i = 1; i < BUFFERS; i++)
        if (!buffers[i].is_used) { buffers[i] = buffer, buffers[i].is_used = 1, *handle = i; return 0; }
    return fail(ENOMEM);
}

/* A new fd of a buffer, and its inode. */
static int fd_of(struct buffer *buffer) {
    const char *kind = getenv("NODE_MEMORY");
    struct stat file;
    int fd;
    if (ask(kind && !strcmp(kind, "udmabuf") ? EXPORT_UDMABUF : EXPORT, buffer->id, -1, NULL, &fd)) return -1;
    if (!fstat(fd, &file)) buffer->inode = file.st_ino;
    return fd;
}

static int create(struct i915_create *wanted) {
    struct buffer made = {.size = (wanted->size + 0xffff) & ~0xffffull}; /* pages of device memory */
    int fd;
    if (ask(ALLOCATE, made.size, -1, &made.id, &fd)) return -1;
    close(fd);
    wanted->size = made.size;
    return new_handle(made, &wanted->handle);
}

static int close_buffer(uint32_t handle) {
    struct buffer *buffer = buffer_of(handle);
    if (!buffer) return fail(EINVAL);
    buffer->is_used = 0;
    return buffer->id ? ask(FREE, buffer->id, -1, NULL, NULL) : 0;
}

static int export(struct drm_prime *prime) {
    struct buffer *buffer = buffer_of(prime->handle);
    if (!buffer || !buffer->id) return fail(ENOENT);
    prime->fd = fd_of(buffer);
    return prime->fd < 0 ? -1 : 0;
}

/* As in the kernel, one buffer has one handle in a process. */
static int import(struct drm_prime *prime) {
    struct buffer made = {0};
    struct stat file;
    off_t size = lseek(prime->fd, 0, SEEK_END);
    if (size <= 0 || fstat(prime->fd, &file)) return fail(EBADF);
    for (uint32_t i = 1; i < BUFFERS; i++)
        if (buffers[i].is_used && buffers[i].inode == file.st_ino) { prime->handle = last_import = i; return 0; }
    made.size = size, made.inode = file.st_ino;
    if (ask(KEEP, 0, prime->fd, &made.id, NULL) || new_handle(made, &prime->handle)) return -1;
    last_import = prime->handle;
    return 0;
}

static void *map_buffer(void *at, size_t size, int access, int flags, uint32_t handle, off_t offset) {
    struct buffer *buffer = buffer_of(handle);
    void *map;
    int fd;
    /* An imported one is kept by the helper as it came. */
    if (!buffer || !buffer->id || ask(EXPORT, buffer->id, -1, NULL, &fd)) { errno = EINVAL; return MAP_FAILED; }
    map = (void *)syscall(SYS_mmap, at, size, access, flags, fd, offset);
    close(fd);
    return map;
}

/* For the tests: the bytes of the buffer that was imported last, to be unmapped. */
EXPORTED void *node_last_import(size_t *size) {
    struct buffer *buffer = buffer_of(last_import);
    void *map = buffer ? map_buffer(NULL, buffer->size, PROT_READ | PROT_WRITE, MAP_SHARED, last_import, 0) : MAP_FAILED;
    *size = buffer ? buffer->size : 0;
    return map == MAP_FAILED ? NULL : map;
}

/* --- what the device is ----------------------------------------------------------------------------------------------------- */
static int parameter(int which) {
    switch (which) {
    case PARAM_CHIPSET: return 0x56a0;
    case PARAM_REVISION: return 8;
    case PARAM_UNITS: return 512;
    case PARAM_SUBSLICES: return 32;
    case PARAM_SCHEDULER: return 7;
    case PARAM_TIMESTAMP_HZ: return 19200000;
    default: return 1;
    }
}

static const struct i915_engines engines = {.count = 3, .list = {
    {.class = CLASS_RENDER, .flags = ENGINE_HAS_LOGICAL}, {.class = CLASS_COPY, .flags = ENGINE_HAS_LOGICAL},
    {.class = CLASS_COMPUTE, .flags = ENGINE_HAS_LOGICAL}}};
static const uint64_t memory_bytes = 16ull << 30;

/* Writes an answer, or its length where there is no room for it. */
static void give(struct i915_query_item *item, const void *answer, size_t length) {
    if (item->length >= (int)length) memcpy((void *)item->data, answer, length);
    item->length = (int)length;
}

static void answer_query(struct i915_query_item *item) {
    struct i915_regions regions = {.count = 2};
    struct i915_topology topology = {.slices = 8, .subslices = 4, .units = 16, .subslice_offset = 1, .subslice_stride = 1,
                                     .unit_offset = 1 + 8, .unit_stride = 2};
    switch (item->which) {
    case QUERY_ENGINES: give(item, &engines, sizeof engines); return;
    case QUERY_REGIONS:
        for (int i = 0; i < 2; i++)
            regions.list[i] = (struct i915_region){.class = i ? REGION_DEVICE : REGION_SYSTEM, .size = memory_bytes, .free = memory_bytes,
                                                   .visible = i ? memory_bytes : 0, .visible_free = i ? memory_bytes : 0};
        give(item, &regions, sizeof regions);
        return;
    case QUERY_TOPOLOGY:
    case QUERY_GEOMETRY:
        memset(topology.masks, 0xff, sizeof topology.masks);
        memset(topology.masks + 1, 0x0f, 8);
        give(item, &topology, sizeof topology);
        return;
    default: item->length = -EINVAL;
    }
}

/* --- requests --------------------------------------------------------------------------------------------------------------- */
static void version(struct drm_version *it) {
    static const char name[] = "i915", date[] = "20201103";
    if (it->name && it->name_length) strncpy(it->name, name, it->name_length);
    if (it->date && it->date_length) strncpy(it->date, date, it->date_length);
    it->major = 1, it->minor = 6, it->name_length = sizeof name - 1, it->date_length = sizeof date - 1, it->text_length = 0;
}

static int request(unsigned long number, void *argument) {
    const char *trace;
    switch (_IOC_NR(number)) {
    case DRM_VERSION: version(argument); return 0;
    case DRM_GEM_CLOSE: return close_buffer(((struct drm_gem_close *)argument)->handle);
    case DRM_GET_CAP: ((struct drm_cap *)argument)->value = 3; return 0; /* of DRM_CAP_PRIME: both ways */
    case DRM_PRIME_HANDLE_TO_FD: return export(argument);
    case DRM_PRIME_FD_TO_HANDLE: return import(argument);
    case I915_GETPARAM: *((struct i915_getparam *)argument)->value = parameter(((struct i915_getparam *)argument)->which); return 0;
    case I915_GEM_CREATE: case I915_GEM_CREATE_EXT: return create(argument);
    case I915_USERPTR: {
        struct i915_userptr *it = argument;
        return new_handle((struct buffer){.size = it->size}, &it->handle);
    }
    case I915_MMAP_OFFSET: {
        struct i915_mmap_offset *it = argument;
        it->offset = (uint64_t)it->handle << OFFSET_BITS;
        return 0;
    }
    case I915_QUERY: {
        struct i915_query *it = argument;
        for (uint32_t i = 0; i < it->count; i++) answer_query((struct i915_query_item *)it->items + i);
        return 0;
    }
    case I915_CONTEXT_CREATE: ((struct i915_context *)argument)->id = ++last_number; return 0;
    case I915_VM_CREATE: ((struct i915_vm *)argument)->id = ++last_number; return 0;
    case I915_CONTEXT_GETPARAM: {
        struct i915_context_param *it = argument;
        it->value = it->which == CONTEXT_GTT_SIZE ? 1ull << 48 : it->which == CONTEXT_VM ? ++last_number : 0;
        return 0;
    }
    case I915_REG_READ: ((struct i915_register *)argument)->value = 1; return 0;
    case DRM_SET_CLIENT_CAP: case I915_EXECBUFFER2: case I915_WAIT: case I915_SET_TILING: case I915_GET_TILING:
    case I915_GEM_SET_DOMAIN: case I915_CONTEXT_DESTROY: case I915_CONTEXT_SETPARAM: case I915_VM_DESTROY: case I915_RESET_STATS:
        return 0;
    default:
        trace = getenv("NODE_TRACE");
        if (trace && *trace == '1') fprintf(stderr, "node: request %#lx is not known\n", number);
        return fail(EINVAL);
    }
}

/* --- what stands before the C library --------------------------------------------------------------------------------------- */
/* The next one may be a layer's, which knows more fds than the kernel. */
#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int open_node(void) {
    struct stat file;
    int fd = memfd_create("i915-node", MFD_CLOEXEC);
    if (fd >= 0 && fd < FDS && !fstat(fd, &file)) nodes[fd] = file.st_ino;
    return fd;
}

static int is_node(int fd) {
    struct stat file;
    return fd >= 0 && fd < FDS && nodes[fd] && !fstat(fd, &file) && file.st_ino == nodes[fd];
}

#define OPEN(name) \
    EXPORTED int name(const char *file, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        NEXT(name); \
        return strcmp(file, path) ? next(file, flags, mode) : open_node(); \
    }
OPEN(open)
OPEN(open64)

EXPORTED int ioctl(int fd, unsigned long number, ...) {
    va_list rest;
    va_start(rest, number);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    NEXT(ioctl);
    if (_IOC_TYPE(number) != 'd' || !is_node(fd)) return next(fd, number, argument);
    pthread_mutex_lock(&lock);
    int answer = request(number, argument), code = errno;
    pthread_mutex_unlock(&lock);
    errno = code;
    return answer;
}

#define MMAP(name) \
    EXPORTED void *name(void *at, size_t size, int access, int flags, int fd, off_t offset) { \
        NEXT(name); \
        if (fd < 0 || !is_node(fd)) return next(at, size, access, flags, fd, offset); \
        pthread_mutex_lock(&lock); \
        void *map = map_buffer(at, size, access, flags, (uint32_t)(offset >> OFFSET_BITS), offset & ((1ll << OFFSET_BITS) - 1)); \
        pthread_mutex_unlock(&lock); \
        return map; \
    }
MMAP(mmap)
MMAP(mmap64)
