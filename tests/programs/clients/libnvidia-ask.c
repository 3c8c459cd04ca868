/* A library with a vendor's name that looks functions up for itself. */
#include <dlfcn.h>

void *ask(void *handle, const char *name) {
    /* Not a tail call: the return address must lie here. */
    void *volatile found = dlsym(handle, name);
    return found;
}
