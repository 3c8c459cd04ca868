/* Loaded into a program beside libgpumem.so: does what the campaign of random faults has to find.
 * PLANTED: death, hang, answer, ledger */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *planted(void) {
    const char *what = getenv("PLANTED");
    return what ? what : "";
}

__attribute__((constructor)) static void start(void) {
    const char *what = planted();
    if (!strcmp(what, "death")) abort();
    while (!strcmp(what, "hang")) pause();
    if (!strcmp(what, "answer")) puts("planted");
}

/* Bytes of the header's version. */
__attribute__((destructor)) static void end(void) {
    const char *dir = getenv("GPUMEM_DIR");
    DIR *entries = !strcmp(planted(), "ledger") && dir ? opendir(dir) : NULL;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        int file = strstr(entry->d_name, ".ledger") ? openat(dirfd(entries), entry->d_name, O_WRONLY) : -1;
        if (file >= 0 && pwrite(file, "\377\377\377\377", 4, 8) == 4) close(file);
    }
}
