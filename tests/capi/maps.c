/* The mappings of a process: the import cache leaves it enough of them, and closes what is unused when there are too few. */
#define _GNU_SOURCE
#include "check.h"

#include <malloc.h>

#define PAGE 4096u
/* Pages of the memory that all handles share: handle N is page N % PAGES, filled with N % PAGES % 251. */
#define PAGES 4096u
/* So many are registered and imported at a time that the broker still has their fds, also with few. */
#define CHUNK 200u
/* Handles of the tests with a limit. */
#define MANY 1000u

static struct broker broker;
static fdbroker_t *owner;
static int memory_fd;

static long number_in(const char *path) {
  FILE *file = fopen(path, "re");
  long number = 0;
  MUST(file != NULL && fscanf(file, "%ld", &number) == 1);
  fclose(file);
  return number;
}

static long own_maps(void) {
  FILE *file = fopen("/proc/self/maps", "re");
  long lines = 0;
  MUST(file != NULL);
  for (int byte; (byte = getc(file)) != EOF;) lines += byte == '\n';
  fclose(file);
  return lines;
}

static fdbroker_code_t recalled(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  (void)user;
  (void)recall;
  answer->fd = dup(memory_fd);
  return answer->fd < 0 ? FDBROKER_LOCAL_FD_LIMIT : FDBROKER_OK;
}

/* Registers allocations first to first + CHUNK, of size bytes each. */
static void produce(unsigned first, uint64_t size, fdbroker_handle_t handles[CHUNK]) {
  static fdbroker_allocation_t allocations[CHUNK];
  static int fds[CHUNK];
  for (unsigned at = 0; at < CHUNK; at++) {
    allocations[at] = memfd_allocation(size);
    allocations[at].flags = FDBROKER_RECALLABLE;
    allocations[at].fd_offset = (uint64_t)((first + at) % PAGES) * PAGE;
    fds[at] = memory_fd;
  }
  OK(fdbroker_register_many(owner, CHUNK, allocations, fds, SOON, handles, NULL));
}

static void check_and_release(fdbroker_t *context, unsigned number, fdbroker_import_t *import) {
  CHECK(import->ptr != NULL && *(unsigned char *)import->ptr == number % PAGES % 251);
  OK(fdbroker_import_release(context, import));
}

static void every_handle_of_200000_is_imported_and_the_process_keeps_mappings_for_itself(void) {
  static fdbroker_handle_t handles[CHUNK];
  static fdbroker_import_t imports[CHUNK];
  fdbroker_t *context = open_at(&broker);
  long most = number_in("/proc/sys/vm/max_map_count"), before = own_maps();
  for (unsigned first = 0; first < 200000; first += CHUNK) {
    produce(first, PAGE, handles);
    OK(fdbroker_import_many(context, CHUNK, handles, FDBROKER_IMPORT_READ, SOON, imports, NULL));
    for (unsigned at = 0; at < CHUNK; at++) check_and_release(context, first + at, &imports[at]);
  }
  fdbroker_stats_t stats = stats_of(context);
  CHECK(stats.misses == 200000 && stats.pinned == 0);
  CHECK(stats.entries <= (uint64_t)most / 4 * 3);
  CHECK(own_maps() - before <= most / 4 * 3 + 100);
  void *own = malloc(64 << 20);
  CHECK(own != NULL);
  free(own);
  OK(fdbroker_close(context));
  CHECK(own_maps() - before < 100);
}

/* Runs a test in a process of its own, whose limits it may change. */
static void in_a_child(int (*test)(void)) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) _exit(test());
  CHECK(status_of(child) == 0);
}

static fdbroker_handle_t small[MANY], large[MANY];

/* Other mappings of the process leave room for a few hundred imports. */
static int import_with_few_mappings_left(void) {
  long most = number_in("/proc/sys/vm/max_map_count");
  bad_checks = 0;
  /* What malloc(3) needs from here on is there already. */
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  free(malloc(16 << 20));
  fdbroker_t *context = open_at(&broker);
  fdbroker_import_t used, import;
  OK(fdbroker_import(context, &small[0], FDBROKER_IMPORT_READ, SOON, &used));
  for (long left = most - own_maps() - 300; left > 0; left--) {
    /* Neighbours that differ, so that the kernel does not make one of them. */
    int protection = left % 2 ? PROT_READ : PROT_NONE;
    MUST(mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
  }
  /* Pages that are neighbours in the file are not imported one after the other: the kernel would make one mapping of them. */
  for (unsigned at = 0; at < MANY; at++) {
    unsigned number = at * 7 % MANY;
    OK(fdbroker_import(context, &small[number], FDBROKER_IMPORT_READ, SOON, &import));
    check_and_release(context, number, &import);
  }
  fdbroker_stats_t stats = stats_of(context);
  CHECK(stats.evicted > 0 && stats.entries < 400);
  CHECK(fdbroker_import_is_current(context, &used) == 1);
  check_and_release(context, 0, &used);
  OK(fdbroker_close(context));
  return bad_checks != 0;
}

static void with_few_mappings_left_unused_imports_make_room(void) {
  if (number_in("/proc/sys/vm/max_map_count") > 200000) {
    printf("not run: with_few_mappings_left_unused_imports_make_room: vm.max_map_count is above 200,000\n");
    return;
  }
  in_a_child(import_with_few_mappings_left);
}

/* A limit of addresses that a third of the imports would use up. */
static int import_under_a_limit_of_addresses(void) {
  struct rlimit limit;
  bad_checks = 0;
  MUST(getrlimit(RLIMIT_AS, &limit) == 0);
  rlim_t now = (rlim_t)(number_in("/proc/self/statm") * sysconf(_SC_PAGESIZE));
  limit.rlim_cur = now + ((rlim_t)1 << 30);
  MUST(setrlimit(RLIMIT_AS, &limit) == 0);
  fdbroker_t *context = open_at(&broker);
  fdbroker_import_t import;
  for (unsigned at = 0; at < MANY; at++) {
    OK(fdbroker_import(context, &large[at], FDBROKER_IMPORT_READ, SOON, &import));
    check_and_release(context, 0, &import);
    /* The program's own, as large as an import. */
    void *own = malloc(PAGES * PAGE);
    CHECK(own != NULL);
    free(own);
  }
  CHECK(stats_of(context).bytes <= (uint64_t)3 << 28);
  OK(fdbroker_close(context));
  return bad_checks != 0;
}

static void under_a_limit_of_addresses_the_process_keeps_some_for_itself(void) {
  in_a_child(import_under_a_limit_of_addresses);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  memory_fd = memfd_create("capi-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(memory_fd >= 0 && ftruncate(memory_fd, (off_t)PAGES * PAGE) == 0);
  for (unsigned page = 0; page < PAGES; page++) {
    unsigned char byte = page % 251;
    MUST(pwrite(memory_fd, &byte, 1, (off_t)page * PAGE) == 1);
  }
  MUST(fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  owner = open_at(&broker);
  OK(fdbroker_set_recall_callback(owner, recalled, NULL));
  RUN(every_handle_of_200000_is_imported_and_the_process_keeps_mappings_for_itself);
  for (unsigned first = 0; first < MANY; first += CHUNK) produce(first, PAGE, small + first);
  RUN(with_few_mappings_left_unused_imports_make_room);
  for (unsigned at = 0; at < MANY; at++) {
    fdbroker_allocation_t allocation = memfd_allocation((uint64_t)PAGES * PAGE);
    allocation.flags = FDBROKER_RECALLABLE;
    OK(fdbroker_register(owner, &allocation, memory_fd, SOON, &large[at]));
  }
  RUN(under_a_limit_of_addresses_the_process_keeps_some_for_itself);
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
