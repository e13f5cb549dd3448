/* Recalls and notices: which callback runs, when, on which thread, and what a change of a callback waits for. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>

#define PAGE 4096u
#define BUFFERS 40

/* A broker that may hold 8 fds, so it has to recall 40 allocations again and again. */
static struct broker broker;

struct owner {
  int fds[BUFFERS];
  atomic_int recalls, waits_refused, running, most_running, on_main;
  pthread_t main;
  fdbroker_t *context;
};

static fdbroker_code_t recall(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  struct owner *owner = user;
  int running = ++owner->running;
  if (running > owner->most_running) owner->most_running = running;
  owner->on_main += pthread_equal(pthread_self(), owner->main) != 0;
  owner->recalls++;
  if (recall->struct_size < sizeof *recall || recall->size_bytes != PAGE || recall->owner_allocation_id >= BUFFERS) {
    owner->running--;
    return FDBROKER_INTERNAL;
  }
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_handle_t handle = {{0}};
  owner->waits_refused += fdbroker_acquire(owner->context, &handle, 0, &grant) == FDBROKER_NOT_SUPPORTED;
  owner->waits_refused += fdbroker_close(owner->context) == FDBROKER_NOT_SUPPORTED;
  owner->waits_refused += fdbroker_set_recall_callback(owner->context, NULL, NULL) == FDBROKER_NOT_SUPPORTED;
  answer->fd = dup(owner->fds[recall->owner_allocation_id]);
  owner->running--;
  return answer->fd >= 0 ? FDBROKER_OK : FDBROKER_LOCAL_FD_LIMIT;
}

static void own(struct owner *owner, fdbroker_t *context, fdbroker_handle_t handles[BUFFERS]) {
  fdbroker_allocation_t allocations[BUFFERS];
  memset(owner, 0, sizeof *owner);
  owner->main = pthread_self();
  owner->context = context;
  OK(fdbroker_set_recall_callback(context, recall, owner));
  for (int at = 0; at < BUFFERS; at++) {
    owner->fds[at] = sealed_memfd(PAGE, at);
    allocations[at] = memfd_allocation(PAGE);
    allocations[at].owner_allocation_id = (uint64_t)at;
    allocations[at].base = 0x40000000u + (uint64_t)at * PAGE;
    allocations[at].flags = FDBROKER_RECALLABLE;
  }
  OK(fdbroker_register_many(context, BUFFERS, allocations, owner->fds, SOON, handles, NULL));
}

static void disown(struct owner *owner, fdbroker_handle_t handles[BUFFERS]) {
  for (int at = 0; at < BUFFERS; at++) {
    OK(fdbroker_unregister(owner->context, &handles[at]));
    close(owner->fds[at]);
  }
}

static void check_bytes(fdbroker_t *context, const fdbroker_handle_t *handle, int fill) {
  fdbroker_import_t import;
  OK(fdbroker_import(context, handle, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(import.ptr != NULL && all_bytes_are(import.ptr, fill, PAGE));
  OK(fdbroker_import_release(context, &import));
}

static void under_a_small_cap_recalls_bring_every_buffer_again(void) {
  fdbroker_t *context = open_at(&broker), *consumer = open_at(&broker);
  fdbroker_handle_t handles[BUFFERS];
  struct owner owner;
  own(&owner, context, handles);
  for (int round = 0; round < 3; round++) {
    for (int at = 0; at < BUFFERS; at++) check_bytes(consumer, &handles[at], at);
    OK(fdbroker_empty_cache(consumer, NULL));
  }
  CHECK(owner.recalls >= BUFFERS && owner.most_running == 1 && owner.on_main == 0);
  CHECK(owner.waits_refused == 3 * owner.recalls);
  CHECK(ledger(&broker, "held_fds") <= 8);
  disown(&owner, handles);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

static void in_dispatch_mode_a_call_that_waits_serves_its_own_recalls(void) {
  fdbroker_t *context = open_with(&broker, FDBROKER_OPEN_DISPATCH);
  fdbroker_handle_t handles[BUFFERS];
  struct owner owner;
  own(&owner, context, handles);
  for (int at = 0; at < BUFFERS; at++) check_bytes(context, &handles[at], at);
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(owner.recalls >= BUFFERS / 2 && owner.on_main == owner.recalls);
  CHECK(owner.waits_refused == 3 * owner.recalls);
  disown(&owner, handles);
  OK(fdbroker_close(context));
}

static fdbroker_code_t refuse(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  (void)recall;
  (*(atomic_int *)user)++;
  answer->fd = 987; /* not open */
  return FDBROKER_OK;
}

static void without_a_callback_or_with_a_bad_fd_the_owner_is_silent_and_lives(void) {
  fdbroker_t *context = open_at(&broker), *consumer = open_at(&broker);
  fdbroker_handle_t handles[BUFFERS];
  struct owner owner;
  fdbroker_import_t import;
  own(&owner, context, handles);
  OK(fdbroker_set_recall_callback(context, NULL, NULL));
  int failed = 0;
  for (int at = 0; at < BUFFERS; at++) {
    fdbroker_code_t code = fdbroker_import(consumer, &handles[at], FDBROKER_IMPORT_READ, 2000, &import);
    if (code == FDBROKER_OK) {
      OK(fdbroker_import_release(consumer, &import));
    } else {
      CHECK(code == FDBROKER_OWNER_SILENT && all_bytes_are(&import, 0, sizeof import));
      failed++;
      break;
    }
  }
  CHECK(failed == 1);
  atomic_int asked = 0;
  OK(fdbroker_set_recall_callback(context, refuse, &asked));
  for (int at = 0; at < BUFFERS && asked == 0; at++) {
    if (fdbroker_import(consumer, &handles[at], FDBROKER_IMPORT_READ, 2000, &import) == FDBROKER_OK)
      OK(fdbroker_import_release(consumer, &import));
  }
  CHECK(asked > 0 && fdbroker_is_connected(context) == 1);
  OK(fdbroker_set_recall_callback(context, recall, &owner));
  for (int at = 0; at < BUFFERS; at++) check_bytes(consumer, &handles[at], at);
  disown(&owner, handles);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

struct told {
  fdbroker_t *context;
  pthread_t thread;
  int drained, on_thread, waited;
};

/* A notice callback that makes a call that waits. */
static void wait_and_count(void *user, const fdbroker_notice_t *notice) {
  struct told *told = user;
  if (notice->kind != FDBROKER_NOTICE_DRAINED) return;
  told->drained++;
  told->on_thread += pthread_equal(pthread_self(), told->thread) != 0;
  told->waited += fdbroker_flush(told->context, SOON) == FDBROKER_OK;
}

struct heard {
  atomic_int revoked, drained, reclaim;
  atomic_ulong lease, base, id;
  atomic_int code, inside, gate;
};

static void hear(void *user, const fdbroker_notice_t *notice) {
  struct heard *heard = user;
  heard->inside = 1;
  while (heard->gate == 1) nap_ms(1);
  switch (notice->kind) {
    case FDBROKER_NOTICE_REVOKED:
      heard->lease = notice->lease;
      heard->code = notice->code;
      heard->revoked++;
      break;
    case FDBROKER_NOTICE_DRAINED:
      heard->base = notice->base;
      heard->id = notice->owner_allocation_id;
      heard->drained++;
      break;
    case FDBROKER_NOTICE_RECLAIM: heard->reclaim++; break;
    default: break;
  }
  heard->inside = 0;
}

static void an_end_is_told_to_the_holder_and_then_to_the_owner(void) {
  fdbroker_t *context = open_at(&broker), *consumer = open_at(&broker);
  struct heard owner = {0}, holder = {0};
  OK(fdbroker_set_notice_callback(context, hear, &owner));
  OK(fdbroker_set_notice_callback(consumer, hear, &holder));
  int fd = sealed_memfd(PAGE, 1);
  fdbroker_handle_t handle;
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  allocation.base = 0x7000;
  allocation.owner_allocation_id = 42;
  OK(fdbroker_register(context, &allocation, fd, SOON, &handle));
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_acquire(consumer, &handle, SOON, &grant));
  CHECK(fdbroker_lease_is_current(consumer, grant.lease) == 1);
  int32_t drained = 1;
  OK(fdbroker_unregister_drained(context, &handle, &drained));
  CHECK(drained == 0);
  EVENTUALLY(holder.revoked == 1);
  CHECK(holder.lease == grant.lease && holder.code == FDBROKER_STALE);
  CHECK(fdbroker_lease_is_current(consumer, grant.lease) == 0 && owner.drained == 0);
  close(grant.fd);
  OK(fdbroker_release(consumer, grant.lease));
  EVENTUALLY(owner.drained == 1);
  CHECK(owner.base == 0x7000 && owner.id == 42);
  close(fd);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

static void a_retire_waits_for_the_last_holder_and_the_memory_stays(void) {
  fdbroker_t *context = open_at(&broker), *consumer = open_at(&broker);
  struct heard holder = {0};
  OK(fdbroker_set_notice_callback(consumer, hear, &holder));
  void *memory;
  fdbroker_handle_t handle;
  fdbroker_import_t import, again;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  OK(fdbroker_import(consumer, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  CODE(FDBROKER_TIMED_OUT, fdbroker_retire(context, &handle, 20));
  CHECK(strstr(fdbroker_last_error(), "fdbroker holders"));
  EVENTUALLY(holder.revoked == 1);
  CODE(FDBROKER_STALE, fdbroker_import(consumer, &handle, FDBROKER_IMPORT_READ, SOON, &again));
  OK(fdbroker_import_release(consumer, &import));
  OK(fdbroker_retire(context, &handle, SOON));
  memset(memory, 1, PAGE);
  OK(fdbroker_host_free(context, memory));
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

struct setter {
  fdbroker_t *context;
  struct heard *heard;
  atomic_int has_set;
};

static void *set_none(void *user) {
  struct setter *setter = user;
  OK(fdbroker_set_notice_callback(setter->context, NULL, NULL));
  CHECK(setter->heard->inside == 0);
  setter->has_set = 1;
  return NULL;
}

static void changing_a_callback_waits_for_the_one_that_runs(void) {
  fdbroker_t *context = open_at(&broker);
  struct heard heard = {.gate = 1};
  OK(fdbroker_set_notice_callback(context, hear, &heard));
  int fd = sealed_memfd(PAGE, 1);
  fdbroker_handle_t handle;
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_register(context, &allocation, fd, SOON, &handle));
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  OK(fdbroker_unregister(context, &handle));
  EVENTUALLY(heard.inside == 1);
  struct setter setter = {.context = context, .heard = &heard};
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, set_none, &setter) == 0);
  nap_ms(50);
  CHECK(setter.has_set == 0);
  heard.gate = 0;
  MUST(pthread_join(thread, NULL) == 0);
  CHECK(setter.has_set == 1);
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  close(fd);
  OK(fdbroker_close(context));
}

static atomic_int stop;

static void *change_all_the_time(void *user) {
  struct owner *owner = user;
  while (!stop) {
    /* The recall fails while no callback is set; the library asks again within the deadline. */
    OK(fdbroker_set_recall_callback(owner->context, recall, owner));
    OK(fdbroker_set_notice_callback(owner->context, NULL, NULL));
  }
  return NULL;
}

static void callbacks_changed_all_the_time_then_no_recall_is_lost(void) {
  fdbroker_t *context = open_at(&broker), *consumer = open_at(&broker);
  fdbroker_handle_t handles[BUFFERS];
  struct owner owner;
  own(&owner, context, handles);
  pthread_t thread;
  stop = 0;
  MUST(pthread_create(&thread, NULL, change_all_the_time, &owner) == 0);
  for (int round = 0; round < 2; round++) {
    for (int at = 0; at < BUFFERS; at++) check_bytes(consumer, &handles[at], at);
    OK(fdbroker_empty_cache(consumer, NULL));
  }
  stop = 1;
  MUST(pthread_join(thread, NULL) == 0);
  CHECK(owner.recalls > 0);
  disown(&owner, handles);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

static void with_a_recall_thread_notices_wait_for_dispatch_and_recalls_do_not(void) {
  fdbroker_options_t options;
  fdbroker_t *context = NULL, *consumer = open_at(&broker);
  fdbroker_handle_t handles[BUFFERS];
  struct owner owner;
  struct told told = {.thread = pthread_self()};
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.flags = FDBROKER_OPEN_RECALL_THREAD | FDBROKER_OPEN_DISPATCH;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  context = open_with(&broker, FDBROKER_OPEN_RECALL_THREAD);
  struct pollfd ready = {.fd = fdbroker_event_fd(context), .events = POLLIN};
  CHECK(ready.fd >= 0);
  told.context = context;
  own(&owner, context, handles);
  OK(fdbroker_set_notice_callback(context, wait_and_count, &told));
  /* Recalls are answered while this thread makes no call of the owner's context. */
  for (int at = 0; at < BUFFERS; at++) check_bytes(consumer, &handles[at], at);
  CHECK(owner.recalls >= BUFFERS / 2 && owner.on_main == 0);
  OK(fdbroker_empty_cache(consumer, NULL));
  OK(fdbroker_dispatch(context, 0));
  CHECK(told.drained == 0 && poll(&ready, 1, 0) == 0);
  OK(fdbroker_acquire(consumer, &handles[0], SOON, &grant));
  int32_t drained = 1;
  OK(fdbroker_unregister_drained(context, &handles[0], &drained));
  CHECK(drained == 0);
  close(grant.fd);
  OK(fdbroker_release(consumer, grant.lease));
  CHECK(poll(&ready, 1, (int)SOON) == 1 && told.drained == 0);
  OK(fdbroker_dispatch(context, SOON));
  CHECK(told.drained == 1 && told.on_thread == 1 && told.waited == 1 && poll(&ready, 1, 0) == 0);
  CODE(FDBROKER_STALE, fdbroker_unregister(context, &handles[0]));
  for (int at = 1; at < BUFFERS; at++) OK(fdbroker_unregister(context, &handles[at]));
  for (int at = 0; at < BUFFERS; at++) close(owner.fds[at]);
  OK(fdbroker_close(consumer));
  OK(fdbroker_close(context));
}

int main(void) {
  begin();
  broker_start(&broker, "caps.node.held_fds=8");
  RUN(under_a_small_cap_recalls_bring_every_buffer_again);
  RUN(in_dispatch_mode_a_call_that_waits_serves_its_own_recalls);
  RUN(without_a_callback_or_with_a_bad_fd_the_owner_is_silent_and_lives);
  RUN(an_end_is_told_to_the_holder_and_then_to_the_owner);
  RUN(a_retire_waits_for_the_last_holder_and_the_memory_stays);
  RUN(changing_a_callback_waits_for_the_one_that_runs);
  RUN(callbacks_changed_all_the_time_then_no_recall_is_lost);
  RUN(with_a_recall_thread_notices_wait_for_dispatch_and_recalls_do_not);
  broker_stop(&broker);
  return end();
}
