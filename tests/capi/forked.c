/* fork(2) and its like: the child's copy of the context is dead and harmless, a new context works, the parent notices nothing.
 * usage: forked [ROUNDS] */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE 4096u

static struct broker broker;
static fdbroker_t *context;
static fdbroker_handle_t handle;
static atomic_int stop;
static atomic_long calls, failures;
static int rounds = 40;

#define DEAD(call) CODE(FDBROKER_NOT_CONNECTED, call)

static int in_child(fdbroker_import_t *import, uint64_t lease, void *host) {
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_stats_t stats = {.struct_size = sizeof stats};
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t other;
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  fdbroker_import_t again;
  fdbroker_request_t *request;
  fdbroker_code_t code = FDBROKER_OK;
  void *memory;
  CHECK(fdbroker_is_connected(context) == 0);
  DEAD(fdbroker_acquire(context, &handle, SOON, &grant));
  CHECK(grant.fd == -1 && grant.lease == 0);
  CHECK(strstr(fdbroker_last_error(), "one of its own, after the fork") && !strstr(fdbroker_last_error(), "fdbrokerd"));
  DEAD(fdbroker_acquire_many(context, 1, &handle, SOON, &grant, &code));
  CHECK(code == FDBROKER_NOT_CONNECTED);
  DEAD(fdbroker_acquire_start(context, 1, &handle, SOON, &request));
  DEAD(fdbroker_import_start(context, 1, &handle, 0, SOON, &request));
  DEAD(fdbroker_import(context, &handle, 0, SOON, &again));
  DEAD(fdbroker_import_hit(context, &handle, 0, &again));
  CHECK(fdbroker_import_is_current(context, import) == 0);
  DEAD(fdbroker_import_release(context, import));
  DEAD(fdbroker_lease_mapped(context, lease));
  DEAD(fdbroker_release(context, lease));
  DEAD(fdbroker_release_many(context, 1, &lease));
  CHECK(fdbroker_lease_is_current(context, lease) == 0);
  DEAD(fdbroker_register(context, &allocation, 0, SOON, &other));
  int no_fd = 0;
  DEAD(fdbroker_register_start(context, 1, &allocation, &no_fd, SOON, &request));
  DEAD(fdbroker_unregister(context, &handle));
  DEAD(fdbroker_get_handle(context, host, 0, SOON, &other));
  DEAD(fdbroker_host_alloc(context, 0, 1, SOON, &memory, NULL));
  DEAD(fdbroker_host_free(context, host));
  DEAD(fdbroker_stats(context, &stats));
  DEAD(fdbroker_empty_cache(context, NULL));
  size_t count = 77;
  DEAD(fdbroker_suspend(context, SOON, 0, NULL, &count));
  DEAD(fdbroker_resume(context, SOON, 0, NULL, NULL, &count));
  CHECK(count == 0);
  DEAD(fdbroker_set_recall_callback(context, NULL, NULL));
  DEAD(fdbroker_set_notice_callback(context, NULL, NULL));
  CHECK(fdbroker_event_fd(context) == -1);
  DEAD(fdbroker_dispatch(context, 0));
  OK(fdbroker_handle_parse(&handle, &info));
  CHECK(all_bytes_are(host, 'h', PAGE));
  OK(fdbroker_close(context));
  /* From here on the child uses a context of its own. */
  fdbroker_t *own = open_at(&broker);
  OK(fdbroker_import(own, &handle, FDBROKER_IMPORT_READ, SOON, &again));
  CHECK(again.ptr != NULL && all_bytes_are(again.ptr, 'h', PAGE));
  OK(fdbroker_import_release(own, &again));
  OK(fdbroker_close(own));
  return bad_checks != 0;
}

static void *hammer(void *user) {
  (void)user;
  while (!stop) {
    fdbroker_import_t import;
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    fdbroker_handle_t made;
    void *memory;
    failures += fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import) != FDBROKER_OK;
    failures += import.ptr == NULL || *(char *)import.ptr != 'h';
    failures += fdbroker_import_release(context, &import) != FDBROKER_OK;
    failures += fdbroker_empty_cache(context, NULL) != FDBROKER_OK;
    failures += fdbroker_acquire(context, &handle, SOON, &grant) != FDBROKER_OK;
    close(grant.fd);
    failures += fdbroker_release(context, grant.lease) != FDBROKER_OK;
    failures += fdbroker_host_alloc(context, 0, PAGE, SOON, &memory, &made) != FDBROKER_OK;
    failures += fdbroker_host_free(context, memory) != FDBROKER_OK;
    calls++;
  }
  return NULL;
}

static void children_of_a_parent_at_work_fail_cleanly_and_open_anew(void) {
  fdbroker_import_t import;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  void *host;
  context = open_at(&broker);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  memset(host, 'h', PAGE);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  pthread_t threads[3];
  for (int at = 0; at < 3; at++) MUST(pthread_create(&threads[at], NULL, hammer, NULL) == 0);
  for (int round = 0; round < rounds; round++) {
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      alarm(60);
      _exit(in_child(&import, grant.lease, host));
    }
    CHECK(status_of(child) == 0);
  }
  stop = 1;
  for (int at = 0; at < 3; at++) MUST(pthread_join(threads[at], NULL) == 0);
  CHECK(failures == 0 && calls > 0);
  CHECK(fdbroker_import_is_current(context, &import) == 1 && fdbroker_lease_is_current(context, grant.lease) == 1);
  CHECK(all_bytes_are(import.ptr, 'h', PAGE));
  OK(fdbroker_import_release(context, &import));
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(stats_of(context).leases == 0 && stats_of(context).pinned == 0);
  EVENTUALLY(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  OK(fdbroker_close(context));
}

static void a_child_that_execs_has_none_of_the_fds(void) {
  context = open_at(&broker);
  void *host;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    execlp("sh", "sh", "-c",
           "ls -l /proc/self/fd 2> /dev/null < /dev/null | grep -E 'socket|memfd|eventfd|eventpoll|gen'; test $? = 1",
           NULL);
    _exit(99);
  }
  CHECK(status_of(child) == 0);
  close(grant.fd);
  OK(fdbroker_close(context));
}

/* Children that run no handler of pthread_atfork(3). */
static pid_t by_fork_without_handlers(void) { return _Fork(); }
static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void child_is_dead_and_parent_goes_on(pid_t (*make)(void)) {
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t registered;
  fdbroker_import_t import, again;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  void *host;
  int fd = sealed_memfd(PAGE, 'm');
  context = open_at(&broker);
  fdbroker_t *consumer = open_at(&broker);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  memset(host, 'h', PAGE);
  OK(fdbroker_register(context, &allocation, fd, SOON, &registered));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  fflush(stdout);
  pid_t child = make();
  MUST(child >= 0);
  if (child == 0) {
    alarm(60);
    CHECK(fdbroker_is_connected(context) == 0 && fdbroker_import_is_current(context, &import) == 0);
    DEAD(fdbroker_import(context, &handle, 0, SOON, &again));
  DEAD(fdbroker_import_hit(context, &handle, 0, &again));
    CHECK(again.ptr == NULL);
    DEAD(fdbroker_acquire(context, &handle, SOON, &grant));
    DEAD(fdbroker_host_free(context, host));
    DEAD(fdbroker_unregister(context, &registered));
    OK(fdbroker_close(context));
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  CHECK(fdbroker_is_connected(context) == 1 && fdbroker_import_is_current(context, &import) == 1);
  for (int at = 0; at < 2; at++) {
    OK(fdbroker_import(consumer, at ? &registered : &handle, FDBROKER_IMPORT_READ, SOON, &again));
    CHECK(all_bytes_are(again.ptr, at ? 'm' : 'h', PAGE));
    OK(fdbroker_import_release(consumer, &again));
  }
  OK(fdbroker_import_release(context, &import));
  close(fd);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

static void a_child_without_handlers_is_recognised(void) { child_is_dead_and_parent_goes_on(by_fork_without_handlers); }
static void a_child_of_clone_is_recognised(void) { child_is_dead_and_parent_goes_on(by_clone); }

static void a_child_of_vfork_that_execs_leaves_the_parent_as_it_was(void) {
  fdbroker_import_t import;
  void *host;
  context = open_at(&broker);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  pid_t child = vfork();
  if (child == 0) {
    execlp("true", "true", (char *)NULL);
    _exit(99);
  }
  CHECK(status_of(child) == 0);
  CHECK(fdbroker_is_connected(context) == 1 && fdbroker_import_is_current(context, &import) == 1);
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_host_free(context, host));
  OK(fdbroker_close(context));
}

static void *opens(void *unused) {
  /* Whoever runs beside it runs first, also in the middle of the call. */
  setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
  OK(fdbroker_close(open_at(&broker)));
  return unused;
}
/* A process whose first call is under way in a thread forks: the child has the same first call before it. */
static int forks_in_the_first_call(unsigned after_us) {
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(sched_getcpu(), &first);
  MUST(sched_setaffinity(0, sizeof first, &first) == 0);
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, opens, NULL) == 0);
  usleep(after_us);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    alarm(20);
    OK(fdbroker_close(open_at(&broker)));
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  MUST(pthread_join(thread, NULL) == 0);
  return bad_checks != 0;
}
/* To be run before this process has called the library. */
static void a_child_of_a_parent_in_its_first_call_opens_too(void) {
  for (int round = 0; round < 2 * rounds; round++) {
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) _exit(forks_in_the_first_call(round * 7 % 200));
    CHECK(status_of(child) == 0);
  }
}

int main(int argc, char **argv) {
  begin();
  if (argc > 1) rounds = atoi(argv[1]);
  broker_start(&broker, NULL);
  RUN(a_child_of_a_parent_in_its_first_call_opens_too);
  RUN(children_of_a_parent_at_work_fail_cleanly_and_open_anew);
  RUN(a_child_that_execs_has_none_of_the_fds);
  RUN(a_child_without_handlers_is_recognised);
  RUN(a_child_of_clone_is_recognised);
  RUN(a_child_of_vfork_that_execs_leaves_the_parent_as_it_was);
  broker_stop(&broker);
  return end();
}
