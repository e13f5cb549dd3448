// A program that opens the Level Zero loader by itself and closes it while its memory is exported. A child has the broker give its fd
// up and opens the handle. Must never be linked to the loader. Exit status 0: the child has the memory.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/wait.h>

typedef void *handle; /* of driver, device, context */
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;

static void *loader;
static handle driver, device, context;

#define CALL(name, types, ...) \
    do { \
        int (*function) types = (int (*) types)dlsym(loader, #name); \
        int code = function ? function(__VA_ARGS__) : -1; \
        if (code) { fprintf(stderr, #name " = %#x\n", (unsigned)code); return 1; } \
    } while (0)

static int start(void) {
    unsigned one = 1;
    context_desc c = {0xd, NULL, 0};
    loader = dlopen("libze_loader.so.1", RTLD_NOW);
    if (!loader) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    CALL(zeInit, (unsigned), 0);
    CALL(zeDriverGet, (unsigned *, handle *), &one, &driver);
    CALL(zeDeviceGet, (handle, unsigned *, handle *), driver, &one, &device);
    CALL(zeContextCreate, (handle, const context_desc *, handle *), driver, &c, &context);
    return 0;
}

static int consume(int from) {
    ipc_handle h;
    void *memory;
    if (start() || read(from, &h, sizeof h) != sizeof h) return 1;
    if (system("env -u LD_PRELOAD -u LD_LIBRARY_PATH \"$ZE_TEST_FDBROKER\" evict --all > /dev/null")) return 1;
    CALL(zeMemOpenIpcHandle, (handle, handle, ipc_handle, unsigned, void **), context, device, h, 0, &memory);
    CALL(zeMemCloseIpcHandle, (handle, const void *), context, memory);
    return 0;
}

int main(void) {
    int handles[2], status = 1;
    alloc_desc d = {0x15, NULL, 0, 0};
    ipc_handle h;
    void *memory;
    pid_t child;
    if (pipe(handles) || (child = fork()) < 0) return 1;
    if (child == 0) _exit(consume(handles[0]));
    if (start()) return 1;
    CALL(zeMemAllocDevice, (handle, const alloc_desc *, size_t, size_t, handle, void **), context, &d, 4096, 1, device, &memory);
    CALL(zeMemGetIpcHandle, (handle, const void *, ipc_handle *), context, memory, &h);
    dlclose(loader);
    if (write(handles[1], &h, sizeof h) != sizeof h) return 1;
    waitpid(child, &status, 0);
    return status != 0;
}
