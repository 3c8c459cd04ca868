/* Loaded beside libgpumem.so: a child is forked, once, at a moment that another thread of the program may choose by chance.
 * FORKING=lock: before a lock of an open file description is taken; FORKING=map: before a mapping is kept from children.
 * The child stays for twenty seconds, in a session of its own, without the program's first three descriptors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void child(const char *when) {
    static int done;
    const char *wanted = getenv("FORKING");
    if (done || !wanted || strcmp(wanted, when)) return;
    done = 1;
    if (fork() != 0) return;
    setsid();
    // The library's own work blocks all signals, and the alarm has to end the child.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int fd = 0; fd < 3; fd++) close(fd);
    alarm(20);
    for (;;) pause();
}

int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_OFD_SETLK) child("lock");
    return ((__typeof__(&fcntl))dlsym(RTLD_NEXT, "fcntl"))(fd, command, argument);
}

int madvise(void *address, size_t bytes, int advice) {
    if (advice == MADV_DONTFORK) child("map");
    return ((__typeof__(&madvise))dlsym(RTLD_NEXT, "madvise"))(address, bytes, advice);
}
