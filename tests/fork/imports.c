/* Imports in a forked child: a touch is a fault, whatever the child has mapped, and never another byte. */
#define _GNU_SOURCE
#include "fork.h"

#define SIZE ((size_t)1 << 20)

static struct broker broker;
static fdbroker_t *context;
static fdbroker_import_t import;

/* In a child: maps and fills memory of its own, of many sizes, and looks whether some of it lies where the import was. */
static void map_much(void) {
  const unsigned char *begin = import.ptr, *end = begin + import.size_bytes;
  for (unsigned at = 0; at < 24; at++) {
    size_t size = (size_t)(at % 8 + 1) << 17;
    unsigned char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) _exit(3);
    memset(own, 100 + (int)at, size);
    if (own < end && begin < own + size) _exit(4);
  }
}

static void reads_after_mapping_much(void) {
  map_much();
  touch(import.ptr, import.size_bytes);
}

static void writes_after_mapping_much(void) {
  map_much();
  *(volatile unsigned char *)import.ptr = 1;
}

static void an_import_read_in_a_child_faults_and_its_place_stays_empty(void) {
  CHECK(faults(reads_after_mapping_much));
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

static void an_import_written_in_a_child_faults_and_its_place_stays_empty(void) {
  CHECK(faults(writes_after_mapping_much));
  CHECK(all_bytes_are(import.ptr, 7, SIZE));
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  fdbroker_t *owner = open_at(&broker);
  fdbroker_handle_t handle;
  void *memory;
  OK(fdbroker_host_alloc(owner, FDBROKER_HOST_ISOLATED, SIZE, SOON, &memory, &handle));
  memset(memory, 7, SIZE);
  context = open_at(&broker);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_WRITE, SOON, &import));
  MUST(import.ptr != NULL);
  RUN(an_import_read_in_a_child_faults_and_its_place_stays_empty);
  RUN(an_import_written_in_a_child_faults_and_its_place_stays_empty);
  OK(fdbroker_close(context));
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
