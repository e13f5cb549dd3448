// The copies of the stand-in for libcuda. Part of libcuda.c. Must never copy what the driver refuses.
//
// [seen] The driver copies its own memory between GPUs, whether peers are enabled or not. VMM memory is an invalid value for the
// context of a GPU that was not given access to it, but for cuMemcpyPeer.

// CUDA_MEMCPY2D, CUDA_MEMCPY3D: one row here.
typedef struct {
    size_t from_x, from_y; unsigned from_kind; const void *from_host; uint64_t from; void *from_array; size_t from_pitch;
    size_t to_x, to_y; unsigned to_kind; void *to_host; uint64_t to; void *to_array; size_t to_pitch, width, height;
} Copy2D;
typedef struct {
    size_t from_x, from_y, from_z, from_lod; unsigned from_kind; const void *from_host; uint64_t from; void *from_array, *from_reserved;
    size_t from_pitch, from_height, to_x, to_y, to_z, to_lod; unsigned to_kind; void *to_host; uint64_t to; void *to_array, *to_reserved;
    size_t to_pitch, to_height, width, height, depth;
} Copy3D;
enum { OF_DEVICE = 2 };

static int is_out_of_reach(uint64_t address) {
    const Map *map = map_at((char *)address);
    return map && !(map->reached_by >> current_device() & 1);
}
static int copy(uint64_t to, uint64_t from, size_t bytes, int is_between_peers) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    arrive();
    int is_refused = !is_between_peers && (is_out_of_reach(to) || is_out_of_reach(from));
    if (!is_refused) memcpy((void *)to, (void *)from, bytes);
    pthread_mutex_unlock(&mutex);
    return is_refused ? INVALID_VALUE : SUCCESS;
}
static int copy_2d(const Copy2D *what) {
    if (!what || what->from_kind != OF_DEVICE || what->to_kind != OF_DEVICE || what->height != 1) return INVALID_VALUE;
    return copy(what->to + what->to_x, what->from + what->from_x, what->width, 0);
}
static int copy_3d(const Copy3D *what) {
    if (!what || what->from_kind != OF_DEVICE || what->to_kind != OF_DEVICE || what->height != 1 || what->depth != 1) return INVALID_VALUE;
    return copy(what->to + what->to_x, what->from + what->from_x, what->width, 0);
}
API cuMemcpyPeer(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes) {
    return is_context(to_context) && is_context(from_context) ? copy(to, from, bytes, 1) : INVALID_CONTEXT;
}
// It may return before the bytes are there: see `arrive`.
API cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    NEED_CONTEXT;
    pthread_mutex_lock(&mutex);
    int is_refused = is_out_of_reach(to);
    pthread_mutex_unlock(&mutex);
    return is_refused ? INVALID_VALUE : send_off(to, from, 0, bytes);
}
API cuMemcpyHtoD_v2_ptds(uint64_t to, const void *from, size_t bytes) { return cuMemcpyHtoD_v2(to, from, bytes); }

// The one stream is that of all threads.
#define STREAM_MUST_BE_DEFAULT if (stream) return INVALID_VALUE
#define SYNC(name) \
    API name(uint64_t to, uint64_t from, size_t bytes) { return copy(to, from, bytes, 0); }
#define ASYNC(name) \
    API name(uint64_t to, uint64_t from, size_t bytes, void *stream) { STREAM_MUST_BE_DEFAULT; return copy(to, from, bytes, 0); }
#define ROWS(name, type, run) \
    API name(const type *what) { return run(what); }
#define ROWS_ASYNC(name, type, run) \
    API name(const type *what, void *stream) { STREAM_MUST_BE_DEFAULT; return run(what); }
SYNC(cuMemcpy) SYNC(cuMemcpy_ptds) SYNC(cuMemcpyDtoH_v2) SYNC(cuMemcpyDtoH_v2_ptds) SYNC(cuMemcpyDtoD_v2) SYNC(cuMemcpyDtoD_v2_ptds)
ASYNC(cuMemcpyAsync) ASYNC(cuMemcpyAsync_ptsz) ASYNC(cuMemcpyHtoDAsync_v2) ASYNC(cuMemcpyHtoDAsync_v2_ptsz)
ASYNC(cuMemcpyDtoHAsync_v2) ASYNC(cuMemcpyDtoHAsync_v2_ptsz) ASYNC(cuMemcpyDtoDAsync_v2) ASYNC(cuMemcpyDtoDAsync_v2_ptsz)
ROWS(cuMemcpy2D_v2, Copy2D, copy_2d) ROWS(cuMemcpy2D_v2_ptds, Copy2D, copy_2d)
ROWS(cuMemcpy2DUnaligned_v2, Copy2D, copy_2d) ROWS(cuMemcpy2DUnaligned_v2_ptds, Copy2D, copy_2d)
ROWS_ASYNC(cuMemcpy2DAsync_v2, Copy2D, copy_2d) ROWS_ASYNC(cuMemcpy2DAsync_v2_ptsz, Copy2D, copy_2d)
ROWS(cuMemcpy3D_v2, Copy3D, copy_3d) ROWS(cuMemcpy3D_v2_ptds, Copy3D, copy_3d)
ROWS_ASYNC(cuMemcpy3DAsync_v2, Copy3D, copy_3d) ROWS_ASYNC(cuMemcpy3DAsync_v2_ptsz, Copy3D, copy_3d)
