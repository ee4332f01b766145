/* One producer a key on this node, and what dead ones left. The lock is flock(2)
 * on KEY.lock, so it ends with its holder however that dies; the file's text is
 * for people and for the progress line. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "staging.h"

/* Field 22 of /proc/self/stat: with the boot id it tells a process from a later
 * one of the same pid. */
static unsigned long long start_time(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	char *s = strrchr(text, ')'); /* the name before it may hold anything */
	for (int field = 2; s && field < 22; field++)
		s = strchr(s + 1, ' ');
	return s ? strtoull(s, NULL, 10) : 0;
}

static void write_holder(int fd)
{
	char boot[40] = "-", text[128];
	int b = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (b >= 0) {
		ssize_t n = read(b, boot, 36);
		boot[n > 0 ? n : 0] = 0;
		close(b);
	}
	int n = snprintf(text, sizeof text, "pid %ld start %llu boot %s\n", (long)getpid(), start_time(), boot);
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

int stage_lock_try(int area, const char *key, int *out, int64_t *holder)
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

void stage_lock_release(int area, const char *key, int fd)
{
	char name[STAGE_KEY_BYTES + 8];
	lock_name(name, key);
	unlinkat(area, name, 0);
	close(fd);
}

/* KEY.tmp and KEY.lock, where KEY is 64 hex digits. */
static bool is_leftover(const char *name, char key[STAGE_KEY_BYTES])
{
	if (strspn(name, "0123456789abcdef") != STAGE_KEY_BYTES - 1)
		return false;
	const char *suffix = name + STAGE_KEY_BYTES - 1;
	memcpy(key, name, STAGE_KEY_BYTES - 1);
	key[STAGE_KEY_BYTES - 1] = 0;
	return !strcmp(suffix, ".tmp") || !strcmp(suffix, ".lock");
}

void stage_sweep(int area, const char *key)
{
	int copy = openat(area, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), lock;
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	if (!d) {
		if (copy >= 0)
			close(copy);
		return;
	}
	for (struct dirent *de; (de = readdir(d));) {
		char other[STAGE_KEY_BYTES], temp[STAGE_KEY_BYTES + 8];
		int64_t holder;
		if (!is_leftover(de->d_name, other) || !strcmp(other, key))
			continue;
		if (stage_lock_try(area, other, &lock, &holder) != 1)
			continue;
		snprintf(temp, sizeof temp, "%s.tmp", other);
		(void)!stage_remove(area, temp);
		stage_lock_release(area, other, lock);
	}
	closedir(d);
}
