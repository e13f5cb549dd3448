/* What regen.sh gives to bindgen: the core API and the tables between loader, layers and drivers. */
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
