/* rank.c: one rank of the MPI test: all ranks share buffers with all others over many rounds and check every byte, while
 * buffers are freed, their addresses used again, and the import cache is smaller than what is imported.
 * Must never pass when a rank is missing, a byte is wrong, or a handle of freed memory still gives memory.
 *
 * usage: rank RANKS ROUNDS BUFFERS      (tests/mpi/run.sh starts it and computes how many bytes must be verified) */
#include <fdbroker.h>
#include <mpi.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  DEADLINE_MS = 10000,
  /* Sizes are multiples of this, so that most end inside a page. tests/mpi/run.sh has the same two numbers. */
  SIZE_UNIT = 4000,
  SIZE_STEPS = 13,
  /* A buffer is freed after this many rounds: in the rounds between, its import may be a hit. */
  LIFE_ROUNDS = 3,
  /* Arena: the memfd, and one export on its way. Imports have no fd. */
  MEMORY_FDS_MAX = 2,
  MAX_BUFFERS = 1024,
  MAX_ROUNDS = 10000
};

/* One buffer of this rank. */
struct buffer {
  unsigned char *ptr;
  size_t size;
  fdbroker_handle_t handle;
};

/* The counts; the same order in every rank, since they are summed as an array. */
struct counts {
  unsigned long long bytes, mismatches, refused, reused, hits, misses, stale, evicted;
};
enum { COUNTS = sizeof(struct counts) / sizeof(unsigned long long) };

static int rank, ranks, rounds, buffers;
static fdbroker_t *broker;
static struct counts counts;
static int memory_fds_peak, all_fds_peak;

static void fail(const char *format, ...)
{
  va_list arguments;
  fprintf(stderr, "rank %d: ", rank);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  MPI_Abort(MPI_COMM_WORLD, 1);
  abort();
}

static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fail("%s: %s: %s", call, fdbroker_error_name(code), fdbroker_last_error());
  }
}

static void *zeroed(size_t count, size_t size)
{
  void *memory = calloc(count, size);
  if (memory == NULL) {
    fail("no memory for %zu x %zu bytes", count, size);
  }
  return memory;
}

/* ---- what every rank knows about the buffers of every other rank */

static int is_freed_after(int buffer, int round)
{
  return (buffer + round) % LIFE_ROUNDS == 0;
}

/* The round in which the buffer that has this number during `round` was allocated. */
static int birth(int buffer, int round)
{
  while (round > 0 && !is_freed_after(buffer, round - 1)) {
    round--;
  }
  return round;
}

static size_t size_of(int owner, int buffer, int born)
{
  return (size_t)SIZE_UNIT * (size_t)(1 + (owner + 5 * buffer + 3 * born) % SIZE_STEPS);
}

/* Eight bytes of a buffer's content, made of its owner, birth, number, and the position. */
static uint64_t word(int owner, int buffer, int born, size_t index)
{
  uint64_t seed = ((uint64_t)owner << 48) ^ ((uint64_t)born << 32) ^ ((uint64_t)buffer << 20) ^ (uint64_t)index;
  seed = (seed ^ (seed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  seed = (seed ^ (seed >> 27)) * UINT64_C(0x94d049bb133111eb);
  return seed ^ (seed >> 31);
}

static void fill(unsigned char *ptr, int owner, int buffer, int born)
{
  size_t size = size_of(owner, buffer, born);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t value = word(owner, buffer, born, at / sizeof value);
    memcpy(ptr + at, &value, size - at < sizeof value ? size - at : sizeof value);
  }
}

/* Compares every byte with what the owner wrote. */
static void verify(const fdbroker_import_t *import, int owner, int buffer, int born)
{
  const unsigned char *ptr = import->ptr;
  size_t size = size_of(owner, buffer, born);
  if (import->size_bytes < size) {
    fail("buffer %d of rank %d: %" PRIu64 " of %zu bytes imported", buffer, owner, import->size_bytes, size);
  }
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    unsigned char expected[sizeof(uint64_t)];
    uint64_t value = word(owner, buffer, born, at / sizeof value);
    size_t count = size - at < sizeof value ? size - at : sizeof value;
    memcpy(expected, &value, sizeof value);
    for (size_t i = 0; i < count; i++) {
      counts.mismatches += ptr[at + i] != expected[i];
    }
  }
  counts.bytes += size;
}

/* ---- fds, from /proc */

static void count_fds(int *memory, int *all)
{
  DIR *directory = opendir("/proc/self/fd");
  struct dirent *entry;
  *memory = *all = 0;
  if (directory == NULL) {
    fail("cannot read /proc/self/fd");
  }
  while ((entry = readdir(directory)) != NULL) {
    char path[300], target[300];
    ssize_t length;
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(directory)) {
      continue;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    *all += 1;
    *memory += strncmp(target, "/memfd:", 7) == 0 || strncmp(target, "/dmabuf:", 8) == 0;
  }
  closedir(directory);
}

static void note_fds(void)
{
  int memory, all;
  count_fds(&memory, &all);
  memory_fds_peak = memory > memory_fds_peak ? memory : memory_fds_peak;
  all_fds_peak = all > all_fds_peak ? all : all_fds_peak;
  if (memory > MEMORY_FDS_MAX) {
    fail("%d fds of memory are open, at most %d should be: imports keep theirs", memory, MEMORY_FDS_MAX);
  }
}

/* ---- this rank's buffers */

/* Ranges of all buffers freed so far. */
static struct { uintptr_t start, end; } *freed;
static size_t freed_count;

static int is_reused(const struct buffer *buffer)
{
  uintptr_t start = (uintptr_t)buffer->ptr, end = start + buffer->size;
  for (size_t i = 0; i < freed_count; i++) {
    if (start < freed[i].end && freed[i].start < end) {
      return 1;
    }
  }
  return 0;
}

static void allocate(struct buffer *buffer, int number, int born)
{
  void *ptr = NULL;
  buffer->size = size_of(rank, number, born);
  check(fdbroker_host_alloc(broker, FDBROKER_HOST_ARENA, buffer->size, DEADLINE_MS, &ptr, &buffer->handle),
        "host_alloc");
  buffer->ptr = ptr;
  counts.reused += (unsigned long long)is_reused(buffer);
  fill(buffer->ptr, rank, number, born);
}

static void release_memory(struct buffer *buffer)
{
  freed[freed_count].start = (uintptr_t)buffer->ptr;
  freed[freed_count].end = freed[freed_count].start + buffer->size;
  freed_count++;
  check(fdbroker_host_free(broker, buffer->ptr), "host_free");
  memset(buffer, 0, sizeof *buffer);
}

/* ---- buffers of other ranks */

/* Imports all buffers of one peer: first in one call and all in use at once, then one by one and the last first, so that
 * some are still in the cache. */
static void read_peer(int peer, int round, const fdbroker_handle_t *handles, fdbroker_import_t *imports,
                      fdbroker_code_t *codes)
{
  fdbroker_code_t first = fdbroker_import_many(broker, (size_t)buffers, handles, FDBROKER_IMPORT_READ, DEADLINE_MS,
                                               imports, codes);
  for (int b = 0; b < buffers; b++) {
    if (codes[b] != FDBROKER_OK) {
      fail("round %d: import_many of rank %d's: buffer %d: %s", round, peer, b, fdbroker_error_name(codes[b]));
    }
  }
  check(first, "import_many");
  note_fds();
  for (int b = 0; b < buffers; b++) {
    verify(&imports[b], peer, b, birth(b, round));
    check(fdbroker_import_release(broker, &imports[b]), "import_release");
  }
  for (int b = buffers - 1; b >= 0; b--) {
    fdbroker_import_t import;
    check(fdbroker_import(broker, &handles[b], FDBROKER_IMPORT_READ, DEADLINE_MS, &import), "import");
    verify(&import, peer, b, birth(b, round));
    check(fdbroker_import_release(broker, &import), "import_release");
  }
}

/* A handle of freed memory must give STALE, and never memory: neither the freed memory nor the memory there now. */
static void expect_stale(int peer, int number, const fdbroker_handle_t *handle)
{
  fdbroker_import_t import;
  fdbroker_code_t code = fdbroker_import(broker, handle, FDBROKER_IMPORT_READ, DEADLINE_MS, &import);
  if (code != FDBROKER_STALE) {
    fail("buffer %d of rank %d is freed, but its handle answers %s", number, peer,
         code == FDBROKER_OK ? "OK" : fdbroker_error_name(code));
  }
  counts.refused++;
}

/* ---- the rounds */

static void play(void)
{
  struct buffer *mine = zeroed((size_t)buffers, sizeof *mine);
  size_t total = (size_t)ranks * (size_t)buffers;
  int block = buffers * (int)sizeof(fdbroker_handle_t);
  fdbroker_handle_t *own = zeroed((size_t)buffers, sizeof *own);
  fdbroker_handle_t *handles = zeroed(total, sizeof *handles);
  fdbroker_import_t *imports = zeroed((size_t)buffers, sizeof *imports);
  fdbroker_code_t *codes = zeroed((size_t)buffers, sizeof *codes);
  freed = zeroed((size_t)rounds * (size_t)buffers, sizeof *freed);

  for (int b = 0; b < buffers; b++) {
    allocate(&mine[b], b, 0);
  }
  for (int round = 0; round < rounds; round++) {
    for (int b = 0; b < buffers; b++) {
      own[b] = mine[b].handle;
    }
    MPI_Allgather(own, block, MPI_BYTE, handles, block, MPI_BYTE, MPI_COMM_WORLD);
    for (int step = 1; step < ranks; step++) {
      /* Every second round goes the other way, so that the last peers of one round are the first of the next. */
      int peer = (rank + (round % 2 == 0 ? step : ranks - step)) % ranks;
      read_peer(peer, round, &handles[(size_t)peer * (size_t)buffers], imports, codes);
    }

    /* One buffer that its owner is about to free stays in use meanwhile. */
    int neighbour = (rank + 1) % ranks, held_number = (LIFE_ROUNDS - round % LIFE_ROUNDS) % LIFE_ROUNDS;
    fdbroker_import_t held;
    check(fdbroker_import(broker, &handles[(size_t)neighbour * (size_t)buffers + (size_t)held_number],
                          FDBROKER_IMPORT_READ, DEADLINE_MS, &held),
          "import");
    if (!fdbroker_import_is_current(broker, &held)) {
      fail("round %d: an import just made is not current", round);
    }
    MPI_Barrier(MPI_COMM_WORLD);

    for (int b = 0; b < buffers; b++) {
      if (is_freed_after(b, round)) {
        release_memory(&mine[b]);
      }
    }
    /* fdbroker_host_free() does not wait; after this the freed handles are stale to everybody. */
    check(fdbroker_flush(broker, DEADLINE_MS), "flush");
    MPI_Barrier(MPI_COMM_WORLD);

    for (int b = 0; b < buffers; b++) {
      for (int peer = 0; peer < ranks; peer++) {
        if (is_freed_after(b, round)) {
          expect_stale(peer, b, &handles[(size_t)peer * (size_t)buffers + (size_t)b]);
        }
      }
    }
    for (int b = 0; b < buffers; b++) {
      if (mine[b].ptr == NULL) {
        allocate(&mine[b], b, round + 1);
      }
    }
    /* By now its owner has allocated anew; the memory in use here is still the freed one. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (fdbroker_import_is_current(broker, &held)) {
      fail("round %d: an import of freed memory is called current", round);
    }
    verify(&held, neighbour, held_number, birth(held_number, round));
    check(fdbroker_import_release(broker, &held), "import_release");
  }
  note_fds();
  for (int b = 0; b < buffers; b++) {
    release_memory(&mine[b]);
  }
  free(mine);
  free(own);
  free(handles);
  free(imports);
  free(codes);
  free(freed);
}

static int number(const char *text, int least, int most, const char *name)
{
  char *end;
  long value = strtol(text, &end, 10);
  if (*end != '\0' || value < least || value > most) {
    fail("%s is '%s'; it must be %d to %d", name, text, least, most);
  }
  return (int)value;
}

static void open_broker(void)
{
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.name = "tests/mpi/rank";
  /* The cache is smaller than the imports of a round, so that it must evict; the arena leaves no room for twice as much. */
  options.cache_max_entries = (int64_t)(ranks - 1) * buffers / 2;
  options.arena_bytes = 2 * (uint64_t)buffers * SIZE_UNIT * (SIZE_STEPS + 1);
  check(fdbroker_open(&options, &broker), "open");
}

static void close_broker(void)
{
  fdbroker_stats_t stats;
  int memory, all;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  check(fdbroker_stats(broker, &stats), "stats");
  counts.hits = stats.hits;
  counts.misses = stats.misses;
  counts.stale = stats.stale;
  counts.evicted = stats.evicted;
  if (stats.pinned != 0) {
    fail("%" PRIu64 " imports are in use after all were released", stats.pinned);
  }
  check(fdbroker_close(broker), "close");
  count_fds(&memory, &all);
  if (memory != 0) {
    fail("%d fds of memory are open after close", memory);
  }
}

static void print_list(const int *values)
{
  for (int i = 0; i < ranks; i++) {
    printf(" %d", values[i]);
  }
}

static int report(void)
{
  struct counts sum;
  int *memory = zeroed((size_t)ranks, sizeof *memory), *all = zeroed((size_t)ranks, sizeof *all);
  int reused = counts.reused > 0, all_reused = 0;
  MPI_Allreduce(&counts, &sum, COUNTS, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&reused, &all_reused, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Gather(&memory_fds_peak, 1, MPI_INT, memory, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Gather(&all_fds_peak, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("ranks %d, rounds %d, bytes verified %llu, mismatches %llu, stale handles refused %llu, addresses reused "
           "%llu, hits %llu misses %llu stale %llu evicted %llu, fds per rank: memory",
           ranks, rounds, sum.bytes, sum.mismatches, sum.refused, sum.reused, sum.hits, sum.misses, sum.stale,
           sum.evicted);
    print_list(memory);
    printf(", all");
    print_list(all);
    printf("\n");
    fflush(stdout);
  }
  free(memory);
  free(all);
  if (sum.mismatches != 0 || (rounds > LIFE_ROUNDS && !all_reused)) {
    fprintf(stderr, "rank %d: bytes differ, or a rank's addresses were never used again\n", rank);
    return 1;
  }
  return 0;
}

int main(int argc, char **argv)
{
  int expected, status;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) {
    fail("usage: rank RANKS ROUNDS BUFFERS");
  }
  /* Under another MPI's mpirun every process would be a world of its own, and would find no fault. */
  expected = number(argv[1], 2, 1024, "RANKS");
  if (ranks != expected) {
    fail("%d ranks were asked for, the world has %d: is mpirun of the same MPI as this program?", expected, ranks);
  }
  rounds = number(argv[2], 1, MAX_ROUNDS, "ROUNDS");
  buffers = number(argv[3], LIFE_ROUNDS, MAX_BUFFERS, "BUFFERS");

  open_broker();
  play();
  close_broker();
  status = report();
  MPI_Finalize();
  return status;
}
