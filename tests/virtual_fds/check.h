/* Shared by the programs of this folder: checks, memory to export, a second process.
 * They know nothing of fdbroker: plain calls of the C library, and the "driver's" function, which dlsym finds. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include "../common/cases.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longest life of a process, in s, and longest wait for one thing, in ms: only a hang exceeds them. */
#define LIFE_S 120u
#define SOON_MS 20000
/* Bytes of one export. */
#define SIZE 8192u
/* A number from which on virtual fds begin, and one that is none, as far as chance goes. */
#define FIRST_VIRTUAL (1 << 30)
#define NO_SUCH_FD 0x7fffffff
/* Above the largest number of a process. */
#define NO_SUCH_PID (1 << 23)

/* A call that answers -1 and this errno. */
#define FAILS(error, call) CHECK((errno = 0, (long)(call)) == -1 && errno == (error))

/* glibc 2.36 has these, older headers do not name them. */
int pidfd_open(pid_t, unsigned), pidfd_getfd(int, int, unsigned), pidfd_send_signal(int, int, siginfo_t *, unsigned);

/* The driver's function that exports memory as an fd. */
static inline int driver_export(int memory) {
  int (*export)(int, size_t) = (int (*)(int, size_t))dlsym(RTLD_DEFAULT, "test_export");
  MUST(export != NULL);
  return export(memory, SIZE);
}

static inline void use_driver(void) {
  void (*use)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "test_use_driver");
  MUST(use != NULL);
  use();
}

static inline int new_memory(const char *text) {
  int fd = memfd_create("virtual-fds", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(fd >= 0 && ftruncate(fd, SIZE) == 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
  MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

/* Memory with this text, exported; the producer has no fd of it afterwards. */
static inline int exported(const char *text) {
  int memory = new_memory(text), number = driver_export(memory);
  MUST(number >= FIRST_VIRTUAL && close(memory) == 0);
  return number;
}

/* Whether a real fd shows this text. */
static inline int shows(int fd, const char *text) {
  char seen[64] = "";
  return fd >= 0 && fd < FIRST_VIRTUAL && pread(fd, seen, strlen(text), 0) == (ssize_t)strlen(text) &&
         strcmp(seen, text) == 0;
}

static inline void begin(void) {
  for (int one = 1; one < NSIG; one++) signal(one, SIG_DFL);
  alarm(LIFE_S);
  setvbuf(stdout, NULL, _IOLBF, 0);
}

/* The exit status of a child; 128 + N when signal N ended it. */
static inline int status_of(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0) MUST(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* This program anew, in a process of its own that has nothing of this one: `self role number`. */
static inline int elsewhere(const char *role, int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "self", role, text, NULL);
    _exit(127);
  }
  return status_of(child);
}

#endif
