// The GPUs of the stand-in for libcuda: which there are, which of them this process sees (CUDA_VISIBLE_DEVICES), and who they are.
// Part of libcuda.c. Must never let an ordinal mean a GPU outside the process that counts by it.
//
// Where the rules are from: [guide] CUDA programming guide 13, 5.2.1 "Device Enumeration and Properties"; [mig] MIG user guide, "CUDA
// Device Enumeration"; [api] CUDA driver API, the call's own section; [seen] what driver 580.159.04 did with two H100s, where these
// are silent. Nothing of MIG was seen.
#include <strings.h>

// A node has eight GPUs, and a GPU seven instances.
enum { GPUS_MOST = 8, INSTANCES_MOST = 7, UUID_BYTES = 16, NAME_BYTES = 41 };
// CU_DEVICE_INVALID. CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, ..._PCI_DEVICE_ID, ..._PCI_DOMAIN_ID.
enum { NOWHERE = -2, PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };
// GPU 0 is 0000:C0:00.0, GPU 1 0000:C1:00.0.
enum { FIRST_BUS = 0xc0, BUS_ID_BYTES = 13 };

// A place is a GPU of the node, or an instance of one: the GPU's number + GPUS_MOST * (0, or the instance's from 1). It stands in names
// of files, for all processes. Of each ordinal its place.
static int seen[GPUS_MOST], seen_count;

static int gpus(void) {
    const char *text = getenv("FDBROKER_CUDA_STUB_DEVICES");
    int count = text ? atoi(text) : 1;
    return count > GPUS_MOST ? GPUS_MOST : count;
}
static int gpu_of(int place) { return place % GPUS_MOST; }
static int instance_of(int place) { return place / GPUS_MOST; }
// FDBROKER_CUDA_STUB_MIG=2,0: GPU 0 is cut into two instances, GPU 1 is not in MIG mode.
static int instances(int gpu) {
    const char *text = getenv("FDBROKER_CUDA_STUB_MIG");
    for (; text && gpu; gpu--) text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL;
    int count = text ? atoi(text) : 0;
    return count > INSTANCES_MOST ? INSTANCES_MOST : count;
}
// [mig] Of a GPU in MIG mode CUDA takes the first instance.
static int first_part(int gpu) { return instances(gpu) > 0 ? gpu + GPUS_MOST : gpu; }

// fdb000.. is GPU 0, fdb011.. GPU 1; fdb10001.. the first instance of GPU 0.
static void uuid_of(int place, unsigned char uuid[UUID_BYTES]) {
    memset(uuid, 0x5a, UUID_BYTES);
    uuid[0] = 0xfd, uuid[1] = instance_of(place) ? 0xb1 : 0xb0, uuid[2] = gpu_of(place) * 0x11;
    if (instance_of(place)) uuid[3] = instance_of(place);
}
// As nvidia-smi -L prints it.
static void name_of(int place, char name[NAME_BYTES]) {
    unsigned char uuid[UUID_BYTES];
    uuid_of(place, uuid);
    char *end = name + sprintf(name, instance_of(place) ? "MIG-" : "GPU-");
    for (int i = 0; i < UUID_BYTES; i++) end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static int is_name(const char *entry) { return !strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4); }
// [guide] The begin of a GPU's UUID is enough, an instance's stands whole. [seen] Digits may be capitals, and what follows a whole
// UUID counts for nothing.
static int is_named(int place, const char *entry, size_t length) {
    char name[NAME_BYTES];
    name_of(place, name);
    if (instance_of(place) && length < NAME_BYTES - 1) return 0;
    if (length > NAME_BYTES - 1) length = NAME_BYTES - 1;
    return !strncmp(name, entry, 4) && !strncasecmp(name, entry, length);
}
// [guide] Enough digits to be the only one.
static int by_name(const char *entry, size_t length) {
    int found = NOWHERE;
    for (int gpu = 0; gpu < gpus(); gpu++)
        for (int instance = 0; instance <= instances(gpu); instance++) {
            int place = gpu + GPUS_MOST * instance;
            if (!is_named(place, entry, length)) continue;
            if (found != NOWHERE) return NOWHERE;
            found = instance ? place : first_part(gpu);
        }
    return found;
}
// [seen] A number is what strtol(3) reads: after spaces, and up to anything else.
static int by_number(const char *entry) {
    char *end;
    long gpu = strtol(entry, &end, 10);
    return end != entry && gpu >= 0 && gpu < gpus() ? first_part(gpu) : NOWHERE;
}

// [guide] In the order of the list, up to its first invalid entry. [seen] The first entry says whether it is one of numbers or of
// UUIDs: one of the other kind is invalid. A repeated GPU fails cuInit as a whole. 0, or cuInit's error.
static int look_through(const char *list) {
    int by_names = is_name(list);
    for (const char *entry = list;; entry++) {
        size_t length = strcspn(entry, ",");
        int place = is_name(entry) != by_names ? NOWHERE : by_names ? by_name(entry, length) : by_number(entry);
        if (place == NOWHERE) break;
        for (int i = 0; i < seen_count; i++)
            if (seen[i] == place) return INVALID_DEVICE;
        seen[seen_count++] = place;
        entry += length;
        // More than the GPUs are only instances, of which the first counts.
        if (!*entry || seen_count == GPUS_MOST) break;
    }
    return SUCCESS;
}
// [guide] Without the variable all GPUs are seen, with an empty one none. [seen] It is read by the cuInit that succeeds, not before.
// [mig] Where an instance is seen, it is the only one, and no other GPU is: CUDA enumerates a single one.
static int look_for_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    seen_count = 0;
    if (!list)
        for (int gpu = 0; gpu < gpus(); gpu++) seen[seen_count++] = first_part(gpu);
    int result = list ? look_through(list) : SUCCESS;
    for (int i = 0; !result && i < seen_count; i++)
        if (instance_of(seen[i])) seen[0] = seen[i], seen_count = 1;
    return result ? result : seen_count > 0 ? SUCCESS : NO_DEVICE;
}

static int is_device(int device) { return device >= 0 && device < seen_count; }
// NOWHERE: a GPU that this process does not see.
static int ordinal_of(int place) {
    for (int device = 0; device < seen_count; device++)
        if (seen[device] == place) return device;
    return NOWHERE;
}
// Whether memory of the place may be mapped for the device. [seen] It need not be of a GPU that this process sees. [mig] Instances have
// no way to each other, nor to other GPUs.
static int is_in_reach(int device, int place) {
    if (seen[device] == place) return 1;
    return !getenv("FDBROKER_CUDA_STUB_NO_PEERS") && !instance_of(seen[device]) && !instance_of(place);
}

#define NEED_DEVICE(device) NEED_INIT; if (!is_device(device)) return INVALID_DEVICE

API cuDeviceGetCount(int *count) { NEED_INIT; *count = seen_count; return SUCCESS; }
API cuDeviceGet(int *device, int ordinal) { NEED_DEVICE(ordinal); *device = ordinal; return SUCCESS; }
// As of real GPUs, the name says the model, and not which one it is.
API cuDeviceGetName(char *name, int bytes, int device) {
    NEED_DEVICE(device);
    snprintf(name, bytes, "stub of fdbroker's tests, no GPU%s", instance_of(seen[device]) ? " MIG" : "");
    return SUCCESS;
}
// [api] Of an instance its own UUID; the call's first form knows GPUs only.
API cuDeviceGetUuid_v2(unsigned char *uuid, int device) { NEED_DEVICE(device); uuid_of(seen[device], uuid); return SUCCESS; }
API cuDeviceGetUuid(unsigned char *uuid, int device) { NEED_DEVICE(device); uuid_of(gpu_of(seen[device]), uuid); return SUCCESS; }
API cuDeviceGetAttribute(int *value, int attribute, int device) {
    NEED_DEVICE(device);
    // VMM, POSIX fds, fabric handles, multicast; no dma-buf, no RDMA.
    *value = attribute == 102 || attribute == 103 || attribute == 128 || attribute == 132;
    if ((attribute == 102 || attribute == 103) && getenv("FDBROKER_CUDA_STUB_NO_VMM")) *value = 0;
    if (attribute == PCI_BUS) *value = FIRST_BUS + gpu_of(seen[device]);
    return SUCCESS;
}
// [api] 13 bytes. [seen] With less room as much as there is, and an error.
API cuDeviceGetPCIBusId(char *id, int bytes, int device) {
    NEED_DEVICE(device);
    snprintf(id, bytes > 0 ? bytes : 0, "0000:%02X:00.0", FIRST_BUS + gpu_of(seen[device]));
    return bytes < BUS_ID_BYTES ? INVALID_VALUE : SUCCESS;
}
// [api] [domain]:[bus]:[device].[function], or without the domain or the function. [seen] A GPU that is not seen is none.
API cuDeviceGetByPCIBusId(int *device, const char *id) {
    NEED_INIT;
    unsigned domain, bus, slot, function = 0;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(id, "%x:%x.%x", &bus, &slot, &function) != 3) return INVALID_VALUE;
    }
    for (int i = 0; i < seen_count; i++)
        if (!domain && !slot && !function && bus == FIRST_BUS + (unsigned)gpu_of(seen[i])) return *device = i, SUCCESS;
    return INVALID_DEVICE;
}
// [seen] A device is no peer of itself.
API cuDeviceCanAccessPeer(int *can, int device, int peer) {
    NEED_DEVICE(device);
    if (!is_device(peer)) return INVALID_DEVICE;
    *can = device != peer && is_in_reach(device, seen[peer]);
    return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *total, int device) {
    NEED_DEVICE(device);
    size_t free_bytes;
    pthread_mutex_lock(&mutex);
    int result = card_info(seen[device], &free_bytes, total) ? OPERATING_SYSTEM : SUCCESS;
    pthread_mutex_unlock(&mutex);
    return result;
}
