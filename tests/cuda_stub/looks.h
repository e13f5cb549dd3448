// Makes files of the card look like the fds that they stand for: the broker knows a VMM fd by its device number
// (/dev/nvidiactl, 195:255), and a file has none. For these files statx(2) answers as the kernel does for /dev/nvidiactl.
// Part of libcuda.c, and of looks.c for programs that are to find the driver in their own way. Must never change the answer
// for another file.
#include <sys/syscall.h>

__attribute__((visibility("default"))) int statx(int dir, const char *restrict path, int flags, unsigned mask,
                                                 struct statx *restrict info) {
    int result = syscall(SYS_statx, dir, path, flags, mask, info);
    if (result || !S_ISREG(info->stx_mode)) return result;
    char link[64], target[PATH_MAX];
    const char *volatile name = path;  // declared never null, but it may be
    if (!name || !*name) snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    else if (!strncmp(path, "/proc/", 6) && strlen(path) < sizeof link) strcpy(link, path);
    else return result;
    int before = errno;
    ssize_t length = readlink(link, target, sizeof target);
    errno = before;
    size_t prefix = strlen(directory());
    if (length > (ssize_t)prefix && !memcmp(target, directory(), prefix) && target[prefix] == '/') {
        info->stx_mode = S_IFCHR | 0666;
        info->stx_rdev_major = 195;
        info->stx_rdev_minor = 255;
        info->stx_size = 0;
    }
    return result;
}
