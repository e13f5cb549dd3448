/* A program that shares some memory through the library of fdbroker, and some as CUDA programs do that know nothing of it.
 * Runs under a broker, with the layer or without. usage: beside */
#include "shapes.h"

#include <fdbroker.h>

#define DEADLINE_MS 10000

/* What the library's consumer gets for an exported number, which may be virtual. */
static void number_when_registered_with_the_library_is_the_memory(void) {
  use_driver();
  size_t before = whole_card();
  fdbroker_options_t options;
  fdbroker_t *client;
  fdbroker_options_init(&options);
  MUST(fdbroker_open(&options, &client) == FDBROKER_OK);
  Buffer buffers[4];
  int numbers[4];
  fdbroker_handle_t handles[4];
  for (int at = 0; at < 4; at++) {
    buffers[at] = new_buffer(at);
    numbers[at] = export_of(buffers[at].handle);
    fdbroker_allocation_t allocation = {.struct_size = sizeof allocation,
                                        .kind = FDBROKER_KIND_CUDA_VMM,
                                        .share = FDBROKER_SHARE_UID,
                                        .size_bytes = SEGMENT,
                                        .owner_allocation_id = 100 + at};
    CHECK(is_export(numbers[at]));
    CHECK(fdbroker_register(client, &allocation, numbers[at], DEADLINE_MS, &handles[at]) == FDBROKER_OK);
  }
  for (int at = 0; at < 4; at++) {
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    MUST(fdbroker_acquire(client, &handles[at], DEADLINE_MS, &grant) == FDBROKER_OK);
    CHECK(fd_shows(grant.fd, at));
    CHECK(close(grant.fd) == 0);
    CHECK(fdbroker_release(client, grant.lease) == FDBROKER_OK);
    /* The two know nothing of each other: each ends its own. */
    CHECK(fdbroker_unregister(client, &handles[at]) == FDBROKER_OK);
    int fd = dup(numbers[at]);
    CHECK(fd_shows(fd, at) && close(fd) == 0);
    CHECK(close(numbers[at]) == 0);
    free_buffer(buffers[at]);
  }
  CHECK(COMES_TRUE(free_bytes() == before));
  fdbroker_close(client);
}

/* The library asks the driver itself: what it exports is an fd, also of memory that the program made under the layer. */
static void memory_when_the_library_makes_or_finds_it_is_shared(void) {
  use_driver();
  fdbroker_options_t options;
  fdbroker_t *client;
  fdbroker_options_init(&options);
  MUST(fdbroker_open(&options, &client) == FDBROKER_OK);
  Buffer buffer = new_buffer(7);
  void *made = NULL, *found = (void *)(uintptr_t)buffer.base;
  fdbroker_handle_t handles[2];
  MUST(fdbroker_gpu_alloc(client, FDBROKER_DRIVER_CUDA, 0, SEGMENT, FDBROKER_SHARE_UID, DEADLINE_MS, &made, &handles[0]) == FDBROKER_OK);
  MUST(fdbroker_gpu_register(client, FDBROKER_DRIVER_CUDA, 0, found, FDBROKER_SHARE_UID, DEADLINE_MS, &handles[1]) == FDBROKER_OK);
  for (int at = 0; at < 2; at++) {
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    MUST(fdbroker_acquire(client, &handles[at], DEADLINE_MS, &grant) == FDBROKER_OK);
    CHECK(fcntl(grant.fd, F_GETFD) != -1 && (at == 0 || fd_shows(grant.fd, 7)));
    CHECK(close(grant.fd) == 0);
    CHECK(fdbroker_release(client, grant.lease) == FDBROKER_OK);
  }
  CHECK(fdbroker_gpu_free(client, made) == FDBROKER_OK);
  fdbroker_close(client);
  free_buffer(buffer);
}

/* Memory of cuMemAlloc is the library's to share where it is the layer's, without a copy; else its error says that it cannot be. */
static void memory_when_cuda_malloc_made_it_is_shared_as_far_as_it_can_be(void) {
  use_driver();
  size_t before = whole_card();
  fdbroker_options_t options;
  fdbroker_t *client;
  fdbroker_options_init(&options);
  MUST(fdbroker_open(&options, &client) == FDBROKER_OK);
  CUdeviceptr base;
  DRIVER(cu.cuMemAlloc(&base, 3u << 20));
  fill(base, 4);
  void *inside = (void *)(uintptr_t)(base + 4096);
  fdbroker_handle_t handle;
  fdbroker_code_t code = fdbroker_gpu_register(client, FDBROKER_DRIVER_CUDA, 0, inside, FDBROKER_SHARE_UID, DEADLINE_MS, &handle);
  CHECK(code == (getenv("EXPECT_MALLOC") ? FDBROKER_OK : FDBROKER_NOT_SUPPORTED));
  if (code == FDBROKER_OK) {
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    MUST(fdbroker_acquire(client, &handle, DEADLINE_MS, &grant) == FDBROKER_OK);
    CHECK(fd_shows(grant.fd, 4) && close(grant.fd) == 0);
    CHECK(fdbroker_release(client, grant.lease) == FDBROKER_OK);
    CHECK(fdbroker_gpu_retire(client, FDBROKER_DRIVER_CUDA, 0, (void *)(uintptr_t)base) == FDBROKER_OK);
  }
  DRIVER(cu.cuMemFree(base));
  CHECK(COMES_TRUE(free_bytes() == before));
  fdbroker_close(client);
}

static const Row rows[] = {CASE(number_when_registered_with_the_library_is_the_memory),
                           CASE(memory_when_the_library_makes_or_finds_it_is_shared),
                           CASE(memory_when_cuda_malloc_made_it_is_shared_as_far_as_it_can_be)};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
