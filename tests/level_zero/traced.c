// A program with a profiler: it is linked to the Level Zero loader, and has the loader's tracing layer count its calls of
// zeMemGetIpcHandle, zeMemOpenIpcHandle and zeMemFree. Must never know of fdbroker, nor need a header. The argument "late" enables
// tracing at run time. Exit status 0: each call was counted once, and shared memory was right.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

typedef void *handle; /* of driver, device, context, tracer */
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } context_desc;
typedef struct { int stype; const void *next; void *user_data; } tracer_desc;
typedef void callback(void *parameters, int result, void *of_tracer, void **of_call);

int zeInit(unsigned), zeDriverGet(unsigned *, handle *), zeDeviceGet(handle, unsigned *, handle *);
int zeContextCreate(handle, const context_desc *, handle *), zeContextDestroy(handle);
int zeMemAllocDevice(handle, const alloc_desc *, size_t, size_t, handle, void **), zeMemFree(handle, void *);
int zeMemGetIpcHandle(handle, const void *, ipc_handle *);
int zeMemOpenIpcHandle(handle, handle, ipc_handle, unsigned, void **), zeMemCloseIpcHandle(handle, const void *);
int zelTracerCreate(const tracer_desc *, handle *), zelTracerDestroy(handle), zelTracerSetEnabled(handle, unsigned char);
int zelTracerMemGetIpcHandleRegisterCallback(handle, int, callback *);
int zelTracerMemOpenIpcHandleRegisterCallback(handle, int, callback *);
int zelTracerMemFreeRegisterCallback(handle, int, callback *);

static int counts[3];
static handle driver, device, context, tracer;

static void got(void *p, int r, void *t, void **c) { (void)p, (void)r, (void)t, (void)c; counts[0]++; }
static void opened(void *p, int r, void *t, void **c) { (void)p, (void)r, (void)t, (void)c; counts[1]++; }
static void freed(void *p, int r, void *t, void **c) { (void)p, (void)r, (void)t, (void)c; counts[2]++; }

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, #call " = %#x\n", (unsigned)code); return 1; } } while (0)

static int start(int is_late) {
    unsigned one = 1;
    context_desc c = {0xd, NULL, 0};
    tracer_desc t = {0x1, NULL, NULL};
    int (*enable)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "zelEnableTracingLayer");
    CALL(zeInit(0));
    if (is_late && !enable) { fprintf(stderr, "no zelEnableTracingLayer\n"); return 77; }
    if (is_late) CALL(enable());
    CALL(zeDriverGet(&one, &driver));
    CALL(zeDeviceGet(driver, &one, &device));
    CALL(zeContextCreate(driver, &c, &context));
    CALL(zelTracerCreate(&t, &tracer));
    CALL(zelTracerMemGetIpcHandleRegisterCallback(tracer, 1 /* epilogue */, got));
    CALL(zelTracerMemOpenIpcHandleRegisterCallback(tracer, 1, opened));
    CALL(zelTracerMemFreeRegisterCallback(tracer, 1, freed));
    CALL(zelTracerSetEnabled(tracer, 1));
    return 0;
}

static int end(void) {
    CALL(zeContextDestroy(context));
    CALL(zelTracerSetEnabled(tracer, 0));
    CALL(zelTracerDestroy(tracer));
    return 0;
}

static int consume(int from, int is_late) {
    ipc_handle h;
    void *memory;
    int status = start(is_late);
    if (status || read(from, &h, sizeof h) != sizeof h) return status ? status : 1;
    CALL(zeMemOpenIpcHandle(context, device, h, 0, &memory));
    CALL(zeMemCloseIpcHandle(context, memory));
    if (counts[1] != 1) { fprintf(stderr, "%d of 1 calls of zeMemOpenIpcHandle traced\n", counts[1]); return 1; }
    return end();
}

int main(int argc, char **argv) {
    int handles[2], status = 1, is_late = argc > 1 && !strcmp(argv[1], "late");
    alloc_desc d = {0x15, NULL, 0, 0};
    ipc_handle h;
    void *memory;
    pid_t child;
    if (pipe(handles) || (child = fork()) < 0) return 1;
    if (child == 0) _exit(consume(handles[0], is_late));
    status = start(is_late);
    if (status) return status;
    CALL(zeMemAllocDevice(context, &d, 4096, 1, device, &memory));
    CALL(zeMemGetIpcHandle(context, memory, &h));
    if (write(handles[1], &h, sizeof h) != sizeof h) return 1;
    waitpid(child, &status, 0);
    CALL(zeMemFree(context, memory));
    printf("traced: %d of zeMemGetIpcHandle, %d of zeMemFree\n", counts[0], counts[2]);
    return status != 0 || counts[0] != 1 || counts[2] != 1 || end();
}
