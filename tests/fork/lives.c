/* Children of a process with imports, whatever made them and whatever they do next. An import is a fault there, or not seen at
 * all, and the child's own memory is left alone. */
#define _GNU_SOURCE
#include "fork.h"

#include <dlfcn.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define SIZE ((size_t)1 << 20)

static struct broker broker;
static fdbroker_t *context;
static fdbroker_handle_t handle;
static fdbroker_import_t import;

/* In a child: a context of its own, and the memory imported by it. */
static fdbroker_t *own;
static fdbroker_import_t again;

static void import_anew(void) {
  own = open_at(&broker);
  if (fdbroker_import(own, &handle, FDBROKER_IMPORT_READ, SOON, &again) != FDBROKER_OK) _exit(3);
  if (!all_bytes_are(again.ptr, 7, SIZE)) _exit(4);
}

static void imports_anew(void) {
  import_anew();
  if (fdbroker_import_release(own, &again) != FDBROKER_OK || fdbroker_close(own) != FDBROKER_OK) _exit(5);
}

static void a_child_that_imports_anew_reads_the_same_bytes(void) {
  CHECK(child_does(imports_anew) == 0);
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

static void touches_the_parents(void) { touch(import.ptr, SIZE); }
static void touches_its_parents(void) { touch(again.ptr, SIZE); }

static void imports_and_forks(void) {
  import_anew();
  /* Neither its own parent's nor that one's parent's. */
  if (!faults(touches_its_parents) || !faults(touches_the_parents)) _exit(6);
  if (child_does(imports_anew) != 0) _exit(7);
  if (!all_bytes_are(again.ptr, 7, SIZE)) _exit(8);
}

static void a_child_of_a_child_that_has_imported_sees_neither_import(void) {
  CHECK(child_does(imports_and_forks) == 0);
}

static void forks_and_forks(void) {
  for (int depth = 0; depth < 300; depth++) {
    pid_t child = fork();
    if (child < 0) _exit(9);
    if (child > 0) _exit(status_of(child));
    if (depth % 20 == 0) import_anew();
  }
  if (!faults(touches_the_parents)) _exit(10);
}

static void three_hundred_generations_end_with_a_child_that_sees_nothing(void) {
  CHECK(child_does(forks_and_forks) == 0);
}

static void execs(void) { execlp("sh", "sh", "-c", "exit 21", NULL); }

static void a_child_that_execs_runs_the_program(void) { CHECK(child_does(execs) == 21); }

static int ended[2];

static void outlives_its_parent(void) {
  pid_t parent = getpid(), child = fork();
  if (child < 0) _exit(3);
  if (child > 0) _exit(0);
  while (getppid() == parent) nap_ms(1);
  unsigned char result = (unsigned char)(faults(touches_the_parents) ? child_does(imports_anew) : 99);
  if (!writes_all(ended[1], &result, 1)) _exit(4);
}

static void a_child_whose_parent_ends_first_sees_the_same(void) {
  unsigned char result = 98;
  MUST(pipe2(ended, O_CLOEXEC) == 0);
  CHECK(child_does(outlives_its_parent) == 0);
  CHECK(reads_all(ended[0], &result, 1) && result == 0);
  close(ended[0]);
  close(ended[1]);
}

/* ---- children that run no handler of pthread_atfork(3) */

typedef pid_t (*fork_fn)(void);

static pid_t fork_by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static int in_such_a_child(fork_fn how) {
  fflush(stdout);
  pid_t child = how();
  MUST(child >= 0);
  if (child > 0) return status_of(child);
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  alarm(CHILD_LIFE_S);
  /* The live range, as the header says, until the first call. */
  if (!all_bytes_are(import.ptr, 7, SIZE)) _exit(2);
  if (fdbroker_import_is_current(context, &import) != 0) _exit(3);
  touch(import.ptr, SIZE);
  _exit(4);
}

static void a_first_call_closes_the_import_in_a_child_of_clone(void) {
  CHECK(in_such_a_child(fork_by_clone) == 128 + SIGSEGV);
}

static void a_first_call_closes_the_import_in_a_child_of__Fork(void) {
  fork_fn without_handlers = (fork_fn)dlsym(RTLD_DEFAULT, "_Fork");
  if (without_handlers == NULL) return; /* glibc before 2.34 */
  CHECK(in_such_a_child(without_handlers) == 128 + SIGSEGV);
}

static atomic_int calls;

static void *first_call(void *user) {
  (void)user;
  calls++;
  while (calls < 4) {
  }
  fdbroker_t *mine = open_at(&broker);
  fdbroker_import_t one;
  for (int round = 0; round < 20; round++) {
    if (fdbroker_import(mine, &handle, FDBROKER_IMPORT_READ, SOON, &one) != FDBROKER_OK) _exit(5);
    if (!all_bytes_are(one.ptr, 7, SIZE)) _exit(6);
    if (fdbroker_import_release(mine, &one) != FDBROKER_OK) _exit(7);
    if (fdbroker_empty_cache(mine, NULL) != FDBROKER_OK) _exit(8);
  }
  return NULL;
}

static void four_first_calls_at_once_in_a_child_of_clone_keep_their_imports(void) {
  for (int round = 0; round < 10; round++) {
    pid_t child = fork_by_clone();
    MUST(child >= 0);
    if (child == 0) {
      pthread_t threads[4];
      alarm(CHILD_LIFE_S);
      calls = 0;
      for (int at = 0; at < 4; at++)
        if (pthread_create(&threads[at], NULL, first_call, NULL) != 0) _exit(3);
      for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
      _exit(bad_checks != 0);
    }
    CHECK(status_of(child) == 0);
  }
}

/* ---- children that share the parent's memory */

static void a_child_of_vfork_changes_nothing(void) {
  pid_t child = vfork();
  if (child == 0) {
    execlp("true", "true", NULL);
    _exit(1);
  }
  CHECK(status_of(child) == 0);
  CHECK(all_bytes_are(import.ptr, 7, SIZE) && fdbroker_import_is_current(context, &import) == 1);
}

static void a_child_of_posix_spawn_changes_nothing(void) {
  char *arguments[] = {"true", NULL}, *environment[] = {NULL};
  pid_t child;
  MUST(posix_spawnp(&child, "true", NULL, NULL, arguments, environment) == 0);
  CHECK(status_of(child) == 0);
  CHECK(all_bytes_are(import.ptr, 7, SIZE) && fdbroker_import_is_current(context, &import) == 1);
}

/* ---- fork where it is awkward */

static int in_callback = -1;

/* `user`: the fd that was registered. */
static fdbroker_code_t forks_in_a_recall(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  (void)recall;
  in_callback = faults(touches_the_parents);
  answer->fd = dup(*(int *)user);
  return FDBROKER_OK;
}

static void a_fork_in_a_callback_closes_the_import_in_the_child(void) {
  fdbroker_t *owner = open_at(&broker), *reader = open_at(&broker);
  fdbroker_allocation_t allocation = memfd_allocation(SIZE);
  fdbroker_handle_t recalled;
  fdbroker_import_t one;
  char command[512];
  allocation.flags = FDBROKER_RECALLABLE;
  int fd = sealed_memfd(SIZE, 7);
  OK(fdbroker_set_recall_callback(owner, forks_in_a_recall, &fd));
  OK(fdbroker_register(owner, &allocation, fd, SOON, &recalled));
  snprintf(command, sizeof command, "FDBROKER_ADMIN_SOCKET='%s' '%s' evict --all > /dev/null", broker.admin, getenv("FDBROKER"));
  MUST(system(command) == 0);
  OK(fdbroker_import(reader, &recalled, FDBROKER_IMPORT_READ, SOON, &one));
  CHECK(in_callback == 1);
  CHECK(all_bytes_are(one.ptr, 7, SIZE) && all_bytes_are(import.ptr, 7, SIZE));
  OK(fdbroker_import_release(reader, &one));
  OK(fdbroker_close(reader));
  OK(fdbroker_close(owner));
  close(fd);
}

/* A second copy of the library has zones of its own. */
static void two_copies_of_the_library_each_close_their_own(void) {
  char copy[256], command[512];
  snprintf(copy, sizeof copy, "%s/copy.so", broker.dir);
  snprintf(command, sizeof command, "cp '%s' '%s'", getenv("FDBROKER_LIBRARY"), copy);
  MUST(system(command) == 0);
  void *library = dlopen(copy, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  MUST(library != NULL);
  __typeof__(&fdbroker_open) open_in = (__typeof__(&fdbroker_open))dlsym(library, "fdbroker_open");
  __typeof__(&fdbroker_import) import_in = (__typeof__(&fdbroker_import))dlsym(library, "fdbroker_import");
  __typeof__(&fdbroker_import_release) release_in =
      (__typeof__(&fdbroker_import_release))dlsym(library, "fdbroker_import_release");
  __typeof__(&fdbroker_close) close_in = (__typeof__(&fdbroker_close))dlsym(library, "fdbroker_close");
  MUST(open_in != NULL && open_in != fdbroker_open && import_in != NULL && release_in != NULL && close_in != NULL);
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  fdbroker_t *other;
  OK(open_in(&options, &other));
  OK(import_in(other, &handle, FDBROKER_IMPORT_READ, SOON, &again));
  CHECK(faults(touches_its_parents));
  CHECK(faults(touches_the_parents));
  CHECK(all_bytes_are(again.ptr, 7, SIZE) && all_bytes_are(import.ptr, 7, SIZE));
  OK(release_in(other, &again));
  OK(close_in(other));
  CHECK(child_does(imports_anew) == 0);
}

/* In a child: maps and fills memory of its own, of many sizes, and looks whether some of it lies where the import was. */
static void map_much(void) {
  const unsigned char *begin = import.ptr, *end = begin + import.size_bytes;
  for (unsigned at = 0; at < 24; at++) {
    size_t size = (size_t)(at % 8 + 1) << 17;
    unsigned char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) _exit(3);
    memset(own, 100 + (int)at, size);
    if (own < end && begin < own + size) _exit(4);
  }
}

static void reads_after_mapping_much(void) {
  map_much();
  touch(import.ptr, import.size_bytes);
}

static void writes_after_mapping_much(void) {
  map_much();
  *(volatile unsigned char *)import.ptr = 1;
}

static void an_import_read_in_a_child_faults_and_its_place_stays_empty(void) {
  CHECK(faults(reads_after_mapping_much));
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

static void an_import_written_in_a_child_faults_and_its_place_stays_empty(void) {
  CHECK(faults(writes_after_mapping_much));
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  fdbroker_t *owner = open_at(&broker);
  void *memory;
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, SIZE, SOON, &memory, &handle));
  memset(memory, 7, SIZE);
  context = open_at(&broker);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_WRITE, SOON, &import));
  MUST(import.ptr != NULL);
  RUN(an_import_read_in_a_child_faults_and_its_place_stays_empty);
  RUN(an_import_written_in_a_child_faults_and_its_place_stays_empty);
  RUN(a_child_that_imports_anew_reads_the_same_bytes);
  RUN(a_child_of_a_child_that_has_imported_sees_neither_import);
  RUN(three_hundred_generations_end_with_a_child_that_sees_nothing);
  RUN(a_child_that_execs_runs_the_program);
  RUN(a_child_whose_parent_ends_first_sees_the_same);
  RUN(a_first_call_closes_the_import_in_a_child_of_clone);
  RUN(a_first_call_closes_the_import_in_a_child_of__Fork);
  RUN(four_first_calls_at_once_in_a_child_of_clone_keep_their_imports);
  RUN(a_child_of_vfork_changes_nothing);
  RUN(a_child_of_posix_spawn_changes_nothing);
  RUN(a_fork_in_a_callback_closes_the_import_in_the_child);
  RUN(two_copies_of_the_library_each_close_their_own);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
