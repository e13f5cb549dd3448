/* A program that closes fds that it does not know, and has something of its own there: whatever it calls, the library does nothing
 * to that, and works again. Must never pass by a library that has no fds. */
#define _GNU_SOURCE
#include "../capi/check.h"
#include "taken.h"

#include <stdatomic.h>

#define PAGE 4096u
#define OWN 24

static struct broker broker;
static fdbroker_handle_t others;

/* Another process, whose memory is there to be imported: its bytes are 'o'. */
static pid_t start_owner(int *life) {
  int ready[2], end[2];
  MUST(pipe2(ready, O_CLOEXEC) == 0 && pipe2(end, O_CLOEXEC) == 0);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    close(end[1]);
    fdbroker_t *context = open_at(&broker);
    fdbroker_handle_t handle;
    void *memory;
    char byte;
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
    memset(memory, 'o', PAGE);
    MUST(writes_all(ready[1], &handle, sizeof handle));
    while (read(end[0], &byte, 1) < 0) {
    }
    OK(fdbroker_close(context));
    _exit(bad_checks != 0);
  }
  close(ready[1]), close(end[0]);
  MUST(reads_all(ready[0], &others, sizeof others));
  close(ready[0]);
  *life = high(end[1]);
  return child;
}

/* Checks that nobody has touched the fds that a test took, and closes them. */
static void all_are_untouched(struct taken taken[], int count) {
  for (int at = 0; at < count; at++) {
    CHECK(is_untouched(&taken[at]));
    give_up(&taken[at]);
  }
}

static int imports_others(fdbroker_t *context) {
  fdbroker_import_t import;
  fdbroker_code_t code = fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import);
  if (code != FDBROKER_OK) {
    printf("      import: %s\n", fdbroker_last_error());
    return 0;
  }
  int is_right = all_bytes_are(import.ptr, 'o', PAGE);
  OK(fdbroker_import_release(context, &import));
  return is_right;
}

/* The first call may say that the fds are gone; the next one works. */
static void works_again(fdbroker_t *context) {
  fdbroker_import_t import;
  fdbroker_code_t code = fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import);
  CHECK(code == FDBROKER_OK || code == FDBROKER_NOT_CONNECTED);
  if (code == FDBROKER_OK) OK(fdbroker_import_release(context, &import));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(imports_others(context));
}

/* The broker closes its ends when it sees the first one closed, at which the library thread wakes: not before all are taken. What
 * the thread is to send by and by is sent. */
static void take_while_it_sleeps(enum kind kind, const int own[], int count, struct taken taken[]) {
  nap_ms(20);
  MUST(kill(broker.pid, SIGSTOP) == 0);
  take_all(kind, own, count, taken);
  MUST(kill(broker.pid, SIGCONT) == 0);
}

static void everything_is_called(fdbroker_t *context, uint32_t flags, void *memory, fdbroker_import_t *import) {
  fdbroker_handle_t handle;
  void *more;
  CHECK(all_bytes_are(import->ptr, 'o', PAGE));
  works_again(context);
  CHECK(all_bytes_are(import->ptr, 'o', PAGE));
  OK(fdbroker_import_release(context, import));
  CHECK(all_bytes_are(memory, 'm', PAGE));
  /* Of an arena whose fd is closed: refused by name. */
  fdbroker_code_t code = fdbroker_get_handle(context, memory, 0, SOON, &handle);
  CHECK(code == FDBROKER_OK || code == FDBROKER_NOT_SUPPORTED || code == FDBROKER_NOT_CONNECTED);
  OK(fdbroker_host_free(context, memory));
  /* An fd that is closed alone may be missed by this call first. */
  code = fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, SOON, &more, &handle);
  if (code == FDBROKER_NOT_CONNECTED)
    code = fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, SOON, &more, &handle);
  CODE(FDBROKER_OK, code);
  if (code == FDBROKER_OK) OK(fdbroker_host_free(context, more));
  if (flags & (FDBROKER_OPEN_DISPATCH | FDBROKER_OPEN_RECALL_THREAD)) {
    OK(fdbroker_dispatch(context, 1));
    CHECK(fdbroker_event_fd(context) > 2);
  }
  stats_of(context);
}

static void with_all_taken(enum kind kind, uint32_t flags, int with_stdio) {
  static unsigned char before[MOST];
  int own[OWN], saved[3] = {-1, -1, -1};
  struct taken taken[OWN + 3];
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  void *memory;
  mark_open(before);
  fdbroker_t *context = open_with(&broker, flags);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  memset(memory, 'm', PAGE);
  OK(fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import));
  int count = new_fds(before, own, OWN);
  /* A connection has two, its bell two, the arena one. */
  CHECK(count >= 5);
  take_while_it_sleeps(kind, own, count, taken);
  if (with_stdio) {
    fflush(stdout);
    for (int fd = 0; fd < 3; fd++) saved[fd] = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    for (int fd = 0; fd < 3; fd++) close(fd);
    for (int fd = 0; fd < 3; fd++) taken[count++] = take(kind, fd);
  }
  everything_is_called(context, flags, memory, &import);
  int untouched = 1;
  for (int at = 0; at < count; at++) untouched &= is_untouched(&taken[at]);
  OK(fdbroker_close(context));
  for (int at = 0; at < count; at++)
    if (!is_untouched(&taken[at])) untouched = -taken[at].number;
  for (int at = 0; at < count; at++) give_up(&taken[at]);
  if (with_stdio)
    for (int fd = 0; fd < 3; fd++) MUST(dup2(saved[fd], fd) == fd && close(saved[fd]) == 0);
  CHECK(untouched == 1);
  if (untouched != 1) printf("      %s (number %d), flags %u\n", kind_names[kind], -untouched, flags);
}

static void all_fds_taken_over_when_a_library_thread_serves_then_nothing_is_touched_and_the_next_call_works(void) {
  for (int kind = 0; kind < KINDS; kind++) with_all_taken(kind, 0, 0);
}

static void all_fds_taken_over_in_dispatch_mode_then_nothing_is_touched_and_the_next_call_works(void) {
  for (int kind = 0; kind < KINDS; kind++) with_all_taken(kind, FDBROKER_OPEN_DISPATCH, 0);
}

static void all_fds_taken_over_with_a_thread_for_recalls_then_nothing_is_touched_and_the_next_call_works(void) {
  for (int kind = 0; kind < KINDS; kind++) with_all_taken(kind, FDBROKER_OPEN_RECALL_THREAD, 0);
}

static void stdio_taken_over_as_well_then_nothing_is_touched_nor_logged_there(void) {
  static const int kinds[] = {A_FILE, A_SEQPACKET, A_PIPE_TO_WRITE};
  for (unsigned at = 0; at < sizeof kinds / sizeof *kinds; at++) {
    with_all_taken(kinds[at], 0, 1);
    with_all_taken(kinds[at], FDBROKER_OPEN_DISPATCH, 1);
  }
}

static void each_fd_taken_over_alone_then_it_is_not_touched_and_the_library_works(void) {
  static const uint32_t modes[] = {0, FDBROKER_OPEN_DISPATCH, FDBROKER_OPEN_RECALL_THREAD};
  for (int mode = 0; mode < 3; mode++)
    for (int which = 0;; which++) {
      static unsigned char before[MOST];
      int own[OWN];
      fdbroker_handle_t handle;
      fdbroker_import_t import;
      void *memory;
      mark_open(before);
      fdbroker_t *context = open_with(&broker, modes[mode]);
      OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
      memset(memory, 'm', PAGE);
      OK(fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import));
      int count = new_fds(before, own, OWN);
      if (which >= count) {
        OK(fdbroker_close(context));
        break;
      }
      struct taken taken = take(A_SEQPACKET, own[which]);
      everything_is_called(context, modes[mode], memory, &import);
      OK(fdbroker_close(context));
      CHECK(is_untouched(&taken));
      give_up(&taken);
    }
}

/* What the library keeps between two calls: the file of a group in the making, the fd of a registration that was started, grants
 * that came for a request. */
static void fds_kept_between_calls_taken_over_then_none_is_sealed_sent_handed_out_or_closed(void) {
  static const enum kind kinds[] = {A_FILE, A_SEQPACKET, A_MEMFD};
  for (unsigned which = 0; which < sizeof kinds / sizeof *kinds; which++) {
    static unsigned char before[MOST];
    int own[OWN], memfd = high(sealed_memfd(PAGE, 'r'));
    struct taken taken[OWN];
    fdbroker_new_object_t object = {.struct_size = sizeof object, .name = "taken", .size_bytes = PAGE};
    fdbroker_object_group_t *group;
    fdbroker_request_t *acquires, *registers;
    fdbroker_allocation_t allocation = memfd_allocation(PAGE);
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    fdbroker_import_t import;
    fdbroker_handle_t made;
    fdbroker_code_t code;
    mark_open(before);
    fdbroker_t *context = open_at(&broker);
    OK(fdbroker_object_create(context, 1, &object, NULL, SOON, &group));
    OK(fdbroker_acquire_start(context, 1, &others, SOON, &acquires));
    OK(fdbroker_register_start(context, 1, &allocation, &memfd, SOON, &registers));
    /* It reads the answers of the others, too. */
    OK(fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import));
    OK(fdbroker_import_release(context, &import));
    int count = new_fds(before, own, OWN);
    CHECK(count >= 5);
    take_while_it_sleeps(kinds[which], own, count, taken);
    CHECK(fdbroker_object_seal(group, SOON, NULL) != FDBROKER_OK);
    OK(fdbroker_object_close(group));
    grant.fd = -1;
    while ((code = fdbroker_request_test(acquires, &grant, NULL)) == FDBROKER_AGAIN) nap_ms(1);
    CHECK(code == FDBROKER_OK || code == FDBROKER_NOT_CONNECTED || code == FDBROKER_LOCAL_FD_LIMIT);
    if (code == FDBROKER_OK) {
      for (int at = 0; at < count; at++) CHECK(grant.fd != taken[at].number);
      close(grant.fd);
    }
    while (fdbroker_register_test(registers, &made, NULL) == FDBROKER_AGAIN) nap_ms(1);
    CHECK(imports_others(context) || imports_others(context));
    OK(fdbroker_close(context));
    all_are_untouched(taken, count);
    close(memfd);
  }
}

static void evict(const char *what) {
  char command[512];
  snprintf(command, sizeof command, "FDBROKER_ADMIN_SOCKET='%s' '%s' evict %s > /dev/null", broker.admin, getenv("FDBROKER"), what);
  MUST(system(command) == 0);
}

/* What a consumer in another process gets of a handle: 0 the bytes 'm', 1 other bytes, 2 a refusal. */
static int seen_by_another(const fdbroker_handle_t *handle, uint32_t deadline_ms) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    fdbroker_import_t import;
    fdbroker_t *context = open_at(&broker);
    if (fdbroker_import(context, handle, FDBROKER_IMPORT_READ, deadline_ms, &import) != FDBROKER_OK) _exit(2);
    _exit(!all_bytes_are(import.ptr, 'm', PAGE));
  }
  return status_of(child);
}

static void a_recall_after_the_arenas_number_is_taken_over_then_exports_nothing_of_the_programs(void) {
  for (int kind = 0; kind < KINDS; kind++) {
    static unsigned char before[MOST];
    int own[OWN];
    fdbroker_handle_t handle, second;
    void *memory, *more;
    char pid[32];
    fdbroker_t *context = open_at(&broker);
    mark_open(before);
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
    memset(memory, 'm', PAGE);
    CHECK(seen_by_another(&handle, SOON) == 0);
    MUST(new_fds(before, own, OWN) == 1);
    struct taken taken = take(kind, own[0]);
    snprintf(pid, sizeof pid, "pid:%d", getpid());
    evict(pid);
    CHECK(seen_by_another(&handle, 3000) == 2);
    /* Neither is it sent as memory that is registered now: that lies in another arena. */
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &more, &second));
    memset(more, 'm', PAGE);
    CHECK(seen_by_another(&second, SOON) == 0);
    OK(fdbroker_host_free(context, more));
    OK(fdbroker_host_free(context, memory));
    OK(fdbroker_close(context));
    CHECK(is_untouched(&taken));
    give_up(&taken);
  }
}

/* As sandboxes and daemons do: whatever is not known is closed, and what is opened then gets the lowest numbers. */
static void all_closed_and_files_opened_then_none_is_touched(void) {
  static const uint32_t modes[] = {0, FDBROKER_OPEN_DISPATCH};
  enum { FILES = 150 };
  for (int mode = 0; mode < 2; mode++) {
    static unsigned char before[MOST];
    static struct taken taken[FILES];
    int own[OWN];
    fdbroker_handle_t handle;
    fdbroker_import_t import;
    void *memory;
    mark_open(before);
    fdbroker_t *context = open_with(&broker, modes[mode]);
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
    memset(memory, 'm', PAGE);
    OK(fdbroker_import(context, &others, FDBROKER_IMPORT_READ, SOON, &import));
    int count = new_fds(before, own, OWN);
    for (int at = 0; at < count; at++) close(own[at]);
    for (int at = 0; at < FILES; at++) taken[at] = take_above(A_FILE, 3);
    everything_is_called(context, modes[mode], memory, &import);
    OK(fdbroker_close(context));
    all_are_untouched(taken, FILES);
  }
}

/* What lay in the arena before is lost to others; what comes then lies in another one. */
static void memory_made_after_the_arenas_fd_is_closed_then_can_be_shared(void) {
  static unsigned char before[MOST];
  int own[OWN];
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  void *old, *memory;
  mark_open(before);
  fdbroker_t *context = open_at(&broker), *other = open_at(&broker);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &old, &handle));
  int count = new_fds(before, own, OWN);
  for (int at = 0; at < count; at++) close(own[at]);
  works_again(context), works_again(other);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  memset(memory, 'n', PAGE);
  OK(fdbroker_import(other, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(all_bytes_are(import.ptr, 'n', PAGE));
  OK(fdbroker_import_release(other, &import));
  OK(fdbroker_host_free(context, old));
  OK(fdbroker_close(other));
  OK(fdbroker_close(context));
}

static void *puts_one(void *context) {
  static const char bytes[PAGE];
  fdbroker_new_object_t object = {.struct_size = sizeof object, .name = "closed/put", .size_bytes = PAGE, .bytes = bytes};
  fdbroker_object_options_t options = {.struct_size = sizeof options, .flags = FDBROKER_OBJECT_REPLACE};
  fdbroker_code_t code = fdbroker_object_put(context, 1, &object, &options, SOON, NULL);
  CHECK(code == FDBROKER_OK || code == FDBROKER_NOT_CONNECTED);
  return NULL;
}

/* The file of a put that waits for the broker is the library's as long as it waits, and not a moment longer. */
static void fds_taken_over_while_a_put_waits_then_none_is_sent_or_closed(void) {
  for (int kind = A_FILE; kind < KINDS; kind++) {
    static unsigned char before[MOST];
    struct taken taken[OWN];
    int own[OWN];
    pthread_t thread;
    mark_open(before);
    fdbroker_t *context = open_at(&broker);
    int idle = new_fds(before, own, OWN), count = idle;
    MUST(kill(broker.pid, SIGSTOP) == 0);
    MUST(pthread_create(&thread, NULL, puts_one, context) == 0);
    EVENTUALLY((count = new_fds(before, own, OWN)) > idle);
    nap_ms(20);
    take_all(kind, own, count, taken);
    MUST(kill(broker.pid, SIGCONT) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    works_again(context);
    OK(fdbroker_close(context));
    all_are_untouched(taken, count);
  }
}

static fdbroker_t *shared;
static atomic_int stop;
static atomic_long good, hung;

static void *call_on(void *user) {
  (void)user;
  while (!stop) {
    struct timespec begin, end;
    fdbroker_import_t import;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (fdbroker_import(shared, &others, FDBROKER_IMPORT_READ, 2000, &import) == FDBROKER_OK) {
      good += all_bytes_are(import.ptr, 'o', PAGE);
      fdbroker_import_release(shared, &import);
    }
    fdbroker_empty_cache(shared, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    hung += end.tv_sec - begin.tv_sec > 20;
  }
  return NULL;
}

static void fds_closed_in_one_thread_while_others_call_then_each_call_is_answered_and_later_ones_work(void) {
  static unsigned char before[MOST];
  pthread_t threads[3];
  mark_open(before);
  shared = open_at(&broker);
  stop = 0;
  for (int at = 0; at < 3; at++) MUST(pthread_create(&threads[at], NULL, call_on, NULL) == 0);
  for (int round = 0; round < 20; round++) {
    struct taken taken[OWN];
    int own[OWN], kept = 0;
    EVENTUALLY(fdbroker_is_connected(shared));
    int count = new_fds(before, own, OWN);
    for (int at = 0; at < count; at++)
      /* Grants come and go at low numbers, and are not the library's to keep. */
      if (own[at] >= 500) close(own[at]);
    for (int at = 0; at < count; at++) taken[kept++] = take_above(A_FILE, 500);
    long had = good;
    EVENTUALLY(good > had + 3);
    all_are_untouched(taken, kept);
  }
  stop = 1;
  for (int at = 0; at < 3; at++) MUST(pthread_join(threads[at], NULL) == 0);
  CHECK(hung == 0);
  OK(fdbroker_close(shared));
}

static void a_forked_child_that_closes_all_and_opens_files_then_loses_none_and_its_parent_nothing(void) {
  static unsigned char before[MOST];
  int own[OWN];
  fdbroker_handle_t handle;
  void *memory;
  mark_open(before);
  fdbroker_t *context = open_at(&broker);
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  int count = new_fds(before, own, OWN);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    struct taken taken[OWN];
    for (int at = 0; at < count; at++) taken[at] = take(at % 2 ? A_FILE : A_SEQPACKET, own[at]);
    OK(fdbroker_close(context));
    fdbroker_t *anew = open_at(&broker);
    CHECK(imports_others(anew));
    OK(fdbroker_close(anew));
    for (int at = 0; at < count; at++) CHECK(is_untouched(&taken[at]));
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
  CHECK(fdbroker_is_connected(context) && imports_others(context));
  OK(fdbroker_host_free(context, memory));
  OK(fdbroker_close(context));
}

static void fds_closed_while_a_forked_child_has_copies_then_the_library_works_again(void) {
  static unsigned char before[MOST];
  int own[OWN], end[2];
  mark_open(before);
  fdbroker_t *context = open_at(&broker);
  int count = new_fds(before, own, OWN);
  MUST(pipe2(end, O_CLOEXEC) == 0);
  int read_end = high(end[0]), write_end = high(end[1]);
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    char byte;
    close(write_end);
    while (read(read_end, &byte, 1) < 0) {
    }
    _exit(0);
  }
  struct taken taken[OWN];
  take_while_it_sleeps(A_SEQPACKET, own, count, taken);
  works_again(context);
  close(read_end), close(write_end);
  CHECK(status_of(child) == 0);
  CHECK(imports_others(context));
  OK(fdbroker_close(context));
  all_are_untouched(taken, count);
}

/* The number of fds is bounded below those that the library has: these stay usable, and others are made where there is room. */
static void rlimit_nofile_lowered_below_the_librarys_fds_then_it_works_also_after_a_close(void) {
  static unsigned char before[MOST];
  int own[OWN];
  struct rlimit all, few;
  fdbroker_t *context = open_at(&broker);
  MUST(getrlimit(RLIMIT_NOFILE, &all) == 0);
  few = all;
  few.rlim_cur = 64;
  MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(imports_others(context));
  OK(fdbroker_close(context));
  mark_open(before);
  context = open_at(&broker);
  int count = new_fds(before, own, OWN);
  for (int at = 0; at < count; at++) CHECK(own[at] < 64 && close(own[at]) == 0);
  works_again(context);
  OK(fdbroker_close(context));
  MUST(setrlimit(RLIMIT_NOFILE, &all) == 0);
}

static void another_user_after_connecting_then_it_works_also_after_a_close(void) {
  if (geteuid() != 0) return;
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    static unsigned char before[MOST];
    int own[OWN];
    mark_open(before);
    fdbroker_t *context = open_at(&broker);
    int count = new_fds(before, own, OWN);
    MUST(setresuid(65534, 65534, 65534) == 0);
    CHECK(imports_others(context));
    struct taken taken[OWN];
    take_all(A_FILE, own, count, taken);
    OK(fdbroker_empty_cache(context, NULL));
    /* The broker is of another user now, and does not let this one in: named, and nothing touched. */
    fdbroker_import_t import;
    for (int call = 0; call < 3; call++)
      CODE(FDBROKER_NOT_CONNECTED, fdbroker_import(context, &others, FDBROKER_IMPORT_READ, 2000, &import));
    OK(fdbroker_close(context));
    for (int at = 0; at < count; at++) CHECK(is_untouched(&taken[at]));
    _exit(bad_checks != 0);
  }
  CHECK(status_of(child) == 0);
}

static void the_librarys_fds_then_lie_above_those_that_open_gives(void) {
  static unsigned char before[MOST];
  int own[OWN];
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  int least = limit.rlim_cur / 2 < 4096 ? (int)(limit.rlim_cur / 2) : 4096;
  if (least >= MOST) return;
  mark_open(before);
  fdbroker_t *context = open_at(&broker);
  int count = new_fds(before, own, OWN);
  CHECK(count >= 4);
  for (int at = 0; at < count; at++) CHECK(own[at] >= least);
  OK(fdbroker_close(context));
  context = open_with(&broker, FDBROKER_OPEN_DISPATCH);
  CHECK(fdbroker_event_fd(context) < least);
  OK(fdbroker_close(context));
}

int main(void) {
  begin();
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 1024;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  broker_start(&broker, NULL);
  int life;
  pid_t owner = start_owner(&life);
  RUN(the_librarys_fds_then_lie_above_those_that_open_gives);
  RUN(all_fds_taken_over_when_a_library_thread_serves_then_nothing_is_touched_and_the_next_call_works);
  RUN(all_fds_taken_over_in_dispatch_mode_then_nothing_is_touched_and_the_next_call_works);
  RUN(all_fds_taken_over_with_a_thread_for_recalls_then_nothing_is_touched_and_the_next_call_works);
  RUN(stdio_taken_over_as_well_then_nothing_is_touched_nor_logged_there);
  RUN(all_closed_and_files_opened_then_none_is_touched);
  RUN(memory_made_after_the_arenas_fd_is_closed_then_can_be_shared);
  RUN(fds_taken_over_while_a_put_waits_then_none_is_sent_or_closed);
  RUN(each_fd_taken_over_alone_then_it_is_not_touched_and_the_library_works);
  RUN(fds_kept_between_calls_taken_over_then_none_is_sealed_sent_handed_out_or_closed);
  RUN(a_recall_after_the_arenas_number_is_taken_over_then_exports_nothing_of_the_programs);
  RUN(fds_closed_in_one_thread_while_others_call_then_each_call_is_answered_and_later_ones_work);
  RUN(a_forked_child_that_closes_all_and_opens_files_then_loses_none_and_its_parent_nothing);
  RUN(fds_closed_while_a_forked_child_has_copies_then_the_library_works_again);
  RUN(rlimit_nofile_lowered_below_the_librarys_fds_then_it_works_also_after_a_close);
  RUN(another_user_after_connecting_then_it_works_also_after_a_close);
  close(life);
  CHECK(status_of(owner) == 0);
  broker_stop(&broker);
  return end();
}
