/* A program that runs an interpreter of Python inside itself, which it knows by name alone: its library is the first
 * argument. The second one says what happens to the interpreter while the program allocates:
 *
 *   ends       another thread than the first starts and ends it
 *   again      it is ended and started several times; the program has a key of its own in between
 *   at once    as again, more often and without a key in between: some code objects have the address and the number
 *              that another one had before
 *   parts      another thread ends a part of it (a sub-interpreter), in which the first thread runs
 *   states     another thread deletes the state of the first thread, which runs in it
 *   many       one thread makes and ends parts while others run code in the interpreter */
#define _GNU_SOURCE
#include "cuda_min.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(_) \
    _(void, Py_Initialize, (void)) _(int, Py_FinalizeEx, (void)) _(int, PyRun_SimpleString, (const char *)) \
    _(void *, PyEval_SaveThread, (void)) _(void, PyEval_RestoreThread, (void *)) _(void *, Py_NewInterpreter, (void)) \
    _(void, Py_EndInterpreter, (void *)) _(void *, PyThreadState_Swap, (void *)) _(int, PyGILState_Ensure, (void)) \
    _(void, PyGILState_Release, (int)) _(void *, PyThreadState_New, (void *)) _(void, PyThreadState_Clear, (void *)) \
    _(void, PyThreadState_Delete, (void *)) _(void *, PyThreadState_GetInterpreter, (void *)) \
    _(void *, PyThreadState_Get, (void))
#define DECLARE(result, name, arguments) static result(*name) arguments;
#define FIND(result, name, arguments) name = (result(*) arguments)dlsym(library, #name);
FUNCTIONS(DECLARE)

/* Python calls this through ctypes, which releases the GIL. */
__attribute__((visibility("default"))) void pair(void) {
    void *p;
    if (cudaMalloc(&p, 4096) || cudaFree(p))
        _exit(9);
}

static volatile int inside, ended;

__attribute__((visibility("default"))) void pairs_until_ended(void) {
    for (; !ended; inside++)
        pair();
    for (int i = 0; i < 2000; i++)
        pair();
    printf("done\n");
    fflush(stdout);
    _exit(0);
}

__attribute__((visibility("default"))) void spray(void) {
    for (int round = 0; round < 40; round++)
        for (size_t bytes = 32; bytes < 3000; bytes += 16) {
            char *memory = malloc(bytes);
            if (memory)
                memset(memory, 0x41, bytes);
        }
    usleep(30000);
}

#define CTYPES "import ctypes, sys\nme = ctypes.CDLL(None)\nsys.setrecursionlimit(100000)\n"

static pthread_barrier_t both;

static void *owner(void *unused) {
    Py_Initialize();
    void *state = PyEval_SaveThread();
    pthread_barrier_wait(&both);
    while (inside < 500)
        usleep(1000);
    PyEval_RestoreThread(state);
    Py_FinalizeEx();
    spray();
    ended = 1;
    sleep(60);
    return unused;
}

static int ends(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, owner, NULL);
    pthread_barrier_wait(&both);
    PyGILState_Ensure();
    PyRun_SimpleString(CTYPES "class Sprays:\n"
                              "  def __init__(self): self.spray = me.spray\n"
                              "  def __del__(self): self.spray()\n"
                              "sys.modules['zz'] = Sprays()\n"
                              "sys.kept = Sprays()\n"
                              "def deep(n):\n"
                              "  if n: deep(n - 1)\n"
                              "  else: me.pairs_until_ended()\n"
                              "deep(400)\n");
    return 1;
}

static int again(int has_keys) {
    pthread_key_t mine[8];
    for (int round = 0; round < (has_keys ? 5 : 60); round++) {
        char text[512];
        Py_Initialize();
        snprintf(text, sizeof text, CTYPES "def round_%d(n):\n  me.pair() if n == 0 else round_%d(n - 1)\n"
                 "for _ in range(200): round_%d(20)\n", round, round, round);
        if (PyRun_SimpleString(text))
            return 1;
        Py_FinalizeEx();
        if (!has_keys)
            continue;
        spray();
        /* The interpreter's own key may have been this one. */
        pthread_key_create(&mine[round], NULL);
        pthread_setspecific(mine[round], (void *)(size_t)(round % 2 ? 1 : -4096));
        for (int i = 0; i < 100; i++)
            pair();
    }
    printf("done\n");
    return 0;
}

static void *mine, *interpreter;

static void *maker(void *has_part) {
    Py_Initialize();
    void *part = has_part ? Py_NewInterpreter() : PyThreadState_Get();
    interpreter = PyThreadState_GetInterpreter(part);
    PyEval_SaveThread();
    pthread_barrier_wait(&both);
    while (inside < 500)
        usleep(1000);
    PyEval_RestoreThread(part);
    PyThreadState_Clear(mine);
    PyThreadState_Delete(mine);
    if (has_part)
        Py_EndInterpreter(part);
    spray();
    ended = 1;
    sleep(60);
    return NULL;
}

static int states(int has_part) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, maker, has_part ? &both : NULL);
    pthread_barrier_wait(&both);
    /* On this thread: a state made on another one has that thread's name, and its frames are not read. */
    mine = PyThreadState_New(interpreter);
    PyEval_RestoreThread(mine);
    PyRun_SimpleString(CTYPES "def deep(n):\n"
                              "  if n: deep(n - 1)\n"
                              "  else: me.pairs_until_ended()\n"
                              "deep(400)\n");
    return 1;
}

static void *runner(void *unused) {
    int state = PyGILState_Ensure();
    PyRun_SimpleString("import ctypes\n"
                       "me = ctypes.CDLL(None)\n"
                       "def run(n):\n  me.pair() if n == 0 else run(n - 1)\n"
                       "for _ in range(500): run(30)\n");
    PyGILState_Release(state);
    return unused;
}

static int many(void) {
    pthread_t threads[3];
    Py_Initialize();
    PyRun_SimpleString(CTYPES);
    void *whole = PyEval_SaveThread();
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, runner, NULL);
    for (int round = 0; round < 10; round++) {
        PyEval_RestoreThread(whole);
        void *part = Py_NewInterpreter();
        if (!part)
            return 1;
        PyRun_SimpleString("def of_part(n):\n  return n if n == 0 else of_part(n - 1)\nof_part(50)\n");
        pair();
        Py_EndInterpreter(part);
        PyThreadState_Swap(whole);
        pair();
        whole = PyEval_SaveThread();
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    PyEval_RestoreThread(whole);
    Py_FinalizeEx();
    pair();
    printf("done\n");
    return 0;
}

int main(int argc, char **argv) {
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library)
        return 2;
    FUNCTIONS(FIND)
    pair();
    const char *what = argv[2];
    if (!strcmp(what, "again") || !strcmp(what, "at once"))
        return again(!strcmp(what, "again"));
    if (!strcmp(what, "parts") || !strcmp(what, "states"))
        return states(!strcmp(what, "parts"));
    return !strcmp(what, "ends") ? ends() : many();
}
