/* gpumem.h: what a program may tell gpumem about its GPU memory.
 *
 * Header only, C89 and C++; nothing to link. Without libgpumem.so in the process every call below
 * is one test of a weak symbol that is null. With it, calls are thread-safe, never fail and never
 * touch the GPU.
 *
 *     GPUMEM_TAG("kv-cache") { cudaMalloc(&kv, bytes); }     one region, C99 and C++
 *     gpumem_tag_push("weights"); … gpumem_tag_pop();        the same by hand
 *     gpumem_allocated("arena", p, bytes); gpumem_freed("arena", p);
 */
#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Everything this thread allocates until the matching pop carries the tag. Tags nest (64 deep; deeper
 * ones are counted and ignored); the text is copied, 255 bytes of it at most. */
__attribute__((weak)) void gpumem_push_tag(const char *tag);
__attribute__((weak)) void gpumem_pop_tag(void);

/* A part that the program's own allocator `pool` hands out of memory it got from the runtime. It is
 * listed beside the allocations, as kind "reported", and counted in none of their totals. `p` may be
 * a host or a device address; the same address may be live once in each pool. */
__attribute__((weak)) void gpumem_report_alloc(const char *pool, const void *p, size_t bytes);
__attribute__((weak)) void gpumem_report_free(const char *pool, const void *p);

#ifdef __cplusplus
}
#endif

#define gpumem_tag_push(tag) ((void)(gpumem_push_tag ? gpumem_push_tag(tag) : (void)0))
#define gpumem_tag_pop() ((void)(gpumem_pop_tag ? gpumem_pop_tag() : (void)0))
#define gpumem_allocated(pool, p, bytes) \
    ((void)(gpumem_report_alloc ? gpumem_report_alloc(pool, p, bytes) : (void)0))
#define gpumem_freed(pool, p) ((void)(gpumem_report_free ? gpumem_report_free(pool, p) : (void)0))

/* GPUMEM_TAG("name") { … } tags a block. Do not leave it by return, break, goto or an exception. */
#define GPUMEM_TAG(tag)                                                                        \
    for (int gpumem_once_ = (gpumem_tag_push(tag), 1); gpumem_once_; gpumem_tag_pop(), gpumem_once_ = 0)

#endif
