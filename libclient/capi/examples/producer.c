/* producer.c: allocates memory that can be shared, fills it, writes its 64-byte handle and waits for Enter.
 *
 *     cc producer.c -o producer $(pkg-config --cflags --libs fdbroker)
 *     fdbroker run -- sh            # a private broker, unless the node runs one
 *     ./producer handle.txt         # meanwhile, in another shell with the same FDBROKER_SOCKET: ./consumer handle.txt
 */
#include <fdbroker.h>

#include <stdio.h>
#include <stdlib.h>

enum { SIZE_BYTES = 1 << 20, DEADLINE_MS = 5000 };

/* Ends the program when a call failed. The library's text says what was tried, why it failed and what to do. */
static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "producer: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    exit(1);
  }
}

/* A handle is 64 plain bytes, and any way to carry them will do. Here they go to a file or to stdout, as text. */
static int write_handle(const fdbroker_handle_t *handle, const char *path)
{
  FILE *file = path != NULL ? fopen(path, "w") : stdout;
  if (file == NULL) {
    return -1;
  }
  for (size_t i = 0; i < sizeof handle->bytes; i++) {
    fprintf(file, "%02x", handle->bytes[i]);
  }
  fprintf(file, "\n");
  return path != NULL ? fclose(file) : fflush(file);
}

int main(int argc, char **argv)
{
  fdbroker_t *broker = NULL;
  fdbroker_handle_t handle;
  void *memory = NULL;

  check(fdbroker_open(NULL, &broker), "open");

  /* Host memory that can be shared. GPU memory would be registered by its fd (fdbroker_register). */
  check(fdbroker_host_alloc(broker, FDBROKER_HOST_ARENA, SIZE_BYTES, DEADLINE_MS, &memory, &handle), "host_alloc");
  unsigned char *bytes = memory;
  for (size_t i = 0; i < SIZE_BYTES; i++) {
    bytes[i] = (unsigned char)(i % 251);
  }

  if (write_handle(&handle, argc > 1 ? argv[1] : NULL) != 0) {
    perror("producer: cannot write the handle");
    return 1;
  }
  fprintf(stderr, "producer: shares %d bytes; Enter ends it\n", SIZE_BYTES);
  getchar();

  /* From here on the handle is STALE. A consumer that has the memory mapped keeps it until it releases it. */
  check(fdbroker_host_free(broker, memory), "host_free");
  check(fdbroker_close(broker), "close");
  return 0;
}
