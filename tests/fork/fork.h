/* Shared by the C tests of forked children: what becomes of a child that touches memory. Must never wait for ever. */
#ifndef FORK_H
#define FORK_H

#include "check.h"

/* Longest life of a child, in s. */
#define CHILD_LIFE_S 60u

/* Reads a byte of each page. */
static inline void touch(const void *memory, size_t size) {
  for (size_t at = 0; at < size; at += 4096) (void)*((const volatile unsigned char *)memory + at);
}

/* How a child of fork(3) ends that does this and nothing else: 0, or 128 + N for signal N. */
static inline int child_does(void (*what)(void)) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(CHILD_LIFE_S);
    what();
    _exit(0);
  }
  return status_of(child);
}

/* Whether it ends by the fault of a page that is not there. */
static inline int faults(void (*what)(void)) { return child_does(what) == 128 + SIGSEGV; }

#endif
