/* Code that graphs hold comes and goes, and kernels in clusters. `graph_code MODE`:
 *   reload   a module is unloaded and loaded again; its functions have their old addresses
 *   cluster  graphs that differ in their cluster alone, launched, updated, recycled in turn */
#include "graph.h"

static void reload(void) {
    CUdeviceptr a = words_new(), b = words_new();
    Stream s = stream_new();
    int same = 0;
    Exec held = NULL;
    for (unsigned round = 0; round < 8; round++) {
        OK(cuModuleUnload(module)); /* with execs of its functions: parked ones, and one that a handle has */
        CUfunction before = fill_words;
        OK(cuModuleLoadData(&module, image));
        OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
        same += before == fill_words;
        Exec e[3];
        for (unsigned i = 0; i < 3; i++) e[i] = pair_exec(s, a, 10 * round + i, b, 100 + 10 * round + i);
        for (unsigned i = 0; i < 3; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(word_of(a), 10 * round + i);
            EXPECT(word_of(b), 100 + 10 * round + i);
        }
        exec_end(e[0]);
        exec_end(e[1]);
        if (held) exec_end(held); /* its code is that of the load before */
        held = e[2];
    }
    exec_end(held);
    EXPECT(same > 0, 1); /* else nothing is shown: SIM_REUSE_HANDLES=1 */
}

typedef struct { unsigned id, pad; union { unsigned dim[3]; char room[64]; } value; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; Stream s; Attribute *attributes; unsigned len; } Config;
CUresult cuLaunchKernelEx(const Config *, CUfunction, void **, void **);

/* The second launch is in a cluster; the first, of the same kernel, never is. */
static Graph cluster_graph(Stream s, CUfunction size_of_cluster, CUdeviceptr p, unsigned cluster) {
    capture_begin(s);
    Attribute attribute = {.id = 4, .value.dim = {cluster, 1, 1}};
    Config config = {{4, 1, 1}, {32, 1, 1}, 0, s, &attribute, cluster != 0};
    OK(cuLaunchKernel(size_of_cluster, 4, 1, 1, 32, 1, 1, 0, s, (void *[]){&p}, NULL));
    OK(cuLaunchKernelEx(&config, size_of_cluster, (void *[]){&p}, NULL));
    return capture_end(s);
}
static unsigned size_in(CUdeviceptr p) {
    unsigned size;
    OK(cuMemcpyDtoH_v2(&size, p, 4));
    return size;
}
static void cluster(void) {
    CUfunction size_of_cluster;
    OK(cuModuleGetFunction(&size_of_cluster, module, "cluster_size"));
    CUdeviceptr p = words_new();
    Stream s = stream_new();
    static const unsigned clusters[] = {2, 0, 4, 0, 2};
    enum { N = sizeof clusters / sizeof *clusters };
    Exec e[N];
    Graph g[N];
    for (int i = 0; i < N; i++) e[i] = exec_of(g[i] = cluster_graph(s, size_of_cluster, p, clusters[i]));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            launch(e[i], s);
            wait_for(s);
            EXPECT(size_in(p), clusters[i] ? clusters[i] : 1);
        }
    /* The driver says that the update worked, and keeps the cluster. */
    UpdateInfo info = {0};
    int rc = cuGraphExecUpdate_v2(e[0], g[1], &info);
    if (rc == 0) did.exec_updates++;
    else did.exec_updates_failed++;
    launch(e[0], s);
    wait_for(s);
    printf("2 to none: %d, result %d, cluster %u\n", rc, info.result, size_in(p));
    exec_end(e[0]);
    e[0] = exec_of(g[1]); /* may have an exec that had a cluster */
    launch(e[0], s);
    wait_for(s);
    EXPECT(size_in(p), 1);
    for (int i = 0; i < N; i++) {
        exec_end(e[i]);
        graph_end(g[i]);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    begin();
    if (!strcmp(mode, "reload")) reload();
    else if (!strcmp(mode, "cluster")) cluster();
    else return 2;
    return report(mode);
}
