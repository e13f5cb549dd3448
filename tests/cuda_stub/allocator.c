/* An allocator of the program's own that is preloaded, as jemalloc is: it finds the C library's functions by dlsym at its first
 * call, and cannot give memory until then. Must never be called by what it calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

static _Thread_local int is_looking;

static void *next(const char *name) {
  /* dlsym has allocated, or freed. */
  if (is_looking) abort();
  is_looking = 1;
  void *found = dlsym(RTLD_NEXT, name);
  is_looking = 0;
  if (!found) abort();
  return found;
}

#define NEXT(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))next(#name)

void *malloc(size_t bytes) {
  NEXT(malloc);
  return real(bytes);
}
void *realloc(void *memory, size_t bytes) {
  NEXT(realloc);
  return real(memory, bytes);
}
void free(void *memory) {
  NEXT(free);
  real(memory);
}
