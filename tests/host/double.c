/* A program that passes for picolet until it has to run. MODE: 0 exits at once, 1 hangs, 2 answers, and is not healthy. 3 reads
   no records of today. 4 takes connections, and never answers. */

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char body[512], answer[1024], request[4096];
    if (argc > 1 && strcmp(argv[1], "--version") == 0) return puts("picolet 99.0.0") < 0;
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return puts(MODE == 3 ? "{\"checks\":[{\"name\":\"records\",\"level\":\"error\",\"message\":\"x is of version 2\"}]}"
                              : "{\"checks\":[]}") < 0;
    if (MODE == 0) return 1;
    snprintf(at.sun_path, sizeof at.sun_path, "/run/picolet/picolet.sock");
    for (int n = 1; MODE >= 2 && n + 1 < argc; n++)
        if (strcmp(argv[n], "--run-dir") == 0) snprintf(at.sun_path, sizeof at.sun_path, "%s/picolet.sock", argv[n + 1]);
    if (MODE == 1) for (;;) pause();
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink(at.sun_path);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16)) return 2;
    snprintf(body, sizeof body,
             "{\"version\":\"99.0.0\",\"pid\":%d,\"relistAgeMs\":null,\"manifestsAgeMs\":null,\"manifestsIntervalMs\":20000,"
             "\"down\":null,\"networkDown\":null,\"pods\":0,\"probes\":{\"count\":0,\"ended\":0,\"late\":0,\"commands\":0,\"connections\":0},\"apiserver\":null}", getpid());
    snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", strlen(body), body);
    for (;;) {
        int client = accept(listener, 0, 0);
        if (MODE == 4) continue;
        if (read(client, request, sizeof request) > 0) (void)!write(client, answer, strlen(answer));
        close(client);
    }
}
