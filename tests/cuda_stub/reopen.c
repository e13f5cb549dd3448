/* Memory that is opened, used and given up again and again, as a worker of a DataLoader does with the segments that it is sent:
 * the layer may keep the fd for a moment, and nobody notices. usage: reopen [CASE...] */
#include "shapes.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

/* Numbers that a worker has, how often it opens each, and grants that are few beside as many openings. */
#define DEPOSITS 12
#define ROUNDS 167
#define FEW (DEPOSITS * ROUNDS / 2)
/* How often other cases open each. */
#define TURNS 8
/* Forks while threads fetch. */
#define FORKS 400

/* A second process opens what it is told, `seed` times each, and answers at once. */
static void worker(void) {
  use_driver();
  for (;;) {
    Message message = hear(PEER_FD);
    if (message.count == 0) return;
    for (unsigned round = 0; round < message.seed; round++)
      for (unsigned at = 0; at < message.count; at++) CHECK(is_taken(message.pid, message.numbers[at], at));
    message.result = bad_checks;
    tell(PEER_FD, &message);
  }
}
static void open_each(Peer peer, Message message, unsigned times) {
  message.seed = times;
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
}
static int is_over(Peer peer) {
  Message end = {.count = 0};
  tell(peer.socket, &end);
  return finish(peer) == 0;
}
static Message share(Buffer *buffers, unsigned count) {
  Message message = {.pid = getpid(), .count = count};
  for (unsigned at = 0; at < count; at++) {
    buffers[at] = new_buffer(at);
    message.numbers[at] = export_of(buffers[at].handle);
  }
  return message;
}
static void end(Buffer *buffers, const Message *message) {
  for (unsigned at = 0; at < message->count; at++) {
    CHECK(close(message->numbers[at]) == 0);
    free_buffer(buffers[at]);
  }
}

static void number_when_opened_again_and_again_costs_few_grants(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffers[DEPOSITS];
  Message message = share(buffers, DEPOSITS);
  Peer peer = start("worker");
  open_each(peer, message, 2);
  long grants = is_layered() ? ledger("grants") : 0;
  open_each(peer, message, ROUNDS);
  if (is_layered()) {
    grants = ledger("grants") - grants;
    printf("      %d openings, %ld grants\n", DEPOSITS * ROUNDS, grants);
    CHECK(grants < FEW);
  }
  end(buffers, &message);
  CHECK(is_over(peer));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* What the consumer keeps is the owner's again at once: each allocation takes the whole card. */
static void memory_when_opened_again_and_freed_is_the_owners_at_once(void) {
  use_driver();
  size_t before = whole_card();
  Peer peer = start("worker");
  for (int turn = 0; turn < TURNS; turn++) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle rest;
    Buffer buffer;
    Message message = share(&buffer, 1);
    CHECK(COMES_TRUE(cu.cuMemCreate(&rest, before - SEGMENT, &prop, 0) == CUDA_SUCCESS));
    open_each(peer, message, TURNS);
    end(&buffer, &message);
    Buffer next;
    /* (Without the layer, too, a driver takes a moment.) */
    CHECK(is_layered() ? create(&next.handle) == CUDA_SUCCESS : COMES_TRUE(create(&next.handle) == CUDA_SUCCESS));
    DRIVER(cu.cuMemRelease(next.handle));
    DRIVER(cu.cuMemRelease(rest));
  }
  CHECK(is_over(peer));
  CHECK(COMES_TRUE(free_bytes() == before));
}

static void stopped_worker(void) {
  use_driver();
  Message message = hear(PEER_FD);
  for (unsigned round = 0; round < message.seed; round++)
    for (unsigned at = 0; at < message.count; at++) CHECK(is_taken(message.pid, message.numbers[at], at));
  MUST(raise(SIGSTOP) == 0);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
/* Its memory is 16 fds at most, until it goes on. */
static void consumer_when_stopped_keeps_little_of_what_is_freed(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffers[SEGMENTS];
  Message message = share(buffers, SEGMENTS);
  message.seed = TURNS;
  Peer peer = start("stopped_worker");
  tell(peer.socket, &message);
  int status;
  MUST(waitpid(peer.pid, &status, WUNTRACED) == peer.pid && WIFSTOPPED(status));
  end(buffers, &message);
  CHECK(COMES_TRUE(before - free_bytes() <= (is_layered() ? 16 : 0) * SEGMENT));
  printf("      a stopped consumer holds %zu allocations\n", (before - free_bytes()) / SEGMENT);
  MUST(kill(peer.pid, SIGCONT) == 0);
  CHECK(hear(peer.socket).result == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
  CHECK(finish(peer) == 0);
}

/* What is kept is not the program's to lose, nor a child's. */
static void fds_when_kept_are_neither_the_programs_nor_a_childs(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(7);
  int number = export_of(buffer.handle);
  for (int turn = 0; turn < ROUNDS; turn++) {
    CHECK(is_alive(number, 7));
    if (turn % 8 == 0) {
      fflush(stdout);
      pid_t child = fork();
      MUST(child >= 0);
      if (child == 0) _exit(memory_fds());
      CHECK(status_of(child) == (is_layered() ? 0 : memory_fds()));
    }
    if (turn % 8 == 1) MUST(close_range(100, is_layered() ? ~0u >> 2 : ~0u, 0) == 0);
  }
  CHECK(COMES_TRUE(memory_fds() == !is_layered()));
  CHECK(is_alive(number, 7) && close(number) == 0);
  free_buffer(buffer);
  if (is_layered()) FAILS(EBADF, fd_of(number));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* What lies in the upper half of the table is the layer's own: kept at this moment, or about to be. What the broker has just sent lies below. */
#define TABLE 512
static void small_table(void) {
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = TABLE;
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}
/* In a child that may not allocate: a thread that it does not have may hold the allocator's lock. Those of the library are no memory. */
static int high_memory_fds(void) {
  static char card[300];
  int count = 0;
  for (int fd = TABLE / 2; fd < TABLE; fd++) {
    char path[40], link[300] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (card[0] == 0) strncpy(card, getenv("FDBROKER_CUDA_STUB_DIR"), sizeof card - 1);
    count += readlink(path, link, sizeof link - 1) > 0 && strncmp(link, card, strlen(card)) == 0;
  }
  return count;
}
static int body(void *unused) {
  (void)unused;
  _exit(high_memory_fds());
}
/* Each way to a process with a copy of this one's fds: fork(2) of the C library tells of the child, the others do not. */
static pid_t begin_child(int way) {
  static _Alignas(16) char stack[64 << 10];
  fflush(stdout);
  if (way == 0) return fork();
  if (way == 1) return _Fork();
  if (way == 2) return clone(body, stack + sizeof stack, SIGCHLD, NULL);
  if (way == 3) return (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
  return (pid_t)syscall(SYS_fork);
}
static void fds_when_kept_are_no_childs_however_it_begins(void) {
  if (!is_layered()) return;
  use_driver();
  small_table();
  size_t before = whole_card();
  Buffer buffer = new_buffer(7);
  int number = export_of(buffer.handle), most = 0;
  for (int turn = 0; turn < ROUNDS; turn++) {
    CHECK(is_alive(number, 7));
    most = high_memory_fds() > most ? high_memory_fds() : most;
    pid_t child = begin_child(turn % 5);
    MUST(child >= 0);
    if (child == 0) _exit(high_memory_fds());
    CHECK(status_of(child) == 0);
  }
  CHECK(most > 0);
  CHECK(close(number) == 0);
  free_buffer(buffer);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static volatile sig_atomic_t handled, handlers_fds;
static void makes_a_child(int unused) {
  (void)unused;
  int error = errno;
  pid_t child = _Fork();
  if (child == 0) _exit(high_memory_fds());
  handlers_fds += child < 0 ? 1 : status_of(child);
  handled++;
  errno = error;
}
/* It may interrupt the layer anywhere. */
static void fds_when_kept_are_no_child_of_a_handlers(void) {
  if (!is_layered()) return;
  use_driver();
  small_table();
  Buffer buffers[TURNS];
  Message message = share(buffers, TURNS);
  struct sigaction action = {.sa_handler = makes_a_child, .sa_flags = SA_RESTART};
  MUST(sigaction(SIGALRM, &action, NULL) == 0);
  struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
  MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
  while (handled < FORKS)
    for (unsigned at = 0; at < TURNS; at++) close(fd_of(message.numbers[at]));
  MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
  CHECK(handlers_fds == 0);
  end(buffers, &message);
}

/* Threads fetch and close until they are told to end. */
static Message fetched;
static int has_ended;
static void *fetches(void *unused) {
  while (!__atomic_load_n(&has_ended, __ATOMIC_RELAXED))
    for (unsigned at = 0; at < fetched.count; at++) close(fd_of(fetched.numbers[at]));
  return unused;
}
static void fds_when_kept_while_threads_fetch_are_no_childs(void) {
  if (!is_layered()) return;
  use_driver();
  small_table();
  Buffer buffers[TURNS];
  fetched = share(buffers, TURNS);
  pthread_t threads[2];
  for (int at = 0; at < 2; at++) MUST(pthread_create(&threads[at], NULL, fetches, NULL) == 0);
  fflush(stdout);
  for (int turn = 0; turn < FORKS; turn++) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) _exit(memory_fds_from(TABLE / 2));
    CHECK(status_of(child) == 0);
  }
  __atomic_store_n(&has_ended, 1, __ATOMIC_RELAXED);
  for (int at = 0; at < 2; at++) MUST(pthread_join(threads[at], NULL) == 0);
  end(buffers, &fetched);
}

static const Row rows[] = {
    ROLE(worker),
    ROLE(stopped_worker),
    CASE(number_when_opened_again_and_again_costs_few_grants),
    CASE(memory_when_opened_again_and_freed_is_the_owners_at_once),
    CASE(consumer_when_stopped_keeps_little_of_what_is_freed),
    CASE(fds_when_kept_are_neither_the_programs_nor_a_childs),
    CASE(fds_when_kept_are_no_childs_however_it_begins),
    CASE(fds_when_kept_are_no_child_of_a_handlers),
    CASE(fds_when_kept_while_threads_fetch_are_no_childs),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
