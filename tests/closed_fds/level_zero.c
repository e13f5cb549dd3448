/* A Level Zero program under the layer that closes fds which it does not know, past the C library's functions, and has something of
 * its own there. Must never be linked to the loader, nor know fdbroker. */
#define _GNU_SOURCE
#include "../common/cases.h"

#include "taken.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/wait.h>

typedef void *handle; /* of driver, device, context */
typedef struct {
  char data[64];
} ipc_handle;
typedef struct {
  int stype;
  const void *next;
  unsigned flags, ordinal;
} alloc_desc;
typedef struct {
  int stype;
  const void *next;
  unsigned flags;
} context_desc;

#define MOST_OWN 256

static void *loader;
static handle driver, device, context;

#define ZE(name, types, ...) ((int(*) types)dlsym(loader, #name))(__VA_ARGS__)

static void start(void) {
  unsigned one = 1;
  context_desc made = {0xd, NULL, 0};
  loader = dlopen("libze_loader.so.1", RTLD_NOW);
  MUST(loader != NULL);
  MUST(ZE(zeInit, (unsigned), 0) == 0);
  MUST(ZE(zeDriverGet, (unsigned *, handle *), &one, &driver) == 0);
  MUST(ZE(zeDeviceGet, (handle, unsigned *, handle *), driver, &one, &device) == 0);
  MUST(ZE(zeContextCreate, (handle, const context_desc *, handle *), driver, &made, &context) == 0);
}

static void *allocate(void) {
  alloc_desc desc = {0x15, NULL, 0, 0};
  void *memory;
  MUST(ZE(zeMemAllocDevice, (handle, const alloc_desc *, size_t, size_t, handle, void **), context, &desc, 4096, 1, device, &memory) == 0);
  return memory;
}

/* A child opens handles that come by the pipe, and answers a byte each. */
static void opens(int from, int to) {
  ipc_handle got;
  start();
  while (read(from, &got, sizeof got) == sizeof got) {
    void *memory = NULL;
    char is_good = ZE(zeMemOpenIpcHandle, (handle, handle, ipc_handle, unsigned, void **), context, device, got, 0, &memory) == 0;
    if (is_good) is_good = ZE(zeMemCloseIpcHandle, (handle, const void *), context, memory) == 0;
    if (write(to, &is_good, 1) != 1) _exit(1);
  }
  _exit(0);
}

static int to_child, from_child;

static int is_good(const void *memory) {
  ipc_handle exported;
  char answer = 0;
  if (ZE(zeMemGetIpcHandle, (handle, const void *, ipc_handle *), context, memory, &exported) != 0) return 0;
  MUST(write(to_child, &exported, sizeof exported) == sizeof exported && read(from_child, &answer, 1) == 1);
  return answer;
}

static void fds_of_the_layer_taken_over_then_nothing_is_touched_and_later_exports_are_good(void) {
  for (int kind = 0; kind < KINDS; kind++) {
    struct taken taken[MOST_OWN];
    int own[MOST_OWN], good = 0;
    void *memory = allocate();
    CHECK(is_good(memory));
    int count = connection_fds(own, MOST_OWN);
    CHECK(count >= 4);
    take_all(kind, own, count, taken);
    for (int round = 0; round < 200 && !good; round++) {
      void *other = allocate();
      good = is_good(other);
      MUST(ZE(zeMemFree, (handle, void *), context, other) == 0);
      if (!good) usleep(20000);
    }
    CHECK(good);
    MUST(ZE(zeMemFree, (handle, void *), context, memory) == 0);
    int untouched = 1;
    for (int at = 0; at < count; at++) untouched &= is_untouched(&taken[at]);
    CHECK(untouched);
    if (!untouched) printf("      %s\n", kind_names[kind]);
    for (int at = 0; at < count; at++) give_up(&taken[at]);
  }
}

int main(void) {
  int down[2], up[2];
  /* So that the library's numbers are among those that are looked at. */
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 1024;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  alarm(120);
  setvbuf(stdout, NULL, _IOLBF, 0);
  MUST(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    close(down[1]), close(up[0]);
    opens(down[0], up[1]);
  }
  close(down[0]), close(up[1]);
  to_child = down[1], from_child = up[0];
  start();
  RUN(fds_of_the_layer_taken_over_then_nothing_is_touched_and_later_exports_are_good);
  close(to_child);
  waitpid(child, NULL, 0);
  return bad_cases != 0;
}
