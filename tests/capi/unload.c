/* dlopen(3), open, close and dlclose, fifty times: no thread and no fd is left. A context left open does no harm.
 * The program is not linked with the library: it looks up the functions that check.h calls. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

static struct broker broker;
static void *library;

/* Looks up a function of the library. */
#define FOUND(name) ((__typeof__(&name))(size_t)dlsym(library, #name))

const char *fdbroker_error_name(fdbroker_code_t code) { return FOUND(fdbroker_error_name)(code); }
const char *fdbroker_last_error(void) { return FOUND(fdbroker_last_error)(); }
void fdbroker_options_init_sized(fdbroker_options_t *options, size_t bytes) {
  FOUND(fdbroker_options_init_sized)(options, bytes);
}
fdbroker_code_t fdbroker_open(const fdbroker_options_t *options, fdbroker_t **out) {
  return FOUND(fdbroker_open)(options, out);
}
fdbroker_code_t fdbroker_stats(fdbroker_t *context, fdbroker_stats_t *stats) {
  return FOUND(fdbroker_stats)(context, stats);
}

static void load(void) {
  library = dlopen("libfdbroker.so.0", RTLD_NOW | RTLD_LOCAL);
  MUST(library != NULL);
}

static void *fail_once(void *context) {
  CODE(FDBROKER_BAD_HANDLE, FOUND(fdbroker_release)(context, 1));
  CHECK(strstr(fdbroker_last_error(), "lease 1") != NULL);
  return NULL;
}

static void use(fdbroker_t *context) {
  void *memory;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  OK(FOUND(fdbroker_host_alloc)(context, FDBROKER_HOST_ARENA, 4096, SOON, &memory, &handle));
  OK(FOUND(fdbroker_import)(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(stats_of(context).pinned == 1);
}

static void loaded_and_unloaded_many_times_then_no_thread_or_fd_is_left(void) {
  int before_threads = threads(), before_fds = open_fds();
  for (int round = 0; round < 50; round++) {
    load();
    fdbroker_t *context = open_at(&broker);
    use(context);
    CHECK(threads() == before_threads + 1);
    OK(FOUND(fdbroker_close)(context));
    MUST(dlclose(library) == 0);
    EVENTUALLY(threads() == before_threads);
    CHECK(open_fds() == before_fds);
  }
}

struct late {
  fdbroker_t *context;
  int failed[2], unloaded[2];
};

static void *end_after_the_library(void *user) {
  struct late *late = user;
  char word;
  fail_once(late->context);
  MUST(write(late->failed[1], "x", 1) == 1 && read(late->unloaded[0], &word, 1) == 1);
  return NULL;
}

static void a_thread_with_a_last_error_may_end_after_dlclose(void) {
  struct late late;
  MUST(pipe2(late.failed, O_CLOEXEC) == 0 && pipe2(late.unloaded, O_CLOEXEC) == 0);
  load();
  late.context = open_at(&broker);
  pthread_t thread;
  char word;
  MUST(pthread_create(&thread, NULL, end_after_the_library, &late) == 0);
  MUST(read(late.failed[0], &word, 1) == 1);
  OK(FOUND(fdbroker_close)(late.context));
  MUST(dlclose(library) == 0);
  MUST(write(late.unloaded[1], "x", 1) == 1 && pthread_join(thread, NULL) == 0);
  for (int end = 0; end < 2; end++) {
    close(late.failed[end]);
    close(late.unloaded[end]);
  }
}

static void a_context_left_open_at_dlclose_does_no_harm(void) {
  struct broker own;
  broker_start(&own, NULL);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    load();
    use(open_at(&own));
    MUST(dlclose(library) == 0);
    exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  child = fork();
  if (child == 0) {
    load();
    use(open_at(&own));
    MUST(dlclose(library) == 0);
    MUST(kill(own.pid, SIGKILL) == 0); /* wakes the library thread */
    nap_ms(200);
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  broker_kill(&own);
  broker_stop(&own);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(loaded_and_unloaded_many_times_then_no_thread_or_fd_is_left);
  RUN(a_thread_with_a_last_error_may_end_after_dlclose);
  RUN(a_context_left_open_at_dlclose_does_no_harm);
  broker_stop(&broker);
  return end();
}
