/* A process of the walk over full caps (caps.py): it does each blocking call of the C ABI once and says what came of it.
 * Must never judge: caps.py reads the header and does. */
#define _GNU_SOURCE
#include "check.h"

#define PAGE 4096u
/* What a call that cannot be served waits for, in ms. */
#define SHORT 200u
/* Most of each kind of thing that fills a cap. */
#define FILL 96

static struct broker broker;
static fdbroker_t *context;
/* The situation in which the calls are made, if the header names it beside a code. */
static const char *situation = "";

/* One line for a call: what it is, its deadline, what it answered, in which situation, and the text. */
static fdbroker_code_t said(const char *call, unsigned deadline_ms, fdbroker_code_t code) {
  printf("%s\t%u\t%s\t%s\t%s\n", call, deadline_ms, fdbroker_error_name(code), situation, code ? fdbroker_last_error() : "");
  return code;
}

/* The code of an item is a line as well; its text is that of the call only if it is the first failure. */
static void each(const char *call, unsigned deadline_ms, const fdbroker_code_t *codes, size_t count) {
  for (size_t at = 0; at < count; at++)
    printf("%s\t%u\t%s\titem\t\n", call, deadline_ms, fdbroker_error_name(codes[at]));
}

#define SAID(call, ...) said(#call, ms, call(__VA_ARGS__))

static int count_of_names;

/* A name that is new each time. */
static const char *new_name(void) {
  static char names[8][32];
  char *name = names[count_of_names++ % 8];
  snprintf(name, sizeof names[0], "%d/%d", (int)getpid(), count_of_names);
  return name;
}

static fdbroker_new_object_t new_object(const char *name) {
  static const char bytes[PAGE];
  fdbroker_new_object_t object = {.struct_size = sizeof object, .name = name, .size_bytes = PAGE, .bytes = bytes};
  return object;
}

/* What fills any cap: kept registrations, open and mapped leases, kept and pinned objects, connections. */
static void fill(void) {
  fdbroker_allocation_t kept = memfd_allocation(PAGE);
  fdbroker_object_options_t lasting = {.struct_size = sizeof lasting, .flags = FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN};
  int fd = sealed_memfd(PAGE, 'f');
  kept.flags = FDBROKER_KEEP;
  for (int at = 0; at < FILL; at++) {
    void *memory;
    fdbroker_handle_t handle, last;
    fdbroker_grant_t grant = {.struct_size = sizeof grant};
    fdbroker_import_t import;
    fdbroker_new_object_t object = new_object(new_name());
    fdbroker_code_t registered = fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, 0, &memory, &handle);
    if (!registered) {
      last = handle;
      /* The pages count that are there. */
      memset(memory, 1, PAGE);
    }
    if (at > 0 || !registered) {
      fdbroker_acquire(context, &last, 0, &grant);
      if (fdbroker_import(context, &last, FDBROKER_IMPORT_NO_CACHE, 0, &import) == FDBROKER_OK && at % 2 == 0)
        fdbroker_import_release(context, &import);
    }
    fdbroker_register(context, &kept, fd, 0, &handle);
    fdbroker_object_put(context, 1, &object, &lasting, 0, NULL);
  }
}

/* Connections that last as long as this process. */
static void connect_many(int count) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.flags = FDBROKER_OPEN_DISPATCH;
  for (int at = 0; at < count; at++) {
    fdbroker_t *more;
    MUST(fdbroker_open(&options, &more) == FDBROKER_OK);
  }
}

/* What the calls are made with, had before any cap is full. */
static struct {
  void *arena[4], *isolated[4];
  fdbroker_handle_t handles[4], virtual_one;
  fdbroker_object_group_t *groups[4];
} mine;

static void prepare(void) {
  fdbroker_object_options_t lasting = {
      .struct_size = sizeof lasting, .flags = FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN, .room_bytes = 16 * PAGE};
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  int fd = sealed_memfd(PAGE, 'm');
  allocation.flags = FDBROKER_VIRTUAL_FD;
  OK(fdbroker_register(context, &allocation, fd, SOON, &mine.virtual_one));
  close(fd);
  for (int at = 0; at < 4; at++) {
    fdbroker_new_object_t object = new_object(new_name());
    object.bytes = NULL;
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ISOLATED, PAGE, SOON, &mine.isolated[at], &mine.handles[at]));
    OK(fdbroker_host_alloc(context, FDBROKER_HOST_ARENA, PAGE, SOON, &mine.arena[at], NULL));
    OK(fdbroker_object_create(context, 1, &object, &lasting, SOON, &mine.groups[at]));
  }
  fdbroker_new_object_t known = new_object("known");
  OK(fdbroker_object_put(context, 1, &known, NULL, SOON, NULL));
}

/* Two more allocations, of memory that nobody else has; its fds to be closed. */
static void new_memory(fdbroker_allocation_t *allocations, int *fds) {
  for (int at = 0; at < 2; at++) {
    allocations[at] = memfd_allocation(PAGE);
    fds[at] = sealed_memfd(PAGE, 'n');
  }
}

static void producers(unsigned ms, int round) {
  void *memory;
  int32_t drained;
  fdbroker_handle_t handles[2];
  fdbroker_code_t codes[2];
  fdbroker_allocation_t allocations[2];
  int fds[2];
  new_memory(allocations, fds);
  for (int kind = 0; kind < 2; kind++) {
    allocations[0].flags = kind ? FDBROKER_KEEP : 0;
    if (SAID(fdbroker_register, context, &allocations[0], fds[0], ms, &handles[0]) == FDBROKER_OK)
      SAID(fdbroker_unregister_within, context, &handles[0], ms, &drained);
  }
  SAID(fdbroker_register_many, context, 2, allocations, fds, ms, handles, codes);
  each("fdbroker_register_many", ms, codes, 2);
  close(fds[0]);
  close(fds[1]);
  if (SAID(fdbroker_host_alloc, context, FDBROKER_HOST_ISOLATED, PAGE, ms, &memory, &handles[0]) == FDBROKER_OK)
    SAID(fdbroker_retire, context, &handles[0], ms);
  SAID(fdbroker_host_alloc, context, FDBROKER_HOST_ARENA, PAGE, ms, &memory, &handles[0]);
  SAID(fdbroker_get_handle, context, mine.arena[round], 0, ms, &handles[0]);
  SAID(fdbroker_resolve, context, fdbroker_handle_virtual_fd(&mine.virtual_one), ms, &handles[0]);
  SAID(fdbroker_gpu_alloc, context, FDBROKER_DRIVER_CUDA, 0, PAGE, FDBROKER_SHARE_UID, ms, &memory, &handles[0]);
  SAID(fdbroker_gpu_register, context, FDBROKER_DRIVER_CUDA, 0, &memory, FDBROKER_SHARE_UID, ms, &handles[0]);
  SAID(fdbroker_flush, context, ms);
}

static void consumers(unsigned ms, int round) {
  fdbroker_grant_t grants[2] = {{.struct_size = sizeof grants[0]}};
  fdbroker_import_t imports[2];
  fdbroker_code_t codes[2];
  fdbroker_handle_t *handles = &mine.handles[2 * round], busy[8];
  size_t count;
  SAID(fdbroker_acquire, context, handles, ms, grants);
  SAID(fdbroker_acquire_many, context, 2, handles, ms, grants, codes);
  each("fdbroker_acquire_many", ms, codes, 2);
  SAID(fdbroker_import, context, handles, FDBROKER_IMPORT_READ, ms, imports);
  SAID(fdbroker_import_many, context, 2, handles, FDBROKER_IMPORT_NO_CACHE, ms, imports, codes);
  each("fdbroker_import_many", ms, codes, 2);
  situation = "suspended";
  SAID(fdbroker_suspend, context, ms, 8, busy, &count);
  SAID(fdbroker_import, context, &mine.virtual_one, FDBROKER_IMPORT_READ, ms, imports);
  situation = "";
  SAID(fdbroker_resume, context, ms, 8, busy, codes, &count);
}

static void objects(unsigned ms, int round) {
  fdbroker_object_options_t options = {.struct_size = sizeof options};
  const uint32_t ways[] = {0, FDBROKER_OBJECT_KEEP, FDBROKER_OBJECT_PIN, FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN};
  const char *known = "known";
  fdbroker_code_t code;
  for (size_t at = 0; at < 4; at++) {
    fdbroker_object_group_t *group;
    fdbroker_new_object_t object = new_object(new_name()), empty = object;
    options.flags = ways[at];
    empty.bytes = NULL;
    if (SAID(fdbroker_object_create, context, 1, &empty, &options, ms, &group) == FDBROKER_OK) fdbroker_object_close(group);
    SAID(fdbroker_object_put, context, 1, &object, &options, ms, NULL);
    SAID(fdbroker_object_touch, context, 1, &known, &options, ms, &code);
    each("fdbroker_object_touch", ms, &code, 1);
  }
  uint64_t bytes;
  char buffer[64], names[8][32];
  fdbroker_new_object_t added[8];
  fdbroker_object_t got = {.struct_size = sizeof got};
  fdbroker_object_info_t info = {.struct_size = sizeof info};
  fdbroker_object_list_t *list;
  fdbroker_object_watch_t *watch;
  fdbroker_object_event_t event = {.struct_size = sizeof event};
  const char *nothing = "nothing";
  for (int at = 0; at < 8; at++) {
    strcpy(names[at], new_name());
    added[at] = new_object(names[at]);
    added[at].bytes = NULL;
  }
  SAID(fdbroker_object_add, mine.groups[2 * round], 8, added, ms);
  SAID(fdbroker_object_seal, mine.groups[2 * round], ms, NULL);
  SAID(fdbroker_object_seal_after, mine.groups[2 * round + 1], FDBROKER_WORK_STREAM, NULL, ms, NULL);
  options.flags = 0;
  if (SAID(fdbroker_object_get, context, 1, &known, &options, ms, &got) == FDBROKER_OK) fdbroker_object_release(context, &got);
  SAID(fdbroker_object_get, context, 1, &nothing, &options, ms, &got);
  SAID(fdbroker_object_stat, context, 1, &known, 0, ms, &info);
  SAID(fdbroker_object_metadata, context, known, 0, ms, buffer, sizeof buffer, &bytes);
  int32_t has_one;
  if (SAID(fdbroker_object_list, context, "", 0, ms, &list) == FDBROKER_OK) {
    SAID(fdbroker_object_list_next, list, &info, &has_one);
    fdbroker_object_list_close(list);
  }
  if (SAID(fdbroker_object_watch, context, "never", 0, ms, &watch) == FDBROKER_OK) {
    situation = "no event";
    SAID(fdbroker_object_watch_next, watch, ms, &event);
    situation = "";
    fdbroker_object_watch_close(watch);
  }
  SAID(fdbroker_object_delete, context, 1, &nothing, NULL, 0, ms, &code);
  each("fdbroker_object_delete", ms, &code, 1);
}

/* Tests a request until it is done. */
#define UNTIL_DONE(test, ...) \
  do { \
    fdbroker_code_t code_; \
    while ((code_ = test(__VA_ARGS__)) == FDBROKER_AGAIN) nap_ms(1); \
    said(#test, ms, code_); \
  } while (0)

static void requests(unsigned ms, int round) {
  fdbroker_request_t *request;
  fdbroker_grant_t grants[2] = {{.struct_size = sizeof grants[0]}};
  fdbroker_import_t imports[2];
  fdbroker_handle_t *handles = &mine.handles[2 * round], made[2];
  fdbroker_code_t codes[2];
  fdbroker_object_t got = {.struct_size = sizeof got};
  fdbroker_allocation_t allocations[2];
  const char *known = "known";
  int fds[2];
  new_memory(allocations, fds);
  if (SAID(fdbroker_acquire_start, context, 2, handles, ms, &request) == FDBROKER_OK) {
    UNTIL_DONE(fdbroker_request_test, request, grants, codes);
    each("fdbroker_request_test", ms, codes, 2);
  }
  if (SAID(fdbroker_import_start, context, 2, handles, FDBROKER_IMPORT_NO_CACHE, ms, &request) == FDBROKER_OK) {
    UNTIL_DONE(fdbroker_import_test, request, imports, codes);
    each("fdbroker_import_test", ms, codes, 2);
  }
  if (SAID(fdbroker_register_start, context, 2, allocations, fds, ms, &request) == FDBROKER_OK) {
    UNTIL_DONE(fdbroker_register_test, request, made, codes);
    each("fdbroker_register_test", ms, codes, 2);
  }
  close(fds[0]);
  close(fds[1]);
  if (SAID(fdbroker_object_get_start, context, 1, &known, NULL, ms, &request) == FDBROKER_OK)
    UNTIL_DONE(fdbroker_object_get_test, request, &got);
  fdbroker_new_object_t object = new_object(new_name());
  fdbroker_object_group_t *group = NULL;
  object.bytes = NULL;
  if (SAID(fdbroker_object_create_start, context, 1, &object, NULL, ms, &request) == FDBROKER_OK)
    UNTIL_DONE(fdbroker_object_create_test, request, &group);
  if (group && SAID(fdbroker_object_seal_start, group, 0, NULL, ms, &request) == FDBROKER_OK)
    UNTIL_DONE(fdbroker_object_seal_test, request, NULL);
  fdbroker_object_close(group);
  object = new_object(new_name());
  if (SAID(fdbroker_object_put_start, context, 1, &object, NULL, ms, &request) == FDBROKER_OK)
    UNTIL_DONE(fdbroker_object_put_test, request, NULL);
}

static void connections(void) {
  const unsigned ms = 0;
  fdbroker_options_t options;
  fdbroker_t *more;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.flags = FDBROKER_OPEN_DISPATCH;
  if (SAID(fdbroker_open, &options, &more) == FDBROKER_OK) {
    SAID(fdbroker_dispatch, more, SHORT);
    OK(fdbroker_close(more));
  } else {
    SAID(fdbroker_dispatch, context, 0);
  }
}

static void calls(void) {
  for (int round = 0; round < 2; round++) {
    unsigned ms = round ? SHORT : 0;
    producers(ms, round);
    objects(ms, round);
    consumers(ms, round);
    requests(ms, round);
  }
  connections();
}

/* caps SOCKET CONNECTIONS: does what the words on stdin say, and answers each with a line DONE. */
int main(int count, char **words) {
  begin();
  setvbuf(stdout, NULL, _IOFBF, 1 << 16);
  MUST(count == 3);
  snprintf(broker.socket, sizeof broker.socket, "%s", words[1]);
  context = open_at(&broker);
  connect_many(atoi(words[2]));
  char word[16];
  while (scanf("%15s", word) == 1) {
    if (strcmp(word, "prepare") == 0) prepare();
    if (strcmp(word, "fill") == 0) fill();
    if (strcmp(word, "calls") == 0) calls();
    puts("DONE");
    fflush(stdout);
  }
  return bad_checks != 0;
}
