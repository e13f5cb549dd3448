/* How long exports, imports and memory live: closes, releases, mappings, children, a full card.
 * usage: lifetimes [CASE]... */
#include "shapes.h"

#include <sys/mman.h>

/* Exports in a row, and how many of them come before the first look at what the process has. */
#define EXPORTS 100000
#define WARM_UP 10000
/* Growth of the process that is no leak, in KiB: 100,000 records of 16 bytes would be more. */
#define NOISE_KIB 1024

/* What a consumer in this process would get: a real fd. With the command $EVICT the broker has to ask for it first. */
static int fd_of(int number) {
  MUST(getenv("EVICT") == NULL || system(getenv("EVICT")) == 0);
  int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0), fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
  int error = errno;
  close(pidfd);
  errno = error;
  return fd;
}
static int is_alive(int number, unsigned seed) {
  int fd = fd_of(number), is_shown = fd_shows(fd, seed);
  return is_shown && close(fd) == 0;
}

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

/* --- ends of programs --- */

static Buffer last;
static int last_number;
/* As destructors of C++ programs and of libraries do, when other libraries have ended already. */
static void frees_at_the_end(void) {
  if (!last_number) return;
  alarm(20);
  if (close(last_number) != 0) _exit(3);
  cu.cuMemUnmap(last.base, SEGMENT);
  cu.cuMemRelease(last.handle);
}
__attribute__((destructor)) static void frees_in_a_destructor(void) { frees_at_the_end(); }
static void ends_with_exit(void) {
  use_driver();
  last = new_buffer(30);
  last_number = export_of(last.handle);
  CHECK(is_export(last_number) && is_alive(last_number, 30));
}
static void ends_with_all_it_has(void) {
  use_driver();
  for (int at = 0; at < SEGMENTS; at++) {
    Buffer buffer = new_buffer(at);
    int number = export_of(buffer.handle), fd = fd_of(number);
    CHECK(import_of(fd) != 0 && is_alive(number, at));
  }
}
static void memory_when_a_program_ends_comes_back(void) {
  use_driver();
  size_t before = whole_card();
  CHECK(finish(start("ends_with_exit")) == 0);
  CHECK(finish(start("ends_with_all_it_has")) == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- a full card --- */

/* A program looks how much is free right after it has freed something. The layer waits for the broker, though not for ever: so a
 * loaded machine may be late now and then. */
static void memory_when_freed_is_back_when_the_call_returns(void) {
  use_driver();
  size_t before = whole_card();
  int late = 0;
  for (int round = 0; round < 200; round++) {
    Buffer buffer = new_buffer(round);
    int number = export_of(buffer.handle), fd = round % 4 < 2 ? fd_of(number) : -1;
    CHECK(fd < 0 || close(fd) == 0);
    if (round % 2) free_buffer(buffer);
    CHECK(close(number) == 0);
    if (round % 2 == 0) free_buffer(buffer);
    late += free_bytes() != before;
    CHECK(COMES_TRUE(free_bytes() == before));
  }
  CHECK(late <= (is_layered() ? 20 : 0));
}

/* Every byte of the card is one allocation or another; needs FDBROKER_CUDA_STUB_BYTES. */
static void card_when_full_has_room_right_after_an_export_is_freed(void) {
  use_driver();
  size_t before = whole_card(), count = before / SEGMENT;
  CUmemGenericAllocationHandle *handles = calloc(count + 1, sizeof *handles);
  int *numbers = calloc(count, sizeof *numbers);
  MUST(handles && numbers && count > 0 && count < 1000);
  for (size_t at = 0; at < count; at++) {
    DRIVER(create(&handles[at]));
    numbers[at] = export_of(handles[at]);
  }
  CHECK(create(&handles[count]) == CUDA_ERROR_OUT_OF_MEMORY);
  for (size_t at = 0; at < count; at++) {
    CHECK(close(numbers[at]) == 0);
    DRIVER(cu.cuMemRelease(handles[at]));
    /* At once: what a broker still holds would leave no room. */
    DRIVER(create(&handles[at]));
    numbers[at] = export_of(handles[at]);
  }
  for (size_t at = 0; at < count; at++) {
    CHECK(close(numbers[at]) == 0);
    DRIVER(cu.cuMemRelease(handles[at]));
  }
  CHECK(COMES_TRUE(free_bytes() == before));
  /* And by the mapping's end, the handle being gone already. */
  for (size_t at = 0; at < count; at++) DRIVER(create(&handles[at]));
  CUdeviceptr base = map_one(handles[0]);
  numbers[0] = export_of(handles[0]);
  DRIVER(cu.cuMemRelease(handles[0]));
  CHECK(create(&handles[count]) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(close(numbers[0]) == 0);
  unmap_one(base);
  DRIVER(create(&handles[0]));
  for (size_t at = 0; at < count; at++) DRIVER(cu.cuMemRelease(handles[at]));
  CHECK(COMES_TRUE(free_bytes() == before));
  free(handles);
  free(numbers);
}

/* --- many --- */

static long resident_kib(void) {
  long pages = 0, resident = 0;
  FILE *statm = fopen("/proc/self/statm", "re");
  MUST(statm != NULL && fscanf(statm, "%ld %ld", &pages, &resident) == 2 && fclose(statm) == 0);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}
static void process_when_100000_are_exported_and_closed_does_not_grow(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(16);
  int fds = 0;
  long before_kib = 0;
  for (int at = 0; at < EXPORTS; at++) {
    int number = export_of(buffer.handle);
    /* Some of them are used. */
    if (!is_export(number) || (at % 1000 == 0 && !is_alive(number, 16)) || close(number) != 0) {
      CHECK(!"exported and closed");
      break;
    }
    if (at == WARM_UP) {
      before_kib = resident_kib();
      fds = open_fds();
    }
  }
  CHECK(open_fds() == fds);
  CHECK(resident_kib() - before_kib < NOISE_KIB);
  CHECK(!is_layered() || COMES_TRUE(ledger("allocations") == 0));
  free_buffer(buffer);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static const Row rows[] = {
    ROLE(inherits_fd_3),
    ROLE(ends_with_exit),
    ROLE(ends_with_all_it_has),
    CASE(child_when_forked_before_the_driver_is_used_exports_for_itself),
    CASE(number_when_imported_by_its_exporter_is_the_memory),
    CASE(number_when_exported_three_times_ends_with_the_third_close),
    CASE(number_when_its_handle_is_released_is_good_while_it_is_mapped),
    CASE(number_when_all_is_released_and_unmapped_keeps_the_memory),
    CASE(handle_when_its_value_is_used_again_is_exported_as_what_it_is_now),
    CASE(mappings_when_unmapped_at_once_all_end),
    CASE(imports_when_unmapped_at_once_are_given_back),
    CASE(import_when_mapped_twice_lives_until_the_second_unmap),
    CASE(fd_when_duplicated_before_the_import_is_the_memory),
    CASE(number_when_a_child_closes_it_lives_on),
    CASE(exec_when_dup2_puts_the_number_at_3_hands_it_on),
    CASE(exec_when_a_vfork_child_puts_the_number_at_3_hands_it_on_or_fails),
    CASE(exec_when_a_vfork_child_moves_a_real_fd_to_3_hands_it_on),
    CASE(memory_when_a_program_ends_comes_back),
    CASE(memory_when_freed_is_back_when_the_call_returns),
    CASE(card_when_full_has_room_right_after_an_export_is_freed),
    CASE(process_when_100000_are_exported_and_closed_does_not_grow),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
