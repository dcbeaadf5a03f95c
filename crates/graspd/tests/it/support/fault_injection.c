/*
 * Lets the nth call of one kind fail. Loaded with LD_PRELOAD by a server and by the git processes that it starts, which
 * count their calls together in the file FAULT_CONTROL. See fault_injection.rs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, WRITE, SYNC, RENAME, SEND, OPEN, FORK };

struct control {
    atomic_uint kind, target, count;
};

static struct control *control;

/* The next definition of a function, which is the one of libc. */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("FAULT_CONTROL");
    int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        control = mapped;
}

/* Counts a call; returns whether it must fail, with errno set. */
static int fails(enum kind kind, int error) {
    if (!control || control->kind != kind || atomic_fetch_add(&control->count, 1) + 1 != control->target)
        return 0;
    errno = error;
    return 1;
}

/*
 * Files and pipes are written, internet sockets are sent to. Other descriptors only wake threads: they cannot fail. The log is
 * needed to see what happened.
 */
static int write_fails(int fd) {
    struct stat info;
    int domain = 0;
    socklen_t length = sizeof domain;
    if (!control || control->kind == NONE || fd == STDERR_FILENO || fstat(fd, &info) != 0)
        return 0;
    if (S_ISREG(info.st_mode))
        return fails(WRITE, ENOSPC);
    if (S_ISFIFO(info.st_mode))
        return fails(WRITE, EPIPE);
    if (S_ISSOCK(info.st_mode) && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
        (domain == AF_INET || domain == AF_INET6))
        return fails(SEND, ECONNRESET);
    return 0;
}

#define WRAP(condition, type, name, parameters, arguments)                                                             \
    type name parameters {                                                                                             \
        if (condition)                                                                                                 \
            return -1;                                                                                                 \
        return REAL(name) arguments;                                                                                   \
    }

WRAP(write_fails(fd), ssize_t, write, (int fd, const void *data, size_t length), (fd, data, length))
WRAP(write_fails(fd), ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRAP(write_fails(fd), ssize_t, pwrite, (int fd, const void *data, size_t length, off_t at), (fd, data, length, at))
WRAP(write_fails(fd), ssize_t, pwrite64, (int fd, const void *data, size_t length, off64_t at), (fd, data, length, at))
WRAP(write_fails(fd), ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at),
     (fd, parts, count, at))
WRAP(write_fails(fd), ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at),
     (fd, parts, count, at))
WRAP(write_fails(fd), ssize_t, send, (int fd, const void *data, size_t length, int flags), (fd, data, length, flags))
WRAP(write_fails(fd), ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
WRAP(write_fails(fd), ssize_t, sendto,
     (int fd, const void *data, size_t length, int flags, const struct sockaddr *address, socklen_t size),
     (fd, data, length, flags, address, size))
WRAP(write_fails(to), ssize_t, sendfile64, (int to, int from, off64_t *at, size_t length), (to, from, at, length))

WRAP(fails(SYNC, EIO), int, fsync, (int fd), (fd))
WRAP(fails(SYNC, EIO), int, fdatasync, (int fd), (fd))
WRAP(fails(SYNC, EIO), int, syncfs, (int fd), (fd))
WRAP(fails(SYNC, EIO), int, msync, (void *start, size_t length, int flags), (start, length, flags))

WRAP(fails(RENAME, EIO), int, rename, (const char *from, const char *to), (from, to))
WRAP(fails(RENAME, EIO), int, link, (const char *from, const char *to), (from, to))
WRAP(fails(RENAME, EIO), int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
     (from_fd, from, to_fd, to))
WRAP(fails(RENAME, EIO), int, renameat2,
     (int from_fd, const char *from, int to_fd, const char *to, unsigned int flags), (from_fd, from, to_fd, to, flags))
WRAP(fails(RENAME, EIO), int, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
     (from_fd, from, to_fd, to, flags))

#define WRAP_OPEN(name, parameters, ...)                                                                               \
    int name parameters {                                                                                              \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        if (fails(OPEN, EMFILE))                                                                                       \
            return -1;                                                                                                 \
        return REAL(name)(__VA_ARGS__, flags, mode);                                                                   \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), path)
WRAP_OPEN(open64, (const char *path, int flags, ...), path)
WRAP_OPEN(openat, (int fd, const char *path, int flags, ...), fd, path)
WRAP_OPEN(openat64, (int fd, const char *path, int flags, ...), fd, path)

/* Programs that were compiled with checks of their arguments call these instead. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }

FILE *fopen(const char *path, const char *mode) { return fails(OPEN, EMFILE) ? NULL : REAL(fopen)(path, mode); }
FILE *fopen64(const char *path, const char *mode) { return fails(OPEN, EMFILE) ? NULL : REAL(fopen64)(path, mode); }

WRAP(fails(FORK, EAGAIN), pid_t, fork, (void), ())

/* The last arguments are not used by the server. */
int clone(int (*function)(void *), void *stack, int flags, void *argument, ...) {
    return fails(FORK, EAGAIN) ? -1 : REAL(clone)(function, stack, flags, argument);
}

#define WRAP_SPAWN(name)                                                                                               \
    int name(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                                  \
             const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {                \
        if (fails(FORK, EAGAIN))                                                                                       \
            return EAGAIN;                                                                                             \
        return REAL(name)(pid, path, actions, attributes, arguments, environment);                                     \
    }

WRAP_SPAWN(posix_spawn)
WRAP_SPAWN(posix_spawnp)
