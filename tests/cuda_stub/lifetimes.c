/* How long exports, imports and memory live: closes, releases, mappings, children.
 * usage: lifetimes [CASE]... */
#include "shapes.h"
#include <sys/resource.h>

#include <pthread.h>

/* Segments in a row. */
#define ROW 8

static void number_when_imported_by_its_exporter_is_the_memory(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(1);
  int number = export_of(buffer.handle);
  CUmemGenericAllocationHandle handle = import_of(number);
  CHECK(is_export(number) && handle != buffer.handle);
  CHECK(close(number) == 0);
  CUdeviceptr base = map_one(handle);
  CHECK(shows(base, 1));
  fill(base, 2);
  CHECK(shows(buffer.base, 2));
  DRIVER(cu.cuMemRelease(handle));
  CHECK(shows(base, 2));
  free_buffer(buffer);
  CHECK(shows(base, 2));
  CHECK(free_bytes() == before - SEGMENT);
  unmap_one(base);
  CHECK(COMES_TRUE(free_bytes() == before));
  CUmemGenericAllocationHandle none;
  CHECK(try_import(number, &none) != CUDA_SUCCESS);
  CHECK(try_import(NO_SUCH_FD, &none) != CUDA_SUCCESS);
}

static void number_when_exported_three_times_ends_with_the_third_close(void) {
  use_driver();
  Buffer buffer = new_buffer(3);
  int numbers[3];
  for (int at = 0; at < 3; at++) numbers[at] = export_of(buffer.handle);
  CHECK(is_layered() ? numbers[0] == numbers[1] && numbers[1] == numbers[2] : numbers[0] != numbers[1] && numbers[1] != numbers[2]);
  for (int at = 0; at < 3; at++) {
    CHECK(is_alive(numbers[2], 3));
    CHECK(close(numbers[at]) == 0);
  }
  FAILS(EBADF, close(numbers[2]));
  FAILS(EBADF, fd_of(numbers[2]));
  /* A new export is a new number, not one that somebody may still know. */
  int number = export_of(buffer.handle);
  CHECK(is_alive(number, 3) && (!is_layered() || number != numbers[0]));
  CHECK(close(number) == 0);
  free_buffer(buffer);
}

/* The last handle is released; the mapping keeps the memory, and the fd is good for all of that time. */
static void number_when_its_handle_is_released_is_good_while_it_is_mapped(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(4);
  int number = export_of(buffer.handle);
  DRIVER(cu.cuMemRelease(buffer.handle));
  CHECK(shows(buffer.base, 4) && is_alive(number, 4));
  CUmemGenericAllocationHandle handle;
  DRIVER(cu.cuMemRetainAllocationHandle(&handle, (void *)buffer.base));
  CHECK(handle == buffer.handle);
  /* Exported by a handle that has come back. */
  int again = export_of(handle);
  CHECK(is_alive(again, 4));
  DRIVER(cu.cuMemRelease(handle));
  CHECK(close(again) == 0 && is_alive(number, 4));
  CHECK(close(number) == 0);
  unmap_one(buffer.base);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* Nothing but the number is left: it keeps the memory, as an fd does. */
static void number_when_all_is_released_and_unmapped_keeps_the_memory(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(5);
  int number = export_of(buffer.handle);
  free_buffer(buffer);
  Buffer other = new_buffer(6);
  CHECK(is_alive(number, 5) && free_bytes() == before - 2 * SEGMENT);
  CHECK(close(number) == 0);
  free_buffer(other);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* The value of a released handle comes back with the next allocation. */
static void handle_when_its_value_is_used_again_is_exported_as_what_it_is_now(void) {
  use_driver();
  size_t before = whole_card();
  /* Each eviction starts a process. */
  unsigned rounds = getenv("EVICT") ? 20 : 200, values_again = 0;
  for (unsigned round = 0; round < rounds; round++) {
    Buffer first = new_buffer(2 * round);
    int number = export_of(first.handle);
    CHECK(is_alive(number, 2 * round));
    /* In PyTorch's order. */
    unmap_one(first.base);
    CHECK(close(number) == 0);
    DRIVER(cu.cuMemRelease(first.handle));
    Buffer second = new_buffer(2 * round + 1);
    values_again += second.handle == first.handle;
    int other = export_of(second.handle);
    CHECK(is_alive(other, 2 * round + 1) && (!is_layered() || other != number));
    CHECK(close(other) == 0);
    free_buffer(second);
  }
  CHECK(values_again > 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* Several handles in one reservation, and one call that unmaps them all. */
static void mappings_when_unmapped_at_once_all_end(void) {
  use_driver();
  size_t before = whole_card();
  CUmemGenericAllocationHandle handles[4];
  CUdeviceptr base;
  int numbers[4];
  DRIVER(cu.cuMemAddressReserve(&base, 4 * SEGMENT, 0, 0, 0));
  for (int at = 0; at < 4; at++) {
    DRIVER(create(&handles[at]));
    DRIVER(cu.cuMemMap(base + at * SEGMENT, SEGMENT, 0, handles[at], 0));
    numbers[at] = export_of(handles[at]);
    DRIVER(cu.cuMemRelease(handles[at]));
  }
  set_access(base, 4 * SEGMENT);
  for (int at = 0; at < 4; at++) fill(base + at * SEGMENT, 70 + at);
  for (int at = 0; at < 4; at++) CHECK(is_alive(numbers[at], 70 + at));
  /* Half of a mapping, and one with a gap before it, are refused and change nothing. */
  CHECK(cu.cuMemUnmap(base, SEGMENT / 2) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cu.cuMemUnmap(base, SEGMENT));
  CHECK(cu.cuMemUnmap(base, 4 * SEGMENT) == CUDA_ERROR_INVALID_VALUE);
  for (int at = 1; at < 4; at++) CHECK(is_alive(numbers[at], 70 + at));
  DRIVER(cu.cuMemUnmap(base + SEGMENT, 3 * SEGMENT));
  for (int at = 0; at < 4; at++) CHECK(is_alive(numbers[at], 70 + at) && close(numbers[at]) == 0);
  DRIVER(cu.cuMemAddressFree(base, 4 * SEGMENT));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* Each import is the consumer's until its last mapping ends, and no longer. */
static void imports_when_unmapped_at_once_are_given_back(void) {
  use_driver();
  size_t before = whole_card();
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base;
  DRIVER(cu.cuMemAddressReserve(&base, 4 * SEGMENT, 0, 0, 0));
  for (int at = 0; at < 4; at++) {
    Buffer buffer = new_buffer(80 + at);
    int number = export_of(buffer.handle), fd = fd_of(number);
    handle = import_of(fd);
    DRIVER(cu.cuMemMap(base + at * SEGMENT, SEGMENT, 0, handle, 0));
    DRIVER(cu.cuMemRelease(handle));
    CHECK(close(fd) == 0 && close(number) == 0);
    free_buffer(buffer);
  }
  set_access(base, 4 * SEGMENT);
  for (int at = 0; at < 4; at++) CHECK(shows(base + at * SEGMENT, 80 + at));
  CHECK(!is_layered() || COMES_TRUE(ledger("mapped_leases") == 4));
  DRIVER(cu.cuMemUnmap(base, 4 * SEGMENT));
  CHECK(!is_layered() || COMES_TRUE(ledger("mapped_leases") == 0 && ledger("open_leases") == 0));
  DRIVER(cu.cuMemAddressFree(base, 4 * SEGMENT));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* As often as the same memory is mapped, so often it is unmapped. */
static void import_when_mapped_twice_lives_until_the_second_unmap(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(9);
  int number = export_of(buffer.handle), fd = fd_of(number);
  CUmemGenericAllocationHandle handle = import_of(fd);
  CHECK(close(fd) == 0 && close(number) == 0);
  CUdeviceptr first = map_one(handle), second = map_one(handle);
  DRIVER(cu.cuMemRelease(handle));
  free_buffer(buffer);
  unmap_one(first);
  CHECK(shows(second, 9) && free_bytes() == before - SEGMENT);
  unmap_one(second);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static void fd_when_duplicated_before_the_import_is_the_memory(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(11);
  int number = export_of(buffer.handle), fd = fd_of(number);
  int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 100), over = open("/dev/null", O_RDONLY);
  CHECK(dup2(fd, over) == over && close(fd) == 0);
  CUmemGenericAllocationHandle handle = import_of(copy);
  CHECK(close(copy) == 0 && close(number) == 0);
  CHECK(fd_shows(high, 11) && fd_shows(over, 11));
  CHECK(close(high) == 0 && close(over) == 0);
  free_buffer(buffer);
  CUdeviceptr base = map_one(handle);
  CHECK(shows(base, 11));
  unmap_one(base);
  DRIVER(cu.cuMemRelease(handle));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- children --- */

/* 0 in the child. */
static pid_t forked(void) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  return child;
}
static void number_when_a_child_closes_it_lives_on(void) {
  use_driver();
  Buffer buffer = new_buffer(12);
  int number = export_of(buffer.handle);
  pid_t child = forked();
  if (child == 0) {
    /* The driver is the parent's. */
    CHECK(cu.cuMemRelease(buffer.handle) == CUDA_ERROR_NOT_INITIALIZED);
    _exit(!(close(number) == 0 && bad_checks == 0));
  }
  CHECK(status_of(child) == 0 && is_alive(number, 12));
  child = vfork();
  MUST(child >= 0);
  if (child == 0) _exit(close(number));
  CHECK(status_of(child) == 0 && is_alive(number, 12));
  CHECK(close(number) == 0);
  free_buffer(buffer);
}
/* As torch.multiprocessing by fork does: the parent has used no driver yet. */
static void child_when_forked_before_the_driver_is_used_exports_for_itself(void) {
  pid_t child = forked();
  if (child == 0) {
    use_driver();
    Buffer buffer = new_buffer(13);
    int number = export_of(buffer.handle);
    CHECK(is_export(number) && is_alive(number, 13));
    CHECK(close(number) == 0);
    free_buffer(buffer);
    _exit(bad_checks != 0);
  }
  use_driver();
  Buffer buffer = new_buffer(14);
  int number = export_of(buffer.handle);
  CHECK(status_of(child) == 0);
  CHECK(is_export(number) && is_alive(number, 14));
  CHECK(close(number) == 0);
  free_buffer(buffer);
}
/* In a program that was handed an fd. */
static void inherits_fd_3(void) {
  use_driver();
  CHECK(fd_shows(PEER_FD, 15));
  CHECK(close(PEER_FD) == 0);
}
static void exec_when_dup2_puts_the_number_at_3_hands_it_on(void) {
  use_driver();
  Buffer buffer = new_buffer(15);
  int number = export_of(buffer.handle);
  pid_t child = forked();
  if (child == 0) {
    if (dup2(number, PEER_FD) != PEER_FD) _exit(126);
    execl("/proc/self/exe", "self", "inherits_fd_3", NULL);
    _exit(127);
  }
  CHECK(status_of(child) == 0);
  CHECK(close(number) == 0);
  free_buffer(buffer);
}
/* After vfork the child can ask nobody: dup2 may fail with the layer, but must not give another fd. */
static void exec_when_a_vfork_child_puts_the_number_at_3_hands_it_on_or_fails(void) {
  use_driver();
  Buffer buffer = new_buffer(15);
  int number = export_of(buffer.handle);
  pid_t child = vfork();
  MUST(child >= 0);
  if (child == 0) {
    if (dup2(number, PEER_FD) != PEER_FD) _exit(errno == EBADF ? 126 : 125);
    execl("/proc/self/exe", "self", "inherits_fd_3", NULL);
    _exit(127);
  }
  int status = status_of(child);
  CHECK(status == 0 || (is_layered() && status == 126));
  CHECK(is_alive(number, 15) && close(number) == 0);
  free_buffer(buffer);
}
/* A real fd is made before the vfork. */
static void exec_when_a_vfork_child_moves_a_real_fd_to_3_hands_it_on(void) {
  use_driver();
  Buffer buffer = new_buffer(15);
  int number = export_of(buffer.handle), fd = dup(number);
  pid_t child = vfork();
  MUST(child >= 0);
  if (child == 0) {
    if (fd == PEER_FD || dup2(fd, PEER_FD) != PEER_FD) _exit(126);
    execl("/proc/self/exe", "self", "inherits_fd_3", NULL);
    _exit(127);
  }
  CHECK(status_of(child) == 0);
  CHECK(fd_shows(fd, 15) && close(fd) == 0 && close(number) == 0);
  free_buffer(buffer);
}

/* --- exports in a row: the layer has the next ones on their way before the program asks --- */

/* Segments side by side, as PyTorch's are. */
typedef struct {
  CUdeviceptr base;
  CUmemGenericAllocationHandle handles[ROW];
} SideBySide;

static SideBySide new_row(unsigned seed) {
  SideBySide row;
  DRIVER(cu.cuMemAddressReserve(&row.base, ROW * SEGMENT, SEGMENT, 0, 0));
  for (int at = 0; at < ROW; at++) {
    DRIVER(create(&row.handles[at]));
    DRIVER(cu.cuMemMap(row.base + at * SEGMENT, SEGMENT, 0, row.handles[at], 0));
  }
  set_access(row.base, ROW * SEGMENT);
  for (int at = 0; at < ROW; at++) fill(row.base + at * SEGMENT, seed + at);
  return row;
}
static void free_one(SideBySide *row, int at) {
  DRIVER(cu.cuMemUnmap(row->base + at * SEGMENT, SEGMENT));
  DRIVER(cu.cuMemRelease(row->handles[at]));
}
/* The broker has as many allocations, if it has any. */
static int has_registered(long count) { return !is_layered() || COMES_TRUE(ledger("allocations") == count); }

static void exports_when_in_a_row_are_some_ahead_and_no_more(void) {
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 2048) { /* Nothing is exported ahead where fds are scarce. */
    printf("not run: exports_when_in_a_row_are_some_ahead_and_no_more: needs a hard limit of 2048 fds\n");
    return;
  }
  use_driver();
  size_t before = whole_card();
  SideBySide row = new_row(300);
  int numbers[ROW];
  /* From the second on one is ahead, then two, then four at a time, while fewer than that are. */
  const int registered[] = {1, 3, 5, 8};
  for (int at = 0; at < ROW; at++) {
    numbers[at] = export_of(row.handles[at]);
    CHECK(memory_fds() == (is_layered() ? 0 : at + 1));
    CHECK(has_registered(at < 4 ? registered[at] : ROW));
  }
  for (int at = 0; at < ROW; at++) CHECK(is_alive(numbers[at], 300 + at));
  for (int at = 0; at < ROW; at++) {
    CHECK(close(numbers[at]) == 0);
    free_one(&row, at);
  }
  DRIVER(cu.cuMemAddressFree(row.base, ROW * SEGMENT));
  CHECK(has_registered(0) && COMES_TRUE(free_bytes() == before));
}

/* What is registered ahead is the program's to free, and to leave alone. */
static void exports_when_a_row_ends_leave_nothing_behind(void) {
  use_driver();
  size_t before = whole_card();
  for (int is_freed = 0; is_freed < 2; is_freed++) {
    SideBySide row = new_row(320);
    int first = export_of(row.handles[0]), second = export_of(row.handles[1]);
    CHECK(has_registered(3));
    if (is_freed) {
      size_t free_now = free_bytes();
      free_one(&row, 2);
      CHECK(free_bytes() == free_now + SEGMENT && has_registered(2));
    }
    /* The program goes on elsewhere. */
    Buffer buffer = new_buffer(330);
    int third = export_of(buffer.handle);
    CHECK(has_registered(3) && is_alive(third, 330) && is_alive(first, 320) && is_alive(second, 321));
    CHECK(close(third) == 0 && close(first) == 0 && close(second) == 0 && has_registered(0));
    free_buffer(buffer);
    for (int at = 0; at < ROW; at++)
      if (at != 2 || !is_freed) free_one(&row, at);
    DRIVER(cu.cuMemAddressFree(row.base, ROW * SEGMENT));
    CHECK(COMES_TRUE(free_bytes() == before));
  }
}

/* A handle's value may be another allocation's while its former one was registered ahead. */
static void exports_when_what_comes_next_was_replaced_are_what_is_there_now(void) {
  use_driver();
  size_t before = whole_card();
  for (int round = 0; round < 20; round++) {
    SideBySide row = new_row(340);
    int first = export_of(row.handles[0]), second = export_of(row.handles[1]);
    free_one(&row, 2);
    DRIVER(create(&row.handles[2]));
    DRIVER(cu.cuMemMap(row.base + 2 * SEGMENT, SEGMENT, 0, row.handles[2], 0));
    set_access(row.base + 2 * SEGMENT, SEGMENT);
    fill(row.base + 2 * SEGMENT, 400 + round);
    int third = export_of(row.handles[2]);
    CHECK(is_alive(third, 400 + round) && is_alive(first, 340) && is_alive(second, 341));
    CHECK(close(third) == 0 && close(first) == 0 && close(second) == 0);
    for (int at = 0; at < ROW; at++) free_one(&row, at);
    DRIVER(cu.cuMemAddressFree(row.base, ROW * SEGMENT));
  }
  CHECK(has_registered(0) && COMES_TRUE(free_bytes() == before));
}

/* A child has what it exports by itself, and not what its parent has on its way. */
static void exports_when_a_child_goes_on_with_the_row_are_the_parents_still(void) {
  use_driver();
  SideBySide row = new_row(360);
  int numbers[ROW] = {export_of(row.handles[0]), export_of(row.handles[1])};
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) _exit(0);
  CHECK(status_of(child) == 0);
  for (int at = 2; at < ROW; at++) numbers[at] = export_of(row.handles[at]);
  for (int at = 0; at < ROW; at++) CHECK(is_alive(numbers[at], 360 + at) && close(numbers[at]) == 0);
  for (int at = 0; at < ROW; at++) free_one(&row, at);
  DRIVER(cu.cuMemAddressFree(row.base, ROW * SEGMENT));
  CHECK(has_registered(0));
}

static void *exports_a_row(void *seed) {
  push_context();
  unsigned first = (unsigned)(uintptr_t)seed;
  for (int round = 0; round < 20; round++) {
    SideBySide row = new_row(first);
    int numbers[ROW];
    for (int at = 0; at < ROW; at++) numbers[at] = export_of(row.handles[at]);
    for (int at = 0; at < ROW; at++)
      if (!is_alive(numbers[at], first + at) || close(numbers[at]) != 0) return "other memory";
    for (int at = 0; at < ROW; at++) free_one(&row, at);
    DRIVER(cu.cuMemAddressFree(row.base, ROW * SEGMENT));
  }
  return NULL;
}
static void exports_when_threads_go_through_rows_of_their_own_are_right(void) {
  use_driver();
  size_t before = whole_card();
  pthread_t threads[3];
  void *wrong;
  for (uintptr_t at = 0; at < 3; at++) MUST(pthread_create(&threads[at], NULL, exports_a_row, (void *)(500 + 20 * at)) == 0);
  for (int at = 0; at < 3; at++) CHECK(pthread_join(threads[at], &wrong) == 0 && wrong == NULL);
  CHECK(has_registered(0) && COMES_TRUE(free_bytes() == before));
}

static const Row rows[] = {
    ROLE(inherits_fd_3),
    CASE(child_when_forked_before_the_driver_is_used_exports_for_itself),
    CASE(number_when_imported_by_its_exporter_is_the_memory),
    CASE(number_when_exported_three_times_ends_with_the_third_close),
    CASE(number_when_its_handle_is_released_is_good_while_it_is_mapped),
    CASE(number_when_all_is_released_and_unmapped_keeps_the_memory),
    CASE(handle_when_its_value_is_used_again_is_exported_as_what_it_is_now),
    CASE(mappings_when_unmapped_at_once_all_end),
    CASE(imports_when_unmapped_at_once_are_given_back),
    CASE(exports_when_in_a_row_are_some_ahead_and_no_more),
    CASE(exports_when_a_row_ends_leave_nothing_behind),
    CASE(exports_when_what_comes_next_was_replaced_are_what_is_there_now),
    CASE(exports_when_a_child_goes_on_with_the_row_are_the_parents_still),
    CASE(exports_when_threads_go_through_rows_of_their_own_are_right),
    CASE(import_when_mapped_twice_lives_until_the_second_unmap),
    CASE(fd_when_duplicated_before_the_import_is_the_memory),
    CASE(number_when_a_child_closes_it_lives_on),
    CASE(exec_when_dup2_puts_the_number_at_3_hands_it_on),
    CASE(exec_when_a_vfork_child_puts_the_number_at_3_hands_it_on_or_fails),
    CASE(exec_when_a_vfork_child_moves_a_real_fd_to_3_hands_it_on),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
