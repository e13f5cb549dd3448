/* A checkpoint: suspend closes what is idle and names what is in use, resume opens it again and names what has ended. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <sys/uio.h>

#define PAGE 4096u
#define MANY 40

static struct broker broker;
static fdbroker_t *owner;
static fdbroker_handle_t handles[MANY];
static void *memory[MANY];

static void share(void) {
  owner = open_at(&broker);
  for (int at = 0; at < MANY; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory[at], &handles[at]));
    memset(memory[at], at, PAGE);
  }
}

/* Imports all and keeps them in the cache. */
static void fill(fdbroker_t *context) {
  fdbroker_import_t imports[MANY];
  OK(fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, imports, NULL));
  for (int at = 0; at < MANY; at++) {
    CHECK(all_bytes_are(imports[at].ptr, at, PAGE));
    OK(fdbroker_import_release(context, &imports[at]));
  }
}

/* Whether these are all in the cache. */
static int hits(fdbroker_t *context, int from, int to) {
  fdbroker_import_t import;
  int count = 0;
  for (int at = from; at < to; at++)
    if (fdbroker_import_hit(context, &handles[at], FDBROKER_IMPORT_READ, &import) == FDBROKER_OK) {
      count += all_bytes_are(import.ptr, at, PAGE);
      OK(fdbroker_import_release(context, &import));
    }
  return count;
}

/* Whether it can be read: addresses that the library has reserved are mappings, too. */
static int is_mapped(void *address) {
  char byte;
  struct iovec into = {&byte, 1}, from = {address, 1};
  return process_vm_readv(getpid(), &into, 1, &from, 1, 0) == 1;
}

static void idle_memory_is_closed_and_what_is_in_use_is_named(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t named[3];
  fdbroker_import_t used, idle, other;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  size_t count = 77;
  int fds = open_fds();
  fill(context);
  OK(fdbroker_import_hit(context, &handles[1], FDBROKER_IMPORT_READ, &idle));
  void *address = idle.ptr;
  OK(fdbroker_import_release(context, &idle));
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &used));
  OK(fdbroker_acquire(context, &handles[2], SOON, &grant));

  CODE(FDBROKER_AGAIN, fdbroker_suspend(context, SOON, 3, named, &count));
  CHECK(strstr(fdbroker_last_error(), "2 allocations are in use") != NULL);
  CHECK(count == 2 && stats_of(context).entries == 1 && !is_mapped(address));
  CHECK(fdbroker_handle_same(&named[0], &handles[0]) == 1 || fdbroker_handle_same(&named[1], &handles[0]) == 1);
  CHECK(fdbroker_handle_same(&named[0], &handles[2]) == 1 || fdbroker_handle_same(&named[1], &handles[2]) == 1);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 1 && ledger(&broker, "open_leases") == 1);

  /* Nothing is opened; what is in use is as it was. */
  CODE(FDBROKER_AGAIN, fdbroker_import(context, &handles[1], FDBROKER_IMPORT_READ, SOON, &idle));
  CHECK(idle.ptr == NULL && strstr(fdbroker_last_error(), "fdbroker_resume") != NULL);
  CODE(FDBROKER_AGAIN, fdbroker_import_hit(context, &handles[1], FDBROKER_IMPORT_READ, &idle));
  fdbroker_code_t codes[2];
  fdbroker_import_t imports[2];
  fdbroker_request_t *request;
  CODE(FDBROKER_AGAIN, fdbroker_import_many(context, 2, handles, FDBROKER_IMPORT_READ, SOON, imports, codes));
  CHECK(codes[0] == FDBROKER_OK && codes[1] == FDBROKER_AGAIN && imports[0].ptr == used.ptr);
  OK(fdbroker_import_release(context, &imports[0]));
  OK(fdbroker_import_start(context, 1, &handles[1], FDBROKER_IMPORT_READ, SOON, &request));
  /* A request that is done never says AGAIN: who tests it then, tests freed memory. */
  fdbroker_code_t code;
  unsigned waited = 0;
  while ((code = fdbroker_import_test(request, imports, codes)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  CODE(FDBROKER_CANCELLED, code);
  CHECK(strstr(fdbroker_last_error(), "the import cache is suspended") != NULL);
  CHECK(codes[0] == FDBROKER_CANCELLED && imports[0].ptr == NULL);
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &other));
  CHECK(other.ptr == used.ptr && fdbroker_import_is_current(context, &used) == 1);
  OK(fdbroker_import_release(context, &other));

  CHECK(is_mapped(used.ptr) && stats_of(context).pinned == 1);
  address = used.ptr;
  OK(fdbroker_import_release(context, &used));
  CHECK(!is_mapped(address) && stats_of(context).entries == 0);
  CODE(FDBROKER_AGAIN, fdbroker_suspend(context, SOON, 0, NULL, &count));
  CHECK(count == 1);
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  OK(fdbroker_suspend(context, SOON, 3, named, &count));
  CHECK(count == 0 && all_bytes_are(named, 0, sizeof named) && open_fds() == fds);
  OK(fdbroker_flush(context, SOON));
  CHECK(ledger(&broker, "mapped_leases") == 0 && ledger(&broker, "open_leases") == 0);

  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(count == 0 && stats_of(context).entries == MANY && hits(context, 0, MANY) == MANY);
  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_resume(context, SOON, 1, NULL, NULL, &count));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_suspend(context, SOON, 0, NULL, NULL));
  count = 77;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_suspend(context, SOON, (size_t)-1, named, &count));
  CHECK(count == 0 && hits(context, 0, MANY) == MANY);
  OK(fdbroker_close(context));
}

static void what_has_ended_meanwhile_is_named(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t named[2];
  fdbroker_code_t codes[2];
  size_t count;
  fill(context);
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  for (int at = MANY - 3; at < MANY; at++) OK(fdbroker_host_free(owner, memory[at]));
  OK(fdbroker_flush(owner, SOON));
  CODE(FDBROKER_STALE, fdbroker_resume(context, SOON, 2, named, codes, &count));
  CHECK(count == 3 && codes[0] == FDBROKER_STALE && codes[1] == FDBROKER_STALE);
  for (int at = 0; at < 2; at++) {
    int is_one = 0;
    for (int ended = MANY - 3; ended < MANY; ended++) is_one += fdbroker_handle_same(&named[at], &handles[ended]);
    CHECK(is_one == 1);
  }
  CHECK(stats_of(context).entries == MANY - 3 && hits(context, 0, MANY) == MANY - 3);
  for (int at = MANY - 3; at < MANY; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory[at], &handles[at]));
    memset(memory[at], at, PAGE);
  }
  OK(fdbroker_close(context));
}

struct driver {
  atomic_int opened, closed;
};

static fdbroker_code_t open_memory(void *user, const fdbroker_grant_t *grant, uint32_t flags, fdbroker_opened_t *opened) {
  struct driver *driver = user;
  opened->ptr = mmap(NULL, PAGE, flags == FDBROKER_IMPORT_WRITE ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                     grant->fd, (off_t)grant->fd_offset);
  if (opened->ptr == MAP_FAILED) return FDBROKER_INTERNAL;
  opened->flags = FDBROKER_OPENED_RANGE;
  driver->opened++;
  return FDBROKER_OK;
}

static void close_memory(void *user, const fdbroker_opened_t *opened) {
  struct driver *driver = user;
  munmap(opened->ptr, PAGE);
  driver->closed++;
}

static void openers_close_and_open_again(void) {
  struct driver driver = {0};
  fdbroker_t *context = open_at(&broker);
  fdbroker_import_t written;
  size_t count;
  OK(fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, open_memory, close_memory, &driver));
  fill(context);
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_WRITE, SOON, &written));
  OK(fdbroker_import_release(context, &written));
  CHECK(driver.opened == MANY + 1 && driver.closed == 1);
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  CHECK(driver.closed == MANY + 1);
  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(driver.opened == 2 * MANY + 1 && hits(context, 0, MANY) == MANY);
  OK(fdbroker_import_hit(context, &handles[0], FDBROKER_IMPORT_WRITE, &written));
  OK(fdbroker_import_release(context, &written));
  OK(fdbroker_close(context));
  CHECK(driver.closed == driver.opened);
}

static atomic_int stops, imported;

static void *import_all_the_time(void *context) {
  fdbroker_import_t import;
  for (int at = 0; !stops; at = (at + 1) % MANY) {
    fdbroker_code_t code = fdbroker_import(context, &handles[at], FDBROKER_IMPORT_READ, SOON, &import);
    if (code == FDBROKER_AGAIN) {
      nap_ms(1);
      continue;
    }
    OK(code);
    CHECK(all_bytes_are(import.ptr, at, PAGE));
    OK(fdbroker_import_release(context, &import));
    imported++;
  }
  return NULL;
}

static void other_threads_import_meanwhile(void) {
  fdbroker_t *context = open_at(&broker);
  pthread_t thread[3];
  size_t count;
  stops = 0;
  for (int at = 0; at < 3; at++) MUST(pthread_create(&thread[at], NULL, import_all_the_time, context) == 0);
  for (int round = 0; round < 20; round++) {
    int before = imported;
    EVENTUALLY(imported > before);
    EVENTUALLY(fdbroker_suspend(context, SOON, 0, NULL, &count) == FDBROKER_OK);
    CHECK(stats_of(context).entries == 0 && stats_of(context).pinned == 0);
    OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  }
  stops = 1;
  for (int at = 0; at < 3; at++) pthread_join(thread[at], NULL);
  OK(fdbroker_close(context));
}

static int recalled;

static fdbroker_code_t export_again(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  (void)recall;
  recalled++;
  answer->fd = fcntl(*(int *)user, F_DUPFD_CLOEXEC, 0);
  return FDBROKER_OK;
}

/* The broker holds one fd of this process: a second one costs a recall of the first. */
static void recalls_are_answered_and_the_connection_stays(void) {
  fdbroker_options_t options;
  fdbroker_t *context = NULL;
  fdbroker_handle_t mine[2];
  fdbroker_import_t import;
  size_t count;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.max_held_fds = 1;
  options.flags = FDBROKER_OPEN_DISPATCH;
  OK(fdbroker_open(&options, &context));
  MUST(context != NULL);
  int fd = sealed_memfd(PAGE, 9), event = fdbroker_event_fd(context);
  OK(fdbroker_set_recall_callback(context, export_again, &fd));
  for (int at = 0; at < 2; at++) {
    fdbroker_allocation_t allocation = memfd_allocation(PAGE);
    allocation.flags = FDBROKER_RECALLABLE;
    OK(fdbroker_register(context, &allocation, fd, SOON, &mine[at]));
  }
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  CHECK(fdbroker_is_connected(context) == 1 && fdbroker_event_fd(context) == event);
  fdbroker_request_t *request;
  fdbroker_code_t code;
  unsigned waited = 0;
  OK(fdbroker_import_start(owner, 1, &mine[0], FDBROKER_IMPORT_READ, SOON, &request));
  while ((code = fdbroker_import_test(request, &import, NULL)) == FDBROKER_AGAIN && waited++ < SOON)
    OK(fdbroker_dispatch(context, 1));
  OK(code);
  CHECK(recalled >= 1 && all_bytes_are(import.ptr, 9, PAGE));
  OK(fdbroker_import_release(owner, &import));
  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  OK(fdbroker_close(context));
  close(fd);
}

/* The checkpoint outlasts the broker. */
static void the_next_broker_gives_it_back(void) {
  fdbroker_t *context = open_at(&broker);
  size_t count = 77;
  fill(context);
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  broker_kill(&broker);
  EVENTUALLY(fdbroker_is_connected(context) == 0);
  OK(fdbroker_suspend(context, SOON, 0, NULL, &count));
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(count == 0);
  broker_start_in(&broker, NULL);
  EVENTUALLY(fdbroker_is_connected(context) == 1 && fdbroker_is_connected(owner) == 1);
  OK(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(count == 0 && hits(context, 0, MANY) == MANY);
  OK(fdbroker_close(context));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  share();
  RUN(idle_memory_is_closed_and_what_is_in_use_is_named);
  RUN(what_has_ended_meanwhile_is_named);
  RUN(openers_close_and_open_again);
  RUN(other_threads_import_meanwhile);
  RUN(recalls_are_answered_and_the_connection_stays);
  RUN(the_next_broker_gives_it_back);
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
