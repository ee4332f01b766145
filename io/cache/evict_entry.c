/* Evicting an entry. A leased one is never evicted: the leases are read and the entry renamed
 * away under the lock of the key's leases. A process that leases takes this lock too, so either
 * its lease is there before the leases are read, or it looks for the entry after the rename and
 * finds none. KEY.lock keeps producers out. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cache/cache.h"

struct look {
	unsigned flags;
	bool leased;
	char *why;
};

/* Leases are written under that lock. While this process has it, a file that is no lease is
 * left from a process that died. */
static void look_at(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	struct look *look = ctx;
	if (l->pin && !(look->flags & CACHE_PINNED_TOO)) {
		look->leased = true;
		snprintf(look->why, CACHE_HOLDER_BYTES, "pinned");
	} else if (!l->pin && cache_lease_alive(l)) {
		look->leased = true;
		snprintf(look->why, CACHE_HOLDER_BYTES, "leased by %.100s", l->holder);
	} else {
		unlinkat(dir, name, 0);
	}
}

/* Not all filesystems know flags of a rename (Lustre and ZFS before 2.2 do not). A directory is then renamed onto
 * an empty one at most. */
int cache_rename_new(int area, const char *from, const char *to)
{
	struct stat st;
	if (renameat2(area, from, area, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -1;
	bool there = fstatat(area, to, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if (!there && renameat(area, from, area, to) == 0)
		return 0;
	if (there || errno == ENOTEMPTY || errno == ENOTDIR)
		errno = EEXIST;
	return -1;
}

int cache_rename_away(int area, const char *name, const char *key, char gone[STAGE_KEY_BYTES + 16])
{
	uint32_t random;
	for (int i = 0; i < 100; i++) {
		if (getrandom(&random, sizeof random, 0) != sizeof random)
			return -1;
		snprintf(gone, STAGE_KEY_BYTES + 16, "%s.gone-%08x", key, random);
		if (cache_rename_new(area, name, gone) == 0)
			return 0;
		if (errno != EEXIST)
			return -1;
	}
	return -1;
}

/* Decides, under the lock. */
static int retire(int area, const cache_entry *entry, unsigned flags, char gone[STAGE_KEY_BYTES + 16],
                  char why[CACHE_HOLDER_BYTES])
{
	struct look look = {.flags = flags, .why = why};
	if (entry->kind != CACHE_PUBLISHED) /* leases are on published copies */
		return cache_rename_away(area, entry->name, entry->key, gone) == 0 ? 1 : errno == ENOENT ? 1 : -1;
	cache_lease_lock lock;
	int got = cache_lease_take(area, entry->key, true, &lock), result;
	if (got < 0 && errno == EWOULDBLOCK) {
		snprintf(why, CACHE_HOLDER_BYTES, "being leased by another process");
		return 0;
	}
	if (got < 0 && (errno == ENOTDIR || errno == ELOOP)) {
		snprintf(why, CACHE_HOLDER_BYTES, "without a directory for leases: what has its name is not ours");
		return 0;
	}
	if (got < 0)
		return -1;
	if (cache_lease_each(area, entry->key, look_at, &look) < 0)
		result = -1;
	else if (look.leased)
		result = 0;
	else
		result = cache_rename_away(area, entry->name, entry->key, gone) == 0 || errno == ENOENT ? 1 : -1;
	int e = errno;
	cache_lease_release(area, entry->key, &lock, true);
	errno = e;
	return result;
}

int cache_evict(int area, const cache_entry *entry, unsigned flags, char why[CACHE_HOLDER_BYTES])
{
	char gone[STAGE_KEY_BYTES + 16] = "";
	int64_t holder = 0;
	int lock = -1;
	why[0] = 0;
	if (entry->kind == CACHE_FOREIGN) {
		snprintf(why, CACHE_HOLDER_BYTES, "not made by gradcomp");
		return 0;
	}
	if (entry->kind == CACHE_EVICTING)
		return dirwalk_remove(area, entry->name) == 0 ? 1 : -1;
	if (!(flags & CACHE_LOCKED)) {
		int got = cache_lock_try(area, entry->key, &lock, &holder);
		if (got == 0)
			snprintf(why, CACHE_HOLDER_BYTES, "being staged by process %lld", (long long)holder);
		if (got != 1)
			return got;
	}
	int result = retire(area, entry, flags, gone, why), e = errno;
	if (lock >= 0)
		cache_lock_release(area, entry->key, lock);
	/* It takes long and needs no lock; what is left of it after a crash is removed by the next. */
	if (result == 1 && *gone && dirwalk_remove(area, gone) < 0)
		return -1;
	errno = e;
	return result;
}
