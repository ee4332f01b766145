/* Who leases and who evicts do not overlap: a lock on the directory KEY.lease,
 * which ends with its holder. Nobody holds it longer than a few system calls. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
/* A holder that was stopped, or is an enemy in a shared area. */
#define PATIENCE 10.0

static void gate_name(char out[STAGE_KEY_BYTES + 8], const char *key)
{
	snprintf(out, STAGE_KEY_BYTES + 8, "%s.lease", key);
}

/* Whether `gate` is still what KEY.lease names: an empty one is removed by the
 * last to leave, and a lock on the old one keeps nobody out of the new. */
static bool is_there(int area, const char *name, int gate)
{
	struct stat mine, there;
	return fstat(gate, &mine) == 0 && fstatat(area, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
	       mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

int cache_gate_enter(int area, const char *key, bool exclusive)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	char name[STAGE_KEY_BYTES + 8];
	double begin = clock_now();
	gate_name(name, key);
	for (;;) {
		int gate = openat(area, name, OPEN_DIR);
		if (gate < 0 && errno == ENOENT) {
			if (mkdirat(area, name, 0700) < 0 && errno != EEXIST)
				return -1;
			continue;
		}
		if (gate < 0)
			return -1;
		bool got = flock(gate, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
		int e = errno;
		if (got && is_there(area, name, gate))
			return gate;
		close(gate);
		if (got)
			continue;
		errno = e;
		if ((e != EWOULDBLOCK && e != EINTR) || exclusive || clock_now() - begin > PATIENCE)
			return -1;
		nanosleep(&pause, NULL);
	}
}

void cache_gate_leave(int area, const char *key, int gate, bool exclusive)
{
	char name[STAGE_KEY_BYTES + 8];
	struct stat st;
	gate_name(name, key);
	/* In the shared area users cannot make it again: it stays as long as the copy. */
	bool shared = fstat(gate, &st) == 0 && st.st_mode & S_IWOTH;
	if (exclusive && !(shared && fstatat(area, key, &st, AT_SYMLINK_NOFOLLOW) == 0))
		unlinkat(area, name, AT_REMOVEDIR);
	close(gate);
}
