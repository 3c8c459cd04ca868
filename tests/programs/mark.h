/* A mark of the program's own, and with it one sample of who holds how much: by the control socket, if there is one. */
#pragma once
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Asks the control thread for a mark, and waits for its answer. */
static inline void mark(void) {
    static struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *dir = getenv("GPUMEM_DIR");
    if (!dir) return;
    for (int tries = 0; !at.sun_path[0] && tries < 60000; tries++, usleep(1000)) {
        char own[32];
        snprintf(own, sizeof own, "%d-", getpid());
        DIR *all = opendir(dir);
        for (struct dirent *e; all && (e = readdir(all));)
            if (!strncmp(e->d_name, own, strlen(own)) && strstr(e->d_name, ".sock"))
                snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, e->d_name);
        if (all) closedir(all);
    }
    /* A machine that has much to do may take longer than the control thread waits for a line. */
    char answer[64] = "";
    for (int tries = 0; strncmp(answer, "ok", 2); tries++) {
        if (tries == 100) {
            fprintf(stderr, "no mark: %s\n", answer);
            _exit(1);
        }
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        memset(answer, 0, sizeof answer);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && send(fd, "mark step\n", 10, MSG_NOSIGNAL) == 10)
            (void)!read(fd, answer, sizeof answer - 1);
        close(fd);
    }
}
