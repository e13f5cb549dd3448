/* Programs that send an exported fd by SCM_RIGHTS and close it: NCCL, whose service thread exports on request, and PyTorch's
 * symmetric memory. And exports that are no memory of cuMemCreate. usage: by_message [CASE]... */
#include "shapes.h"

#include <poll.h>
#include <pthread.h>
#include <sys/un.h>

/* Buffers that one NCCL rank asks another for. */
#define BUFFERS 48

static void send_fd(int socket, int fd) {
  char byte = 'x';
  struct iovec data = {&byte, 1};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
  MUST(sendmsg(socket, &message, 0) == 1);
}
static int receive_fd(int socket) {
  char byte;
  struct iovec data = {&byte, 1};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control;
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
  int fd = -1;
  MUST(recvmsg(socket, &message, 0) == 1 && message.msg_controllen > 0 && !(message.msg_flags & MSG_CTRUNC));
  MUST(control.header.cmsg_type == SCM_RIGHTS && control.header.cmsg_len == CMSG_LEN(sizeof fd));
  memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
  return fd;
}

/* --- NCCL: a handle's value is asked for, and the service thread answers with an fd --- */

static void *serves(void *socket) {
  CUmemGenericAllocationHandle handle;
  push_context();
  for (;;) {
    struct pollfd entry = {*(int *)socket, POLLIN, 0};
    if (poll(&entry, 1, 500) == 0) continue;
    if (recv(*(int *)socket, &handle, sizeof handle, 0) != sizeof handle) return NULL;
    int fd = export_of(handle);
    CHECK(is_export(fd));
    send_fd(*(int *)socket, fd);
    CHECK(close(fd) == 0);
  }
}
static void nccl_rank(void) {
  use_driver();
  Message message = hear(PEER_FD);
  CUmemGenericAllocationHandle wanted[BUFFERS], own, handles[BUFFERS];
  CUdeviceptr bases[BUFFERS];
  MUST(recv(PEER_FD, wanted, sizeof wanted, 0) == sizeof wanted);
  for (int at = 0; at < BUFFERS; at++) {
    MUST(send(PEER_FD, &wanted[at], sizeof *wanted, 0) == sizeof *wanted);
    int fd = receive_fd(PEER_FD);
    handles[at] = import_of(fd);
    CHECK(close(fd) == 0);
    bases[at] = map_one(handles[at]);
    CHECK(shows(bases[at], message.seed + at));
  }
  CHECK(memory_fds() == 0);
  for (int at = 0; at < BUFFERS; at++) {
    CHECK(shows(bases[at], message.seed + at));
    /* ncclCuMemFree: the handle by the address, and both of its references. */
    DRIVER(cu.cuMemRetainAllocationHandle(&own, (void *)bases[at]));
    CHECK(own == handles[at]);
    DRIVER(cu.cuMemRelease(own));
    unmap_one(bases[at]);
    DRIVER(cu.cuMemRelease(handles[at]));
  }
  /* No handle: the end, for the service thread. */
  MUST(send(PEER_FD, "", 1, 0) == 1);
}
static void buffers_when_a_service_thread_exports_and_sends_them_are_the_other_ranks_memory(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffers[BUFFERS];
  CUmemGenericAllocationHandle handles[BUFFERS];
  pthread_t thread;
  Peer peer = start("nccl_rank");
  Message message = {.pid = getpid(), .seed = 40};
  tell(peer.socket, &message);
  for (int at = 0; at < BUFFERS; at++) {
    buffers[at] = new_buffer(40 + at);
    handles[at] = buffers[at].handle;
  }
  MUST(send(peer.socket, handles, sizeof handles, 0) == sizeof handles);
  MUST(pthread_create(&thread, NULL, serves, &peer.socket) == 0);
  MUST(pthread_join(thread, NULL) == 0);
  CHECK(finish(peer) == 0);
  CHECK(memory_fds() == 0);
  for (int at = 0; at < BUFFERS; at++) free_buffer(buffers[at]);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- symmetric memory: each sends its own, and closes it after a barrier --- */

static void exchanges(int socket, unsigned own, unsigned other) {
  Buffer buffer = new_buffer(own);
  Message barrier = {.pid = getpid()};
  int fd = export_of(buffer.handle);
  CHECK(is_export(fd));
  send_fd(socket, fd);
  int received = receive_fd(socket);
  CUmemGenericAllocationHandle handle = import_of(received);
  CUdeviceptr base = map_one(handle);
  CHECK(close(received) == 0);
  tell(socket, &barrier);
  hear(socket);
  CHECK(close(fd) == 0);
  CHECK(shows(base, other));
  fill(base, own + other);
  tell(socket, &barrier);
  hear(socket);
  CHECK(shows(buffer.base, own + other));
  unmap_one(base);
  DRIVER(cu.cuMemRelease(handle));
  free_buffer(buffer);
}
static void symmetric_peer(void) {
  use_driver();
  exchanges(PEER_FD, 61, 60);
  Message message = {.result = bad_checks};
  tell(PEER_FD, &message);
}
static void symmetric_memory_when_each_sends_its_own_is_seen_by_both(void) {
  use_driver();
  size_t before = whole_card();
  Peer peer = start("symmetric_peer");
  exchanges(peer.socket, 60, 61);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  CHECK(COMES_TRUE(free_bytes() == before));
}

/* --- what the layer has not seen made: the driver's own fds --- */

static void takes_driver_fd(void) {
  use_driver();
  Message message = hear(PEER_FD);
  int fd = receive_fd(PEER_FD);
  CUmemGenericAllocationHandle handle = import_of(fd);
  CHECK(close(fd) == 0);
  CHECK(message.count == 0 || cu.cuMulticastAddDevice(handle, 0) == CUDA_SUCCESS);
  DRIVER(cu.cuMemRelease(handle));
  message.result = bad_checks;
  tell(PEER_FD, &message);
}
static void is_driver_fd(CUmemGenericAllocationHandle handle, int is_multicast) {
  int fd = export_of(handle);
  CHECK(fd > 2 && fd < FIRST_VIRTUAL && memory_fds() == 1);
  Peer peer = start("takes_driver_fd");
  Message message = {.count = is_multicast};
  tell(peer.socket, &message);
  send_fd(peer.socket, fd);
  CHECK(close(fd) == 0);
  FAILS(EBADF, close(fd));
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
}
static void multicast_object_when_exported_is_the_drivers_fd(void) {
  use_driver();
  size_t before = whole_card();
  CUmulticastObjectProp prop = {1, SEGMENT, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0};
  CUmemGenericAllocationHandle handle;
  DRIVER(cu.cuMulticastCreate(&handle, &prop));
  is_driver_fd(handle, 1);
  DRIVER(cu.cuMemRelease(handle));
  CHECK(COMES_TRUE(free_bytes() == before));
}
static void import_when_exported_again_is_the_drivers_fd(void) {
  use_driver();
  size_t before = whole_card();
  Buffer buffer = new_buffer(8);
  int number = export_of(buffer.handle), fd = dup(number);
  CUmemGenericAllocationHandle handle = import_of(fd);
  CHECK(close(fd) == 0 && close(number) == 0);
  is_driver_fd(handle, 0);
  DRIVER(cu.cuMemRelease(handle));
  free_buffer(buffer);
  CHECK(COMES_TRUE(free_bytes() == before));
}

static void fabric_consumer(void) {
  use_driver();
  CUmemFabricHandle fabric;
  CUmemGenericAllocationHandle handle;
  MUST(recv(PEER_FD, &fabric, sizeof fabric, 0) == sizeof fabric);
  DRIVER(cu.cuMemImportFromShareableHandle(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
  CUdeviceptr base = map_one(handle);
  CHECK(shows(base, 31));
  unmap_one(base);
  DRIVER(cu.cuMemRelease(handle));
  Message message = {.result = bad_checks};
  tell(PEER_FD, &message);
}
static void fabric_handle_when_exported_is_the_drivers_own(void) {
  use_driver();
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  Buffer buffer;
  CUmemFabricHandle fabric;
  CUmemAllocationProp seen;
  DRIVER(cu.cuMemCreate(&buffer.handle, SEGMENT, &prop, 0));
  DRIVER(cu.cuMemGetAllocationPropertiesFromHandle(&seen, buffer.handle));
  CHECK(memcmp(&seen, &prop, sizeof prop) == 0);
  buffer.base = map_one(buffer.handle);
  fill(buffer.base, 31);
  memset(&fabric, 0xff, sizeof fabric);
  DRIVER(cu.cuMemExportToShareableHandle(&fabric, buffer.handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  /* And an fd of the same memory. */
  int number = export_of(buffer.handle);
  CHECK(is_export(number));
  Peer peer = start("fabric_consumer");
  MUST(send(peer.socket, &fabric, sizeof fabric, 0) == sizeof fabric);
  CHECK(hear(peer.socket).result == 0);
  CHECK(finish(peer) == 0);
  CHECK(close(number) == 0);
  free_buffer(buffer);
}
/* No handle was asked for at its creation. */
static void export_when_not_asked_for_or_wrongly_is_refused(void) {
  use_driver();
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle;
  int number = -7;
  DRIVER(cu.cuMemCreate(&handle, SEGMENT, &prop, 0));
  CHECK(try_export(handle, &number) == CUDA_ERROR_INVALID_VALUE);
  CHECK(number == -7);
  /* Another type of handle, and flags, which there are none of. */
  CHECK(cu.cuMemExportToShareableHandle(&number, handle, 2, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu.cuMemExportToShareableHandle(&number, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(try_export(handle + 1, &number) == CUDA_ERROR_INVALID_VALUE);
  DRIVER(cu.cuMemRelease(handle));
  CHECK(try_export(handle, &number) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu.cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
}

static const Row rows[] = {
    ROLE(nccl_rank),
    ROLE(symmetric_peer),
    ROLE(takes_driver_fd),
    ROLE(fabric_consumer),
    CASE(buffers_when_a_service_thread_exports_and_sends_them_are_the_other_ranks_memory),
    CASE(symmetric_memory_when_each_sends_its_own_is_seen_by_both),
    CASE(multicast_object_when_exported_is_the_drivers_fd),
    CASE(import_when_exported_again_is_the_drivers_fd),
    CASE(fabric_handle_when_exported_is_the_drivers_own),
    CASE(export_when_not_asked_for_or_wrongly_is_refused),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
