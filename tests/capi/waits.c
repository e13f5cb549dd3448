/* Waits that a signal handler ends, and waits of an event loop: one fd for requests, watches and notices. */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>
#include <signal.h>
#include <time.h>

#define PAGE 4096u

static struct broker broker;
static volatile sig_atomic_t signals;

static void on_signal(int number) {
  (void)number;
  signals++;
}

struct asked {
  fdbroker_t *context;
  int32_t answer;
  int times;
};

static int32_t ask(void *user) {
  struct asked *asked = user;
  asked->times++;
  /* It may call the library, and wait. */
  OK(fdbroker_flush(asked->context, SOON));
  return signals > 0 && asked->answer;
}

static void *signal_soon(void *thread) {
  nap_ms(100);
  pthread_kill(*(pthread_t *)thread, SIGUSR1);
  return NULL;
}

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static fdbroker_code_t get(fdbroker_t *context, const char *name, uint32_t deadline_ms) {
  fdbroker_object_t object = {.struct_size = sizeof object};
  fdbroker_code_t code = fdbroker_object_get(context, 1, &name, NULL, deadline_ms, &object);
  if (code == FDBROKER_OK) OK(fdbroker_object_release(context, &object));
  return code;
}

static void put(fdbroker_t *context, const char *name) {
  fdbroker_new_object_t new = {.struct_size = sizeof new, .name = name, .size_bytes = 1, .bytes = "x"};
  OK(fdbroker_object_put(context, 1, &new, NULL, SOON, NULL));
}

static void wait_asked_after_a_signal_ends_or_goes_on(void) {
  fdbroker_t *context = open_at(&broker);
  struct asked asked = {context, 0, 0};
  struct sigaction action = {.sa_handler = on_signal};
  pthread_t self = pthread_self(), thread;
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  OK(fdbroker_set_interrupt(ask, &asked));
  for (asked.answer = 0; asked.answer < 2; asked.answer++) {
    asked.times = signals = 0;
    CHECK(pthread_create(&thread, NULL, signal_soon, &self) == 0);
    long begun = now_ms();
    CODE(asked.answer ? FDBROKER_CANCELLED : FDBROKER_TIMED_OUT, get(context, "never", asked.answer ? SOON : 1000));
    CHECK(asked.answer ? now_ms() - begun < 1000 : now_ms() - begun >= 700);
    CHECK(signals == 1 && asked.times >= 1);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  /* The next call waits as ever. */
  signals = 0;
  CODE(FDBROKER_TIMED_OUT, get(context, "never", 100));
  OK(fdbroker_set_interrupt(NULL, NULL));
  EVENTUALLY(ledger(&broker, "parked_requests") == 0);
  OK(fdbroker_close(context));
}

/* The next token, which the fd announces. */
static uint64_t told(fdbroker_due_t *due) {
  struct pollfd polled = {.fd = fdbroker_due_fd(due), .events = POLLIN};
  uint64_t token = 0;
  CHECK(poll(&polled, 1, (int)SOON) == 1);
  OK(fdbroker_due_take(due, &token));
  return token;
}

static void requests_tell_when_their_answers_come(void) {
  fdbroker_t *context = open_at(&broker), *other = open_at(&broker);
  fdbroker_due_t *due;
  fdbroker_request_t *requests[2];
  fdbroker_object_t object = {.struct_size = sizeof object};
  fdbroker_object_options_t at_once = {.struct_size = sizeof at_once, .flags = FDBROKER_OBJECT_NO_WAIT, .fd = -1};
  const char *names[2] = {"due/a", "due/b"};
  uint64_t token;
  OK(fdbroker_due_open(&due));
  CODE(FDBROKER_AGAIN, fdbroker_due_take(due, &token));
  for (uint64_t at = 0; at < 2; at++) {
    OK(fdbroker_object_get_start(context, 1, &names[at], NULL, SOON, &requests[at]));
    OK(fdbroker_request_tell(requests[at], due, 10 + at));
    CODE(FDBROKER_AGAIN, fdbroker_object_get_test(requests[at], &object));
    CHECK(fdbroker_request_due_ms(requests[at]) > SOON / 2);
  }
  /* Nobody tests: the library's thread reads the answer. */
  put(other, "due/b");
  CHECK(told(due) == 11);
  OK(fdbroker_object_get_test(requests[1], &object));
  OK(fdbroker_object_release(context, &object));
  CODE(FDBROKER_AGAIN, fdbroker_object_get_test(requests[0], &object));
  OK(fdbroker_request_cancel(requests[0]));
  /* At once, whatever the deadline. */
  OK(fdbroker_object_get_start(context, 1, names, &at_once, SOON, &requests[0]));
  OK(fdbroker_request_tell(requests[0], due, 12));
  CHECK(told(due) == 12);
  CODE(FDBROKER_NOT_FOUND, fdbroker_object_get_test(requests[0], &object));
  OK(fdbroker_due_tell(due, 7));
  CHECK(told(due) == 7);
  OK(fdbroker_due_close(due));
  OK(fdbroker_close(other));
  OK(fdbroker_close(context));
}

static void watches_and_notices_tell_of_what_is_new(void) {
  fdbroker_t *context = open_with(&broker, FDBROKER_OPEN_NOTICES), *owner = open_at(&broker);
  fdbroker_due_t *due;
  fdbroker_object_watch_t *watch;
  fdbroker_object_event_t event = {.struct_size = sizeof event};
  fdbroker_notice_t notice = {.struct_size = sizeof notice};
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  void *memory;
  OK(fdbroker_due_open(&due));
  OK(fdbroker_object_watch(context, "told/", 0, SOON, &watch));
  OK(fdbroker_object_watch_tell(watch, due, 1));
  CHECK(told(due) == 1);
  CODE(FDBROKER_AGAIN, fdbroker_object_watch_next(watch, 0, &event));
  put(owner, "told/a");
  CHECK(told(due) == 1);
  OK(fdbroker_object_watch_next(watch, 0, &event));
  CHECK(event.event == FDBROKER_WATCH_SEALED && strcmp(event.name, "told/a") == 0);
  OK(fdbroker_object_watch_close(watch));

  OK(fdbroker_notice_tell(context, due, 2));
  CHECK(told(due) == 2);
  CODE(FDBROKER_AGAIN, fdbroker_notice_next(context, &notice));
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_host_free(owner, memory));
  CHECK(told(due) == 2);
  OK(fdbroker_notice_next(context, &notice));
  CHECK(notice.kind == FDBROKER_NOTICE_REVOKED && notice.code == FDBROKER_STALE && notice.slot == import.slot);
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_notice_tell(owner, due, 3));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_due_close(due));
  OK(fdbroker_close(owner));
  OK(fdbroker_close(context));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(wait_asked_after_a_signal_ends_or_goes_on);
  RUN(requests_tell_when_their_answers_come);
  RUN(watches_and_notices_tell_of_what_is_new);
  broker_stop(&broker);
  return end();
}
