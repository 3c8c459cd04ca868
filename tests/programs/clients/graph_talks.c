/* Makes, launches and ends graphs as lines on stdin say, and answers each with `did` and its number:
 *   make N         captures and instantiates N graphs of one shape, and keeps execs and graphs
 *   single N       as make, of another shape
 *   last N         goes on with the last N of them; 0: with all
 *   launch         launches all that it has, on its stream, and waits
 *   one I          launches that one, and waits
 *   turns N        launches all by turns so often, and says what a launch took of the processor, ns
 *   device D       goes on with that device, beside what it has on others
 *   submit         as launch, without the wait
 *   overlap N      N threads, each with a stream, keep capturing, launching and destroying graphs until `stop`
 *   end            destroys all that it has
 *   live           says how many real execs the driver has */
#include "graph.h"
#include <stdatomic.h>
#include <time.h>


enum { MOST = 1 << 17, THREADS = 8 };
static struct { Exec exec; Graph graph; } has[MOST];
static int count, first;
static Stream s;
static CUdeviceptr a, b;
static atomic_int stop;
static pthread_t threads[THREADS];
static int running;

static void make(int n) {
    for (; n > 0 && count < MOST; n--, count++) {
        has[count].graph = pair_graph(s, a, (unsigned)count + 1, b, (unsigned)count + 2);
        has[count].exec = exec_of(has[count].graph);
    }
}
static void single(int n) {
    for (; n > 0 && count < MOST; n--, count++) {
        capture_begin(s);
        fill(s, a, (unsigned)count + 1);
        has[count].graph = capture_end(s);
        has[count].exec = exec_of(has[count].graph);
    }
}
static void launch_all(void) {
    for (int i = first; i < count; i++) launch(has[i].exec, s);
}
static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); // others have the processor, too
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}
/* What a round's launches took each, of the round that took least. */
static double turns(int rounds) {
    double least = 1e18;
    for (int round = 0; round < rounds; round++) {
        double start = now_ns();
        launch_all();
        double took = (now_ns() - start) / (count - first);
        if (took < least) least = took;
        wait_for(s);
    }
    return least;
}
static void go_on_with(int device) {
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&fill_words, module, "gpumem_fill"));
    s = stream_new();
    a = words_new();
    b = words_new();
}
static void end_all(void) {
    for (; count > 0; count--) {
        exec_end(has[count - 1].exec);
        graph_end(has[count - 1].graph);
    }
}
/* What a slot of a server does: one graph after the other, each destroyed when the next is there. */
static void *slot(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    Stream mine = stream_new();
    CUdeviceptr to[2] = {words_new(), words_new()};
    Exec before = NULL;
    for (unsigned value = 1; !stop; value++) {
        Exec e = pair_exec(mine, to[0], value, to[1], value + 1);
        launch(e, mine);
        if (before) exec_end(before);
        before = e;
        usleep(200);
        if (value % 4 == 0) wait_for(mine);
    }
    if (before) exec_end(before);
    wait_for(mine);
    for (int i = 0; i < 2; i++) {
        OK(cuMemFree_v2(to[i]));
        counted_free(DEVICE, WORDS * 4);
    }
    OK(cuStreamDestroy_v2(mine));
    return NULL;
}
static void stop_all(void) {
    stop = 1;
    while (running > 0) pthread_join(threads[--running], NULL);
    stop = 0;
}
int main(void) {
    char line[64], word[32];
    begin();
    s = stream_new();
    a = words_new();
    b = words_new();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int number = 1; fgets(line, sizeof line, stdin); number++) {
        int n = 0;
        if (sscanf(line, "%31s %d", word, &n) < 1) continue;
        if (!strcmp(word, "make")) make(n);
        else if (!strcmp(word, "single")) single(n);
        else if (!strcmp(word, "last")) first = n ? count - n : 0;
        else if (!strcmp(word, "launch")) { launch_all(); wait_for(s); }
        else if (!strcmp(word, "one")) { launch(has[n].exec, s); wait_for(s); }
        else if (!strcmp(word, "submit")) launch_all();
        else if (!strcmp(word, "turns")) printf("took %.0f\n", turns(n));
        else if (!strcmp(word, "device")) go_on_with(n);
        else if (!strcmp(word, "end")) end_all();
        else if (!strcmp(word, "stop")) stop_all();
        else if (!strcmp(word, "overlap"))
            for (; running < n && running < THREADS; running++) OK(pthread_create(&threads[running], NULL, slot, NULL));
        else if (!strcmp(word, "live")) printf("live %lu\n", simulator()("live_execs"));
        printf("did %d\n", number);
    }
    stop_all();
    end_all();
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    counted_free(DEVICE, WORDS * 4);
    counted_free(DEVICE, WORDS * 4);
    OK(cuStreamDestroy_v2(s));
    return report("talks");
}
