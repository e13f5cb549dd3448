/* dl.c: a program that is not linked with the library: prints a list of fdbroker_dl.h (list, required), or loads the library and
 * prints what it found. Compiled as C and as C++. Must never name the library on its link line. */
#include <fdbroker_dl.h>

#define PRINT(name) puts(#name);

static int list(void)
{
  FDBROKER_DL_FUNCTIONS(PRINT)
  return 0;
}

static int required(void)
{
  FDBROKER_DL_REQUIRED(PRINT)
  return 0;
}

int main(int argc, char **argv)
{
  fdbroker_dl_t dl;
  fdbroker_t *broker = NULL;
  fdbroker_options_t options;
  fdbroker_code_t code;

  if (argc > 1 && strcmp(argv[1], "list") == 0) {
    return list();
  }
  if (argc > 1 && strcmp(argv[1], "required") == 0) {
    return required();
  }
  code = fdbroker_dl_load(&dl);
  if (code != FDBROKER_OK) {
    printf("code %d: %s\n", (int)code, dl.error);
    return 3;
  }
  if (dl.fdbroker_handle_same == NULL) {
    printf("an older library\n");
    return 4;
  }
  dl.fdbroker_options_init(&options);
  code = dl.fdbroker_open(&options, &broker);
  printf("version %s, open: %s\n", dl.fdbroker_version(), code == FDBROKER_OK ? "OK" : dl.fdbroker_error_name(code));
  dl.fdbroker_close(broker);
  fdbroker_dl_unload(&dl);
  return dl.library == NULL ? 0 : 1;
}
