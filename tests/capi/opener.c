/* Openers: the cache keeps memory that the program opens itself, closes it once, and calls nothing in a child. */
#define _GNU_SOURCE
#include "check.h"

#include <stdatomic.h>
#include <sys/syscall.h>

#define PAGE 4096u
#define MANY 40

/* Where memory of the device begins in these tests: no address of this process. */
#define DEVICE 0x7fffff0000000000u

static struct broker broker;
static fdbroker_t *owner;
static fdbroker_handle_t handles[MANY];

/* A driver that maps (a range) or does not (a device), and counts. */
struct driver {
  int is_device, refuses, lies, writes;
  fdbroker_t *context;
  atomic_int opened, closed;
};

static fdbroker_code_t open_memory(void *user, const fdbroker_grant_t *grant, uint32_t flags,
                                   fdbroker_opened_t *opened) {
  struct driver *driver = user;
  if (grant->struct_size != sizeof *grant || grant->lease != 0 || grant->kind != FDBROKER_KIND_MEMFD ||
      grant->driver_data_len != 3 || memcmp(grant->driver_data, "xyz", 3) != 0 ||
      opened->struct_size != sizeof *opened || opened->size_bytes != PAGE)
    return FDBROKER_INTERNAL;
  if (fdbroker_close(driver->context) != FDBROKER_NOT_SUPPORTED) return FDBROKER_INTERNAL;
  if (driver->refuses) return driver->refuses;
  if (driver->is_device) {
    opened->ptr = (void *)(uintptr_t)(DEVICE + grant->fd_offset);
  } else {
    int protection = flags == FDBROKER_IMPORT_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    opened->ptr = mmap(NULL, PAGE, protection, MAP_SHARED, grant->fd, (off_t)grant->fd_offset);
    if (opened->ptr == MAP_FAILED) return FDBROKER_INTERNAL;
    opened->flags = FDBROKER_OPENED_RANGE;
  }
  driver->writes += flags == FDBROKER_IMPORT_WRITE;
  opened->data = driver;
  if (driver->lies == 1) opened->size_bytes = 0;
  if (driver->lies == 2) opened->flags |= 1u << 9;
  driver->opened++;
  return FDBROKER_OK;
}

static void close_memory(void *user, const fdbroker_opened_t *opened) {
  struct driver *driver = user;
  driver->closed++;
  if (opened->data != driver) driver->closed += 1000;
  if (!driver->is_device) munmap(opened->ptr, PAGE);
}

static fdbroker_t *open_with_driver(struct driver *driver) {
  fdbroker_t *context = open_at(&broker);
  driver->context = context;
  OK(fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, open_memory, close_memory, driver));
  return context;
}

static void memory_is_opened_once_and_closed_once(void) {
  struct driver driver = {0};
  fdbroker_t *context = open_with_driver(&driver);
  fdbroker_import_t imports[MANY], again;
  int before = open_fds();
  OK(fdbroker_import_many(context, MANY, handles, FDBROKER_IMPORT_READ, SOON, imports, NULL));
  for (int at = 0; at < MANY; at++) {
    CHECK(all_bytes_are(imports[at].ptr, at, PAGE));
    OK(fdbroker_import_hit(context, &handles[at], FDBROKER_IMPORT_READ, &again));
    CHECK(again.ptr == imports[at].ptr && fdbroker_import_is_current(context, &again) == 1);
    OK(fdbroker_import_release(context, &again));
    OK(fdbroker_import_release(context, &imports[at]));
  }
  CHECK(driver.opened == MANY && driver.closed == 0 && open_fds() == before);
  EVENTUALLY(ledger(&broker, "mapped_leases") == MANY && ledger(&broker, "open_leases") == 0);
  /* For writing it is opened anew, and what it replaces is closed. */
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_WRITE, SOON, &again));
  CHECK(driver.writes == 1 && driver.opened == MANY + 1 && driver.closed == 1);
  OK(fdbroker_import_release(context, &again));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(driver.closed == MANY + 1);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
  /* What is in use is closed by fdbroker_close(), too. */
  OK(fdbroker_import(context, &handles[1], FDBROKER_IMPORT_READ, SOON, &again));
  OK(fdbroker_close(context));
  CHECK(driver.opened == MANY + 2 && driver.closed == MANY + 2);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0);
}

static void memory_of_a_device_is_at_the_devices_address(void) {
  struct driver driver = {.is_device = 1};
  fdbroker_t *context = open_with_driver(&driver);
  fdbroker_handle_t inside;
  fdbroker_import_t import;
  OK(fdbroker_get_handle(owner, (void *)(uintptr_t)(0x40000000u + 3 * PAGE + 100), 0, 0, &inside));
  OK(fdbroker_import(context, &inside, FDBROKER_IMPORT_READ, SOON, &import));
  CHECK((uintptr_t)import.ptr == DEVICE + 3 * PAGE + 100 && import.size_bytes == PAGE - 100);
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_close(context));
  CHECK(driver.opened == 1 && driver.closed == 1);
}

static void limits_ends_and_the_brokers_wishes_close_what_is_unused(void) {
  struct driver driver = {0};
  fdbroker_options_t options;
  fdbroker_t *context = NULL;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  fdbroker_options_init(&options);
  options.socket = broker.socket;
  options.cache_max_entries = 4;
  OK(fdbroker_open(&options, &context));
  driver.context = context;
  OK(fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, open_memory, close_memory, &driver));
  for (int at = 0; at < MANY; at++) {
    OK(fdbroker_import(context, &handles[at], FDBROKER_IMPORT_READ, SOON, &import));
    OK(fdbroker_import_release(context, &import));
  }
  CHECK(driver.opened == MANY && driver.closed == MANY - 4);
  OK(fdbroker_empty_cache(context, NULL));
  /* The end of an allocation closes an unused import by itself. */
  int fd = sealed_memfd(PAGE, 7);
  fdbroker_allocation_t allocation = memfd_allocation(PAGE);
  allocation.driver_data = "xyz";
  allocation.driver_data_len = 3;
  OK(fdbroker_register(owner, &allocation, fd, SOON, &handle));
  close(fd);
  OK(fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_unregister(owner, &handle));
  CODE(FDBROKER_AGAIN, fdbroker_import_hit(context, &handle, FDBROKER_IMPORT_READ, &import));
  CODE(FDBROKER_STALE, fdbroker_import(context, &handle, FDBROKER_IMPORT_READ, SOON, &import));
  EVENTUALLY(driver.closed == MANY + 1 && driver.opened == MANY + 1);
  OK(fdbroker_close(context));
}

static void an_opener_that_fails_leaves_nothing(void) {
  struct driver driver = {.refuses = FDBROKER_NOT_SUPPORTED};
  fdbroker_t *context = open_with_driver(&driver);
  fdbroker_import_t import;
  CODE(FDBROKER_NOT_SUPPORTED, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(import.ptr == NULL && strstr(fdbroker_last_error(), "opener") != NULL);
  driver.refuses = 12345;
  CODE(FDBROKER_INTERNAL, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  /* AGAIN of a request says that it is not done: an item that ends with it is CANCELLED. */
  fdbroker_request_t *request;
  fdbroker_code_t code;
  unsigned waited = 0;
  driver.refuses = FDBROKER_AGAIN;
  CODE(FDBROKER_AGAIN, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_start(context, 1, &handles[0], FDBROKER_IMPORT_READ, SOON, &request));
  while ((code = fdbroker_import_test(request, &import, NULL)) == FDBROKER_AGAIN && waited++ < SOON) nap_ms(1);
  CODE(FDBROKER_CANCELLED, code);
  CHECK(import.ptr == NULL && strstr(fdbroker_last_error(), "opener") != NULL);
  driver.refuses = 0;
  for (driver.lies = 1; driver.lies <= 2; driver.lies++) {
    CODE(FDBROKER_INTERNAL, fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
    CHECK(driver.opened == driver.lies && driver.closed == driver.lies);
  }
  CHECK(stats_of(context).entries == 0);
  EVENTUALLY(ledger(&broker, "mapped_leases") == 0 && ledger(&broker, "open_leases") == 0);
  OK(fdbroker_close(context));
}

static void another_opener_leaves_what_is_open_to_the_one_before(void) {
  struct driver first = {0}, second = {.is_device = 1};
  fdbroker_t *context = open_with_driver(&first);
  second.context = context;
  fdbroker_import_t import;
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, open_memory, close_memory, &second));
  OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(all_bytes_are(import.ptr, 0, PAGE));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_import(context, &handles[1], FDBROKER_IMPORT_READ, SOON, &import));
  CHECK((uintptr_t)import.ptr == DEVICE + PAGE);
  OK(fdbroker_import_release(context, &import));
  /* Without one the library maps the memory itself. */
  OK(fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, NULL, NULL, NULL));
  OK(fdbroker_import(context, &handles[2], FDBROKER_IMPORT_READ, SOON, &import));
  CHECK(all_bytes_are(import.ptr, 2, PAGE));
  OK(fdbroker_import_release(context, &import));
  OK(fdbroker_empty_cache(context, NULL));
  CHECK(first.opened == 1 && first.closed == 1 && second.opened == 1 && second.closed == 1);
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_set_opener(context, 77, open_memory, close_memory, &first));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, open_memory, NULL, &first));
  CODE(FDBROKER_INVALID_ARGUMENT, fdbroker_set_opener(NULL, FDBROKER_KIND_MEMFD, NULL, NULL, NULL));
  OK(fdbroker_close(context));
}

/* Whether the page is mapped in this process, by a system call that does not touch it. */
static int is_mapped(void *page) {
  unsigned char state;
  return mincore(page, PAGE, &state) == 0;
}

static int in_child(fdbroker_t *context, struct driver *driver, fdbroker_import_t *used, void *unused) {
  fdbroker_import_t import;
  bad_checks = 0;
  CHECK(!is_mapped(used->ptr) && !is_mapped(unused));
  for (int at = 0; at < 3; at++) {
    CODE(FDBROKER_NOT_CONNECTED, fdbroker_import(context, &handles[at], FDBROKER_IMPORT_READ, SOON, &import));
    CODE(FDBROKER_NOT_CONNECTED, fdbroker_import_hit(context, &handles[at], FDBROKER_IMPORT_READ, &import));
  }
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_import_release(context, used));
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_empty_cache(context, NULL));
  CODE(FDBROKER_NOT_CONNECTED, fdbroker_set_opener(context, FDBROKER_KIND_MEMFD, NULL, NULL, NULL));
  OK(fdbroker_close(context));
  CHECK(driver->opened == 2 && driver->closed == 0);
  return bad_checks != 0;
}

static pid_t by_fork(void) { return fork(); }
static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); }

static void in_a_child_nothing_is_called_and_no_range_is_mapped(void) {
  pid_t (*const ways[])(void) = {by_fork, by_clone};
  for (int way = 0; way < 2; way++) {
    struct driver driver = {0};
    fdbroker_t *context = open_with_driver(&driver);
    fdbroker_import_t used, unused;
    OK(fdbroker_import(context, &handles[0], FDBROKER_IMPORT_READ, SOON, &used));
    OK(fdbroker_import(context, &handles[1], FDBROKER_IMPORT_READ, SOON, &unused));
    void *at = unused.ptr;
    OK(fdbroker_import_release(context, &unused));
    fflush(stdout);
    fdbroker_import_t copy = used;
    pid_t child = ways[way]();
    MUST(child >= 0);
    if (child == 0) _exit(in_child(context, &driver, &copy, at));
    CHECK(status_of(child) == 0);
    /* The parent notices nothing. */
    CHECK(fdbroker_import_is_current(context, &used) == 1 && all_bytes_are(used.ptr, 0, PAGE));
    OK(fdbroker_import_release(context, &used));
    OK(fdbroker_close(context));
    CHECK(driver.opened == 2 && driver.closed == 2);
  }
}

int main(void) {
  begin();
  broker_start(&broker, NULL);
  owner = open_at(&broker);
  int fd = memfd_create("capi-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  MUST(fd >= 0 && ftruncate(fd, MANY * PAGE) == 0);
  for (int at = 0; at < MANY; at++) {
    unsigned char page[PAGE];
    memset(page, at, PAGE);
    MUST(pwrite(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
  }
  MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  for (int at = 0; at < MANY; at++) {
    fdbroker_allocation_t allocation = memfd_allocation(PAGE);
    allocation.fd_offset = (uint64_t)at * PAGE;
    allocation.base = 0x40000000u + (uint64_t)at * PAGE;
    allocation.driver_data = "xyz";
    allocation.driver_data_len = 3;
    OK(fdbroker_register(owner, &allocation, fd, SOON, &handles[at]));
  }
  close(fd);
  RUN(memory_is_opened_once_and_closed_once);
  RUN(memory_of_a_device_is_at_the_devices_address);
  RUN(limits_ends_and_the_brokers_wishes_close_what_is_unused);
  RUN(an_opener_that_fails_leaves_nothing);
  RUN(another_opener_leaves_what_is_open_to_the_one_before);
  RUN(in_a_child_nothing_is_called_and_no_range_is_mapped);
  OK(fdbroker_close(owner));
  broker_stop(&broker);
  return end();
}
