/* One producer a key on this node, and cleaning up after producers that died. The lock is
 * flock(2) on KEY.lock, so it ends with its process, however that dies. The file's text is
 * for people and for the progress line. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cache/cache.h"

static void write_holder(int fd)
{
	char boot[CACHE_BOOT_BYTES], text[128];
	int n = snprintf(text, sizeof text, "pid %ld start %llu boot %s\n", (long)getpid(),
	                 (unsigned long long)cache_process_start(getpid()), cache_boot(boot));
	if (ftruncate(fd, 0) == 0)
		(void)!pwrite(fd, text, (size_t)n, 0);
}

static int64_t read_holder(int fd)
{
	char text[128];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	if (n < 5 || memcmp(text, "pid ", 4))
		return 0;
	text[n] = 0;
	return strtoll(text + 4, NULL, 10);
}

static void lock_name(char out[STAGE_KEY_BYTES + 8], const char *key)
{
	snprintf(out, STAGE_KEY_BYTES + 8, "%s.lock", key);
}

int cache_lock_try(int area, const char *key, int *out, int64_t *holder)
{
	char name[STAGE_KEY_BYTES + 8];
	struct stat mine, there;
	lock_name(name, key);
	for (;;) {
		int fd = openat(area, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd < 0)
			return -1;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			int e = errno;
			*holder = read_holder(fd);
			close(fd);
			errno = e;
			return e == EWOULDBLOCK || e == EINTR ? 0 : -1;
		}
		/* The last holder removes the file: have we locked the one that is there? */
		if (fstat(fd, &mine) == 0 && fstatat(area, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
		    mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
			write_holder(fd);
			*out = fd;
			return 1;
		}
		close(fd);
	}
}

void cache_lock_release(int area, const char *key, int fd)
{
	char name[STAGE_KEY_BYTES + 8];
	lock_name(name, key);
	unlinkat(area, name, 0);
	close(fd);
}

static void sweep_one(int area, const char *name, cache_kind kind, const char *key)
{
	char temp[STAGE_KEY_BYTES + 8];
	int64_t holder;
	struct stat st;
	int lock;
	/* Beside a published copy KEY.tmp is the damaged one that it replaced. */
	bool published = fstatat(area, key, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (kind == CACHE_EVICTING) /* the process that evicted it died, or is still at it: two may remove it */
		(void)!dirwalk_remove(area, name);
	if (kind == CACHE_LEASES && !published)
		cache_leases_sweep(area, key);
	if (kind != CACHE_LOCK && (kind != CACHE_UNFINISHED || !published))
		return;
	if (cache_lock_try(area, key, &lock, &holder) != 1)
		return;
	snprintf(temp, sizeof temp, "%s.tmp", key);
	if (published)
		(void)!dirwalk_remove(area, temp);
	cache_lock_release(area, key, lock);
}

void cache_sweep(int area, const char *key)
{
	int copy = openat(area, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	if (!d) {
		if (copy >= 0)
			close(copy);
		return;
	}
	for (struct dirent *de; (de = readdir(d));) {
		char other[STAGE_KEY_BYTES];
		cache_kind kind = cache_name(de->d_name, other);
		if (kind != CACHE_FOREIGN && strcmp(other, key))
			sweep_one(area, de->d_name, kind, other);
	}
	closedir(d);
}

/* Names change in the area when a lock is released or a copy is published, which is seldom. The
 * death of a lock's holder changes no name, so a process that waits also checks now and then. */
int cache_lock_watch(int area)
{
	char path[64];
	int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	snprintf(path, sizeof path, "/proc/self/fd/%d", area);
	if (fd >= 0 && inotify_add_watch(fd, path, IN_DELETE | IN_MOVED_TO) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

bool cache_lock_sleep(int watch, int ms)
{
	struct pollfd p = {.fd = watch, .events = POLLIN};
	char events[4096];
	if (watch < 0) {
		poll(NULL, 0, ms < 50 ? ms : 50);
		return true;
	}
	if (poll(&p, 1, ms) != 1)
		return false;
	while (read(watch, events, sizeof events) > 0)
		;
	return true;
}
