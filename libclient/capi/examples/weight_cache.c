/* weight_cache.c: a small cache of weights. The first start reads the files and keeps them as named objects; every later start
 * gets them mapped, also after the first has ended.
 *
 *     cc weight_cache.c -o weight_cache $(pkg-config --cflags --libs fdbroker)
 *     fdbroker run -- sh                     # a private broker, unless the node runs one
 *     ./weight_cache llama weights/N.bin...  # reads the files
 *     ./weight_cache llama weights/N.bin...  # has them at once
 */
#define _POSIX_C_SOURCE 200809L
#include <fdbroker.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 253, NAME_BYTES = 256, KEEP_MS = 600000, PATIENCE_MS = 60000 };

/* Ends the program when a call failed. The library's text says what was tried, why it failed and what to do. */
static void check(fdbroker_code_t code, const char *call)
{
  if (code != FDBROKER_OK) {
    fprintf(stderr, "weight_cache: %s: %s: %s\n", call, fdbroker_error_name(code), fdbroker_last_error());
    exit(1);
  }
}

static void check_file(int is_good, const char *path)
{
  if (!is_good) {
    perror(path);
    exit(1);
  }
}

static uint64_t size_of(const char *path)
{
  FILE *file = fopen(path, "rb");
  check_file(file != NULL && fseek(file, 0, SEEK_END) == 0, path);
  long size = ftell(file);
  check_file(size >= 0 && fclose(file) == 0, path);
  return (uint64_t)size;
}

/* Reads the files into one group of objects, which appear at once. Answers 0 when another start does so already. */
static int load(fdbroker_t *broker, int count, char names[][NAME_BYTES], char **files)
{
  static fdbroker_new_object_t objects[MOST];
  fdbroker_object_options_t options = {.struct_size = sizeof options, .flags = FDBROKER_OBJECT_KEEP, .ttl_ms = KEEP_MS};
  fdbroker_object_group_t *group = NULL;

  for (int i = 0; i < count; i++) {
    objects[i].struct_size = sizeof objects[i];
    objects[i].name = names[i];
    objects[i].size_bytes = size_of(files[i]);
  }
  fdbroker_code_t code = fdbroker_object_create(broker, (size_t)count, objects, &options, PATIENCE_MS, &group);
  if (code == FDBROKER_EXISTS) {
    return 0;
  }
  check(code, "object_create");
  for (int i = 0; i < count; i++) {
    void *bytes = NULL;
    uint64_t size = 0;
    FILE *file = fopen(files[i], "rb");
    check_file(file != NULL, files[i]);
    check(fdbroker_object_data(group, (size_t)i, &bytes, &size), "object_data");
    /* Straight into the memory that readers get. */
    check_file(fread(bytes, 1, size, file) == size, files[i]);
    fclose(file);
  }
  check(fdbroker_object_seal(group, PATIENCE_MS, NULL), "object_seal");
  check(fdbroker_object_close(group), "object_close");
  return 1;
}

static double now_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
  static char names[MOST][NAME_BYTES];
  static const char *pointers[MOST];
  static fdbroker_object_t weights[MOST];
  fdbroker_t *broker = NULL;
  int count = argc - 2;

  if (count < 1 || count > MOST) {
    fprintf(stderr, "usage: weight_cache MODEL FILE...\n");
    return 2;
  }
  for (int i = 0; i < count; i++) {
    snprintf(names[i], NAME_BYTES, "%s/%d", argv[1], i);
    pointers[i] = names[i];
  }
  weights[0].struct_size = sizeof weights[0];
  check(fdbroker_open(NULL, &broker), "open");

  const char *how = "got";
  double begun = now_ms();
  fdbroker_code_t code = fdbroker_object_get(broker, (size_t)count, pointers, NULL, 0, weights);
  if (code == FDBROKER_NOT_FOUND || code == FDBROKER_NOT_SEALED) {
    int has_read = code == FDBROKER_NOT_FOUND && load(broker, count, names, argv + 2);
    how = has_read ? "read" : "awaited";
    code = fdbroker_object_get(broker, (size_t)count, pointers, NULL, PATIENCE_MS, weights);
  }
  check(code, "object_get");
  double took = now_ms() - begun;

  uint64_t bytes = 0, sum = 0;
  for (int i = 0; i < count; i++) {
    const unsigned char *weight = weights[i].ptr;
    bytes += weights[i].size_bytes;
    for (uint64_t at = 0; at < weights[i].size_bytes; at++) {
      sum += weight[at];
    }
    check(fdbroker_object_release(broker, &weights[i]), "object_release");
  }
  printf("weight_cache: %s %d weights, %" PRIu64 " bytes, sum %" PRIu64 "\n", how, count, bytes, sum);
  fprintf(stderr, "weight_cache: in %.1f ms\n", took);
  check(fdbroker_close(broker), "close");
  return 0;
}
