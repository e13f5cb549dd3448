/* Sharing memory between processes: one, many at once, and releases that count exactly once. */
#define _GNU_SOURCE
#include "check.h"

#define MANY 300
#define PAGE 4096u

static struct broker broker;

/* The consumer process: it reads the handles from a pipe, by value. */
static int consume(int from) {
  fdbroker_handle_t handles[2];
  MUST(reads_all(from, handles, sizeof handles));
  fdbroker_t *context = open_at(&broker);
  fdbroker_import_t import;
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_WRITE, SOON, &import));
  CHECK(import.size_bytes == 3 * PAGE - 100 && all_bytes_are(import.ptr, 'a', import.size_bytes));
  CHECK(fdbroker_import_is_current(context, &import) == 1);
  memset(import.ptr, 'b', import.size_bytes);
  OK(fdbroker_import_release(context, &import));
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_acquire(context, &handles[1], SOON, &grant));
  CHECK(grant.size_bytes == PAGE && grant.kind == FDBROKER_KIND_MEMFD && grant.driver_data_len == 3);
  CHECK(memcmp(grant.driver_data, "xyz", 3) == 0 && (fcntl(grant.fd, F_GETFD) & FD_CLOEXEC) != 0);
  void *memory = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, grant.fd, (off_t)grant.fd_offset);
  CHECK(memory != MAP_FAILED && all_bytes_are(memory, 'c', PAGE));
  close(grant.fd);
  OK(fdbroker_lease_mapped(context, grant.lease));
  CHECK(fdbroker_lease_is_current(context, grant.lease) == 1);
  munmap(memory, PAGE);
  OK(fdbroker_release(context, grant.lease));
  OK(fdbroker_close(context));
  return bad_checks != 0;
}

static void handles_by_value_bring_the_memory_to_another_process(void) {
  int way[2];
  MUST(pipe2(way, O_CLOEXEC) == 0);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(consume(way[0]));
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handles[2];
  void *memory;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, 3 * PAGE, SOON, &memory, NULL));
  memset(memory, 'a', 3 * PAGE);
  OK(fdbroker_get_handle(context, (char *)memory + 100, 0, SOON, &handles[0]));
  int fd = sealed_memfd(PAGE, 'c');
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  allocation.driver_data = "xyz";
  allocation.driver_data_len = 3;
  OK(fdbroker_register(context, &allocation, fd, SOON, &handles[1]));
  close(fd);
  MUST(writes_all(way[1], handles, sizeof handles));
  CHECK(status_of(child) == 0);
  CHECK(all_bytes_are(memory, 'a', 100) && all_bytes_are((char *)memory + 100, 'b', 3 * PAGE - 100));
  OK(fdbroker_host_free(context, memory));
  OK(fdbroker_close(context));
  close(way[0]);
  close(way[1]);
}

/* Registers MANY allocations of one page each, page i filled with i; ends every tenth again. */
static int register_with_stale(fdbroker_t *context, fdbroker_handle_t handles[MANY]) {
  static fdbroker_allocation_t allocations[MANY];
  static int fds[MANY];
  static fdbroker_code_t codes[MANY];
  int fd = sealed_memfd(MANY * PAGE, 0);
  unsigned char *pages = mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(pages != MAP_FAILED);
  for (int at = 0; at < MANY; at++) {
    memset(pages + at * PAGE, at, PAGE);
    allocations[at] = memfd_allocation(PAGE);
    allocations[at].fd_offset = (uint64_t)at * PAGE;
    fds[at] = fd;
  }
  munmap(pages, MANY * PAGE);
  OK(fdbroker_register_many(context, MANY, allocations, fds, SOON, handles, codes));
  CHECK(all_bytes_are(codes, 0, sizeof codes));
  for (int at = 0; at < MANY; at += 10) OK(fdbroker_unregister(context, &handles[at]));
  CODE(FDBROKER_STALE, fdbroker_unregister(context, &handles[0]));
  return fd;
}

static void unregister_all(fdbroker_t *context, const fdbroker_handle_t handles[MANY], int fd) {
  int32_t drained;
  for (int at = 0; at < MANY; at++) {
    if (at % 10 == 0) continue;
    OK(fdbroker_unregister_drained(context, &handles[at], &drained));
    CHECK(drained == 1);
  }
  close(fd);
}

static void many_acquired_some_stale_then_each_has_its_answer(void) {
  static fdbroker_handle_t handles[MANY];
  static fdbroker_grant_t grants[MANY];
  static fdbroker_code_t codes[MANY];
  static uint64_t leases[MANY];
  fdbroker_t *owner = open_at(&broker), *context = open_at(&broker);
  int fd = register_with_stale(owner, handles);
  grants[0].struct_size = sizeof grants[0];
  int before = open_fds();
  CODE(FDBROKER_STALE, fdbroker_acquire_many(context, MANY, handles, SOON, grants, codes));
  size_t count = 0;
  for (int at = 0; at < MANY; at++) {
    if (at % 10 == 0) {
      CHECK(codes[at] == FDBROKER_STALE && grants[at].fd == -1 && grants[at].lease == 0);
      continue;
    }
    unsigned char byte = 0;
    CHECK(codes[at] == FDBROKER_OK && grants[at].fd_offset == (uint64_t)at * PAGE);
    CHECK(pread(grants[at].fd, &byte, 1, (off_t)grants[at].fd_offset) == 1 && byte == (unsigned char)at);
    close(grants[at].fd);
    leases[count++] = grants[at].lease;
  }
  CHECK(stats_of(context).leases == count && open_fds() == before);
  EVENTUALLY(ledger(&broker, "open_leases") == (long)count);
  leases[count++] = 987654;
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release_many(context, count, leases));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release_many(context, count, leases));
  CHECK(stats_of(context).leases == 0);
  EVENTUALLY(ledger(&broker, "open_leases") == 0);
  unregister_all(owner, handles, fd);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
}

static void many_imported_some_stale_then_each_has_its_bytes(void) {
  static fdbroker_handle_t handles[MANY];
  static fdbroker_import_t imports[MANY], twice[MANY];
  static fdbroker_code_t codes[MANY];
  fdbroker_t *owner = open_at(&broker), *context = open_at(&broker);
  int fd = register_with_stale(owner, handles);
  int before = open_fds();
  CODE(FDBROKER_STALE, fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, imports, codes));
  CHECK(open_fds() == before);
  for (int at = 0; at < MANY; at++) {
    if (at % 10 == 0) {
      CHECK(codes[at] == FDBROKER_STALE && all_bytes_are(&imports[at], 0, sizeof imports[at]));
    } else {
      CHECK(codes[at] == FDBROKER_OK && imports[at].size_bytes == PAGE);
      CHECK(all_bytes_are(imports[at].ptr, at, PAGE));
    }
  }
  fdbroker_stats_t stats = stats_of(context);
  CHECK(stats.pinned == MANY * 9 / 10 && stats.entries == stats.pinned);
  CODE(FDBROKER_STALE, fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, twice, NULL));
  CHECK(twice[1].ptr == imports[1].ptr && stats_of(context).hits >= MANY * 9 / 10);
  for (int at = 0; at < MANY; at++) {
    fdbroker_code_t expected = at % 10 == 0 ? FDBROKER_BAD_HANDLE : FDBROKER_OK;
    CODE(expected, fdbroker_import_release(context, &imports[at]));
    CODE(FDBROKER_BAD_HANDLE, fdbroker_import_release(context, &imports[at]));
    CODE(expected, fdbroker_import_release(context, &twice[at]));
  }
  CHECK(stats_of(context).pinned == 0);
  uint64_t closed = 0;
  OK(fdbroker_empty_cache(context, &closed));
  CHECK(closed == stats.entries && stats_of(context).entries == 0);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0 && ledger(&broker, "open_leases") == 0);
  unregister_all(owner, handles, fd);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
}

static void a_virtual_fd_leads_to_the_handle_while_the_allocation_lives(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t with, without, found, zero = {{0}};
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  int fd = sealed_memfd(PAGE, 'v');
  OK(fdbroker_register(context, &allocation, fd, SOON, &without));
  CHECK(fdbroker_handle_virtual_fd(&without) == -1 && fdbroker_handle_virtual_fd(NULL) == -1);
  allocation.flags = FDBROKER_VIRTUAL_FD;
  OK(fdbroker_register(context, &allocation, fd, SOON, &with));
  close(fd);
  int number = fdbroker_handle_virtual_fd(&with);
  CHECK(number >= 1 << 30);
  OK(fdbroker_resolve(context, number, SOON, &found));
  CHECK(fdbroker_handle_same(&found, &with) == 1);
  fdbroker_import_t import;
  OK(fdbroker_import(context, &found, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(all_bytes_are(import.ptr, 'v', PAGE));
  OK(fdbroker_import_release(context, &import));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_resolve(context, 7, SOON, &found));
  CHECK(memcmp(&found, &zero, sizeof zero) == 0);
  OK(fdbroker_unregister(context, &with));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_resolve(context, number, SOON, &found));
  CHECK(memcmp(&found, &zero, sizeof zero) == 0);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_resolve(context, number, SOON, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_resolve(NULL, number, SOON, &found));
  OK(fdbroker_close(context));
}

static void given_back_twice_is_an_error_and_changes_no_count(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handle;
  void *memory;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  fdbroker_stats_t before = stats_of(context);
  CHECK(before.host_bytes_used == PAGE && before.registrations == 1);

  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  close(grant.fd);
  OK(fdbroker_lease_mapped(context, grant.lease));
  OK(fdbroker_lease_mapped(context, grant.lease));
  OK(fdbroker_release(context, grant.lease));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release(context, grant.lease));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_lease_mapped(context, grant.lease));
  CHECK(fdbroker_lease_is_current(context, grant.lease) == 0);

  fdbroker_import_t one, two;
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &one));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &two));
  OK(fdbroker_import_release(context, &one));
  CHECK(one.ptr == NULL && one.pin == 0);
  CODE(FDBROKER_BAD_HANDLE, fdbroker_import_release(context, &one));
  CHECK(stats_of(context).pinned == 1 && fdbroker_import_is_current(context, &two) == 1);
  CHECK(fdbroker_import_is_current(context, &one) == 0);
  OK(fdbroker_import_release(context, &two));
  OK(fdbroker_import_hit(context, &handle, FDBROKER_IMPORT_READ, &one));
  CHECK(one.ptr != NULL && one.size_bytes == PAGE);
  OK(fdbroker_import_release(context, &one));
  CODE(FDBROKER_AGAIN, fdbroker_import_hit(context, &handle, FDBROKER_IMPORT_WRITE, &one));
  OK(fdbroker_empty_cache(context, NULL));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_import_release(context, &one));
  CODE(FDBROKER_AGAIN, fdbroker_import_hit(context, &handle, FDBROKER_IMPORT_READ, &one));
  CHECK(one.ptr == NULL && one.pin == 0 && strstr(fdbroker_last_error(), "this import is empty") != NULL);
  fdbroker_stats_t after = stats_of(context);
  CHECK(after.pinned == 0 && after.leases == 0 && after.host_bytes_used == before.host_bytes_used);

  OK(fdbroker_host_free(context, memory));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_host_free(context, memory));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_host_free(context, &handle));
  CHECK(stats_of(context).host_bytes_used == 0);
  EVENTUALLY(ledger(&broker, "allocations") == 0);
  CODE(FDBROKER_STALE, fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &one));
  CHECK(one.ptr == NULL);
  OK(fdbroker_close(context));
}

static void an_allocation_is_registered_once_however_many_pointers_are_asked(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t first, again, inside;
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  int fd = sealed_memfd(4 * PAGE, 1);
  fdbroker_allocation_t allocation = memfd_allocation(4 * PAGE);
  allocation.base = 0x10000000;
  allocation.owner_allocation_id = 5;
  OK(fdbroker_register(context, &allocation, fd, SOON, &first));
  for (int at = 0; at < 50; at++) {
    OK(fdbroker_register(context, &allocation, fd, SOON, &again));
    CHECK(memcmp(&first, &again, sizeof first) == 0);
    OK(fdbroker_get_handle(context, (char *)0x10000000 + at, 0, 0, &inside));
    OK(fdbroker_handle_parse(&inside, &info));
    CHECK(info.offset_bytes == (uint64_t)at);
  }
  CHECK(ledger(&broker, "allocations") == 1 && stats_of(context).registrations == 1);
  /* Another id means that the address was reused: the old handle ends at once. */
  allocation.owner_allocation_id = 6;
  OK(fdbroker_register(context, &allocation, fd, SOON, &again));
  CHECK(memcmp(&first, &again, sizeof first) != 0);
  fdbroker_import_t import;
  CODE(FDBROKER_STALE, fdbroker_import(context, &first, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import(context, &again, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_unregister(context, &again));
  CODE(FDBROKER_STALE, fdbroker_get_handle(context, (void *)0x10000000, 0, SOON, &again));
  CHECK(all_bytes_are(&again, 0, 64));
  close(fd);
  OK(fdbroker_close(context));
}

/* The handle of another broker may have the number of an allocation of this one. */
static void another_brokers_handle_ends_nothing_here(void) {
  struct broker first, second;
  broker_start(&first, NULL);
  broker_start(&second, NULL);
  fdbroker_t *contexts[2] = {open_at(&first), open_at(&second)};
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t handles[2];
  fdbroker_handle_info_t infos[2] = {{.struct_size = sizeof infos[0]}, {.struct_size = sizeof infos[0]}};
  fdbroker_import_t import;
  int fd = sealed_memfd(PAGE, 1);
  for (int at = 0; at < 2; at++) {
    OK(fdbroker_register(contexts[at], &allocation, fd, SOON, &handles[at]));
    OK(fdbroker_handle_parse(&handles[at], &infos[at]));
  }
  CHECK(infos[0].slot == infos[1].slot && infos[0].generation == infos[1].generation);
  CODE(FDBROKER_BAD_HANDLE, fdbroker_unregister(contexts[0], &handles[1]));
  OK(fdbroker_import(contexts[0], &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(contexts[0], &import));
  OK(fdbroker_unregister(contexts[0], &handles[0]));
  CODE(FDBROKER_STALE, fdbroker_unregister(contexts[0], &handles[0]));
  close(fd);
  for (int at = 0; at < 2; at++) OK(fdbroker_close(contexts[at]));
  broker_stop(&first);
  broker_stop(&second);
}

static void isolated_memory_is_shared_without_an_fd_here(void) {
  fdbroker_t *context = open_at(&broker);
  int before = open_fds();
  void *memory;
  fdbroker_handle_t handle;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, 5000, SOON, &memory, &handle));
  CHECK(open_fds() == before);
  memset(memory, 'i', 5000);
  fdbroker_import_t import;
  OK(fdbroker_get_handle(context, (char *)memory + 4999, 0, 0, &handle));
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(*(char *)import.ptr == 'i' && stats_of(context).host_bytes_used == 8192);
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_host_free(context, memory));
  fdbroker_code_t code = fdbroker_host_alloc(context, FDBROKER_HOST_DMA_HEAP, 4096, SOON, &memory, NULL);
  CHECK(code == FDBROKER_OK || (code == FDBROKER_NOT_SUPPORTED && memory == NULL));
  code = fdbroker_host_alloc(context, FDBROKER_HOST_UDMABUF, 4096, SOON, &memory, &handle);
  CHECK(code == FDBROKER_OK || (code == FDBROKER_NOT_SUPPORTED && memory == NULL));
  OK(fdbroker_close(context));
}

/* The strict mode of a full cache, by option or by environment, and an import that is not kept. */
static void a_strict_cache_refuses_what_does_not_fit(void) {
  fdbroker_t *owner = open_at(&broker), *context = NULL;
  fdbroker_handle_t handles[3];
  fdbroker_import_t imports[3];
  void *memory;
  for (int at = 0; at < 3; at++) {
    OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handles[at]));
    memset(memory, at, PAGE);
  }
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.cache_max_entries = 2;
  for (int by_environment = 0; by_environment < 2; by_environment++) {
    options.cache_strict = by_environment ? -1 : 1;
    if (by_environment) setenv("FDBROKER_CACHE_STRICT", "1", 1);
    OK(fdbroker_open(&options, &context));
    unsetenv("FDBROKER_CACHE_STRICT");
    for (int at = 0; at < 2; at++) OK(fdbroker_import(context, &handles[at], FDBROKER_IMPORT_READ, SOON, &imports[at]));
    CODE(FDBROKER_NO_QUOTA, fdbroker_import(context, &handles[2], FDBROKER_IMPORT_READ, SOON, &imports[2]));
    CHECK(imports[2].ptr == NULL && strstr(fdbroker_last_error(), "FDBROKER_CACHE_MAX_ENTRIES") != NULL);
    OK(fdbroker_import_release(context, &imports[0]));
    OK(fdbroker_import(context, &handles[2], FDBROKER_IMPORT_READ | FDBROKER_IMPORT_NO_CACHE, SOON, &imports[2]));
    CHECK(all_bytes_are(imports[2].ptr, 2, PAGE) && stats_of(context).entries == 2);
    OK(fdbroker_import_release(context, &imports[2]));
    CHECK(stats_of(context).entries == 1);
    OK(fdbroker_import_release(context, &imports[1]));
    CHECK(stats_of(context).entries == 1 && stats_of(context).pinned == 0);
    OK(fdbroker_close(context));
  }
  OK(fdbroker_close(owner));
}

/* A producer bounds how many of its fds the broker has, by option or by environment; its handles stay good. */
static void the_broker_holds_no_more_of_a_producer_than_it_wants(void) {
  enum { BUFFERS = 20, MOST = 4 };
  fdbroker_t *owner = NULL, *context = open_at(&broker);
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.arena_bytes = 16u << 20;
  for (int by_environment = 0; by_environment < 2; by_environment++) {
    fdbroker_handle_t handles[BUFFERS];
    void *memory[BUFFERS];
    options.max_held_fds = by_environment ? FDBROKER_DEFAULT : MOST;
    if (by_environment) setenv("FDBROKER_MAX_HELD", "4", 1);
    OK(fdbroker_open(&options, &owner));
    unsetenv("FDBROKER_MAX_HELD");
    for (int at = 0; at < BUFFERS; at++) {
      OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory[at], &handles[at]));
      memset(memory[at], at, PAGE);
      CHECK(ledger(&broker, "held_fds") <= MOST);
    }
    for (int at = 0; at < BUFFERS; at++) {
      fdbroker_import_t import;
      OK(fdbroker_import(context, &handles[at], FDBROKER_IMPORT_READ, SOON, &import));
      CHECK(import.ptr != NULL && all_bytes_are(import.ptr, at, PAGE));
      OK(fdbroker_import_release(context, &import));
      CHECK(ledger(&broker, "held_fds") <= MOST);
    }
    /* What cannot be recalled stays, and is refused beyond that. */
    fdbroker_code_t code = FDBROKER_OK;
    for (int at = 0; code == FDBROKER_OK && at < MOST + 1; at++) {
      fdbroker_handle_t isolated;
      void *kept;
      code = fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, PAGE, 2000, &kept, &isolated);
    }
    CHECK(code == FDBROKER_NO_QUOTA && strstr(fdbroker_last_error(), "raise FDBROKER_MAX_HELD") != NULL);
    CHECK(strstr(fdbroker_last_error(), "max_held_fds = 4") != NULL && strstr(fdbroker_last_error(), "the cap") == NULL);
    OK(fdbroker_close(owner));
  }
  OK(fdbroker_close(context));
  EVENTUALLY(ledger(&broker, "held_fds") == 0);
}

static void close_gives_everything_back(void) {
  fdbroker_t *owner = open_at(&broker), *context = open_at(&broker);
  fdbroker_handle_t handle;
  void *memory;
  fdbroker_import_t import;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ARENA, PAGE, SOON, &memory, &handle));
  for (int at = 0; at < 10; at++) {
    OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
    OK(fdbroker_acquire(context, &handle, SOON, &grant));
    close(grant.fd);
  }
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  EVENTUALLY(ledger(&broker, "open_leases") == 0 && ledger(&broker, "mapped_leases") == 0);
  EVENTUALLY(ledger(&broker, "allocations") == 0 && ledger(&broker, "fds") == 0);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(handles_by_value_bring_the_memory_to_another_process);
  RUN(many_acquired_some_stale_then_each_has_its_answer);
  RUN(many_imported_some_stale_then_each_has_its_bytes);
  RUN(a_virtual_fd_leads_to_the_handle_while_the_allocation_lives);
  RUN(given_back_twice_is_an_error_and_changes_no_count);
  RUN(an_allocation_is_registered_once_however_many_pointers_are_asked);
  RUN(another_brokers_handle_ends_nothing_here);
  RUN(isolated_memory_is_shared_without_an_fd_here);
  RUN(a_strict_cache_refuses_what_does_not_fit);
  RUN(the_broker_holds_no_more_of_a_producer_than_it_wants);
  RUN(close_gives_everything_back);
  broker_stop(&broker);
  return end();
}
