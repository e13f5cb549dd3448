/* The CUDA driver as a program sees it: types and calls of cuda.h 13.0, and the ways in which programs find the calls.
 * Must never know fdbroker, nor the stand-in. */
#ifndef DRIVER_H
#define DRIVER_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext;
typedef uint64_t CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct { unsigned numDevices; size_t size; unsigned long long handleTypes, flags; } CUmulticastObjectProp;
typedef struct { unsigned char data[64]; } CUmemFabricHandle;
typedef struct { char reserved[64]; } CUipcMemHandle;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_INVALID_CONTEXT 201
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED 900
#define CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS 1
#define CU_STREAM_CAPTURE_MODE_GLOBAL 0
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define CU_MEM_ALLOCATION_TYPE_PINNED 1
#define CU_MEM_LOCATION_TYPE_DEVICE 1
#define CU_MEM_ACCESS_FLAGS_PROT_READWRITE 3
#define CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1
#define CU_MEM_HANDLE_TYPE_FABRIC 8

/* What a program passes to cuGetProcAddress: CUDA 13.0. */
#define CUDA_VERSION 13000

/* Name, suffix of the symbol where cuda.h renames the call, parameters. */
#define DRIVER_CALLS(CALL) \
  CALL(cuInit, "", (unsigned)) \
  CALL(cuDevicePrimaryCtxRetain, "", (CUcontext *, CUdevice)) \
  CALL(cuCtxPushCurrent, "_v2", (CUcontext)) \
  CALL(cuMemGetInfo, "_v2", (size_t *, size_t *)) \
  CALL(cuMemcpyHtoD, "_v2", (CUdeviceptr, const void *, size_t)) \
  CALL(cuMemsetD8, "_v2", (CUdeviceptr, unsigned char, size_t)) \
  CALL(cuMemcpyDtoH, "_v2", (void *, CUdeviceptr, size_t)) \
  CALL(cuStreamSynchronize, "", (void *)) \
  CALL(cuStreamBeginCapture, "_v2", (void *, int)) \
  CALL(cuStreamEndCapture, "", (void *, void **)) \
  CALL(cuThreadExchangeStreamCaptureMode, "", (int *)) \
  CALL(cuDevicePrimaryCtxRelease, "_v2", (CUdevice)) \
  CALL(cuDevicePrimaryCtxReset, "_v2", (CUdevice)) \
  CALL(cuCtxCreate, "_v2", (CUcontext *, unsigned, CUdevice)) \
  CALL(cuCtxDestroy, "_v2", (CUcontext)) \
  CALL(cuCtxPopCurrent, "_v2", (CUcontext *)) \
  CALL(cuCtxEnablePeerAccess, "", (CUcontext, unsigned)) \
  CALL(cuCtxDisablePeerAccess, "", (CUcontext)) \
  CALL(cuMemAlloc, "_v2", (CUdeviceptr *, size_t)) \
  CALL(cuMemFree, "_v2", (CUdeviceptr)) \
  CALL(cuMemGetAddressRange, "_v2", (CUdeviceptr *, size_t *, CUdeviceptr)) \
  CALL(cuPointerGetAttribute, "", (void *, int, CUdeviceptr)) \
  CALL(cuPointerGetAttributes, "", (unsigned, int *, void **, CUdeviceptr)) \
  CALL(cuPointerSetAttribute, "", (const void *, int, CUdeviceptr)) \
  CALL(cuMemcpyPeer, "", (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)) \
  CALL(cuIpcGetMemHandle, "", (CUipcMemHandle *, CUdeviceptr)) \
  CALL(cuIpcOpenMemHandle, "_v2", (CUdeviceptr *, CUipcMemHandle, unsigned)) \
  CALL(cuIpcCloseMemHandle, "", (CUdeviceptr)) \
  CALL(cuMemCreate, "", (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
  CALL(cuMemRelease, "", (CUmemGenericAllocationHandle)) \
  CALL(cuMemRetainAllocationHandle, "", (CUmemGenericAllocationHandle *, void *)) \
  CALL(cuMemGetAllocationPropertiesFromHandle, "", (CUmemAllocationProp *, CUmemGenericAllocationHandle)) \
  CALL(cuMemExportToShareableHandle, "", (void *, CUmemGenericAllocationHandle, int, unsigned long long)) \
  CALL(cuMemImportFromShareableHandle, "", (CUmemGenericAllocationHandle *, void *, int)) \
  CALL(cuMemAddressReserve, "", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
  CALL(cuMemAddressFree, "", (CUdeviceptr, size_t)) \
  CALL(cuMemMap, "", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
  CALL(cuMemSetAccess, "", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
  CALL(cuMemUnmap, "", (CUdeviceptr, size_t)) \
  CALL(cuMulticastCreate, "", (CUmemGenericAllocationHandle *, const CUmulticastObjectProp *)) \
  CALL(cuMulticastAddDevice, "", (CUmemGenericAllocationHandle, CUdevice))

/* The calls, as the program has found them. */
#define FIELD(name, suffix, parameters) CUresult(*name) parameters;
static struct { DRIVER_CALLS(FIELD) } cu;
#undef FIELD

/* From a handle of dlopen(3), or RTLD_DEFAULT, or RTLD_NEXT; 0: one is missing. */
static inline int find_by_dlsym(void *where) {
  int found = 1;
#define FIND(name, suffix, parameters) found &= (cu.name = (CUresult(*) parameters)dlsym(where, #name suffix)) != NULL;
  DRIVER_CALLS(FIND)
#undef FIND
  return found;
}

typedef CUresult (*GetProcAddress)(const char *, void **, int, uint64_t);
typedef CUresult (*GetProcAddressV2)(const char *, void **, int, uint64_t, int *);

/* As programs of CUDA 11 do. */
static inline int find_by_get_proc_address(GetProcAddress get, int version) {
  int found = 1;
#define FIND(name, suffix, parameters) found &= get(#name, (void **)&cu.name, version, 0) == CUDA_SUCCESS && cu.name;
  DRIVER_CALLS(FIND)
#undef FIND
  return found;
}

/* As programs of CUDA 12 and later do, by cudaGetDriverEntryPoint too. */
static inline int find_by_get_proc_address_v2(GetProcAddressV2 get) {
  int found = 1, status = 0;
#define FIND(name, suffix, parameters) \
  found &= get(#name, (void **)&cu.name, CUDA_VERSION, 0, &status) == CUDA_SUCCESS && status == 0 && cu.name;
  DRIVER_CALLS(FIND)
#undef FIND
  return found;
}

#ifdef LINKED
/* Those that the program is linked to. */
#define DECLARE(name, suffix, parameters) extern CUresult linked_##name parameters __asm__(#name suffix);
DRIVER_CALLS(DECLARE)
#undef DECLARE
static inline int find_linked(void) {
#define TAKE(name, suffix, parameters) cu.name = linked_##name;
  DRIVER_CALLS(TAKE)
#undef TAKE
  return 1;
}
#endif

/* libcudart's way, and with it PyTorch's and NCCL's. */
static inline int find_as_cudart(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  GetProcAddressV2 get = library ? (GetProcAddressV2)dlsym(library, "cuGetProcAddress_v2") : NULL;
  return get && find_by_get_proc_address_v2(get);
}

#endif
