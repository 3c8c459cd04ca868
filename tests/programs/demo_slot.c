/* One slot of the demo: decode steps whose kernels go through a graph cache that
 * is used exactly as ggml uses its own. */
#include "demo.h"
#include "sample.h"
#include <gpumem.h>

void slot_open(struct slot *s, int id, const struct knobs *k) {
    *s = (struct slot){.id = id, .k = k};
    size_t kv_bytes = (size_t)k->kv_mib << 20;
    OK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    GPUMEM_TAG("kv-cache") { s->kv = dev_alloc(kv_bytes); }
    s->act = dev_alloc(ACT_WORDS * 4);
    if (k->shapes > SIZES) s->mark = dev_alloc(MARK_BYTES);
    s->wrong = dev_alloc(8);
    OK(cudaMemsetAsync(s->wrong, 0, 8, s->stream));
    OK(k_fill(s->kv, kv_bytes / 4, 0xC0DE0000u + (uint32_t)id, s->stream));
    OK(cudaStreamSynchronize(s->stream));
    s->graphs = calloc((size_t)k->shapes, sizeof *s->graphs);
}

static int shape_of(const struct slot *s, int step) { return step / 8 % s->k->shapes; }
/* The conversation grows: new parameters every 4 steps, a node more every 32. */
static int nodes_at(const struct slot *s, int shape, int step) { return s->k->nodes + shape % SIZES + step / 32 % 3; }
static uint32_t token_at(const struct slot *s, int step) {
    return 1u + (uint32_t)s->id * 1000003u + (uint32_t)(step / 4) * 7919u;
}
static uint32_t result_of(uint32_t token, int nodes) {
    for (int i = 1; i < nodes; i++) token *= i % 2 ? 3u : 5u;
    return token;
}

/* The step's kernels: the token spreads through a scratch buffer of the pool and
 * ends in `act`. Inside a capture the pool may have to grow, which only a capture
 * in relaxed mode allows. */
static void record(struct slot *s, int shape, uint32_t token, int nodes) {
    size_t actual, bytes = (size_t)(ACT_WORDS + 512 * (nodes - s->k->nodes)) * 4;
    uint32_t *scratch = pool_alloc(&s->pool, bytes, &actual);
    OK(k_fill(nodes == 1 ? s->act : scratch, ACT_WORDS, token, s->stream));
    for (int i = 1; i < nodes; i++) {
        /* Graphs of one size are told apart by where this stands among the kernels. */
        if (i == shape / SIZES) OK(cudaMemsetAsync(s->mark, 0, MARK_BYTES, s->stream));
        OK(k_scale(i == nodes - 1 ? s->act : scratch, scratch, ACT_WORDS, i % 2 ? 3u : 5u, s->stream));
    }
    pool_free(&s->pool, scratch, actual);
}

static void capture(struct slot *s, struct cached_graph *g, int shape, uint32_t token, int nodes) {
    OK(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeRelaxed));
    record(s, shape, token, nodes);
    did.kernel_launches -= nodes;
    if (g->graph) graph_destroy(g->graph);
    g->graph = end_capture(s->stream);
    g->nodes = nodes;
    g->value = result_of(token, nodes);
    if (!g->exec) g->exec = instantiate(g->graph);
    /* Right after instantiating too: ggml does not tell the two apart. */
    if (exec_update(g->exec, g->graph) != 0) {
        cudaGetLastError();
        exec_destroy(g->exec);
        g->exec = instantiate(g->graph);
    }
}

static void drop(struct cached_graph *g) {
    if (g->exec) exec_destroy(g->exec);
    if (g->graph) graph_destroy(g->graph);
    *g = (struct cached_graph){0};
}

/* llama.cpp's sweep: every 5 s, what was unused for 10 s. Counted in steps when the
 * run is: the counts of such a run must not depend on the machine's speed. */
static void sweep(struct slot *s, double *last_s) {
    double now = now_s();
    bool counted = s->k->iterations > 0;
    if (counted ? s->steps % 32 != 0 : now - *last_s < 5) return;
    *last_s = now;
    for (int i = 0; i < s->k->shapes; i++) {
        struct cached_graph *g = &s->graphs[i];
        if (g->exec && (counted ? s->steps - g->used_step > 64 : now - g->used_s > 10)) drop(g);
    }
}

void *slot_decode(void *arg) {
    struct slot *s = arg;
    double last_sweep = now_s();
    for (; s->k->iterations ? s->steps < s->k->iterations : now_s() < s->end_s; s->steps++) {
        int shape = shape_of(s, s->steps), nodes = nodes_at(s, shape, s->steps);
        uint32_t token = token_at(s, s->steps), want = result_of(token, nodes);
        struct cached_graph *g = &s->graphs[shape];
        OK(cudaMemsetAsync(s->act, 0, ACT_WORDS * 4, s->stream));
        if (!g->warm) { /* a new key is computed without a graph first */
            record(s, shape, token, nodes);
            g->warm = true;
        } else {
            if (g->nodes != nodes || g->value != want) capture(s, g, shape, token, nodes);
            graph_launch(g->exec, s->stream);
        }
        g->used_s = now_s();
        g->used_step = s->steps;
        OK(k_verify(s->act, ACT_WORDS, want, s->wrong, s->stream));
        OK(cudaMemcpyAsync(&s->wrong_words, s->wrong, 8, cudaMemcpyDeviceToHost, s->stream));
        OK(cudaStreamSynchronize(s->stream)); /* the logits are read each step */
        if (s->wrong_words) break;
        if (!s->k->never_evict) sweep(s, &last_sweep);
        if (s->id == 0 && s->k->samples && (s->steps + 1) % (s->k->iterations / s->k->samples) == 0) sample(s->steps);
    }
    EXPECT(s->wrong_words, 0);
    return NULL;
}

void slot_close(struct slot *s) {
    size_t kv_bytes = (size_t)s->k->kv_mib << 20;
    EXPECT(mismatches_of(s->kv, kv_bytes / 4, 0xC0DE0000u + (uint32_t)s->id, s->stream), 0);
    for (int i = 0; i < s->k->shapes; i++) drop(&s->graphs[i]);
    free(s->graphs);
    pool_clear(&s->pool);
    dev_free(s->wrong, 8);
    if (s->mark) dev_free(s->mark, MARK_BYTES);
    dev_free(s->act, ACT_WORDS * 4);
    dev_free(s->kv, kv_bytes);
    OK(cudaStreamDestroy(s->stream));
}
