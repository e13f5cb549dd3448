/* Caps, recalls, owners that do not answer, brokers that come and go. Each case runs when it is named, with what run.sh
 * arranges for it. usage: pressure CASE... */
#include "shapes.h"

#include <pthread.h>
#include <sys/resource.h>

/* Has the broker killed and started anew by the command $RESTART, which has none of this process's fds. */
static void restart(void) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    close_range(3, ~0u, 0);
    execlp("sh", "sh", "-c", getenv("RESTART"), NULL);
    _exit(127);
  }
  MUST(status_of(child) == 0);
}

/* --- more exports than the node may hold, while others come and go --- */

/* Exports at a time, threads that make and end them, threads in each consumer, and how often each does it. */
#define SLOTS 64
#define MAKERS 2
#define TAKERS 2
#define CONSUMERS 2
#define MADE 150
#define TAKEN 300

/* What is exported, in device memory that is shared as the exports are. Number 0: nothing at this moment. */
typedef struct { int number; unsigned seed; } Entry;
static CUdeviceptr table;
static pid_t maker;

static Entry entry_of(unsigned slot) {
  Entry entry;
  DRIVER(cu.cuMemcpyDtoH(&entry, table + slot * sizeof entry, sizeof entry));
  return entry;
}
static void set_entry(unsigned slot, Entry entry) {
  DRIVER(cu.cuMemcpyHtoD(table + slot * sizeof entry, &entry, sizeof entry));
  DRIVER(cu.cuStreamSynchronize(NULL));
}
static unsigned next_random(unsigned *state) {
  *state = *state * 1103515245u + 12345u;
  return *state >> 16;
}

/* While a broker may be away, an export may be the driver's own fd, whose number means nothing once it is closed; and a
 * number may have no answer. It never has a wrong one. */
static int has_restarts(void) { return getenv("RESTART") != NULL; }

static Buffer buffers[SLOTS];
/* One in four keeps its number alone, and one in four its mapping and its number. */
static int keeps_handle(unsigned seed) { return seed % 4 < 2; }
static int keeps_mapping(unsigned seed) { return seed % 4 < 3; }
static void make(unsigned slot, unsigned seed) {
  buffers[slot] = new_buffer(seed);
  Entry entry = {export_of(buffers[slot].handle), seed};
  MUST(is_export(entry.number) || has_restarts());
  if (!keeps_handle(seed)) DRIVER(cu.cuMemRelease(buffers[slot].handle));
  if (!keeps_mapping(seed)) unmap_one(buffers[slot].base);
  set_entry(slot, entry);
}
static void end(unsigned slot) {
  Entry entry = entry_of(slot), none = {0, 0};
  set_entry(slot, none);
  /* In PyTorch's order. */
  if (keeps_mapping(entry.seed)) unmap_one(buffers[slot].base);
  MUST(close(entry.number) == 0);
  if (keeps_handle(entry.seed)) DRIVER(cu.cuMemRelease(buffers[slot].handle));
}
/* As a profiler does: signals without SA_RESTART, for the threads that take them. */
static void is_interrupted(int signal) { (void)signal; }
static void begin_interrupts(timer_t *timer) {
  struct sigaction action = {.sa_handler = is_interrupted};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  struct itimerspec each_ms = {{0, 1000000}, {0, 1000000}};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  MUST(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
  MUST(timer_create(CLOCK_MONOTONIC, &event, timer) == 0 && timer_settime(*timer, 0, &each_ms, NULL) == 0);
}
static void take_interrupts(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  MUST(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
}

static void *makes(void *own) {
  unsigned state = (unsigned)(size_t)own, share = SLOTS / MAKERS;
  push_context();
  take_interrupts();
  for (unsigned round = 0; round < MADE; round++) {
    unsigned slot = (unsigned)(size_t)own * share + next_random(&state) % share;
    end(slot);
    make(slot, 1000 + round * MAKERS + (unsigned)(size_t)own);
  }
  return NULL;
}
/* The first of the threads has the broker killed now and then. */
static void *makes_and_restarts(void *own) {
  for (int turn = 0; turn < 3; turn++) {
    makes(own);
    if (own == NULL) restart();
  }
  return NULL;
}
static void *takes(void *own) {
  unsigned state = 77 + (unsigned)(size_t)own, taken = 0;
  push_context();
  take_interrupts();
  for (unsigned round = 0; round < TAKEN; round++) {
    unsigned slot = next_random(&state) % SLOTS;
    Entry entry = entry_of(slot);
    if (!entry.number || (has_restarts() && entry.number < FIRST_VIRTUAL)) continue;
    int fd = take_fd(maker, entry.number);
    if (fd < 0) {
      int error = errno;
      /* It has ended meanwhile: else there is no reason. */
      Entry now = entry_of(slot);
      if (!has_restarts() && (error != EBADF || now.number == entry.number)) {
        printf("      slot %u, number %d: errno %d\n", slot, entry.number, error);
        return "no fd";
      }
      continue;
    }
    int is_right = fd_shows(fd, entry.seed);
    if (close(fd) != 0 || !is_right) return "other memory";
    taken++;
  }
  return taken || has_restarts() ? NULL : "none was taken";
}
static void run_threads(void *(*body)(void *), size_t count) {
  pthread_t threads[8];
  for (size_t at = 0; at < count; at++) MUST(pthread_create(&threads[at], NULL, body, (void *)at) == 0);
  for (size_t at = 0; at < count; at++) {
    void *fault = NULL;
    MUST(pthread_join(threads[at], &fault) == 0);
    if (fault) printf("      a thread: %s\n", (const char *)fault);
    CHECK(fault == NULL);
  }
}
static void storm_consumer(void) {
  use_driver();
  Message message = hear(PEER_FD);
  maker = message.pid;
  int fd = take_fd(maker, message.numbers[0]);
  CUmemGenericAllocationHandle handle = import_of(fd);
  CHECK(close(fd) == 0);
  table = map_one(handle);
  DRIVER(cu.cuMemRelease(handle));
  timer_t timer;
  begin_interrupts(&timer);
  run_threads(takes, TAKERS);
  CHECK(COMES_TRUE(memory_fds() == 0));
  unmap_one(table);
  MUST(timer_delete(timer) == 0);
}
static void memory_when_more_is_exported_than_the_node_may_hold_is_always_right(void) {
  use_driver();
  size_t before = whole_card();
  Peer peers[CONSUMERS];
  Buffer shared = new_buffer(0);
  table = shared.base;
  int number = export_of(shared.handle);
  for (unsigned slot = 0; slot < SLOTS; slot++) make(slot, slot);
  Message message = {.pid = getpid(), .numbers = {number}};
  for (int at = 0; at < CONSUMERS; at++) {
    peers[at] = start("storm_consumer");
    tell(peers[at].socket, &message);
  }
  /* The number of a plain fd that is closed is another fd's at once: a program without the layer cannot do this. */
  timer_t timer;
  begin_interrupts(&timer);
  if (is_layered()) run_threads(has_restarts() ? makes_and_restarts : makes, MAKERS);
  MUST(timer_delete(timer) == 0);
  for (int at = 0; at < CONSUMERS; at++) CHECK(finish(peers[at]) == 0);
  for (unsigned slot = 0; slot < SLOTS; slot++) {
    Entry entry = entry_of(slot);
    if (has_restarts()) CHECK(COMES_TRUE(is_alive(entry.number, entry.seed)));
    else CHECK(is_alive(entry.number, entry.seed));
    end(slot);
  }
  CHECK(close(number) == 0);
  free_buffer(shared);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- programs that start others while they export --- */

#define CHILDREN 100
static volatile int is_over;
static void *exports(void *handle) {
  push_context();
  while (!is_over) {
    int number = export_of(*(CUmemGenericAllocationHandle *)handle);
    if (!is_export(number) || close(number) != 0) return "an export";
  }
  return NULL;
}
static void children_when_started_while_threads_export_come_to_their_programs(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer[2] = {new_buffer(0), new_buffer(1)};
  int number = export_of(buffer[0].handle);
  pthread_t threads[2];
  for (int at = 0; at < 2; at++) MUST(pthread_create(&threads[at], NULL, exports, &buffer[at].handle) == 0);
  for (int at = 0; at < CHILDREN; at++) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      /* What the child closes is not its parent's to lose. */
      if (close(number) != 0) _exit(126);
      execlp("true", "true", NULL);
      _exit(127);
    }
    int status = status_of(child);
    CHECK(status == 0);
    if (status) break;
  }
  is_over = 1;
  for (int at = 0; at < 2; at++) {
    void *fault = NULL;
    CHECK(pthread_join(threads[at], &fault) == 0 && fault == NULL);
  }
  CHECK(is_alive(number, 0));
  CHECK(close(number) == 0);
  for (int at = 0; at < 2; at++) free_buffer(buffer[at]);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- a limit that leaves room for few fds --- */

#define FEW_FDS 32
#define MORE_EXPORTS 100
static void exports_when_the_fd_limit_is_lowered_go_on(void) {
  use_driver();
  size_t before = whole_card();
  struct rlimit limit, few;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = limit;
  few.rlim_cur = FEW_FDS;
  Buffer buffer[MORE_EXPORTS];
  int numbers[MORE_EXPORTS], count = 0;
  for (int at = 0; at < MORE_EXPORTS; at++) buffer[at] = new_buffer(at);
  MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
  while (count < MORE_EXPORTS && try_export(buffer[count].handle, &numbers[count]) == CUDA_SUCCESS) count++;
  /* Without the layer this is where it ends. */
  CHECK(is_layered() ? count == MORE_EXPORTS : count < FEW_FDS);
  for (int at = 0; is_layered() && at < count; at++) CHECK(is_alive(numbers[at], at));
  for (int at = 0; at < count; at++) CHECK(close(numbers[at]) == 0);
  for (int at = 0; at < MORE_EXPORTS; at++) free_buffer(buffer[at]);
  CHECK(COMES_TRUE(free_bytes() == before));
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* --- an owner that does not answer --- */

static void owner_to_stop(void) {
  use_driver();
  Buffer buffer = new_buffer(50);
  Message message = {.pid = getpid(), .numbers = {export_of(buffer.handle)}};
  tell(PEER_FD, &message);
  hear(PEER_FD);
  CHECK(close(message.numbers[0]) == 0);
  free_buffer(buffer);
}
/* With a cap of the node that the exports of this process fill, and FDBROKER_LAYER_WAIT=1. */
static void number_when_its_owner_is_stopped_while_evicted_is_eagain(void) {
  use_driver();
  Peer peer = start("owner_to_stop");
  Message message = hear(peer.socket);
  CHECK(is_taken(message.pid, message.numbers[0], 50));
  Buffer buffer[SLOTS];
  int numbers[SLOTS];
  for (int at = 0; at < SLOTS; at++) {
    buffer[at] = new_buffer(at);
    numbers[at] = export_of(buffer[at].handle);
  }
  /* Until it has stopped, another thread of it may still answer. */
  int status;
  MUST(kill(peer.pid, SIGSTOP) == 0 && waitpid(peer.pid, &status, WUNTRACED) == peer.pid && WIFSTOPPED(status));
  if (is_layered()) FAILS(EAGAIN, take_fd(message.pid, message.numbers[0]));
  /* The kernel asks no process for its fds. */
  else CHECK(is_taken(message.pid, message.numbers[0], 50));
  /* Nobody else is disturbed. */
  for (int at = 0; at < SLOTS; at++) CHECK(is_alive(numbers[at], at));
  MUST(kill(peer.pid, SIGCONT) == 0);
  CHECK(COMES_TRUE(is_taken(message.pid, message.numbers[0], 50)));
  tell(peer.socket, &message);
  CHECK(finish(peer) == 0);
  for (int at = 0; at < SLOTS; at++) {
    CHECK(close(numbers[at]) == 0);
    free_buffer(buffer[at]);
  }
}

/* --- an administrator ends what the program is about to export --- */

#define IN_A_ROW 4
/* $REVOKE ends all that this process has at the broker. */
static void exports_when_what_comes_next_was_revoked_are_good(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base;
  CUmemGenericAllocationHandle handles[IN_A_ROW];
  int numbers[IN_A_ROW];
  DRIVER(cu.cuMemAddressReserve(&base, IN_A_ROW * SEGMENT, SEGMENT, 0, 0));
  for (int at = 0; at < IN_A_ROW; at++) {
    DRIVER(create(&handles[at]));
    DRIVER(cu.cuMemMap(base + at * SEGMENT, SEGMENT, 0, handles[at], 0));
  }
  set_access(base, IN_A_ROW * SEGMENT);
  for (int at = 0; at < IN_A_ROW; at++) fill(base + at * SEGMENT, 60 + at);
  for (int at = 0; at < IN_A_ROW; at++) {
    numbers[at] = export_of(handles[at]);
    if (at == 1 && is_layered()) MUST(system(getenv("REVOKE")) == 0);
  }
  for (int at = 2; at < IN_A_ROW; at++) CHECK(is_alive(numbers[at], 60 + at));
  for (int at = 0; at < IN_A_ROW; at++) {
    CHECK(close(numbers[at]) == 0);
    DRIVER(cu.cuMemUnmap(base + at * SEGMENT, SEGMENT));
    DRIVER(cu.cuMemRelease(handles[at]));
  }
  DRIVER(cu.cuMemAddressFree(base, IN_A_ROW * SEGMENT));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- a broker that is killed, and started anew --- */

static void restart_consumer(void) {
  use_driver();
  Message message = hear(PEER_FD);
  for (int turn = 0; turn < 2; turn++) {
    for (unsigned at = 0; at < message.count; at++)
      /* It connects anew in its own time; until then there may be no answer, and never a wrong one. */
      CHECK(turn == 0 ? is_taken(message.pid, message.numbers[at], at)
                      : COMES_TRUE(is_taken(message.pid, message.numbers[at], at)));
    message.result = bad_checks;
    tell(PEER_FD, &message);
    hear(PEER_FD);
  }
}
static void numbers_when_the_broker_is_killed_and_started_anew_live_on(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer[SEGMENTS];
  Message message = {.pid = getpid(), .count = SEGMENTS - 1};
  for (int at = 0; at < SEGMENTS; at++) {
    buffer[at] = new_buffer(at);
    message.numbers[at] = export_of(buffer[at].handle);
    CHECK(is_export(message.numbers[at]));
  }
  Peer peer = start("restart_consumer");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  if (has_restarts()) restart();
  /* Ended while there may be no broker: it must not come back. */
  CHECK(close(message.numbers[SEGMENTS - 1]) == 0 || errno == EBADF);
  free_buffer(buffer[SEGMENTS - 1]);
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  /* (The number of a plain fd may be another fd's by now.) */
  if (is_layered()) FAILS(EBADF, take_fd(getpid(), message.numbers[SEGMENTS - 1]));
  /* A new export goes by the new broker. */
  Buffer fresh = new_buffer(90);
  int number = export_of(fresh.handle);
  CHECK(is_export(number) && is_alive(number, 90));
  CHECK(close(number) == 0);
  free_buffer(fresh);
  tell(peer.socket, &message);
  CHECK(finish(peer) == 0);
  for (int at = 0; at < SEGMENTS - 1; at++) {
    CHECK(close(message.numbers[at]) == 0);
    free_buffer(buffer[at]);
  }
  CHECK(COMES_TRUE(free_bytes() == before));
}

static const Row rows[] = {
    ROLE(storm_consumer),
    ROLE(owner_to_stop),
    ROLE(restart_consumer),
    SPECIAL(memory_when_more_is_exported_than_the_node_may_hold_is_always_right),
    SPECIAL(children_when_started_while_threads_export_come_to_their_programs),
    SPECIAL(exports_when_the_fd_limit_is_lowered_go_on),
    SPECIAL(number_when_its_owner_is_stopped_while_evicted_is_eagain),
    SPECIAL(exports_when_what_comes_next_was_revoked_are_good),
    SPECIAL(numbers_when_the_broker_is_killed_and_started_anew_live_on),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
