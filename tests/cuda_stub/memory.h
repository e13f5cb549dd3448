// The calls on physical memory, address ranges and mappings of the stand-in for libcuda, as cuda.h 13.0 describes them.
// Part of libcuda.c. Must never give a handle's value to new memory while a handle or a mapping has the old one.
//
// As in the driver one lock is held over all calls to the system, and these go through the C library's names, so that a
// preloaded library sees them: open, close, ioctl, mmap.
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { GRANULE = 65536, MOST = 1 << 16 };
// CUmemAllocationHandleType, CUmemLocationType, CUmemAllocationType, CUmemAccess_flags.
enum { KIND_FD = 1, KIND_FABRIC = 8, DEVICE = 1, PINNED = 1, NO_ACCESS = 0, READ_WRITE = 3 };
// CUmemFabricHandle.
enum { FABRIC_BYTES = 64 };
// Handles are no small numbers, as the driver's are not.
#define FIRST_HANDLE 0x7f5a00000020ull
#define HANDLE_STEP 32

typedef struct { int kind, id; } Location;
typedef struct { int kind, handle_types; Location location; void *win32; unsigned char flags[8]; } Prop;
typedef struct { Location location; int flags; } Access;
// CUmulticastObjectProp.
typedef struct { unsigned devices; size_t bytes; unsigned long long handle_types, flags; } MulticastProp;

// Memory as one process sees it. A hidden mapping keeps it, so that no fd is needed; null: free, and `next` is the slot
// that is free after this one.
typedef struct {
    char *view;
    size_t bytes;
    unsigned refs, maps, next;
    int handle_types;
    char path[PATH_BYTES];
} Allocation;
typedef struct { char *base; size_t bytes; } Range;
// `reached_by` has a bit for each device that has access.
typedef struct { char *base; size_t bytes; Allocation *what; unsigned long long id; unsigned reached_by, syncs; } Map;

static Allocation allocations[MOST];
static Range ranges[MOST];
static Map maps[MOST];
// Slots that were ever used, and the slot that was freed last: its handle's value comes back first. 0: none; else its number + 1.
static unsigned allocations_used, ranges_used, maps_used, last_freed;
// CU_POINTER_ATTRIBUTE_BUFFER_ID: the last one that was given.
static unsigned long long last_id;

// --- physical memory; all these are called with the lock held ---

static int os_error(void) { return errno == ENOSPC || errno == ENOMEM ? OUT_OF_MEMORY : OPERATING_SYSTEM; }

static unsigned long long handle_of(const Allocation *what) { return FIRST_HANDLE + (what - allocations) * HANDLE_STEP; }
static Allocation *allocation(unsigned long long handle) {
    unsigned long long slot = (handle - FIRST_HANDLE) / HANDLE_STEP;
    if (handle < FIRST_HANDLE || (handle - FIRST_HANDLE) % HANDLE_STEP || slot >= allocations_used) return NULL;
    return allocations[slot].view && allocations[slot].refs ? &allocations[slot] : NULL;
}

// Memory by an open file of it; null and errno.
static Allocation *hold(int fd, size_t bytes, int handle_types, const char *path) {
    unsigned slot = last_freed ? last_freed - 1 : allocations_used;
    char *view = slot == MOST ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (view == MAP_FAILED) return NULL;
    // A forked child has no part in it.
    madvise(view, bytes, MADV_DONTFORK);
    Allocation *what = &allocations[slot];
    if (last_freed) last_freed = what->next;
    else allocations_used++;
    *what = (Allocation){ .view = view, .bytes = bytes, .refs = 1, .handle_types = handle_types };
    snprintf(what->path, sizeof what->path, "%s", path);
    return what;
}
// After a handle or a mapping has gone.
static void let_go(Allocation *what) {
    if (what->refs || what->maps) return;
    munmap(what->view, what->bytes);
    card_drop(what->path);
    what->view = NULL;
    what->next = last_freed;
    last_freed = what - allocations + 1;
}
static int new_memory(unsigned long long *handle, size_t bytes, int place, int handle_types) {
    char path[PATH_BYTES];
    int fd = card_new(bytes, place, path);
    if (fd < 0) return os_error();
    Allocation *what = hold(fd, bytes, handle_types, path);
    close(fd);
    if (!what) {
        card_drop(path);
        return OUT_OF_MEMORY;
    }
    *handle = handle_of(what);
    return SUCCESS;
}

API cuMemGetAllocationGranularity(size_t *bytes, const Prop *prop, int option) {
    NEED_INIT;
    if (prop->kind != PINNED || prop->location.kind != DEVICE || option > 1) return INVALID_VALUE;
    *bytes = GRANULE;
    return SUCCESS;
}
API cuMemCreate(unsigned long long *handle, size_t bytes, const Prop *prop, unsigned long long flags) {
    NEED_CONTEXT;
    if (!bytes || bytes % GRANULE || flags || prop->kind != PINNED || prop->location.kind != DEVICE) return INVALID_VALUE;
    if (prop->handle_types & ~(KIND_FD | KIND_FABRIC)) return INVALID_VALUE;
    if (!is_device(prop->location.id)) return INVALID_DEVICE;
    pthread_mutex_lock(&mutex);
    int result = new_memory(handle, bytes, seen[prop->location.id], prop->handle_types);
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemRelease(unsigned long long handle) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    Allocation *what = allocation(handle);
    if (what) {
        what->refs--;
        let_go(what);
    }
    pthread_mutex_unlock(&mutex);
    return what ? SUCCESS : INVALID_VALUE;
}
// Memory stays on its own GPU, whoever imports it. [seen] Where that is hidden, its ordinal is CU_DEVICE_INVALID.
API cuMemGetAllocationPropertiesFromHandle(Prop *prop, unsigned long long handle) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    Allocation *what = allocation(handle);
    if (what) *prop = (Prop){ PINNED, what->handle_types, { DEVICE, ordinal_of(place_of(what->path)) }, NULL, {0} };
    pthread_mutex_unlock(&mutex);
    return what ? SUCCESS : INVALID_VALUE;
}

// --- other processes ---

// Each export is another open file, and not close-on-exec. 0, or an error.
static int export_fd(const Allocation *what, int *out) {
    int fd = card_open(what->path);
    if (fd < 0) return OPERATING_SYSTEM;
    ioctl(fd, FIONCLEX);
    *out = fd;
    return SUCCESS;
}
static int import_fd(unsigned long long *handle, int fd) {
    struct stat info;
    char path[PATH_BYTES];
    // The driver has fds open for a moment.
    int passing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (passing < 0) return OPERATING_SYSTEM;
    close(passing);
    if (!is_ours(fd, path) || fstat(fd, &info)) return INVALID_VALUE;
    Allocation *what = hold(fd, info.st_size, KIND_FD, path);
    if (!what) return OUT_OF_MEMORY;
    *handle = handle_of(what);
    return SUCCESS;
}
// A fabric handle is bytes, and no fd: the file's name.
static int import_fabric(unsigned long long *handle, const char name[FABRIC_BYTES]) {
    char path[PATH_BYTES + FABRIC_BYTES];
    if (!memchr(name, 0, FABRIC_BYTES) || strchr(name, '/')) return INVALID_VALUE;
    snprintf(path, sizeof path, "%s/%s", directory(), name);
    int fd = card_open(path);
    if (fd < 0) return INVALID_VALUE;
    int result = import_fd(handle, fd);
    close(fd);
    return result;
}

#ifndef WITHOUT_EXPORT
API cuMemExportToShareableHandle(void *out, unsigned long long handle, int kind, unsigned long long flags) {
    NEED_INIT;
    if ((kind != KIND_FD && kind != KIND_FABRIC) || flags) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    Allocation *what = allocation(handle);
    int result = !what || !(what->handle_types & kind) ? INVALID_VALUE : SUCCESS;
    if (!result && kind == KIND_FD) result = export_fd(what, out);
    else if (!result) strncpy(out, strrchr(what->path, '/') + 1, FABRIC_BYTES);
    pthread_mutex_unlock(&mutex);
    return result;
}
#endif
API cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int kind) {
    NEED_CONTEXT;
    if (kind != KIND_FD && kind != KIND_FABRIC) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int result = kind == KIND_FD ? import_fd(handle, (int)(intptr_t)shareable) : import_fabric(handle, shareable);
    pthread_mutex_unlock(&mutex);
    return result;
}
// A dma-buf needs a device, and the device says that it has none.
API cuMemGetHandleForAddressRange(void *out, uint64_t base, size_t bytes, int kind, unsigned long long flags) {
    NEED_INIT;
    (void)out, (void)base, (void)bytes, (void)kind, (void)flags;
    return NOT_SUPPORTED;
}

// A multicast object has no bytes of its own, but a handle that is exported and released like memory.
API cuMulticastCreate(unsigned long long *handle, const MulticastProp *prop) {
    NEED_CONTEXT;
    if (prop->devices != 1 || !prop->bytes || prop->bytes % GRANULE || prop->flags || prop->handle_types & ~KIND_FD) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int result = new_memory(handle, GRANULE, seen[0], prop->handle_types);
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMulticastAddDevice(unsigned long long handle, int device) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    int result = !is_device(device) ? INVALID_DEVICE : allocation(handle) ? SUCCESS : INVALID_VALUE;
    pthread_mutex_unlock(&mutex);
    return result;
}

// --- addresses ---

static void reserve_again(char *base, size_t bytes) {
    mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
static int is_reserved(const char *base, size_t bytes) {
    for (unsigned i = 0; i < ranges_used; i++)
        if (ranges[i].base && base >= ranges[i].base && base + bytes <= ranges[i].base + ranges[i].bytes) return 1;
    return 0;
}
// Whether a device may be given access to all that is mapped in the range.
static int is_reached(int device, const char *base, size_t bytes) {
    for (unsigned i = 0; i < maps_used; i++)
        if (maps[i].what && maps[i].base >= base && maps[i].base < base + bytes)
            if (!is_in_reach(device, place_of(maps[i].what->path))) return 0;
    return 1;
}
// How many bytes of the range are mapped; -1: a mapping reaches over an end of it.
static ssize_t mapped(const char *base, size_t bytes) {
    ssize_t sum = 0;
    for (unsigned i = 0; i < maps_used; i++) {
        if (!maps[i].what || maps[i].base >= base + bytes || maps[i].base + maps[i].bytes <= base) continue;
        if (maps[i].base < base || maps[i].base + maps[i].bytes > base + bytes) return -1;
        sum += maps[i].bytes;
    }
    return sum;
}

API cuMemAddressReserve(uint64_t *base, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags) {
    NEED_INIT;
    if (!bytes || bytes % GRANULE || flags || alignment & (alignment - 1)) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    unsigned slot = 0;
    while (slot < ranges_used && ranges[slot].base) slot++;
    // The address is a hint, honoured where it is free.
    size_t spare = alignment ? alignment : 0;
    char *got = slot == MOST ? MAP_FAILED
                             : mmap((void *)wanted, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int result = got == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
    if (!result) {
        size_t lead = alignment ? -(uintptr_t)got & (alignment - 1) : 0;
        if (lead) munmap(got, lead);
        if (spare > lead) munmap(got + lead + bytes, spare - lead);
        if (slot == ranges_used) ranges_used++;
        ranges[slot] = (Range){ got + lead, bytes };
        *base = (uint64_t)(got + lead);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemAddressFree(uint64_t base, size_t bytes) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    unsigned slot = 0;
    while (slot < ranges_used && (ranges[slot].base != (char *)base || ranges[slot].bytes != bytes)) slot++;
    int result = slot < ranges_used && base && !mapped((char *)base, bytes) ? SUCCESS : INVALID_VALUE;
    if (!result) {
        munmap((char *)base, bytes);
        ranges[slot] = (Range){0};
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuMemMap(uint64_t base, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    Allocation *what = allocation(handle);
    unsigned slot = 0;
    while (slot < maps_used && maps[slot].what) slot++;
    int result = SUCCESS;
    if (!what || !bytes || bytes > what->bytes || offset || flags || !is_reserved((char *)base, bytes) || mapped((char *)base, bytes))
        result = INVALID_VALUE;
    // From size 0 mremap(2) makes a second mapping of shared memory, for which no fd is needed.
    else if (slot == MOST || mremap(what->view, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)base) == MAP_FAILED)
        result = OUT_OF_MEMORY;
    if (!result) {
        mprotect((void *)base, bytes, PROT_NONE);
        if (slot == maps_used) maps_used++;
        maps[slot] = (Map){ (char *)base, bytes, what, ++last_id, 0, 0 };
        what->maps++;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
// One device of a list, for which the range is mapped. [seen] A device that is not seen is an invalid value.
static int check_access(const Access *desc, const char *base, size_t bytes) {
    if (desc->location.kind != DEVICE || !is_device(desc->location.id)) return INVALID_VALUE;
    // Some drivers cannot map for reading only.
    if (!is_reached(desc->location.id, base, bytes)) return INVALID_DEVICE;
    return desc->flags == READ_WRITE || desc->flags == NO_ACCESS ? SUCCESS : NOT_SUPPORTED;
}
// [api] For each location of the list; a device keeps what it was given before. [seen] A mapping needs no access of its own GPU.
API cuMemSetAccess(uint64_t base, size_t bytes, const Access *desc, size_t count) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    int result = count && mapped((char *)base, bytes) == (ssize_t)bytes ? SUCCESS : INVALID_VALUE;
    for (size_t at = 0; !result && at < count; at++) result = check_access(&desc[at], (char *)base, bytes);
    for (unsigned i = 0; !result && i < maps_used; i++)
        for (size_t at = 0; maps[i].what && maps[i].base >= (char *)base && maps[i].base < (char *)base + bytes && at < count; at++) {
            unsigned bit = 1u << desc[at].location.id;
            maps[i].reached_by = desc[at].flags == READ_WRITE ? maps[i].reached_by | bit : maps[i].reached_by & ~bit;
        }
    if (!result) mprotect((void *)base, bytes, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&mutex);
    return result;
}
// Whole mappings only, but several at once.
API cuMemUnmap(uint64_t base, size_t bytes) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    // It waits for nobody, but what is still to be written there must not tear the process down.
    if (pending.bytes && pending.to >= (char *)base && pending.to < (char *)base + bytes) arrive();
    int result = bytes && mapped((char *)base, bytes) == (ssize_t)bytes ? SUCCESS : INVALID_VALUE;
    if (!result) reserve_again((char *)base, bytes);
    for (unsigned i = 0; !result && i < maps_used; i++) {
        Allocation *what = maps[i].what;
        if (!what || maps[i].base < (char *)base || maps[i].base >= (char *)base + bytes) continue;
        maps[i] = (Map){0};
        what->maps--;
        let_go(what);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
static Map *map_at(const char *address) {
    for (unsigned i = 0; i < maps_used; i++)
        if (maps[i].what && address >= maps[i].base && address < maps[i].base + maps[i].bytes) return &maps[i];
    return NULL;
}
// The handle by which the address was mapped, which lives on while it is mapped.
API cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
    NEED_INIT;
    pthread_mutex_lock(&mutex);
    const Map *map = map_at(address);
    if (map) {
        map->what->refs++;
        *handle = handle_of(map->what);
    }
    pthread_mutex_unlock(&mutex);
    return map ? SUCCESS : INVALID_VALUE;
}
