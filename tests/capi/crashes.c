/* Brokers killed one after the other under processes that share memory and free some of it while there is no broker: what was
 * freed never shows again, what was not goes on. usage: crashes [CRASHES] */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>

#define PAGE 4096u
#define RANKS 8
#define BUFFERS 6
static int crashes = 50;

/* What the ranks tell each other. Each writes to its own row between two steps, and others read it after. */
struct row {
  struct {
    fdbroker_handle_t handle;
    unsigned char fill;
  } buffers[BUFFERS];
  /* Ended while there was no broker: a buffer of an arena and a memfd. */
  fdbroker_handle_t freed, unregistered;
  long held_back;
};

struct board {
  struct row rows[RANKS];
  /* The step that all are to do, and how many have done it. */
  atomic_int step, done;
  char socket[128];
};

static struct board *board;

enum { SHARE, LOOK, END_SOME, COME_BACK, LEAVE, STEPS };

static int step_of(int round, int what) { return round * STEPS + what + 1; }

/* Waits for the parent to begin a step, and says at the next wait that it is done. */
static void await_step(int step) {
  if (step > 1) board->done++;
  for (unsigned waited = 0; board->step < step && waited < 3 * SOON; waited++) nap_ms(1);
  MUST(board->step >= step);
}

static void begin_step(int step) {
  board->done = 0;
  board->step = step;
}

static void await_all(int ranks) {
  for (unsigned waited = 0; board->done < ranks && waited < 3 * SOON; waited++) nap_ms(1);
  MUST(board->done == ranks);
}

struct rank {
  int number, fd;
  fdbroker_t *context;
  void *hosts[BUFFERS];
  fdbroker_handle_t memfd;
  /* Another rank's buffer, in use all the time. */
  fdbroker_import_t kept;
  unsigned char kept_fill;
  int next_fill;
};

static fdbroker_code_t recall(void *user, const fdbroker_recall_t *asked, fdbroker_recall_answer_t *answer) {
  (void)asked;
  answer->fd = dup(*(int *)user);
  return answer->fd >= 0 ? FDBROKER_OK : FDBROKER_LOCAL_FD_LIMIT;
}

/* New memory in place `at`; it is registered when there is a broker. */
static void renew(struct rank *rank, int at) {
  OK(fdbroker_host_alloc(rank->context, FDBROKER_HOST_ARENA, PAGE, SOON, &rank->hosts[at], NULL));
  unsigned char fill = (unsigned char)(1 + rank->next_fill++ % 255);
  memset(rank->hosts[at], fill, PAGE);
  board->rows[rank->number].buffers[at].fill = fill;
}

/* Registers whatever is not registered, the broker's comings and goings apart. */
static void share(struct rank *rank, int round) {
  struct row *row = &board->rows[rank->number];
  for (int at = 0; at < BUFFERS; at++) {
    fdbroker_code_t code;
    for (unsigned waited = 0; waited < SOON; waited += 5) {
      code = fdbroker_get_handle(rank->context, rank->hosts[at], 0, SOON, &row->buffers[at].handle);
      if (code != FDBROKER_NOT_CONNECTED) break;
      nap_ms(5);
    }
    OK(code);
  }
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  allocation.flags = FDBROKER_RECALLABLE;
  allocation.base = 0x1000000;
  allocation.owner_allocation_id = (uint64_t)round;
  OK(fdbroker_register(rank->context, &allocation, rank->fd, SOON, &rank->memfd));
}

static void look_at(struct rank *rank, const fdbroker_handle_t *handle, unsigned char fill) {
  fdbroker_import_t import;
  fdbroker_code_t code = FDBROKER_NOT_CONNECTED;
  for (unsigned waited = 0; code == FDBROKER_NOT_CONNECTED && waited < SOON; waited += 5) {
    code = fdbroker_import(rank->context, handle, FDBROKER_IMPORT_READ, SOON, &import);
    if (code == FDBROKER_NOT_CONNECTED) nap_ms(5);
  }
  CODE(FDBROKER_OK, code);
  if (code != FDBROKER_OK) return;
  CHECK(all_bytes_are(import.ptr, fill, PAGE));
  OK(fdbroker_import_release(rank->context, &import));
}

/* Asks for what has ended until a broker has answered: it never is granted. */
static void never_comes_back(struct rank *rank, const fdbroker_handle_t *handle) {
  fdbroker_code_t code = FDBROKER_NOT_CONNECTED;
  for (unsigned waited = 0; code == FDBROKER_NOT_CONNECTED && waited < SOON; waited += 2) {
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    code = fdbroker_acquire(rank->context, handle, SOON, &grant);
    if (code == FDBROKER_OK) {
      CHECK(!"what was ended is granted");
      close(grant.fd);
      OK(fdbroker_release(rank->context, grant.lease));
    }
    if (code == FDBROKER_NOT_CONNECTED) nap_ms(2);
  }
  CHECK(code == FDBROKER_STALE);
}

static void look(struct rank *rank) {
  for (int other = 0; other < RANKS; other++)
    for (int at = 0; at < BUFFERS; at++)
      look_at(rank, &board->rows[other].buffers[at].handle, board->rows[other].buffers[at].fill);
}

static int play(int number) {
  struct rank rank = {.number = number};
  struct row *row = &board->rows[number], *next = &board->rows[(number + 1) % RANKS];
  struct broker broker;
  strcpy(broker.socket, board->socket);
  rank.context = open_at(&broker);
  rank.fd = sealed_memfd(PAGE, 'm');
  OK(fdbroker_set_recall_callback(rank.context, recall, &rank.fd));
  for (int at = 0; at < BUFFERS; at++) renew(&rank, at);
  for (int round = 0; round < crashes; round++) {
    int at = round % BUFFERS;
    await_step(step_of(round, SHARE));
    share(&rank, round);
    await_step(step_of(round, LOOK));
    look(&rank);
    OK(fdbroker_import(rank.context, &next->buffers[at].handle, FDBROKER_IMPORT_READ, SOON, &rank.kept));
    rank.kept_fill = next->buffers[at].fill;
    await_step(step_of(round, END_SOME));
    /* There is no broker. */
    row->freed = row->buffers[at].handle;
    row->unregistered = rank.memfd;
    OK(fdbroker_host_free(rank.context, rank.hosts[at]));
    OK(fdbroker_unregister(rank.context, &rank.memfd));
    CODE(FDBROKER_STALE, fdbroker_unregister(rank.context, &rank.memfd));
    renew(&rank, at);
    row->held_back = (long)stats_of(rank.context).host_bytes_held_back;
    await_step(step_of(round, COME_BACK));
    /* The next broker is starting; it may be killed once more. */
    CHECK(fdbroker_import_is_current(rank.context, &rank.kept) == 0);
    for (int other = 0; other < RANKS; other++) {
      never_comes_back(&rank, &board->rows[other].freed);
      never_comes_back(&rank, &board->rows[other].unregistered);
    }
    CHECK(fdbroker_import_is_current(rank.context, &rank.kept) == 0);
    /* Nobody has been given its memory meanwhile. */
    CHECK(all_bytes_are(rank.kept.ptr, rank.kept_fill, PAGE));
    await_step(step_of(round, LEAVE));
    OK(fdbroker_import_release(rank.context, &rank.kept));
  }
  await_step(step_of(crashes, SHARE));
  /* Each had one range less for each crash in a grace time: it said so. They come back when the grace time is over. */
  uint64_t bytes = 1;
  CHECK(row->held_back == (long)crashes * PAGE);
  OK(fdbroker_empty_cache(rank.context, NULL));
  EVENTUALLY(stats_of(rank.context).host_bytes_held_back == 0);
  OK(fdbroker_host_reclaim(rank.context, &bytes));
  CHECK(bytes == 0);
  OK(fdbroker_close(rank.context));
  return bad_checks != 0;
}

static void what_is_freed_while_there_is_no_broker_never_shows_again(void) {
  struct broker broker;
  pid_t ranks[RANKS];
  broker_start(&broker, NULL);
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUST(board != MAP_FAILED);
  strcpy(board->socket, broker.socket);
  fflush(stdout);
  for (int number = 0; number < RANKS; number++) {
    ranks[number] = fork();
    MUST(ranks[number] >= 0);
    if (ranks[number] == 0) {
      /* Its end is not to keep a broker alive. */
      close(broker.life);
      alarm(LIFE_S);
      int status = play(number);
      fflush(stdout);
      _exit(status);
    }
  }
  for (int round = 0; round < crashes; round++) {
    for (int what = SHARE; what < STEPS; what++) {
      if (what == END_SOME) broker_kill(&broker);
      if (what == COME_BACK) {
        broker_start_in(&broker, NULL);
        /* Now and then it dies again in the middle of their return. */
        if (round % 3 == 2) {
          begin_step(step_of(round, what));
          nap_ms(round % 7 * 3);
          broker_kill(&broker);
          broker_start_in(&broker, NULL);
          await_all(RANKS);
          continue;
        }
      }
      begin_step(step_of(round, what));
      await_all(RANKS);
    }
  }
  broker_kill(&broker);
  broker_start_in(&broker, "limits.grace_ms=5000");
  begin_step(step_of(crashes, SHARE));
  for (int number = 0; number < RANKS; number++) CHECK(status_of(ranks[number]) == 0);
  EVENTUALLY(ledger(&broker, "allocations") == 0 && ledger(&broker, "mapped_leases") == 0);
  munmap(board, sizeof *board);
  broker_stop(&broker);
}

#define LEASES 64

static struct {
  atomic_int of[LEASES + 1]; /* how often each lease was told of; 0: of none */
  atomic_int found;
} ends;

static void note_end(void *user, const fdbroker_notice_t *notice) {
  (void)user;
  if (notice->kind == FDBROKER_NOTICE_REVOKED) ends.of[notice->lease <= LEASES ? notice->lease : 0]++;
  ends.found += notice->kind == FDBROKER_NOTICE_RECONNECTED;
}

/* A broker that comes back gives leases other numbers, among them those that others had: a notice names the right one. */
static void notices_name_the_leases_that_the_program_knows(void) {
  struct broker broker;
  void *hosts[LEASES];
  fdbroker_handle_t handles[LEASES];
  fdbroker_grant_t grants[LEASES];
  broker_start(&broker, NULL);
  fdbroker_t *owner = open_at(&broker), *holder = open_at(&broker);
  memset(&ends, 0, sizeof ends);
  OK(fdbroker_set_notice_callback(holder, note_end, NULL));
  for (int at = 0; at < LEASES; at++)
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &hosts[at], &handles[at]));
  grants[0].struct_size = sizeof grants[0];
  OK(fdbroker_acquire_many(holder, LEASES, handles, SOON, grants, NULL));
  for (int at = 0; at < LEASES; at++) {
    CHECK(grants[at].lease >= 1 && grants[at].lease <= LEASES);
    close(grants[at].fd);
  }
  /* A quarter ends while there is no broker, one at the next, and so on. */
  for (int quarter = 0; quarter < 4; quarter++) {
    int begin = quarter * LEASES / 4, end = begin + LEASES / 4;
    if (quarter % 2 == 0) broker_kill(&broker);
    for (int at = begin; at < end; at++) OK(fdbroker_host_free(owner, hosts[at]));
    if (quarter % 2 == 0) {
      broker_start_in(&broker, NULL);
      EVENTUALLY(ends.found == quarter / 2 + 1);
      EVENTUALLY(fdbroker_is_connected(owner) == 1);
    }
    for (int at = begin; at < end; at++) EVENTUALLY(ends.of[grants[at].lease] >= 1);
    for (int at = end; at < LEASES; at++) CHECK(ends.of[grants[at].lease] == 0);
    CHECK(ends.of[0] == 0);
  }
  for (int at = 0; at < LEASES; at++) {
    CHECK(fdbroker_lease_is_current(holder, grants[at].lease) == 0);
    OK(fdbroker_release(holder, grants[at].lease));
  }
  CHECK(stats_of(holder).leases == 0);
  EVENTUALLY(ledger(&broker, "open_leases") == 0);
  OK(fdbroker_close(holder));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
}

#define ARENA 64

/* Memory held over crashes is used again after its free, once the broker's grace time is over. */
static void ranges_held_over_crashes_come_back_by_themselves(void) {
  struct broker broker;
  void *hosts[ARENA];
  fdbroker_handle_t handles[ARENA];
  broker_start(&broker, NULL);
  fdbroker_t *context = open_at(&broker);
  for (int at = 0; at < ARENA; at++)
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &hosts[at], &handles[at]));
  for (int round = 0; round < 3; round++) {
    fdbroker_import_t import;
    broker_kill(&broker);
    broker_start_in(&broker, NULL);
    EVENTUALLY(fdbroker_is_connected(context) == 1);
    OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
    OK(fdbroker_import_release(context, &import));
  }
  OK(fdbroker_empty_cache(context, NULL));
  /* Half of it is freed while there is no broker, half in the grace time of the next one: all is held back, and comes back. */
  uint64_t bytes = stats_of(context).host_bytes;
  broker_kill(&broker);
  EVENTUALLY(fdbroker_is_connected(context) == 0);
  for (int at = 0; at < ARENA / 2; at++) OK(fdbroker_host_free(context, hosts[at]));
  CHECK(stats_of(context).host_bytes_held_back == ARENA / 2 * PAGE);
  /* Half of SOON: a process that is back later than that is late, and its memory stays held back. */
  broker_start_in(&broker, "limits.grace_ms=10000");
  EVENTUALLY(fdbroker_is_connected(context) == 1);
  CHECK(stats_of(context).host_bytes_held_back == ARENA / 2 * PAGE);
  for (int at = ARENA / 2; at < ARENA; at++) OK(fdbroker_host_free(context, hosts[at]));
  EVENTUALLY(stats_of(context).host_bytes_held_back == 0);
  for (int at = 0; at < ARENA; at++)
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &hosts[at], &handles[at]));
  CHECK(stats_of(context).host_bytes == bytes && stats_of(context).host_bytes_held_back == 0);
  OK(fdbroker_close(context));
  broker_stop(&broker);
}

int main(int argc, char **argv) {
  begin();
  if (argc > 1) crashes = atoi(argv[1]);
  RUN(what_is_freed_while_there_is_no_broker_never_shows_again);
  RUN(notices_name_the_leases_that_the_program_knows);
  RUN(ranges_held_over_crashes_come_back_by_themselves);
  return end();
}
