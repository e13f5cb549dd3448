/* What last_error says when a program is at fault, or a limit of its own is: the cause, and a remedy that helps. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAGE 4096u

static struct broker broker;

/* Whether the last error has the one text and not the other. */
#define SAYS(text, not_text) \
  do { \
    const char *said = fdbroker_last_error(); \
    if (!strstr(said, text) || strstr(said, not_text)) fprintf(stderr, "said: %s\n", said); \
    CHECK(strstr(said, text) && !strstr(said, not_text)); \
  } while (0)

static void what_is_given_back_twice_is_named_so(void) {
  fdbroker_t *context = open_at(&broker);
  void *host;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, &handle));
  OK(fdbroker_acquire(context, &handle, SOON, &grant));
  close(grant.fd);
  OK(fdbroker_release(context, grant.lease));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_release(context, grant.lease));
  SAYS("give each back once", "these bytes");
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(context, &import));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_import_release(context, &import));
  SAYS("give each back once", "these bytes");
  OK(fdbroker_host_free(context, host));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_host_free(context, host));
  SAYS("give each back once", "these bytes");
  OK(fdbroker_close(context));
}

static void a_virtual_fd_that_names_nothing_is_called_a_number(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t handle, found;
  int fd = sealed_memfd(PAGE, 'v');
  allocation.flags = FDBROKER_VIRTUAL_FD;
  OK(fdbroker_register(context, &allocation, fd, SOON, &handle));
  close(fd);
  OK(fdbroker_unregister(context, &handle));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_resolve(context, fdbroker_handle_virtual_fd(&handle), SOON, &found));
  SAYS("names no live allocation", "these bytes");
  OK(fdbroker_close(context));
}

static void memory_shared_for_reading_cannot_be_imported_for_writing(void) {
  fdbroker_t *context = open_at(&broker);
  char path[64];
  int fd = sealed_memfd(PAGE, 'r');
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int read_only = open(path, O_RDONLY | O_CLOEXEC);
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  OK(fdbroker_register(context, &allocation, read_only, SOON, &handle));
  CODE(FDBROKER_NOT_PERMITTED, fdbroker_import(context, &handle, FDBROKER_IMPORT_WRITE, SOON, &import));
  SAYS("import it for reading", "fault in the broker");
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(all_bytes_are(import.ptr, 'r', PAGE));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_unregister(context, &handle));
  close(read_only);
  close(fd);
  OK(fdbroker_close(context));
}

static fdbroker_t *open_with_arena(uint64_t bytes) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.arena_bytes = bytes;
  fdbroker_t *context = NULL;
  OK(fdbroker_open(&options, &context));
  MUST(context != NULL);
  return context;
}

static void a_full_arena_is_no_cap_of_the_broker(void) {
  fdbroker_t *context = open_with_arena(2 * PAGE);
  void *host, *more;
  OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, 2 * PAGE, SOON, &host, NULL));
  CODE(FDBROKER_NO_QUOTA, fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &more, NULL));
  SAYS("larger arena", "cap");
  OK(fdbroker_host_free(context, host));
  OK(fdbroker_close(context));
}

static void an_arena_beyond_the_address_space_is_named(void) {
  fdbroker_t *context = open_with_arena(UINT64_C(1) << 60);
  void *host;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &host, NULL));
  SAYS("arena_bytes", "cap");
  CHECK(host == NULL);
  OK(fdbroker_close(context));
}

static void the_handle_of_host_memory_is_ended_by_its_free_alone(void) {
  fdbroker_t *context = open_with_arena(2 * PAGE);
  void *host;
  fdbroker_handle_t handle;
  for (int round = 0; round < 4; round++) {
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, 2 * PAGE, SOON, &host, &handle));
    int32_t drained = 7;
    CODE(FDBROKER_NOT_PERMITTED, fdbroker_unregister_drained(context, &handle, &drained));
    SAYS("free the buffer", "another user");
    CHECK(drained == 0);
    OK(fdbroker_host_free(context, host));
    /* The whole arena is free again once the broker has ended the buffer. */
    OK(fdbroker_flush(context, SOON));
  }
  OK(fdbroker_close(context));
}

static fdbroker_code_t no_recall(void *user, const fdbroker_recall_t *recall, fdbroker_recall_answer_t *answer) {
  (void)user, (void)recall, (void)answer;
  return FDBROKER_STALE;
}

static void recallable_without_a_callback_is_refused_at_registration(void) {
  fdbroker_t *context = open_at(&broker);
  int fds[] = {sealed_memfd(PAGE, 'a'), sealed_memfd(PAGE, 'b')};
  fdbroker_allocation_t allocations[] = {memfd_allocation(PAGE), memfd_allocation(PAGE)};
  fdbroker_handle_t handles[2];
  fdbroker_code_t codes[2];
  allocations[0].flags = FDBROKER_RECALLABLE;
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_register_many(context, 2, allocations, fds, SOON, handles, codes));
  SAYS("recall callback", "absent");
  /* It fails alone. */
  CHECK(codes[0] == FDBROKER_NOT_SUPPORTED && codes[1] == FDBROKER_OK);
  OK(fdbroker_set_recall_callback(context, no_recall, NULL));
  OK(fdbroker_register(context, &allocations[0], fds[0], SOON, &handles[0]));
  for (int at = 0; at < 2; at++) {
    OK(fdbroker_unregister(context, &handles[at]));
    close(fds[at]);
  }
  OK(fdbroker_close(context));
}

static void dispatch_without_dispatch_mode_names_the_mode_in_any_language(void) {
  fdbroker_t *context = open_at(&broker);
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_dispatch(context, 0));
  SAYS("dispatch mode", "dispatch(true)");
  SAYS("dispatch mode", "absent");
  OK(fdbroker_close(context));
}

/* In a child, which alone has few addresses. */
static void few_addresses_at_open_are_named_with_their_limit(void) {
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    MUST(file != NULL && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1u << 20);
    struct rlimit limit = {bytes, bytes};
    MUST(setrlimit(RLIMIT_AS, &limit) == 0);
    fdbroker_options_t options;
    fdbroker_options_init(&options);
    options.socket = broker.socket;
    fdbroker_t *context;
    fdbroker_code_t code = fdbroker_open(&options, &context);
    const char *said = fdbroker_last_error();
    if (code != FDBROKER_INTERNAL || !strstr(said, "RLIMIT_AS")) fprintf(stderr, "said: %d, %s\n", code, said);
    _exit(code == FDBROKER_INTERNAL && strstr(said, "RLIMIT_AS") ? 0 : 1);
  }
  int status;
  MUST(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

/* A socket that uid 61003 serves, which no machine has, in a directory of the caller's. Tells by its pipe when it serves, and of
 * each connection whether nothing came ('0') or something did. */
static void serve_as_mallory(const char *path, int heard) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  char byte = 'r', bytes[4096];
  MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
  memcpy(address.sun_path, path, strlen(path));
  MUST(setresgid(61003, 61003, 61003) == 0 && setresuid(61003, 61003, 61003) == 0);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  MUST(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0);
  MUST(write(heard, &byte, 1) == 1);
  for (;;) {
    int one = accept(listener, NULL, NULL);
    MUST(one >= 0);
    byte = read(one, bytes, sizeof bytes) == 0 ? '0' : '+';
    close(one);
    MUST(write(heard, &byte, 1) == 1);
  }
}

static void a_socket_that_another_user_serves_is_refused_by_name(void) {
  if (geteuid() != 0) {
    printf("not run: a_socket_that_another_user_serves_is_refused_by_name: needs root, for another user\n");
    return;
  }
  struct broker foreign = {.dir = "/tmp/fdbroker-capi-XXXXXX"};
  int heard[2];
  char byte = 0;
  MUST(mkdtemp(foreign.dir) != NULL && chmod(foreign.dir, 01777) == 0 && pipe2(heard, O_CLOEXEC) == 0);
  snprintf(foreign.socket, sizeof foreign.socket, "%s/broker.sock", foreign.dir);
  pid_t server = fork();
  MUST(server >= 0);
  if (server == 0) serve_as_mallory(foreign.socket, heard[1]);
  MUST(read(heard[0], &byte, 1) == 1 && byte == 'r');
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = foreign.socket;
  fdbroker_t *context = (fdbroker_t *)&options;
  for (int dispatch = 0; dispatch < 2; dispatch++) {
    options.flags = dispatch ? FDBROKER_OPEN_DISPATCH : 0;
    CODE(FDBROKER_NOT_PERMITTED, fdbroker_open(&options, &context));
    CHECK(context == NULL);
    SAYS("served by uid 61003", "allocation");
    SAYS(foreign.socket, "allocation");
    SAYS("FDBROKER_SOCKET", "allocation");
    /* Nothing was sent. */
    MUST(read(heard[0], &byte, 1) == 1);
    CHECK(byte == '0');
  }
  MUST(kill(server, SIGKILL) == 0 && waitpid(server, NULL, 0) == server);
  MUST(unlink(foreign.socket) == 0 && rmdir(foreign.dir) == 0);
  close(heard[0]);
  close(heard[1]);
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(what_is_given_back_twice_is_named_so);
  RUN(a_virtual_fd_that_names_nothing_is_called_a_number);
  RUN(memory_shared_for_reading_cannot_be_imported_for_writing);
  RUN(a_full_arena_is_no_cap_of_the_broker);
  RUN(an_arena_beyond_the_address_space_is_named);
  RUN(the_handle_of_host_memory_is_ended_by_its_free_alone);
  RUN(recallable_without_a_callback_is_refused_at_registration);
  RUN(dispatch_without_dispatch_mode_names_the_mode_in_any_language);
  RUN(few_addresses_at_open_are_named_with_their_limit);
  RUN(a_socket_that_another_user_serves_is_refused_by_name);
  broker_stop(&broker);
  return end();
}
