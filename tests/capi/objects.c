/* Named objects: made, sealed, got, listed, deleted, and every wrong use. */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

static struct broker broker;

static fdbroker_new_object_t new_object(const char *name, uint64_t size) {
  fdbroker_new_object_t object = {.struct_size = sizeof object, .name = name, .size_bytes = size};
  return object;
}

static fdbroker_new_object_t bytes_object(const char *name, const char *bytes) {
  fdbroker_new_object_t object = new_object(name, strlen(bytes));
  object.bytes = bytes;
  return object;
}

static fdbroker_object_options_t with_flags(uint32_t flags) {
  fdbroker_object_options_t options = {.struct_size = sizeof options, .flags = flags};
  return options;
}

static fdbroker_object_t get(fdbroker_t *context, const char *name) {
  fdbroker_object_t object = {.struct_size = sizeof object};
  OK(fdbroker_object_get(context, 1, &name, NULL, SOON, &object));
  return object;
}

static int is(const fdbroker_object_t *object, const char *bytes) {
  return object->size_bytes == strlen(bytes) && memcmp(object->ptr, bytes, strlen(bytes)) == 0;
}

static void a_group_sealed_is_had_by_name_in_another_context(void) {
  fdbroker_t *maker = open_at(&broker), *reader = open_at(&broker);
  fdbroker_new_object_t objects[2] = {new_object("group/a", 3), new_object("group/b", 5000)};
  objects[0].metadata = "meta";
  objects[0].metadata_bytes = 4;
  fdbroker_object_group_t *group;
  void *bytes;
  uint64_t size = 0, version = 0, room = 0;
  OK(fdbroker_object_create(maker, 2, objects, NULL, SOON, &group));
  OK(fdbroker_object_data(group, 0, &bytes, &size));
  CHECK(size == 3);
  memcpy(bytes, "abc", 3);
  OK(fdbroker_object_write(group, 1, 4999, "z", 1));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_write(group, 1, 5000, "z", 1));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_data(group, 2, &bytes, NULL));
  CHECK(bytes == NULL);
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_object_device_ptr(group, 0, &room));
  const char *names[2] = {"group/b", "group/a"};
  fdbroker_object_t got[2] = {{.struct_size = sizeof got[0]}, {.struct_size = 0}};
  CODE(FDBROKER_NOT_SEALED, fdbroker_object_get(reader, 2, names, NULL, 0, got));
  CHECK(got[0].object == 0 && got[0].ptr == NULL && got[1].struct_size == sizeof got[0]);
  OK(fdbroker_object_seal(group, SOON, &version));
  CODE(FDBROKER_SEALED, fdbroker_object_write(group, 0, 0, "x", 1));
  CODE(FDBROKER_SEALED, fdbroker_object_data(group, 0, &bytes, NULL));
  CODE(FDBROKER_SEALED, fdbroker_object_add(group, 1, objects, SOON));
  CODE(FDBROKER_SEALED, fdbroker_object_seal(group, SOON, NULL));
  OK(fdbroker_object_close(group));
  OK(fdbroker_object_get(reader, 2, names, NULL, SOON, got));
  CHECK(got[0].size_bytes == 5000 && ((const char *)got[0].ptr)[4999] == 'z' && ((const char *)got[0].ptr)[0] == 0);
  CHECK(is(&got[1], "abc") && got[1].version == version && got[0].version == version);
  CHECK(got[1].metadata_bytes == 4 && memcmp(got[1].metadata, "meta", 4) == 0 && got[0].metadata_bytes == 0);
  CHECK(got[0].kind == FDBROKER_KIND_MEMFD && got[0].device_ptr == 0);
  CHECK(fdbroker_object_is_current(reader, &got[1]) == 1);
  char copy[3];
  OK(fdbroker_object_read(reader, &got[1], 0, copy, 3));
  CHECK(memcmp(copy, "abc", 3) == 0);
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_read(reader, &got[1], 1, copy, 3));
  fdbroker_object_t again = got[1];
  for (int at = 0; at < 2; at++) OK(fdbroker_object_release(reader, &got[at]));
  CHECK(got[1].object == 0 && got[1].struct_size == sizeof got[1]);
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_release(reader, &again));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_release(reader, &got[0]));
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
  OK(fdbroker_close(maker));
  OK(fdbroker_close(reader));
}

static void objects_put_are_listed_replaced_and_deleted(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_new_object_t objects[2] = {bytes_object("put/a", "one"), bytes_object("put/b", "")};
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  uint64_t versions[2] = {0, 0}, second = 0;
  OK(fdbroker_object_put(context, 2, objects, NULL, SOON, versions));
  CHECK(versions[0] > 0 && versions[0] == versions[1]);
  fdbroker_object_t old = get(context, "put/a");
  objects[0].bytes = "two";
  CODE(FDBROKER_EXISTS, fdbroker_object_put(context, 1, objects, NULL, SOON, &second));
  CHECK(second == 0);
  OK(fdbroker_object_put(context, 1, objects, &replace, SOON, &second));
  CHECK(second > versions[0] && is(&old, "one"));
  OK(fdbroker_object_release(context, &old));
  objects[0].flags = FDBROKER_OBJECT_EXPECT;
  objects[0].expect = versions[0];
  CODE(FDBROKER_VERSION, fdbroker_object_put(context, 1, objects, NULL, SOON, NULL));

  fdbroker_object_list_t *list;
  fdbroker_object_info_t info = {.struct_size = sizeof info};
  int32_t has_one = 0;
  OK(fdbroker_object_list(context, "put/", 0, SOON, &list));
  OK(fdbroker_object_list_next(list, &info, &has_one));
  CHECK(has_one == 1 && strcmp(info.name, "put/a") == 0 && info.version == second && info.size_bytes == 3);
  CHECK(info.state == FDBROKER_OBJECT_IS_SEALED && info.creator_pid == (uint32_t)getpid() && info.flags == 0);
  OK(fdbroker_object_list_next(list, &info, &has_one));
  CHECK(has_one == 1 && strcmp(info.name, "put/b") == 0 && info.group_names == 1);
  OK(fdbroker_object_list_next(list, &info, &has_one));
  CHECK(has_one == 0 && info.name[0] == 0);
  OK(fdbroker_object_list_close(list));

  const char *names[3] = {"put/a", "none", "put/b"};
  fdbroker_object_info_t infos[3] = {{.struct_size = sizeof info}, {.struct_size = 0}, {.struct_size = 0}};
  OK(fdbroker_object_stat(context, 3, names, 0, SOON, infos));
  CHECK(infos[0].state == FDBROKER_OBJECT_IS_SEALED && infos[1].state == 0 && infos[2].version == versions[1]);
  uint64_t wanted[3] = {versions[0], 0, versions[1]};
  fdbroker_code_t codes[3] = {77, 77, 77};
  CODE(FDBROKER_VERSION, fdbroker_object_delete(context, 3, names, wanted, 0, SOON, codes));
  CHECK(codes[0] == FDBROKER_VERSION && codes[1] == FDBROKER_NOT_FOUND && codes[2] == FDBROKER_OK);
  OK(fdbroker_object_delete(context, 1, names, NULL, 0, SOON, NULL));
  CODE(FDBROKER_NOT_FOUND, fdbroker_object_get(context, 1, names, NULL, 0, &old));
  EVENTUALLY(ledger(&broker, "allocations") == 0);
  OK(fdbroker_close(context));
}

static void what_is_kept_by_a_private_broker_says_that_it_ends_with_it(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_new_object_t objects[2] = {bytes_object("ends/plain", "one"), bytes_object("ends/kept", "two")};
  fdbroker_object_options_t keep = with_flags(FDBROKER_OBJECT_KEEP), pin = with_flags(FDBROKER_OBJECT_PIN);
  OK(fdbroker_object_put(context, 1, &objects[0], NULL, SOON, NULL));
  OK(fdbroker_object_put(context, 1, &objects[1], &keep, SOON, NULL));
  const char *names[2] = {"ends/plain", "ends/kept"};
  fdbroker_object_info_t infos[2] = {{.struct_size = sizeof infos[0]}, {.struct_size = 0}};
  OK(fdbroker_object_stat(context, 2, names, 0, SOON, infos));
  CHECK(infos[0].flags == 0);
  CHECK(infos[1].flags == (FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_ENDS_WITH_BROKER));
  OK(fdbroker_object_touch(context, 1, names, &pin, SOON, NULL));
  OK(fdbroker_object_stat(context, 1, names, 0, SOON, infos));
  CHECK(infos[0].flags == (FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN | FDBROKER_OBJECT_ENDS_WITH_BROKER));
  OK(fdbroker_object_delete(context, 2, names, NULL, 0, SOON, NULL));
  OK(fdbroker_close(context));
}

static uint32_t flags_of(fdbroker_t *context, const char *name) {
  fdbroker_object_info_t info = {.struct_size = sizeof info};
  OK(fdbroker_object_stat(context, 1, &name, 0, SOON, &info));
  return info.flags & (FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN);
}

static void a_version_lasts_as_the_one_that_it_replaces_unless_told_otherwise(void) {
  fdbroker_t *context = open_at(&broker), *other = open_at(&broker);
  fdbroker_new_object_t object = bytes_object("lasts", "x");
  fdbroker_object_options_t pin = with_flags(FDBROKER_OBJECT_PIN | FDBROKER_OBJECT_KEEP);
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  fdbroker_object_options_t no_pin = with_flags(FDBROKER_OBJECT_REPLACE | FDBROKER_OBJECT_NO_PIN);
  fdbroker_object_options_t no_keep = with_flags(FDBROKER_OBJECT_REPLACE | FDBROKER_OBJECT_NO_KEEP);
  OK(fdbroker_object_put(context, 1, &object, &pin, SOON, NULL));
  OK(fdbroker_object_put(other, 1, &object, &replace, SOON, NULL));
  CHECK(flags_of(context, "lasts") == (FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN));
  OK(fdbroker_object_put(other, 1, &object, &no_pin, SOON, NULL));
  CHECK(flags_of(context, "lasts") == FDBROKER_OBJECT_KEEP);
  OK(fdbroker_object_put(other, 1, &object, &no_keep, SOON, NULL));
  CHECK(flags_of(context, "lasts") == 0);
  for (int at = 0; at < 2; at++) {
    const uint32_t both = at ? FDBROKER_OBJECT_PIN | FDBROKER_OBJECT_NO_PIN : FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_NO_KEEP;
    fdbroker_object_options_t wrong = with_flags(both);
    CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_put(other, 1, &object, &wrong, SOON, NULL));
  }
  OK(fdbroker_close(other));
  const char *name = "lasts";
  fdbroker_object_t got = {.struct_size = sizeof got};
  EVENTUALLY(fdbroker_object_get(context, 1, &name, NULL, 0, &got) == FDBROKER_NOT_FOUND);
  OK(fdbroker_close(context));
}

static void metadata_comes_whole_or_says_how_much_there_is(void) {
  fdbroker_t *context = open_at(&broker);
  char metadata[4096], copy[4096];
  memset(metadata, 'm', sizeof metadata);
  fdbroker_new_object_t object = bytes_object("meta", "x");
  object.metadata = metadata;
  object.metadata_bytes = sizeof metadata;
  uint64_t bytes = 0;
  OK(fdbroker_object_put(context, 1, &object, NULL, SOON, NULL));
  fdbroker_object_t got = get(context, "meta");
  CHECK(got.metadata_bytes == sizeof metadata && memcmp(got.metadata, metadata, sizeof metadata) == 0);
  OK(fdbroker_object_metadata(context, "meta", 0, SOON, copy, sizeof copy, &bytes));
  CHECK(bytes == sizeof metadata && memcmp(copy, metadata, sizeof metadata) == 0);
  CODE(FDBROKER_TOO_LONG, fdbroker_object_metadata(context, "meta", 0, SOON, copy, 10, &bytes));
  CHECK(bytes == sizeof metadata);
  OK(fdbroker_object_release(context, &got));
  object.metadata_bytes = sizeof metadata + 1;
  object.name = "more";
  CODE(FDBROKER_TOO_LONG, fdbroker_object_put(context, 1, &object, NULL, SOON, NULL));
  OK(fdbroker_close(context));
}

static void a_get_started_waits_without_blocking_and_can_be_cancelled(void) {
  fdbroker_t *context = open_at(&broker);
  const char *name = "later";
  fdbroker_request_t *request;
  fdbroker_object_t object = {.struct_size = sizeof object};
  fdbroker_grant_t grant = {.struct_size = sizeof grant};
  fdbroker_code_t code;
  unsigned waited = 0;
  OK(fdbroker_object_get_start(context, 1, &name, NULL, SOON, &request));
  CODE(FDBROKER_AGAIN, fdbroker_object_get_test(request, &object));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_request_test(request, &grant, NULL));
  fdbroker_new_object_t later = bytes_object(name, "now");
  OK(fdbroker_object_put(context, 1, &later, NULL, SOON, NULL));
  while ((code = fdbroker_object_get_test(request, &object)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  OK(code);
  CHECK(is(&object, "now"));
  OK(fdbroker_object_release(context, &object));
  name = "never";
  OK(fdbroker_object_get_start(context, 1, &name, NULL, SOON, &request));
  EVENTUALLY(ledger(&broker, "parked_requests") == 1);
  OK(fdbroker_request_cancel(request));
  EVENTUALLY(ledger(&broker, "parked_requests") == 0);
  OK(fdbroker_close(context));
}

static fdbroker_code_t created(fdbroker_request_t *request, fdbroker_object_group_t **group) {
  fdbroker_code_t code;
  unsigned waited = 0;
  while ((code = fdbroker_object_create_test(request, group)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  return code;
}

static fdbroker_code_t sealed(fdbroker_request_t *request, uint64_t *version) {
  fdbroker_code_t code;
  unsigned waited = 0;
  while ((code = fdbroker_object_seal_test(request, version)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  return code;
}

static void a_group_is_begun_and_sealed_without_blocking_with(uint32_t flags) {
  fdbroker_t *maker = open_with(&broker, flags), *reader = open_at(&broker);
  fdbroker_new_object_t objects[2] = {new_object("started/a", 3), new_object("started/b", 5000)};
  fdbroker_object_options_t elsewhere = with_flags(0);
  fdbroker_object_group_t *group;
  fdbroker_request_t *request, *other;
  uint64_t version = 0;
  elsewhere.place = 77;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create_start(maker, 2, objects, &elsewhere, SOON, &request));
  CHECK(request == NULL);
  int before = open_fds();
  OK(fdbroker_object_create_start(maker, 2, objects, NULL, SOON, &request));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create_test(request, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_seal_test(request, &version));
  OK(created(request, &group));
  CHECK(open_fds() == before + 1);
  OK(fdbroker_object_write(group, 0, 0, "abc", 3));
  /* The second of one name. */
  OK(fdbroker_object_create_start(maker, 1, objects, NULL, SOON, &request));
  fdbroker_object_group_t *none;
  CODE(FDBROKER_EXISTS, created(request, &none));
  CHECK(none == NULL && strstr(fdbroker_last_error(), "started/a") != NULL);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_seal_start(group, 3, NULL, SOON, &request));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_object_seal_start(group, FDBROKER_WORK_STREAM, NULL, SOON, &request));
  CHECK(request == NULL);
  OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
  CODE(FDBROKER_ABORTED, fdbroker_object_seal_start(group, 0, NULL, SOON, &other));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create_test(request, &none));
  OK(sealed(request, &version));
  CODE(FDBROKER_SEALED, fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
  OK(fdbroker_object_close(group));
  fdbroker_object_t got = get(reader, "started/a");
  CHECK(got.version == version && version > 0 && is(&got, "abc"));
  OK(fdbroker_object_release(reader, &got));
  CHECK(open_fds() == before);
  OK(fdbroker_close(reader));
  OK(fdbroker_close(maker));
  EVENTUALLY(ledger(&broker, "allocations") == 0);
}

static void a_group_is_begun_and_sealed_without_blocking(void) { a_group_is_begun_and_sealed_without_blocking_with(0); }

static void so_it_is_in_dispatch_mode(void) { a_group_is_begun_and_sealed_without_blocking_with(FDBROKER_OPEN_DISPATCH); }

static void a_group_started_tells_and_is_sealed_again_when_its_name_is_free(void) {
  fdbroker_t *maker = open_at(&broker), *other = open_at(&broker);
  fdbroker_new_object_t first = bytes_object("told", "first"), late = new_object("told", 1);
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  const char *name = "told";
  fdbroker_object_group_t *group;
  fdbroker_request_t *request;
  fdbroker_due_t *due;
  uint64_t token = 0, version = 0;
  OK(fdbroker_due_open(&due));
  struct pollfd polled = {.fd = fdbroker_due_fd(due), .events = POLLIN};
  late.flags = FDBROKER_OBJECT_EXPECT;
  OK(fdbroker_object_create_start(maker, 1, &late, NULL, SOON, &request));
  OK(fdbroker_request_tell(request, due, 5));
  CHECK(fdbroker_request_due_ms(request) > 0);
  CHECK(poll(&polled, 1, (int)SOON) == 1);
  OK(fdbroker_due_take(due, &token));
  CHECK(token == 5);
  OK(fdbroker_object_create_test(request, &group));
  OK(fdbroker_object_put(other, 1, &first, &replace, SOON, NULL));
  OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
  CODE(FDBROKER_VERSION, sealed(request, &version));
  OK(fdbroker_object_delete(other, 1, &name, NULL, 0, SOON, NULL));
  OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
  OK(fdbroker_request_tell(request, due, 6));
  CHECK(poll(&polled, 1, (int)SOON) == 1);
  OK(fdbroker_due_take(due, &token));
  CHECK(token == 6);
  OK(fdbroker_object_seal_test(request, &version));
  CHECK(version > 0);
  OK(fdbroker_object_close(group));
  OK(fdbroker_due_close(due));
  OK(fdbroker_close(other));
  OK(fdbroker_close(maker));
  EVENTUALLY(ledger(&broker, "allocations") == 0);
}

static void a_group_closed_while_its_seal_is_under_way_ends_with_that(void) {
  fdbroker_t *maker = open_at(&broker);
  fdbroker_new_object_t object = new_object("closed", 1);
  for (int is_cancelled = 0; is_cancelled < 2; is_cancelled++) {
    fdbroker_object_group_t *group;
    fdbroker_request_t *request;
    uint64_t version = 0;
    OK(fdbroker_object_create(maker, 1, &object, NULL, SOON, &group));
    OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
    OK(fdbroker_object_close(group));
    if (is_cancelled) {
      OK(fdbroker_request_cancel(request));
    } else {
      OK(sealed(request, &version));
      CHECK(version > 0);
      OK(fdbroker_object_delete(maker, 1, &object.name, NULL, 0, SOON, NULL));
    }
  }
  /* The one that was cancelled may have been sealed by then. */
  fdbroker_object_delete(maker, 1, &object.name, NULL, 0, SOON, NULL);
  /* Refused, it comes back, and nobody has it. */
  fdbroker_new_object_t first = bytes_object("closed/expects", "first");
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  fdbroker_object_group_t *group;
  fdbroker_request_t *request;
  object = new_object("closed/expects", 1);
  object.flags = FDBROKER_OBJECT_EXPECT;
  OK(fdbroker_object_create(maker, 1, &object, NULL, SOON, &group));
  OK(fdbroker_object_put(maker, 1, &first, &replace, SOON, NULL));
  OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
  OK(fdbroker_object_close(group));
  CODE(FDBROKER_VERSION, sealed(request, NULL));
  OK(fdbroker_object_delete(maker, 1, &first.name, NULL, 0, SOON, NULL));
  EVENTUALLY(ledger(&broker, "allocations") == 0);
  OK(fdbroker_close(maker));
}

static void objects_are_put_without_blocking(void) {
  fdbroker_t *maker = open_at(&broker), *reader = open_at(&broker);
  fdbroker_new_object_t objects[2] = {bytes_object("put/a", "abc"), new_object("put/none", 0)};
  fdbroker_object_options_t elsewhere = with_flags(0);
  fdbroker_request_t *request;
  fdbroker_due_t *due;
  uint64_t token = 0, version = 7;
  elsewhere.place = FDBROKER_PLACE_FD;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_put_start(maker, 2, objects, &elsewhere, SOON, &request));
  CHECK(request == NULL);
  OK(fdbroker_due_open(&due));
  struct pollfd polled = {.fd = fdbroker_due_fd(due), .events = POLLIN};
  int before = open_fds();
  OK(fdbroker_object_put_start(maker, 2, objects, NULL, SOON, &request));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_seal_test(request, &version));
  OK(fdbroker_request_tell(request, due, 5));
  fdbroker_code_t code = FDBROKER_AGAIN;
  int told = 0;
  while (code == FDBROKER_AGAIN) {
    if (poll(&polled, 1, (int)fdbroker_request_due_ms(request)) == 1) {
      OK(fdbroker_due_take(due, &token));
      CHECK(token == 5);
      told++;
    }
    code = fdbroker_object_put_test(request, &version);
  }
  OK(code);
  /* Of the answers to the create and the seal. */
  CHECK(told >= 2);
  CHECK(open_fds() == before);
  fdbroker_object_t got = get(reader, "put/a");
  CHECK(got.version == version && is(&got, "abc"));
  OK(fdbroker_object_release(reader, &got));
  got = get(reader, "put/none");
  CHECK(got.version == version && got.size_bytes == 0);
  OK(fdbroker_object_release(reader, &got));
  /* The second of these names. */
  OK(fdbroker_object_put_start(maker, 2, objects, NULL, SOON, &request));
  while ((code = fdbroker_object_put_test(request, &version)) == FDBROKER_AGAIN) sched_yield();
  CODE(FDBROKER_EXISTS, code);
  CHECK(version == 0 && strstr(fdbroker_last_error(), "put/a") != NULL);
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  for (int turn = 0; turn < 1000; turn++) {
    OK(fdbroker_object_put_start(maker, 1, objects, &replace, SOON, &request));
    code = FDBROKER_AGAIN;
    /* After none, some or all of its messages. */
    for (int tests = 0; tests < turn % 20 && code == FDBROKER_AGAIN; tests++) {
      code = fdbroker_object_put_test(request, NULL);
      sched_yield();
    }
    if (code == FDBROKER_AGAIN) OK(fdbroker_request_cancel(request));
  }
  CHECK(open_fds() == before);
  OK(fdbroker_due_close(due));
  OK(fdbroker_close(reader));
  OK(fdbroker_close(maker));
  EVENTUALLY(ledger(&broker, "object_names") == 0 && ledger(&broker, "allocations") == 0);
}

static void groups_cancelled_leave_nothing(void) {
  fdbroker_t *maker = open_at(&broker);
  fdbroker_new_object_t object = new_object("cancelled", 1);
  fdbroker_object_options_t replace = with_flags(FDBROKER_OBJECT_REPLACE);
  fdbroker_object_group_t *group;
  fdbroker_request_t *request;
  int before = open_fds();
  for (int turn = 0; turn < 1000; turn++) {
    OK(fdbroker_object_create_start(maker, 1, &object, &replace, SOON, &request));
    if (turn % 2 == 0) {
      OK(fdbroker_request_cancel(request));
      continue;
    }
    OK(created(request, &group));
    OK(fdbroker_object_seal_start(group, 0, NULL, SOON, &request));
    OK(fdbroker_request_cancel(request));
    CODE(FDBROKER_ABORTED, fdbroker_object_write(group, 0, 0, "x", 1));
    OK(fdbroker_object_close(group));
  }
  CHECK(open_fds() == before);
  /* What was sealed all the same. */
  EVENTUALLY(ledger(&broker, "object_names") <= 1);
  OK(fdbroker_close(maker));
  EVENTUALLY(ledger(&broker, "object_names") == 0 && ledger(&broker, "allocations") == 0);
}

static void memory_that_is_mapped_is_busy_and_can_be_sealed_later(void) {
  fdbroker_t *context = open_at(&broker);
  int fd = memfd_create("objects", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(fd >= 0 && ftruncate(fd, 4096) == 0);
  char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(mapped != MAP_FAILED);
  fdbroker_allocation_t memory = {.struct_size = sizeof memory, .kind = FDBROKER_KIND_MEMFD, .size_bytes = 4096};
  fdbroker_object_options_t options = with_flags(0);
  options.place = FDBROKER_PLACE_FD;
  options.fd = fd;
  options.memory = &memory;
  fdbroker_new_object_t object = new_object("foreign", 5);
  object.flags = FDBROKER_OBJECT_AT;
  object.offset = 100;
  fdbroker_object_group_t *group;
  void *bytes;
  OK(fdbroker_object_create(context, 1, &object, &options, SOON, &group));
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_object_data(group, 0, &bytes, NULL));
  memcpy(mapped + 100, "bytes", 5);
  CODE(FDBROKER_SEALED_BUSY, fdbroker_object_seal(group, SOON, NULL));
  MUST(munmap(mapped, 4096) == 0);
  OK(fdbroker_object_seal(group, SOON, NULL));
  OK(fdbroker_object_close(group));
  close(fd);
  fdbroker_object_t got = get(context, "foreign");
  CHECK(is(&got, "bytes"));
  OK(fdbroker_object_release(context, &got));
  OK(fdbroker_close(context));
}

static void a_group_given_up_leaves_nothing(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_object_options_t options = with_flags(0);
  options.room_bytes = 4096;
  fdbroker_new_object_t objects[2] = {new_object("up/a", 10), new_object("up/b", 4000)};
  fdbroker_object_group_t *group;
  OK(fdbroker_object_create(context, 1, objects, &options, SOON, &group));
  OK(fdbroker_object_add(group, 1, &objects[1], SOON));
  CODE(FDBROKER_EXISTS, fdbroker_object_create(context, 1, objects, NULL, SOON, &(fdbroker_object_group_t *){NULL}));
  objects[0].name = "up/c";
  objects[0].size_bytes = 1 << 20;
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_add(group, 1, objects, SOON));
  OK(fdbroker_object_close(group));
  OK(fdbroker_object_close(NULL));
  EVENTUALLY(ledger(&broker, "object_names") == 0);
  EVENTUALLY(ledger(&broker, "allocations") == 0);
  OK(fdbroker_close(context));
}

static void a_cached_object_needs_no_message_and_a_new_version_is_seen(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_object_options_t cached = with_flags(FDBROKER_OBJECT_CACHED), replace = with_flags(FDBROKER_OBJECT_REPLACE);
  fdbroker_new_object_t object = bytes_object("cached", "1");
  const char *names[2] = {"cached", "cached"};
  fdbroker_object_t got[2] = {{.struct_size = sizeof got[0]}, {.struct_size = 0}};
  uint64_t version = 0, kept = 0;
  OK(fdbroker_object_put(context, 1, &object, NULL, SOON, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_get(context, 2, names, &cached, SOON, got));
  OK(fdbroker_object_get(context, 1, names, &cached, SOON, got));
  const void *first = got[0].ptr;
  OK(fdbroker_object_release(context, &got[0]));
  OK(fdbroker_object_get(context, 1, names, &cached, 0, got));
  CHECK(got[0].ptr == first);
  OK(fdbroker_object_release(context, &got[0]));
  object.bytes = "2";
  OK(fdbroker_object_put(context, 1, &object, &replace, SOON, &version));
  unsigned waited = 0;
  do {
    OK(fdbroker_object_get(context, 1, names, &cached, SOON, got));
    uint64_t now = got[0].version;
    OK(fdbroker_object_release(context, &got[0]));
    if (now == version) break;
    nap_ms(1);
  } while (waited++ < SOON);
  CHECK(waited < SOON);
  OK(fdbroker_object_empty_cache(context, &kept));
  CHECK(kept == 1);
  OK(fdbroker_close(context));
}

static void a_forked_child_is_refused_and_the_parent_undisturbed(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_new_object_t object = bytes_object("fork", "bytes");
  OK(fdbroker_object_put(context, 1, &object, NULL, SOON, NULL));
  fdbroker_object_t got = get(context, "fork");
  fdbroker_object_group_t *group;
  fdbroker_new_object_t making = new_object("making", 10);
  OK(fdbroker_object_create(context, 1, &making, NULL, SOON, &group));
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    const char *name = "fork";
    void *bytes;
    fdbroker_object_t copy = got, more = {.struct_size = sizeof more};
    int bad = fdbroker_object_get(context, 1, &name, NULL, 0, &more) != FDBROKER_NOT_CONNECTED;
    bad |= fdbroker_object_release(context, &copy) != FDBROKER_NOT_CONNECTED;
    bad |= fdbroker_object_data(group, 0, &bytes, NULL) != FDBROKER_NOT_CONNECTED;
    bad |= fdbroker_object_close(group) != FDBROKER_OK;
    _exit(bad);
  }
  CHECK(status_of(child) == 0);
  CHECK(is(&got, "bytes"));
  OK(fdbroker_object_write(group, 0, 0, "parent", 6));
  OK(fdbroker_object_seal(group, SOON, NULL));
  OK(fdbroker_object_close(group));
  OK(fdbroker_object_release(context, &got));
  OK(fdbroker_close(context));
}

static void wrong_arguments_are_refused(void) {
  fdbroker_t *context = open_at(&broker);
  fdbroker_new_object_t object = new_object("wrong", 1), none = new_object(NULL, 1);
  fdbroker_object_options_t options = with_flags(FDBROKER_OBJECT_UNPIN);
  fdbroker_object_group_t *group = (void *)1;
  fdbroker_object_t got = {.struct_size = sizeof got};
  fdbroker_object_watch_t *watch = (void *)1;
  fdbroker_object_event_t event = {.struct_size = sizeof event};
  const char *name = "not \xff UTF-8", *wide = "";
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(NULL, 1, &object, NULL, SOON, &group));
  CHECK(group == NULL);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(context, 1, NULL, NULL, SOON, &group));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(context, 1, &none, NULL, SOON, &group));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(context, 1, &object, &options, SOON, &group));
  options.flags = 0;
  options.place = 77;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(context, 1, &object, &options, SOON, &group));
  options.place = FDBROKER_PLACE_FD;
  options.fd = -1;
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_create(context, 1, &object, &options, SOON, &group));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_put(context, 1, &object, NULL, SOON, NULL));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_get(context, 1, &name, NULL, SOON, &got));
  CODE(FDBROKER_BAD_HANDLE, fdbroker_object_get(context, 1, &wide, NULL, SOON, &got));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_get(context, 1, NULL, NULL, SOON, &got));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_seal(NULL, SOON, NULL));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_watch(context, NULL, 0, SOON, &watch));
  CHECK(watch == NULL);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_object_watch_next(NULL, 0, &event));
  OK(fdbroker_object_watch_close(NULL));
  OK(fdbroker_object_list_close(NULL));
  CHECK(fdbroker_object_is_current(context, NULL) == 0);
  OK(fdbroker_close(context));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  RUN(a_group_sealed_is_had_by_name_in_another_context);
  RUN(objects_put_are_listed_replaced_and_deleted);
  RUN(what_is_kept_by_a_private_broker_says_that_it_ends_with_it);
  RUN(a_version_lasts_as_the_one_that_it_replaces_unless_told_otherwise);
  RUN(metadata_comes_whole_or_says_how_much_there_is);
  RUN(a_get_started_waits_without_blocking_and_can_be_cancelled);
  RUN(a_group_is_begun_and_sealed_without_blocking);
  RUN(so_it_is_in_dispatch_mode);
  RUN(a_group_started_tells_and_is_sealed_again_when_its_name_is_free);
  RUN(a_group_closed_while_its_seal_is_under_way_ends_with_that);
  RUN(objects_are_put_without_blocking);
  RUN(groups_cancelled_leave_nothing);
  RUN(memory_that_is_mapped_is_busy_and_can_be_sealed_later);
  RUN(a_group_given_up_leaves_nothing);
  RUN(a_cached_object_needs_no_message_and_a_new_version_is_seen);
  RUN(a_forked_child_is_refused_and_the_parent_undisturbed);
  RUN(wrong_arguments_are_refused);
  broker_stop(&broker);
  return end();
}
