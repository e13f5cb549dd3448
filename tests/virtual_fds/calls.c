/* What each call does with a virtual fd, in the process that exported it and in another one.
 * usage: calls, or calls ROLE NUMBER as the second process. */
#include "check.h"

#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#define TEXT "written by the producer"

/* drm/drm.h, which is not installed everywhere. */
struct drm_prime_handle {
  unsigned handle, flags;
  int fd;
};
#define DRM_IOCTL_PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct drm_prime_handle)

/* The names of large files, and those that programs of before glibc 2.33 or with _FORTIFY_SOURCE call. */
extern int __fxstat(int, int, struct stat *), __fxstat64(int, int, struct stat64 *);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t);
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

static void is_memory_and_close(int fd, int flags) {
  CHECK(shows(fd, TEXT));
  CHECK(fcntl(fd, F_GETFD) == flags);
  CHECK(close(fd) == 0);
  FAILS(EBADF, close(fd));
}

static void getfd(int number) {
  int pidfd = pidfd_open(getppid(), 0);
  is_memory_and_close((int)syscall(SYS_pidfd_getfd, pidfd, number, 0), FD_CLOEXEC);
  is_memory_and_close(pidfd_getfd(pidfd, number, 0), FD_CLOEXEC);
  /* Whatever the pidfd is. */
  is_memory_and_close(pidfd_getfd(-1, number, 0), FD_CLOEXEC);
  FAILS(EINVAL, pidfd_getfd(pidfd, number, 1));
  CHECK(close(pidfd) == 0);
}

static void is_placeholder(int pidfd, int number) {
  struct pollfd entry = {pidfd, POLLIN, 0};
  siginfo_t info;
  CHECK(pidfd >= 0 && fcntl(pidfd, F_GETFD) == FD_CLOEXEC);
  CHECK(poll(&entry, 1, 0) == 1 && entry.revents == POLLIN);
  FAILS(ESRCH, waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED));
  FAILS(ESRCH, syscall(SYS_waitid, P_PIDFD, pidfd, &info, WEXITED, NULL));
  FAILS(ESRCH, pidfd_send_signal(pidfd, 0, NULL, 0));
  FAILS(ESRCH, syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0));
  FAILS(ESRCH, pidfd_getfd(pidfd, 0, 0));
  is_memory_and_close(pidfd_getfd(pidfd, number, 0), FD_CLOEXEC);
  CHECK(close(pidfd) == 0);
}

static void placeholder(int number) {
  use_driver();
  is_placeholder((int)syscall(SYS_pidfd_open, NO_SUCH_PID, 0), number);
  is_placeholder(pidfd_open(NO_SUCH_PID, 0), number);
  FAILS(EINVAL, pidfd_open(NO_SUCH_PID, ~0u));
}

static void duplicates(int number) {
  int target = open("/dev/null", O_RDONLY);
  is_memory_and_close(dup(number), 0);
  is_memory_and_close((int)syscall(SYS_dup, number), 0);
  is_memory_and_close(fcntl(number, F_DUPFD, 30), 0);
  is_memory_and_close(fcntl(number, F_DUPFD_CLOEXEC, 30), FD_CLOEXEC);
  is_memory_and_close(fcntl64(number, F_DUPFD_CLOEXEC, 30), FD_CLOEXEC);
  is_memory_and_close((int)syscall(SYS_fcntl, number, F_DUPFD, 30), 0);
  CHECK(dup2(number, target) == target);
  CHECK(shows(target, TEXT));
  CHECK(dup3(number, target, O_CLOEXEC) == target);
  CHECK(fcntl(target, F_GETFD) == FD_CLOEXEC);
  CHECK(syscall(SYS_dup3, number, target, 0) == target);
#ifdef SYS_dup2
  CHECK(syscall(SYS_dup2, number, target) == target);
#endif
  is_memory_and_close(target, 0);
  FAILS(EBADF, dup2(0, number));
}

static void flags(int number) {
  CHECK(fcntl(number, F_GETFD) == FD_CLOEXEC);
  CHECK(fcntl(number, F_SETFD, 0) == 0);
  CHECK((fcntl(number, F_GETFL) & O_ACCMODE) == O_RDWR);
  CHECK(fcntl64(number, F_GETFD) == FD_CLOEXEC);
  CHECK(syscall(SYS_fcntl, number, F_GETFD) == FD_CLOEXEC);
}

static void memory(int number) {
  struct stat stat;
  struct stat64 stat64;
  memset(&stat, 0, sizeof stat);
  CHECK(fstat(number, &stat) == 0 && stat.st_size == SIZE);
  CHECK(fstat64(number, &stat64) == 0 && stat64.st_size == SIZE && stat64.st_ino == stat.st_ino);
  memset(&stat, 0, sizeof stat);
  CHECK(__fxstat(0, number, &stat) == 0 && stat.st_size == SIZE);
  CHECK(__fxstat64(0, number, &stat64) == 0 && stat64.st_size == SIZE);
  FAILS(EINVAL, __fxstat(7, number, &stat));
  CHECK(syscall(SYS_fstat, number, &stat) == 0);
  CHECK(lseek(number, 0, SEEK_END) == SIZE);
  CHECK(lseek64(number, 0, SEEK_END) == SIZE);
  CHECK(syscall(SYS_lseek, number, 0, SEEK_END) == SIZE);

  void *maps[3] = {mmap(NULL, SIZE, PROT_READ, MAP_SHARED, number, 0), mmap64(NULL, SIZE, PROT_READ, MAP_SHARED, number, 0),
                   (void *)syscall(SYS_mmap, NULL, SIZE, PROT_READ, MAP_SHARED, number, 0)};
  for (int at = 0; at < 3; at++) {
    CHECK(maps[at] != MAP_FAILED && memcmp(maps[at], TEXT, sizeof TEXT - 1) == 0);
    CHECK(munmap(maps[at], SIZE) == 0);
  }
  /* The fd of an anonymous mapping means nothing. */
  void *anonymous = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, NO_SUCH_FD, 0);
  CHECK(anonymous != MAP_FAILED && munmap(anonymous, SIZE) == 0);
}

static void ioctls(int number) {
  int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  /* A memfd is no dma-buf, and the device no GPU: the kernel says that it does not know these, and not EBADF. */
  struct dma_buf_sync sync = {DMA_BUF_SYNC_START | DMA_BUF_SYNC_READ};
  struct drm_prime_handle prime = {7, 0, number};
  FAILS(ENOTTY, ioctl(number, DMA_BUF_IOCTL_SYNC, &sync));
  FAILS(ENOTTY, syscall(SYS_ioctl, number, DMA_BUF_IOCTL_SYNC, &sync));
  CHECK(ioctl(number, FIOCLEX) == 0);
  FAILS(ENOTTY, ioctl(device, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime));
  CHECK(prime.fd == number);
  prime.fd = NO_SUCH_FD;
  FAILS(EBADF, ioctl(device, DRM_IOCTL_PRIME_FD_TO_HANDLE, &prime));
  CHECK(close(device) == 0);
}

static void polls(int number) {
  struct pollfd entries[3] = {{number, POLLIN, 0}, {NO_SUCH_FD, POLLIN, 0}, {-1, POLLIN, 7}};
  struct timespec none = {0, 0};
  for (int way = 0; way < 5; way++) {
    int answer = -1;
    for (int at = 0; at < 3; at++) entries[at].revents = 7;
    if (way == 0) answer = poll(entries, 3, -1);
    if (way == 1) answer = ppoll(entries, 3, &none, NULL);
    if (way == 2) answer = __poll_chk(entries, 3, 0, sizeof entries);
    if (way == 3) answer = __ppoll_chk(entries, 3, &none, NULL, sizeof entries);
    if (way == 4) answer = (int)syscall(SYS_ppoll, entries, 3, &none, NULL, 8);
    CHECK(answer == 2);
    CHECK(entries[0].revents == POLLIN && entries[1].revents == POLLNVAL && entries[2].revents == 0);
    CHECK(entries[0].fd == number && entries[1].fd == NO_SUCH_FD);
  }
}

/* Sends one message with three fds, of which the second is real, by each way to send; all arrive as real fds. */
static void sends(int number) {
  int pair[2], plain = open("/dev/null", O_RDONLY);
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  for (int way = 0; way < 4; way++) {
    int fds[3] = {number, plain, number}, got[3] = {-1, -1, -1};
    union {
      char bytes[CMSG_SPACE(sizeof fds)];
      struct cmsghdr header;
    } control, before;
    char byte = 'x';
    struct iovec data = {&byte, 1};
    struct mmsghdr many[2];
    memset(&control, 0, sizeof control);
    memset(many, 0, sizeof many);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
    before = control;
    many[0].msg_hdr.msg_iov = many[1].msg_hdr.msg_iov = &data;
    many[0].msg_hdr.msg_iovlen = many[1].msg_hdr.msg_iovlen = 1;
    /* The second message of two. */
    struct msghdr *message = &many[1].msg_hdr;
    message->msg_control = &control;
    message->msg_controllen = sizeof control;
    if (way == 0) CHECK(sendmsg(pair[0], message, 0) == 1);
    if (way == 1) CHECK(syscall(SYS_sendmsg, pair[0], message, 0) == 1);
    if (way == 2) CHECK(sendmmsg(pair[0], many, 2, 0) == 2);
    if (way == 3) CHECK(syscall(SYS_sendmmsg, pair[0], many, 2, 0) == 2);
    if (way >= 2) CHECK(many[0].msg_len == 1 && many[1].msg_len == 1 && recv(pair[1], &byte, 1, 0) == 1);
    CHECK(memcmp(&before, &control, sizeof control) == 0);
    memset(&control, 0, sizeof control);
    message->msg_controllen = sizeof control;
    CHECK(recvmsg(pair[1], message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1);
    memcpy(got, CMSG_DATA(&control.header), sizeof got);
    is_memory_and_close(got[0], FD_CLOEXEC);
    CHECK(got[1] >= 0 && close(got[1]) == 0);
    is_memory_and_close(got[2], FD_CLOEXEC);
  }
  /* As the kernel says of control data that cannot be read. */
  struct msghdr nowhere = {.msg_control = (void *)8, .msg_controllen = 64};
  FAILS(EFAULT, sendmsg(pair[0], &nowhere, 0));
  CHECK(close(pair[0]) == 0 && close(pair[1]) == 0 && close(plain) == 0);
}

static void others(int number) {
  char byte;
  FAILS(EBADF, read(number, &byte, 1));
  FAILS(EBADF, read(number, &byte, 1));
  FAILS(EBADF, syscall(SYS_read, number, &byte, 1));
  FAILS(EBADF, write(number, "x", 1));
  FAILS(EBADF, pread(number, &byte, 1, 0));
  FAILS(EBADF, pwrite64(number, "x", 1, 0));
  FAILS(EBADF, ftruncate(number, 1));
  FAILS(EBADF, fcntl(number, F_GET_SEALS));
}

static void nothing_there(int number) {
  char byte;
  struct stat stat;
  (void)number;
  FAILS(EBADF, close(NO_SUCH_FD));
  FAILS(EBADF, dup(NO_SUCH_FD));
  FAILS(EBADF, fcntl(NO_SUCH_FD, F_GETFD));
  FAILS(EBADF, pidfd_getfd(-1, NO_SUCH_FD, 0));
  FAILS(EBADF, fstat(NO_SUCH_FD, &stat));
  FAILS(EBADF, lseek(NO_SUCH_FD, 0, SEEK_CUR));
  FAILS(EBADF, mmap(NULL, SIZE, PROT_READ, MAP_SHARED, NO_SUCH_FD, 0));
  FAILS(EBADF, read(NO_SUCH_FD, &byte, 1));
  /* A number that the kernel could give, and one that is no fd. */
  FAILS(EBADF, close(FIRST_VIRTUAL - 1));
  FAILS(EBADF, close(-1));
}

static const struct {
  const char *name;
  void (*run)(int number);
} rows[] = {
    {"pidfd_getfd gives a real fd, whatever the pidfd", getfd},
    {"pidfd_open of nobody gives a placeholder", placeholder},
    {"dup, dup2, dup3 and F_DUPFD give a real fd", duplicates},
    {"F_GETFD, F_SETFD and F_GETFL are answered", flags},
    {"fstat, lseek and mmap are of the memory", memory},
    {"ioctl is made on a real fd", ioctls},
    {"poll and ppoll are made on a real fd", polls},
    {"sendmsg and sendmmsg send real fds", sends},
    {"other calls answer EBADF", others},
    {"a number above 2^30 that is no virtual fd answers EBADF", nothing_there},
};

static int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

static void all_rows(const char *where, int number) {
  /* The connection is made by then, so that its fds count on both sides. */
  CHECK(close(dup(number)) == 0);
  int before = open_fds();
  for (size_t at = 0; at < sizeof rows / sizeof *rows; at++) {
    bad_checks = 0;
    rows[at].run(number);
    /* The layer keeps what was fetched again and again for a moment. */
    for (int tries = 0; tries < 100 && open_fds() != before; tries++) usleep(10000);
    CHECK(open_fds() == before);
    printf("%s  %s: %s\n", bad_checks ? "FAIL" : "ok  ", where, rows[at].name);
    bad_cases += bad_checks != 0;
  }
}

/* Before the program has used the driver, and for a process that there is. */
static void pidfd_open_when_the_driver_is_not_used_is_the_kernels(void) {
  FAILS(ESRCH, pidfd_open(NO_SUCH_PID, 0));
  FAILS(ESRCH, syscall(SYS_pidfd_open, NO_SUCH_PID, 0));
  int own = pidfd_open(getpid(), 0), fd = pidfd_getfd(own, 1, 0);
  CHECK(fd >= 0 && close(fd) == 0);
  CHECK(pidfd_send_signal(own, 0, NULL, 0) == 0 && close(own) == 0);
}

int main(int argc, char **argv) {
  begin();
  if (argc == 3) {
    RUN(pidfd_open_when_the_driver_is_not_used_is_the_kernels);
    all_rows("another process", atoi(argv[2]));
    return bad_cases != 0;
  }
  int number = exported(TEXT);
  all_rows("the producer", number);
  int failed = elsewhere("consumer", number);
  CHECK(close(number) == 0);
  return bad_cases != 0 || failed;
}
