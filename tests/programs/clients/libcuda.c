/* A driver newer than any table: functions under unknown names, more of them than
 * there can be any use for, and a new version of a known one. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The driver's own addresses, whoever else has such names. */
#pragma GCC visibility push(protected)

/* Eight integers, so that two are on the stack, and nine doubles. */
static double sum(long a, long b, long c, long d, long e, long f, long g, long h, double i, double j, double k,
                  double l, double m, double n, double o, double p, double q) {
    return (double)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h) + i + 2 * j + 3 * k + 4 * l + 5 * m +
           6 * n + 7 * o + 8 * p + 9 * q;
}
#define SUM(name) \
    double name(long a, long b, long c, long d, long e, long f, long g, long h, double i, double j, double k, double l, \
                double m, double n, double o, double p, double q) { \
        return sum(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q); \
    }
SUM(cuGraphFutureThing)
SUM(cuGraphLaunch_v9)
SUM(cuGraphicsFutureThing)
SUM(cuFutureThing)

int cuGraphLaunch(void *exec, void *stream) { return exec == stream ? 0 : 400; }

#define MANY_1(n) int cuGraphMany##n(int x) { return x + 1##n; }
#define MANY_10(n) MANY_1(n##0) MANY_1(n##1) MANY_1(n##2) MANY_1(n##3) MANY_1(n##4) MANY_1(n##5) MANY_1(n##6) \
    MANY_1(n##7) MANY_1(n##8) MANY_1(n##9)
#define MANY_100(n) MANY_10(n##0) MANY_10(n##1) MANY_10(n##2) MANY_10(n##3) MANY_10(n##4) MANY_10(n##5) MANY_10(n##6) \
    MANY_10(n##7) MANY_10(n##8) MANY_10(n##9)
MANY_100(0) MANY_100(1) MANY_100(2)
#define NAME_1(n) {"cuGraphMany" #n, (void *)cuGraphMany##n},
#define NAME_10(n) NAME_1(n##0) NAME_1(n##1) NAME_1(n##2) NAME_1(n##3) NAME_1(n##4) NAME_1(n##5) NAME_1(n##6) \
    NAME_1(n##7) NAME_1(n##8) NAME_1(n##9)
#define NAME_100(n) NAME_10(n##0) NAME_10(n##1) NAME_10(n##2) NAME_10(n##3) NAME_10(n##4) NAME_10(n##5) NAME_10(n##6) \
    NAME_10(n##7) NAME_10(n##8) NAME_10(n##9)

int cuDriverGetVersion(int *v) { *v = 15000; return 0; }

int cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
    static const struct { const char *name; void *f; } known[] = {
        {"cuGetProcAddress", (void *)cuGetProcAddress_v2}, {"cuGraphFutureThing", (void *)cuGraphFutureThing},
        {"cuGraphicsFutureThing", (void *)cuGraphicsFutureThing}, {"cuFutureThing", (void *)cuFutureThing},
        NAME_100(0) NAME_100(1) NAME_100(2)
    };
    (void)flags;
    *f = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) *f = known[i].f;
    if (!strcmp(name, "cuGraphLaunch")) *f = version < 14000 ? (void *)cuGraphLaunch : (void *)cuGraphLaunch_v9;
    if (status) *status = *f ? 0 : 1;
    return 0;
}
