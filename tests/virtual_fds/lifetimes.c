/* How long virtual fds, their leases and the layer's own fds live: closes, duplicates, children, exec.
 * usage: lifetimes, or lifetimes ROLE NUMBER as another process. */
#include "check.h"

#include <linux/close_range.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/time.h>

#define TEXT "of the producer"
/* Exports in a row, and how many of them come before the first look at what the process has. */
#define EXPORTS 100000
#define WARM_UP 10000
/* Growth of the process that is no leak, in KiB: 100,000 records of 16 bytes would be more. */
#define NOISE_KIB 1024

static int is_alive(int number) {
  int fd = dup(number);
  int is_shown = shows(fd, TEXT);
  return fd >= 0 && close(fd) == 0 && is_shown;
}

/* A number of the broker's ledger, by the command. */
static long ledger(const char *name) {
  char text[8192], key[64];
  FILE *out = popen("LD_PRELOAD= \"$FDBROKER\" status --json", "re");
  MUST(out != NULL);
  size_t length = fread(text, 1, sizeof text - 1, out);
  text[length] = 0;
  pclose(out);
  snprintf(key, sizeof key, "\"%s\":{\"now\":", name);
  char *at = strstr(text, key);
  MUST(at != NULL);
  return atol(at + strlen(key));
}

/* Leases end on a thread of the layer's, soon. */
static int comes_to(const char *name, long count) {
  struct timespec pause = {0, 20000000};
  for (int waited_ms = 0; waited_ms < SOON_MS; waited_ms += 20) {
    if (ledger(name) == count) return 1;
    nanosleep(&pause, NULL);
  }
  return 0;
}

static void close_when_exported_n_times_ends_it_with_the_last(void) {
  int memory = new_memory(TEXT), number = driver_export(memory);
  CHECK(number >= FIRST_VIRTUAL);
  CHECK(driver_export(memory) == number && driver_export(memory) == number);
  CHECK(close(number) == 0 && is_alive(number));
  CHECK(syscall(SYS_close, number) == 0 && is_alive(number));
  CHECK(close(number) == 0);
  FAILS(EBADF, dup(number));
  FAILS(EBADF, close(number));
  CHECK(elsewhere("is-ended", number) == 0);
  CHECK(close(memory) == 0);
}

/* The broker tells the handles of those that were exported next, too. What it told must not outlive an end. */
static void number_when_told_ahead_and_ended_leads_nowhere(void) {
  int numbers[4];
  const char *texts[] = {"first", "second", "third", "fourth"};
  for (int i = 0; i < 4; i++) numbers[i] = exported(texts[i]);
  int fd = dup(numbers[0]);
  CHECK(shows(fd, texts[0]) && close(fd) == 0);
  CHECK(close(numbers[1]) == 0);
  FAILS(EBADF, dup(numbers[1]));
  CHECK((fd = dup(numbers[2])) >= 0 && shows(fd, texts[2]) && close(fd) == 0);
  CHECK((fd = dup(numbers[2])) >= 0 && shows(fd, texts[2]) && close(fd) == 0);
  CHECK((fd = dup(numbers[3])) >= 0 && shows(fd, texts[3]) && close(fd) == 0);
  CHECK(close(numbers[0]) == 0 && close(numbers[2]) == 0 && close(numbers[3]) == 0);
}

static void close_range_when_it_spans_numbers_ends_them(void) {
  int memory = new_memory(TEXT), twice = driver_export(memory), once = exported("another");
  CHECK(driver_export(memory) == twice && close(memory) == 0);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) _exit(close_range(FIRST_VIRTUAL, ~0u, 0) != 0);
  CHECK(status_of(child) == 0 && is_alive(twice));
  CHECK(close_range((unsigned)once, (unsigned)once, CLOSE_RANGE_CLOEXEC) == 0);
  int fd = dup(once);
  CHECK(shows(fd, "another") && close(fd) == 0);
  CHECK(close_range((unsigned)once, (unsigned)once, 0) == 0);
  FAILS(EBADF, dup(once));
  CHECK(is_alive(twice) && close_range(FIRST_VIRTUAL, ~0u, 0) == 0);
  FAILS(EBADF, dup(twice));
  FAILS(EBADF, close(twice));
}

static volatile sig_atomic_t signals, spare;

static void closes_numbers(int signal) {
  (void)signal;
  signals++;
  close(NO_SUCH_FD);
  if (spare) close(spare);
  spare = 0;
}

/* close(2) may be called in a handler, whatever the handler has interrupted. */
static void close_when_in_a_handler_never_waits_for_what_it_interrupted(void) {
  struct sigaction action = {.sa_handler = closes_numbers, .sa_flags = SA_RESTART}, before;
  struct itimerval often = {{0, 997}, {0, 997}}, never = {{0, 0}, {0, 0}};
  MUST(sigaction(SIGALRM, &action, &before) == 0);
  int number = exported(TEXT), last = 0, wrong = 0;
  MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
  for (int at = 0; at < 300 || signals < 50; at++) {
    if (!spare) spare = last = exported("spare");
    int fd = dup(number);
    wrong += !shows(fd, TEXT) || close(fd) != 0;
  }
  while (spare) pause();
  MUST(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0);
  alarm(LIFE_S);
  CHECK(wrong == 0 && is_alive(number) && close(number) == 0);
  FAILS(EBADF, dup(last));
}

/* A consumer cannot end what it has not exported. */
static void close_when_in_another_process_is_ebadf(void) {
  int number = exported(TEXT);
  CHECK(elsewhere("close", number) == 0);
  CHECK(is_alive(number) && close(number) == 0);
}

static void close_when_in_a_child_ends_nothing(void) {
  int number = exported(TEXT);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) _exit(!(close(number) == 0 && close(number) == 0 && is_alive(number)));
  CHECK(status_of(child) == 0);
  child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  MUST(child >= 0);
  if (child == 0) _exit(!(close(number) == 0 && close(number) == 0));
  CHECK(status_of(child) == 0);
  child = vfork();
  MUST(child >= 0);
  if (child == 0) _exit(!(close(number) == 0 && close(number) == 0));
  CHECK(status_of(child) == 0);
  CHECK(is_alive(number) && close(number) == 0);
}

static void leases_when_duplicated_end_with_the_last(void) {
  int number = exported(TEXT);
  int first = (int)syscall(SYS_pidfd_getfd, -1, number, 0), second = dup(first);
  int third = fcntl(second, F_DUPFD_CLOEXEC, 40), fourth = dup2(third, 50);
  CHECK(comes_to("open_leases", 1));
  CHECK(close(first) == 0 && close(third) == 0 && close_range(50, 50, 0) == 0);
  /* A lease of its own, whose end would be told after that of the first. */
  int marker = dup(number);
  CHECK(close(marker) == 0);
  CHECK(comes_to("open_leases", 1));
  CHECK(fourth == 50 && shows(second, TEXT));
  /* Replaced, not closed. */
  CHECK(dup2(0, second) == second);
  CHECK(comes_to("open_leases", 0));
  CHECK(close(second) == 0 && close(number) == 0);
}

/* The sockets and epolls that are open: the layer's, since the program has none. */
static int own_fds(int *fds, int room) {
  int count = 0;
  for (int fd = 3; fd < 1024; fd++) {
    char path[32], link[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, link, sizeof link - 1);
    link[length < 0 ? 0 : length] = 0;
    if (length > 0 && (strncmp(link, "socket:", 7) == 0 || strstr(link, "[eventpoll]"))) {
      MUST(count < room);
      fds[count++] = fd;
    }
  }
  return count;
}

/* In a process of its own: closes all that it does not know, by one way, and goes on. */
static int closes_all(const char *way, int number) {
  int before[16], after[16], plain = open("/dev/null", O_RDONLY), high = fcntl(plain, F_DUPFD, 200);
  CHECK(is_alive(number));
  int count = own_fds(before, 16);
  CHECK(count >= 3);
  if (strcmp(way, "close") == 0) {
    for (int at = 0; at < count; at++) FAILS(EBADF, close(before[at]));
    for (int fd = 3; fd < 1024; fd++) close(fd);
  }
  if (strcmp(way, "syscall") == 0)
    for (int fd = 3; fd < 1024; fd++) syscall(SYS_close, fd);
  if (strcmp(way, "dup2") == 0) {
    for (int at = 0; at < count; at++) {
      FAILS(EBADF, dup2(0, before[at]));
      FAILS(EBADF, dup3(0, before[at], O_CLOEXEC));
      FAILS(EBADF, syscall(SYS_dup3, 0, before[at], 0));
    }
    CHECK(close(plain) == 0 && close(high) == 0);
  }
  if (strcmp(way, "close_range") == 0) CHECK(close_range(3, ~0u, 0) == 0);
  if (strcmp(way, "syscall_range") == 0) CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
  if (strcmp(way, "closefrom") == 0) closefrom(3);
  FAILS(EBADF, fcntl(plain, F_GETFD));
  FAILS(EBADF, fcntl(high, F_GETFD));
  CHECK(own_fds(after, 16) == count && memcmp(before, after, sizeof *before * (size_t)count) == 0);
  CHECK(is_alive(number));
  return bad_checks != 0;
}

static void own_fds_when_the_program_closes_all_survive(void) {
  const char *ways[] = {"close", "syscall", "dup2", "close_range", "syscall_range", "closefrom"};
  int number = exported(TEXT);
  for (size_t at = 0; at < sizeof ways / sizeof *ways; at++) CHECK(elsewhere(ways[at], number) == 0);
  CHECK(close(number) == 0);
}

/* A child has copies, which are its own to close, and finds the broker anew. */
static void own_fds_when_in_a_child_can_be_closed(void) {
  int number = exported(TEXT), before[16], after[16];
  int count = own_fds(before, 16);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    closefrom(3);
    CHECK(own_fds(after, 16) == 0);
    CHECK(is_alive(number));
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  CHECK(own_fds(after, 16) == count && memcmp(before, after, sizeof *before * (size_t)count) == 0);
  CHECK(is_alive(number) && close(number) == 0);
}

static void exec_when_dup2_gave_a_real_fd_hands_it_on(void) {
  int number = exported(TEXT);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    if (dup2(number, 3) != 3) _exit(126);
    unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "self", "inherited", "3", NULL);
    _exit(127);
  }
  CHECK(status_of(child) == 0);
  CHECK(close(number) == 0);
}

/* As a program does that starts another one with some of its fds: the number goes on. */
static void exec_when_a_vfork_child_hands_the_number_on_works(void) {
  int number = exported(TEXT);
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  pid_t child = vfork();
  MUST(child >= 0);
  if (child == 0) {
    if (fcntl(number, F_GETFD) < 0 || fcntl(number, F_SETFD, 0) != 0 || ioctl(number, FIONCLEX) != 0) _exit(126);
    execl("/proc/self/exe", "self", "is-alive", text, NULL);
    _exit(127);
  }
  CHECK(status_of(child) == 0);
  CHECK(close(number) == 0);
}

static long resident_kib(void) {
  long pages = 0, resident = 0;
  FILE *statm = fopen("/proc/self/statm", "re");
  MUST(statm != NULL && fscanf(statm, "%ld %ld", &pages, &resident) == 2 && fclose(statm) == 0);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void memory_when_100000_are_exported_and_closed_does_not_grow(void) {
  int memory = new_memory(TEXT), fds = 0, fds_after = 0;
  long before_kib = 0;
  for (int at = 0; at < EXPORTS; at++) {
    int number = driver_export(memory);
    /* Each of them is used now and then. */
    if (number < FIRST_VIRTUAL || (at % 100 == 0 && !is_alive(number)) || close(number) != 0) {
      CHECK(!"exported and closed");
      break;
    }
    if (at == WARM_UP) {
      before_kib = resident_kib();
      for (int fd = 0; fd < 1024; fd++) fds += fcntl(fd, F_GETFD) != -1;
    }
  }
  for (int fd = 0; fd < 1024; fd++) fds_after += fcntl(fd, F_GETFD) != -1;
  CHECK(fds_after == fds);
  CHECK(resident_kib() - before_kib < NOISE_KIB);
  CHECK(comes_to("allocations", 0) && comes_to("open_leases", 0));
  CHECK(close(memory) == 0);
}

/* Fds that threads duplicate and close at once. */
#define SHARED 4
#define THREADS 4
#define ROUNDS 3000
static struct {
  int number, fds[SHARED];
} shared;

static void *duplicates_and_closes(void *seed) {
  unsigned random = (unsigned)(size_t)seed;
  for (int round = 0; round < ROUNDS; round++) {
    random = random * 1103515245 + 12345;
    int at = (int)(random >> 16) % SHARED;
    /* It may be another thread's turn to replace it meanwhile: its number stays this program's. */
    int copy = dup(shared.fds[at]), again = dup(copy);
    if (!shows(copy, TEXT) || !shows(again, TEXT) || close(copy) != 0 || close(again) != 0) return "a copy";
    if (round % 8 == 0 && dup2(shared.number, shared.fds[at]) != shared.fds[at]) return "replaced";
  }
  return NULL;
}

static void leases_when_threads_share_and_replace_fds_all_end(void) {
  pthread_t threads[THREADS];
  shared.number = exported(TEXT);
  for (int at = 0; at < SHARED; at++) shared.fds[at] = dup(shared.number);
  for (size_t at = 0; at < THREADS; at++)
    MUST(pthread_create(&threads[at], NULL, duplicates_and_closes, (void *)(at + 1)) == 0);
  for (int at = 0; at < THREADS; at++) {
    void *fault = NULL;
    CHECK(pthread_join(threads[at], &fault) == 0 && fault == NULL);
  }
  for (int at = 0; at < SHARED; at++) CHECK(close(shared.fds[at]) == 0);
  CHECK(comes_to("open_leases", 0));
  CHECK(close(shared.number) == 0);
}

static void *polls_for_ever(void *number) {
  struct pollfd none = {-1, POLLIN, 0};
  (void)number;
  poll(&none, 1, -1);
  return NULL;
}

/* The layer stands in poll's place, and must not keep a thread from its end. */
static void thread_when_it_polls_can_be_cancelled(void) {
  pthread_t thread;
  void *result = NULL;
  MUST(pthread_create(&thread, NULL, polls_for_ever, NULL) == 0);
  CHECK(pthread_cancel(thread) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

#define THREADS 4
#define CHILDREN 8
/* What a child does takes milliseconds. */
#define HANGS_S 10u
/* A program that forks while it makes its first call hangs in one of a few. */
#define PROGRAMS 20

static pthread_barrier_t all_begin;

static void *calls_first(void *number) {
  pthread_barrier_wait(&all_begin);
  for (int at = 0; at < 20; at++) {
    int fd = dup(*(int *)number);
    if (fd >= 0) close(fd);
  }
  return NULL;
}

static int forks_during_its_first_calls(int number) {
  pthread_t threads[THREADS];
  pid_t children[CHILDREN];
  int status = 0;
  MUST(pthread_barrier_init(&all_begin, NULL, THREADS + 1) == 0);
  for (int at = 0; at < THREADS; at++) MUST(pthread_create(&threads[at], NULL, calls_first, &number) == 0);
  pthread_barrier_wait(&all_begin);
  for (int at = 0; at < CHILDREN; at++) {
    MUST((children[at] = fork()) >= 0);
    if (children[at] == 0) {
      alarm(HANGS_S);
      _exit(!is_alive(number));
    }
  }
  for (int at = 0; at < THREADS; at++) MUST(pthread_join(threads[at], NULL) == 0);
  for (int at = 0; at < CHILDREN; at++) status |= status_of(children[at]);
  return status;
}

/* A lock that a thread of the parent has is nobody's in a child. */
static void child_when_forked_during_the_first_calls_makes_its_own(void) {
  int number = exported(TEXT);
  for (int at = 0; at < PROGRAMS; at++) CHECK(elsewhere("forks", number) == 0);
  CHECK(close(number) == 0);
}

static int role(const char *name, int number) {
  int status = 1;
  if (strcmp(name, "is-ended") == 0) status = !(dup(number) == -1 && errno == EBADF);
  else if (strcmp(name, "is-alive") == 0) status = !is_alive(number);
  else if (strcmp(name, "close") == 0) status = !(close(number) == -1 && errno == EBADF);
  else if (strcmp(name, "forks") == 0) status = forks_during_its_first_calls(number);
  else if (strcmp(name, "inherited") == 0) status = !shows(number, TEXT);
  else status = closes_all(name, number);
  return status;
}

int main(int argc, char **argv) {
  begin();
  /* So that the layer's own are among those that are looked at: they lie above half of it. */
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 1024;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (argc == 3) return role(argv[1], atoi(argv[2]));
  RUN(close_when_exported_n_times_ends_it_with_the_last);
  RUN(number_when_told_ahead_and_ended_leads_nowhere);
  RUN(close_range_when_it_spans_numbers_ends_them);
  RUN(close_when_in_a_handler_never_waits_for_what_it_interrupted);
  RUN(close_when_in_another_process_is_ebadf);
  RUN(close_when_in_a_child_ends_nothing);
  RUN(child_when_forked_during_the_first_calls_makes_its_own);
  RUN(leases_when_duplicated_end_with_the_last);
  RUN(leases_when_threads_share_and_replace_fds_all_end);
  RUN(own_fds_when_the_program_closes_all_survive);
  RUN(own_fds_when_in_a_child_can_be_closed);
  RUN(exec_when_dup2_gave_a_real_fd_hands_it_on);
  RUN(exec_when_a_vfork_child_hands_the_number_on_works);
  RUN(memory_when_100000_are_exported_and_closed_does_not_grow);
  RUN(thread_when_it_polls_can_be_cancelled);
  return bad_cases != 0;
}
