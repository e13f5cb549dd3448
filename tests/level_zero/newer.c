// A loader of specification 1.15 in miniature: it has the driver fill its tables, shows them to the layer, and calls
// zeMemGetIpcHandleWithProperties through them, which no loader of a stable Debian has. A consumer opens the handle by value.
// Must never call a function that did not come through the layer's tables. It is linked to the real loader, which comes before
// the layer then, as in any program. Exit status 0: it shared.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>

typedef void *handle; /* of driver, device, context, list */
typedef void (*function)(void);
typedef struct { char data[64]; } ipc_handle;
typedef struct { int stype; const void *next; unsigned flags, ordinal; } alloc_desc;
typedef struct { int stype; const void *next; unsigned flags; } desc;
typedef struct { int stype; const void *next; unsigned ordinal, index, flags; int mode, priority; } queue_desc;

enum { V1_12 = 1 << 16 | 12, V1_15 = 1 << 16 | 15, TYPE_DESC = 0x2003d, FABRIC = 2, UNSUPPORTED = 0x78000003 };
/* Places in the tables of ze_ddi.h. */
enum { INIT = 0, GET = 0, CREATE = 0, CREATE_IMMEDIATE = 1, APPEND_COPY = 8 };
enum { ALLOC_DEVICE = 1, FREE = 3, OPEN = 7, CLOSE = 8, WITH_PROPERTIES = 12 };

/* Longer than any table. */
typedef struct { function at[64]; } table;
static table global, driver_table, device_table, context_table, list_table, mem;
static void *driver_library, *layer;
static handle driver, device, context, list;
static const char text[] = "written by the producer";

#define CALL(call) \
    do { int code = (call); if (code) { fprintf(stderr, #call " = %#x\n", (unsigned)code); return 1; } } while (0)
#define CHECK(holds) do { if (!(holds)) { fprintf(stderr, "not so: " #holds "\n"); return 1; } } while (0)

/* Has the driver fill a table, then the layer look at it. Answers how many places the layer has changed behind `from`. */
static int fill(const char *name, int version, table *into, int from) {
    int (*drivers)(int, void *) = (int (*)(int, void *))dlsym(driver_library, name);
    int (*layers)(int, void *) = (int (*)(int, void *))dlsym(layer, name);
    table before;
    int changed = 0;
    memset(into, 0, sizeof *into);
    if (!drivers || !layers || drivers(version, into)) return -1;
    before = *into;
    if (layers(version, into)) return -1;
    for (int i = from; i < 64; i++) changed += before.at[i] != into->at[i];
    return changed;
}

static int start(void) {
    unsigned one = 1;
    desc c = {0xd, NULL, 0};
    queue_desc q = {0xe, NULL, 0, 0, 0, 1 /* synchronous */, 0};
    /* An older table ends before these fields: nothing may be written there. */
    CHECK(fill("zeGetMemProcAddrTable", V1_12, &mem, WITH_PROPERTIES) == 0 && !mem.at[WITH_PROPERTIES]);
    CHECK(fill("zeGetMemProcAddrTable", V1_15, &mem, WITH_PROPERTIES) == 1);
    CHECK(fill("zeGetGlobalProcAddrTable", V1_15, &global, 0) == 0);
    CHECK(fill("zeGetDriverProcAddrTable", V1_15, &driver_table, 0) == 1);
    CHECK(fill("zeGetDeviceProcAddrTable", V1_15, &device_table, 0) == 0);
    CHECK(fill("zeGetContextProcAddrTable", V1_15, &context_table, 0) == 1);
    CHECK(fill("zeGetCommandListProcAddrTable", V1_15, &list_table, 0) == 0);
    CALL(((int (*)(unsigned))global.at[INIT])(0));
    CALL(((int (*)(unsigned *, handle *))driver_table.at[GET])(&one, &driver));
    CALL(((int (*)(handle, unsigned *, handle *))device_table.at[GET])(driver, &one, &device));
    CALL(((int (*)(handle, const desc *, handle *))context_table.at[CREATE])(driver, &c, &context));
    CALL(((int (*)(handle, handle, const queue_desc *, handle *))list_table.at[CREATE_IMMEDIATE])(context, device, &q, &list));
    return 0;
}

static int copy(void *to, const void *from) {
    int (*append)(handle, void *, const void *, size_t, handle, unsigned, handle *) =
        (int (*)(handle, void *, const void *, size_t, handle, unsigned, handle *))list_table.at[APPEND_COPY];
    CALL(append(list, to, from, sizeof text, NULL, 0, NULL));
    return 0;
}

static int produce(int to, int until) {
    int (*get)(handle, const void *, void *, ipc_handle *);
    alloc_desc d = {0x15, NULL, 0, 0};
    desc local = {TYPE_DESC, NULL, 0}, fabric = {TYPE_DESC, NULL, FABRIC};
    ipc_handle h, again;
    void *memory;
    char end;
    if (start()) return 1;
    get = (int (*)(handle, const void *, void *, ipc_handle *))mem.at[WITH_PROPERTIES];
    CALL(((int (*)(handle, const alloc_desc *, size_t, size_t, handle, void **))mem.at[ALLOC_DEVICE])(
        context, &d, 4096, 1, device, &memory));
    if (copy(memory, text)) return 1;
    /* What is for other machines is the driver's to answer. */
    CHECK(get(context, memory, &fabric, &h) == UNSUPPORTED);
    CALL(get(context, memory, &local, &h));
    CALL(get(context, memory, NULL, &again));
    CHECK(memcmp(&h, &again, sizeof h) == 0);
    if (write(to, &h, sizeof h) != sizeof h) return 1;
    if (read(until, &end, 1) != 0) return 1; /* the end: the consumer has closed its side */
    CALL(((int (*)(handle, void *))mem.at[FREE])(context, memory));
    return 0;
}

static int consume(int from) {
    ipc_handle h;
    void *memory;
    char seen[sizeof text] = "";
    if (start()) return 1;
    if (read(from, &h, sizeof h) != sizeof h) return 1;
    CALL(((int (*)(handle, handle, ipc_handle, unsigned, void **))mem.at[OPEN])(context, device, h, 0, &memory));
    if (copy(seen, memory)) return 1;
    CALL(((int (*)(handle, const void *))mem.at[CLOSE])(context, memory));
    return memcmp(seen, text, sizeof text) != 0;
}

int main(int count, char **arguments) {
    int handles[2], life[2], status = 1, failed;
    pid_t producer;
    if (count != 3) return 2;
    driver_library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    layer = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
    if (!driver_library || !layer) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    if (pipe(handles) || pipe(life) || (producer = fork()) < 0) return 1;
    if (producer == 0) {
        close(life[1]);
        return produce(handles[1], life[0]);
    }
    close(handles[1]);
    failed = consume(handles[0]);
    close(life[1]);
    waitpid(producer, &status, 0);
    return failed || status != 0;
}
