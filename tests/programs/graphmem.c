/* What many graphs cost: so many graphs of one topology, captured, instantiated, launched and checked one
 * after another, then launched by turns, then one of them over and over. Prints one line of JSON: memory
 * that the process and the device grew by, and times. */
#include "mix.h"
#include "rt.h"
#include "sim.h"
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: graphmem [options]\n"
    "  --graphs N        how many (20)\n"
    "  --nodes N         kernels in each (100)\n"
    "  --rounds N        times that all are launched by turns (2)\n"
    "  --launches N      launches of one of them, one at a time (200)\n"
    "  --destroy-graphs  destroy each graph once it is instantiated, as PyTorch does\n"
    "  --random          parameters with nothing in common\n"
    "  --keep            end without destroying anything\n";
static struct { long graphs, nodes, rounds, launches; bool destroy, random, keep; } k = {20, 100, 2, 200, false, false, false};
static cudaStream_t s;
static uint64_t *result; /* on the device */
static cudaKernel_t kernel;

static bool parse(int argc, char **argv) {
    struct { const char *flag; long *number; bool *set; } flags[] = {
        {"--graphs", &k.graphs, NULL}, {"--nodes", &k.nodes, NULL}, {"--rounds", &k.rounds, NULL},
        {"--launches", &k.launches, NULL}, {"--destroy-graphs", NULL, &k.destroy}, {"--random", NULL, &k.random},
        {"--keep", NULL, &k.keep}};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (size_t f = 0; f < sizeof flags / sizeof *flags && !known; f++) {
            if (strcmp(argv[i], flags[f].flag)) continue;
            known = true;
            if (flags[f].set) *flags[f].set = true;
            else if (i + 1 >= argc || (*flags[f].number = atol(argv[++i])) < 0) return false;
        }
        if (!known) return false;
    }
    return k.graphs > 0 && k.nodes > 0;
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double *v, long n, double q) {
    if (n <= 0) return 0;
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[(long)(q * (double)(n - 1))];
}

struct memory { double rss, anonymous, device; }; /* MiB */
static struct memory memory(void) {
    struct memory m = {0};
    size_t left = 0, all = 0;
    OK(cudaMemGetInfo(&left, &all));
    m.device = (double)(all - left) / 1048576;
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    char line[128];
    for (long kib; rollup && fgets(line, sizeof line, rollup);) {
        if (sscanf(line, "Rss: %ld", &kib) == 1) m.rss = (double)kib / 1024;
        if (sscanf(line, "Anonymous: %ld", &kib) == 1) m.anonymous = (double)kib / 1024;
    }
    if (rollup) fclose(rollup);
    return m;
}

static struct mix parameters(long g, long i) {
    return k.random ? mix_random(result, (uint64_t)g, (uint64_t)i) : mix_of(result, (uint64_t)g, (uint64_t)i);
}
static cudaGraph_t captured(long g, long nodes) {
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    for (long i = 0; i < nodes; i++) {
        struct mix m = parameters(g, i);
        OK(cudaLaunchKernel((const void *)kernel, one_d(1), one_d(1), (void *[]){&m}, 0, s));
    }
    return end_capture(s);
}
static uint64_t wanted(long g) {
    uint64_t h = 0;
    for (long i = 0; i < k.nodes; i++) {
        struct mix m = parameters(g, i);
        h = mixed(h, &m);
    }
    return h;
}

int main(int argc, char **argv) {
    if (!parse(argc, argv)) return fputs(usage, stderr), 2;
    cudaLibrary_t library;
    OK(cudaLibraryLoadData(&library, mix_ptx, NULL, NULL, 0, NULL, NULL, 0));
    /* The simulator runs no kernels but those in kernels/: there is nothing to check there. */
    const bool checked = !simulator();
    OK(cudaLibraryGetKernel(&kernel, library, "mix"));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    result = dev_alloc(sizeof *result);
    uint64_t *results = NULL;
    OK(cudaMallocHost((void **)&results, (size_t)k.graphs * sizeof *results));
    counted_alloc(HOST, (size_t)k.graphs * sizeof *results);
    memset(results, 0, (size_t)k.graphs * sizeof *results);
    cudaGraph_t *graphs = calloc((size_t)k.graphs, sizeof *graphs);
    cudaGraphExec_t *execs = calloc((size_t)k.graphs, sizeof *execs);
    double *capture = calloc((size_t)k.graphs, 8), *made = calloc((size_t)k.graphs, 8), *ready = calloc((size_t)k.graphs, 8);
    uint64_t *want = calloc((size_t)k.graphs, sizeof *want);
    for (long g = 0; g < k.graphs; g++) want[g] = wanted(g);

    /* What the first graph of a process costs once is not what is measured. */
    cudaGraph_t first = captured(0, 3);
    cudaGraphExec_t first_exec = instantiate(first);
    graph_launch(first_exec, s);
    OK(cudaStreamSynchronize(s));
    exec_destroy(first_exec);
    graph_destroy(first);

    long wrong = 0;
    struct memory before = memory();
    for (long g = 0; g < k.graphs; g++) {
        double t0 = now_us();
        graphs[g] = captured(g, k.nodes);
        double t1 = now_us();
        execs[g] = instantiate(graphs[g]);
        double t2 = now_us();
        if (k.destroy) graph_destroy(graphs[g]);
        OK(cudaMemsetAsync(result, 0, sizeof *result, s));
        double t3 = now_us();
        graph_launch(execs[g], s);
        double t4 = now_us();
        OK(cudaMemcpyAsync(&results[g], result, sizeof *result, cudaMemcpyDeviceToHost, s));
        OK(cudaStreamSynchronize(s));
        wrong += checked && results[g] != want[g];
        capture[g] = t1 - t0, made[g] = t2 - t1, ready[g] = t2 - t1 + t4 - t3;
    }
    struct memory created = memory();

    double *call = calloc((size_t)(k.graphs * (k.rounds + 1) + k.launches), 8), by_turns_us = 0;
    long calls = 0;
    for (long r = 0; r < k.rounds; r++) {
        memset(results, 0, (size_t)k.graphs * sizeof *results);
        double start = now_us();
        for (long g = 0; g < k.graphs; g++) {
            OK(cudaMemsetAsync(result, 0, sizeof *result, s));
            double t = now_us();
            graph_launch(execs[g], s);
            call[calls++] = now_us() - t;
            OK(cudaMemcpyAsync(&results[g], result, sizeof *result, cudaMemcpyDeviceToHost, s));
        }
        OK(cudaStreamSynchronize(s));
        by_turns_us += now_us() - start;
        for (long g = 0; g < k.graphs; g++) wrong += checked && results[g] != want[g];
    }
    double by_turns_call = quantile(call, calls, 0.5);
    struct memory after = memory();

    calls = 0;
    for (long i = 0; i < k.launches; i++) {
        double t = now_us();
        graph_launch(execs[k.graphs - 1], s);
        call[calls++] = now_us() - t;
        OK(cudaStreamSynchronize(s));
    }
    double resident = quantile(call, calls, 0.5), low = quantile(call, calls, 0.25), high = quantile(call, calls, 0.75);
    EXPECT(wrong, 0);

    char more[1024];
    double first_made = made[0], first_ready = ready[0], launched = (double)(k.graphs * (k.rounds ? k.rounds : 1));
    snprintf(more, sizeof more,
             ",\"graphs\":%ld,\"nodes\":%ld,\"checked\":%s,\"wrong\":%ld,\"capture_us\":%.1f,\"first_instantiate_us\":%.1f,"
             "\"first_ready_us\":%.1f,\"instantiate_us\":%.1f,\"ready_us\":%.1f,\"by_turns_us\":%.1f,\"by_turns_call_us\":%.2f,"
             "\"resident_call_us\":%.3f,\"resident_quartiles_us\":[%.3f,%.3f],\"host_mib\":%.1f,\"host_created_mib\":%.1f,"
             "\"anonymous_mib\":%.1f,\"device_mib\":%.1f,\"device_created_mib\":%.1f",
             k.graphs, k.nodes, checked ? "true" : "false", wrong, quantile(capture, k.graphs, 0.5), first_made, first_ready,
             quantile(made + 1, k.graphs - 1, 0.5), quantile(ready + 1, k.graphs - 1, 0.5), by_turns_us / launched,
             by_turns_call, resident, low, high, after.rss - before.rss, created.rss - before.rss,
             after.anonymous - before.anonymous, after.device - before.device, created.device - before.device);
    if (k.keep) {
        int code = report_more("graphmem", more);
        _exit(code);
    }
    for (long g = 0; g < k.graphs; g++) {
        exec_destroy(execs[g]);
        if (!k.destroy) graph_destroy(graphs[g]);
    }
    OK(cudaFreeHost(results));
    counted_free(HOST, (size_t)k.graphs * sizeof *results);
    dev_free(result, sizeof *result);
    OK(cudaStreamDestroy(s));
    OK(cudaLibraryUnload(library));
    free(graphs), free(execs), free(capture), free(made), free(ready), free(want), free(call);
    return report_more("graphmem", more);
}
