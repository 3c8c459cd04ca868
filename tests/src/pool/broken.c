/* A cache of freed device memory as one should not write it: what the tester of allocation has to find, in
 * the way that BROKEN says. Preloaded; the driver's functions are looked up with dlsym, which it replaces.
 *   barrier    frees do not wait, and blocks are given out again at once
 *   double     the free of a cached block succeeds again
 *   range      blocks are larger than what was asked for, and say so
 *   query      a cached block is known as memory
 *   capture    frees wait for the context, whatever captures
 *   info       cached blocks are not free */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Ptr;
enum { MOST = 4096 };
static struct { Ptr at; size_t bytes; int state; } blocks[MOST]; /* 0 none, 1 live, 2 cached */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *(*real_dlsym)(void *, const char *);
static int (*real_alloc)(Ptr *, size_t), (*real_free)(Ptr), (*real_sync)(void), (*real_range)(Ptr *, size_t *, Ptr);
static int (*real_attribute)(void *, int, Ptr), (*real_attributes)(unsigned, int *, void **, Ptr), (*real_current)(void **), (*real_info)(size_t *, size_t *);

static int broken(const char *what) {
    const char *asked = getenv("BROKEN");
    return asked && !strcmp(asked, what);
}

static int find(Ptr at) {
    for (int i = 0; i < MOST; i++)
        if (blocks[i].state && blocks[i].at == at) return i;
    return -1;
}

static int cuMemAlloc_own(Ptr *out, size_t bytes) {
    if (!out || !bytes || bytes > 1ul << 40) return real_alloc(out, bytes);
    void *context = 0;
    if (real_current && (real_current(&context), !context)) return real_alloc(out, bytes);
    if (real_range && real_range(0, 0, 0) == 700) return 700;
    size_t want = broken("range") ? (bytes + 65535) & ~(size_t)65535 : bytes;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (blocks[i].state == 2 && blocks[i].bytes == want) {
            blocks[i].state = 1;
            *out = blocks[i].at;
            pthread_mutex_unlock(&lock);
            return 0;
        }
    pthread_mutex_unlock(&lock);
    int status = real_alloc(out, want);
    if (status) return status;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (!blocks[i].state || blocks[i].at == *out) {
            blocks[i].at = *out, blocks[i].bytes = want, blocks[i].state = 1;
            break;
        }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int cuMemFree_own(Ptr at) {
    pthread_mutex_lock(&lock);
    int i = find(at), state = i < 0 ? 0 : blocks[i].state;
    if (state == 1 && !broken("capture")) blocks[i].state = broken("barrier") ? 2 : 1;
    pthread_mutex_unlock(&lock);
    if (state == 2) return broken("double") ? 0 : 1;
    if (!state) return real_free(at);
    if (!broken("barrier")) {
        if (real_sync()) { /* captured, ruined, without a context: as natively */
            pthread_mutex_lock(&lock);
            blocks[i].state = 0;
            pthread_mutex_unlock(&lock);
            int status = real_free(at);
            pthread_mutex_lock(&lock);
            if (status) blocks[i].state = 1;
            pthread_mutex_unlock(&lock);
            return status;
        }
        pthread_mutex_lock(&lock);
        blocks[i].state = 2;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

/* Whether an address is in a cached block. */
static int cached(Ptr at) {
    int found = 0;
    for (int i = 0; i < MOST && !broken("query"); i++)
        found |= blocks[i].state == 2 && at >= blocks[i].at && at < blocks[i].at + blocks[i].bytes;
    return found;
}
static int range(Ptr *base, size_t *size, Ptr at) { return real_range(base, size, cached(at) ? 16 : at); }
static int attribute(void *out, int id, Ptr at) { return real_attribute(out, id, cached(at) ? 16 : at); }
static int attributes(unsigned n, int *ids, void **out, Ptr at) { return real_attributes(n, ids, out, cached(at) ? 16 : at); }

static int info(size_t *free, size_t *total) {
    int status = real_info(free, total);
    for (int i = 0; i < MOST && !status && !broken("info"); i++)
        if (blocks[i].state == 2) *free += blocks[i].bytes;
    return status;
}

#define REPLACE(name, real, own) if (found && !strcmp(symbol, name)) { *(void **)&real = found; return (void *)own; }

void *dlsym(void *handle, const char *symbol) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (unsigned i = 0; !real_dlsym && i < 3; i++) *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    void *found = real_dlsym(handle, symbol);
    REPLACE("cuMemAlloc_v2", real_alloc, cuMemAlloc_own)
    REPLACE("cuMemFree_v2", real_free, cuMemFree_own)
    REPLACE("cuMemGetAddressRange_v2", real_range, range)
    REPLACE("cuMemGetInfo_v2", real_info, info)
    REPLACE("cuPointerGetAttribute", real_attribute, attribute)
    REPLACE("cuPointerGetAttributes", real_attributes, attributes)
    if (found && !strcmp(symbol, "cuCtxSynchronize")) *(void **)&real_sync = found;
    if (found && !strcmp(symbol, "cuCtxGetCurrent")) *(void **)&real_current = found;
    return found;
}
