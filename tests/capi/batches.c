/* What many buffers share: leases a message, but none waits for a call that does not come; neighbours a mapping. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <sys/uio.h>

#define PAGE 4096u
#define BUFFERS 40

static struct broker broker;

struct pair {
  fdbroker_t *owner, *consumer;
  fdbroker_handle_t handles[BUFFERS];
  uint64_t leases[BUFFERS];
  atomic_int drained;
};

static void count_drained(void *user, const fdbroker_notice_t *notice) {
  struct pair *pair = user;
  pair->drained += notice->kind == FDBROKER_NOTICE_DRAINED;
}

/* An owner of some buffers, and a consumer, opened with flags, that holds them all: as mapped, or with open fds. */
static void hold(struct pair *pair, uint32_t flags, int fds[BUFFERS]) {
  fdbroker_allocation_t allocations[BUFFERS];
  fdbroker_grant_t grants[BUFFERS];
  int fd = sealed_memfd(PAGE, 1), sent[BUFFERS];
  memset(pair, 0, sizeof *pair);
  pair->owner = open_at(&broker);
  pair->consumer = open_with(&broker, flags);
  OK(fdbroker_set_notice_callback(pair->owner, count_drained, pair));
  for (int at = 0; at < BUFFERS; at++) {
    allocations[at] = memfd_allocation(PAGE);
    sent[at] = fd;
  }
  OK(fdbroker_register_many(pair->owner, BUFFERS, allocations, sent, SOON, pair->handles, NULL));
  close(fd);
  memset(grants, 0, sizeof grants);
  grants[0].struct_size = sizeof grants[0];
  OK(fdbroker_acquire_many(pair->consumer, BUFFERS, pair->handles, SOON, grants, NULL));
  for (int at = 0; at < BUFFERS; at++) {
    pair->leases[at] = grants[at].lease;
    if (fds != NULL) {
      fds[at] = grants[at].fd;
      continue;
    }
    close(grants[at].fd);
    OK(fdbroker_lease_mapped(pair->consumer, grants[at].lease));
  }
}

/* The consumer's only calls. */
static void give_all_back(struct pair *pair) {
  for (int at = 0; at < BUFFERS; at++) OK(fdbroker_release(pair->consumer, pair->leases[at]));
}

static void leave(struct pair *pair) {
  OK(fdbroker_close(pair->consumer));
  OK(fdbroker_close(pair->owner));
}

static const uint32_t modes[] = {0, FDBROKER_OPEN_DISPATCH, FDBROKER_OPEN_RECALL_THREAD};
#define MODES (sizeof modes / sizeof *modes)

static void mapped_leases_that_are_told_one_by_one_all_arrive(void) {
  for (size_t mode = 0; mode < MODES; mode++) {
    struct pair pair;
    hold(&pair, modes[mode], NULL);
    EVENTUALLY(ledger(&broker, "mapped_leases") == BUFFERS && ledger(&broker, "open_leases") == 0);
    leave(&pair);
    EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
  }
}

static void releases_without_another_call_all_arrive(void) {
  for (size_t mode = 0; mode < MODES; mode++) {
    struct pair pair;
    hold(&pair, modes[mode], NULL);
    give_all_back(&pair);
    EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
    leave(&pair);
  }
}

static void releases_of_open_leases_all_arrive(void) {
  for (size_t mode = 0; mode < MODES; mode++) {
    struct pair pair;
    int fds[BUFFERS];
    hold(&pair, modes[mode], fds);
    for (int at = 0; at < BUFFERS; at++) close(fds[at]);
    give_all_back(&pair);
    EVENTUALLY(ledger(&broker, "open_leases") == 0);
    leave(&pair);
  }
}

static void one_release_of_what_has_ended_drains_the_owner(void) {
  for (size_t mode = 0; mode < MODES; mode++) {
    struct pair pair;
    hold(&pair, modes[mode], NULL);
    int32_t drained[BUFFERS];
    for (int at = 0; at < BUFFERS; at++)
      OK(fdbroker_unregister_drained(pair.owner, &pair.handles[at], &drained[at]));
    for (int at = 0; at < BUFFERS; at++) {
      CHECK(drained[at] == 0 && pair.drained == at);
      OK(fdbroker_release(pair.consumer, pair.leases[at]));
      EVENTUALLY(pair.drained == at + 1);
    }
    leave(&pair);
  }
}

static void one_release_of_an_import_drains_the_owner(void) {
  for (size_t mode = 0; mode < MODES; mode++) {
    struct pair pair;
    fdbroker_import_t import;
    hold(&pair, modes[mode], NULL);
    give_all_back(&pair);
    for (int at = 0; at < 4; at++) {
      int32_t drained = 1;
      OK(fdbroker_import(pair.consumer, &pair.handles[at], FDBROKER_IMPORT_NO_CACHE, SOON, &import));
      OK(fdbroker_unregister_drained(pair.owner, &pair.handles[at], &drained));
      CHECK(drained == 0 && pair.drained == at);
      OK(fdbroker_import_release(pair.consumer, &import));
      EVENTUALLY(pair.drained == at + 1);
    }
    leave(&pair);
  }
}

static atomic_int is_inside, may_end;

static void hang(void *user, const fdbroker_notice_t *notice) {
  (void)user;
  if (notice->kind != FDBROKER_NOTICE_REVOKED) return;
  is_inside = 1;
  while (!may_end) nap_ms(1);
}

static void releases_arrive_while_a_callback_does_not_end(void) {
  struct pair pair;
  is_inside = may_end = 0;
  hold(&pair, 0, NULL);
  OK(fdbroker_set_notice_callback(pair.consumer, hang, NULL));
  OK(fdbroker_unregister(pair.owner, &pair.handles[0]));
  EVENTUALLY(is_inside == 1);
  give_all_back(&pair);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
  may_end = 1;
  leave(&pair);
}

/* Whether it can be read: addresses that the library has reserved are mappings, too. */
static int is_mapped(void *page) {
  char byte;
  struct iovec into = {&byte, 1}, from = {page, 1};
  return process_vm_readv(getpid(), &into, 1, &from, 1, 0) == 1;
}

static void ranges_of_one_file_are_mapped_together_and_unmapped_one_by_one(void) {
  fdbroker_t *owner = open_at(&broker), *consumer = open_at(&broker);
  fdbroker_allocation_t allocations[BUFFERS];
  fdbroker_handle_t handles[BUFFERS];
  fdbroker_import_t imports[BUFFERS];
  int fd = sealed_memfd(BUFFERS * PAGE, 0), fds[BUFFERS];
  char *memory = mmap(NULL, BUFFERS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(memory != MAP_FAILED);
  for (int at = 0; at < BUFFERS; at++) {
    memset(memory + at * PAGE, at, PAGE);
    allocations[at] = memfd_allocation(PAGE);
    allocations[at].fd_offset = (uint64_t)at * PAGE;
    allocations[at].base = 0x50000000u + (uint64_t)at * PAGE;
    fds[at] = fd;
  }
  OK(fdbroker_register_many(owner, BUFFERS, allocations, fds, SOON, handles, NULL));
  /* One stands alone: its neighbours are two rows. */
  fdbroker_handle_t alone = handles[10];
  handles[10] = handles[0];
  handles[0] = alone;
  OK(fdbroker_import_many(consumer, BUFFERS, handles, FDBROKER_IMPORT_NO_CACHE, SOON, imports, NULL));
  for (int at = 0; at < BUFFERS; at++) {
    int page = at == 0 ? 10 : at == 10 ? 0 : at;
    CHECK(imports[at].size_bytes == PAGE && all_bytes_are(imports[at].ptr, page, PAGE));
    int follows = at > 0 && (char *)imports[at].ptr == (char *)imports[at - 1].ptr + PAGE;
    if (at > 1 && at != 10 && at != 11) CHECK(follows);
  }
  for (int at = 1; at < BUFFERS; at += 2) {
    void *page = imports[at].ptr;
    OK(fdbroker_import_release(consumer, &imports[at]));
    CHECK(!is_mapped(page));
  }
  for (int at = 0; at < BUFFERS; at += 2) {
    int page = at == 0 ? 10 : at == 10 ? 0 : at;
    CHECK(all_bytes_are(imports[at].ptr, page, PAGE));
    OK(fdbroker_import_release(consumer, &imports[at]));
  }
  CHECK(stats_of(consumer).entries == 0);
  munmap(memory, BUFFERS * PAGE);
  close(fd);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(owner));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(mapped_leases_that_are_told_one_by_one_all_arrive);
  RUN(releases_without_another_call_all_arrive);
  RUN(releases_of_open_leases_all_arrive);
  RUN(one_release_of_what_has_ended_drains_the_owner);
  RUN(one_release_of_an_import_drains_the_owner);
  RUN(releases_arrive_while_a_callback_does_not_end);
  RUN(ranges_of_one_file_are_mapped_together_and_unmapped_one_by_one);
  broker_stop(&broker);
  return end();
}
