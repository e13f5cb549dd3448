/* leave.c: registers memory that is to outlive its owner, and ends: so a job leaves memory behind in a broker of the node.
 * Must never end with status 0 without having left it.
 *
 * usage: leave      (tests/mpi/slurm.sh starts it in the cgroup of a job) */
#define _GNU_SOURCE
#include <fdbroker.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE_BYTES = 1 << 20, DEADLINE_MS = 10000 };

static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "leave: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    exit(1);
  }
}

int main(void)
{
  fdbroker_t *broker = NULL;
  fdbroker_handle_t handle;
  fdbroker_allocation_t allocation = {
    .struct_size = sizeof allocation,
    .kind = FDBROKER_KIND_MEMFD,
    .share = FDBROKER_SHARE_UID,
    .flags = FDBROKER_KEEP,
    .size_bytes = SIZE_BYTES,
  };
  int fd = memfd_create("left", MFD_CLOEXEC | MFD_ALLOW_SEALING);

  if (fd < 0 || ftruncate(fd, SIZE_BYTES) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    perror("leave: memory");
    return 1;
  }
  check(fdbroker_open(NULL, &broker), "open");
  check(fdbroker_register(broker, &allocation, fd, DEADLINE_MS, &handle), "register");
  check(fdbroker_close(broker), "close");
  return 0;
}
