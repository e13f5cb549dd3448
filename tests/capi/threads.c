/* Many threads call every function at once on one context; afterwards every counter is back to zero.
 * usage: threads [THREADS [MS]] */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>

#define PAGE 4096u
#define SHARED 64

static struct broker broker;
static fdbroker_t *context, *other;
static fdbroker_handle_t shared[SHARED];
static atomic_int stop;
static atomic_long calls, unexpected;
static int thread_count = 16;
static unsigned for_ms = 2000;

static void expect(fdbroker_code_t code, fdbroker_code_t also, const char *what) {
  calls++;
  if (code != FDBROKER_OK && code != also && unexpected++ < 5) {
    printf("      %s answers %s: %s\n", what, fdbroker_error_name(code), fdbroker_last_error());
  }
}

static void import_some(unsigned *seed) {
  fdbroker_import_t imports[8];
  fdbroker_handle_t handles[8];
  unsigned which[8];
  for (int at = 0; at < 8; at++) {
    which[at] = (unsigned)rand_r(seed) % SHARED;
    handles[at] = shared[which[at]];
  }
  expect(fdbroker_import_many(other, 8, handles, rand_r(seed) % 2, SOON, imports, NULL), 0, "import_many");
  for (int at = 0; at < 8; at++) {
    if (imports[at].ptr == NULL || *(unsigned char *)imports[at].ptr != which[at]) unexpected++;
    expect(fdbroker_import_release(other, &imports[at]), 0, "import_release");
  }
}

static void acquire_some(unsigned *seed) {
  fdbroker_grant_t grants[3];
  fdbroker_request_t *request;
  fdbroker_handle_t handles[3];
  for (int at = 0; at < 3; at++) handles[at] = shared[(unsigned)rand_r(seed) % SHARED];
  grants[0].struct_size = sizeof grants[0];
  if (rand_r(seed) % 2) {
    expect(fdbroker_acquire_many(other, 3, handles, SOON, grants, NULL), 0, "acquire_many");
  } else {
    expect(fdbroker_acquire_start(other, 3, handles, SOON, &request), 0, "acquire_start");
    if (rand_r(seed) % 2) {
      expect(fdbroker_request_cancel(request), 0, "request_cancel");
      return;
    }
    fdbroker_code_t code;
    while ((code = fdbroker_request_test(request, grants, NULL)) == FDBROKER_AGAIN) sched_yield();
    expect(code, 0, "request_test");
  }
  uint64_t leases[3];
  for (int at = 0; at < 3; at++) {
    close(grants[at].fd);
    expect(fdbroker_lease_mapped(other, grants[at].lease), 0, "lease_mapped");
    if (!fdbroker_lease_is_current(other, grants[at].lease)) unexpected++;
    leases[at] = grants[at].lease;
  }
  if (rand_r(seed) % 2) {
    expect(fdbroker_release_many(other, 3, leases), 0, "release_many");
  } else {
    for (int at = 0; at < 3; at++) expect(fdbroker_release(other, leases[at]), 0, "release");
  }
}

static void produce_some(unsigned *seed) {
  void *memory;
  fdbroker_handle_t handle, again;
  fdbroker_import_t import;
  uint32_t kind = rand_r(seed) % 4 ? FDBROKER_HOST_ARENA : FDBROKER_HOST_ISOLATED;
  expect(fdbroker_host_alloc(context, kind, PAGE, SOON, &memory, &handle), 0, "host_alloc");
  if (memory == NULL) return;
  *(unsigned *)memory = *seed;
  expect(fdbroker_get_handle(context, (char *)memory + 5, 0, SOON, &again), 0, "get_handle");
  expect(fdbroker_import(other, &handle, FDBROKER_IMPORT_READ, SOON, &import), 0, "import");
  if (import.ptr == NULL || *(unsigned *)import.ptr != *seed) unexpected++;
  if (!fdbroker_import_is_current(other, &import)) unexpected++;
  if (rand_r(seed) % 2) {
    expect(fdbroker_host_free(context, memory), 0, "host_free");
    expect(fdbroker_import_release(other, &import), 0, "import_release");
  } else {
    expect(fdbroker_import_release(other, &import), 0, "import_release");
    expect(fdbroker_host_free(context, memory), 0, "host_free");
  }
}

static void register_some(unsigned *seed) {
  int fd = sealed_memfd(PAGE, 1);
  fdbroker_handle_t handle;
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  allocation.base = 0x100000u + (uint64_t)(rand_r(seed) % 8) * PAGE;
  /* Of this memory alone, as a driver's are. */
  static uint64_t last_id;
  allocation.owner_allocation_id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
  /* Another thread may register other memory at the same address, which ends this registration. */
  expect(fdbroker_register(context, &allocation, fd, SOON, &handle), FDBROKER_STALE, "register");
  close(fd);
  if (!all_bytes_are(&handle, 0, sizeof handle)) {
    expect(fdbroker_unregister(context, &handle), FDBROKER_STALE, "unregister");
  }
}

static void look_around(unsigned *seed) {
  fdbroker_stats_t stats = {.struct_size = sizeof stats};
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  expect(fdbroker_stats(rand_r(seed) % 2 ? context : other, &stats), 0, "stats");
  expect(fdbroker_handle_parse(&shared[0], &info), 0, "handle_parse");
  expect(fdbroker_set_notice_callback(other, NULL, NULL), 0, "set_notice_callback");
  if (rand_r(seed) % 8 == 0) expect(fdbroker_empty_cache(other, NULL), 0, "empty_cache");
  if (!fdbroker_is_connected(context)) unexpected++;
  if (fdbroker_release(other, UINT64_MAX) != FDBROKER_BAD_HANDLE) unexpected++;
}

static void *call_everything(void *user) {
  unsigned seed = (unsigned)(size_t)user;
  void (*const what[])(unsigned *) = {import_some, acquire_some, produce_some, register_some, look_around};
  while (!stop) what[(unsigned)rand_r(&seed) % 5](&seed);
  return NULL;
}

static void threads_that_call_everything_leave_every_count_at_zero(void) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.cache_max_entries = 16;
  options.arena_bytes = 16u << 20;
  OK(fdbroker_open(&options, &context));
  OK(fdbroker_open(&options, &other));
  void *memory[SHARED];
  for (int at = 0; at < SHARED; at++) {
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory[at], &shared[at]));
    memset(memory[at], at, PAGE);
  }
  int fds = open_fds();
  pthread_t threads[64];
  for (int at = 0; at < thread_count; at++)
    MUST(pthread_create(&threads[at], NULL, call_everything, (void *)(size_t)(at + 1)) == 0);
  nap_ms(for_ms);
  stop = 1;
  for (int at = 0; at < thread_count; at++) MUST(pthread_join(threads[at], NULL) == 0);
  printf("      %ld calls by %d threads\n", (long)calls, thread_count);
  CHECK(unexpected == 0 && calls > thread_count);

  for (int at = 0; at < SHARED; at++) OK(fdbroker_host_free(context, memory[at]));
  OK(fdbroker_empty_cache(other, NULL));
  fdbroker_stats_t stats = stats_of(other), owner = stats_of(context);
  CHECK(stats.leases == 0 && stats.pinned == 0 && stats.entries == 0 && stats.bytes == 0);
  CHECK(stats.hits > 0 && stats.misses > 0 && stats.evicted > 0);
  CHECK(owner.host_bytes_used == 0 && owner.registrations <= 8);
  EVENTUALLY(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  EVENTUALLY(ledger(&broker, "allocations") == (long)owner.registrations);
  EVENTUALLY(open_fds() == fds);
  OK(fdbroker_close(other));
  OK(fdbroker_close(context));
  EVENTUALLY(ledger(&broker, "fds") == 0 && ledger(&broker, "allocations") == 0);
}

int main(int argc, char **argv) {
  begin();
  if (argc > 1) thread_count = atoi(argv[1]);
  if (argc > 2) for_ms = (unsigned)atoi(argv[2]);
  MUST(thread_count > 0 && thread_count <= 64);
  broker_start(&broker, NULL);
  RUN(threads_that_call_everything_leave_every_count_at_zero);
  broker_stop(&broker);
  return end();
}
