// The header in C++: every name links with C linkage, and a round trip works.
#include "fdbroker.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int, char **argv) {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  options.socket = argv[1];
  fdbroker_t *broker = nullptr;
  fdbroker_handle_t handle;
  fdbroker_import_t import;
  void *memory = nullptr;
  const bool works = fdbroker_open(&options, &broker) == FDBROKER_OK &&
                     fdbroker_host_alloc(broker, FDBROKER_HOST_ARENA, 64, 10000, &memory, &handle) == FDBROKER_OK &&
                     std::strcpy(static_cast<char *>(memory), "hello") != nullptr &&
                     fdbroker_import(broker, &handle, FDBROKER_IMPORT_READ, 10000, &import) == FDBROKER_OK &&
                     std::strcmp(static_cast<char *>(import.ptr), "hello") == 0 &&
                     fdbroker_import_release(broker, &import) == FDBROKER_OK &&
                     fdbroker_host_free(broker, memory) == FDBROKER_OK && fdbroker_close(broker) == FDBROKER_OK;
  std::printf("%s  a_cpp_program_shares_memory\n", works ? "ok  " : "FAIL");
  if (!works) std::printf("      %s\n", fdbroker_last_error());
  return works ? EXIT_SUCCESS : EXIT_FAILURE;
}
