/* A soft limit of 32 fds: a call that needs more answers LOCAL_FD_LIMIT and loses nothing; imports need none. */
#define _GNU_SOURCE
#include "check.h"

#define MANY 300
#define PAGE 4096u

static struct broker broker;
static fdbroker_t *owner, *context;
static fdbroker_handle_t handles[MANY];

static void acquiring_more_than_fit_says_so_and_loses_nothing(void) {
  static fdbroker_grant_t grants[MANY];
  static fdbroker_code_t codes[MANY];
  int before = open_fds(), granted = 0;
  for (int round = 0; round < 3; round++) {
    grants[0].struct_size = sizeof grants[0];
    CODE(FDBROKER_LOCAL_FD_LIMIT, fdbroker_acquire_many(context, MANY, handles, SOON, grants, codes));
    granted = 0;
    for (int at = 0; at < MANY; at++) {
      CHECK(codes[at] == FDBROKER_OK || codes[at] == FDBROKER_LOCAL_FD_LIMIT);
      CHECK((codes[at] == FDBROKER_OK) == (grants[at].fd >= 0) && (grants[at].fd >= 0) == (grants[at].lease != 0));
      if (codes[at] != FDBROKER_OK) continue;
      granted++;
      close(grants[at].fd);
      OK(fdbroker_release(context, grants[at].lease));
    }
    CHECK(granted >= 1 && granted < 32 && open_fds() == before);
  }
  CHECK(stats_of(context).leases == 0);
}

static void importing_them_all_works(void) {
  static fdbroker_import_t imports[MANY];
  int before = open_fds();
  OK(fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, imports, NULL));
  for (int at = 0; at < MANY; at++) {
    CHECK(imports[at].ptr != NULL && all_bytes_are(imports[at].ptr, at, PAGE));
    OK(fdbroker_import_release(context, &imports[at]));
  }
  CHECK(open_fds() == before && stats_of(context).pinned == 0);
  OK(fdbroker_empty_cache(context, NULL));
}

static void with_no_fd_left_every_call_says_so_and_works_again_after(void) {
  int taken[32], count = 0;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_import_t import;
  fdbroker_t *none;
  void *memory;
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  while (count < 32 && (taken[count] = dup(0)) >= 0) count++;
  CODE(FDBROKER_LOCAL_FD_LIMIT, fdbroker_acquire(context, &handles[0], SOON, &grant));
  CODE(FDBROKER_LOCAL_FD_LIMIT, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  CODE(FDBROKER_LOCAL_FD_LIMIT, fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, 1, SOON, &memory, NULL));
  CODE(FDBROKER_LOCAL_FD_LIMIT, fdbroker_open(&options, &none));
  while (count > 0) close(taken[--count]);
  OK(fdbroker_acquire(context, &handles[0], SOON, &grant));
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_empty_cache(context, NULL));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  owner = open_at(&broker);
  context = open_at(&broker);
  for (int at = 0; at < MANY; at++) {
    void *memory;
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handles[at]));
    MUST(memory != NULL);
    memset(memory, at, PAGE);
  }
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = 32;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  RUN(acquiring_more_than_fit_says_so_and_loses_nothing);
  RUN(importing_them_all_works);
  RUN(with_no_fd_left_every_call_says_so_and_works_again_after);
  limit.rlim_cur = soft;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  EVENTUALLY(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
