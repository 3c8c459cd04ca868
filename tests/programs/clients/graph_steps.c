/* What a launch of a resident exec touches of code: the processor stops after each instruction, and those are counted
 * that are not the driver's own. `graph_steps LIBRARY`: the instructions and the lines of 64 bytes that lie in the library
 * of that name, and the instructions that lie in no library of ours (the C library's and the kernel's). */
#include "graph.h"
#ifdef __x86_64__
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <ucontext.h>

enum { STEPS = 1 << 16, TRAP = 0x100 };
static uintptr_t step[STEPS];
static volatile size_t steps;

struct object { const char *name; uintptr_t from, to; };
static int find(struct dl_phdr_info *info, size_t size, void *to) {
    (void)size;
    struct object *object = to;
    const char *base = strrchr(info->dlpi_name, '/');
    if (strncmp(base ? base + 1 : info->dlpi_name, object->name, strlen(object->name))) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        object->from = info->dlpi_addr + part->p_vaddr;
        object->to = object->from + part->p_memsz;
    }
    return 1;
}
static struct object ours, driver;
extern char __executable_start[], etext[];
static int is_in(struct object object, uintptr_t pc) { return object.from <= pc && pc < object.to; }

/* The driver runs on without stops, which would take it milliseconds, and returns to here. */
uintptr_t after_driver;
void go_on(void);
__asm__("go_on: pushfq; orq $0x100, (%rsp); popfq; jmp *after_driver(%rip)");

static void stopped(int signal, siginfo_t *info, void *at) {
    (void)signal, (void)info;
    greg_t *regs = ((ucontext_t *)at)->uc_mcontext.gregs;
    uintptr_t pc = (uintptr_t)regs[REG_RIP];
    if (steps < STEPS) step[steps++] = pc;
    if (!is_in(driver, pc)) return;
    uintptr_t *back = (uintptr_t *)regs[REG_RSP];
    after_driver = *back;
    *back = (uintptr_t)go_on;
    regs[REG_EFL] &= ~TRAP;
}

int main(int argc, char **argv) {
    begin();
    Stream s = stream_new();
    CUdeviceptr p = words_new();
    capture_begin(s);
    fill(s, p, 1);
    Graph g = capture_end(s);
    Exec e = exec_of(g);
    graph_end(g);
    ours.name = argc > 1 ? argv[1] : "libgpumem.so";
    driver.name = "libcuda.so";
    struct object program = {"", (uintptr_t)__executable_start, (uintptr_t)etext};
    dl_iterate_phdr(find, &ours);
    dl_iterate_phdr(find, &driver);
    struct sigaction action = {.sa_sigaction = stopped, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    size_t fewest = STEPS, fewest_lines = 0, fewest_outside = 0;
    for (int round = 0; round < 20; round++) {
        launch(e, s);
        steps = 0;
        __asm__ volatile("pushfq; orq %0, (%%rsp); popfq" ::"i"(TRAP) : "memory", "cc");
        int status = cuGraphLaunch(e, s);
        __asm__ volatile("pushfq; andq %0, (%%rsp); popfq" ::"i"(~TRAP) : "memory", "cc");
        did.graph_launches++;
        OK(status);
        wait_for(s);
        static uintptr_t line[STEPS];
        size_t lines = 0, instructions = 0, outside = 0;
        int came = 0, elsewhere = 0;
        for (size_t i = 0; i < steps; i++) {
            int here = is_in(ours, step[i]);
            came |= here;
            elsewhere = !here && (elsewhere || is_in(driver, step[i]) || is_in(program, step[i]));
            if (!came || elsewhere) continue;
            if (!here) {
                outside++;
                continue;
            }
            instructions++;
            size_t known = 0;
            while (known < lines && line[known] != step[i] / 64) known++;
            if (known == lines) line[lines++] = step[i] / 64;
        }
        /* Now and then a launch has more to do: it asks for the time. */
        if (instructions < fewest) fewest = instructions, fewest_lines = lines, fewest_outside = outside;
    }
    /* A driver that does nothing fills nothing. */
    if (!dlsym(RTLD_DEFAULT, "null_driver")) EXPECT(word_of(p), 1);
    exec_end(e);
    char more[128];
    snprintf(more, sizeof more, ",\"instructions\":%zu,\"lines\":%zu,\"outside\":%zu", fewest, fewest_lines, fewest_outside);
    return report_more("graph_steps", more);
}
#else
/* Other processors step in other ways, which nothing here knows. */
int main(void) {
    fprintf(stderr, "graph_steps counts on x86-64 alone\n");
    return 1;
}
#endif
