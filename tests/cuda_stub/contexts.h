// The contexts of the stand-in for libcuda: a primary one of each device and others, which of them reach whose memory, and captures of
// streams. Part of libcuda.c. Must never let a context live on that a program has given up.

enum { OTHERS_MOST = 8, CONTEXTS = GPUS_MOST + OTHERS_MOST };
// CUstreamCaptureMode.
enum { CAPTURE_GLOBAL = 0, CAPTURE_RELAXED = 2 };

// The first of them are the primary ones of their devices. `reaches` has a bit for each context whose memory this one reaches.
typedef struct { int device; unsigned refs, reaches; } Context;
static Context contexts[CONTEXTS];
// Captures under way that refuse unsafe calls in all threads.
static unsigned captures;
static _Thread_local int capture_mode;

static int is_context(const void *context) {
    for (int at = 0; at < CONTEXTS; at++)
        if (context == &contexts[at]) return contexts[at].refs > 0;
    return 0;
}
static Context *current_context(void) { return current[depth - 1]; }
static int current_device(void) { return current_context()->device; }
static unsigned bit_of(const Context *context) { return 1u << (context - contexts); }
// [seen] An unsafe call is refused while a stream is captured, unless the thread says that it knows better.
static int is_refused(void) { return captures && capture_mode != CAPTURE_RELAXED; }

// Memory that a context has.
static void free_all_of(const Context *context);
static void end_context(Context *context) {
    free_all_of(context);
    context->refs = context->reaches = 0;
    for (int at = 0; at < CONTEXTS; at++) contexts[at].reaches &= ~bit_of(context);
}

API cuDevicePrimaryCtxRetain(void **context, int device) {
    NEED_DEVICE(device);
    pthread_mutex_lock(&mutex);
    contexts[device].device = device;
    contexts[device].refs++;
    *context = &contexts[device];
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    NEED_INIT;
    if (!is_device(device) || !contexts[device].refs) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    if (contexts[device].refs == 1) end_context(&contexts[device]);
    else contexts[device].refs--;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
API cuDevicePrimaryCtxReset_v2(int device) {
    NEED_DEVICE(device);
    pthread_mutex_lock(&mutex);
    end_context(&contexts[device]);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
API cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }
API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    NEED_DEVICE(device);
    *flags = 0;
    *active = contexts[device].refs > 0;
    return SUCCESS;
}
API cuCtxCreate_v2(void **context, unsigned flags, int device) {
    NEED_DEVICE(device);
    if (flags || depth == STACK) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int at = GPUS_MOST;
    while (at < CONTEXTS && contexts[at].refs) at++;
    if (at < CONTEXTS) {
        contexts[at] = (Context){ device, 1, 0 };
        *context = current[depth++] = &contexts[at];
    }
    pthread_mutex_unlock(&mutex);
    return at < CONTEXTS ? SUCCESS : OUT_OF_MEMORY;
}
API cuCtxDestroy_v2(void *context) {
    NEED_INIT;
    if (!is_context(context) || (Context *)context < &contexts[GPUS_MOST]) return INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    if (depth && current[depth - 1] == context) depth--;
    end_context(context);
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}
API cuCtxDestroy(void *context) { return cuCtxDestroy_v2(context); }
API cuCtxPushCurrent_v2(void *context) {
    NEED_INIT;
    if (!is_context(context) || depth == STACK) return INVALID_CONTEXT;
    current[depth++] = context;
    return SUCCESS;
}
API cuCtxPopCurrent_v2(void **context) {
    NEED_INIT;
    if (!depth) return INVALID_CONTEXT;
    *context = current[--depth];
    return SUCCESS;
}
API cuCtxGetCurrent(void **context) { NEED_INIT; *context = depth ? current[depth - 1] : NULL; return SUCCESS; }
API cuCtxGetDevice(int *device) { NEED_CONTEXT; *device = current_device(); return SUCCESS; }

// [api] The current context reaches the memory of the other one.
API cuCtxEnablePeerAccess(void *of, unsigned flags) {
    NEED_CONTEXT;
    if (flags) return INVALID_VALUE;
    if (!is_context(of)) return INVALID_CONTEXT;
    const Context *peer = of;
    if (peer->device == current_device()) return INVALID_DEVICE;
    if (!is_in_reach(current_device(), seen[peer->device])) return PEER_UNSUPPORTED;
    if (current_context()->reaches & bit_of(peer)) return PEER_ENABLED;
    current_context()->reaches |= bit_of(peer);
    return SUCCESS;
}
API cuCtxDisablePeerAccess(void *of) {
    NEED_CONTEXT;
    if (!is_context(of)) return INVALID_CONTEXT;
    if (!(current_context()->reaches & bit_of(of))) return PEER_NOT_ENABLED;
    current_context()->reaches &= ~bit_of(of);
    return SUCCESS;
}

// Streams are names alone: what they are told is done at once.
API cuStreamBeginCapture_v2(void *stream, int mode) {
    NEED_CONTEXT;
    if (!stream || mode != CAPTURE_GLOBAL) return INVALID_VALUE;
    __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
API cuStreamEndCapture(void *stream, void **graph) {
    NEED_CONTEXT;
    if (!stream || !captures) return INVALID_VALUE;
    __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
    *graph = NULL;
    return SUCCESS;
}
API cuThreadExchangeStreamCaptureMode(int *mode) {
    NEED_INIT;
    if (*mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) return INVALID_VALUE;
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}
