// How programs find the calls of the stand-in for libcuda by cuGetProcAddress, in both its forms.
// Part of libcuda.c. Must never know a call by two facts: name, first version and function are one row.

// `is_per_thread`: the form whose default stream is the thread's own.
typedef struct { const char *name; int since; void *function; int is_per_thread; } Entry;
enum { PER_THREAD = 2 };
#define COPY(name, symbol, suffix) { name, 7000, symbol##suffix, 1 }, { name, 3020, symbol, 0 },

API cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

// Names without a version's suffix, as cuda.h gives them; the newest form that the version has comes first.
static const Entry entries[] = {
    { "cuGetProcAddress", 12000, cuGetProcAddress_v2 },
    { "cuGetProcAddress", 11030, cuGetProcAddress },
    { "cuInit", 2000, cuInit },
    { "cuDriverGetVersion", 2020, cuDriverGetVersion },
    { "cuGetErrorName", 6000, cuGetErrorName },
    { "cuDeviceGetCount", 2000, cuDeviceGetCount },
    { "cuDeviceGet", 2000, cuDeviceGet },
    { "cuDeviceGetName", 2000, cuDeviceGetName },
    { "cuDeviceGetAttribute", 2000, cuDeviceGetAttribute },
    { "cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2 },
    { "cuDeviceGetUuid", 9020, cuDeviceGetUuid },
    { "cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId },
    { "cuDeviceGetByPCIBusId", 4010, cuDeviceGetByPCIBusId },
    { "cuDeviceCanAccessPeer", 4000, cuDeviceCanAccessPeer },
    { "cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2 },
    { "cuCtxGetDevice", 2000, cuCtxGetDevice },
    { "cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain },
    { "cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2 },
    { "cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease },
    { "cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2 },
    { "cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset },
    { "cuDevicePrimaryCtxGetState", 7000, cuDevicePrimaryCtxGetState },
    { "cuCtxCreate", 3020, cuCtxCreate_v2 },
    { "cuCtxDestroy", 4000, cuCtxDestroy_v2 },
    { "cuCtxDestroy", 2000, cuCtxDestroy },
    { "cuCtxGetCurrent", 4000, cuCtxGetCurrent },
    { "cuCtxEnablePeerAccess", 4000, cuCtxEnablePeerAccess },
    { "cuCtxDisablePeerAccess", 4000, cuCtxDisablePeerAccess },
    { "cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2 },
    { "cuStreamEndCapture", 10000, cuStreamEndCapture },
    { "cuThreadExchangeStreamCaptureMode", 10010, cuThreadExchangeStreamCaptureMode },
    { "cuIpcGetMemHandle", 4010, cuIpcGetMemHandle },
    { "cuIpcOpenMemHandle", 11000, cuIpcOpenMemHandle_v2 },
    { "cuIpcOpenMemHandle", 4010, cuIpcOpenMemHandle },
    { "cuIpcCloseMemHandle", 4010, cuIpcCloseMemHandle },
    { "cuMemcpyPeer", 4000, cuMemcpyPeer },
    COPY("cuMemcpy", cuMemcpy, _ptds)
    COPY("cuMemcpyHtoD", cuMemcpyHtoD_v2, _ptds)
    COPY("cuMemcpyDtoH", cuMemcpyDtoH_v2, _ptds)
    COPY("cuMemcpyDtoD", cuMemcpyDtoD_v2, _ptds)
    COPY("cuMemcpyAsync", cuMemcpyAsync, _ptsz)
    COPY("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, _ptsz)
    COPY("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, _ptsz)
    COPY("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, _ptsz)
    COPY("cuMemcpy2D", cuMemcpy2D_v2, _ptds)
    COPY("cuMemcpy2DUnaligned", cuMemcpy2DUnaligned_v2, _ptds)
    COPY("cuMemcpy2DAsync", cuMemcpy2DAsync_v2, _ptsz)
    COPY("cuMemcpy3D", cuMemcpy3D_v2, _ptds)
    COPY("cuMemcpy3DAsync", cuMemcpy3DAsync_v2, _ptsz)
    { "cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2 },
    { "cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2 },
    { "cuStreamSynchronize", 2000, cuStreamSynchronize },
    { "cuCtxSynchronize", 2000, cuCtxSynchronize },
    { "cuEventSynchronize", 2000, cuEventSynchronize },
    { "cuMemGetInfo", 3020, cuMemGetInfo_v2 },
    { "cuMemAlloc", 3020, cuMemAlloc_v2 },
    { "cuMemFree", 3020, cuMemFree_v2 },
    { "cuMemsetD8", 3020, cuMemsetD8_v2 },
    { "cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity },
    { "cuMemCreate", 10020, cuMemCreate },
    { "cuMemRelease", 10020, cuMemRelease },
    { "cuMemGetAllocationPropertiesFromHandle", 10020, cuMemGetAllocationPropertiesFromHandle },
#ifndef WITHOUT_EXPORT
    { "cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle },
#endif
    { "cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle },
    { "cuMemGetHandleForAddressRange", 11070, cuMemGetHandleForAddressRange },
    { "cuMulticastCreate", 12010, cuMulticastCreate },
    { "cuMulticastAddDevice", 12010, cuMulticastAddDevice },
    { "cuMemAddressReserve", 10020, cuMemAddressReserve },
    { "cuMemAddressFree", 10020, cuMemAddressFree },
    { "cuMemMap", 10020, cuMemMap },
    { "cuMemSetAccess", 10020, cuMemSetAccess },
    { "cuMemUnmap", 10020, cuMemUnmap },
    { "cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle },
    { "cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2 },
    { "cuPointerGetAttribute", 4000, cuPointerGetAttribute },
    { "cuPointerSetAttribute", 6000, cuPointerSetAttribute },
    { "cuPointerGetAttributes", 7000, cuPointerGetAttributes },
};

// CUdriverProcAddressQueryResult.
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

API cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM and _LEGACY_STREAM.
    if (!name || !function || flags & ~3ull) return INVALID_VALUE;
    int found = SYMBOL_NOT_FOUND;
    *function = NULL;
    for (size_t i = 0; found != FOUND && i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, name) || (entries[i].is_per_thread && !(flags & PER_THREAD))) continue;
        found = version >= entries[i].since ? FOUND : VERSION_NOT_SUFFICIENT;
        if (found == FOUND) *function = entries[i].function;
    }
    if (status) *status = found;
    return found == FOUND ? SUCCESS : NOT_FOUND;
}
API cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
