// For the broker alone: preloaded, it takes the stand-in's files for VMM fds, and nothing else of the driver is to be seen.
// Must never have a function of CUDA: programs are to find the driver in their own way.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "card.h"
#include "looks.h"
