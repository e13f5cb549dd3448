// cuMemAlloc of the stand-in for libcuda, CUDA's own IPC calls, and what it says of addresses, as cuda.h 13.0 describes them.
// Part of libcuda.c. Must never open memory by a handle whose owner has freed it.

// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS; the steps in which memory is made; bytes of CUipcMemHandle.
enum { LAZY = 1, PAGE = 4096, IPC_BYTES = 64, NAME_END = 56 };
// CUpointer_attribute.
enum {
    CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, SYNC_MEMOPS = 6, BUFFER_ID = 7, IS_MANAGED = 8, DEVICE_ORDINAL = 9, IS_LEGACY_IPC = 10,
    RANGE_START = 11, RANGE_SIZE = 12, IS_MAPPED = 13, HANDLE_TYPES = 14, IS_RDMA = 15, ACCESS_FLAGS = 16, MEMPOOL = 17, MAPPING_SIZE = 18,
    MAPPING_BASE = 19, BLOCK_ID = 20,
};

// What was made, or opened so often. `asked` is what cuMemAlloc was asked for.
typedef struct { char *base; size_t bytes, asked; Context *context; unsigned long long id; unsigned opens, syncs; char path[PATH_BYTES]; } Piece;
typedef struct { char bytes[IPC_BYTES]; } IpcHandle;
static Piece pieces[MOST];
static unsigned pieces_used;
static const char ipc_begin[] = "stub";

// --- with the lock held ---

static Piece *piece_at(const char *address) {
    for (unsigned i = 0; i < pieces_used; i++)
        if (pieces[i].base && address >= pieces[i].base && address < pieces[i].base + pieces[i].asked) return &pieces[i];
    return NULL;
}
// Maps an open file of the card; null: there is no room.
static Piece *show(int fd, size_t bytes, size_t asked, const char *path) {
    unsigned slot = 0;
    while (slot < pieces_used && pieces[slot].base) slot++;
    char *base = slot == MOST ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return NULL;
    madvise(base, bytes, MADV_DONTFORK);
    if (slot == pieces_used) pieces_used++;
    pieces[slot] = (Piece){ .base = base, .bytes = bytes, .asked = asked, .context = current_context(), .id = ++last_id };
    snprintf(pieces[slot].path, PATH_BYTES, "%s", path);
    return &pieces[slot];
}
static void hide(Piece *piece) {
    char freed[PATH_BYTES + 8];
    munmap(piece->base, piece->bytes);
    // What others have open lives on under a name that no handle has.
    if (!card_drop(piece->path) && !piece->opens) {
        char *name = strrchr(piece->path, '/');
        snprintf(freed, sizeof freed, "%.*s/freed-%s", (int)(name - piece->path), piece->path, name + 1);
        rename(piece->path, freed);
    }
    *piece = (Piece){0};
}
static void free_all_of(const Context *context) {
    arrive();
    for (unsigned i = 0; i < pieces_used; i++)
        if (pieces[i].base && pieces[i].context == context) hide(&pieces[i]);
}

// --- memory ---

API cuMemAlloc_v2(uint64_t *base, size_t bytes) {
    NEED_CONTEXT;
    if (!bytes) return INVALID_VALUE;
    if (is_refused()) return CAPTURE_UNSUPPORTED;
    char path[PATH_BYTES];
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&mutex);
    int fd = card_new(whole, seen[current_device()], path), result = fd < 0 ? os_error() : SUCCESS;
    Piece *piece = fd < 0 ? NULL : show(fd, whole, bytes, path);
    if (fd >= 0) close(fd);
    if (!result && !piece) card_drop(path), result = OUT_OF_MEMORY;
    if (piece) *base = (uint64_t)piece->base;
    pthread_mutex_unlock(&mutex);
    return result;
}
// It waits for all that was sent off.
API cuMemFree_v2(uint64_t base) {
    NEED_CONTEXT;
    if (!base) return SUCCESS;
    if (is_refused()) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    arrive();
    Piece *piece = piece_at((char *)base);
    int is_made = piece && piece->base == (char *)base && !piece->opens;
    if (is_made) hide(piece);
    pthread_mutex_unlock(&mutex);
    return is_made ? SUCCESS : INVALID_VALUE;
}

// --- other processes: the handle is the file's name, and in its last 8 bytes the size that was asked for ---

API cuIpcGetMemHandle(IpcHandle *handle, uint64_t address) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    const Piece *piece = piece_at((char *)address);
    int is_made = piece && !piece->opens;
    if (is_made) *handle = (IpcHandle){0};
    if (is_made) snprintf(handle->bytes, NAME_END, "%s%s", ipc_begin, strrchr(piece->path, '/'));
    if (is_made) memcpy(handle->bytes + NAME_END, &piece->asked, sizeof piece->asked);
    pthread_mutex_unlock(&mutex);
    return is_made ? SUCCESS : INVALID_VALUE;
}
static int open_ipc(uint64_t *base, const char *path, size_t asked) {
    for (unsigned i = 0; i < pieces_used; i++) {
        if (!pieces[i].base || strcmp(pieces[i].path, path)) continue;
        // [seen] The exporter itself gets this.
        if (!pieces[i].opens) return INVALID_CONTEXT;
        if (pieces[i].context != current_context()) continue;
        pieces[i].opens++;
        *base = (uint64_t)pieces[i].base;
        return SUCCESS;
    }
    struct stat info;
    // Of an owner that is gone, unless another process has it.
    card_drop(path);
    int fd = card_open(path);
    if (fd < 0) return INVALID_HANDLE;
    Piece *piece = fstat(fd, &info) || asked > (size_t)info.st_size ? NULL : show(fd, info.st_size, asked, path);
    close(fd);
    if (!piece) return OUT_OF_MEMORY;
    piece->opens = 1;
    *base = (uint64_t)piece->base;
    return SUCCESS;
}
API cuIpcOpenMemHandle_v2(uint64_t *base, IpcHandle handle, unsigned flags) {
    NEED_CONTEXT;
    char path[PATH_BYTES + IPC_BYTES];
    const char *name = handle.bytes + sizeof ipc_begin;
    if (flags != LAZY) return INVALID_VALUE;
    if (!memchr(handle.bytes, 0, NAME_END) || strncmp(handle.bytes, ipc_begin, sizeof ipc_begin - 1) || strchr(name, '/')) return INVALID_HANDLE;
    size_t asked;
    memcpy(&asked, handle.bytes + NAME_END, sizeof asked);
    snprintf(path, sizeof path, "%s/%s", directory(), name);
    pthread_mutex_lock(&mutex);
    int result = open_ipc(base, path, asked);
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuIpcOpenMemHandle(uint64_t *base, IpcHandle handle, unsigned flags) { return cuIpcOpenMemHandle_v2(base, handle, flags); }
API cuIpcCloseMemHandle(uint64_t base) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    arrive();
    Piece *piece = piece_at((char *)base);
    int is_open = piece && piece->base == (char *)base && piece->opens;
    if (is_open && piece->opens > 1) piece->opens--;
    else if (is_open) hide(piece);
    pthread_mutex_unlock(&mutex);
    return is_open ? SUCCESS : INVALID_VALUE;
}

// --- what an address is ---

// 1: all words of 8 bytes; else 4.
static int is_wide(int attribute) {
    return attribute == CONTEXT || attribute == DEVICE_POINTER || attribute == BUFFER_ID || attribute == RANGE_START ||
           attribute == RANGE_SIZE || attribute == HANDLE_TYPES || attribute >= MEMPOOL;
}
static void put(void *value, int attribute, unsigned long long word) {
    if (is_wide(attribute)) *(unsigned long long *)value = word;
    else *(unsigned *)value = word;
}
static int look_at_piece(void *value, int attribute, const Piece *piece, uint64_t address) {
    switch (attribute) {
    case CONTEXT: put(value, attribute, (uintptr_t)piece->context); break;
    case MEMORY_TYPE: put(value, attribute, 2); break;
    case DEVICE_POINTER: put(value, attribute, address); break;
    case SYNC_MEMOPS: put(value, attribute, piece->syncs); break;
    case BUFFER_ID: case BLOCK_ID: put(value, attribute, piece->id); break;
    case DEVICE_ORDINAL: put(value, attribute, piece->context->device); break;
    case IS_LEGACY_IPC: put(value, attribute, !piece->opens); break;
    case RANGE_START: case MAPPING_BASE: put(value, attribute, (uintptr_t)piece->base); break;
    case RANGE_SIZE: put(value, attribute, piece->asked); break;
    case MAPPING_SIZE: put(value, attribute, piece->bytes); break;
    case IS_MAPPED: put(value, attribute, 1); break;
    case ACCESS_FLAGS: put(value, attribute, READ_WRITE); break;
    case IS_MANAGED: case HANDLE_TYPES: case IS_RDMA: case MEMPOOL: put(value, attribute, 0); break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
static int look_at_map(void *value, int attribute, const Map *map, uint64_t address) {
    int ordinal = ordinal_of(place_of(map->what->path));
    switch (attribute) {
    case MEMORY_TYPE: put(value, attribute, 2); break;
    case DEVICE_POINTER: put(value, attribute, address); break;
    case BUFFER_ID: case BLOCK_ID: put(value, attribute, map->id); break;
    // [seen] Of memory of a hidden GPU it says 0, which is no answer: the context was that of device 0.
    case DEVICE_ORDINAL: put(value, attribute, ordinal == NOWHERE ? current_device() : ordinal); break;
    case RANGE_START: case MAPPING_BASE: put(value, attribute, (uintptr_t)map->base); break;
    case RANGE_SIZE: case MAPPING_SIZE: put(value, attribute, map->bytes); break;
    case IS_MAPPED: put(value, attribute, 1); break;
    case HANDLE_TYPES: put(value, attribute, map->what->handle_types); break;
    case ACCESS_FLAGS: put(value, attribute, READ_WRITE); break;
    case SYNC_MEMOPS: put(value, attribute, map->syncs); break;
    case CONTEXT: case IS_MANAGED: case IS_LEGACY_IPC: case IS_RDMA: case MEMPOOL: put(value, attribute, 0); break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
static int look_at(void *value, int attribute, uint64_t address) {
    const Piece *piece = piece_at((char *)address);
    const Map *map = map_at((char *)address);
    return piece ? look_at_piece(value, attribute, piece, address) : map ? look_at_map(value, attribute, map, address) : INVALID_VALUE;
}
API cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    int result = look_at(value, attribute, address);
    pthread_mutex_unlock(&mutex);
    return result;
}
API cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    NEED_CONTEXT;
    if (attribute != SYNC_MEMOPS) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    Piece *piece = piece_at((char *)address);
    Map *map = map_at((char *)address);
    unsigned *syncs = piece ? &piece->syncs : map ? &map->syncs : NULL;
    if (syncs) *syncs = *(const unsigned *)value != 0;
    pthread_mutex_unlock(&mutex);
    return syncs ? SUCCESS : INVALID_VALUE;
}
// [api] What an address does not have is 0, and no error.
API cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t address) {
    NEED_CONTEXT;
    if (!count) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (unsigned at = 0; at < count; at++)
        if (look_at(values[at], attributes[at], address)) put(values[at], attributes[at], 0);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
// Of VMM memory the mapping; its id is that of no other, before or after.
API cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    const Piece *piece = piece_at((char *)address);
    const Map *map = map_at((char *)address);
    if (base && (piece || map)) *base = (uint64_t)(piece ? piece->base : map->base);
    if (bytes && (piece || map)) *bytes = piece ? piece->asked : map->bytes;
    pthread_mutex_unlock(&mutex);
    return piece || map ? SUCCESS : NOT_FOUND;
}
// No calls of CUDA, but for tests: whether a device was given access, and the UUID of the GPU on which the memory is, seen here or not.
// An fd says the latter by the last number of its file's name, a place. (cuMemGetAccess would promise mappings for reading alone.)
API fdbroker_cuda_stub_access(int *is_given, int device, uint64_t address) {
    pthread_mutex_lock(&mutex);
    const Map *map = map_at((char *)address);
    const Piece *piece = piece_at((char *)address);
    if (map) *is_given = map->reached_by >> device & 1;
    if (piece) *is_given = piece->context->device == device;
    for (int at = 0; piece && at < CONTEXTS; at++)
        *is_given |= contexts[at].refs && contexts[at].device == device && contexts[at].reaches & bit_of(piece->context);
    pthread_mutex_unlock(&mutex);
    return map || piece ? SUCCESS : INVALID_VALUE;
}
API fdbroker_cuda_stub_uuid(unsigned char *uuid, uint64_t address) {
    pthread_mutex_lock(&mutex);
    const Map *map = map_at((char *)address);
    if (map) uuid_of(place_of(map->what->path), uuid);
    pthread_mutex_unlock(&mutex);
    return map ? SUCCESS : INVALID_VALUE;
}
