/* A broker that is stopped (SIGSTOP): every call that waits is back at its deadline, and when the broker goes on, so does
 * everything else. usage: stopped [MILLISECONDS THAT IT STAYS STOPPED AT LEAST] */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>

#define PAGE 4096u
/* Deadlines hold within 50 ms; a hang takes longer than this, and a loaded machine does not. */
#define LATE_MS 1000
#define UNREGISTERED 3

static struct broker broker;
static long stopped_ms = 1000;

static long now_ms(void) {
  struct timespec now;
  MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A call that times out, within LATE_MS of its deadline. */
#define TIMES_OUT(deadline, call) \
  do { \
    long begun_ = now_ms(); \
    CODE(FDBROKER_TIMED_OUT, call); \
    CHECK(now_ms() - begun_ < (long)(deadline) + LATE_MS); \
  } while (0)

static void stop(void) {
  siginfo_t info;
  MUST(kill(broker.pid, SIGSTOP) == 0 && waitid(P_PID, (id_t)broker.pid, &info, WSTOPPED | WEXITED) == 0);
}

static atomic_int drained;

static void hear(void *user, const fdbroker_notice_t *notice) {
  (void)user;
  drained += notice->kind == FDBROKER_NOTICE_DRAINED;
}

static void serve(fdbroker_t *context) {
  if (fdbroker_event_fd(context) >= 0) OK(fdbroker_dispatch(context, 0));
}

static void calls_end_at_their_deadlines_with(uint32_t flags) {
  fdbroker_t *context = open_with(&broker, flags), *other = open_at(&broker);
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t registered[UNREGISTERED], handle, cold, again;
  fdbroker_import_t import, none;
  void *host, *memory;
  int fd = sealed_memfd(PAGE, 's'), went;
  drained = 0;
  OK(fdbroker_set_notice_callback(context, hear, NULL));
  for (int at = 0; at < UNREGISTERED; at++) OK(fdbroker_register(context, &allocation, fd, SOON, &registered[at]));
  OK(fdbroker_host_alloc(other, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  memset(host, 'h', PAGE);
  OK(fdbroker_host_alloc(other, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &cold));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  stop();
  long begun = now_ms();
  for (uint32_t deadline = 0; deadline <= 100; deadline += 100) {
    fdbroker_grant_t grant = {.struct_size = sizeof grant}, grants[2] = {{.struct_size = sizeof grant}};
    fdbroker_handle_t both[2] = {handle, cold};
    fdbroker_code_t codes[2];
    fdbroker_request_t *request;
    TIMES_OUT(deadline, fdbroker_acquire(context, &handle, deadline, &grant));
    TIMES_OUT(deadline, fdbroker_acquire_many(context, 2, both, deadline, grants, codes));
    TIMES_OUT(deadline, fdbroker_import(context, &cold, FDBROKER_IMPORT_READ, deadline, &none));
    TIMES_OUT(deadline, fdbroker_register(context, &allocation, fd, deadline, &again));
    TIMES_OUT(deadline, fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, deadline, &memory, NULL));
    TIMES_OUT(deadline, fdbroker_flush(context, deadline));
    OK(fdbroker_acquire_start(context, 1, &cold, deadline, &request));
    long started = now_ms();
    fdbroker_code_t code;
    while ((code = fdbroker_request_test(request, &grant, NULL)) == FDBROKER_AGAIN && now_ms() - started < 20000) nap_ms(1);
    CHECK(code == FDBROKER_TIMED_OUT && now_ms() - started < (long)deadline + LATE_MS);
    OK(fdbroker_import_start(context, 1, &cold, FDBROKER_IMPORT_READ, deadline, &request));
    started = now_ms();
    while ((code = fdbroker_import_test(request, &none, NULL)) == FDBROKER_AGAIN && now_ms() - started < 20000) nap_ms(1);
    CHECK(code == FDBROKER_TIMED_OUT && now_ms() - started < (long)deadline + LATE_MS);
    OK(fdbroker_register_start(context, 1, &allocation, &fd, deadline, &request));
    started = now_ms();
    while ((code = fdbroker_register_test(request, &again, NULL)) == FDBROKER_AGAIN && now_ms() - started < 20000) nap_ms(1);
    CHECK(code == FDBROKER_TIMED_OUT && now_ms() - started < (long)deadline + LATE_MS);
    OK(fdbroker_import_start(context, 1, &cold, FDBROKER_IMPORT_READ, SOON, &request));
    OK(fdbroker_request_cancel(request));
    OK(fdbroker_register_start(context, 1, &allocation, &fd, SOON, &request));
    OK(fdbroker_request_cancel(request));
  }
  TIMES_OUT(0, fdbroker_unregister_within(context, &registered[0], 0, NULL));
  TIMES_OUT(100, fdbroker_unregister_within(context, &registered[1], 100, &went));
  CHECK(went == 0 && strstr(fdbroker_last_error(), "notice"));
  /* What asks nobody goes on: a cached import, a release, a free. */
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, 0, &none));
  CHECK(none.ptr == import.ptr && fdbroker_import_is_current(context, &import) == 1);
  OK(fdbroker_import_release(context, &none));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_host_free(other, host));
  while (now_ms() - begun < stopped_ms) nap_ms(10);
  CHECK(drained == 0);
  MUST(kill(broker.pid, SIGCONT) == 0);
  for (unsigned waited = 0; drained < 2 && waited < SOON; waited += 5) {
    serve(context);
    nap_ms(5);
  }
  CHECK(drained == 2);
  OK(fdbroker_unregister_within(context, &registered[2], SOON, &went));
  CHECK(went == 1);
  CODE(FDBROKER_STALE, fdbroker_unregister_within(context, &registered[0], SOON, NULL));
  OK(fdbroker_import(context, &cold, FDBROKER_IMPORT_READ, SOON, &none));
  OK(fdbroker_import_release(context, &none));
  OK(fdbroker_empty_cache(context, NULL));
  /* Late registrations are undone, late grants given back. */
  for (unsigned waited = 0; waited < SOON; waited += 20) {
    serve(context);
    if (ledger(&broker, "open_leases") + ledger(&broker, "mapped_leases") == 0 && ledger(&broker, "allocations") == 1) break;
    nap_ms(20);
  }
  CHECK(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  CHECK(ledger(&broker, "allocations") == 1);
  close(fd);
  OK(fdbroker_close(context));
  OK(fdbroker_close(other));
}

static void calls_to_a_stopped_broker_end_at_their_deadlines(void) { calls_end_at_their_deadlines_with(0); }

static void so_they_do_in_dispatch_mode(void) { calls_end_at_their_deadlines_with(FDBROKER_OPEN_DISPATCH); }

int main(int argc, char **argv) {
  begin();
  if (argc > 1) stopped_ms = atol(argv[1]);
  broker_start(&broker, NULL);
  RUN(calls_to_a_stopped_broker_end_at_their_deadlines);
  RUN(so_they_do_in_dispatch_mode);
  broker_stop(&broker);
  return end();
}
