/* Forks of a process that has few addresses or mappings left, or memory in the making, and what a child sees of its parent's own. */
#define _GNU_SOURCE
#include "fork.h"

#define SIZE ((size_t)1 << 20)

static struct broker broker;
static fdbroker_t *owner, *context;
static fdbroker_handle_t handle;
static fdbroker_import_t import;

static long number_in(const char *path) {
  FILE *file = fopen(path, "re");
  long number = 0;
  MUST(file != NULL && fscanf(file, "%ld", &number) == 1);
  fclose(file);
  return number;
}

static void touches_the_import(void) { touch(import.ptr, SIZE); }

static void with_few_addresses_imports_of_many_sizes_go_on(void) {
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_AS, &limit) == 0);
  limit.rlim_cur = (rlim_t)(number_in("/proc/self/statm") * sysconf(_SC_PAGESIZE)) + ((rlim_t)512 << 20);
  MUST(setrlimit(RLIMIT_AS, &limit) == 0);
  fdbroker_t *own = open_at(&broker);
  for (size_t size = 4096; size <= (size_t)64 << 20; size = size * 3 / 2 / 4096 * 4096 + 4096) {
    fdbroker_allocation_t allocation = memfd_allocation(size);
    fdbroker_handle_t other;
    fdbroker_import_t one;
    int fd = sealed_memfd(size, 9);
    OK(fdbroker_register(own, &allocation, fd, SOON, &other));
    OK(fdbroker_import(own, &other, FDBROKER_IMPORT_READ, SOON, &one));
    CHECK(one.ptr != NULL && all_bytes_are(one.ptr, 9, size));
    if (one.ptr != NULL) OK(fdbroker_import_release(own, &one));
    OK(fdbroker_empty_cache(own, NULL));
    close(fd);
    void *mine = malloc(16 << 20);
    CHECK(mine != NULL);
    free(mine);
  }
  OK(fdbroker_close(own));
  if (bad_checks != 0) _exit(2);
}

static void under_a_limit_of_addresses_imports_of_many_sizes_go_on(void) {
  CHECK(child_does(with_few_addresses_imports_of_many_sizes_go_on) == 0);
}

static void forks_with_no_mapping_left(void) {
  OK(fdbroker_import(owner, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  /* Neighbours that differ, so that the kernel does not make one of them. */
  for (long left = number_in("/proc/sys/vm/max_map_count") + 10; left > 0; left--) {
    if (mmap(NULL, 4096, left % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
  }
  pid_t child = fork();
  if (child < 0) _exit(7);
  if (child == 0) {
    touches_the_import();
    _exit(0);
  }
  _exit(status_of(child) == 128 + SIGSEGV ? 0 : 8);
}

static void opens_and_forks_with_no_mapping_left(void) {
  owner = open_at(&broker);
  forks_with_no_mapping_left();
}

static void a_child_of_a_process_with_all_its_mappings_does_not_see_the_import(void) {
  if (number_in("/proc/sys/vm/max_map_count") > 200000) {
    printf("not run: a_child_of_a_process_with_all_its_mappings: vm.max_map_count is above 200,000\n");
    return;
  }
  fdbroker_t *before = owner;
  CHECK(child_does(opens_and_forks_with_no_mapping_left) == 0);
  owner = before;
}

static unsigned char *arena, *isolated;

static void reads_what_its_parent_made(void) {
  if (!all_bytes_are(arena, 5, SIZE) || !all_bytes_are(isolated, 6, SIZE)) _exit(3);
}

static int hear[2], tell[2];

static void reads_after_the_parent_has_freed(void) {
  unsigned char word;
  reads_what_its_parent_made();
  if (!writes_all(tell[1], "", 1) || !reads_all(hear[0], &word, 1)) _exit(4);
  /* Undefined bytes, and no fault. */
  touch(arena, SIZE);
  touch(isolated, SIZE);
}

static void what_the_parent_made_stays_mapped_in_a_child_also_after_it_is_freed(void) {
  void *memory;
  fdbroker_handle_t unused;
  unsigned char word;
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, SIZE, SOON, &memory, &unused));
  arena = memset(memory, 5, SIZE);
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, SIZE, SOON, &memory, &unused));
  isolated = memset(memory, 6, SIZE);
  MUST(pipe2(hear, O_CLOEXEC) == 0 && pipe2(tell, O_CLOEXEC) == 0);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    alarm(CHILD_LIFE_S);
    reads_after_the_parent_has_freed();
    _exit(0);
  }
  MUST(reads_all(tell[0], &word, 1));
  OK(fdbroker_host_free(owner, arena));
  OK(fdbroker_host_free(owner, isolated));
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, SIZE, SOON, &memory, &unused));
  memset(memory, 8, SIZE);
  MUST(writes_all(hear[1], "", 1));
  CHECK(status_of(child) == 0);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  owner = open_at(&broker);
  void *memory;
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, SIZE, SOON, &memory, &handle));
  memset(memory, 7, SIZE);
  context = open_at(&broker);
  RUN(under_a_limit_of_addresses_imports_of_many_sizes_go_on);
  RUN(a_child_of_a_process_with_all_its_mappings_does_not_see_the_import);
  RUN(what_the_parent_made_stays_mapped_in_a_child_also_after_it_is_freed);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
