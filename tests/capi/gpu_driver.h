/* The drivers as a C program uses them, found at run time: memory that the program allocates by itself, and copies. No header of
 * a driver is needed. Must never use a function of fdbroker. */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DRIVER(call) \
  do { \
    int code_ = (int)(call); \
    if (code_ != 0) { \
      printf("FAIL  %s:%d: the driver answers %d (%#x) to %s\n", __FILE__, __LINE__, code_, (unsigned)code_, #call); \
      fflush(stdout); \
      _exit(1); \
    } \
  } while (0)

static int is_cuda;
static void *driver_library;
/* The program's Level Zero context, for fdbroker_gpu_set_context(); NULL under CUDA. */
static void *driver_context;
static void *ze_device, *ze_list;
static size_t granule = 1;

/* A function of the driver by its name, called with its arguments as cuda.h and ze_api.h declare them. */
static void *driver_function(const char *name) {
  void *found = dlsym(driver_library, name);
  if (found == NULL) {
    printf("FAIL  the driver has no %s\n", name);
    _exit(1);
  }
  return found;
}
#define CALL(name, ...) ((int (*)())driver_function(name))(__VA_ARGS__)

/* CUmemAllocationProp: pinned, exported as fds, on a device. */
struct cu_prop { int kind, handle_types, location_kind, device; void *win32; unsigned char flags[8]; };
struct cu_access { int location_kind, device, flags; };

/* Fds that the driver keeps of each exported allocation: loaders before 1.9 have no way to make it close them. */
static int driver_fds(void) { return !is_cuda && dlsym(driver_library, "zeMemPutIpcHandle") == NULL; }

/* Makes the device usable on this thread. */
static void driver_enter(void) {
  void *context = NULL;
  int device = 0;
  if (!is_cuda) return;
  DRIVER(CALL("cuDeviceGet", &device, 0));
  DRIVER(CALL("cuDevicePrimaryCtxRetain", &context, device));
  DRIVER(CALL("cuCtxPushCurrent_v2", context));
}

static void driver_start(void) {
  driver_library = dlopen(is_cuda ? "libcuda.so.1" : "libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver_library == NULL) {
    printf("FAIL  %s\n", dlerror());
    _exit(1);
  }
  if (is_cuda) {
    struct cu_prop prop = {1, 1, 1, 0, NULL, {0}};
    DRIVER(CALL("cuInit", 0u));
    driver_enter();
    DRIVER(CALL("cuMemGetAllocationGranularity", &granule, &prop, 0));
    return;
  }
  struct { int type; const void *next; unsigned flags; } context = {0xd, NULL, 0};
  struct { int type; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue = {0xe, NULL, 0, 0, 0, 1, 0};
  unsigned one = 1;
  void *driver = NULL;
  DRIVER(CALL("zeInit", 0u));
  DRIVER(CALL("zeDriverGet", &one, &driver));
  DRIVER(CALL("zeDeviceGet", driver, &one, &ze_device));
  DRIVER(CALL("zeContextCreate", driver, &context, &driver_context));
  DRIVER(CALL("zeCommandListCreateImmediate", driver_context, ze_device, &queue, &ze_list));
}

/* Copies to the device, and returns when all processes see it. */
static void driver_put(void *to, const void *from, size_t count) {
  if (is_cuda) {
    DRIVER(CALL("cuMemcpyHtoD_v2", (uint64_t)(uintptr_t)to, from, count));
    DRIVER(CALL("cuStreamSynchronize", (void *)NULL));
  } else {
    DRIVER(CALL("zeCommandListAppendMemoryCopy", ze_list, to, from, count, (void *)NULL, 0u, (void *)NULL));
  }
}

static void driver_get(void *to, const void *from, size_t count) {
  if (is_cuda)
    DRIVER(CALL("cuMemcpyDtoH_v2", to, (uint64_t)(uintptr_t)from, count));
  else
    DRIVER(CALL("zeCommandListAppendMemoryCopy", ze_list, to, from, count, (void *)NULL, 0u, (void *)NULL));
}

/* Memory that the program allocates as frameworks do; `bytes` is a multiple of the granule. */
static void *driver_alloc(size_t bytes) {
  if (is_cuda) {
    struct cu_prop prop = {1, 1, 1, 0, NULL, {0}};
    struct cu_access access = {1, 0, 3};
    unsigned long long handle = 0;
    uint64_t base = 0;
    DRIVER(CALL("cuMemCreate", &handle, bytes, &prop, 0ull));
    DRIVER(CALL("cuMemAddressReserve", &base, bytes, (size_t)0, (uint64_t)0, 0ull));
    DRIVER(CALL("cuMemMap", base, bytes, (size_t)0, handle, 0ull));
    DRIVER(CALL("cuMemSetAccess", base, bytes, &access, (size_t)1));
    /* The mapping keeps it. */
    DRIVER(CALL("cuMemRelease", handle));
    return (void *)(uintptr_t)base;
  }
  struct { int type; const void *next; unsigned flags, ordinal; } desc = {0x15, NULL, 0, 0};
  void *memory = NULL;
  DRIVER(CALL("zeMemAllocDevice", driver_context, &desc, bytes, (size_t)1, ze_device, &memory));
  return memory;
}

static void driver_free(void *memory, size_t bytes) {
  if (is_cuda) {
    DRIVER(CALL("cuMemUnmap", (uint64_t)(uintptr_t)memory, bytes));
    DRIVER(CALL("cuMemAddressFree", (uint64_t)(uintptr_t)memory, bytes));
  } else {
    DRIVER(CALL("zeMemFree", driver_context, memory));
  }
}

#endif
