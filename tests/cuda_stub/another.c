/* A library of the program's own that is preloaded beside others, as tracers and sanitizers are: it stands in the place of
 * calls, and finds the next ones by RTLD_NEXT. Must never know the others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned seen;
unsigned another_seen(void);
unsigned another_seen(void) { return seen; }

/* The next function of this name; with a wrong caller this one would be found again, and call itself without end. */
#define NEXT(name) \
  static __typeof__(&name) next; \
  if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
  if (!next || next == name) abort(); \
  seen++

int cuMemRelease(unsigned long long handle);
int cuMemRelease(unsigned long long handle) {
  NEXT(cuMemRelease);
  return next(handle);
}
int cuMemExportToShareableHandle(void *out, unsigned long long handle, int kind, unsigned long long flags);
int cuMemExportToShareableHandle(void *out, unsigned long long handle, int kind, unsigned long long flags) {
  NEXT(cuMemExportToShareableHandle);
  return next(out, handle, kind, flags);
}
int close(int fd) {
  NEXT(close);
  return next(fd);
}
int dup(int fd) {
  NEXT(dup);
  return next(fd);
}
