/* As ctor, with the library linked to it. */
#include "ctor.c"
