/* GPU memory through the C ABI: allocated and registered here, opened by another process, recalled, freed; and what is said where
 * there is no driver. With a real driver or with the tests' stand-ins; run.sh of tests/cuda_stub, tests/level_zero and tests/gpu
 * starts it. Must never use memory of the device but through the driver.
 *
 *   gpu cuda|level-zero           all cases
 *   gpu cuda|level-zero absent    the cases where the driver or the device is missing */
#define _GNU_SOURCE
#include "check.h"
#include "gpu_driver.h"

#define MANY 12
#define THREADS 4
#define ROUNDS 25

static const char *program, *driver_name;
static uint32_t driver;
static struct broker broker;
static fdbroker_t *owner;
/* Bytes of each allocation. */
static size_t bytes;
/* FDBROKER_KIND_* of the device's memory: the tests' Level Zero driver has no dma-bufs to give where the system has none. */
static uint32_t kind;

static fdbroker_t *open_context(const char *socket) {
  fdbroker_options_t options;
  fdbroker_t *context = NULL;
  fdbroker_options_init(&options);
  options.socket = socket;
  options.own_fds = 4;
  options.arena_bytes = 16u << 20;
  OK(fdbroker_open(&options, &context));
  MUST(context != NULL);
  if (!is_cuda) OK(fdbroker_gpu_set_context(context, 0, driver_context));
  return context;
}

static void fill(void *memory, int value) {
  unsigned char *host = malloc(bytes);
  MUST(host != NULL);
  memset(host, value, bytes);
  driver_put(memory, host, bytes);
  free(host);
}

static int is_filled(const void *memory, int value, size_t count) {
  unsigned char *host = malloc(count);
  MUST(host != NULL);
  driver_get(host, memory, count);
  int same = all_bytes_are(host, value, count);
  free(host);
  return same;
}

static void *allocate(int value, fdbroker_handle_t *handle) {
  void *memory = NULL;
  OK(fdbroker_gpu_alloc(owner, driver, 0, bytes, FDBROKER_SHARE_UID, SOON, &memory, handle));
  MUST(memory != NULL);
  fill(memory, value);
  return memory;
}

/* ---- a consumer: another process, which has the driver for itself */

struct order { fdbroker_handle_t handle; int32_t value, mark; };
/* What became of it: the import's code, whether all bytes from its pointer on were right, and their number. */
struct outcome { int32_t code, is_right; uint64_t size; };
struct consumer { pid_t pid; int to, from; };

static int consume(const char *socket) {
  struct order order;
  /* What a check says goes elsewhere than the outcomes. */
  int outcomes = dup(1);
  MUST(outcomes >= 0 && dup2(2, 1) == 1);
  driver_start();
  fdbroker_t *context = open_context(socket);
  while (reads_all(0, &order, sizeof order)) {
    struct outcome outcome = {0};
    fdbroker_handle_info_t info = {.struct_size = sizeof info};
    fdbroker_import_t import;
    OK(fdbroker_handle_parse(&order.handle, &info));
    OK(fdbroker_set_gpu_opener(context, info.kind, driver, FDBROKER_OWNERS_DEVICE));
    uint32_t flags = order.mark ? FDBROKER_IMPORT_WRITE : FDBROKER_IMPORT_READ;
    outcome.code = fdbroker_import(context, &order.handle, flags, SOON, &import);
    if (outcome.code == FDBROKER_OK) {
      outcome.is_right = is_filled(import.ptr, order.value, import.size_bytes);
      outcome.size = import.size_bytes;
      unsigned char mark = (unsigned char)order.mark;
      if (mark) driver_put(import.ptr, &mark, 1);
      OK(fdbroker_import_release(context, &import));
    }
    if (!writes_all(outcomes, &outcome, sizeof outcome)) return 1;
  }
  OK(fdbroker_close(context));
  return bad_checks != 0;
}

static struct consumer start_consumer(void) {
  int to[2], from[2];
  struct consumer consumer;
  MUST(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  consumer.pid = fork();
  MUST(consumer.pid >= 0);
  if (consumer.pid == 0) {
    MUST(dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1);
    execl(program, program, driver_name, "consume", broker.socket, NULL);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  consumer.to = to[1];
  consumer.from = from[0];
  return consumer;
}

static void end_consumer(struct consumer *consumer) {
  close(consumer->to);
  CHECK(status_of(consumer->pid) == 0);
  close(consumer->from);
}

static struct outcome asked(struct consumer *consumer, const fdbroker_handle_t *handle, int value, int mark) {
  struct order order = {*handle, value, mark};
  struct outcome outcome = {-1, 0, 0};
  MUST(writes_all(consumer->to, &order, sizeof order));
  MUST(reads_all(consumer->from, &outcome, sizeof outcome));
  return outcome;
}

static void evict_all(void) {
  char command[512];
  snprintf(command, sizeof command, "FDBROKER_ADMIN_SOCKET='%s' '%s' evict --all > /dev/null", broker.admin,
           getenv("FDBROKER"));
  MUST(system(command) == 0);
}

/* ---- the cases */

static void memory_when_allocated_is_the_consumers_and_no_fd_stays(void) {
  void *memory[MANY];
  fdbroker_handle_t handles[MANY];
  struct consumer consumer = start_consumer();
  int before = open_fds();
  uint64_t registered = stats_of(owner).registrations;
  for (int at = 0; at < MANY; at++) memory[at] = allocate(at + 1, &handles[at]);
  CHECK(open_fds() == before + MANY * driver_fds() && stats_of(owner).registrations == registered + MANY);
  CHECK(ledger(&broker, "held_fds") == MANY);
  for (int at = 0; at < MANY; at++) {
    struct outcome outcome = asked(&consumer, &handles[at], at + 1, 100 + at);
    CHECK(outcome.code == FDBROKER_OK && outcome.is_right && outcome.size >= bytes);
    CHECK(is_filled(memory[at], 100 + at, 1));
  }
  /* What the broker does not have any more is exported again, with its bytes. An fd counts until it is closed. */
  evict_all();
  EVENTUALLY(ledger(&broker, "held_fds") == 0);
  void *last = allocate(77, &handles[0]);
  evict_all();
  struct outcome outcome = asked(&consumer, &handles[0], 77, 0);
  CHECK(outcome.code == FDBROKER_OK && outcome.is_right);
  OK(fdbroker_gpu_free(owner, last));
  OK(fdbroker_flush(owner, SOON));
  CHECK(asked(&consumer, &handles[0], 77, 0).code == FDBROKER_STALE);
  for (int at = 0; at < MANY; at++) OK(fdbroker_gpu_free(owner, memory[at]));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_gpu_free(owner, memory[0]));
  CHECK(stats_of(owner).registrations == registered && open_fds() == before);
  end_consumer(&consumer);
  EVENTUALLY(ledger(&broker, "held_fds") == 0 && ledger(&broker, "mapped_leases") == 0);
}

static void handle_when_asked_for_by_pointer_has_its_offset(void) {
  fdbroker_handle_t whole, inside, again;
  struct consumer consumer = start_consumer();
  void *memory = NULL;
  /* Registered by the first question. */
  OK(fdbroker_gpu_alloc(owner, driver, 0, bytes, FDBROKER_SHARE_UID, 0, &memory, NULL));
  fill(memory, 9);
  OK(fdbroker_get_handle(owner, (char *)memory + 4096, 0, SOON, &inside));
  OK(fdbroker_gpu_register(owner, driver, 0, memory, FDBROKER_SHARE_UID, SOON, &whole));
  OK(fdbroker_get_handle(owner, memory, 0, 0, &again));
  CHECK(fdbroker_handle_same(&whole, &inside) && memcmp(&whole, &again, sizeof whole) == 0);
  struct outcome all = asked(&consumer, &whole, 9, 0), rest = asked(&consumer, &inside, 9, 0);
  CHECK(all.code == FDBROKER_OK && rest.code == FDBROKER_OK && rest.is_right && all.size - rest.size == 4096);
  OK(fdbroker_gpu_free(owner, memory));
  end_consumer(&consumer);
}

static void pointer_when_others_allocated_it_is_registered_once_and_retired(void) {
  fdbroker_handle_t whole, inside, again;
  struct consumer consumer = start_consumer();
  void *memory = driver_alloc(bytes);
  int before = open_fds();
  fill(memory, 5);
  OK(fdbroker_gpu_register(owner, driver, 0, (char *)memory + 8192, FDBROKER_SHARE_UID, SOON, &inside));
  OK(fdbroker_gpu_register(owner, driver, 0, memory, FDBROKER_SHARE_UID, 0, &whole));
  OK(fdbroker_get_handle(owner, memory, 0, 0, &again));
  CHECK(fdbroker_handle_same(&whole, &inside) && fdbroker_handle_same(&whole, &again));
  CHECK(asked(&consumer, &whole, 5, 0).is_right);
  evict_all();
  fill(memory, 6);
  struct outcome rest = asked(&consumer, &inside, 6, 0);
  CHECK(rest.code == FDBROKER_OK && rest.is_right && rest.size == bytes - 8192);
  CHECK(open_fds() == before + driver_fds());
  OK(fdbroker_gpu_retire(owner, driver, 0, (char *)memory + 1));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_gpu_retire(owner, driver, 0, memory));
  OK(fdbroker_flush(owner, SOON));
  CHECK(asked(&consumer, &whole, 6, 0).code == FDBROKER_STALE);
  /* Freed without a word: what is at its address afterwards is other memory. */
  OK(fdbroker_gpu_register(owner, driver, 0, memory, FDBROKER_SHARE_UID, SOON, &whole));
  evict_all();
  driver_free(memory, bytes);
  CHECK(asked(&consumer, &whole, 6, 0).code != FDBROKER_OK);
  CODE(FDBROKER_STALE, fdbroker_gpu_register(owner, driver, 0, memory, FDBROKER_SHARE_UID, SOON, &again));
  end_consumer(&consumer);
}

static void import_when_repeated_is_a_hit_and_counted_as_host_memory_is(void) {
  void *memory[MANY];
  fdbroker_handle_t handles[MANY];
  fdbroker_import_t imports[MANY], hit;
  fdbroker_code_t codes[MANY];
  fdbroker_t *context = open_context(broker.socket);
  for (int at = 0; at < MANY; at++) memory[at] = allocate(at, &handles[at]);
  if (is_cuda) CODE(FDBROKER_NOT_SUPPORTED, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &hit));
  OK(fdbroker_set_gpu_opener(context, kind, driver, 0));
  int before = open_fds();
  OK(fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, imports, codes));
  uint64_t hits = stats_of(context).hits;
  for (int at = 0; at < MANY; at++) {
    CHECK(is_filled(imports[at].ptr, at, bytes) && imports[at].ptr != memory[at]);
    OK(fdbroker_import_hit(context, &handles[at], FDBROKER_IMPORT_READ, &hit));
    CHECK(hit.ptr == imports[at].ptr && fdbroker_import_is_current(context, &hit) == 1);
    OK(fdbroker_import_release(context, &hit));
  }
  fdbroker_stats_t stats = stats_of(context);
  CHECK(stats.hits == hits + MANY && stats.entries == MANY && stats.pinned == MANY && stats.bytes >= MANY * bytes);
  CHECK(open_fds() == before);
  EVENTUALLY(ledger(&broker, "mapped_leases") == MANY && ledger(&broker, "open_leases") == 0);
  /* Freed by its owner: still open here, and not current. */
  OK(fdbroker_gpu_free(owner, memory[0]));
  OK(fdbroker_flush(owner, SOON));
  CHECK(fdbroker_import_is_current(context, &imports[0]) == 0 && is_filled(imports[0].ptr, 0, bytes));
  CODE(FDBROKER_AGAIN, fdbroker_import_hit(context, &handles[0], FDBROKER_IMPORT_READ, &hit));
  CODE(FDBROKER_STALE, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &hit));
  for (int at = 0; at < MANY; at++) OK(fdbroker_import_release(context, &imports[at]));
  /* For writing it is opened anew. */
  OK(fdbroker_import(context, &handles[1], FDBROKER_IMPORT_WRITE, SOON, &hit));
  driver_put(hit.ptr, "w", 1);
  CHECK(is_filled(memory[1], 'w', 1));
  OK(fdbroker_import_release(context, &hit));
  /* A checkpoint closes all and opens all again. */
  size_t count = 0;
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  CHECK(stats_of(context).entries == 0);
  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(stats_of(context).entries == MANY - 1);
  OK(fdbroker_import_hit(context, &handles[2], FDBROKER_IMPORT_READ, &hit));
  CHECK(is_filled(hit.ptr, 2, bytes));
  /* It says where that is, and nothing of what no driver has opened. */
  uint32_t by = 9, number = 9;
  OK(fdbroker_import_device(context, &hit, &by, &number));
  CHECK(by == driver && number == 0);
  void *hosts = NULL;
  fdbroker_handle_t of_host;
  /* The driver opens the host's memory, too, where its own is of that kind. */
  if (is_cuda) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, 4096, SOON, &hosts, &of_host));
    OK(fdbroker_import(context, &of_host, FDBROKER_IMPORT_READ, SOON, &hit));
    CODE(FDBROKER_BAD_HANDLE, fdbroker_import_device(context, &hit, &by, &number));
    CHECK(by == 0 && number == 0);
  }
  OK(fdbroker_close(context));
  if (hosts) OK(fdbroker_host_free(owner, hosts));
  for (int at = 1; at < MANY; at++) OK(fdbroker_gpu_free(owner, memory[at]));
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
}

static void import_when_started_is_done_by_tests(void) {
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  fdbroker_request_t *request = NULL;
  fdbroker_t *context = open_context(broker.socket);
  void *memory = allocate(3, &handle);
  OK(fdbroker_set_gpu_opener(context, kind, driver, 0));
  OK(fdbroker_import_start(context, 1, &handle, FDBROKER_IMPORT_READ, SOON, &request));
  fdbroker_code_t code;
  while ((code = fdbroker_import_test(request, &import, NULL)) == FDBROKER_AGAIN) nap_ms(1);
  CHECK(code == FDBROKER_OK && is_filled(import.ptr, 3, bytes));
  OK(fdbroker_close(context));
  OK(fdbroker_gpu_free(owner, memory));
}

static void *share_often(void *salt) {
  int value = (int)(intptr_t)salt;
  intptr_t wrong = 0;
  driver_enter();
  fdbroker_t *context = open_context(broker.socket);
  OK(fdbroker_set_gpu_opener(context, kind, driver, 0));
  for (int round = 0; round < ROUNDS; round++) {
    fdbroker_handle_t handle;
    fdbroker_import_t import;
    void *memory = NULL;
    unsigned char written = (unsigned char)(value + round), seen = 0;
    wrong += fdbroker_gpu_alloc(owner, driver, 0, bytes, FDBROKER_SHARE_UID, SOON, &memory, &handle) != FDBROKER_OK;
    wrong += fdbroker_import(context, &handle, FDBROKER_IMPORT_WRITE, SOON, &import) != FDBROKER_OK;
    if (wrong) break;
    if (is_cuda) {
      /* A command list is one thread's at a time. */
      driver_put(memory, &written, 1);
      driver_get(&seen, import.ptr, 1);
      wrong += seen != written;
    }
    wrong += fdbroker_import_release(context, &import) != FDBROKER_OK;
    wrong += fdbroker_gpu_free(owner, memory) != FDBROKER_OK;
  }
  OK(fdbroker_close(context));
  return (void *)wrong;
}

static void threads_when_they_share_at_once_find_their_bytes(void) {
  pthread_t all[THREADS];
  for (int at = 0; at < THREADS; at++) MUST(pthread_create(&all[at], NULL, share_often, (void *)(intptr_t)(at * 50)) == 0);
  for (int at = 0; at < THREADS; at++) {
    void *wrong = NULL;
    pthread_join(all[at], &wrong);
    CHECK(wrong == NULL);
  }
  EVENTUALLY(ledger(&broker, "held_fds") == 0);
}

static void arguments_when_not_valid_are_named_and_nothing_is_left(void) {
  fdbroker_handle_t handle;
  void *memory = &handle;
  uint32_t count = 7;
  uint64_t registered = stats_of(owner).registrations;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_count(9, &count));
  CHECK(count == 0);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_count(driver, NULL));
  OK(fdbroker_gpu_count(driver, &count));
  CHECK(count >= 1);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_alloc(owner, 9, 0, bytes, 0, SOON, &memory, &handle));
  CHECK(memory == NULL);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_alloc(owner, driver, 0, 0, 0, SOON, &memory, &handle));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_alloc(owner, driver, 0, bytes, 9, SOON, &memory, &handle));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_alloc(owner, driver, 0, bytes, 0, SOON, NULL, &handle));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_alloc(NULL, driver, 0, bytes, 0, SOON, &memory, &handle));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_gpu_alloc(owner, driver, 4096, bytes, 0, SOON, &memory, &handle));
  CHECK(strstr(fdbroker_last_error(), "no device 4096") != NULL);
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_set_gpu_opener(owner, kind, driver, 4096));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_set_gpu_opener(owner, 99, driver, 0));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_gpu_free(owner, NULL));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_gpu_free(owner, &handle));
  CODE(FDBROKER_STALE, fdbroker_gpu_register(owner, driver, 0, &handle, 0, SOON, &handle));
  if (is_cuda) {
    /* Memory that CUDA shares in no other way than by its own IPC handles. */
    uint64_t plain = 0;
    DRIVER(CALL("cuMemAlloc_v2", &plain, (size_t)4096));
    fdbroker_code_t code = fdbroker_gpu_register(owner, driver, 0, (void *)(uintptr_t)plain, 0, SOON, &handle);
    CHECK(code == FDBROKER_NOT_SUPPORTED || code == FDBROKER_STALE);
    DRIVER(CALL("cuMemFree_v2", plain));
  } else {
    CODE(FDBROKER_EXISTS, fdbroker_gpu_set_context(owner, 0, driver_context));
  }
  CHECK(stats_of(owner).registrations == registered);
}

static void child_when_forked_has_no_gpu_memory(void) {
  fdbroker_handle_t handle;
  void *memory = allocate(4, &handle);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    void *got = NULL;
    uint32_t count = 0;
    int bad = fdbroker_gpu_alloc(owner, driver, 0, bytes, 0, SOON, &got, NULL) != FDBROKER_NOT_CONNECTED;
    bad += fdbroker_gpu_free(owner, memory) != FDBROKER_NOT_CONNECTED;
    bad += fdbroker_gpu_register(owner, driver, 0, memory, 0, SOON, &handle) != FDBROKER_NOT_CONNECTED;
    bad += fdbroker_gpu_retire(owner, driver, 0, memory) != FDBROKER_NOT_CONNECTED;
    bad += fdbroker_set_gpu_opener(owner, kind, driver, 0) != FDBROKER_NOT_CONNECTED;
    bad += fdbroker_pool_alloc(bytes, 0, NULL) != NULL;
    bad += fdbroker_gpu_count(driver, &count) != FDBROKER_NOT_SUPPORTED;
    bad += fdbroker_close(owner) != FDBROKER_OK;
    _exit(bad);
  }
  CHECK(status_of(child) == 0);
  CHECK(is_filled(memory, 4, bytes));
  struct consumer consumer = start_consumer();
  CHECK(asked(&consumer, &handle, 4, 0).is_right);
  end_consumer(&consumer);
  OK(fdbroker_gpu_free(owner, memory));
}

static void pool_when_set_gives_memory_that_can_be_shared(void) {
  fdbroker_handle_t handle;
  fdbroker_t *context = open_context(broker.socket);
  CHECK(fdbroker_pool_alloc(bytes, 0, NULL) == NULL);
  OK(fdbroker_pool_set(context));
  OK(fdbroker_pool_set(context));
  CODE(FDBROKER_EXISTS, fdbroker_pool_set(owner));
  void *memory = fdbroker_pool_alloc(bytes, 0, NULL), *kept = fdbroker_pool_alloc(bytes, 0, NULL);
  MUST(memory != NULL && kept != NULL);
  fill(memory, 8);
  fill(kept, 7);
  struct consumer consumer = start_consumer();
  OK(fdbroker_get_handle(context, (char *)memory + 4096, 0, SOON, &handle));
  CHECK(asked(&consumer, &handle, 8, 0).is_right);
  fdbroker_pool_free(memory, bytes, 0, NULL);
  fdbroker_pool_free(NULL, 0, 0, NULL);
  OK(fdbroker_flush(context, SOON));
  CHECK(asked(&consumer, &handle, 8, 0).code == FDBROKER_STALE);
  end_consumer(&consumer);
  /* What the allocator still has outlives the context. */
  OK(fdbroker_close(context));
  CHECK(is_filled(kept, 7, bytes));
  fdbroker_pool_free(kept, bytes, 0, NULL);
}

static void calls_when_the_broker_is_gone_answer_so_and_memory_stays(void) {
  fdbroker_handle_t handle;
  void *memory = allocate(2, &handle), *more = NULL;
  broker_kill(&broker);
  EVENTUALLY(!fdbroker_is_connected(owner));
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_gpu_alloc(owner, driver, 0, bytes, 0, SOON, &more, &handle));
  CHECK(more == NULL && is_filled(memory, 2, bytes));
  /* Without a handle no broker is needed. */
  OK(fdbroker_gpu_alloc(owner, driver, 0, bytes, 0, SOON, &more, NULL));
  OK(fdbroker_gpu_free(owner, more));
  /* The next broker hears of it, under its handle. */
  broker_start_in(&broker, NULL);
  EVENTUALLY(fdbroker_is_connected(owner));
  OK(fdbroker_get_handle(owner, memory, 0, SOON, &handle));
  struct consumer consumer = start_consumer();
  CHECK(asked(&consumer, &handle, 2, 0).is_right);
  end_consumer(&consumer);
  OK(fdbroker_gpu_free(owner, memory));
}

/* ---- without a driver */

static void everything_when_there_is_no_driver_is_not_supported_and_says_why(void) {
  const char *library = is_cuda ? "cuda" : "level-zero";
  fdbroker_handle_t handle;
  void *memory = NULL;
  uint32_t count = 7;
  kind = is_cuda ? FDBROKER_KIND_CUDA_VMM : FDBROKER_KIND_DMA_BUF;
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_gpu_count(driver, &count));
  CHECK(count == 0 && strstr(fdbroker_last_error(), library) != NULL);
  printf("      %s\n", fdbroker_last_error());
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_gpu_alloc(owner, driver, 0, 4096, 0, SOON, &memory, &handle));
  CHECK(memory == NULL && strstr(fdbroker_last_error(), library) != NULL);
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_gpu_register(owner, driver, 0, &handle, 0, SOON, &handle));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_gpu_retire(owner, driver, 0, &handle));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_set_gpu_opener(owner, kind, driver, 0));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_set_gpu_opener(owner, kind, driver, FDBROKER_OWNERS_DEVICE));
  if (is_cuda) CODE(FDBROKER_NOT_SUPPORTED, fdbroker_pool_set(owner));
  /* Host memory does not care. */
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, 4096, SOON, &memory, &handle));
  OK(fdbroker_host_free(owner, memory));
}

int main(int count, char **arguments) {
  MUST(count >= 2);
  program = "/proc/self/exe";
  driver_name = arguments[1];
  is_cuda = strcmp(driver_name, "cuda") == 0;
  driver = is_cuda ? FDBROKER_DRIVER_CUDA : FDBROKER_DRIVER_LEVEL_ZERO;
  if (count == 4 && strcmp(arguments[2], "consume") == 0) {
    bytes = 0;
    return consume(arguments[3]);
  }
  begin();
  broker_start(&broker, NULL);
  if (count == 3) {
    owner = open_at(&broker);
    RUN(everything_when_there_is_no_driver_is_not_supported_and_says_why);
    OK(fdbroker_close(owner));
    broker_stop(&broker);
    return end();
  }
  driver_start();
  bytes = granule > 65536 ? granule : 65536;
  owner = open_context(broker.socket);
  /* The driver opens its own fds here, before any count. */
  fdbroker_handle_t handle;
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  void *first = allocate(1, &handle);
  OK(fdbroker_handle_parse(&handle, &info));
  kind = info.kind;
  OK(fdbroker_gpu_free(owner, first));
  EVENTUALLY(ledger(&broker, "held_fds") == 0);

  RUN(memory_when_allocated_is_the_consumers_and_no_fd_stays);
  RUN(handle_when_asked_for_by_pointer_has_its_offset);
  RUN(pointer_when_others_allocated_it_is_registered_once_and_retired);
  RUN(import_when_repeated_is_a_hit_and_counted_as_host_memory_is);
  RUN(import_when_started_is_done_by_tests);
  RUN(threads_when_they_share_at_once_find_their_bytes);
  RUN(arguments_when_not_valid_are_named_and_nothing_is_left);
  RUN(child_when_forked_has_no_gpu_memory);
  if (is_cuda) RUN(pool_when_set_gives_memory_that_can_be_shared);
  RUN(calls_when_the_broker_is_gone_answer_so_and_memory_stays);
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
