/* Fds that are fetched ahead: a program that opens numbers in a row, as a consumer of a tensor's segments does. */
#include "check.h"

#include <dirent.h>
#include <sys/resource.h>

/* Numbers in a row: the segments of a tensor of 512 MiB in PyTorch. */
#define NUMBERS 26
#define LINK "/memfd:virtual-fds (deleted)"

static int numbers[NUMBERS];
static char texts[NUMBERS][16];

static void export_all(void) {
  for (int at = 0; at < NUMBERS; at++) {
    snprintf(texts[at], sizeof texts[at], "segment %d", at);
    numbers[at] = exported(texts[at]);
  }
}

static void end_all(void) {
  for (int at = 0; at < NUMBERS; at++) CHECK(close(numbers[at]) == 0);
}

/* As a consumer does: by a pidfd, of whatever process. */
static int open_number(int number) {
  int process = pidfd_open(getpid(), 0), fd;
  MUST(process >= 0);
  fd = pidfd_getfd(process, number, 0);
  int error = errno;
  close(process);
  errno = error;
  return fd;
}

static int is_right(int at) {
  int fd = open_number(numbers[at]), is_shown = shows(fd, texts[at]);
  return fd >= 0 && close(fd) == 0 && is_shown;
}

/* Fds of exported memory in this process's table, whoever put them there. */
static int memory_fds(void) {
  int count = 0;
  DIR *all = opendir("/proc/self/fd");
  MUST(all != NULL);
  for (struct dirent *one; (one = readdir(all)) != NULL;) {
    char link[64] = "";
    if (readlinkat(dirfd(all), one->d_name, link, sizeof link - 1) > 0) count += strcmp(link, LINK) == 0;
  }
  closedir(all);
  return count;
}

/* What a command of the broker prints behind a key. */
static long said(const char *command, const char *key) {
  char line[65536];
  long value = -1;
  FILE *out = popen(command, "re");
  MUST(out != NULL);
  while (fgets(line, sizeof line, out) != NULL) {
    char *at = strstr(line, key);
    if (at != NULL) value = atol(at + strlen(key));
  }
  pclose(out);
  return value;
}

/* Requests that the broker has answered with fds. */
static long answered(void) { return said("LD_PRELOAD= \"$FDBROKER\" metrics", "fdbroker_grant_latency_seconds_count "); }

static int leases_end(void) {
  struct timespec pause = {0, 20000000};
  for (int waited_ms = 0; waited_ms < SOON_MS; waited_ms += 20) {
    if (said("LD_PRELOAD= \"$FDBROKER\" status --json", "\"open_leases\":{\"now\":") == 0) return 1;
    nanosleep(&pause, NULL);
  }
  return 0;
}

static void numbers_when_opened_in_a_row_cost_few_requests_and_no_unasked_fd(void) {
  export_all();
  long before = answered();
  for (int at = 0; at < NUMBERS; at++) {
    int fd = open_number(numbers[at]);
    CHECK(shows(fd, texts[at]) && memory_fds() == 1);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && close(fd) == 0 && memory_fds() == 0);
  }
  /* Three, unless the machine stands still for longer than the broker lets them lie. */
  long requests = answered() - before;
  CHECK(requests >= 2 && requests <= NUMBERS / 2);
  CHECK(leases_end());
  end_all();
}

static void numbers_when_the_row_breaks_lead_where_they_should(void) {
  export_all();
  for (int at = 0; at < 3; at++) CHECK(is_right(at));
  CHECK(is_right(20) && is_right(4) && is_right(25) && is_right(5) && is_right(5));
  for (int at = NUMBERS - 1; at >= 0; at--) CHECK(is_right(at));
  CHECK(leases_end());
  end_all();
}

static void numbers_when_one_ends_meanwhile_it_is_ebadf_and_the_others_are_right(void) {
  export_all();
  for (int at = 0; at < 4; at++) CHECK(is_right(at));
  CHECK(close(numbers[6]) == 0);
  CHECK(is_right(4) && is_right(5));
  FAILS(EBADF, open_number(numbers[6]));
  for (int at = 7; at < NUMBERS; at++) CHECK(is_right(at));
  CHECK(leases_end());
  numbers[6] = exported(texts[6]);
  end_all();
}

static void numbers_when_the_table_is_full_are_emfile_and_none_is_lost(void) {
  struct rlimit before, tight;
  export_all();
  for (int at = 0; at < 3; at++) CHECK(is_right(at));
  int process = pidfd_open(getpid(), 0), next = dup(0);
  MUST(process >= 0 && next > process && getrlimit(RLIMIT_NOFILE, &before) == 0);
  tight = before;
  tight.rlim_cur = (rlim_t)next;
  CHECK(close(next) == 0 && setrlimit(RLIMIT_NOFILE, &tight) == 0);
  for (int at = 3; at < 6; at++) FAILS(EMFILE, pidfd_getfd(process, numbers[at], 0));
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0 && close(process) == 0);
  for (int at = 3; at < NUMBERS; at++) CHECK(is_right(at));
  CHECK(leases_end());
  end_all();
}

static void numbers_when_forked_meanwhile_are_right_in_both(void) {
  export_all();
  for (int at = 0; at < 4; at++) CHECK(is_right(at));
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    CHECK(memory_fds() == 0);
    for (int at = 4; at < NUMBERS; at++) CHECK(is_right(at));
    CHECK(memory_fds() == 0);
    _exit(bad_checks != 0);
  }
  for (int at = 4; at < NUMBERS; at++) CHECK(is_right(at));
  CHECK(status_of(child) == 0);
  CHECK(leases_end());
  end_all();
}

static void numbers_when_the_program_closes_all_fds_meanwhile_are_right(void) {
  export_all();
  for (int at = 0; at < 4; at++) CHECK(is_right(at));
  CHECK(close_range(3, FIRST_VIRTUAL - 1, 0) == 0);
  for (int at = 4; at < NUMBERS; at++) CHECK(is_right(at));
  CHECK(leases_end());
  end_all();
}

int main(void) {
  begin();
  RUN(numbers_when_opened_in_a_row_cost_few_requests_and_no_unasked_fd);
  RUN(numbers_when_the_row_breaks_lead_where_they_should);
  RUN(numbers_when_one_ends_meanwhile_it_is_ebadf_and_the_others_are_right);
  RUN(numbers_when_the_table_is_full_are_emfile_and_none_is_lost);
  RUN(numbers_when_forked_meanwhile_are_right_in_both);
  RUN(numbers_when_the_program_closes_all_fds_meanwhile_are_right);
  return bad_cases != 0;
}
