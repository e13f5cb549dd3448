/* A CUDA program under the layer that closes fds which it does not know, past the C library's functions, and has something of its
 * own there. Must never know fdbroker but by its numbers. */
#include "../cuda_stub/shapes.h"
#include "taken.h"

#include <sys/resource.h>

#define MOST_OWN 256

static void fds_of_the_layer_taken_over_then_nothing_is_touched_and_later_exports_are_good(void) {
  use_driver();
  for (int kind = 0; kind < KINDS; kind++) {
    struct taken taken[MOST_OWN];
    int own[MOST_OWN], good = 0;
    Buffer buffer = new_buffer(kind);
    int number = export_of(buffer.handle);
    CHECK(is_export(number) && is_alive(number, kind));
    int count = connection_fds(own, MOST_OWN);
    CHECK(count >= 4);
    take_all(kind, own, count, taken);
    for (int round = 0; round < 200 && !good; round++) {
      Buffer other = new_buffer(100 + round);
      int exported = export_of(other.handle);
      good = is_export(exported) && is_alive(exported, 100 + round);
      close(exported);
      free_buffer(other);
      if (!good) pause_ms(20);
    }
    CHECK(good);
    close(number);
    free_buffer(buffer);
    int untouched = 1;
    for (int at = 0; at < count; at++) untouched &= is_untouched(&taken[at]);
    CHECK(untouched);
    if (!untouched) printf("      %s\n", kind_names[kind]);
    /* Past the layer, too: it may have the numbers on its list. */
    for (int at = 0; at < count; at++) {
      close(taken[at].same);
      if (taken[at].other >= 0) close(taken[at].other);
      syscall(SYS_close, taken[at].number);
    }
  }
}

int main(void) {
  /* So that the library's numbers are among those that are looked at. */
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 1024;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  begin();
  RUN(fds_of_the_layer_taken_over_then_nothing_is_touched_and_later_exports_are_good);
  return bad_cases != 0;
}
