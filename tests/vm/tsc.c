// Prints how many thousand times a second this machine's time stamp counter counts. An emulated guest reads the same
// counter, and measures it wrongly where its processor has to wait. Must never need a counter's frequency from elsewhere.
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

enum { APART_NS = 50000000, TRIES = 50 };

struct instant { int64_t ns; uint64_t count; };

// The shortest of several looks: what came between its two reads of the counter is least.
static struct instant look(void) {
    struct instant best = {0, 0};
    for (uint64_t shortest = UINT64_MAX, tries = 0; tries < TRIES; tries++) {
        struct timespec time;
        uint64_t before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC_RAW, &time);
        uint64_t took = __rdtsc() - before;
        if (took >= shortest) continue;
        shortest = took;
        best = (struct instant){time.tv_sec * INT64_C(1000000000) + time.tv_nsec, before + took / 2};
    }
    return best;
}

int main(void) {
    struct instant first = look(), last;
    do last = look(); while (last.ns - first.ns < APART_NS);
    printf("%" PRIu64 "\n", (last.count - first.count) * 1000000 / (uint64_t)(last.ns - first.ns));
    return 0;
}
