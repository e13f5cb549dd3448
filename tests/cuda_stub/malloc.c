/* Programs that share memory of cuMemAlloc by CUDA's own IPC calls, as PyTorch's default allocator and UCX do, and what the driver says
 * of such memory. Each check holds for the driver alone. EXPECT_MALLOC=1: the handles are the layer's. usage: malloc [CASE]... */
#include "shapes.h"

#include <pthread.h>
#include <sys/resource.h>

/* More than the layer's least, and no multiple of its steps; what stays the driver's. */
#define BIG ((4u << 20) + 100)
#define SMALL (1u << 20)
#define STEP (2u << 20)
#define THREADS 6
#define ROW 24
#define ROUNDS 20
#define STREAM ((void *)1)
/* CUpointer_attribute. */
enum { CONTEXT = 1, HOST_POINTER = 4, SYNC_MEMOPS = 6, BUFFER_ID = 7 };

static int is_ours(void) { return getenv("EXPECT_MALLOC") != NULL; }
static CUdeviceptr new_memory(size_t bytes, unsigned seed) {
  CUdeviceptr base;
  DRIVER(cu.cuMemAlloc(&base, bytes));
  if (bytes >= SEGMENT) fill(base, seed);
  return base;
}
static CUipcMemHandle handle_of(CUdeviceptr at) {
  CUipcMemHandle handle;
  memset(&handle, 0, sizeof handle);
  DRIVER(cu.cuIpcGetMemHandle(&handle, at));
  return handle;
}
static int is_layers(const CUipcMemHandle *handle) { return memcmp(handle, "FDBH", 4) == 0; }
static CUresult open_at(CUdeviceptr *base, const CUipcMemHandle *handle) {
  return cu.cuIpcOpenMemHandle(base, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}
/* The handle travels in the place of numbers. */
static Message with_handle(const CUipcMemHandle *handle, unsigned seed) {
  Message message = {.pid = getpid(), .seed = seed};
  memcpy(message.numbers, handle, sizeof *handle);
  return message;
}
static CUipcMemHandle handle_in(const Message *message) {
  CUipcMemHandle handle;
  memcpy(&handle, message->numbers, sizeof handle);
  return handle;
}
/* Takes all fds from the broker, if it is told how. */
static void evict(void) { MUST(getenv("EVICT") == NULL || system(getenv("EVICT")) == 0); }

/* --- the consumer --- */

/* Opens, looks, answers, and closes when it is told. */
static void consumer(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUipcMemHandle handle = handle_in(&message);
  CUdeviceptr base = 0, again = 0, begin = 0;
  size_t bytes = 0;
  DRIVER(open_at(&base, &handle));
  CHECK(open_at(&again, &handle) == CUDA_SUCCESS && again == base);
  CHECK(shows(base, message.seed));
  DRIVER(cu.cuMemGetAddressRange(&begin, &bytes, base + message.count / 2));
  CHECK(begin == base && bytes >= message.count);
  CHECK(memory_fds() == 0);
  fill(base, message.seed + 100);
  CHECK(cu.cuIpcCloseMemHandle(base) == CUDA_SUCCESS);
  message.result = bad_checks;
  tell(PEER_FD, &message);
  hear(PEER_FD);
  CHECK(shows(base, message.seed + 200));
  CHECK(cu.cuMemFree(base) != CUDA_SUCCESS && cu.cuIpcGetMemHandle(&handle, base) != CUDA_SUCCESS);
  CHECK(cu.cuIpcCloseMemHandle(base) == CUDA_SUCCESS);
  CHECK(cu.cuIpcCloseMemHandle(base) != CUDA_SUCCESS);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void share_with_consumer(size_t bytes) {
  size_t before = whole_card();
  CUdeviceptr base = new_memory(bytes, 5);
  CUipcMemHandle handle = handle_of(base), again = handle_of(base + bytes - 1);
  CHECK(memcmp(&handle, &again, sizeof handle) == 0);
  CHECK(is_layers(&handle) == (is_ours() && bytes >= STEP));
  Message message = with_handle(&handle, 5);
  message.count = bytes;
  evict();
  Peer peer = start("consumer");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(shows(base, 105));
  fill(base, 205);
  evict();
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  DRIVER(cu.cuMemFree(base));
  CHECK(free_bytes() == before);
}
static void memory_when_its_handle_is_opened_twice_is_the_same_memory(void) {
  use_driver();
  share_with_consumer(BIG);
  share_with_consumer(STEP);
}
static void memory_when_small_is_shared_by_the_driver(void) {
  use_driver();
  share_with_consumer(SMALL);
  share_with_consumer(SEGMENT);
}

/* Says what opening answers. */
static void opener(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUipcMemHandle handle = handle_in(&message);
  CUdeviceptr base;
  message.result = open_at(&base, &handle);
  tell(PEER_FD, &message);
}
static CUresult opened_elsewhere(const CUipcMemHandle *handle) {
  Peer peer = start("opener");
  Message message = with_handle(handle, 0);
  tell(peer.socket, &message);
  CUresult result = hear(peer.socket).result;
  CHECK(finish(peer) == 0);
  return result;
}
/* With $CONSUMER: without the layer, or of another broker. */
static void handle_when_the_consumer_cannot_know_it_is_invalid(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base);
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cu.cuMemFree(base));
}
static void handle_when_the_exporter_opens_it_is_refused(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 1), other = 0;
  CUipcMemHandle handle = handle_of(base), nothing;
  CHECK(open_at(&other, &handle) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cu.cuIpcOpenMemHandle(&other, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu.cuIpcGetMemHandle(&nothing, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu.cuIpcCloseMemHandle(base) != CUDA_SUCCESS && shows(base, 1));
  memset(&nothing, 0x5a, sizeof nothing);
  CHECK(open_at(&other, &nothing) == CUDA_ERROR_INVALID_HANDLE);
  /* One that is forged. */
  handle.reserved[is_layers(&handle) ? 20 : 8] ^= 1;
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cu.cuMemFree(base));
}
static void handle_when_its_memory_is_freed_is_void(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base);
  CHECK(opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(base));
  CHECK(COMES_TRUE(free_bytes() == before));
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
  /* Memory at the same address is other memory. */
  base = new_memory(BIG, 2);
  CUipcMemHandle now = handle_of(base);
  CHECK(memcmp(&now, &handle, sizeof handle) != 0);
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE && opened_elsewhere(&now) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(base));
}

/* --- handles in a row --- */

/* Opens what it hears of until a count of 0, and keeps it open. */
static void row_opener(void) {
  use_driver();
  CUdeviceptr bases[ROW];
  unsigned seeds[ROW], opened = 0;
  for (Message message = hear(PEER_FD); message.count; message = hear(PEER_FD)) {
    CUipcMemHandle handle = handle_in(&message);
    MUST(opened < ROW);
    message.result = open_at(&bases[opened], &handle);
    if (message.result == CUDA_SUCCESS) {
      CHECK(shows(bases[opened], message.seed));
      seeds[opened++] = message.seed;
    }
    tell(PEER_FD, &message);
  }
  CHECK(memory_fds() == 0);
  for (unsigned i = 0; i < opened; i++) CHECK(shows(bases[i], seeds[i]) && cu.cuIpcCloseMemHandle(bases[i]) == CUDA_SUCCESS);
}
/* The broker has as many allocations, if the handles are the layer's. */
static int has_registered(long count) { return !is_ours() || COMES_TRUE(ledger("allocations") == count); }
/* Blocks that are shared as they were made are registered ahead of that: from the second share on one, then two, then four at a time. */
static void handles_when_made_in_a_row_are_some_ahead_and_no_more(void) {
  struct rlimit limit;
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 2048) { /* Nothing is exported ahead where fds are scarce. */
    printf("not run: handles_when_made_in_a_row_are_some_ahead_and_no_more: needs a hard limit of 2048 fds\n");
    return;
  }
  use_driver();
  size_t before = whole_card();
  CUdeviceptr bases[ROW];
  CUipcMemHandle handles[ROW];
  /* Elsewhere than all before. */
  DRIVER(cu.cuMemFree(new_memory(STEP, 0)));
  for (unsigned i = 0; i < ROW; i++) bases[i] = new_memory(STEP, i);
  const int registered[ROW - 4] = {1, 3, 5, 9, 9, 13, 13, 13, 13, 17, 17, 17, 17, 21, 21, 21, 21, ROW, ROW, ROW};
  for (unsigned i = 0; i < ROW - 4; i++) {
    handles[i] = handle_of(bases[i]);
    CHECK(memory_fds() == 0 && has_registered(registered[i]));
  }
  Peer peer = start("row_opener");
  for (unsigned i = 0; i < ROW - 4; i++) {
    Message message = with_handle(&handles[i], i);
    message.count = 1;
    tell(peer.socket, &message);
    CHECK(hear(peer.socket).result == CUDA_SUCCESS);
  }
  Message end = {.pid = getpid()};
  tell(peer.socket, &end);
  CHECK(finish(peer) == 0);
  /* One is freed that is ahead, and the program goes on elsewhere. */
  DRIVER(cu.cuMemFree(bases[ROW - 1]));
  CHECK(has_registered(ROW - 1));
  CUdeviceptr other = new_memory(STEP, 99);
  CUipcMemHandle elsewhere = handle_of(other);
  CHECK(has_registered(ROW - 3) && opened_elsewhere(&elsewhere) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(other));
  for (unsigned i = 0; i < ROW - 1; i++) DRIVER(cu.cuMemFree(bases[i]));
  CHECK(has_registered(0) && COMES_TRUE(free_bytes() == before));
}
/* The broker sends the fds of a row ahead: what was freed since is void all the same, and other memory in its place is itself. */
static void handles_when_opened_in_a_row_are_each_their_memory(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr bases[ROW];
  CUipcMemHandle handles[ROW];
  for (unsigned i = 0; i < ROW; i++) handles[i] = handle_of(bases[i] = new_memory(STEP, i));
  Peer peer = start("row_opener");
  for (unsigned i = 0; i < ROW; i++) {
    int is_void = i == ROW / 2 || i == ROW / 2 + 1;
    if (i == ROW / 2) {
      DRIVER(cu.cuMemFree(bases[i]));
      DRIVER(cu.cuMemFree(bases[i + 1]));
      bases[i] = new_memory(STEP, 90);
      bases[i + 1] = 0;
    }
    Message message = with_handle(&handles[i], i);
    message.count = 1;
    tell(peer.socket, &message);
    CHECK(hear(peer.socket).result == (is_void ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS));
  }
  Message end = {.pid = getpid()};
  tell(peer.socket, &end);
  CHECK(finish(peer) == 0);
  for (unsigned i = 0; i < ROW; i++)
    if (bases[i]) DRIVER(cu.cuMemFree(bases[i]));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- the owner's end --- */

static void keeper(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUipcMemHandle handle = handle_in(&message);
  CUdeviceptr base;
  DRIVER(open_at(&base, &handle));
  tell(PEER_FD, &message);
  hear(PEER_FD);
  CHECK(shows(base, message.seed));
  fill(base, message.seed + 1);
  CHECK(shows(base, message.seed + 1));
  CHECK(cu.cuIpcCloseMemHandle(base) == CUDA_SUCCESS);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void owner(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 9);
  CUipcMemHandle handle = handle_of(base);
  Message message = with_handle(&handle, 9);
  tell(PEER_FD, &message);
  hear(PEER_FD);
}
static void memory_when_its_owner_frees_it_stays_the_consumers(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base = new_memory(BIG, 3);
  CUipcMemHandle handle = handle_of(base);
  Message message = with_handle(&handle, 3);
  Peer peer = start("keeper");
  tell(peer.socket, &message);
  hear(peer.socket);
  DRIVER(cu.cuMemFree(base));
  CHECK(free_bytes() < before);
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}
static void memory_when_its_owner_is_killed_stays_the_consumers(void) {
  use_driver();
  size_t before = whole_card();
  Peer killed = start("owner"), peer = start("keeper");
  Message message = hear(killed.socket);
  CUipcMemHandle handle = handle_in(&message);
  tell(peer.socket, &message);
  hear(peer.socket);
  MUST(kill(killed.pid, SIGKILL) == 0);
  CHECK(finish(killed) == 128 + SIGKILL);
  if (is_ours()) CHECK(COMES_TRUE(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE));
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}
/* With $RESTART, which kills the broker and starts another one. */
static void handle_when_the_broker_is_killed_and_started_anew_lives_on(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 4);
  CUipcMemHandle handle = handle_of(base);
  MUST(getenv("RESTART") == NULL || system(getenv("RESTART")) == 0);
  CUipcMemHandle again = handle_of(base);
  CHECK(memcmp(&handle, &again, sizeof handle) == 0);
  CHECK(opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(base));
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
}

/* With $LIMIT, which lets no more be shared. */
static void handle_when_the_caps_are_full_is_an_error_and_the_memory_stays(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr shared = new_memory(BIG, 1), other = new_memory(BIG, 2);
  CUipcMemHandle handle = handle_of(shared), none;
  MUST(getenv("LIMIT") != NULL && system(getenv("LIMIT")) == 0);
  CHECK(cu.cuIpcGetMemHandle(&none, other) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(shows(other, 2) && opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(shared));
  /* Now there is room. */
  handle = handle_of(other);
  CHECK(is_layers(&handle) && opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(other));
  CHECK(COMES_TRUE(free_bytes() == before));
}
/* With $CONSUMER, which sees another GPU alone. */
static void handle_when_its_gpu_is_hidden_from_the_consumer_is_refused(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base);
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cu.cuMemFree(base));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- what the driver says of it --- */

/* How an attribute of large memory is to that of small memory, which is the driver's own. */
typedef enum { SAME, OWN } Relation;
static const struct { int attribute; Relation relation; } attributes[] = {
    {1, SAME}, {2, SAME}, {3, OWN}, {4, SAME}, {5, SAME}, {6, SAME}, {7, OWN}, {8, SAME}, {9, SAME}, {10, SAME}, {11, OWN}, {12, OWN},
    {13, SAME}, {14, SAME}, {15, SAME}, {16, SAME}, {17, SAME}, {18, OWN}, {19, OWN}, {20, OWN}, {99, SAME},
};
/* What it has to be of its own; 0: only other than the small one's. */
static uint64_t own_word(int attribute, CUdeviceptr base, CUdeviceptr at) {
  return attribute == 3 ? at : attribute == 11 || attribute == 19 ? base : attribute == 12 ? BIG : 0;
}
static void attributes_when_asked_are_those_of_all_memory(void) {
  use_driver();
  CUdeviceptr big = new_memory(BIG, 1), small = new_memory(SMALL, 2), at = big + 12345;
  for (size_t row = 0; row < sizeof attributes / sizeof *attributes; row++) {
    int attribute = attributes[row].attribute;
    uint64_t of_big = 0, of_small = 0, of_many = 0;
    void *place = &of_many;
    CUresult one = cu.cuPointerGetAttribute(&of_big, attribute, at), other = cu.cuPointerGetAttribute(&of_small, attribute, small + 12345);
    int is_right = one == other, is_same = of_big == of_small;
    if (attributes[row].relation == SAME) is_right &= is_same;
    else is_right &= !is_same && (own_word(attribute, big, at) == 0 || own_word(attribute, big, at) == of_big);
    is_right &= cu.cuPointerGetAttributes(1, &attribute, &place, at) == CUDA_SUCCESS && of_many == (one ? 0 : of_big);
    if (!is_right)
      printf("      attribute %d: %d %#lx, of small memory %d %#lx, of many %#lx\n", attribute, one, (long)of_big, other, (long)of_small,
             (long)of_many);
    CHECK(is_right);
  }
  int several[] = {BUFFER_ID, HOST_POINTER, CONTEXT};
  uint64_t words[3] = {1, 1, 1}, id = 0;
  void *places[] = {&words[0], &words[1], &words[2]};
  DRIVER(cu.cuPointerGetAttributes(3, several, places, big));
  DRIVER(cu.cuPointerGetAttribute(&id, BUFFER_ID, big));
  CHECK(words[0] == id && words[1] == 0 && words[2] != 0);
  CHECK(cu.cuPointerGetAttributes(0, several, places, big) == CUDA_ERROR_INVALID_VALUE);
  /* What is set of one is not the other's. */
  unsigned yes = 1, of_big = 0, of_small = 0;
  CHECK(cu.cuPointerSetAttribute(&yes, SYNC_MEMOPS, at) == CUDA_SUCCESS && cu.cuPointerSetAttribute(&yes, CONTEXT, at) != CUDA_SUCCESS);
  DRIVER(cu.cuPointerGetAttribute(&of_big, SYNC_MEMOPS, big));
  DRIVER(cu.cuPointerGetAttribute(&of_small, SYNC_MEMOPS, small));
  CHECK(of_big == 1 && of_small == 0);
  /* Behind the last byte that was asked for there is nothing of it. */
  CHECK(cu.cuMemFree(big) == CUDA_SUCCESS && cu.cuMemFree(small) == CUDA_SUCCESS);
  CHECK(cu.cuPointerGetAttribute(&id, BUFFER_ID, big) == CUDA_ERROR_INVALID_VALUE);
}
static void range_when_asked_is_what_was_asked_for(void) {
  use_driver();
  CUdeviceptr big = new_memory(BIG, 1), small = new_memory(SMALL, 2), base = 0;
  CUmemGenericAllocationHandle handle;
  size_t bytes = 0;
  CHECK(cu.cuMemGetAddressRange(&base, &bytes, big + BIG - 1) == CUDA_SUCCESS && base == big && bytes == BIG);
  CHECK(cu.cuMemGetAddressRange(NULL, &bytes, big) == CUDA_SUCCESS && bytes == BIG);
  CHECK(cu.cuMemGetAddressRange(&base, NULL, big + 1) == CUDA_SUCCESS && base == big);
  CUresult refused = cu.cuMemRetainAllocationHandle(&handle, (void *)small);
  CHECK(refused != CUDA_SUCCESS && cu.cuMemRetainAllocationHandle(&handle, (void *)(big + 5)) == refused);
  DRIVER(cu.cuMemFree(big));
  DRIVER(cu.cuMemFree(small));
}

/* --- the end of memory --- */

static void memory_when_freed_wrongly_stays(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr big = new_memory(BIG, 7);
  CHECK(cu.cuMemFree(big + 4096) == CUDA_ERROR_INVALID_VALUE && shows(big, 7));
  CHECK(cu.cuMemFree(0) == CUDA_SUCCESS);
  CHECK(cu.cuMemAlloc(&big, 0) == CUDA_ERROR_INVALID_VALUE && shows(big, 7));
  DRIVER(cu.cuMemFree(big));
  CHECK(cu.cuMemFree(big) == CUDA_ERROR_INVALID_VALUE);
  CHECK(free_bytes() == before);
}
/* What was sent off before it has arrived after it: memory of the stand-in can be read as it is. */
static void free_when_work_is_under_way_waits(void) {
  use_driver();
  CUdeviceptr one = new_memory(BIG, 1), other = new_memory(SMALL, 2);
  unsigned word = 4711;
  DRIVER(cu.cuMemcpyHtoD(other, &word, sizeof word));
  DRIVER(cu.cuMemFree(one));
  CHECK(*(volatile unsigned *)other == 4711);
  DRIVER(cu.cuMemFree(other));
}
static void calls_when_a_stream_is_captured_are_refused(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base = new_memory(BIG, 1), other = 0;
  void *graph;
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DRIVER(cu.cuStreamBeginCapture(STREAM, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(cu.cuMemAlloc(&other, BIG) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cu.cuMemFree(base) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && shows(base, 1));
  DRIVER(cu.cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(cu.cuMemAlloc(&other, BIG) == CUDA_SUCCESS && cu.cuMemFree(other) == CUDA_SUCCESS);
  DRIVER(cu.cuThreadExchangeStreamCaptureMode(&mode));
  DRIVER(cu.cuStreamEndCapture(STREAM, &graph));
  DRIVER(cu.cuMemFree(base));
  CHECK(free_bytes() == before);
}
static void memory_when_its_context_is_destroyed_is_freed(void) {
  use_driver();
  size_t before = whole_card();
  CUcontext context, popped;
  CUdeviceptr kept = new_memory(BIG, 1);
  size_t without = free_bytes();
  DRIVER(cu.cuCtxCreate(&context, 0, 0));
  CUdeviceptr base = new_memory(BIG, 2);
  CUipcMemHandle handle = handle_of(base);
  CHECK(cu.cuCtxDestroy(context) == CUDA_SUCCESS);
  CHECK(COMES_TRUE(free_bytes() == without));
  CHECK(opened_elsewhere(&handle) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cu.cuMemFree(base) == CUDA_ERROR_INVALID_VALUE && shows(kept, 1));
  /* One reference of two is not the end. */
  DRIVER(cu.cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cu.cuDevicePrimaryCtxRelease(0));
  CHECK(shows(kept, 1) && free_bytes() == without);
  DRIVER(cu.cuDevicePrimaryCtxReset(0));
  push_context();
  CHECK(COMES_TRUE(free_bytes() == before));
  new_memory(BIG, 3);
  DRIVER(cu.cuCtxPopCurrent(&popped));
  DRIVER(cu.cuDevicePrimaryCtxRelease(0));
  push_context();
  CHECK(COMES_TRUE(free_bytes() == before));
}
static void exits_with_memory_and_opened(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUipcMemHandle handle = handle_in(&message);
  CUdeviceptr base;
  DRIVER(open_at(&base, &handle));
  new_memory(BIG, 8);
}
static void process_when_it_ends_leaves_nothing(void) {
  use_driver();
  size_t before = whole_card();
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base);
  Message message = with_handle(&handle, 1);
  Peer peer = start("exits_with_memory_and_opened");
  tell(peer.socket, &message);
  CHECK(finish(peer) == 0);
  DRIVER(cu.cuMemFree(base));
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- many --- */

static void card_when_filled_with_pieces_is_full_and_comes_back(void) {
  use_driver();
  size_t total = whole_card(), most = total / STEP, count = 0;
  CUdeviceptr *bases = calloc(most + 1, sizeof *bases), small[100];
  MUST(bases != NULL);
  for (int at = 0; at < 100; at++) DRIVER(cu.cuMemAlloc(&small[at], 1000 + at));
  while (count <= most && cu.cuMemAlloc(&bases[count], STEP) == CUDA_SUCCESS) count++;
  CHECK(count + 2 >= most && count <= most);
  CHECK(cu.cuMemAlloc(&bases[count], total) == CUDA_ERROR_OUT_OF_MEMORY);
  while (count > 0) DRIVER(cu.cuMemFree(bases[--count]));
  for (int at = 0; at < 100; at++) DRIVER(cu.cuMemFree(small[at]));
  CHECK(free_bytes() == total);
  free(bases);
}
static void *make_and_free(void *unused) {
  (void)unused;
  push_context();
  for (unsigned round = 0; round < ROUNDS; round++) {
    CUdeviceptr base, begin;
    size_t bytes;
    DRIVER(cu.cuMemAlloc(&base, BIG));
    CUipcMemHandle handle = handle_of(base), again = handle_of(base);
    CHECK(memcmp(&handle, &again, sizeof handle) == 0);
    CHECK(cu.cuMemGetAddressRange(&begin, &bytes, base + 1) == CUDA_SUCCESS && begin == base && bytes == BIG);
    DRIVER(cu.cuMemFree(base));
  }
  return NULL;
}
static void in_threads(void *(*run)(void *), void *argument) {
  pthread_t threads[THREADS];
  for (int at = 0; at < THREADS; at++) MUST(pthread_create(&threads[at], NULL, run, argument) == 0);
  for (int at = 0; at < THREADS; at++) MUST(pthread_join(threads[at], NULL) == 0);
}
static void memory_when_threads_make_and_share_it_is_right(void) {
  use_driver();
  size_t before = whole_card();
  in_threads(make_and_free, NULL);
  CHECK(free_bytes() == before);
}
/* One handle of one piece, shared by threads at once, then opened by threads at once. */
static void *share_one(void *base) {
  push_context();
  CUipcMemHandle handle = handle_of(*(CUdeviceptr *)base);
  CHECK(opened_elsewhere(&handle) == CUDA_SUCCESS);
  return NULL;
}
static pthread_barrier_t barrier;
static CUipcMemHandle opened_handle;
static CUdeviceptr opened_base;
static void *open_one(void *unused) {
  (void)unused;
  CUdeviceptr base;
  push_context();
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&barrier);
    DRIVER(open_at(&base, &opened_handle));
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) opened_base = base;
    pthread_barrier_wait(&barrier);
    CHECK(base == opened_base && shows(base, 6));
    DRIVER(cu.cuIpcCloseMemHandle(base));
  }
  return NULL;
}
static void opener_by_threads(void) {
  use_driver();
  Message message = hear(PEER_FD);
  opened_handle = handle_in(&message);
  MUST(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
  in_threads(open_one, NULL);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void handle_when_threads_share_and_open_it_is_one(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 6);
  in_threads(share_one, &base);
  CUipcMemHandle handle = handle_of(base);
  Message message = with_handle(&handle, 6);
  Peer peer = start("opener_by_threads");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  DRIVER(cu.cuMemFree(base));
}
/* A child has no part in it. */
static void memory_when_a_child_frees_it_stays(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 5), other;
  CUipcMemHandle handle = handle_of(base);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    _exit(cu.cuMemFree(base) != CUDA_ERROR_NOT_INITIALIZED || cu.cuMemAlloc(&other, BIG) != CUDA_ERROR_NOT_INITIALIZED ||
          cu.cuIpcGetMemHandle(&handle, base) != CUDA_ERROR_NOT_INITIALIZED || open_at(&other, &handle) != CUDA_ERROR_NOT_INITIALIZED);
  CHECK(status_of(child) == 0);
  CHECK(shows(base, 5) && opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(base));
}

/* --- contexts and devices --- */

static void opens_in_two_contexts(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUipcMemHandle handle = handle_in(&message);
  CUcontext context;
  CUdeviceptr one, other;
  DRIVER(open_at(&one, &handle));
  DRIVER(cu.cuCtxCreate(&context, 0, 0));
  DRIVER(open_at(&other, &handle));
  CHECK(one != other && shows(one, 2) && shows(other, 2));
  DRIVER(cu.cuCtxDestroy(context));
  CHECK(shows(one, 2) && cu.cuIpcCloseMemHandle(other) != CUDA_SUCCESS);
  DRIVER(cu.cuIpcCloseMemHandle(one));
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void handle_when_opened_in_two_contexts_has_an_address_in_each(void) {
  use_driver();
  CUdeviceptr base = new_memory(BIG, 2);
  CUipcMemHandle handle = handle_of(base);
  Message message = with_handle(&handle, 2);
  Peer peer = start("opens_in_two_contexts");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  DRIVER(cu.cuMemFree(base));
}
static CUresult (*stub_access)(int *, int, CUdeviceptr);
static int is_reached(int device, CUdeviceptr at) {
  int is_given = -1;
  MUST(stub_access(&is_given, device, at) == CUDA_SUCCESS);
  return is_given;
}
/* With two devices. */
static void memory_when_peers_are_enabled_is_reached_until_they_are_disabled(void) {
  CUcontext first, second, third;
  use_driver();
  stub_access = (CUresult(*)(int *, int, CUdeviceptr))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fdbroker_cuda_stub_access");
  MUST(stub_access != NULL);
  DRIVER(cu.cuDevicePrimaryCtxRetain(&first, 0));
  DRIVER(cu.cuDevicePrimaryCtxRetain(&second, 1));
  CUdeviceptr before = new_memory(BIG, 1);
  CHECK(is_reached(0, before) && !is_reached(1, before));
  DRIVER(cu.cuCtxPushCurrent(second));
  CUdeviceptr there = new_memory(BIG, 2);
  CHECK(is_reached(1, there) && !is_reached(0, there));
  DRIVER(cu.cuMemcpyPeer(there, second, before, first, SEGMENT));
  CHECK(shows(there, 1));
  DRIVER(cu.cuCtxEnablePeerAccess(first, 0));
  CHECK(cu.cuCtxEnablePeerAccess(first, 0) != CUDA_SUCCESS && cu.cuCtxEnablePeerAccess(second, 0) != CUDA_SUCCESS);
  DRIVER(cu.cuCtxPushCurrent(first));
  CUdeviceptr after = new_memory(BIG, 3);
  CHECK(is_reached(1, before) && is_reached(1, after) && is_reached(0, after) && !is_reached(0, there));
  /* Another context of the same device. */
  DRIVER(cu.cuCtxCreate(&third, 0, 1));
  DRIVER(cu.cuCtxEnablePeerAccess(first, 0));
  DRIVER(cu.cuCtxDisablePeerAccess(first));
  CHECK(is_reached(1, before) && is_reached(1, after));
  DRIVER(cu.cuCtxDestroy(third));
  DRIVER(cu.cuCtxPushCurrent(second));
  DRIVER(cu.cuCtxDisablePeerAccess(first));
  CHECK(cu.cuCtxDisablePeerAccess(first) != CUDA_SUCCESS);
  CHECK(!is_reached(1, before) && !is_reached(1, after) && is_reached(0, before) && is_reached(1, there));
  DRIVER(cu.cuMemFree(before));
  DRIVER(cu.cuMemFree(after));
  DRIVER(cu.cuMemFree(there));
}

/* --- the ways to the calls --- */

/* Forms of CUDA 10, and what a program finds by a version. */
static void calls_when_found_by_an_old_version_are_the_same(void) {
  use_driver();
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  GetProcAddress get = (GetProcAddress)dlsym(library, "cuGetProcAddress");
  MUST(get != NULL);
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base), again;
  for (int version = 4010; version <= CUDA_VERSION; version += 10) {
    CUresult (*opens)(CUdeviceptr *, CUipcMemHandle, unsigned) = NULL, (*shares)(CUipcMemHandle *, CUdeviceptr) = NULL;
    DRIVER(get("cuIpcOpenMemHandle", (void **)&opens, version, 0));
    DRIVER(get("cuIpcGetMemHandle", (void **)&shares, version, 0));
    CUdeviceptr other;
    CHECK(shares(&again, base) == CUDA_SUCCESS && memcmp(&again, &handle, sizeof handle) == 0);
    CHECK(opens(&other, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK((void *)opens == dlsym(library, version < 11000 ? "cuIpcOpenMemHandle" : "cuIpcOpenMemHandle_v2"));
  }
  DRIVER(cu.cuMemFree(base));
}
/* By dlvsym a program finds the driver's own, whose memory is the driver's. */
static void calls_when_found_by_dlvsym_share_memory(void) {
  use_driver();
  size_t before = whole_card();
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(name, symbol) cu.name = (__typeof__(cu.name))dlvsym(library, symbol, "libcuda.so.1")
  FIND(cuMemAlloc, "cuMemAlloc_v2");
  FIND(cuMemFree, "cuMemFree_v2");
  FIND(cuIpcGetMemHandle, "cuIpcGetMemHandle");
#undef FIND
  if (!cu.cuMemAlloc || !cu.cuMemFree || !cu.cuIpcGetMemHandle) return;
  CUdeviceptr base = new_memory(BIG, 1);
  CUipcMemHandle handle = handle_of(base);
  CHECK(opened_elsewhere(&handle) == CUDA_SUCCESS);
  DRIVER(cu.cuMemFree(base));
  CHECK(free_bytes() == before);
}

static const Row rows[] = {
    ROLE(consumer),
    ROLE(opener),
    ROLE(row_opener),
    ROLE(keeper),
    ROLE(owner),
    ROLE(exits_with_memory_and_opened),
    ROLE(opener_by_threads),
    ROLE(opens_in_two_contexts),
    CASE(memory_when_its_handle_is_opened_twice_is_the_same_memory),
    CASE(memory_when_small_is_shared_by_the_driver),
    CASE(handle_when_the_exporter_opens_it_is_refused),
    CASE(handle_when_its_memory_is_freed_is_void),
    CASE(handles_when_opened_in_a_row_are_each_their_memory),
    CASE(handles_when_made_in_a_row_are_some_ahead_and_no_more),
    CASE(memory_when_its_owner_frees_it_stays_the_consumers),
    CASE(memory_when_its_owner_is_killed_stays_the_consumers),
    CASE(attributes_when_asked_are_those_of_all_memory),
    CASE(range_when_asked_is_what_was_asked_for),
    CASE(memory_when_freed_wrongly_stays),
    CASE(free_when_work_is_under_way_waits),
    CASE(calls_when_a_stream_is_captured_are_refused),
    CASE(memory_when_its_context_is_destroyed_is_freed),
    CASE(process_when_it_ends_leaves_nothing),
    CASE(card_when_filled_with_pieces_is_full_and_comes_back),
    CASE(memory_when_threads_make_and_share_it_is_right),
    CASE(handle_when_threads_share_and_open_it_is_one),
    CASE(memory_when_a_child_frees_it_stays),
    CASE(handle_when_opened_in_two_contexts_has_an_address_in_each),
    CASE(calls_when_found_by_an_old_version_are_the_same),
    CASE(calls_when_found_by_dlvsym_share_memory),
    SPECIAL(memory_when_peers_are_enabled_is_reached_until_they_are_disabled),
    SPECIAL(handle_when_the_broker_is_killed_and_started_anew_lives_on),
    SPECIAL(handle_when_the_caps_are_full_is_an_error_and_the_memory_stays),
    SPECIAL(handle_when_its_gpu_is_hidden_from_the_consumer_is_refused),
    SPECIAL(handle_when_the_consumer_cannot_know_it_is_invalid),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
