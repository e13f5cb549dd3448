/* Brokers that are away, for a while or for good. Each case runs when it is named, with what run.sh arranges for it.
 * usage: outages CASE... */
#include "shapes.h"

/* A second process takes numbers until it hears of none, and tells how it went. */
static void taker(void) {
  use_driver();
  for (;;) {
    Message message = hear(PEER_FD);
    for (unsigned at = 0; at < message.count; at++) CHECK(is_taken(message.pid, message.numbers[at], message.seed + at));
    message.result = bad_checks;
    tell(PEER_FD, &message);
    if (message.count == 0) return;
  }
}
static int takes(Peer peer, Message message) {
  tell(peer.socket, &message);
  return hear(peer.socket).result == 0;
}
static int takes_nothing_more(Peer peer) {
  Message end = {.count = 0};
  tell(peer.socket, &end);
  return hear(peer.socket).result == 0 && finish(peer) == 0;
}
/* By a child of fork(2), which may not use the driver: the bytes of the stand-in's memory are those of its file. */
static int child_takes(pid_t owner, int number, unsigned seed) {
  fflush(stdout);
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    uint32_t words[SEGMENT / 4];
    int fd = take_fd(owner, number), is_right = pread(fd, words, SEGMENT, 0) == SEGMENT;
    for (unsigned at = 0; is_right && at < SEGMENT / 4; at++) is_right = words[at] == word_of(seed, at);
    _exit(!is_right);
  }
  return status_of(child) == 0;
}
static void command(const char *name) {
  if (is_layered()) MUST(getenv(name) && system(getenv(name)) == 0);
}

/* $OUTAGE kills the broker, and starts it again 10 s later. Nobody is told, and nothing fails. */
static void job_when_the_broker_is_away_for_ten_seconds_stalls_and_is_right(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer[SEGMENTS];
  Message message = {.pid = getpid(), .count = SEGMENTS - 1};
  for (int at = 0; at < SEGMENTS; at++) {
    buffer[at] = new_buffer(at);
    message.numbers[at] = export_of(buffer[at].handle);
  }
  Peer peer = start("taker"), idle = start("taker");
  CHECK(takes(peer, message));
  command("OUTAGE");
  /* One that has had a broker, one that has not, and a child take the numbers; one exports. */
  tell(peer.socket, &message);
  tell(idle.socket, &message);
  CHECK(child_takes(getpid(), message.numbers[3], 3));
  int ended = message.numbers[SEGMENTS - 1];
  CHECK(close(ended) == 0);
  free_buffer(buffer[SEGMENTS - 1]);
  Buffer fresh = new_buffer(90);
  Message more = {.pid = getpid(), .count = 1, .seed = 90, .numbers = {export_of(fresh.handle)}};
  CHECK(is_export(more.numbers[0]));
  CHECK(hear(peer.socket).result == 0);
  CHECK(hear(idle.socket).result == 0);
  CHECK(takes(peer, more) && takes(idle, more));
  if (is_layered()) FAILS(EBADF, fd_of(ended));
  CHECK(takes_nothing_more(peer) && takes_nothing_more(idle));
  CHECK(close(more.numbers[0]) == 0);
  free_buffer(fresh);
  for (int at = 0; at < SEGMENTS - 1; at++) {
    CHECK(close(message.numbers[at]) == 0);
    free_buffer(buffer[at]);
  }
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- given up --- */

/* How often `fdbroker run` starts a broker again, and calls of one process after that: each would wait for
 * FDBROKER_LAYER_WAIT if they did not share one wait. */
#define RESTARTS 5
#define CALLS 40
static void all_fail(int number) {
  for (int at = 0; at < CALLS; at++) FAILS(EAGAIN, fd_of(number));
}
static void loser(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CHECK(is_taken(message.pid, message.numbers[0], 50));
  tell(PEER_FD, &message);
  hear(PEER_FD);
  if (is_layered()) all_fail(message.numbers[0]);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
/* $KILL kills the broker that serves. With FDBROKER_LAYER_WAIT=5. */
static void numbers_when_the_broker_dies_live_on_until_it_is_given_up(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(50);
  Message message = {.pid = getpid(), .count = 1, .seed = 50, .numbers = {export_of(buffer.handle)}};
  Peer peer = start("taker"), lost = start("loser");
  tell(lost.socket, &message);
  hear(lost.socket);
  for (int turn = 0; turn < RESTARTS; turn++) {
    command("KILL");
    CHECK(takes(peer, message));
    Buffer fresh = new_buffer(turn);
    int number = export_of(fresh.handle);
    CHECK(is_export(number) && is_alive(number, turn) && child_takes(getpid(), number, turn));
    CHECK(close(number) == 0);
    free_buffer(fresh);
  }
  command("KILL");
  time_t begin = time(NULL);
  tell(lost.socket, &message);
  if (is_layered()) {
    all_fail(message.numbers[0]);
    /* A child does not wait again, nor does an export, which is the driver's own now. */
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      all_fail(message.numbers[0]);
      _exit(bad_checks != 0);
    }
    CHECK(status_of(child) == 0);
    for (int at = 0; at < CALLS; at++) {
      Buffer fresh = new_buffer(at);
      int fd = export_of(fresh.handle);
      CHECK(fd > 2 && fd < FIRST_VIRTUAL && is_alive(fd, at));
      CHECK(close(fd) == 0);
      free_buffer(fresh);
    }
  }
  CHECK(hear(lost.socket).result == 0 && finish(lost) == 0);
  CHECK(time(NULL) - begin < 60);
  message.count = 0;
  CHECK(takes(peer, message) && finish(peer) == 0);
  CHECK(close(message.numbers[0]) == 0);
  free_buffer(buffer);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static const Row rows[] = {
    ROLE(taker),
    ROLE(loser),
    SPECIAL(job_when_the_broker_is_away_for_ten_seconds_stalls_and_is_right),
    SPECIAL(numbers_when_the_broker_dies_live_on_until_it_is_given_up),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
