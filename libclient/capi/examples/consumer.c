/* consumer.c: reads the handle that producer.c wrote, from a file or from stdin, maps the memory and checks every byte.
 *
 *     cc consumer.c -o consumer $(pkg-config --cflags --libs fdbroker)
 *     ./consumer handle.txt
 */
#include <fdbroker.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEADLINE_MS = 5000 };

static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "consumer: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    exit(1);
  }
}

static int read_handle(fdbroker_handle_t *handle, const char *path)
{
  FILE *file = path != NULL ? fopen(path, "r") : stdin;
  unsigned int byte;
  size_t count = 0;
  if (file == NULL) {
    fprintf(stderr, "consumer: %s: %s\n", path, strerror(errno));
    return -1;
  }
  while (count < sizeof handle->bytes && fscanf(file, "%2x", &byte) == 1) {
    handle->bytes[count++] = (uint8_t)byte;
  }
  if (path != NULL) {
    fclose(file);
  }
  if (count < sizeof handle->bytes) {
    fprintf(stderr, "consumer: no handle: expected 128 hexadecimal digits, as the producer writes them\n");
    return -1;
  }
  return 0;
}

int main(int argc, char **argv)
{
  fdbroker_t *broker = NULL;
  fdbroker_handle_t handle;
  fdbroker_import_t import;

  if (read_handle(&handle, argc > 1 ? argv[1] : NULL) != 0) {
    return 1;
  }
  check(fdbroker_open(NULL, &broker), "open");

  /* Gets an fd from the broker, maps the memory and closes the fd; the mapping stays. */
  check(fdbroker_import(broker, &handle, FDBROKER_IMPORT_READ, DEADLINE_MS, &import), "import");

  const unsigned char *bytes = import.ptr;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < import.size_bytes; i++) {
    wrong += bytes[i] != i % 251;
  }
  printf("consumer: %" PRIu64 " bytes, %" PRIu64 " of them wrong\n", import.size_bytes, wrong);

  /* The library keeps the memory mapped for the next import of it; see libclient/SETTINGS.md. */
  check(fdbroker_import_release(broker, &import), "import_release");
  check(fdbroker_close(broker), "close");
  return wrong == 0 ? 0 : 1;
}
