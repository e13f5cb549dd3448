/* Forks beside a thread that imports and releases all the time: no child sees other bytes where an import was, and the memory of each
 * child's own works. The import of one call may be half done in the child. */
#define _GNU_SOURCE
#include "fork.h"

#include <stdatomic.h>

#define PAGE 4096u
/* Imports that stay, each filled with its number from 1. */
#define KEPT 16u
/* Memory that comes and goes, of these many sizes. */
#define SIZES 24u
#define FORKS 1000

static struct broker broker;
static fdbroker_t *context;
static fdbroker_handle_t kept_handles[KEPT], handles[SIZES];
static fdbroker_import_t kept[KEPT];
static atomic_int stop;
static atomic_long rounds, failures;

static size_t size_of(unsigned at) { return (size_t)PAGE << at % 12; }

static void *churn(void *user) {
  unsigned next = (unsigned)(size_t)user;
  fdbroker_import_t open[4] = {0};
  while (!stop) {
    fdbroker_import_t *one = &open[next % 4];
    if (one->pin != 0) failures += fdbroker_import_release(context, one) != FDBROKER_OK;
    failures += fdbroker_import(context, &handles[next % SIZES], FDBROKER_IMPORT_WRITE, SOON, one) != FDBROKER_OK;
    failures += *(volatile unsigned char *)one->ptr != 200;
    if (next % 8 == 0) failures += fdbroker_empty_cache(context, NULL) != FDBROKER_OK;
    next += 7;
    rounds++;
  }
  for (unsigned at = 0; at < 4; at++)
    if (open[at].pin != 0) failures += fdbroker_import_release(context, &open[at]) != FDBROKER_OK;
  return NULL;
}

static const volatile unsigned char *looked_at;

static void ends_well(int signal) {
  (void)signal;
  _exit(0);
}

/* In a child: memory of its own of many sizes, and a look at one import, which ends it. */
static void checks_its_memory_and_looks(void) {
  unsigned char *own[64];
  for (unsigned at = 0; at < 64; at++) {
    size_t size = (size_t)64 << at % 13;
    own[at] = malloc(size);
    if (own[at] == NULL) _exit(3);
    memset(own[at], 100 + (int)at, size);
  }
  for (unsigned at = 0; at < 64; at++) {
    if (!all_bytes_are(own[at], 100 + (int)at, (size_t)64 << at % 13)) _exit(4);
    free(own[at]);
  }
  struct sigaction action = {.sa_handler = ends_well};
  if (sigaction(SIGSEGV, &action, NULL) != 0) _exit(5);
  (void)*looked_at;
  _exit(6);
}

static void in_a_thousand_children_of_a_busy_parent_memory_works_and_no_import_is_seen(void) {
  pthread_t threads[2];
  for (size_t at = 0; at < 2; at++) MUST(pthread_create(&threads[at], NULL, churn, (void *)(at * 3)) == 0);
  for (int round = 0; round < FORKS && bad_checks < 5; round++) {
    looked_at = (unsigned char *)kept[round % KEPT].ptr + round % PAGE;
    CHECK(child_does(checks_its_memory_and_looks) == 0);
  }
  stop = 1;
  for (int at = 0; at < 2; at++) MUST(pthread_join(threads[at], NULL) == 0);
  CHECK(failures == 0 && rounds > 0);
  for (unsigned at = 0; at < KEPT; at++) CHECK(all_bytes_are(kept[at].ptr, (int)at + 1, PAGE));
}

static void children_import(void) {
  fdbroker_t *own = open_at(&broker);
  fdbroker_import_t import;
  for (unsigned at = 0; at < KEPT; at++) {
    if (fdbroker_import(own, &kept_handles[at], FDBROKER_IMPORT_READ, SOON, &import) != FDBROKER_OK) _exit(3);
    if (!all_bytes_are(import.ptr, (int)at + 1, PAGE)) _exit(4);
  }
  if (fdbroker_close(own) != FDBROKER_OK) _exit(5);
}

static void children_forked_in_the_middle_of_an_import_import_anew(void) {
  pthread_t threads[2];
  stop = 0;
  for (size_t at = 0; at < 2; at++) MUST(pthread_create(&threads[at], NULL, churn, (void *)(at * 3)) == 0);
  for (int round = 0; round < 50 && bad_checks < 5; round++) CHECK(child_does(children_import) == 0);
  stop = 1;
  for (int at = 0; at < 2; at++) MUST(pthread_join(threads[at], NULL) == 0);
  CHECK(failures == 0);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  fdbroker_t *owner = open_at(&broker);
  void *memory;
  for (unsigned at = 0; at < KEPT; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, PAGE, SOON, &memory, &kept_handles[at]));
    memset(memory, (int)at + 1, PAGE);
  }
  for (unsigned at = 0; at < SIZES; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, size_of(at), SOON, &memory, &handles[at]));
    memset(memory, 200, size_of(at));
  }
  context = open_at(&broker);
  for (unsigned at = 0; at < KEPT; at++)
    OK(fdbroker_import(context, &kept_handles[at], FDBROKER_IMPORT_READ, SOON, &kept[at]));
  RUN(in_a_thousand_children_of_a_busy_parent_memory_works_and_no_import_is_seen);
  RUN(children_forked_in_the_middle_of_an_import_import_anew);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
