/* Cases, checks and counters of the C tests. Must never know what is tested. */
#ifndef CASES_H
#define CASES_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int bad_checks, bad_cases;

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      int errno_ = errno; \
      bad_checks++; \
      printf("      %s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno_); \
    } \
  } while (0)

/* For what the test itself needs: a failure ends the program. */
#define MUST(condition) \
  do { \
    if (!(condition)) { \
      printf("FAIL  %s:%d: cannot test: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
      fflush(stdout); \
      _exit(1); \
    } \
  } while (0)

#define RUN(name) \
  do { \
    bad_checks = 0; \
    name(); \
    printf("%s  %s\n", bad_checks ? "FAIL" : "ok  ", #name); \
    fflush(stdout); \
    bad_cases += bad_checks != 0; \
  } while (0)

#endif
