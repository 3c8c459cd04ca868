/* Loaded beside libgpumem.so: the system denies that library, and nobody else, what it asks for.
 * DENIED="NAME:N" denies the Nth call of a function, DENIED="NAME:N-" all from the Nth on; `*` is any function. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char name[32];
static long nth;
static bool on;
static uintptr_t from, to;
static atomic_long calls;

static int find(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    const char *end = strrchr(info->dlpi_name, '/');
    if (!end || strcmp(end, "/libgpumem.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (!from || at < from) from = at;
        if (at + info->dlpi_phdr[i].p_memsz > to) to = at + info->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("DENIED");
    char then = 0;
    if (text && sscanf(text, "%31[^:]:%ld%c", name, &nth, &then) >= 2) on = then == '-';
    if (nth) dl_iterate_phdr(find, NULL);
}

static bool denied(const char *function, const void *caller) {
    if ((uintptr_t)caller < from || (uintptr_t)caller >= to) return false;
    if (strcmp(name, "*") && strcmp(name, function)) return false;
    long call = atomic_fetch_add(&calls, 1) + 1;
    return call == nth || (on && call > nth);
}

#define CALLER __builtin_return_address(0)
#define DENY(function, code, answer)        \
    if (nth && denied(function, CALLER)) {  \
        errno = code;                       \
        return answer;                      \
    }
#define NEXT(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))

void *__libc_malloc(size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) {
    DENY("malloc", ENOMEM, NULL)
    return __libc_malloc(size);
}
void *realloc(void *at, size_t size) {
    DENY("malloc", ENOMEM, NULL)
    return __libc_realloc(at, size);
}
int posix_memalign(void **at, size_t alignment, size_t size) {
    DENY("malloc", ENOMEM, ENOMEM)
    *at = __libc_memalign(alignment, size);
    return *at ? 0 : ENOMEM;
}
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    DENY("mmap", ENOMEM, MAP_FAILED)
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    DENY("mmap", ENOMEM, MAP_FAILED)
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
int munmap(void *at, size_t size) {
    DENY("munmap", ENOMEM, -1)
    return (int)syscall(SYS_munmap, at, size);
}
int mprotect(void *at, size_t size, int protection) {
    DENY("mprotect", ENOMEM, -1)
    return (int)syscall(SYS_mprotect, at, size, protection);
}
int madvise(void *at, size_t size, int advice) {
    DENY("madvise", EAGAIN, -1)
    return (int)syscall(SYS_madvise, at, size, advice);
}
int ftruncate(int file, off_t size) {
    DENY("ftruncate", ENOSPC, -1)
    return (int)syscall(SYS_ftruncate, file, size);
}
int ftruncate64(int file, off_t size) {
    DENY("ftruncate", ENOSPC, -1)
    return (int)syscall(SYS_ftruncate, file, size);
}
int fallocate(int file, int mode, off_t offset, off_t size) {
    DENY("fallocate", ENOSPC, -1)
    return (int)syscall(SYS_fallocate, file, mode, offset, size);
}
static int open_at(int dir, const char *path, int flags, va_list rest) {
    return (int)syscall(SYS_openat, dir, path, flags, va_arg(rest, mode_t));
}
#define OPEN(function, ...)                                 \
    DENY("open", EMFILE, -1)                                \
    va_list rest;                                           \
    va_start(rest, flags);                                  \
    int file = open_at(__VA_ARGS__, path, flags, rest);     \
    va_end(rest);                                           \
    return file;
int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD) }
int openat(int dir, const char *path, int flags, ...) { OPEN(openat, dir) }
int openat64(int dir, const char *path, int flags, ...) { OPEN(openat64, dir) }
int mkdir(const char *path, mode_t mode) {
    DENY("mkdir", EACCES, -1)
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int socket(int domain, int type, int protocol) {
    DENY("socket", EMFILE, -1)
    return (int)syscall(SYS_socket, domain, type, protocol);
}
int bind(int file, const struct sockaddr *at, socklen_t size) {
    DENY("bind", EADDRINUSE, -1)
    return (int)syscall(SYS_bind, file, at, size);
}
int listen(int file, int backlog) {
    DENY("listen", EADDRINUSE, -1)
    return (int)syscall(SYS_listen, file, backlog);
}
int poll(struct pollfd *files, nfds_t count, int timeout) {
    DENY("poll", EINTR, -1)
    return NEXT(poll)(files, count, timeout);
}
ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset) {
    DENY("write", ENOSPC, -1)
    return syscall(SYS_pwrite64, file, bytes, size, offset);
}
ssize_t pwrite64(int file, const void *bytes, size_t size, off_t offset) {
    DENY("write", ENOSPC, -1)
    return syscall(SYS_pwrite64, file, bytes, size, offset);
}
ssize_t pread64(int file, void *bytes, size_t size, off_t offset) {
    DENY("read", EIO, -1)
    return syscall(SYS_pread64, file, bytes, size, offset);
}
ssize_t process_vm_readv(pid_t pid, const struct iovec *into, unsigned long count, const struct iovec *of,
                         unsigned long others, unsigned long flags) {
    DENY("process_vm_readv", EPERM, -1)
    return syscall(SYS_process_vm_readv, pid, into, count, of, others, flags);
}
ssize_t getrandom(void *bytes, size_t size, unsigned flags) {
    DENY("getrandom", ENOSYS, -1)
    return syscall(SYS_getrandom, bytes, size, flags);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with) {
    DENY("pthread_create", EAGAIN, EAGAIN)
    return NEXT(pthread_create)(thread, attributes, run, with);
}
int pthread_key_create(pthread_key_t *key, void (*end)(void *)) {
    DENY("pthread_key_create", EAGAIN, EAGAIN)
    return NEXT(pthread_key_create)(key, end);
}
