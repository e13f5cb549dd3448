/* Something of the program's under the number of an fd that it has closed, and what came of it: written to, read from, closed,
 * changed. Must never itself do to it what it looks for. */
#ifndef TAKEN_H
#define TAKEN_H

#include "../common/cases.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#ifndef MUST
#error "MUST is of cases.h"
#endif

enum kind { A_FILE, A_PIPE_TO_READ, A_PIPE_TO_WRITE, A_TCP, A_SEQPACKET, A_DATAGRAM, A_LISTENER, AN_EPOLL, AN_EVENTFD, A_TIMER, A_MEMFD, KINDS };

static const char *const kind_names[KINDS] = {"a regular file", "a pipe's end to read", "a pipe's end to write", "a TCP socket",
                                              "a SEQPACKET socket", "a datagram socket", "a listening socket", "an epoll",
                                              "an eventfd", "a timer", "a memfd"};

/* The program has the same thing, and what it is connected to, at numbers of its own, high up. */
struct taken {
  enum kind kind;
  int number;
  int same;
  int other;
  off_t at;
};

#define HIGH 700
static const char words[] = "of the program's";

static inline int high(int fd) {
  MUST(fd >= 0);
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
  MUST(moved >= HIGH);
  close(fd);
  return moved;
}

static inline void tcp_pair(int pair[2], int *listener) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int door = high(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  MUST(bind(door, (struct sockaddr *)&address, sizeof address) == 0 && listen(door, 4) == 0);
  MUST(getsockname(door, (struct sockaddr *)&address, &length) == 0);
  pair[1] = high(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  MUST(connect(pair[1], (struct sockaddr *)&address, sizeof address) == 0);
  if (listener != NULL) {
    *listener = door;
    return;
  }
  pair[0] = high(accept(door, NULL, NULL));
  close(door);
}

/* dup3(2), past what a layer has put before the C library's. */
static inline long put_there(long fd, long number) {
#if defined(__x86_64__)
  long answer;
  __asm__ volatile("syscall" : "=a"(answer) : "a"(292L), "D"(fd), "S"(number), "d"((long)O_CLOEXEC) : "rcx", "r11", "memory");
  return answer;
#elif defined(__aarch64__)
  register long call __asm__("x8") = 24, first __asm__("x0") = fd, second __asm__("x1") = number, third __asm__("x2") = O_CLOEXEC;
  __asm__ volatile("svc 0" : "+r"(first) : "r"(call), "r"(second), "r"(third) : "memory");
  return first;
#endif
}

/* Makes one, high up; what can be read has words in it that nobody but the program is to read. */
static inline struct taken made(enum kind kind) {
  struct taken taken = {.kind = kind, .number = -1, .same = -1, .other = -1};
  int pair[2] = {-1, -1};
  char path[] = "/tmp/fdbroker-taken-XXXXXX";
  switch (kind) {
    case A_FILE:
      taken.same = high(mkstemp(path));
      unlink(path);
      MUST(write(taken.same, words, sizeof words) == sizeof words);
      taken.at = lseek(taken.same, 3, SEEK_SET);
      break;
    case A_PIPE_TO_READ:
    case A_PIPE_TO_WRITE:
      MUST(pipe2(pair, O_CLOEXEC | O_NONBLOCK) == 0);
      taken.same = high(pair[kind == A_PIPE_TO_WRITE]);
      taken.other = high(pair[kind != A_PIPE_TO_WRITE]);
      if (kind == A_PIPE_TO_READ) MUST(write(taken.other, words, sizeof words) == sizeof words);
      break;
    case A_TCP:
      tcp_pair(pair, NULL);
      taken.same = pair[0], taken.other = pair[1];
      MUST(send(taken.other, words, sizeof words, 0) == sizeof words);
      break;
    case A_SEQPACKET:
    case A_DATAGRAM:
      MUST(socketpair(AF_UNIX, (kind == A_DATAGRAM ? SOCK_DGRAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, pair) == 0);
      taken.same = high(pair[0]), taken.other = high(pair[1]);
      MUST(send(taken.other, words, sizeof words, 0) == sizeof words);
      break;
    case A_LISTENER:
      tcp_pair(pair, &taken.same);
      taken.other = pair[1];
      break;
    case AN_EPOLL: {
      /* One thing is there, once: whoever waits for it takes it away. */
      struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
      taken.same = high(epoll_create1(EPOLL_CLOEXEC));
      taken.other = high(eventfd(1, EFD_CLOEXEC));
      MUST(epoll_ctl(taken.same, EPOLL_CTL_ADD, taken.other, &event) == 0);
      break;
    }
    case AN_EVENTFD:
      taken.same = high(eventfd(5, EFD_CLOEXEC | EFD_NONBLOCK));
      break;
    case A_TIMER: {
      struct itimerspec hour = {.it_value.tv_sec = 3600};
      taken.same = high(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
      MUST(timerfd_settime(taken.same, 0, &hour, NULL) == 0);
      break;
    }
    case A_MEMFD: {
      static char page[4096];
      memset(page, 's', sizeof page);
      taken.same = high(memfd_create("secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      for (int at = 0; at < 64; at++) MUST(write(taken.same, page, sizeof page) == sizeof page);
      taken.at = lseek(taken.same, 0, SEEK_CUR);
      break;
    }
    case KINDS:
      break;
  }
  return taken;
}

/* Longer than the library's thread is between its look at a number and the call that uses it. */
enum { LOOK_IS_OVER_US = 50000 };

/* Puts one under each number. All are made first, and a number is never free in between: the library has no time to come back to
 * a number that is then taken from it. /dev/null comes first: what the library's thread has proved a moment before can still be
 * used once it is another's (SECURITY.md, known weaknesses), and there nobody misses what is read. */
static inline void take_all(enum kind kind, const int numbers[], int count, struct taken all[]) {
  int nothing = high(open("/dev/null", O_RDWR | O_CLOEXEC));
  MUST(nothing >= 0);
  for (int at = 0; at < count; at++) all[at] = made(kind);
  for (int at = 0; at < count; at++) MUST(put_there(nothing, numbers[at]) == numbers[at]);
  close(nothing);
  usleep(LOOK_IS_OVER_US);
  for (int at = 0; at < count; at++) {
    MUST(put_there(all[at].same, numbers[at]) == numbers[at]);
    all[at].number = numbers[at];
  }
}

static inline struct taken take(enum kind kind, int number) {
  struct taken taken;
  take_all(kind, &number, 1, &taken);
  return taken;
}

/* Where there is room. */
static inline struct taken take_above(enum kind kind, int least) {
  struct taken taken = made(kind);
  MUST((taken.number = fcntl(taken.same, F_DUPFD_CLOEXEC, least)) >= least);
  return taken;
}

static inline int is_same_file(int one, int other) {
  struct stat first, second;
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

static inline int unread(int fd) {
  int count = -1;
  return ioctl(fd, FIONREAD, &count) == 0 ? count : -1;
}

/* Whether it is as it was left. */
static inline int is_untouched(const struct taken *taken) {
  if (!is_same_file(taken->number, taken->same)) return 0;
  switch (taken->kind) {
    case A_FILE: {
      struct stat stat;
      return fstat(taken->same, &stat) == 0 && stat.st_size == sizeof words && lseek(taken->same, 0, SEEK_CUR) == taken->at;
    }
    case A_PIPE_TO_READ:
      return unread(taken->same) == sizeof words;
    case A_PIPE_TO_WRITE:
      return unread(taken->other) == 0;
    case A_TCP:
    case A_SEQPACKET:
    case A_DATAGRAM: {
      char byte;
      ssize_t got = recv(taken->other, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
      return unread(taken->same) == sizeof words && got == -1 && errno == EAGAIN;
    }
    case A_LISTENER: {
      char byte;
      return recv(taken->other, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == -1 && errno == EAGAIN;
    }
    case AN_EPOLL: {
      struct epoll_event event;
      struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT};
      int is_there = epoll_wait(taken->same, &event, 1, 0) == 1;
      return is_there && epoll_ctl(taken->same, EPOLL_CTL_MOD, taken->other, &again) == 0;
    }
    case AN_EVENTFD: {
      uint64_t count = 0;
      int is_there = read(taken->number, &count, sizeof count) == sizeof count && count == 5;
      return is_there && write(taken->same, &count, sizeof count) == sizeof count;
    }
    case A_TIMER: {
      struct itimerspec left;
      return timerfd_gettime(taken->number, &left) == 0 && left.it_value.tv_sec > 3000;
    }
    case A_MEMFD: {
      struct stat stat;
      return fcntl(taken->same, F_GET_SEALS) == 0 && fstat(taken->same, &stat) == 0 && stat.st_size == 64 * 4096 &&
             stat.st_blocks == 64 * 8 && lseek(taken->same, 0, SEEK_CUR) == taken->at;
    }
    case KINDS:
      break;
  }
  return 0;
}

static inline void give_up(struct taken *taken) {
  close(taken->number);
  close(taken->same);
  if (taken->other >= 0) close(taken->other);
}

/* ---- the fds of this process */

#define MOST 2048

static inline void mark_open(unsigned char open_now[MOST]) {
  memset(open_now, 0, MOST);
  DIR *dir = opendir("/proc/self/fd");
  MUST(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    int fd = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(dir) && fd < MOST) open_now[fd] = 1;
  }
  closedir(dir);
}

/* The fds that were not open before; how many. */
static inline int new_fds(const unsigned char before[MOST], int fds[], int most) {
  unsigned char now[MOST];
  int count = 0;
  mark_open(now);
  for (int fd = 0; fd < MOST; fd++)
    if (now[fd] && !before[fd]) {
      MUST(count < most);
      fds[count++] = fd;
    }
  return count;
}

/* Those that a library's connection has, in a process that may have 1,024: sockets, and an epoll, in the upper half. */
static inline int connection_fds(int fds[], int most) {
  static const unsigned char none[MOST];
  int count = new_fds(none, fds, most), kept = 0;
  for (int at = 0; at < count; at++) {
    char path[40], link[40] = "";
    if (fds[at] < 512 || fds[at] >= HIGH) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fds[at]);
    if (readlink(path, link, sizeof link - 1) > 0 && (strncmp(link, "socket:", 7) == 0 || strcmp(link, "anon_inode:[eventpoll]") == 0))
      fds[kept++] = fds[at];
  }
  return kept;
}

#endif
