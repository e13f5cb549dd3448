/* When memory comes back: ends of programs, a full card, many exports. usage: ends [CASE]... */
#include "shapes.h"

/* Exports in a row, and how many of them come before the first look at what the process has. */
#define EXPORTS 100000
#define WARM_UP 10000
/* Growth of the process that is no leak, in KiB: 100,000 records of 16 bytes would be more. */
#define NOISE_KIB 1024

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
    ROLE(ends_with_exit),
    ROLE(ends_with_all_it_has),
    CASE(memory_when_a_program_ends_comes_back),
    CASE(memory_when_freed_is_back_when_the_call_returns),
    CASE(card_when_full_has_room_right_after_an_export_is_freed),
    CASE(process_when_100000_are_exported_and_closed_does_not_grow),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
