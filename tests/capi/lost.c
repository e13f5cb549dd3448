/* A broker that dies and comes back; and signals: SIGPIPE at its default action, a storm of SIGALRM.
 * usage: lost [MICROSECONDS BETWEEN SIGNALS] */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <sys/time.h>

#define PAGE 4096u

static struct broker broker;

static atomic_int lost, found, gone;

static void hear(void *user, const fdbroker_notice_t *notice) {
  (void)user;
  lost += notice->kind == FDBROKER_NOTICE_DISCONNECTED;
  found += notice->kind == FDBROKER_NOTICE_RECONNECTED;
  gone += notice->kind == FDBROKER_NOTICE_REGISTRATION_LOST && notice->code == FDBROKER_LOST;
}

static void a_broker_killed_is_not_connected_and_raises_no_signal(void) {
  struct broker own;
  struct sigaction now;
  MUST(sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
  broker_start(&own, NULL);
  fdbroker_t *context = open_at(&own);
  void *host;
  fdbroker_handle_t handle, registered;
  fdbroker_import_t import;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  int fd = sealed_memfd(PAGE, 'o');
  OK(fdbroker_register(context, &allocation, fd, SOON, &registered));
  close(fd);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  memset(host, 'k', PAGE);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  broker_kill(&own);
  for (int round = 0; round < 20; round++) {
    fdbroker_grant_t none = {.struct_size = sizeof none};
    CODE(FDBROKER_NOT_CONNECTED, fdbroker_acquire(context, &handle, SOON, &none));
    void *memory;
    CODE(FDBROKER_NOT_CONNECTED, fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, SOON, &memory, NULL));
  }
  CODE(FDBROKER_NOT_PERMITTED, fdbroker_unregister(context, &handle));
  OK(fdbroker_unregister(context, &registered));
  CODE(FDBROKER_STALE, fdbroker_unregister(context, &registered));
  CHECK(fdbroker_is_connected(context) == 0 && fdbroker_import_is_current(context, &import) == 0);
  /* Mapped memory stays readable until its release, which succeeds. */
  CHECK(all_bytes_are(import.ptr, 'k', PAGE));
  OK(fdbroker_import_release(context, &import));
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  OK(fdbroker_host_free(context, host));
  OK(fdbroker_close(context));
  broker_stop(&own);
}

static void a_broker_that_comes_back_is_found(void) {
  struct broker own;
  broker_start(&own, NULL);
  fdbroker_t *context = open_at(&own);
  lost = found = gone = 0;
  OK(fdbroker_set_notice_callback(context, hear, NULL));
  void *host;
  fdbroker_handle_t handle, again, lone;
  fdbroker_import_t old, import;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, 2 * PAGE, SOON, &host, &handle));
  memset(host, 'r', 2 * PAGE);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &old));
  for (int round = 1; round <= 3; round++) {
    void *isolated;
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, SOON, &isolated, &lone));
    broker_kill(&own);
    EVENTUALLY(lost == round);
    broker_start_in(&own, NULL);
    EVENTUALLY(found == round && fdbroker_is_connected(context) == 1);
    /* The arena's memory is exported again: its handles go on, and an earlier import is current. */
    CHECK(fdbroker_import_is_current(context, &old) == 1);
    OK(fdbroker_get_handle(context, (char *)host + PAGE, 0, SOON, &again));
    OK(fdbroker_import(context, &again, FDBROKER_IMPORT_READ, SOON, &import));
    CHECK(import.ptr == (char *)old.ptr + PAGE && import.size_bytes == PAGE);
    CHECK(all_bytes_are(import.ptr, 'r', PAGE));
    /* Isolated memory had its only fd in the broker: a notice names it as lost. */
    CHECK(gone == round);
    CODE(FDBROKER_STALE, fdbroker_get_handle(context, isolated, 0, SOON, &lone));
    OK(fdbroker_host_free(context, isolated));
    OK(fdbroker_import_release(context, &import));
    CHECK(stats_of(context).registrations == 1);
  }
  CHECK(all_bytes_are(old.ptr, 'r', PAGE));
  OK(fdbroker_import_release(context, &old));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(stats_of(context).pinned == 0);
  EVENTUALLY(ledger(&own, "mapped_leases") == 0);
  OK(fdbroker_close(context));
  broker_stop(&own);
}

static void without_reconnect_it_stays_lost(void) {
  struct broker own;
  broker_start(&own, NULL);
  fdbroker_t *context = open_with(&own, FDBROKER_OPEN_NO_RECONNECT);
  broker_kill(&own);
  EVENTUALLY(fdbroker_is_connected(context) == 0);
  broker_start_in(&own, NULL);
  nap_ms(100);
  CHECK(fdbroker_is_connected(context) == 0);
  OK(fdbroker_close(context));
  broker_stop(&own);
}

static atomic_int interrupted;
static int every_us = 300;

static void interrupt(int signal) {
  (void)signal;
  interrupted++;
}

static void calls_in_a_storm_of_signals_are_only_delayed(void) {
  struct sigaction action = {.sa_handler = interrupt}; /* no SA_RESTART */
  struct itimerval storm = {.it_interval = {0, every_us}, .it_value = {0, every_us}}, calm = {{0, 0}, {0, 0}};
  struct sigaction before;
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  int fd = sealed_memfd(PAGE, 'o');
  MUST(sigaction(SIGALRM, &action, &before) == 0);
  alarm(0);
  MUST(setitimer(ITIMER_REAL, &storm, NULL) == 0);
  for (int round = 0; round < 30; round++) {
    fdbroker_t *context = open_at(&broker);
    void *host;
    fdbroker_handle_t handles[32];
    fdbroker_import_t imports[32];
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handles[0]));
    for (int at = 1; at < 32; at++)
      OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handles[at]));
    OK(fdbroker_import_many(context, 32, handles, FDBROKER_IMPORT_READ, SOON, imports, NULL));
    for (int at = 0; at < 32; at++) OK(fdbroker_import_release(context, &imports[at]));
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    OK(fdbroker_acquire(context, &handles[5], SOON, &grant));
    close(grant.fd);
    OK(fdbroker_release(context, grant.lease));
    fdbroker_handle_t registered;
    OK(fdbroker_register(context, &allocation, fd, SOON, &registered));
    OK(fdbroker_unregister(context, &registered));
    OK(fdbroker_close(context));
  }
  MUST(setitimer(ITIMER_REAL, &calm, NULL) == 0);
  CHECK(interrupted > 5);
  close(fd);
  /* The last signal may still be on its way. Ignoring it drops it; its default action would end the program. */
  struct sigaction ignored = {.sa_handler = SIG_IGN};
  MUST(sigaction(SIGALRM, &ignored, NULL) == 0);
  MUST(sigaction(SIGALRM, &before, NULL) == 0);
  alarm(LIFE_S);
}

static void a_log_line_to_a_closed_pipe_raises_no_signal(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    int way[2];
    MUST(pipe2(way, O_CLOEXEC) == 0 && dup2(way[1], STDERR_FILENO) >= 0);
    close(way[0]);
    close(way[1]);
    setenv("FDBROKER_PRINT_STATS", "1", 1);
    OK(fdbroker_close(open_at(&broker)));
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 0);
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
}

static void print_stats_is_one_line_on_stderr(void) {
  int way[2];
  MUST(pipe2(way, O_CLOEXEC) == 0);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    MUST(dup2(way[1], STDERR_FILENO) >= 0);
    setenv("FDBROKER_PRINT_STATS", "1", 1);
    OK(fdbroker_close(open_at(&broker)));
    exit(bad_checks != 0);
  }
  close(way[1]);
  char text[1024] = "", expected[64];
  ssize_t length = read(way[0], text, sizeof text - 1);
  CHECK(length > 0 && strchr(text, '\n') == text + length - 1);
  snprintf(expected, sizeof expected, "fdbroker[%d]: stats: hits=0 misses=0 ", (int)child);
  CHECK(strncmp(text, expected, strlen(expected)) == 0);
  close(way[0]);
  CHECK(status_of(child) == 0);
}

int main(int argc, char **argv) {
  begin();
  if (argc > 1) every_us = atoi(argv[1]);
  broker_start(&broker, NULL);
  RUN(a_broker_killed_is_not_connected_and_raises_no_signal);
  RUN(a_broker_that_comes_back_is_found);
  RUN(without_reconnect_it_stays_lost);
  RUN(calls_in_a_storm_of_signals_are_only_delayed);
  RUN(a_log_line_to_a_closed_pipe_raises_no_signal);
  RUN(print_stats_is_one_line_on_stderr);
  broker_stop(&broker);
  return end();
}
