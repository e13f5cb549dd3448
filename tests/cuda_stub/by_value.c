/* Programs that pass the number of an exported fd by value, and take the fd with pidfd_getfd: PyTorch's expandable segments
 * and UCX's cuda_ipc. usage: by_value [CASE]... */
#include "shapes.h"

/* --- PyTorch: one tensor is many segments in one range of addresses --- */

typedef struct {
  CUdeviceptr base;
  CUmemGenericAllocationHandle handles[SEGMENTS];
  int numbers[SEGMENTS];
} Tensor;

static void reserve(Tensor *tensor) { DRIVER(cu.cuMemAddressReserve(&tensor->base, 2 * SEGMENTS * SEGMENT, 0, 0, 0)); }
static void map_all(Tensor *tensor) {
  for (int at = 0; at < SEGMENTS; at++) DRIVER(cu.cuMemMap(tensor->base + at * SEGMENT, SEGMENT, 0, tensor->handles[at], 0));
  set_access(tensor->base, SEGMENTS * SEGMENT);
}
static Tensor new_tensor(unsigned seed) {
  Tensor tensor;
  reserve(&tensor);
  for (int at = 0; at < SEGMENTS; at++) DRIVER(create(&tensor.handles[at]));
  map_all(&tensor);
  for (int at = 0; at < SEGMENTS; at++) fill(tensor.base + at * SEGMENT, seed + at);
  return tensor;
}
/* Each segment is exported once, and its fd kept. */
static Message share(Tensor *tensor, unsigned seed) {
  Message message = {.pid = getpid(), .seed = seed, .count = SEGMENTS};
  for (int at = 0; at < SEGMENTS; at++) message.numbers[at] = tensor->numbers[at] = export_of(tensor->handles[at]);
  return message;
}
/* A consumer's has no numbers. */
static void free_tensor(Tensor *tensor, int has_numbers) {
  for (int at = 0; at < SEGMENTS; at++) {
    DRIVER(cu.cuMemUnmap(tensor->base + at * SEGMENT, SEGMENT));
    if (has_numbers) CHECK(close(tensor->numbers[at]) == 0);
    DRIVER(cu.cuMemRelease(tensor->handles[at]));
  }
  DRIVER(cu.cuMemAddressFree(tensor->base, 2 * SEGMENTS * SEGMENT));
}
static void take(Tensor *tensor, const Message *message) {
  int pidfd = (int)syscall(SYS_pidfd_open, message->pid, 0);
  CHECK(pidfd >= 0);
  reserve(tensor);
  for (unsigned at = 0; at < message->count; at++) {
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, message->numbers[at], 0);
    MUST(fd >= 0);
    tensor->handles[at] = import_of(fd);
    CHECK(close(fd) == 0);
  }
  CHECK(close(pidfd) == 0);
  map_all(tensor);
}
static void check_tensor(const Tensor *tensor, unsigned seed) {
  for (int at = 0; at < SEGMENTS; at++) CHECK(shows(tensor->base + at * SEGMENT, seed + at));
}

/* Takes what it is told of, answers, and frees it when it is told. */
static void pytorch_consumer(void) {
  use_driver();
  int before = open_fds();
  Tensor tensor;
  Message message = hear(PEER_FD);
  take(&tensor, &message);
  check_tensor(&tensor, message.seed);
  CHECK(memory_fds() == 0);
  /* A connection may have come. */
  CHECK(is_layered() || open_fds() == before);
  fill(tensor.base, message.seed + 100);
  message.result = bad_checks;
  tell(PEER_FD, &message);
  hear(PEER_FD);
  check_tensor(&tensor, message.seed + 1000);
  free_tensor(&tensor, 0);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}

static void tensor_when_exported_segment_by_segment_is_the_consumers_memory(void) {
  use_driver();
  size_t before = whole_card();
  Tensor tensor = new_tensor(7);
  Message message = share(&tensor, 7);
  for (int at = 0; at < SEGMENTS; at++) CHECK(is_export(message.numbers[at]));
  CHECK(memory_fds() == (is_layered() ? 0 : SEGMENTS));
  Peer peer = start("pytorch_consumer");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(shows(tensor.base, 107));
  /* What one writes the other sees, whatever became of fds. */
  for (int at = 0; at < SEGMENTS; at++) fill(tensor.base + at * SEGMENT, 1007 + at);
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  free_tensor(&tensor, 1);
  CHECK(finish(peer) == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
  for (int at = 0; at < SEGMENTS; at++) FAILS(EBADF, close(message.numbers[at]));
}

/* Takes three in a row of the tensor, which is enough to see what comes next, and frees them. */
static void consumer_of_a_part(void) {
  use_driver();
  Message message = hear(PEER_FD);
  int pidfd = (int)syscall(SYS_pidfd_open, message.pid, 0);
  for (int at = 0; at < 3; at++) {
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, message.numbers[at], 0);
    CHECK(fd_shows(fd, message.seed + at) && close(fd) == 0);
  }
  CHECK(memory_fds() == 0);
  message.result = bad_checks;
  tell(PEER_FD, &message);
  hear(PEER_FD);
}
/* What a consumer has not asked for must not be held for it. */
static void card_when_a_consumer_took_a_part_has_room_right_after_the_tensor_is_freed(void) {
  use_driver();
  size_t count = whole_card() / SEGMENT;
  CUmemGenericAllocationHandle *handles = calloc(count, sizeof *handles);
  MUST(handles && count > SEGMENTS && count < 1000);
  Tensor tensor = new_tensor(60);
  Message message = share(&tensor, 60);
  Peer peer = start("consumer_of_a_part");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  free_tensor(&tensor, 1);
  size_t made = 0;
  while (made < count && create(&handles[made]) == CUDA_SUCCESS) made++;
  CHECK(made == count);
  while (made > 0) DRIVER(cu.cuMemRelease(handles[--made]));
  free(handles);
  tell(peer.socket, &message);
  CHECK(finish(peer) == 0);
}

static void consumer_to_kill(void) {
  use_driver();
  Message message = hear(PEER_FD);
  Tensor tensor;
  take(&tensor, &message);
  check_tensor(&tensor, message.seed);
  /* And one fd that it never imports. */
  CHECK(syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, message.pid, 0), message.numbers[0], 0) >= 0);
  message.result = bad_checks;
  tell(PEER_FD, &message);
  for (;;) pause();
}
static void memory_when_a_consumer_is_killed_comes_back(void) {
  use_driver();
  size_t before = whole_card();
  Tensor tensor = new_tensor(80);
  Message message = share(&tensor, 80);
  Peer peer = start("consumer_to_kill");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  MUST(kill(peer.pid, SIGKILL) == 0);
  CHECK(finish(peer) == 128 + SIGKILL);
  check_tensor(&tensor, 80);
  free_tensor(&tensor, 1);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static void producer_to_kill(void) {
  use_driver();
  Tensor tensor = new_tensor(3);
  Message message = share(&tensor, 3);
  tell(PEER_FD, &message);
  for (;;) pause();
}
static void memory_when_the_producer_is_killed_is_the_consumers_until_it_ends(void) {
  use_driver();
  size_t before = whole_card();
  Peer producer = start("producer_to_kill");
  Message message = hear(producer.socket);
  Tensor tensor;
  take(&tensor, &message);
  MUST(kill(producer.pid, SIGKILL) == 0);
  CHECK(finish(producer) == 128 + SIGKILL);
  check_tensor(&tensor, 3);
  fill(tensor.base, 99);
  CHECK(shows(tensor.base, 99));
  free_tensor(&tensor, 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- UCX: a pointer of the user's is packed, and freed by the user at any time --- */

static void ucx_consumer(void) {
  use_driver();
  Message message = hear(PEER_FD);
  int pidfd = pidfd_open(message.pid, 0);
  int fd = pidfd_getfd(pidfd, message.numbers[0], 0);
  CHECK(pidfd >= 0 && close(pidfd) == 0);
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  CUmemGenericAllocationHandle handle = import_of(fd);
  CHECK(close(fd) == 0);
  CUdeviceptr base = map_one(handle);
  /* From here on the mapping alone has it. */
  DRIVER(cu.cuMemRelease(handle));
  CHECK(shows(base, message.seed));
  message.result = bad_checks;
  tell(PEER_FD, &message);
  hear(PEER_FD);
  CHECK(shows(base, message.seed));
  unmap_one(base);
  message.result = bad_checks;
  tell(PEER_FD, &message);
}

static void buffer_when_packed_by_its_address_is_the_consumers_memory(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(21);
  CUmemGenericAllocationHandle handle;
  DRIVER(cu.cuMemRetainAllocationHandle(&handle, (void *)(buffer.base + 4096)));
  CHECK(handle == buffer.handle);
  Message message = {.pid = getpid(), .seed = 21, .numbers = {export_of(handle)}};
  DRIVER(cu.cuMemRelease(handle));
  CHECK(is_export(message.numbers[0]) && memory_fds() == !is_layered());
  Peer peer = start("ucx_consumer");
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(close(message.numbers[0]) == 0);
  free_buffer(buffer);
  /* The consumer's mapping is all that is left of it. */
  CHECK(free_bytes() == before - SEGMENT);
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
  CHECK(finish(peer) == 0);
}

/* --- numbers that are nothing --- */

/* Asks for each number, and expects none. */
static void refused_consumer(void) {
  use_driver();
  Message message = hear(PEER_FD);
  int pidfd = (int)syscall(SYS_pidfd_open, message.pid, 0);
  CHECK(pidfd >= 0);
  for (unsigned at = 0; at < message.count; at++) {
    FAILS(EBADF, syscall(SYS_pidfd_getfd, pidfd, message.numbers[at], 0));
    FAILS(EBADF, pidfd_getfd(pidfd, message.numbers[at], 0));
  }
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void is_refused(Peer peer, int first, int second) {
  Message message = {.pid = getpid(), .count = 2, .numbers = {first, second}};
  tell(peer.socket, &message);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
}
static void number_when_closed_or_never_exported_is_ebadf(void) {
  use_driver();
  Buffer buffer = new_buffer(1);
  /* First, since a plain fd's number is given again at once. */
  Peer peer = start("refused_consumer");
  int number = export_of(buffer.handle);
  CHECK(close(number) == 0);
  FAILS(EBADF, close(number));
  is_refused(peer, number, NO_SUCH_FD);
  free_buffer(buffer);
}
/* With $CONSUMER, such as a program without the layer or of another broker: never memory. */
static void number_when_the_consumer_cannot_know_it_is_ebadf(void) {
  use_driver();
  Buffer buffer = new_buffer(1);
  int number = export_of(buffer.handle);
  is_refused(start("refused_consumer"), number, number);
  CHECK(close(number) == 0);
  free_buffer(buffer);
}
/* Without the layer too, a process that has ended has no fds. */
static void pidfd_when_the_process_is_gone(void) {
  use_driver();
  Buffer buffer = new_buffer(5);
  int number = export_of(buffer.handle);
  if (!is_layered()) FAILS(ESRCH, syscall(SYS_pidfd_open, NO_SUCH_PID, 0));
  else {
    int pidfd = (int)syscall(SYS_pidfd_open, NO_SUCH_PID, 0), fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
    CHECK(fd_shows(fd, 5));
    CHECK(close(fd) == 0 && close(pidfd) == 0);
  }
  CHECK(close(number) == 0);
  free_buffer(buffer);
}

static const Row rows[] = {
    ROLE(pytorch_consumer),
    ROLE(consumer_of_a_part),
    ROLE(consumer_to_kill),
    ROLE(producer_to_kill),
    ROLE(ucx_consumer),
    ROLE(refused_consumer),
    CASE(tensor_when_exported_segment_by_segment_is_the_consumers_memory),
    CASE(card_when_a_consumer_took_a_part_has_room_right_after_the_tensor_is_freed),
    CASE(memory_when_a_consumer_is_killed_comes_back),
    CASE(memory_when_the_producer_is_killed_is_the_consumers_until_it_ends),
    CASE(buffer_when_packed_by_its_address_is_the_consumers_memory),
    CASE(number_when_closed_or_never_exported_is_ebadf),
    CASE(pidfd_when_the_process_is_gone),
    SPECIAL(number_when_the_consumer_cannot_know_it_is_ebadf),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
