/* Makes calls of libc fail as a bad disk does. Preloaded; told what to do by the environment:
   FAULT_CALL   write, fsync or rename: the call that fails, or "short": every write writes less than it is given
   FAULT_PATH   a piece of the path of the file; other files are left alone
   FAULT_ERRNO  what it fails with
   FAULT_AFTER  how many such calls go well before
   FAULT_LOG    a file that gets a line for each call on a file whose path has FAULT_PATH in it
   FAULT_CLOCK  so many seconds: the time of day jumps forth and back by them, from one look to the next */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int calls;

static ssize_t plain_write(int fd, const void *data, size_t size) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next) next = dlsym(RTLD_NEXT, "write");
    return next(fd, data, size);
}

static int is_meant(const char *path) {
    const char *piece = getenv("FAULT_PATH");
    return piece && strstr(path, piece) != NULL;
}

static void note(const char *call, const char *path) {
    const char *log = getenv("FAULT_LOG");
    char line[PATH_MAX + 40];
    int fd, size;
    if (!log || (fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0) return;
    size = snprintf(line, sizeof line, "%s %s\n", call, path);
    (void)!plain_write(fd, line, size);
    close(fd);
}

static int path_of(int fd, char *path) {
    char link[40];
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
    return size > 0;
}

/* Whether this call is to fail. */
static int fails(const char *call, const char *path) {
    const char *meant = getenv("FAULT_CALL"), *after = getenv("FAULT_AFTER"), *error = getenv("FAULT_ERRNO");
    if (!is_meant(path)) return 0;
    note(call, path);
    if (!meant || strcmp(meant, call) != 0) return 0;
    if (__sync_fetch_and_add(&calls, 1) < (after ? atoi(after) : 0)) return 0;
    errno = error ? atoi(error) : EIO;
    return 1;
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    const char *meant = getenv("FAULT_CALL");
    if (!path_of(fd, path)) return plain_write(fd, data, size);
    if (fails("write", path)) return -1;
    if (meant && strcmp(meant, "short") == 0 && size > 1 && is_meant(path)) size = size > 14 ? size - 7 : size / 2;
    return plain_write(fd, data, size);
}

int fsync(int fd) {
    static int (*next)(int);
    char path[PATH_MAX];
    if (!next) next = dlsym(RTLD_NEXT, "fsync");
    return path_of(fd, path) && fails("fsync", path) ? -1 : next(fd);
}

int rename(const char *from, const char *to) {
    static int (*next)(const char *, const char *);
    if (!next) next = dlsym(RTLD_NEXT, "rename");
    return fails("rename", to) ? -1 : next(from, to);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    static int looks;
    const char *jump = getenv("FAULT_CLOCK");
    int result;
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    result = next(clock, now);
    if (clock == CLOCK_REALTIME && jump && __sync_fetch_and_add(&looks, 1) % 2) now->tv_sec += atoi(jump);
    return result;
}
