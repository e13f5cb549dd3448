/* mpi_alltoall.c: every rank shares a buffer, MPI_Allgather carries the handles, and every rank reads all buffers.
 *
 *     mpicc mpi_alltoall.c -o mpi_alltoall $(pkg-config --cflags --libs fdbroker)
 *     mpirun -n 4 fdbroker run --join -- ./mpi_alltoall
 *
 * A handle works on its own node only. With several nodes use one communicator per node (MPI_COMM_TYPE_SHARED), as
 * here.
 */
#include <fdbroker.h>
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { SIZE_BYTES = 1 << 20, DEADLINE_MS = 5000 };

static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "mpi_alltoall: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

/* The byte that rank `rank` writes at position `i`. */
static unsigned char pattern(int rank, uint64_t i)
{
  return (unsigned char)((i + 17u * (unsigned)rank) % 251);
}

int main(int argc, char **argv)
{
  MPI_Comm node;
  int rank, size;
  fdbroker_t *broker = NULL;
  void *memory = NULL;
  fdbroker_handle_t mine;

  MPI_Init(&argc, &argv);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &rank);
  MPI_Comm_size(node, &size);

  check(fdbroker_open(NULL, &broker), "open");
  check(fdbroker_host_alloc(broker, FDBROKER_HOST_ARENA, SIZE_BYTES, DEADLINE_MS, &memory, &mine), "host_alloc");
  for (uint64_t i = 0; i < SIZE_BYTES; i++) {
    ((unsigned char *)memory)[i] = pattern(rank, i);
  }

  /* Carries the 64 bytes of each rank to all. When it returns, every rank has written its buffer, too. */
  fdbroker_handle_t *handles = calloc((size_t)size, sizeof *handles);
  fdbroker_import_t *imports = calloc((size_t)size, sizeof *imports);
  fdbroker_code_t *codes = calloc((size_t)size, sizeof *codes);
  if (handles == NULL || imports == NULL || codes == NULL) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, handles, sizeof mine, MPI_BYTE, node);

  /* One call imports them all: it sends the broker one message per 253 handles. */
  check(fdbroker_import_many(broker, (size_t)size, handles, FDBROKER_IMPORT_READ, DEADLINE_MS, imports, codes),
        "import_many");
  unsigned long wrong = 0, wrong_on_node = 0;
  for (int peer = 0; peer < size; peer++) {
    const unsigned char *bytes = imports[peer].ptr;
    for (uint64_t i = 0; i < SIZE_BYTES; i++) {
      wrong += bytes[i] != pattern(peer, i);
    }
    check(fdbroker_import_release(broker, &imports[peer]), "import_release");
  }

  /* Every rank has read everything before any rank frees its buffer. */
  MPI_Allreduce(&wrong, &wrong_on_node, 1, MPI_UNSIGNED_LONG, MPI_SUM, node);
  if (rank == 0) {
    printf("mpi_alltoall: %d ranks, %d buffers of %d bytes read by each, %lu bytes wrong\n", size, size, SIZE_BYTES,
           wrong_on_node);
  }
  check(fdbroker_host_free(broker, memory), "host_free");
  check(fdbroker_close(broker), "close");
  free(handles);
  free(imports);
  free(codes);
  MPI_Finalize();
  return wrong_on_node == 0 ? 0 : 1;
}
