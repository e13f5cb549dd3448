/* For progress engines: requests without waiting, and events without a library thread. */
#define _GNU_SOURCE
#include "check.h"

#define PAGE 4096u

static struct broker broker;

static fdbroker_code_t test_until_done(fdbroker_request_t *request, fdbroker_grant_t *grants, fdbroker_code_t *codes) {
  fdbroker_code_t code;
  unsigned waited = 0;
  while ((code = fdbroker_request_test(request, grants, codes)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  return code;
}

static void a_request_started_then_tested_is_done(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handles[3] = {{{0}}};
  void *memory;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handles[0]));
  handles[2] = handles[0];
  fdbroker_request_t *request;
  fdbroker_grant_t grants[3];
  fdbroker_code_t codes[3] = {77, 77, 77};
  grants[0].struct_size = sizeof grants[0];
  OK(fdbroker_acquire_start(context, 3, handles, SOON, &request));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_request_test(request, NULL, NULL));
  CODE(FDBROKER_BAD_HANDLE, test_until_done(request, grants, codes));
  CHECK(codes[0] == FDBROKER_OK && codes[1] == FDBROKER_BAD_HANDLE && codes[2] == FDBROKER_OK);
  CHECK(grants[0].fd >= 0 && grants[1].fd == -1 && grants[2].fd >= 0 && grants[0].lease != grants[2].lease);
  for (int at = 0; at < 3; at += 2) {
    close(grants[at].fd);
    OK(fdbroker_release(context, grants[at].lease));
  }
  CHECK(stats_of(context).leases == 0);
  OK(fdbroker_close(context));
}

static void a_request_cancelled_leaves_nothing(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handles[40];
  void *memory;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handles[0]));
  for (int at = 1; at < 40; at++) handles[at] = handles[0];
  int before = open_fds();
  for (int round = 0; round < 20; round++) {
    fdbroker_request_t *request;
    fdbroker_grant_t grants[40];
    grants[0].struct_size = sizeof grants[0];
    OK(fdbroker_acquire_start(context, 40, handles, SOON, &request));
    if (round % 3 == 1 && fdbroker_request_test(request, grants, NULL) == FDBROKER_OK) {
      for (int at = 0; at < 40; at++) {
        close(grants[at].fd);
        OK(fdbroker_release(context, grants[at].lease));
      }
      continue;
    }
    if (round % 3 == 2) nap_ms(2);
    OK(fdbroker_request_cancel(request));
  }
  CHECK(stats_of(context).leases == 0);
  EVENTUALLY(ledger(&broker, "open_leases") == 0);
  EVENTUALLY(open_fds() == before);
  OK(fdbroker_close(context));
}

struct seen {
  int recalls, notices, waits_refused;
  pthread_t thread;
  fdbroker_t *context;
};

static void note(void *user, const fdbroker_notice_t *notice) {
  struct seen *seen = user;
  seen->thread = pthread_self();
  seen->notices += notice->kind == FDBROKER_NOTICE_DRAINED;
  void *memory;
  fdbroker_handle_t handle;
  fdbroker_code_t code =
      fdbroker_host_alloc(seen->context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle);
  seen->waits_refused += code == FDBROKER_NOT_SUPPORTED && memory == NULL;
}

static void imports_started_then_tested_are_done_and_in_the_cache(void) {
  fdbroker_t *owner = open_at(&broker), *context = open_at(&broker);
  fdbroker_handle_t handles[4] = {{{0}}};
  fdbroker_import_t imports[4], again;
  fdbroker_code_t codes[4] = {77, 77, 77, 77}, code;
  fdbroker_request_t *request;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  void *memory[2];
  for (int at = 0; at < 2; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory[at], &handles[at]));
    memset(memory[at], 'a' + at, PAGE);
  }
  handles[3] = handles[1];
  /* The first is a hit, the third no handle, the last the same as the second. */
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &again));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_import_start(context, 4, handles, 77, SOON, &request));
  CHECK(request == NULL);
  OK(fdbroker_import_start(context, 4, handles, FDBROKER_IMPORT_READ, SOON, &request));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_import_test(request, NULL, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_request_test(request, &grant, NULL));
  unsigned waited = 0;
  while ((code = fdbroker_import_test(request, imports, codes)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  CODE(FDBROKER_BAD_HANDLE, code);
  CHECK(codes[0] == FDBROKER_OK && codes[1] == FDBROKER_OK && codes[2] == FDBROKER_BAD_HANDLE && codes[3] == FDBROKER_OK);
  CHECK(imports[0].ptr == again.ptr && imports[2].ptr == NULL && imports[1].ptr == imports[3].ptr);
  CHECK(all_bytes_are(imports[0].ptr, 'a', PAGE) && all_bytes_are(imports[1].ptr, 'b', PAGE));
  CHECK(fdbroker_import_is_current(context, &imports[1]) == 1);
  OK(fdbroker_import_release(context, &again));
  for (int at = 0; at < 4; at++)
    if (at != 2) OK(fdbroker_import_release(context, &imports[at]));
  CHECK(stats_of(context).pinned == 0 && stats_of(context).entries == 2);
  /* All hits: done at the first test, without a message. */
  OK(fdbroker_import_start(context, 2, handles, FDBROKER_IMPORT_READ, 0, &request));
  OK(fdbroker_import_test(request, imports, NULL));
  for (int at = 0; at < 2; at++) OK(fdbroker_import_release(context, &imports[at]));
  /* Cancelled at any time, it leaves nothing. */
  int fds = open_fds();
  for (int round = 0; round < 20; round++) {
    OK(fdbroker_empty_cache(context, NULL));
    OK(fdbroker_import_start(context, 2, handles, FDBROKER_IMPORT_READ, SOON, &request));
    for (int turn = 0; turn < round % 4; turn++) {
      code = fdbroker_import_test(request, imports, NULL);
      if (code != FDBROKER_AGAIN) break;
      nap_ms(1);
    }
    if (round % 4 == 0 || code == FDBROKER_AGAIN)
      OK(fdbroker_request_cancel(request));
    else
      for (int at = 0; at < 2; at++) OK(fdbroker_import_release(context, &imports[at]));
  }
  CHECK(stats_of(context).pinned == 0);
  OK(fdbroker_empty_cache(context, NULL));
  EVENTUALLY(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  CHECK(open_fds() == fds);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
}

#define SHARED 600

static fdbroker_code_t registered(fdbroker_request_t *request, fdbroker_handle_t *handles, fdbroker_code_t *codes) {
  fdbroker_code_t code;
  unsigned waited = 0;
  while ((code = fdbroker_register_test(request, handles, codes)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  return code;
}

static void registrations_started_then_tested_are_done_with(uint32_t flags) {
  static fdbroker_allocation_t allocations[SHARED];
  static fdbroker_handle_t handles[SHARED];
  static fdbroker_code_t codes[SHARED];
  static int fds[SHARED];
  fdbroker_t *context = open_with(&broker, flags), *other = open_at(&broker);
  fdbroker_request_t *request;
  fdbroker_import_t import;
  int before = open_fds(), fd = sealed_memfd(SHARED * PAGE, 'r');
  for (int at = 0; at < SHARED; at++) {
    allocations[at] = memfd_allocation(PAGE);
    allocations[at].fd_offset = (uint64_t)at * PAGE;
    fds[at] = fd;
  }
  allocations[7].kind = 77;                         /* no kind */
  allocations[8].fd_offset = SHARED * PAGE;         /* behind the fd's end */
  allocations[9].base = allocations[10].base = 0x10000; /* the same, twice */
  allocations[10].fd_offset = allocations[9].fd_offset;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_register_start(context, SHARED, allocations, NULL, SOON, &request));
  CHECK(request == NULL);
  OK(fdbroker_register_start(context, SHARED, allocations, fds, SOON, &request));
  close(fd);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_register_test(request, NULL, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_import_test(request, &import, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, registered(request, handles, codes));
  CHECK(codes[7] == FDBROKER_INVALID_ARGUMENT && codes[8] == FDBROKER_UNSUPPORTED_FD);
  CHECK(fdbroker_handle_same(&handles[9], &handles[10]) == 1 && all_bytes_are(&handles[7], 0, sizeof handles[7]));
  CHECK(open_fds() == before);
  for (int at = 0; at < SHARED; at++) {
    if (at == 7 || at == 8) continue;
    CHECK(codes[at] == FDBROKER_OK);
    if (at % 100 != 9) continue;
    OK(fdbroker_import(other, &handles[at], FDBROKER_IMPORT_READ, SOON, &import));
    CHECK(import.ptr != NULL && all_bytes_are(import.ptr, 'r', PAGE));
    OK(fdbroker_import_release(other, &import));
  }
  OK(fdbroker_close(other));
  OK(fdbroker_close(context));
  EVENTUALLY(ledger(&broker, "allocations") == 0);
}

static void registrations_started_then_tested_are_done(void) { registrations_started_then_tested_are_done_with(0); }

static void so_they_are_in_dispatch_mode(void) { registrations_started_then_tested_are_done_with(FDBROKER_OPEN_DISPATCH); }

static void a_registration_cancelled_leaves_nothing(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_allocation_t allocations[3] = {memfd_allocation(PAGE), memfd_allocation(PAGE), memfd_allocation(PAGE)};
  fdbroker_handle_t handles[3];
  fdbroker_request_t *request;
  int fd = sealed_memfd(PAGE, 'c'), fds[3] = {fd, fd, fd}, before = open_fds();
  for (int round = 0; round < 30; round++) {
    fdbroker_code_t code = FDBROKER_AGAIN;
    OK(fdbroker_register_start(context, 3, allocations, fds, SOON, &request));
    if (round % 5 == 4) nap_ms(2);
    for (int turn = 0; code == FDBROKER_AGAIN && turn < round % 4; turn++) {
      code = fdbroker_register_test(request, handles, NULL);
      if (code == FDBROKER_AGAIN) nap_ms(1);
    }
    if (code == FDBROKER_AGAIN)
      OK(fdbroker_request_cancel(request));
    else
      for (int at = 0; at < 3; at++) OK(fdbroker_unregister(context, &handles[at]));
  }
  EVENTUALLY(ledger(&broker, "allocations") == 0 && ledger(&broker, "held_fds") == 0);
  CHECK(open_fds() == before);
  close(fd);
  OK(fdbroker_close(context));
}

/* Those that nobody tests have all the credits, and then all the memory: others get both as soon as they can. */
static void others_register_while_nobody_tests(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_allocation_t allocations[40];
  fdbroker_handle_t handles[40], mine;
  fdbroker_request_t *request;
  int fd = sealed_memfd(PAGE, 'o'), fds[40];
  for (int at = 0; at < 40; at++) {
    allocations[at] = memfd_allocation(PAGE);
    fds[at] = fd;
  }
  allocations[0].base = 0x20000;
  OK(fdbroker_register_start(context, 40, allocations, fds, SOON, &request));
  OK(fdbroker_register(context, &allocations[1], fd, SOON, &mine));
  CODE(FDBROKER_TIMED_OUT, fdbroker_register(context, &allocations[0], fd, 20, &mine));
  OK(registered(request, handles, NULL));
  OK(fdbroker_register(context, &allocations[0], fd, SOON, &mine));
  CHECK(fdbroker_handle_same(&mine, &handles[0]) == 1);
  OK(fdbroker_register_start(context, 1, allocations, fds, 0, &request));
  OK(fdbroker_register_test(request, &mine, NULL));
  CHECK(fdbroker_handle_same(&mine, &handles[0]) == 1);
  close(fd);
  OK(fdbroker_close(context));
}

static void in_dispatch_mode_no_thread_is_made_and_the_fd_tells_when(void) {
  int before = threads(), fds = open_fds();
  fdbroker_t *other = open_at(&broker);
  int with_other = threads();
  fdbroker_t *context = open_with(&broker, FDBROKER_OPEN_DISPATCH);
  CHECK(threads() == with_other && with_other == before + 1);
  struct seen seen = {.context = context};
  OK(fdbroker_set_notice_callback(context, note, &seen));
  struct pollfd ready = {.fd = fdbroker_event_fd(context), .events = POLLIN};
  CHECK(ready.fd >= 0 && fdbroker_event_fd(other) == -1);
  OK(fdbroker_dispatch(context, 0));

  fdbroker_handle_t handle;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  int fd = sealed_memfd(PAGE, 1);
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  OK(fdbroker_register(context, &allocation, fd, SOON, &handle));
  OK(fdbroker_acquire(other, &handle, SOON, &grant));
  close(grant.fd);
  OK(fdbroker_unregister(context, &handle));
  CHECK(seen.notices == 0);
  OK(fdbroker_release(other, grant.lease));
  for (int turn = 0; turn < 1000 && seen.notices == 0; turn++) {
    CHECK(poll(&ready, 1, (int)SOON) == 1 && (ready.revents & POLLIN) != 0);
    OK(fdbroker_dispatch(context, 0));
  }
  CHECK(seen.notices == 1 && seen.waits_refused >= 1 && pthread_equal(seen.thread, pthread_self()));
  close(fd);
  OK(fdbroker_close(context));
  OK(fdbroker_close(other));
  EVENTUALLY(threads() == before);
  CHECK(open_fds() == fds);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(a_request_started_then_tested_is_done);
  RUN(a_request_cancelled_leaves_nothing);
  RUN(imports_started_then_tested_are_done_and_in_the_cache);
  RUN(registrations_started_then_tested_are_done);
  RUN(so_they_are_in_dispatch_mode);
  RUN(a_registration_cancelled_leaves_nothing);
  RUN(others_register_while_nobody_tests);
  RUN(in_dispatch_mode_no_thread_is_made_and_the_fd_tells_when);
  broker_stop(&broker);
  return end();
}
