/* Code that graphs hold comes and goes, and kernels in clusters. `graph_code MODE`:
 *   reload   a module is unloaded and loaded again; its functions have their old addresses
 *   library  the same of a library, whose function is first named to the driver without its kernel, by a setter
 *   refused  a module that is not unloaded after all
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

CUresult cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
CUresult cuLibraryGetKernel(void **, void *, const char *), cuKernelGetFunction(CUfunction *, void *);
CUresult cuLibraryUnload(void *);

static void *library_new(void) {
    void *library, *kernel;
    OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "gpumem_fill"));
    OK(cuKernelGetFunction(&fill_words, kernel));
    return library;
}
static void library(void) {
    CUdeviceptr a = words_new();
    Stream s = stream_new();
    int same = 0;
    for (unsigned round = 0; round < 4; round++) {
        CUfunction of_module = fill_words;
        Graph g = graph_new();
        Node n = add_fill(g, NULL, a, 1);
        Exec e = exec_of(g);
        void *loaded = library_new();
        OK(cuGraphExecKernelNodeSetParams_v2(e, n, fill_node(a, 2)));
        launch(e, s);
        wait_for(s);
        EXPECT(word_of(a), 2);
        exec_end(e);
        graph_end(g);
        CUfunction before = fill_words;
        for (unsigned again = 0; again < 2; again++) {
            e = pair_exec(s, a, 10, a, 11); /* the second as the first, but for the load */
            launch(e, s);
            wait_for(s);
            EXPECT(word_of(a), 11);
            exec_end(e);
            OK(cuLibraryUnload(loaded));
            clear(a);
            loaded = library_new();
            same += before == fill_words;
        }
        OK(cuLibraryUnload(loaded));
        fill_words = of_module;
    }
    EXPECT(same > 0, 1); /* else nothing is shown: SIM_REUSE_HANDLES=1 */
}

static void refused(void) {
    enum { EACH = 4 };
    CUdeviceptr a = words_new();
    Stream s = stream_new(), captures = stream_new();
    Exec e[EACH];
    for (unsigned i = 0; i < EACH; i++) e[i] = pair_exec(s, a, i, a, 10 + i);
    launch(e[0], s);
    wait_for(s);
    OK(cuStreamBeginCapture_v2(captures, 0));
    EXPECT(cuModuleUnload(module), 900);
    Graph g;
    EXPECT(cuStreamEndCapture(captures, &g), 901);
    did.captures++;
    for (unsigned i = 0; i < EACH; i++) {
        launch(e[i], s);
        wait_for(s);
        EXPECT(word_of(a), 10 + i);
        exec_end(e[i]);
    }
    Exec more = pair_exec(s, a, 20, a, 21);
    launch(more, s);
    wait_for(s);
    EXPECT(word_of(a), 21);
    exec_end(more);
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
    else if (!strcmp(mode, "library")) library();
    else if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "cluster")) cluster();
    else return 2;
    return report(mode);
}
