/* Loaded into a program: a signal that comes again and again, with a handler that does next to nothing.
 * STORM="SIGNAL FIRST_US EVERY_US RESTART" */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t came;

static void handler(int signal) {
    (void)signal;
    came++;
}

static struct timespec after(long us) { return (struct timespec){us / 1000000, us % 1000000 * 1000}; }

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("STORM");
    int number, restart;
    long first, every;
    if (!text || sscanf(text, "%d %ld %ld %d", &number, &first, &every, &restart) != 4) return;
    struct sigaction action = {.sa_handler = handler, .sa_flags = restart ? SA_RESTART : 0};
    sigaction(number, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) return;
    struct itimerspec times = {.it_value = after(first), .it_interval = after(every)};
    timer_settime(timer, 0, &times, NULL);
}
