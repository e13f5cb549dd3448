/* fdbroker_dl.h: loads libfdbroker.so.0 at run time, so that a program can use fdbroker where it is installed
 * and run without it where it is not. Copy this file and fdbroker.h into the program; C99 and C++11.
 *
 *     fdbroker_dl_t dl;
 *     if (fdbroker_dl_load(&dl) != FDBROKER_OK) {
 *       fprintf(stderr, "going without fdbroker: %s\n", dl.error);
 *     } else {
 *       fdbroker_t *broker = NULL;
 *       fdbroker_code_t code = dl.fdbroker_open(NULL, &broker);
 *       ...
 *       dl.fdbroker_close(broker);
 *       fdbroker_dl_unload(&dl);
 *     }
 *
 * Every function of fdbroker.h is a member of the same name, with the type that fdbroker.h declares. Members of optional
 * functions (FDBROKER_DL_OPTIONAL) may be NULL after a load: look before you call one.
 * Link with -ldl where the C library is older than glibc 2.34. */
#ifndef FDBROKER_DL_H
#define FDBROKER_DL_H

#include "fdbroker.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The library to load. dlopen(3) searches LD_LIBRARY_PATH, the program's rpath and the system's places. */
#ifndef FDBROKER_DL_LIBRARY
#define FDBROKER_DL_LIBRARY "libfdbroker.so.0"
#endif

/* Calls X(name) once for every function that a program needs. */
#define FDBROKER_DL_REQUIRED(X)   \
  X(fdbroker_error_name)          \
  X(fdbroker_strerror)            \
  X(fdbroker_last_error)          \
  X(fdbroker_version)             \
  X(fdbroker_abi_version)         \
  X(fdbroker_options_init)        \
  X(fdbroker_options_init_sized)  \
  X(fdbroker_open)                \
  X(fdbroker_close)               \
  X(fdbroker_socket)              \
  X(fdbroker_is_connected)        \
  X(fdbroker_flush)               \
  X(fdbroker_register)            \
  X(fdbroker_register_many)       \
  X(fdbroker_unregister)          \
  X(fdbroker_unregister_drained)  \
  X(fdbroker_get_handle)          \
  X(fdbroker_acquire)             \
  X(fdbroker_acquire_many)        \
  X(fdbroker_lease_mapped)        \
  X(fdbroker_lease_is_current)    \
  X(fdbroker_release)             \
  X(fdbroker_release_many)        \
  X(fdbroker_acquire_start)       \
  X(fdbroker_request_test)        \
  X(fdbroker_request_cancel)      \
  X(fdbroker_import)              \
  X(fdbroker_import_many)         \
  X(fdbroker_import_is_current)   \
  X(fdbroker_import_is_final)     \
  X(fdbroker_import_release)      \
  X(fdbroker_empty_cache)         \
  X(fdbroker_stats)               \
  X(fdbroker_host_alloc)          \
  X(fdbroker_host_free)           \
  X(fdbroker_set_recall_callback) \
  X(fdbroker_set_notice_callback) \
  X(fdbroker_event_fd)            \
  X(fdbroker_dispatch)            \
  X(fdbroker_handle_parse)

/* The same for the functions that a program can do without, and all that later releases add: the member is NULL where the
 * library is older and lacks it. */
#define FDBROKER_DL_OPTIONAL(X)   \
  X(fdbroker_unregister_within)   \
  X(fdbroker_retire)              \
  X(fdbroker_register_start)      \
  X(fdbroker_register_test)       \
  X(fdbroker_import_start)        \
  X(fdbroker_import_test)         \
  X(fdbroker_import_hit)          \
  X(fdbroker_set_opener)          \
  X(fdbroker_suspend)             \
  X(fdbroker_resume)              \
  X(fdbroker_host_reclaim)        \
  X(fdbroker_handle_same)         \
  X(fdbroker_handle_virtual_fd)   \
  X(fdbroker_resolve)             \
  X(fdbroker_object_create)       \
  X(fdbroker_object_add)          \
  X(fdbroker_object_data)         \
  X(fdbroker_object_device_ptr)   \
  X(fdbroker_object_write)        \
  X(fdbroker_object_seal)         \
  X(fdbroker_object_seal_after)   \
  X(fdbroker_object_create_start) \
  X(fdbroker_object_create_test)  \
  X(fdbroker_object_seal_start)   \
  X(fdbroker_object_seal_test)    \
  X(fdbroker_object_close)        \
  X(fdbroker_object_put)          \
  X(fdbroker_object_put_start)    \
  X(fdbroker_object_put_test)     \
  X(fdbroker_object_get)          \
  X(fdbroker_object_get_start)    \
  X(fdbroker_object_get_test)     \
  X(fdbroker_object_read)         \
  X(fdbroker_object_is_current)   \
  X(fdbroker_object_release)      \
  X(fdbroker_object_empty_cache)  \
  X(fdbroker_object_delete)       \
  X(fdbroker_object_touch)        \
  X(fdbroker_object_stat)         \
  X(fdbroker_object_metadata)     \
  X(fdbroker_object_list)         \
  X(fdbroker_object_list_next)    \
  X(fdbroker_object_list_close)   \
  X(fdbroker_object_watch)        \
  X(fdbroker_object_watch_next)   \
  X(fdbroker_object_watch_close)  \
  X(fdbroker_object_watch_tell)   \
  X(fdbroker_due_open)            \
  X(fdbroker_due_fd)              \
  X(fdbroker_due_take)            \
  X(fdbroker_due_tell)            \
  X(fdbroker_due_close)           \
  X(fdbroker_request_tell)        \
  X(fdbroker_request_due_ms)      \
  X(fdbroker_set_interrupt)       \
  X(fdbroker_notice_next)         \
  X(fdbroker_notice_tell)         \
  X(fdbroker_gpu_count)           \
  X(fdbroker_gpu_set_context)     \
  X(fdbroker_gpu_alloc)           \
  X(fdbroker_gpu_free)            \
  X(fdbroker_gpu_register)        \
  X(fdbroker_gpu_retire)          \
  X(fdbroker_set_gpu_opener)      \
  X(fdbroker_import_device)       \
  X(fdbroker_pool_set)            \
  X(fdbroker_pool_alloc)          \
  X(fdbroker_pool_free)

/* The same for every function. */
#define FDBROKER_DL_FUNCTIONS(X) FDBROKER_DL_REQUIRED(X) FDBROKER_DL_OPTIONAL(X)

/* The types come from the declarations, so they cannot differ from them. */
#ifdef __cplusplus
#define FDBROKER_DL_MEMBER(name) decltype(::name) *name;
#else
#define FDBROKER_DL_MEMBER(name) __typeof__(name) *name;
#endif

typedef struct fdbroker_dl {
  void *library;   /* from dlopen(3); NULL: not loaded */
  char error[256]; /* why the last load failed; empty after a success */
  FDBROKER_DL_FUNCTIONS(FDBROKER_DL_MEMBER)
} fdbroker_dl_t;

/* Unloads the library and zeroes `dl`; does nothing when none is loaded. Close every context first. */
static inline void fdbroker_dl_unload(fdbroker_dl_t *dl)
{
  if (dl->library != NULL) {
    dlclose(dl->library);
  }
  memset(dl, 0, sizeof *dl);
}

/* Finds one function; answers 0 when the library lacks it. */
static inline int fdbroker_dl_find(fdbroker_dl_t *dl, const char *name, void *function)
{
  void *symbol = dlsym(dl->library, name);
  /* ISO C has no cast from a data pointer to a function pointer; POSIX says that both have one representation. */
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

/* Loads the library and fills every member; what `dl` held before does not matter. Answers FDBROKER_OK, or
 * FDBROKER_NOT_SUPPORTED when the library or one of the required functions is missing: dl->error then says which one and
 * what to do, and no member may be called. Several threads may load at once, each into a struct of its own. */
static inline int fdbroker_dl_load(fdbroker_dl_t *dl)
{
  const char *missing = NULL;

  memset(dl, 0, sizeof *dl);
  dl->library = dlopen(FDBROKER_DL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (dl->library == NULL) {
    const char *cause = dlerror();
    snprintf(dl->error, sizeof dl->error, "%s; install fdbroker, or name its directory in LD_LIBRARY_PATH",
             cause != NULL ? cause : FDBROKER_DL_LIBRARY " cannot be loaded");
    return FDBROKER_NOT_SUPPORTED;
  }
#define FDBROKER_DL_FIND(name)                                                \
  if (missing == NULL && !fdbroker_dl_find(dl, #name, (void *)&dl->name)) {   \
    missing = #name;                                                          \
  }
  FDBROKER_DL_REQUIRED(FDBROKER_DL_FIND)
#undef FDBROKER_DL_FIND
#define FDBROKER_DL_FIND(name) (void)fdbroker_dl_find(dl, #name, (void *)&dl->name);
  FDBROKER_DL_OPTIONAL(FDBROKER_DL_FIND)
#undef FDBROKER_DL_FIND
  if (missing != NULL) {
    fdbroker_dl_unload(dl);
    snprintf(dl->error, sizeof dl->error,
             FDBROKER_DL_LIBRARY " has no function %s: it is older than this program; install the newer fdbroker", missing);
    return FDBROKER_NOT_SUPPORTED;
  }
  return FDBROKER_OK;
}

#undef FDBROKER_DL_MEMBER

#endif /* FDBROKER_DL_H */
