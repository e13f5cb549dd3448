/* Shared by the programs of this folder: device memory with a pattern, and a second process. The programs know nothing of
 * fdbroker. Only EXPECT_LAYER=1 tells them what to expect of an exported number. */
#ifndef SHAPES_H
#define SHAPES_H

#define _GNU_SOURCE
#include "../common/cases.h"
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longest life of a process, in s, and longest wait for one thing, in ms: only a hang exceeds them. */
#define LIFE_S 120u
#define SOON_MS 20000
/* Bytes of one allocation: PyTorch's are 20 MiB, which would show no more. */
#define SEGMENT 65536u
/* Allocations of one tensor: those of 512 MiB in PyTorch. */
#define SEGMENTS 26
/* A number from which on virtual fds begin, and one that is none, as far as chance goes. */
#define FIRST_VIRTUAL (1 << 30)
#define NO_SUCH_FD 0x7ffffffe
/* Above the largest number of a process. */
#define NO_SUCH_PID (1 << 23)
/* Names of <prctl.h> that old headers lack. */
#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

/* A call that answers -1 and this errno. */
#define FAILS(error, call) CHECK((errno = 0, (long)(call)) == -1 && errno == (error))
/* A call of the driver that succeeds. */
#define DRIVER(call) MUST((call) == CUDA_SUCCESS)

/* glibc 2.36 has these, older headers do not name them. */
int pidfd_open(pid_t, unsigned), pidfd_getfd(int, int, unsigned);

static inline int is_layered(void) { return getenv("EXPECT_LAYER") != NULL; }

/* An exported number is an fd, or with the layer a virtual fd. */
static inline int is_export(int number) { return is_layered() ? number >= FIRST_VIRTUAL : number > 2 && number < FIRST_VIRTUAL; }

static inline void begin(void) {
  for (int one = 1; one < NSIG; one++) signal(one, SIG_DFL);
  alarm(LIFE_S);
  setvbuf(stdout, NULL, _IOLBF, 0);
  /* Where only a parent may look into a process, programs that pass fd numbers must allow it. */
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

static inline void push_context(void) {
  CUcontext context;
  DRIVER(cu.cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER(cu.cuCtxPushCurrent(context));
}
static inline void use_driver(void) {
#ifdef LINKED
  MUST(find_linked());
#else
  MUST(find_as_cudart());
#endif
  DRIVER(cu.cuInit(0));
  push_context();
}

/* --- memory --- */

static inline CUresult create(CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  return cu.cuMemCreate(handle, SEGMENT, &prop, 0);
}
static inline void set_access(CUdeviceptr base, size_t bytes) {
  CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER(cu.cuMemSetAccess(base, bytes, &desc, 1));
}
/* A handle at an address of its own. */
static inline CUdeviceptr map_one(CUmemGenericAllocationHandle handle) {
  CUdeviceptr base;
  DRIVER(cu.cuMemAddressReserve(&base, SEGMENT, SEGMENT, 0, 0));
  DRIVER(cu.cuMemMap(base, SEGMENT, 0, handle, 0));
  set_access(base, SEGMENT);
  return base;
}
static inline void unmap_one(CUdeviceptr base) {
  DRIVER(cu.cuMemUnmap(base, SEGMENT));
  DRIVER(cu.cuMemAddressFree(base, SEGMENT));
}

/* Each word differs from its neighbours, and from the same word of other memory. */
static inline uint32_t word_of(unsigned seed, unsigned at) { return (seed * 2654435761u) ^ (at * 40503u + 1); }
static inline void fill(CUdeviceptr base, unsigned seed) {
  uint32_t words[SEGMENT / 4];
  for (unsigned at = 0; at < SEGMENT / 4; at++) words[at] = word_of(seed, at);
  DRIVER(cu.cuMemcpyHtoD(base, words, SEGMENT));
  DRIVER(cu.cuStreamSynchronize(NULL));
}
/* Whether every byte is what `fill` wrote. */
static inline int shows(CUdeviceptr base, unsigned seed) {
  uint32_t words[SEGMENT / 4];
  unsigned at = 0;
  DRIVER(cu.cuMemcpyDtoH(words, base, SEGMENT));
  while (at < SEGMENT / 4 && words[at] == word_of(seed, at)) at++;
  return at == SEGMENT / 4;
}
static inline CUresult try_import(int fd, CUmemGenericAllocationHandle *handle) {
  return cu.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}
static inline CUmemGenericAllocationHandle import_of(int fd) {
  CUmemGenericAllocationHandle handle;
  DRIVER(try_import(fd, &handle));
  return handle;
}
/* Whether an fd is this memory; it stays open. */
static inline int fd_shows(int fd, unsigned seed) {
  CUmemGenericAllocationHandle handle;
  if (fd < 0 || try_import(fd, &handle) != CUDA_SUCCESS) return 0;
  CUdeviceptr base = map_one(handle);
  int is_shown = shows(base, seed);
  unmap_one(base);
  DRIVER(cu.cuMemRelease(handle));
  return is_shown;
}

/* A real fd for another process's number, as programs get one. With the command $EVICT the broker has to ask for it first. */
static inline int take_fd(pid_t pid, int number) {
  MUST(getenv("EVICT") == NULL || system(getenv("EVICT")) == 0);
  int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0), error = errno;
  close(pidfd);
  errno = error;
  return fd;
}
static inline int fd_of(int number) { return take_fd(getpid(), number); }
/* Whether a number leads to this memory: of another process, and of this one. */
static inline int is_taken(pid_t pid, int number, unsigned seed) {
  int fd = take_fd(pid, number), is_shown = fd_shows(fd, seed);
  return is_shown && close(fd) == 0;
}
static inline int is_alive(int number, unsigned seed) { return is_taken(getpid(), number, seed); }

/* One allocation, mapped and filled. */
typedef struct { CUmemGenericAllocationHandle handle; CUdeviceptr base; } Buffer;
static inline Buffer new_buffer(unsigned seed) {
  Buffer buffer;
  DRIVER(create(&buffer.handle));
  buffer.base = map_one(buffer.handle);
  fill(buffer.base, seed);
  return buffer;
}
static inline void free_buffer(Buffer buffer) {
  unmap_one(buffer.base);
  DRIVER(cu.cuMemRelease(buffer.handle));
}
static inline CUresult try_export(CUmemGenericAllocationHandle handle, int *number) {
  return cu.cuMemExportToShareableHandle(number, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}
static inline int export_of(CUmemGenericAllocationHandle handle) {
  int number = -1;
  DRIVER(try_export(handle, &number));
  return number;
}
static inline int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) != -1;
  return count;
}
/* Open fds of device memory in this process. */
static inline int memory_fds_from(int least) {
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  const char *card = getenv("FDBROKER_CUDA_STUB_DIR");
  MUST(dir != NULL && card != NULL);
  for (struct dirent *entry; (entry = readdir(dir));) {
    char link[300] = "";
    if (readlinkat(dirfd(dir), entry->d_name, link, sizeof link - 1) > 0 && strncmp(link, card, strlen(card)) == 0)
      count += link[strlen(card)] == '/' && atoi(entry->d_name) >= least;
  }
  closedir(dir);
  return count;
}
static inline int memory_fds(void) { return memory_fds_from(0); }

/* A number of the broker's status, as the command $LEDGER with this word prints it. */
static inline long ledger(const char *word) {
  char command[1024], text[32] = "-1";
  MUST(getenv("LEDGER") != NULL);
  snprintf(command, sizeof command, "%s %s", getenv("LEDGER"), word);
  FILE *out = popen(command, "re");
  MUST(out != NULL && fgets(text, sizeof text, out) != NULL);
  pclose(out);
  return atol(text);
}

static inline void pause_ms(int ms) {
  struct timespec pause = {0, ms * 1000000L};
  nanosleep(&pause, NULL);
}
/* Some ends are another process's to see. */
#define COMES_TRUE(condition) \
  ({ \
    int waited_ms_ = 0; \
    while (!(condition) && waited_ms_ < SOON_MS) { \
      pause_ms(10); \
      waited_ms_ += 10; \
    } \
    waited_ms_ < SOON_MS; \
  })

static inline size_t free_bytes(void) {
  size_t bytes, total;
  DRIVER(cu.cuMemGetInfo(&bytes, &total));
  return bytes;
}
/* All bytes of the card, once what other cases had has come back. */
static inline size_t whole_card(void) {
  size_t bytes, total;
  MUST(COMES_TRUE(cu.cuMemGetInfo(&bytes, &total) == CUDA_SUCCESS && bytes == total));
  return total;
}

/* --- a second process --- */

/* What processes tell each other: where exports are, or how it went. */
typedef struct {
  pid_t pid;
  unsigned seed, count;
  int numbers[SEGMENTS];
  int result;
} Message;
typedef struct { pid_t pid; int socket; } Peer;

#define PEER_FD 3
/* Words of $CONSUMER, and all words of the second process's command. */
#define WORDS_MOST 32

/* This program anew, in a process of its own that has nothing of this one but a socket: `$CONSUMER self ROLE`. */
static inline Peer start(const char *role) {
  int pair[2];
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  char text[1024], path[512], *words[WORDS_MOST + 3];
  const char *consumer = getenv("CONSUMER");
  int count = 0;
  snprintf(text, sizeof text, "%s", consumer ? consumer : "");
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  MUST(length > 0);
  path[length] = 0;
  for (char *word = strtok(text, " "); word && count < WORDS_MOST; word = strtok(NULL, " ")) words[count++] = word;
  words[count++] = path;
  words[count++] = (char *)role;
  words[count] = NULL;
  fflush(stdout);
  Peer peer = {fork(), pair[0]};
  MUST(peer.pid >= 0);
  if (peer.pid == 0) {
    if (pair[1] == PEER_FD) fcntl(PEER_FD, F_SETFD, 0);
    else if (dup2(pair[1], PEER_FD) != PEER_FD) _exit(126);
    /* As Python's subprocess does. */
    close_range(PEER_FD + 1, ~0u, 0);
    execvp(words[0], words);
    _exit(127);
  }
  close(pair[1]);
  return peer;
}
static inline void tell(int socket, const Message *message) {
  MUST(send(socket, message, sizeof *message, MSG_NOSIGNAL) == sizeof *message);
}
static inline Message hear(int socket) {
  Message message = {.result = -1};
  MUST(recv(socket, &message, sizeof message, 0) == sizeof message);
  return message;
}
/* The exit status of a child; 128 + N when signal N ended it. */
static inline int status_of(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0) MUST(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
static inline int finish(Peer peer) {
  close(peer.socket);
  return status_of(peer.pid);
}

/* --- the table of a program --- */

/* A case runs always, a special case when it is named, and a role is what the second process does. */
typedef enum { A_CASE, A_SPECIAL, A_ROLE } Kind;
typedef struct { const char *name; void (*run)(void); Kind kind; } Row;
#define CASE(function) {#function, function, A_CASE}
#define SPECIAL(function) {#function, function, A_SPECIAL}
#define ROLE(function) {#function, function, A_ROLE}

static inline int run_rows(const Row *rows, size_t count, int argc, char **argv) {
  int ran = 0;
  begin();
  for (size_t at = 0; at < count; at++) {
    int is_named = 0;
    for (int word = 1; word < argc; word++) is_named |= strcmp(argv[word], rows[at].name) == 0;
    if (argc > 1 ? !is_named : rows[at].kind != A_CASE) continue;
    ran++;
    bad_checks = 0;
    rows[at].run();
    if (rows[at].kind != A_ROLE) printf("%s  %s\n", bad_checks ? "FAIL" : "ok  ", rows[at].name);
    bad_cases += bad_checks != 0;
  }
  MUST(ran > 0);
  return bad_cases != 0;
}

#endif
