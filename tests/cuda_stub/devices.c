/* Which GPUs the stand-in shows to a process, who they are, and whose memory is whose. What is expected of whole GPUs is what driver
 * 580.159.04 answered on two H100s, but for their UUIDs and addresses; devices.h has the sources. usage: devices [CASE]... */
#include "shapes.h"

#define INVALID_DEVICE 101
#define NO_DEVICE 100
#define DEVICE_ORDINAL 9
/* CU_DEVICE_INVALID. */
#define NOWHERE (-2)
/* A place of devices.h: an instance of a GPU, from 1. */
#define INSTANCE(gpu, number) ((gpu) + 8 * (number))
#define GPU_0 "GPU-fdb0005a-5a5a-5a5a-5a5a-5a5a5a5a5a5a"
#define GPU_1 "GPU-fdb0115a-5a5a-5a5a-5a5a-5a5a5a5a5a5a"
#define MIG_0_1 "MIG-fdb10001-5a5a-5a5a-5a5a-5a5a5a5a5a5a"
#define MIG_0_2 "MIG-fdb10002-5a5a-5a5a-5a5a-5a5a5a5a5a5a"

typedef unsigned char Uuid[16];

/* Calls that driver.h does not have. The last two are the stand-in's own. */
#define CALLS(CALL) \
  CALL(cuDeviceGetCount, (int *)) \
  CALL(cuDeviceGet, (CUdevice *, int)) \
  CALL(cuDeviceGetUuid, (Uuid, CUdevice)) \
  CALL(cuDeviceGetUuid_v2, (Uuid, CUdevice)) \
  CALL(cuDeviceGetAttribute, (int *, int, CUdevice)) \
  CALL(cuDeviceGetPCIBusId, (char *, int, CUdevice)) \
  CALL(cuDeviceGetByPCIBusId, (CUdevice *, const char *)) \
  CALL(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice)) \
  CALL(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
  CALL(cuCtxGetDevice, (CUdevice *)) \
  CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr)) \
  CALL(fdbroker_cuda_stub_uuid, (Uuid, CUdeviceptr)) \
  CALL(fdbroker_cuda_stub_access, (int *, CUdevice, CUdeviceptr))
#define POINTER(name, parameters) static CUresult(*name) parameters;
CALLS(POINTER)

static int place_of(const Uuid uuid) { return uuid[2] / 0x11 + (uuid[1] == 0xb1 ? 8 * uuid[3] : 0); }
static void load(void) {
  MUST(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL && find_by_dlsym(RTLD_DEFAULT));
#define FIND(name, parameters) MUST((name = (CUresult(*) parameters)dlsym(RTLD_DEFAULT, #name)) != NULL);
  CALLS(FIND)
#undef FIND
}
static void enter(CUdevice device) {
  CUcontext context;
  DRIVER(cu.cuDevicePrimaryCtxRetain(&context, device));
  DRIVER(cu.cuCtxPushCurrent(context));
}
static void set(const char *name, const char *value) { MUST((value ? setenv(name, value, 1) : unsetenv(name)) == 0); }
/* A second process that sees these GPUs alone; NULL: all. */
static Peer start_seeing(const char *visible, const char *role) {
  set("CUDA_VISIBLE_DEVICES", visible);
  Peer peer = start(role);
  set("CUDA_VISIBLE_DEVICES", NULL);
  return peer;
}

/* --- which GPUs --- */

static Message seen_here(void) {
  Message found = {.result = cu.cuInit(0)};
  Uuid uuid;
  int count = 0;
  if (cuDeviceGetCount(&count) != CUDA_SUCCESS) return found;
  found.count = count;
  for (int device = 0; device < count; device++) {
    DRIVER(cuDeviceGetUuid_v2(uuid, device));
    found.numbers[device] = place_of(uuid);
  }
  return found;
}
static void tells_what_it_sees(void) {
  load();
  Message found = seen_here();
  tell(PEER_FD, &found);
}
static Message seen_with(const char *visible) {
  Peer peer = start_seeing(visible, "tells_what_it_sees");
  Message found = hear(peer.socket);
  CHECK(finish(peer) == 0);
  return found;
}

typedef struct { const char *visible; int result; unsigned count; int places[2]; } Sight;
static void check_sights(const Sight *sights, size_t count) {
  for (size_t at = 0; at < count; at++) {
    const Sight *is = &sights[at];
    Message found = seen_with(is->visible);
    int is_so = found.result == is->result && found.count == is->count;
    for (unsigned device = 0; is_so && device < is->count; device++) is_so = found.numbers[device] == is->places[device];
    if (!is_so) printf("      with '%s': %d, %u devices\n", is->visible ? is->visible : "(nothing)", found.result, found.count);
    CHECK(is_so);
  }
}
static void gpus_when_the_variable_names_some_are_seen_as_the_driver_reads_it(void) {
  static const Sight sights[] = {
      {NULL, 0, 2, {0, 1}}, {"", NO_DEVICE, 0, {0}},
      {"0,1", 0, 2, {0, 1}}, {"1", 0, 1, {1}}, {"1,0", 0, 2, {1, 0}},
      /* A repeated one. */
      {"0,0", INVALID_DEVICE, 0, {0}}, {"0,1,0", INVALID_DEVICE, 0, {0}}, {GPU_1 "," GPU_1, INVALID_DEVICE, 0, {0}},
      /* An invalid one hides all behind it. */
      {"0,7,1", 0, 1, {0}}, {"0,-1,1", 0, 1, {0}}, {"-1", NO_DEVICE, 0, {0}}, {"abc", NO_DEVICE, 0, {0}}, {"0,,1", 0, 1, {0}},
      {",0", NO_DEVICE, 0, {0}}, {"0,", 0, 1, {0}}, {"0,GPU-ffffffff,1", 0, 1, {0}}, {"GPU-ffffffff", NO_DEVICE, 0, {0}},
      {"NoDevFiles", NO_DEVICE, 0, {0}},
      /* Names, and begins of names. */
      {GPU_1, 0, 1, {1}}, {GPU_1 "," GPU_0, 0, 2, {1, 0}}, {"GPU-fdb01", 0, 1, {1}}, {"GPU-fdb0115a", 0, 1, {1}},
      {"GPU-fdb0", NO_DEVICE, 0, {0}}, {"GPU-", NO_DEVICE, 0, {0}}, {"GPU-FDB0115A-5A5A-5A5A-5A5A-5A5A5A5A5A5A", 0, 1, {1}},
      {"gpu-fdb01", NO_DEVICE, 0, {0}}, {"fdb0115a-5a5a-5a5a-5a5a-5a5a5a5a5a5a", NO_DEVICE, 0, {0}}, {GPU_1 "x", 0, 1, {1}},
      {"MIG-" GPU_1, NO_DEVICE, 0, {0}},
      /* Numbers and names do not go together. */
      {GPU_1 ",0", 0, 1, {1}}, {"0," GPU_1, 0, 1, {0}}, {GPU_1 ",1", 0, 1, {1}},
      /* Numbers as they are read. */
      {"0, 1", 0, 2, {0, 1}}, {" 1", 0, 1, {1}}, {"1 ,0", 0, 2, {1, 0}}, {"01", 0, 1, {1}}, {"0x1", 0, 1, {0}}, {"1x", 0, 1, {1}},
      {"0;1", 0, 1, {0}},
  };
  check_sights(sights, sizeof sights / sizeof *sights);
}
static void instances_when_a_gpu_has_some_are_seen_one_at_a_time(void) {
  static const Sight sights[] = {
      {NULL, 0, 1, {INSTANCE(0, 1)}}, {MIG_0_1, 0, 1, {INSTANCE(0, 1)}}, {MIG_0_2, 0, 1, {INSTANCE(0, 2)}},
      {MIG_0_2 "," MIG_0_1, 0, 1, {INSTANCE(0, 2)}}, {GPU_1 "," MIG_0_2, 0, 1, {INSTANCE(0, 2)}},
      {"0", 0, 1, {INSTANCE(0, 1)}}, {"1", 0, 1, {1}}, {"1,0", 0, 1, {INSTANCE(0, 1)}}, {GPU_0, 0, 1, {INSTANCE(0, 1)}},
      /* The whole UUID; no such instance. */
      {"MIG-fdb10002", NO_DEVICE, 0, {0}}, {"MIG-fdb11101-5a5a-5a5a-5a5a-5a5a5a5a5a5a", NO_DEVICE, 0, {0}},
  };
  set("FDBROKER_CUDA_STUB_MIG", "2,0");
  check_sights(sights, sizeof sights / sizeof *sights);
  set("FDBROKER_CUDA_STUB_MIG", NULL);
}
/* Who cannot name an instance by cuDeviceGetUuid gets its GPU. */
static void tells_whose_instance_it_sees(void) {
  load();
  DRIVER(cu.cuInit(0));
  Uuid whole, part;
  DRIVER(cuDeviceGetUuid(whole, 0));
  DRIVER(cuDeviceGetUuid_v2(part, 0));
  Message found = {.numbers = {place_of(whole), place_of(part)}};
  tell(PEER_FD, &found);
}
static void instance_when_asked_by_the_first_form_is_its_gpu(void) {
  set("FDBROKER_CUDA_STUB_MIG", "0,3");
  Peer peer = start_seeing("1", "tells_whose_instance_it_sees");
  set("FDBROKER_CUDA_STUB_MIG", NULL);
  Message found = hear(peer.socket);
  CHECK(finish(peer) == 0 && found.numbers[0] == 1 && found.numbers[1] == INSTANCE(1, 1));
}
static void variable_when_read_is_that_of_the_init_that_succeeds(void) {
  load();
  set("CUDA_VISIBLE_DEVICES", "0,0");
  CHECK(seen_here().result == INVALID_DEVICE);
  set("CUDA_VISIBLE_DEVICES", "1");
  Message found = seen_here();
  CHECK(found.result == CUDA_SUCCESS && found.count == 1 && found.numbers[0] == 1);
  set("CUDA_VISIBLE_DEVICES", "");
  found = seen_here();
  CHECK(found.result == CUDA_SUCCESS && found.count == 1 && found.numbers[0] == 1);
}

/* --- who they are --- */

static void gpus_when_asked_have_uuids_and_addresses_of_their_own(void) {
  load();
  CHECK(cuDeviceCanAccessPeer((int[1]){0}, 0, 1) == CUDA_ERROR_NOT_INITIALIZED);
  DRIVER(cu.cuInit(0));
  Uuid uuids[2], old;
  char id[20] = "###################";
  int found = -1, value = -1;
  for (int device = 0; device < 2; device++) {
    DRIVER(cuDeviceGetUuid_v2(uuids[device], device));
    CHECK(cuDeviceGetUuid(old, device) == CUDA_SUCCESS && memcmp(old, uuids[device], sizeof old) == 0);
    CHECK(cuDeviceGetPCIBusId(id, 13, device) == CUDA_SUCCESS && strcmp(id, device ? "0000:C1:00.0" : "0000:C0:00.0") == 0);
    CHECK(cuDeviceGetByPCIBusId(&found, id) == CUDA_SUCCESS && found == device);
    CHECK(cuDeviceGetByPCIBusId(&found, id + 5) == CUDA_SUCCESS && found == device);
    CHECK(cuDeviceGetAttribute(&value, 33, device) == CUDA_SUCCESS && value == 0xc0 + device);
    CHECK(cuDeviceGetAttribute(&value, 34, device) == CUDA_SUCCESS && value == 0);
  }
  CHECK(memcmp(uuids[0], uuids[1], sizeof *uuids) != 0);
  CHECK(cuDeviceGetPCIBusId(id, 5, 0) == CUDA_ERROR_INVALID_VALUE && strcmp(id, "0000") == 0);
  CHECK(cuDeviceGetByPCIBusId(&found, "0000:c1:00") == CUDA_SUCCESS && found == 1);
  CHECK(cuDeviceGetByPCIBusId(&found, "0000:c2:00.0") == INVALID_DEVICE);
  CHECK(cuDeviceGetByPCIBusId(&found, "c1:00") == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetByPCIBusId(&found, "") == CUDA_ERROR_INVALID_VALUE);
  size_t bytes = 0;
  CHECK(cuDeviceGetUuid_v2(old, 2) == INVALID_DEVICE && cuDeviceGetUuid(old, -1) == INVALID_DEVICE);
  CHECK(cuDeviceTotalMem_v2(&bytes, 1) == CUDA_SUCCESS && bytes > 0);
  CHECK(cuDeviceTotalMem_v2(&bytes, 2) == INVALID_DEVICE);
  CHECK(cuDeviceGet(&found, 2) == INVALID_DEVICE);
}
static void uuid_when_asked_for_by_version_is_the_form_of_that_version(void) {
  load();
  GetProcAddressV2 get = (GetProcAddressV2)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
  void *found = NULL;
  int status = -1;
  CHECK(get("cuDeviceGetUuid", &found, 11030, 0, &status) == CUDA_SUCCESS && found == dlsym(RTLD_DEFAULT, "cuDeviceGetUuid"));
  CHECK(get("cuDeviceGetUuid", &found, CUDA_VERSION, 0, &status) == CUDA_SUCCESS && found == dlsym(RTLD_DEFAULT, "cuDeviceGetUuid_v2"));
}

/* --- whose memory --- */

/* Of a handle, for the current context's device 0: what the driver says, and what is so. */
typedef struct { int location, ordinal, place, access, is_shown; } Facts;
static Facts facts_of(CUmemGenericAllocationHandle handle, unsigned seed) {
  Facts facts = {NOWHERE - 1, NOWHERE - 1, -1, -1, 0};
  CUmemAllocationProp prop;
  CUdeviceptr base;
  Uuid uuid;
  CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  DRIVER(cu.cuMemAddressReserve(&base, SEGMENT, SEGMENT, 0, 0));
  DRIVER(cu.cuMemMap(base, SEGMENT, 0, handle, 0));
  DRIVER(cuPointerGetAttribute(&facts.ordinal, DEVICE_ORDINAL, base));
  DRIVER(fdbroker_cuda_stub_uuid(uuid, base));
  facts.location = prop.location.id;
  facts.place = place_of(uuid);
  facts.access = cu.cuMemSetAccess(base, SEGMENT, &desc, 1);
  facts.is_shown = facts.access == CUDA_SUCCESS && shows(base, seed);
  unmap_one(base);
  return facts;
}
static void imports_what_it_is_told(void) {
  load();
  DRIVER(cu.cuInit(0));
  enter(0);
  Message told = hear(PEER_FD), answer = {.result = 0};
  for (unsigned at = 0; at < told.count; at++) {
    int fd = take_fd(told.pid, told.numbers[at]);
    CUmemGenericAllocationHandle handle = import_of(fd);
    Facts facts = facts_of(handle, at);
    memcpy(&answer.numbers[at * 5], &facts, sizeof facts);
    DRIVER(cu.cuMemRelease(handle));
    CHECK(close(fd) == 0);
  }
  tell(PEER_FD, &answer);
}
/* A buffer of a device whose bytes say which. */
static int export_from(CUdevice device, Buffer *buffer) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  DRIVER(cu.cuMemCreate(&buffer->handle, SEGMENT, &prop, 0));
  buffer->base = map_one(buffer->handle);
  fill(buffer->base, device);
  return export_of(buffer->handle);
}
static int is_same(const Message *answer, int at, Facts wanted) {
  return memcmp(&answer->numbers[at * 5], &wanted, sizeof wanted) == 0;
}
/* The trainer sees both GPUs, and has memory on each; the engine sees what the variable says. */
static void memory_when_imported_stays_on_its_gpu_whatever_the_importer_sees(void) {
  static const struct { const char *visible; Facts of[2]; } engines[] = {
      {"0,1", {{0, 0, 0, 0, 1}, {1, 1, 1, 0, 1}}},
      {"1,0", {{1, 1, 0, 0, 1}, {0, 0, 1, 0, 1}}},
      /* The ordinal of a hidden GPU's memory is wrong in the driver, too. */
      {"0", {{0, 0, 0, 0, 1}, {NOWHERE, 0, 1, 0, 1}}},
      {GPU_1, {{NOWHERE, 0, 0, 0, 1}, {0, 0, 1, 0, 1}}},
  };
  load();
  DRIVER(cu.cuInit(0));
  enter(0);
  Buffer buffers[2];
  Message told = {.pid = getpid(), .count = 2};
  for (int device = 0; device < 2; device++) told.numbers[device] = export_from(device, &buffers[device]);
  for (size_t at = 0; at < sizeof engines / sizeof *engines; at++) {
    Peer peer = start_seeing(engines[at].visible, "imports_what_it_is_told");
    tell(peer.socket, &told);
    Message answer = hear(peer.socket);
    CHECK(finish(peer) == 0);
    CHECK(is_same(&answer, 0, engines[at].of[0]) && is_same(&answer, 1, engines[at].of[1]));
  }
  /* Where GPUs have no way to each other, the import succeeds, and access is refused. */
  set("FDBROKER_CUDA_STUB_NO_PEERS", "1");
  Peer peer = start_seeing("1", "imports_what_it_is_told");
  tell(peer.socket, &told);
  Message answer = hear(peer.socket);
  CHECK(finish(peer) == 0);
  CHECK(is_same(&answer, 0, (Facts){NOWHERE, 0, 0, INVALID_DEVICE, 0}) && is_same(&answer, 1, (Facts){0, 0, 1, 0, 1}));
  set("FDBROKER_CUDA_STUB_NO_PEERS", NULL);
  for (int device = 0; device < 2; device++) {
    CHECK(close(told.numbers[device]) == 0);
    free_buffer(buffers[device]);
  }
}
static void exports_from_its_instance(void) {
  load();
  DRIVER(cu.cuInit(0));
  enter(0);
  Buffer buffer;
  Message told = {.pid = getpid(), .count = 1, .numbers = {export_from(0, &buffer)}};
  tell(PEER_FD, &told);
  hear(PEER_FD);
}
static void instances_when_they_share_have_no_way_to_each_other(void) {
  set("FDBROKER_CUDA_STUB_MIG", "2,0");
  static const struct { const char *visible; Facts facts; } engines[] = {
      {MIG_0_2, {0, 0, INSTANCE(0, 2), 0, 1}},
      {MIG_0_1, {NOWHERE, 0, INSTANCE(0, 2), INVALID_DEVICE, 0}},
      {"1", {NOWHERE, 0, INSTANCE(0, 2), INVALID_DEVICE, 0}},
  };
  Peer trainer = start_seeing(MIG_0_2, "exports_from_its_instance");
  Message told = hear(trainer.socket);
  for (size_t at = 0; at < sizeof engines / sizeof *engines; at++) {
    Peer peer = start_seeing(engines[at].visible, "imports_what_it_is_told");
    tell(peer.socket, &told);
    Message answer = hear(peer.socket);
    CHECK(finish(peer) == 0 && is_same(&answer, 0, engines[at].facts));
  }
  tell(trainer.socket, &told);
  CHECK(finish(trainer) == 0);
  set("FDBROKER_CUDA_STUB_MIG", NULL);
}
static void access_when_set_is_each_locations_own(void) {
  load();
  DRIVER(cu.cuInit(0));
  enter(0);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr base;
  CUmemAccessDesc descs[] = {{{1, 0}, 3}, {{1, 1}, 3}, {{1, 7}, 3}};
  int can = -1, is_given = -1;
  CHECK(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS && can == 1);
  CHECK(cuDeviceCanAccessPeer(&can, 1, 1) == CUDA_SUCCESS && can == 0);
  CHECK(cuDeviceCanAccessPeer(&can, 0, 2) == INVALID_DEVICE);
  DRIVER(create(&handle));
  DRIVER(cu.cuMemAddressReserve(&base, SEGMENT, SEGMENT, 0, 0));
  DRIVER(cu.cuMemMap(base, SEGMENT, 0, handle, 0));
  CHECK(cu.cuMemSetAccess(base, SEGMENT, &descs[2], 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu.cuMemSetAccess(base, SEGMENT, &descs[1], 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fdbroker_cuda_stub_access(&is_given, 1, base) == CUDA_SUCCESS && is_given == 0);
  /* The other GPU alone. */
  CHECK(cu.cuMemSetAccess(base, SEGMENT, &descs[1], 1) == CUDA_SUCCESS);
  CHECK(fdbroker_cuda_stub_access(&is_given, 1, base) == CUDA_SUCCESS && is_given == 1);
  CHECK(fdbroker_cuda_stub_access(&is_given, 0, base) == CUDA_SUCCESS && is_given == 0);
  CHECK(cu.cuMemSetAccess(base, SEGMENT, descs, 2) == CUDA_SUCCESS);
  CHECK(fdbroker_cuda_stub_access(&is_given, 0, base) == CUDA_SUCCESS && is_given == 1);
  unmap_one(base);
  DRIVER(cu.cuMemRelease(handle));
}
static void memory_when_taken_is_missing_on_its_own_gpu_alone(void) {
  load();
  DRIVER(cu.cuInit(0));
  Buffer buffer;
  int device = -1;
  enter(0);
  size_t before = whole_card();
  CHECK(close(export_from(1, &buffer)) == 0);
  CHECK(free_bytes() == before);
  enter(1);
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS && device == 1);
  CHECK(free_bytes() == before - SEGMENT);
  free_buffer(buffer);
  CHECK(free_bytes() == before);
}

static const Row rows[] = {
    ROLE(tells_what_it_sees),
    ROLE(tells_whose_instance_it_sees),
    ROLE(imports_what_it_is_told),
    ROLE(exports_from_its_instance),
    CASE(gpus_when_the_variable_names_some_are_seen_as_the_driver_reads_it),
    CASE(instances_when_a_gpu_has_some_are_seen_one_at_a_time),
    CASE(instance_when_asked_by_the_first_form_is_its_gpu),
    SPECIAL(variable_when_read_is_that_of_the_init_that_succeeds),
    CASE(gpus_when_asked_have_uuids_and_addresses_of_their_own),
    CASE(uuid_when_asked_for_by_version_is_the_form_of_that_version),
    CASE(memory_when_imported_stays_on_its_gpu_whatever_the_importer_sees),
    CASE(instances_when_they_share_have_no_way_to_each_other),
    CASE(access_when_set_is_each_locations_own),
    CASE(memory_when_taken_is_missing_on_its_own_gpu_alone),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
