// The "device memory" of the stand-in for libcuda: files of a directory, each with a lock that says who still has it.
// Part of libcuda.c. Must never free memory that an fd, a mapping or a message in flight still holds, in any process.
//
// Each open file has a shared flock(2) for its whole life. Copies of an fd and mappings belong to the same open file, so
// the lock goes with the last of them, also when a process is killed. A file that nobody has locked is free memory.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

// Bytes of a path of the directory, and names that are tried for one file.
enum { PATH_BYTES = 256, NAMES_MOST = 1 << 20 };
// Processes and places of which one piece of the least size is not counted: a driver packs small pieces into a chunk of its own, and the layer
// has one such piece keep that. Any other piece counts.
enum { KEEPERS_MOST = 64, SMALL = 4096 };

static const char *directory(void) {
    const char *dir = getenv("FDBROKER_CUDA_STUB_DIR");
    return dir && *dir ? dir : "/dev/shm/fdbroker-cuda-stub";
}

// Whether the fd is one of memory of the card; `path` gets the file's name.
static int is_ours(int fd, char path[PATH_BYTES]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_BYTES - 1);
    size_t prefix = strlen(directory());
    path[length > 0 ? length : 0] = 0;
    return length > (ssize_t)prefix && !memcmp(path, directory(), prefix) && path[prefix] == '/';
}

// The memory of each GPU in FDBROKER_CUDA_STUB_BYTES; 0: as large as the file system.
static size_t card_bytes(void) {
    const char *text = getenv("FDBROKER_CUDA_STUB_BYTES");
    return text ? strtoull(text, NULL, 10) : 0;
}

// flock(2), whatever signals come.
static int lock(int fd, int how) {
    int result;
    do result = flock(fd, how);
    while (result && errno == EINTR);
    return result;
}

// Opens a file of the card. The caller closes it; -1 and errno.
static int card_open(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) lock(fd, LOCK_SH);
    return fd;
}

// Removes the file if nobody has it; 1: removed.
static int card_drop(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    int is_free = !lock(fd, LOCK_EX | LOCK_NB);
    if (is_free) unlink(path);
    close(fd);
    return is_free;
}

static int place_of(const char *path) { return atoi(strrchr(path, '-') + 1); }

// Whether it is the first one of this process and place among `keepers`, which is noted.
static int is_first_of(int process, int place, long keepers[KEEPERS_MOST]) {
    long keeper = (long)process << 8 | place;
    for (int i = 0; i < KEEPERS_MOST && keepers[i] != keeper; i++) {
        if (keepers[i]) continue;
        keepers[i] = keeper;
        return 1;
    }
    return 0;
}

// Bytes in use at a place (devices.h), once all that nobody has is removed. `kept`, unless NULL: pieces of all places that are not counted.
static size_t card_used(int place, size_t *kept) {
    DIR *dir = opendir(directory());
    long keepers[KEEPERS_MOST] = {0};
    size_t used = 0, not_counted = 0;
    if (!dir) return 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[PATH_BYTES + NAME_MAX];
        struct stat info;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", directory(), entry->d_name);
        if (card_drop(path) || stat(path, &info)) continue;
        if (info.st_size == SMALL && is_first_of(atoi(entry->d_name), place_of(path), keepers)) not_counted++;
        else if (place_of(path) == place) used += info.st_size;
    }
    closedir(dir);
    if (kept) *kept = not_counted;
    return used;
}

static int card_info(int place, size_t *free_bytes, size_t *total) {
    size_t kept = 0, used = card_used(place, &kept);
    struct statfs info;
    *total = card_bytes();
    *free_bytes = *total > used ? *total - used : 0;
    if (*total) return 0;
    if (statfs(directory(), &info)) return -1;
    *free_bytes = (info.f_bfree + kept) * info.f_bsize;
    *total = info.f_blocks * info.f_bsize;
    return 0;
}

// Gives the open file a name, after which it counts. The place is the last part of it.
static int card_name(const char *hidden, int place, char path[PATH_BYTES]) {
    static unsigned next;
    for (int tried = 0; tried < NAMES_MOST; tried++) {
        snprintf(path, PATH_BYTES, "%s/%d-%u-%d", directory(), getpid(), next++, place);
        if (!link(hidden, path)) return 0;
        // A process of another PID namespace may have the name.
        if (errno != EEXIST) return -1;
    }
    return -1;
}

// fallocate(2), whatever signals come.
static int fill_up(int fd, size_t bytes) {
    int result;
    do result = fallocate(fd, 0, 0, bytes);
    while (result && errno == EINTR);
    return result;
}

// New memory of a place and an open file of it; -1 and errno, ENOSPC when the card is full. The caller closes the file and has the lock
// of the driver.
static int card_new(size_t bytes, int place, char path[PATH_BYTES]) {
    char hidden[PATH_BYTES];
    int result = -1, fd = -1, card = open(directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (card < 0) return -1;
    // Processes count and take one after the other.
    lock(card, LOCK_EX);
    snprintf(hidden, sizeof hidden, "%s/.%d", directory(), getpid());
    unlink(hidden);
    if (card_bytes() && card_used(place, NULL) + bytes > card_bytes()) errno = ENOSPC;
    else fd = open(hidden, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        lock(fd, LOCK_SH);
        result = fill_up(fd, bytes);
        if (result && errno == ENOSPC) card_used(place, NULL), result = fill_up(fd, bytes);
        if (!result) result = card_name(hidden, place, path);
        int error = errno;
        unlink(hidden);
        if (result) close(fd);
        errno = error;
    }
    int error = errno;
    close(card);
    errno = error;
    return result ? -1 : fd;
}
