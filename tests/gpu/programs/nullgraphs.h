/* Graphs of the driver that does nothing: chains of kernel nodes that can be captured, built, read and
 * cloned, so that a shim that takes graphs for its own finds all that it reads. Launching, setting and
 * updating say yes at once. One thread at a time. */
#include <stdlib.h>

enum { PARAM_BYTES = 128 };
struct node { struct node *before; void *func; unsigned size[7]; unsigned char params[PARAM_BYTES]; void *list[1]; };
struct graph { struct node **nodes; size_t n, room; };
struct kernel_params { void *func; unsigned size[7]; void **params, **extra; void *kern, *ctx; };
static struct graph *capturing;

static struct node *add(struct graph *g, struct node *before, const struct kernel_params *from) {
    struct node *node = calloc(1, sizeof *node);
    node->before = before;
    node->func = from->func;
    memcpy(node->size, from->size, sizeof node->size);
    if (from->params) memcpy(node->params, from->params[0], PARAM_BYTES);
    node->list[0] = node->params;
    if (g->n == g->room) g->nodes = realloc(g->nodes, (g->room = g->room ? 2 * g->room : 16) * sizeof *g->nodes);
    return g->nodes[g->n++] = node;
}

API CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void *stream, void **params, void **extra) {
    (void)stream;
    (void)extra;
    if (__builtin_expect(capturing != NULL, 0)) {
        struct kernel_params from = {f, {gx, gy, gz, bx, by, bz, shared}, params, NULL, NULL, NULL};
        add(capturing, capturing->n ? capturing->nodes[capturing->n - 1] : NULL, &from);
    }
    return 0;
}
API CUresult cuStreamBeginCapture_v2(void *s, int mode) {
    (void)s, (void)mode;
    capturing = calloc(1, sizeof *capturing);
    return 0;
}
API CUresult cuStreamEndCapture(void *s, void **g) {
    (void)s;
    *g = capturing;
    capturing = NULL;
    return 0;
}
API CUresult cuStreamIsCapturing(void *s, int *status) { (void)s; *status = capturing != NULL; return 0; }
API CUresult cuGraphCreate(void **g, unsigned flags) { (void)flags; *g = calloc(1, sizeof(struct graph)); return 0; }
API CUresult cuGraphDestroy(struct graph *g) {
    for (size_t i = 0; i < g->n; i++) free(g->nodes[i]);
    free(g->nodes);
    free(g);
    return 0;
}
API CUresult cuGraphAddKernelNode_v2(void **node, struct graph *g, void **before, size_t n, const struct kernel_params *from) {
    *node = add(g, n ? before[0] : NULL, from);
    return 0;
}
static CUresult add_edges(struct node **from, struct node **to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i]->before = from[i];
    return 0;
}
API CUresult cuGraphAddDependencies(void *g, struct node **from, struct node **to, size_t n) {
    (void)g;
    return add_edges(from, to, n);
}
API CUresult cuGraphAddDependencies_v2(void *g, struct node **from, struct node **to, void *data, size_t n) {
    (void)g, (void)data;
    return add_edges(from, to, n);
}
API CUresult cuGraphClone(void **out, struct graph *from) {
    struct graph *g = *out = calloc(1, sizeof *g);
    for (size_t i = 0; i < from->n; i++) {
        struct node *of = from->nodes[i];
        size_t before = i ? i - 1 : 0;
        while (of->before && from->nodes[before] != of->before) before = (before + 1) % from->n;
        struct kernel_params as = {of->func, {0}, of->list, NULL, NULL, NULL};
        memcpy(as.size, of->size, sizeof as.size);
        add(g, of->before ? g->nodes[before] : NULL, &as);
    }
    return 0;
}
API CUresult cuGraphGetNodes(struct graph *g, void **nodes, size_t *n) {
    for (size_t i = 0; nodes && i < *n; i++) nodes[i] = i < g->n ? g->nodes[i] : NULL;
    if (!nodes || *n > g->n) *n = g->n;
    return 0;
}
static CUresult edges(struct graph *g, void **from, void **to, uint64_t *data, size_t *n) {
    size_t found = 0;
    for (size_t i = 0; i < g->n; i++) {
        if (!g->nodes[i]->before) continue;
        if (from && found < *n) {
            from[found] = g->nodes[i]->before;
            to[found] = g->nodes[i];
            if (data) data[found] = 0;
        }
        found++;
    }
    if (!from || *n > found) *n = found;
    return 0;
}
API CUresult cuGraphGetEdges(struct graph *g, void **from, void **to, size_t *n) { return edges(g, from, to, NULL, n); }
API CUresult cuGraphGetEdges_v2(struct graph *g, void **from, void **to, uint64_t *data, size_t *n) {
    return edges(g, from, to, data, n);
}
API CUresult cuGraphNodeGetDependencies_v2(struct node *node, void **deps, uint64_t *data, size_t *n) {
    size_t room = deps ? *n : 0;
    *n = node->before != NULL;
    if (room && *n) {
        deps[0] = node->before;
        if (data) data[0] = 0;
    }
    return 0;
}
API CUresult cuGraphNodeGetType(void *node, int *type) { (void)node; *type = 0; return 0; }
API CUresult cuGraphKernelNodeGetParams_v2(struct node *node, struct kernel_params *to) {
    *to = (struct kernel_params){.func = node->func, .params = node->list, .ctx = &context};
    memcpy(to->size, node->size, sizeof to->size);
    return 0;
}
API CUresult cuGraphKernelNodeGetAttribute(void *node, int attribute, void *value) {
    (void)node, (void)attribute;
    memset(value, 0, 64);
    return 0;
}
/* Every function has one parameter. */
static CUresult param_info(size_t index, size_t *offset, size_t *bytes) {
    if (index) return 1;
    *offset = 0;
    if (bytes) *bytes = PARAM_BYTES;
    return 0;
}
API CUresult cuFuncGetParamInfo(void *f, size_t index, size_t *offset, size_t *bytes) {
    (void)f;
    return param_info(index, offset, bytes);
}
API CUresult cuKernelGetParamInfo(void *k, size_t index, size_t *offset, size_t *bytes) {
    (void)k;
    return param_info(index, offset, bytes);
}
API CUresult cuGraphInstantiateWithFlags(void **exec, void *g, unsigned long long flags) {
    (void)g, (void)flags;
    *exec = malloc(64);
    return 0;
}
API CUresult cuGraphExecDestroy(void *exec) { free(exec); return 0; }
API CUresult cuGraphExecGetFlags(void *exec, uint64_t *flags) { (void)exec; *flags = 0; return 0; }
API CUresult cuGraphExecUpdate_v2(void *exec, void *g, void *info) { (void)exec, (void)g; memset(info, 0, 24); return 0; }
API CUresult cuFuncGetAttribute(int *value, int attribute, void *f) { (void)attribute, (void)f; *value = 0; return 0; }
API CUresult cuEventCreate(void **event, unsigned flags) { (void)flags; *event = malloc(8); return 0; }
API CUresult cuEventDestroy_v2(void *event) { free(event); return 0; }
GIVES(cuFuncGetModule, module_) GIVES(cuKernelGetFunction, function_) GIVES(cuKernelGetLibrary, module_)
GIVES(cuLibraryGetModule, module_)
YES(cuGraphLaunch) YES(cuGraphUpload) YES(cuGraphNodeSetEnabled) YES(cuGraphKernelNodeSetAttribute)
YES(cuGraphExecKernelNodeSetParams_v2) YES(cuGraphExecMemcpyNodeSetParams) YES(cuGraphExecMemsetNodeSetParams)
YES(cuGraphExecHostNodeSetParams) YES(cuDeviceGraphMemTrim) YES(cuEventRecord) YES(cuEventQuery) YES(cuStreamWaitEvent)
/* Of kinds of nodes that this driver has none of; a shim may ask for them before it begins. */
YES(cuGraphMemcpyNodeGetParams) YES(cuGraphMemsetNodeGetParams) YES(cuGraphHostNodeGetParams) YES(cuGraphAddMemcpyNode)
YES(cuGraphAddMemsetNode) YES(cuGraphAddHostNode) YES(cuGraphAddEmptyNode) YES(cuLaunchKernelEx) YES(cuLaunchHostFunc) YES(cuMemcpy3DAsync_v2) YES(cuMemsetD8Async)
YES(cuMemsetD16Async) YES(cuMemsetD32Async) YES(cuMemsetD2D8Async) YES(cuMemsetD2D16Async) YES(cuMemsetD2D32Async)
