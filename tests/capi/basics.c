/* Errors, arguments, sizes of structs, and handles without a broker's answer. */
#define _GNU_SOURCE
#include "check.h"

static struct broker broker;

static void versions_are_told(void) {
  CHECK(strcmp(fdbroker_version(), "0.1.0") == 0);
  CHECK(fdbroker_abi_version() == 0);
}

static void every_code_has_a_name_and_a_text(void) {
  static const int codes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};
  for (size_t at = 0; at < sizeof codes / sizeof *codes; at++) {
    CHECK(strcmp(fdbroker_error_name(codes[at]), "UNKNOWN") != 0);
    CHECK(strlen(fdbroker_strerror(codes[at])) >= 4);
    for (size_t other = 0; other < at; other++) {
      CHECK(strcmp(fdbroker_error_name(codes[at]), fdbroker_error_name(codes[other])) != 0);
    }
  }
  CHECK(strcmp(fdbroker_error_name(FDBROKER_NO_QUOTA), "NO_QUOTA") == 0);
  CHECK(strcmp(fdbroker_error_name(12345), "UNKNOWN") == 0);
  CHECK(strstr(fdbroker_strerror(-1), "does not know") != NULL);
}

static void broker_absent_is_not_connected_at_once(void) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = "/nonexistent/broker.sock";
  fdbroker_t *context = (fdbroker_t *)&options;
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_open(&options, &context));
  CHECK(context == NULL);
  CHECK(strstr(fdbroker_last_error(), "/nonexistent/broker.sock") != NULL);
}

#define ARGUMENT(call) CODE(FDBROKER_INVALID_ARGUMENT, call)

static void null_arguments_are_refused(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handle = {{0}};
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_allocation_t allocation = memfd_allocation(4096);
  fdbroker_import_t import = {0};
  fdbroker_handle_t two_handles[2];
  fdbroker_import_t two_imports[2];
  fdbroker_request_t *request = NULL;
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  fdbroker_stats_t stats = {.struct_size = sizeof stats};
  uint64_t lease = 1;
  int32_t drained = 7;
  memset(two_handles, 1, sizeof two_handles);
  memset(two_imports, 1, sizeof two_imports);
  void *memory = &handle;
  fdbroker_code_t codes[2] = {0, 0};

  ARGUMENT(fdbroker_open(NULL, NULL));
  OK(fdbroker_close(NULL));
  CHECK(fdbroker_is_connected(NULL) == 0);
  CHECK(strcmp(fdbroker_socket(NULL), "") == 0);
  ARGUMENT(fdbroker_register(NULL, &allocation, 0, 0, &handle));
  ARGUMENT(fdbroker_register(context, NULL, 0, 0, &handle));
  ARGUMENT(fdbroker_register(context, &allocation, 0, 0, NULL));
  ARGUMENT(fdbroker_register(context, &allocation, -1, 0, &handle));
  ARGUMENT(fdbroker_register(context, &allocation, 999, 0, &handle));
  ARGUMENT(fdbroker_register_many(context, 2, &allocation, NULL, 0, two_handles, NULL));
  CHECK(all_bytes_are(two_handles, 0, sizeof two_handles));
  ARGUMENT(fdbroker_unregister(context, NULL));
  ARGUMENT(fdbroker_unregister(NULL, &handle));
  ARGUMENT(fdbroker_unregister_drained(context, &handle, NULL));
  ARGUMENT(fdbroker_unregister_drained(context, NULL, &drained));
  CHECK(drained == 0);
  ARGUMENT(fdbroker_get_handle(NULL, memory, 0, 0, &handle));
  ARGUMENT(fdbroker_get_handle(context, memory, 0, 0, NULL));
  ARGUMENT(fdbroker_acquire(NULL, &handle, 0, &grant));
  CHECK(grant.fd == -1 && grant.lease == 0 && grant.struct_size == sizeof grant);
  ARGUMENT(fdbroker_acquire(context, NULL, 0, &grant));
  ARGUMENT(fdbroker_acquire(context, &handle, 0, NULL));
  ARGUMENT(fdbroker_acquire_many(context, 2, &handle, 0, NULL, codes));
  CHECK(codes[0] == FDBROKER_INVALID_ARGUMENT && codes[1] == FDBROKER_INVALID_ARGUMENT);
  ARGUMENT(fdbroker_acquire_many(context, SIZE_MAX, &handle, 0, &grant, NULL));
  ARGUMENT(fdbroker_lease_mapped(NULL, lease));
  CHECK(fdbroker_lease_is_current(NULL, lease) == 0);
  ARGUMENT(fdbroker_release(NULL, lease));
  ARGUMENT(fdbroker_release_many(context, 1, NULL));
  ARGUMENT(fdbroker_acquire_start(NULL, 1, &handle, 0, &request));
  ARGUMENT(fdbroker_acquire_start(context, 1, &handle, 0, NULL));
  ARGUMENT(fdbroker_acquire_start(context, 1, NULL, 0, &request));
  ARGUMENT(fdbroker_request_test(NULL, &grant, NULL));
  OK(fdbroker_request_cancel(NULL));
  ARGUMENT(fdbroker_import(NULL, &handle, 0, 0, &import));
  ARGUMENT(fdbroker_import(context, NULL, 0, 0, &import));
  ARGUMENT(fdbroker_import(context, &handle, 0, 0, NULL));
  ARGUMENT(fdbroker_import(context, &handle, 77, 0, &import));
  ARGUMENT(fdbroker_import_hit(NULL, &handle, 0, &import));
  ARGUMENT(fdbroker_import_hit(context, NULL, 0, &import));
  ARGUMENT(fdbroker_import_hit(context, &handle, 0, NULL));
  ARGUMENT(fdbroker_import_hit(context, &handle, 77, &import));
  ARGUMENT(fdbroker_import_many(context, 2, NULL, 0, 0, two_imports, NULL));
  CHECK(all_bytes_are(two_imports, 0, sizeof two_imports));
  CHECK(fdbroker_import_is_current(NULL, &import) == 0 && fdbroker_import_is_current(context, NULL) == 0);
  ARGUMENT(fdbroker_import_release(NULL, &import));
  ARGUMENT(fdbroker_import_release(context, NULL));
  ARGUMENT(fdbroker_empty_cache(NULL, NULL));
  OK(fdbroker_empty_cache(context, NULL));
  ARGUMENT(fdbroker_stats(NULL, &stats));
  ARGUMENT(fdbroker_stats(context, NULL));
  ARGUMENT(fdbroker_host_alloc(NULL, 0, 1, 0, &memory, &handle));
  CHECK(memory == NULL);
  ARGUMENT(fdbroker_host_alloc(context, 0, 1, 0, NULL, &handle));
  ARGUMENT(fdbroker_host_alloc(context, 0, 0, 0, &memory, &handle));
  ARGUMENT(fdbroker_host_alloc(context, 77, 1, 0, &memory, &handle));
  ARGUMENT(fdbroker_host_free(NULL, memory));
  ARGUMENT(fdbroker_host_free(context, NULL));
  ARGUMENT(fdbroker_set_recall_callback(NULL, NULL, NULL));
  ARGUMENT(fdbroker_set_notice_callback(NULL, NULL, NULL));
  CHECK(fdbroker_event_fd(NULL) == -1 && fdbroker_event_fd(context) == -1);
  ARGUMENT(fdbroker_dispatch(NULL, 0));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_dispatch(context, 0));
  ARGUMENT(fdbroker_handle_parse(NULL, &info));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_handle_parse(&handle, &info));

  OK(fdbroker_acquire_many(context, 0, NULL, 0, NULL, NULL));
  OK(fdbroker_import_many(context, 0, NULL, 0, 0, NULL, NULL));
  OK(fdbroker_register_many(context, 0, NULL, NULL, 0, NULL, NULL));
  OK(fdbroker_release_many(context, 0, NULL));
  OK(fdbroker_close(context));
}

static void values_that_cannot_be_are_refused_one_by_one(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_allocation_t wanted[7];
  fdbroker_handle_t handles[7];
  fdbroker_code_t codes[7];
  int fds[7];
  int fd = sealed_memfd(4096, 1);
  for (int at = 0; at < 7; at++) {
    wanted[at] = memfd_allocation(4096);
    fds[at] = fd;
  }
  wanted[0].kind = 9;
  wanted[1].share = 9;
  wanted[2].flags = 1u << 30;
  wanted[3].size_bytes = 0;
  wanted[4].driver_data_len = 65;
  wanted[5].base = ~(uint64_t)4000; /* it would end behind the last address */
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_register_many(context, 7, wanted, fds, SOON, handles, codes));
  for (int at = 0; at < 6; at++) {
    CHECK(codes[at] == FDBROKER_INVALID_ARGUMENT && all_bytes_are(&handles[at], 0, 64));
  }
  CHECK(codes[6] == FDBROKER_OK);
  OK(fdbroker_unregister(context, &handles[6]));

  int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
  MUST(ftruncate(unsealed, 4096) == 0);
  CODE(FDBROKER_UNSUPPORTED_FD, fdbroker_register(context, &wanted[6], unsealed, SOON, &handles[0]));
  CHECK(strstr(fdbroker_last_error(), "F_SEAL_SHRINK") != NULL);
  close(unsealed);
  close(fd);
  OK(fdbroker_close(context));
}

/* A struct of a later release: all fields of this one, and one more. */
struct later_options {
  fdbroker_options_t known;
  uint64_t unknown;
};

static void options_are_set_as_far_as_the_program_knows_them(void) {
  struct later_options later;
  fdbroker_options_t *options = &later.known;
  memset(&later, 0x55, sizeof later);
  /* A later header's macro passes its size; a function pointer has that of the first release. */
  fdbroker_options_init_sized(options, sizeof later);
  CHECK(options->struct_size == sizeof later && options->max_held_fds == FDBROKER_DEFAULT && later.unknown == 0);
  memset(&later, 0x55, sizeof later);
  void (*init)(fdbroker_options_t *) = fdbroker_options_init;
  init(options);
  CHECK(options->struct_size <= sizeof *options && options->cache_strict == -1 && later.unknown != 0);
  fdbroker_options_init(options);
  CHECK(options->struct_size == sizeof *options && later.unknown != 0);
  fdbroker_options_init(NULL);
}

static void options_of_other_releases_are_understood(void) {
  fdbroker_t *context = NULL;
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  CHECK(options.struct_size == sizeof options && options.cache_max_entries == FDBROKER_DEFAULT);
  options.socket = broker.socket;
  options.cache_max_entries = 7;
  /* An older struct ends before the cache's settings: they get their defaults. */
  options.struct_size = offsetof(fdbroker_options_t, cache_max_entries);
  OK(fdbroker_open(&options, &context));
  CHECK(context != NULL && stats_of(context).max_entries != 7);
  OK(fdbroker_close(context));

  struct later_options later = {.known = options, .unknown = 0};
  later.known.struct_size = sizeof later;
  OK(fdbroker_open(&later.known, &context));
  CHECK(context != NULL && stats_of(context).max_entries == 7);
  OK(fdbroker_close(context));
  later.unknown = 1;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&later.known, &context));
  CHECK(context == NULL && strstr(fdbroker_last_error(), "does not know") != NULL);

  static const uint64_t sizes[] = {0, 1, 7, 71, 1 << 20, UINT64_MAX};
  for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
    options.struct_size = sizes[at];
    CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  }
  options.struct_size = sizeof options;
  options.flags = 1u << 31;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  options.flags = 0;
  options.leave_pinned = 2;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  options.leave_pinned = 1;
  options.max_held_fds = -2;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  options.max_held_fds = 0;
  options.connect_timeout_ms = -2;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
  options.connect_timeout_ms = 0;
  options.cache_strict = -2;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_open(&options, &context));
}

static void outputs_of_other_releases_are_not_overrun(void) {
  fdbroker_t *context = open_at(&broker);
  struct {
    fdbroker_stats_t known;
    uint64_t later, beyond;
  } stats;
  memset(&stats, 0xee, sizeof stats);
  stats.known.struct_size = offsetof(fdbroker_stats_t, misses);
  OK(fdbroker_stats(context, &stats.known));
  CHECK(stats.known.hits == 0 && all_bytes_are(&stats.known.misses, 0xee, 8));
  stats.known.struct_size = sizeof stats.known + 8;
  stats.later = 0;
  OK(fdbroker_stats(context, &stats.known));
  CHECK(stats.known.misses == 0 && stats.later == 0 && all_bytes_are(&stats.beyond, 0xee, 8));
  stats.known.struct_size = 8;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_stats(context, &stats.known));

  /* An array of an older release: the library goes by the array's stride, not its own. */
  struct old_grant {
    uint64_t struct_size;
    int32_t fd;
    uint32_t kind;
    uint64_t lease, beyond[2];
  } grants[3];
  memset(grants, 0xee, sizeof grants);
  grants[0].struct_size = sizeof(struct old_grant);
  fdbroker_handle_t handles[3] = {{{0}}};
  fdbroker_code_t codes[3] = {0};
  int fd = sealed_memfd(4096, 5);
  fdbroker_allocation_t allocation = memfd_allocation(4096);
  OK(fdbroker_register(context, &allocation, fd, SOON, &handles[1]));
  CODE(FDBROKER_BAD_HANDLE,
       fdbroker_acquire_many(context, 3, handles, SOON, (fdbroker_grant_t *)grants, codes));
  CHECK(grants[0].fd == -1 && grants[0].lease == 0 && codes[0] == FDBROKER_BAD_HANDLE);
  CHECK(grants[1].fd >= 0 && grants[1].lease != 0 && codes[1] == FDBROKER_OK);
  CHECK(grants[1].struct_size == sizeof(struct old_grant) && grants[1].beyond[0] == 4096);
  CHECK(grants[2].fd == -1 && codes[2] == FDBROKER_BAD_HANDLE);
  close(grants[1].fd);
  OK(fdbroker_release(context, grants[1].lease));
  close(fd);
  OK(fdbroker_close(context));
}

static void a_handle_says_what_it_is(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_handle_t handle;
  fdbroker_handle_info_t info = {.struct_size = sizeof info};
  fdbroker_allocation_t allocation = memfd_allocation(8192);
  allocation.owner_allocation_id = 99;
  allocation.base = 1 << 20;
  allocation.device = 3;
  int fd = sealed_memfd(8192, 1);
  OK(fdbroker_register(context, &allocation, fd, SOON, &handle));
  fdbroker_handle_t first = handle, again, none = {{0}};
  OK(fdbroker_get_handle(context, (void *)((1 << 20) + 100), 3, SOON, &handle));
  CHECK(memcmp(&first, &handle, sizeof first) != 0 && fdbroker_handle_same(&first, &handle) == 1);
  CHECK(fdbroker_handle_same(&none, &none) == 0 && fdbroker_handle_same(&none, &first) == 0);
  CHECK(fdbroker_handle_same(NULL, &first) == 0 && fdbroker_handle_same(&first, NULL) == 0);
  allocation.base = 1 << 21;
  OK(fdbroker_register(context, &allocation, fd, SOON, &again));
  CHECK(fdbroker_handle_same(&first, &again) == 0);
  OK(fdbroker_handle_parse(&handle, &info));
  CHECK(info.version == 1 && info.kind == FDBROKER_KIND_MEMFD && info.node != 0 && info.generation != 0);
  CHECK(info.size_bytes == 8192 && info.offset_bytes == 100 && info.owner_allocation_id == 99);
  CHECK(info.device == 3);
  handle.bytes[0] ^= 1;
  CODE(FDBROKER_BAD_HANDLE, fdbroker_handle_parse(&handle, &info));
  close(fd);
  OK(fdbroker_close(context));
}

static void *fail_here(void *context) {
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release(context, 4711));
  CHECK(strstr(fdbroker_last_error(), "4711") != NULL);
  return NULL;
}

static void last_error_is_each_threads_own(void) {
  fdbroker_t *context = open_at(&broker);
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release(context, 1234));
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, fail_here, context) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(strstr(fdbroker_last_error(), "1234") != NULL);
  OK(fdbroker_close(context));
}

static void settings_come_from_the_environment_unless_set(void) {
  fdbroker_t *context;
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  setenv("FDBROKER_CACHE_MAX_ENTRIES", "11", 1);
  setenv("FDBROKER_SOCKET", broker.socket, 1);
  OK(fdbroker_open(NULL, &context));
  CHECK(stats_of(context).max_entries == 11);
  CHECK(strcmp(fdbroker_socket(context), broker.socket) == 0);
  OK(fdbroker_close(context));
  options.cache_max_entries = 12;
  OK(fdbroker_open(&options, &context));
  CHECK(stats_of(context).max_entries == 12);
  OK(fdbroker_close(context));
  setenv("FDBROKER_CACHE_MAX_ENTRIES", "many", 1);
  CHECK(fdbroker_open(NULL, &context) != FDBROKER_OK && context == NULL);
  CHECK(strstr(fdbroker_last_error(), "FDBROKER_CACHE_MAX_ENTRIES=many") != NULL);
  unsetenv("FDBROKER_CACHE_MAX_ENTRIES");
  setenv("FDBROKER_MAX_HELD", "few", 1);
  CHECK(fdbroker_open(NULL, &context) != FDBROKER_OK && context == NULL);
  CHECK(strstr(fdbroker_last_error(), "FDBROKER_MAX_HELD=few") != NULL);
  CHECK(strstr(fdbroker_last_error(), "absent here") == NULL);
  unsetenv("FDBROKER_MAX_HELD");
  setenv("FDBROKER_START", "soon", 1);
  CHECK(fdbroker_open(NULL, &context) != FDBROKER_OK && context == NULL);
  CHECK(strstr(fdbroker_last_error(), "FDBROKER_START=soon") != NULL);
  // One that is named is never started: it is waited for.
  setenv("FDBROKER_START", "1", 1);
  OK(fdbroker_open(NULL, &context));
  OK(fdbroker_close(context));
  setenv("FDBROKER_SOCKET", "/nowhere/broker.sock", 1);
  options.connect_timeout_ms = 100;
  CHECK(fdbroker_open(&options, &context) == FDBROKER_NOT_CONNECTED);
  unsetenv("FDBROKER_START");
  options.flags = FDBROKER_OPEN_START;
  CHECK(fdbroker_open(&options, &context) == FDBROKER_NOT_CONNECTED);
  unsetenv("FDBROKER_SOCKET");
}

int main(void) {
  begin();
  RUN(versions_are_told);
  RUN(every_code_has_a_name_and_a_text);
  RUN(broker_absent_is_not_connected_at_once);
  broker_start(&broker, NULL);
  RUN(null_arguments_are_refused);
  RUN(values_that_cannot_be_are_refused_one_by_one);
  RUN(options_are_set_as_far_as_the_program_knows_them);
  RUN(options_of_other_releases_are_understood);
  RUN(outputs_of_other_releases_are_not_overrun);
  RUN(a_handle_says_what_it_is);
  RUN(last_error_is_each_threads_own);
  RUN(settings_come_from_the_environment_unless_set);
  broker_stop(&broker);
  return end();
}
