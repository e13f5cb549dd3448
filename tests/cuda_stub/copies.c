/* Programs that copy memory of cuMemAlloc between two GPUs which have not enabled each other: each copy in each form. Each check holds
 * for the driver alone. usage: copies [CASE]... */
#include "shapes.h"

/* More than the layer's least. The numbers of CUmemorytype and of the flags of cuGetProcAddress. */
#define BIG (4u << 20)
#define BYTES 4096
enum { ON_DEVICE = 2, LEGACY_STREAM = 1, THREADS_STREAM = 2 };

typedef CUresult Linear(CUdeviceptr, CUdeviceptr, size_t);
typedef CUresult LinearAsync(CUdeviceptr, CUdeviceptr, size_t, void *);
typedef CUresult Rows(const void *);
typedef CUresult RowsAsync(const void *, void *);

/* The name, and where it copies to and from: D: a device, H: the host. */
typedef struct { const char *name, *ends; int dimensions, is_async; } Copy;
static const Copy copies[] = {
    {"cuMemcpy", "DD", 1, 0},          {"cuMemcpy", "HD", 1, 0},          {"cuMemcpy", "DH", 1, 0},
    {"cuMemcpyHtoD", "DH", 1, 0},      {"cuMemcpyDtoH", "HD", 1, 0},      {"cuMemcpyDtoD", "DD", 1, 0},
    {"cuMemcpyAsync", "DD", 1, 1},     {"cuMemcpyHtoDAsync", "DH", 1, 1}, {"cuMemcpyDtoHAsync", "HD", 1, 1},
    {"cuMemcpyDtoDAsync", "DD", 1, 1}, {"cuMemcpy2D", "DD", 2, 0},        {"cuMemcpy2DUnaligned", "DD", 2, 0},
    {"cuMemcpy2DAsync", "DD", 2, 1},   {"cuMemcpy3D", "DD", 3, 0},        {"cuMemcpy3DAsync", "DD", 3, 1},
};

static CUcontext first, second;
static unsigned char host[BYTES];
static GetProcAddress get;

/* One row in CUDA_MEMCPY2D or CUDA_MEMCPY3D, in words of 8 bytes. */
static void describe(uint64_t *words, int dimensions, CUdeviceptr to, CUdeviceptr from) {
  int kind = dimensions == 3 ? 4 : 2, half = dimensions == 3 ? 11 : 7;
  memset(words, 0, 25 * sizeof *words);
  words[kind] = words[half + kind] = ON_DEVICE;
  words[kind + 2] = from;
  words[half + kind + 2] = to;
  words[2 * half] = BYTES;
  words[2 * half + 1] = 1;
  if (dimensions == 3) words[2 * half + 2] = 1;
}
static CUresult run(const Copy *copy, int stream, CUdeviceptr to, CUdeviceptr from) {
  void *found = NULL;
  uint64_t words[25];
  DRIVER(get(copy->name, &found, CUDA_VERSION, stream));
  if (copy->dimensions > 1) {
    describe(words, copy->dimensions, to, from);
    return copy->is_async ? ((RowsAsync *)found)(words, NULL) : ((Rows *)found)(words);
  }
  return copy->is_async ? ((LinearAsync *)found)(to, from, BYTES, NULL) : ((Linear *)found)(to, from, BYTES);
}

/* The byte of a place, by the context that it belongs to. */
static void write_bytes(CUdeviceptr at, CUcontext of, unsigned char byte) {
  if (at == (uintptr_t)host) {
    memset(host, byte, BYTES);
    return;
  }
  DRIVER(cu.cuCtxPushCurrent(of));
  DRIVER(cu.cuMemsetD8(at, byte, BYTES));
  DRIVER(cu.cuStreamSynchronize(NULL));
  DRIVER(cu.cuCtxPopCurrent(&of));
}
static unsigned char last_byte(CUdeviceptr at, CUcontext of) {
  unsigned char byte = host[BYTES - 1];
  if (at == (uintptr_t)host) return byte;
  DRIVER(cu.cuCtxPushCurrent(of));
  DRIVER(cu.cuMemcpyDtoH(&byte, at + BYTES - 1, 1));
  DRIVER(cu.cuCtxPopCurrent(&of));
  return byte;
}
/* No device reaches the other's memory after it. */
static void part(void) {
  DRIVER(cu.cuCtxEnablePeerAccess(first, 0));
  DRIVER(cu.cuCtxDisablePeerAccess(first));
}
/* One copy with the second GPU's context, of the first one's memory, or to it. */
static void check_copy(const Copy *copy, int stream, CUdeviceptr there, CUdeviceptr here, unsigned char byte) {
  for (int is_to = 0; is_to < 2; is_to++) {
    if (copy->ends[is_to ? 0 : 1] == 'H') continue;
    CUdeviceptr mine = strchr(copy->ends, 'H') ? (uintptr_t)host : here, to = is_to ? there : mine, from = is_to ? mine : there;
    write_bytes(from, from == there ? first : second, byte);
    write_bytes(to, to == there ? first : second, 0);
    CHECK(run(copy, stream, to, from) == CUDA_SUCCESS);
    DRIVER(cu.cuStreamSynchronize(NULL));
    CHECK(last_byte(to, to == there ? first : second) == byte);
    part();
  }
}
static void copies_when_no_peer_is_enabled_carry_all_bytes(void) {
  use_driver();
  MUST((get = (GetProcAddress)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress")) != NULL);
  CUdeviceptr there, here;
  DRIVER(cu.cuDevicePrimaryCtxRetain(&first, 0));
  DRIVER(cu.cuDevicePrimaryCtxRetain(&second, 1));
  DRIVER(cu.cuMemAlloc(&there, BIG));
  DRIVER(cu.cuCtxPushCurrent(second));
  DRIVER(cu.cuMemAlloc(&here, BIG));
  unsigned char byte = 1;
  for (size_t at = 0; at < sizeof copies / sizeof *copies; at++)
    for (int stream = LEGACY_STREAM; stream <= THREADS_STREAM; stream++) check_copy(&copies[at], stream, there, here, byte++);
  /* What is wrong stays wrong. */
  CHECK(run(&copies[0], LEGACY_STREAM, there, here) == CUDA_SUCCESS && cu.cuMemFree(there) == CUDA_SUCCESS);
  Rows *rows = NULL;
  DRIVER(get("cuMemcpy2D", (void **)&rows, CUDA_VERSION, LEGACY_STREAM));
  CHECK(rows(NULL) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cu.cuMemFree(here));
}

static const Row rows[] = {CASE(copies_when_no_peer_is_enabled_carry_all_bytes)};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
