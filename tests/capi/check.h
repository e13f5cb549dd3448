/* Shared by all C tests: cases, checks, counters, and a private broker.
 * Must never wait for ever: every wait has a limit, and an alarm ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include "../common/cases.h"
#include "fdbroker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A deadline in ms that only a hang exceeds, also under valgrind. */
#define SOON 20000u
/* Longest life of a test program, in s. */
#define LIFE_S 240u

/* Checks the code that a call answers. */
#define CODE(expected, call) \
  do { \
    fdbroker_code_t code_ = (call); \
    if (code_ != (expected)) { \
      bad_checks++; \
      printf("      %s:%d: %s answers %s, not %s; last error: %s\n", __FILE__, __LINE__, #call, \
             fdbroker_error_name(code_), fdbroker_error_name(expected), fdbroker_last_error()); \
    } \
  } while (0)

#define OK(call) CODE(FDBROKER_OK, call)

/* The same under any parent: signals as after a login, and the fds 0, 1 and 2 alone. */
static inline void begin(void) {
  sigset_t none;
  int fd;
  for (int one = 1; one < NSIG; one++) signal(one, SIG_DFL);
  sigemptyset(&none);
  MUST(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
  while ((fd = open("/dev/null", O_RDWR)) < 3) MUST(fd >= 0);
  MUST(close_range(3, ~0u, 0) == 0);
  alarm(LIFE_S);
  setvbuf(stdout, NULL, _IOLBF, 0);
}

static inline int end(void) { return bad_cases != 0; }

/* ---- a broker */

struct broker {
  char dir[64];
  char socket[128];
  char admin[128];
  pid_t pid;
  int life; /* closing it ends the broker */
};

/* Starts fdbrokerd in broker->dir; `set`, unless NULL, is one KEY=VALUE of its configuration. Its time limits are long: on a
 * busy machine a process may get no processor for seconds, and must not count as silent. */
static inline void broker_start_in(struct broker *broker, const char *set) {
  int life[2], ready[2];
  MUST(pipe2(life, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
  snprintf(broker->socket, sizeof broker->socket, "%s/fdbroker/broker.sock", broker->dir);
  snprintf(broker->admin, sizeof broker->admin, "%s/fdbroker-admin/admin.sock", broker->dir);
  const char *program = getenv("FDBROKERD");
  MUST(program != NULL);
  broker->pid = fork();
  MUST(broker->pid >= 0);
  if (broker->pid == 0) {
    /* Handed on by the numbers that they have: any other number may be the other one's, or be in use. */
    char until_eof[12], ready_fd[12];
    MUST(fcntl(life[0], F_SETFD, 0) == 0 && fcntl(ready[1], F_SETFD, 0) == 0);
    snprintf(until_eof, sizeof until_eof, "%d", life[0]);
    snprintf(ready_fd, sizeof ready_fd, "%d", ready[1]);
    execl(program, program, "--private", broker->dir, "--log", "error", "--until-eof", until_eof, "--ready-fd",
          ready_fd, "--set", "limits.recall_timeout_ms=600000", "--set", "limits.grace_ms=600000", set ? "--set" : NULL,
          set, NULL);
    MUST(!"fdbrokerd can be run");
  }
  close(life[0]);
  close(ready[1]);
  char word[6];
  MUST(read(ready[0], word, sizeof word) == 6);
  close(ready[0]);
  broker->life = life[1];
}

static inline void broker_start(struct broker *broker, const char *set) {
  strcpy(broker->dir, "/tmp/fdbroker-capi-XXXXXX");
  MUST(mkdtemp(broker->dir) != NULL);
  broker_start_in(broker, set);
}

/* Kills the broker, like a crash. */
static inline void broker_kill(struct broker *broker) {
  MUST(kill(broker->pid, SIGKILL) == 0 && waitpid(broker->pid, NULL, 0) == broker->pid);
  close(broker->life);
  broker->pid = 0;
}

static inline void broker_stop(struct broker *broker) {
  char command[128];
  if (broker->pid != 0) {
    close(broker->life);
    while (waitpid(broker->pid, NULL, 0) < 0 && errno == EINTR) {
    }
  }
  snprintf(command, sizeof command, "rm -rf '%s'", broker->dir);
  MUST(system(command) == 0);
}

static inline fdbroker_t *open_with(const struct broker *broker, uint32_t flags) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker->socket;
  options.flags = flags;
  /* Small: valgrind's search for leaks reads, and so allocates, every page of it. */
  options.arena_bytes = 16u << 20;
  fdbroker_t *context = NULL;
  OK(fdbroker_open(&options, &context));
  MUST(context != NULL);
  return context;
}

static inline fdbroker_t *open_at(const struct broker *broker) { return open_with(broker, 0); }

/* One number of the broker's ledger, such as open_leases, by `fdbroker status --json`. */
static inline long ledger(const struct broker *broker, const char *name) {
  char command[512], text[4096], key[64];
  const char *program = getenv("FDBROKER");
  MUST(program != NULL);
  snprintf(command, sizeof command, "FDBROKER_ADMIN_SOCKET='%s' '%s' status --json", broker->admin, program);
  FILE *out = popen(command, "re");
  MUST(out != NULL);
  size_t length = fread(text, 1, sizeof text - 1, out);
  text[length] = 0;
  pclose(out);
  snprintf(key, sizeof key, "\"%s\":{\"now\":", name);
  const char *at = strstr(text, key);
  MUST(at != NULL);
  return atol(at + strlen(key));
}

static inline void nap_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}

/* Waits for `condition`, for SOON ms at most: one-way messages have no answer to wait for. */
#define EVENTUALLY(condition) \
  do { \
    for (unsigned waited_ = 0; !(condition) && waited_ < SOON; waited_ += 5) nap_ms(5); \
    CHECK(condition); \
  } while (0)

/* ---- this process */

static inline int entries_of(const char *path) {
  int count = 0;
  DIR *dir = opendir(path);
  MUST(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

static inline int open_fds(void) { return entries_of("/proc/self/fd") - 1; }
static inline int threads(void) { return entries_of("/proc/self/task"); }

/* ---- memory */

/* A memfd with the seals that fdbrokerd demands, filled with `fill`. */
static inline int sealed_memfd(size_t size, int fill) {
  int fd = memfd_create("capi-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  void *memory = mmap(NULL, size, PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(memory != MAP_FAILED);
  memset(memory, fill, size);
  munmap(memory, size);
  MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  return fd;
}

static inline fdbroker_allocation_t memfd_allocation(uint64_t size) {
  fdbroker_allocation_t allocation = {0};
  allocation.struct_size = sizeof allocation;
  allocation.kind = FDBROKER_KIND_MEMFD;
  allocation.size_bytes = size;
  return allocation;
}

static inline int all_bytes_are(const void *memory, int value, size_t count) {
  const unsigned char *bytes = memory;
  for (size_t at = 0; at < count; at++)
    if (bytes[at] != (unsigned char)value) return 0;
  return 1;
}

static inline fdbroker_stats_t stats_of(fdbroker_t *context) {
  fdbroker_stats_t stats = {0};
  stats.struct_size = sizeof stats;
  OK(fdbroker_stats(context, &stats));
  return stats;
}

static inline int writes_all(int fd, const void *bytes, size_t count) {
  return write(fd, bytes, count) == (ssize_t)count;
}

static inline int reads_all(int fd, void *bytes, size_t count) {
  size_t have = 0;
  while (have < count) {
    ssize_t more = read(fd, (char *)bytes + have, count - have);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return 0;
    have += (size_t)more;
  }
  return 1;
}

/* The exit status of a child; 128 + N when signal N ended it. */
static inline int status_of(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0) MUST(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
