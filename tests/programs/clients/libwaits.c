/* Loaded behind libgpumem.so: counts what that library has the kernel do that may take milliseconds. At the end it says
 * how often it registered for membarrier, or had the kernel enlarge the table of descriptors, while the process had one
 * thread (early) and more (late), and how many files it removed on the process's first thread (here) and on others (there). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED of linux/membarrier.h */
enum { REGISTER = 1 << 4 };

static atomic_int early, late, here, there;

static void waits_if_late(void) {
    struct stat tasks;
    ++*(!stat("/proc/self/task", &tasks) && tasks.st_nlink == 3 ? &early : &late);
}

/* How many descriptors the kernel's table has room for. */
static int room(void) {
    char text[4096] = "";
    FILE *status = fopen("/proc/self/status", "re");
    const char *line = status && fread(text, 1, sizeof text - 1, status) ? strstr(text, "\nFDSize:") : NULL;
    int size = 0;
    if (status) fclose(status);
    return line && sscanf(line, " FDSize: %d", &size) == 1 ? size : 0;
}

int fcntl(int fd, int command, ...) {
    static _Atomic(int (*)(int, int, ...)) next;
    if (!next) next = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    va_list list;
    va_start(list, command);
    void *arg = va_arg(list, void *);
    va_end(list);
    if (command == F_DUPFD_CLOEXEC && (int)(long)arg >= room()) waits_if_late();
    return next(fd, command, arg);
}

long syscall(long number, ...) {
    static _Atomic(long (*)(long, ...)) next;
    if (!next) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list list;
    long args[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) args[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_membarrier && (int)args[0] == REGISTER) waits_if_late();
    return next(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

int unlink(const char *path) {
    static _Atomic(int (*)(const char *)) next;
    if (!next) next = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    int result = next(path);
    /* What is not there is looked up in memory. */
    if (!result) ++*(gettid() == getpid() ? &here : &there);
    return result;
}

__attribute__((destructor)) static void end(void) {
    fprintf(stderr, "waits: early %d late %d here %d there %d\n", early, late, here, there);
}
