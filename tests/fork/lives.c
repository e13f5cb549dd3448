/* Children of a process with imports and what they do next: they exec, outlive their parent, use a broker of their own accord. */
#define _GNU_SOURCE
#include "fork.h"

#define SIZE ((size_t)1 << 20)

static struct broker broker;
static fdbroker_t *context;
static fdbroker_handle_t handle;
static fdbroker_import_t import;

/* In a child: a context of its own, and the memory imported by it. */
static void imports_anew(void) {
  fdbroker_t *own = open_at(&broker);
  fdbroker_import_t again;
  if (fdbroker_import(own, &handle, FDBROKER_IMPORT_READ, SOON, &again) != FDBROKER_OK) _exit(3);
  if (!all_bytes_are(again.ptr, 7, SIZE)) _exit(4);
  if (fdbroker_import_release(own, &again) != FDBROKER_OK || fdbroker_close(own) != FDBROKER_OK) _exit(5);
}

static void a_child_that_imports_anew_reads_the_same_bytes(void) {
  CHECK(child_does(imports_anew) == 0);
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

static void execs(void) {
  execlp("sh", "sh", "-c", "exit 21", NULL);
}

static void a_child_that_execs_runs_the_program(void) { CHECK(child_does(execs) == 21); }

int main(void) {
  begin();
  broker_start(&broker, NULL);
  fdbroker_t *owner = open_at(&broker);
  void *memory;
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, SIZE, SOON, &memory, &handle));
  memset(memory, 7, SIZE);
  context = open_at(&broker);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_WRITE, SOON, &import));
  MUST(import.ptr != NULL);
  RUN(a_child_that_imports_anew_reads_the_same_bytes);
  RUN(a_child_that_execs_runs_the_program);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
