/* virtual_fd.c: shares memory by a number of 4 bytes that looks like an fd, for programs whose messages have room for an fd number
 * and no more. The parent registers memory and writes the number to a pipe; the child reads it and has the memory.
 *
 *     cc virtual_fd.c -o virtual_fd $(pkg-config --cflags --libs fdbroker)
 *     fdbroker run -- ./virtual_fd
 */
#define _GNU_SOURCE
#include <fdbroker.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE_BYTES = 4096, DEADLINE_MS = 5000, FIRST_VIRTUAL_FD = 1 << 30 };

static const char text[] = "written by the producer";

static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "virtual_fd: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    exit(1);
  }
}

static void check_errno(int failed, const char *call)
{
  if (failed) {
    perror(call);
    exit(1);
  }
}

/* Memory with an fd. GPU memory comes from its driver, with the kind FDBROKER_KIND_DMA_BUF or FDBROKER_KIND_CUDA_VMM. */
static int make_memory(void)
{
  int fd = memfd_create("virtual_fd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  check_errno(fd < 0, "memfd_create");
  check_errno(ftruncate(fd, SIZE_BYTES) != 0, "ftruncate");
  check_errno(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0, "F_ADD_SEALS");
  check_errno(pwrite(fd, text, sizeof text, 0) != (ssize_t)sizeof text, "pwrite");
  return fd;
}

static void produce(int to, int until)
{
  fdbroker_t *broker = NULL;
  fdbroker_handle_t handle;
  fdbroker_allocation_t allocation = {0};
  char end;
  int fd = make_memory();

  check(fdbroker_open(NULL, &broker), "open");
  allocation.struct_size = sizeof allocation;
  allocation.kind = FDBROKER_KIND_MEMFD;
  allocation.flags = FDBROKER_VIRTUAL_FD;
  allocation.size_bytes = SIZE_BYTES;
  check(fdbroker_register(broker, &allocation, fd, DEADLINE_MS, &handle), "register");
  close(fd); /* the broker has its own */

  /* No process has this number open: close(2) of it fails, and so does every other call but the library's. */
  int number = fdbroker_handle_virtual_fd(&handle);
  check_errno(write(to, &number, sizeof number) != (ssize_t)sizeof number, "write");

  /* The number is good until the memory is unregistered or this process ends. */
  check_errno(read(until, &end, 1) != 0, "read");
  check(fdbroker_unregister(broker, &handle), "unregister");
  check(fdbroker_close(broker), "close");
}

static void consume(int from)
{
  fdbroker_t *broker = NULL;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  int number;

  check_errno(read(from, &number, sizeof number) != (ssize_t)sizeof number, "read");
  if (number < FIRST_VIRTUAL_FD) {
    fprintf(stderr, "virtual_fd: %d is an fd of its sender's own, and means nothing here\n", number);
    exit(1);
  }
  check(fdbroker_open(NULL, &broker), "open");
  /* BAD_HANDLE: the memory has ended, or it is another user's or another broker's. */
  check(fdbroker_resolve(broker, number, DEADLINE_MS, &handle), "resolve");
  /* From here on as with any handle. fdbroker_acquire() would give an fd, for GPU memory. */
  check(fdbroker_import(broker, &handle, FDBROKER_IMPORT_READ, DEADLINE_MS, &import), "import");
  printf("virtual fd %d: %s\n", number, (const char *)import.ptr);
  int wrong = import.size_bytes != SIZE_BYTES || strcmp(import.ptr, text) != 0;
  check(fdbroker_import_release(broker, &import), "import_release");
  check(fdbroker_close(broker), "close");
  exit(wrong);
}

int main(void)
{
  int numbers[2], ends[2], status = 1;
  check_errno(pipe(numbers) != 0 || pipe(ends) != 0, "pipe");
  pid_t child = fork();
  check_errno(child < 0, "fork");
  if (child == 0) {
    close(ends[0]); /* the other side tells the parent of this process's end */
    consume(numbers[0]);
  }
  close(ends[1]);
  produce(numbers[1], ends[0]);
  check_errno(waitpid(child, &status, 0) != child, "waitpid");
  return status != 0;
}
