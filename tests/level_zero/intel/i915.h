// The part of the kernel's interface to Intel's GPUs that node.c answers: numbers and layouts of include/uapi/drm/drm.h and
// include/uapi/drm/i915_drm.h, written down here because not every machine has those headers. Must never differ from them.
#ifndef I915_H
#define I915_H
#include <stddef.h>
#include <stdint.h>

// The low byte of a request of DRM's ('d').
enum {
    DRM_VERSION = 0x00, DRM_GEM_CLOSE = 0x09, DRM_GET_CAP = 0x0c, DRM_SET_CLIENT_CAP = 0x0d,
    DRM_PRIME_HANDLE_TO_FD = 0x2d, DRM_PRIME_FD_TO_HANDLE = 0x2e,
    I915 = 0x40, // the driver's own begin here
    I915_GETPARAM = I915 + 0x06, I915_GEM_CREATE = I915 + 0x1b, I915_GEM_SET_DOMAIN = I915 + 0x1f, I915_SET_TILING = I915 + 0x21,
    I915_GET_TILING = I915 + 0x22, I915_MMAP_OFFSET = I915 + 0x24, I915_EXECBUFFER2 = I915 + 0x29, I915_WAIT = I915 + 0x2c,
    I915_CONTEXT_CREATE = I915 + 0x2d, I915_CONTEXT_DESTROY = I915 + 0x2e, I915_REG_READ = I915 + 0x31,
    I915_RESET_STATS = I915 + 0x32, I915_USERPTR = I915 + 0x33, I915_CONTEXT_GETPARAM = I915 + 0x34,
    I915_CONTEXT_SETPARAM = I915 + 0x35, I915_QUERY = I915 + 0x39, I915_VM_CREATE = I915 + 0x3a, I915_VM_DESTROY = I915 + 0x3b,
    I915_GEM_CREATE_EXT = I915 + 0x3c,
};

struct drm_version {
    int major, minor, patch;
    size_t name_length;
    char *name;
    size_t date_length;
    char *date;
    size_t text_length;
    char *text;
};
struct drm_gem_close { uint32_t handle, pad; };
struct drm_cap { uint64_t which, value; };
struct drm_prime { uint32_t handle, flags; int32_t fd; };

struct i915_getparam { int32_t which; int *value; };
enum { PARAM_CHIPSET = 4, PARAM_REVISION = 32, PARAM_SUBSLICES = 33, PARAM_UNITS = 34, PARAM_SCHEDULER = 41, PARAM_TIMESTAMP_HZ = 51 };

// GEM_CREATE_EXT begins like GEM_CREATE.
struct i915_create { uint64_t size; uint32_t handle; };
struct i915_userptr { uint64_t pointer, size; uint32_t flags, handle; };
struct i915_mmap_offset { uint32_t handle, pad; uint64_t offset, flags, extensions; };
struct i915_context { uint32_t id, flags; uint64_t extensions; };
struct i915_context_param { uint32_t id, size; uint64_t which, value; };
enum { CONTEXT_GTT_SIZE = 3, CONTEXT_VM = 9 };
struct i915_vm { uint64_t extensions; uint32_t flags, id; };
struct i915_register { uint64_t offset, value; };

struct i915_query_item { uint64_t which; int32_t length; uint32_t flags; uint64_t data; };
struct i915_query { uint32_t count, flags; uint64_t items; };
enum { QUERY_TOPOLOGY = 1, QUERY_ENGINES = 2, QUERY_REGIONS = 4, QUERY_GEOMETRY = 6 };

struct i915_engine { uint16_t class, instance; uint32_t pad; uint64_t flags, capabilities; uint16_t logical, pad16[3]; uint64_t pad64[3]; };
struct i915_engines { uint32_t count, pad[3]; struct i915_engine list[3]; };
enum { CLASS_RENDER = 0, CLASS_COPY = 1, CLASS_COMPUTE = 4, ENGINE_HAS_LOGICAL = 1 };

struct i915_region { uint16_t class, instance; uint32_t pad; uint64_t size, free, visible, visible_free, pad64[6]; };
struct i915_regions { uint32_t count, pad[3]; struct i915_region list[2]; };
enum { REGION_SYSTEM = 0, REGION_DEVICE = 1 };

struct i915_topology {
    uint16_t flags, slices, subslices, units, subslice_offset, subslice_stride, unit_offset, unit_stride;
    uint8_t masks[1 + 8 + 64]; // of slices, of each slice's subslices, of each subslice's units
};

_Static_assert(sizeof(struct i915_engine) == 56 && sizeof(struct i915_region) == 88 && sizeof(struct drm_prime) == 12, "the kernel's layout");
#endif
