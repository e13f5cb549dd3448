/* The ways in which a program finds the driver's calls; each must lead to the same ones. Built twice: with -DLINKED it is
 * linked to libcuda. usage: entry [CASE]... */
#include "shapes.h"

#ifdef LINKED
CUresult cuGetProcAddress(const char *, void **, int, uint64_t), cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
#endif

/* The handles are the layer's where it is told to, and nowhere else. */
static void ipc_works(void) {
  CUdeviceptr base;
  CUipcMemHandle handle;
  size_t bytes = 0;
  DRIVER(cu.cuMemAlloc(&base, 2u << 20));
  DRIVER(cu.cuIpcGetMemHandle(&handle, base));
  CHECK((memcmp(&handle, "FDBH", 4) == 0) == (getenv("EXPECT_MALLOC") != NULL));
  CHECK(cu.cuMemGetAddressRange(NULL, &bytes, base) == CUDA_SUCCESS && bytes == 2u << 20);
  DRIVER(cu.cuMemFree(base));
}
/* Exports and imports by the calls that were found. */
static void share_works(void) {
  DRIVER(cu.cuInit(0));
  push_context();
  size_t before = whole_card();
  Buffer buffer = new_buffer(1);
  int number = export_of(buffer.handle);
  CHECK(is_export(number));
  int pidfd = pidfd_open(getpid(), 0), fd = pidfd_getfd(pidfd, number, 0);
  CHECK(fd_shows(fd, 1));
  CHECK(close(fd) == 0 && close(pidfd) == 0 && close(number) == 0);
  free_buffer(buffer);
  CHECK(COMES_TRUE(free_bytes() == before));
  ipc_works();
}

static void calls_when_found_by_get_proc_address_v2_share_memory(void) {
  CHECK(find_as_cudart());
  share_works();
}
static void calls_when_found_by_get_proc_address_share_memory(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  GetProcAddress get = library ? (GetProcAddress)dlsym(library, "cuGetProcAddress") : NULL;
  MUST(get != NULL);
  CHECK(find_by_get_proc_address(get, CUDA_VERSION));
  share_works();
}
/* The call gives itself, in the form of the version that is asked for. */
static void calls_when_get_proc_address_gives_itself_share_memory(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  GetProcAddressV2 first = library ? (GetProcAddressV2)dlsym(library, "cuGetProcAddress_v2") : NULL, newer = NULL;
  GetProcAddress old = NULL;
  int status = -1;
  MUST(first != NULL);
  CHECK(first("cuGetProcAddress", (void **)&newer, CUDA_VERSION, 0, &status) == CUDA_SUCCESS && status == 0 && newer);
  CHECK(first("cuGetProcAddress", (void **)&old, 11030, 0, &status) == CUDA_SUCCESS && status == 0 && old);
  /* The one form takes an argument more than the other. */
  CHECK(newer == first && (void *)old == dlsym(library, "cuGetProcAddress") && (void *)old != (void *)newer);
  memset(&cu, 0, sizeof cu);
  CHECK(find_by_get_proc_address_v2(newer));
  share_works();
  memset(&cu, 0, sizeof cu);
  newer = NULL;
  CHECK(find_by_get_proc_address(old, CUDA_VERSION));
  share_works();
  CHECK(old("cuGetProcAddress", (void **)&newer, CUDA_VERSION, 0) == CUDA_SUCCESS && newer);
  memset(&cu, 0, sizeof cu);
  CHECK(find_by_get_proc_address_v2(newer));
  share_works();
}
#ifndef LINKED
/* A program that looks whether there is a driver. */
static void calls_when_no_driver_is_loaded_are_not_found(void) {
  const char *names[] = {"cuInit", "cuMemCreate", "cuMemExportToShareableHandle", "cuGetProcAddress", "cuGetProcAddress_v2"};
  void *program = dlopen(NULL, RTLD_NOW);
  MUST(program != NULL);
  for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
    CHECK(dlsym(RTLD_DEFAULT, names[at]) == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_NEXT, names[at]) == NULL && dlerror() != NULL);
    CHECK(dlsym(program, names[at]) == NULL && dlerror() != NULL);
  }
}
#endif
/* What is not there, or not yet in that version, is not made up. */
static void calls_when_unknown_or_too_new_are_not_found(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = &found;
  GetProcAddressV2 get = library ? (GetProcAddressV2)dlsym(library, "cuGetProcAddress_v2") : NULL;
  int status = -1;
  MUST(get != NULL);
  get("cuNoSuchCall", &found, CUDA_VERSION, 0, &status);
  CHECK(found == NULL && status == 1);
  found = &found;
  get("cuMemCreate", &found, 9000, 0, &status);
  CHECK(found == NULL && status == 2);
  CHECK(get(NULL, &found, CUDA_VERSION, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  CHECK(get("cuMemCreate", NULL, CUDA_VERSION, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  CHECK(get("cuMemCreate", &found, CUDA_VERSION, 0, NULL) == CUDA_SUCCESS && found);
  CHECK(dlsym(library, "cuNoSuchCall") == NULL && dlerror() != NULL);
}
static void calls_when_found_by_dlsym_share_memory(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  MUST(library != NULL);
  CHECK(find_by_dlsym(library));
  share_works();
}
static void calls_when_found_by_dlsym_default_share_memory(void) {
  MUST(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
  CHECK(find_by_dlsym(RTLD_DEFAULT));
  share_works();
}
/* The next after this program. */
static void calls_when_found_by_dlsym_next_share_memory(void) {
  MUST(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
  CHECK(find_by_dlsym(RTLD_NEXT));
  share_works();
}
#ifdef LINKED
static void calls_when_linked_share_memory(void) {
  CHECK(find_linked());
  share_works();
}
static void calls_when_linked_get_proc_address_gives_them_share_memory(void) {
  CHECK(find_by_get_proc_address_v2(cuGetProcAddress_v2));
  share_works();
  CHECK(find_by_get_proc_address(cuGetProcAddress, CUDA_VERSION));
  share_works();
}
/* With another.c preloaded, before the layer or after it. */
static void calls_when_another_library_is_preloaded_share_memory(void) {
  unsigned (*seen)(void) = (unsigned (*)(void))dlsym(RTLD_DEFAULT, "another_seen");
  MUST(seen != NULL);
  calls_when_linked_share_memory();
  CHECK(getenv("ANOTHER_IS_FIRST") == NULL || seen() > 0);
}
#endif

static const Row rows[] = {
#ifdef LINKED
    SPECIAL(calls_when_another_library_is_preloaded_share_memory),
    CASE(calls_when_linked_share_memory),
    CASE(calls_when_linked_get_proc_address_gives_them_share_memory),
#endif
#ifndef LINKED
    CASE(calls_when_no_driver_is_loaded_are_not_found),
#endif
    CASE(calls_when_found_by_get_proc_address_v2_share_memory),
    CASE(calls_when_found_by_get_proc_address_share_memory),
    CASE(calls_when_get_proc_address_gives_itself_share_memory),
    CASE(calls_when_unknown_or_too_new_are_not_found),
    CASE(calls_when_found_by_dlsym_share_memory),
    CASE(calls_when_found_by_dlsym_default_share_memory),
    CASE(calls_when_found_by_dlsym_next_share_memory),
};

int main(int argc, char **argv) { return run_rows(rows, sizeof rows / sizeof *rows, argc, argv); }
