/* Preloaded beside gpumem into a program of people's: its graphs grow, as those of programs that never let go of one do.
 * An update of an exec fails, so that the program makes another exec, and the destroying of the one before is forgotten.
 *
 *     LD_PRELOAD=libforgets.so:libgpumem.so llama-server …
 */
enum { SUCCESS = 0, UPDATE_FAILURE = 910, UPDATE_ERROR = 1 };

/* The first word of what an update says: its result. */
int cudaGraphExecUpdate(void *exec, void *graph, int *said) {
    (void)exec, (void)graph;
    if (said) *said = UPDATE_ERROR;
    return UPDATE_FAILURE;
}

int cudaGraphExecDestroy(void *exec) {
    (void)exec;
    return SUCCESS;
}
