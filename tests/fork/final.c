/* Memory that nobody can change any more, in children: imports by handle of a memfd that its owner has sealed. They read it,
 * whatever they call, and their first context leases it, however the child was made and whatever its parent's threads did. */
#define _GNU_SOURCE
#include "fork.h"

#include <stdatomic.h>
#include <sys/syscall.h>

#define SIZE ((size_t)1 << 20)
#define RANGES 8

static struct broker broker;
static fdbroker_t *owner, *context;
static fdbroker_handle_t sealed[RANGES], open_one;
static fdbroker_import_t imports[RANGES], can_change, writable;

/* Ranges of one memfd, each an allocation; the memfd is sealed with `seals` first. */
static void register_ranges(int count, int seals, fdbroker_handle_t *handles) {
  int fd = memfd_create("ranges", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(fd >= 0 && ftruncate(fd, (off_t)SIZE * count) == 0);
  char *memory = mmap(NULL, SIZE * (size_t)count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(memory != MAP_FAILED);
  for (int at = 0; at < count; at++) memset(memory + SIZE * (size_t)at, 7 + at, SIZE);
  MUST(munmap(memory, SIZE * (size_t)count) == 0);
  MUST(fcntl(fd, F_ADD_SEALS, seals) == 0);
  for (int at = 0; at < count; at++) {
    fdbroker_allocation_t allocation = memfd_allocation(SIZE);
    allocation.fd_offset = SIZE * (uint64_t)at;
    OK(fdbroker_register(owner, &allocation, fd, SOON, &handles[at]));
  }
  close(fd);
}

/* What takes the addresses that are free. */
static void allocate_a_lot(void) {
  for (int at = 0; at < 24; at++) {
    size_t size = (size_t)(at % 8 + 1) << 17;
    void *taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken != MAP_FAILED) memset(taken, 100 + at, size);
    memset(malloc(size), 100 + at, size);
  }
}

static int all_are_right(void) {
  for (int at = 0; at < RANGES; at++)
    if (!all_bytes_are(imports[at].ptr, 7 + at, SIZE)) return 0;
  return 1;
}

static int mapped_become_at(const struct broker *where, long expected) {
  for (int wait = 0; wait < 2000 && ledger(where, "mapped_leases") != expected; wait++) usleep(10000);
  return ledger(where, "mapped_leases") == expected;
}

static int mapped_become(long expected) { return mapped_become_at(&broker, expected); }

static void reads(void) {
  allocate_a_lot();
  if (!all_are_right()) _exit(3);
  for (int at = 0; at < RANGES; at++) {
    if (fdbroker_import_is_final(context, &imports[at]) != 1) _exit(4);
    if (fdbroker_import_is_current(context, &imports[at]) != 0) _exit(5);
    if (fdbroker_import_release(context, &imports[at]) != FDBROKER_NOT_CONNECTED || imports[at].ptr == NULL) _exit(6);
  }
  if (fdbroker_import_is_final(context, &can_change) != 0 || fdbroker_import_is_final(context, &writable) != 0) _exit(7);
  if (fdbroker_close(context) != FDBROKER_OK || !all_are_right()) _exit(8);
}

static void a_child_reads_what_nobody_can_change_whatever_it_calls(void) {
  CHECK(fdbroker_import_is_final(context, &imports[0]) == 1 && fdbroker_import_is_final(context, &can_change) == 0);
  CHECK(fdbroker_import_is_final(context, &writable) == 0 && fdbroker_import_is_final(NULL, &imports[0]) == 0);
  CHECK(fdbroker_import_is_final(context, NULL) == 0);
  CHECK(child_does(reads) == 0);
  CHECK(all_are_right() && fdbroker_import_is_current(context, &imports[0]) == 1);
}

/* Leases by one context at a time, read on by all. */
static void leases(void) {
  long before = RANGES + 2;
  allocate_a_lot();
  fdbroker_t *own = open_at(&broker);
  if (!mapped_become(before + RANGES)) _exit(3);
  fdbroker_t *second = open_at(&broker);
  OK(fdbroker_flush(second, SOON));
  if (!mapped_become(before + RANGES) || ledger(&broker, "open_leases") != 0) _exit(4);
  if (fdbroker_close(own) != FDBROKER_OK || !mapped_become(before)) _exit(5);
  if (!all_are_right()) _exit(6);
  fdbroker_t *third = open_at(&broker);
  if (!mapped_become(before + RANGES) || bad_checks != 0) _exit(7);
  if (fdbroker_close(second) != FDBROKER_OK || !mapped_become(before + RANGES)) _exit(8);
  /* A child of it is another process, which holds its own. */
  pid_t inner = fork();
  if (inner == 0) {
    fdbroker_t *its = open_at(&broker);
    if (!mapped_become(before + 2 * RANGES) || !all_are_right()) _exit(3);
    /* Its copy of what its parent holds ends nothing. */
    if (fdbroker_close(third) != FDBROKER_OK || fdbroker_close(its) != FDBROKER_OK) _exit(4);
    if (!mapped_become(before + RANGES)) _exit(5);
    _exit(0);
  }
  if (status_of(inner) != 0 || !mapped_become(before + RANGES)) _exit(9);
  if (fdbroker_close(third) != FDBROKER_OK || !all_are_right()) _exit(10);
}

static void a_childs_first_context_leases_what_it_has_inherited_until_it_is_closed(void) {
  CHECK(mapped_become(RANGES + 2));
  CHECK(child_does(leases) == 0);
  CHECK(mapped_become(RANGES + 2));
}

/* The program serves, if it ever does. */
static void leases_without_a_thread(void) {
  fdbroker_t *own = open_with(&broker, FDBROKER_OPEN_DISPATCH);
  OK(fdbroker_flush(own, SOON));
  if (!mapped_become(2 * RANGES + 2) || bad_checks != 0) _exit(3);
  if (fdbroker_close(own) != FDBROKER_OK) _exit(4);
}

static void a_child_without_a_thread_of_the_library_leases_the_same(void) {
  CHECK(child_does(leases_without_a_thread) == 0);
  CHECK(mapped_become(RANGES + 2));
}

static int by_syscall(void *unused) {
  (void)unused;
  leases();
  _exit(bad_checks != 0);
}

static void children_of_fork_and_of_clone_are_alike(void) {
  fflush(stdout);
  /* Not by the C library, whose handlers do not run. */
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  MUST(child >= 0);
  if (child == 0) {
    alarm(CHILD_LIFE_S);
    by_syscall(NULL);
  }
  CHECK(status_of(child) == 0);
  CHECK(mapped_become(RANGES + 2) && all_are_right());
}

static atomic_int stop;
static atomic_long turns;

/* Opens and closes what children inherit. */
static void *churn(void *unused) {
  fdbroker_t *mine = unused;
  while (!stop) {
    fdbroker_import_t import;
    OK(fdbroker_import(mine, &sealed[turns % RANGES], FDBROKER_IMPORT_READ | FDBROKER_IMPORT_NO_CACHE, SOON, &import));
    OK(fdbroker_import_release(mine, &import));
    turns++;
  }
  return NULL;
}

static void reads_and_opens(void) {
  allocate_a_lot();
  fdbroker_t *own = open_at(&broker);
  if (!all_are_right() || bad_checks != 0) _exit(3);
  if (fdbroker_close(own) != FDBROKER_OK || !all_are_right()) _exit(4);
}

static void children_made_while_threads_open_and_close_are_right(void) {
  fdbroker_t *its[2] = {open_at(&broker), open_at(&broker)};
  pthread_t threads[2];
  stop = 0;
  for (int at = 0; at < 2; at++) MUST(pthread_create(&threads[at], NULL, churn, its[at]) == 0);
  for (int round = 0; round < 100; round++) CHECK(child_does(reads_and_opens) == 0);
  stop = 1;
  for (int at = 0; at < 2; at++) MUST(pthread_join(threads[at], NULL) == 0);
  for (int at = 0; at < 2; at++) OK(fdbroker_close(its[at]));
  CHECK(turns > 0 && mapped_become(RANGES + 2));
}

static fdbroker_object_t object = {.struct_size = sizeof object};

static void reads_an_object(void) {
  char bytes[4];
  allocate_a_lot();
  if (!(object.flags & FDBROKER_OBJECT_FINAL) || !all_bytes_are(object.ptr, 9, SIZE)) _exit(3);
  if (fdbroker_object_read(context, &object, SIZE - 4, bytes, 4) != FDBROKER_OK || !all_bytes_are(bytes, 9, 4)) _exit(4);
  if (fdbroker_object_read(context, &object, SIZE - 3, bytes, 4) != FDBROKER_BAD_HANDLE) _exit(5);
  if (fdbroker_object_release(context, &object) != FDBROKER_NOT_CONNECTED || !object.ptr) _exit(6);
  if (fdbroker_close(context) != FDBROKER_OK || !all_bytes_are(object.ptr, 9, SIZE)) _exit(7);
  if (memcmp(object.metadata, "about", 5) != 0) _exit(8);
}

static void a_child_reads_an_object_by_pointer_and_by_call(void) {
  char *bytes = malloc(SIZE);
  MUST(bytes != NULL);
  memset(bytes, 9, SIZE);
  fdbroker_new_object_t made = {.struct_size = sizeof made, .name = "o", .size_bytes = SIZE, .bytes = bytes};
  made.metadata = "about", made.metadata_bytes = 5;
  const char *name = "o";
  OK(fdbroker_object_put(owner, 1, &made, NULL, SOON, NULL));
  OK(fdbroker_object_get(context, 1, &name, NULL, SOON, &object));
  CHECK(child_does(reads_an_object) == 0);
  CHECK(all_bytes_are(object.ptr, 9, SIZE) && fdbroker_object_is_current(context, &object) == 1);
  OK(fdbroker_object_release(context, &object));
  free(bytes);
}

static fdbroker_code_t recall(void *user, const fdbroker_recall_t *asked, fdbroker_recall_answer_t *answer) {
  answer->fd = fcntl(*(int *)user, F_DUPFD_CLOEXEC, 3);
  answer->size_bytes = asked->size_bytes;
  return answer->fd < 0 ? FDBROKER_LOCAL_FD_LIMIT : FDBROKER_OK;
}

static void what_a_child_has_leased_is_declared_to_the_next_broker_after_a_crash(void) {
  struct broker crashing;
  int fd = memfd_create("one", MFD_CLOEXEC | MFD_ALLOW_SEALING), tell[2], told[2];
  char word;
  MUST(fd >= 0 && ftruncate(fd, (off_t)SIZE) == 0 && pipe(tell) == 0 && pipe(told) == 0);
  MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  broker_start(&crashing, NULL);
  fdbroker_t *its_owner = open_at(&crashing), *reader = open_at(&crashing);
  fdbroker_allocation_t allocation = memfd_allocation(SIZE);
  allocation.flags = FDBROKER_RECALLABLE;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  OK(fdbroker_set_recall_callback(its_owner, recall, &fd));
  OK(fdbroker_register(its_owner, &allocation, fd, SOON, &handle));
  OK(fdbroker_import(reader, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    alarm(CHILD_LIFE_S);
    fdbroker_t *own = open_at(&crashing);
    if (write(told[1], "o", 1) != 1 || read(tell[0], &word, 1) != 1) _exit(3);
    while (!fdbroker_is_connected(own)) usleep(10000);
    if (write(told[1], "c", 1) != 1 || read(tell[0], &word, 1) != 1) _exit(4);
    _exit(!all_bytes_are(import.ptr, 0, SIZE));
  }
  CHECK(read(told[0], &word, 1) == 1);
  CHECK(mapped_become_at(&crashing, 2));
  broker_kill(&crashing);
  broker_start_in(&crashing, NULL);
  CHECK(write(tell[1], "k", 1) == 1 && read(told[0], &word, 1) == 1);
  CHECK(mapped_become_at(&crashing, 2));
  CHECK(write(tell[1], "e", 1) == 1 && status_of(child) == 0);
  CHECK(mapped_become_at(&crashing, 1) && fdbroker_import_is_current(reader, &import) == 1);
  OK(fdbroker_close(reader));
  OK(fdbroker_close(its_owner));
  close(fd);
  broker_stop(&crashing);
}

static void an_end_of_the_allocation_is_told_when_the_child_is_gone(void) {
  int tell[2], told[2];
  char word;
  MUST(pipe(tell) == 0 && pipe(told) == 0);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    alarm(CHILD_LIFE_S);
    fdbroker_t *own = open_at(&broker);
    if (!mapped_become(2 * RANGES + 2) || write(told[1], "m", 1) != 1 || read(tell[0], &word, 1) != 1) _exit(3);
    _exit(!all_are_right() || own == NULL);
  }
  CHECK(read(told[0], &word, 1) == 1);
  int32_t drained = 1;
  OK(fdbroker_unregister_drained(owner, &sealed[0], &drained));
  CHECK(drained == 0);
  for (int at = 0; at < RANGES; at++) OK(fdbroker_import_release(context, &imports[at]));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(mapped_become(RANGES + 2));
  /* The ranges, the one that can change, and the object. */
  CHECK(ledger(&broker, "allocations") == RANGES + 2);
  CHECK(write(tell[1], "e", 1) == 1 && status_of(child) == 0);
  /* The child was the last that had it. */
  CHECK(mapped_become(2) && ledger(&broker, "allocations") == RANGES + 1);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  owner = open_at(&broker);
  context = open_at(&broker);
  register_ranges(RANGES, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, sealed);
  register_ranges(1, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &open_one);
  OK(fdbroker_import_many(context, RANGES, sealed, FDBROKER_IMPORT_READ, SOON, imports, NULL));
  OK(fdbroker_import(context, &open_one, FDBROKER_IMPORT_READ | FDBROKER_IMPORT_NO_CACHE, SOON, &can_change));
  OK(fdbroker_import(context, &open_one, FDBROKER_IMPORT_WRITE, SOON, &writable));
  MUST(bad_checks == 0);
  RUN(a_child_reads_what_nobody_can_change_whatever_it_calls);
  RUN(a_childs_first_context_leases_what_it_has_inherited_until_it_is_closed);
  RUN(a_child_without_a_thread_of_the_library_leases_the_same);
  RUN(children_of_fork_and_of_clone_are_alike);
  RUN(children_made_while_threads_open_and_close_are_right);
  RUN(a_child_reads_an_object_by_pointer_and_by_call);
  RUN(what_a_child_has_leased_is_declared_to_the_next_broker_after_a_crash);
  RUN(an_end_of_the_allocation_is_told_when_the_child_is_gone);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
