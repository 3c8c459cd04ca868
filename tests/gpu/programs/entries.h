/* What the measuring programs share: the driver's own entries, past every hook, and figures of samples. */
#pragma once
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct wanted { const char *name; void *found; };

static const ElfW(Sym) *lookup(const char *name, const ElfW(Sym) *symbols, const char *strings, const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
    const uint32_t *bucket = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t i = bucket[b]; i >= first && i; i++) {
            if (symbols[i].st_value && !strcmp(strings + symbols[i].st_name, name)) return &symbols[i];
            if (chain[i - first] & 1) break;
        }
    return NULL;
}
static int each_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct wanted *wanted = data;
    (void)size;
    const char *base = strrchr(info->dlpi_name, '/');
    if (strncmp(base ? base + 1 : info->dlpi_name, "libcuda.so", 10)) return 0;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
    for (int h = 0; h < info->dlpi_phnum; h++) {
        if (info->dlpi_phdr[h].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[h].p_vaddr); d->d_tag; d++) {
            if (d->d_tag == DT_SYMTAB) symbols = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_STRTAB) strings = (const void *)d->d_un.d_ptr;
            if (d->d_tag == DT_GNU_HASH) hash = (const void *)d->d_un.d_ptr;
        }
    }
    const ElfW(Sym) *symbol = symbols && strings && hash ? lookup(wanted->name, symbols, strings, hash) : NULL;
    if (symbol) wanted->found = (void *)(info->dlpi_addr + symbol->st_value);
    return symbol != NULL;
}
/* What the driver's symbol table has under this name, or NULL. The driver must be loaded. */
static void *drivers_own(const char *name) {
    struct wanted wanted = {name, NULL};
    dl_iterate_phdr(each_library, &wanted);
    return wanted.found;
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double *v, int n, double q) {
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[(int)(q * (n - 1))];
}
