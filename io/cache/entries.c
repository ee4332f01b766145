/* Lists the entries of an area, in the order in which they would be evicted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/cache.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

cache_kind cache_name(const char *name, char key[STAGE_KEY_BYTES])
{
	static const char hex[] = "0123456789abcdef";
	const char *suffix = name + STAGE_KEY_BYTES - 1;
	key[0] = 0;
	if (strspn(name, hex) != STAGE_KEY_BYTES - 1)
		return CACHE_FOREIGN;
	cache_kind kind = !*suffix                    ? CACHE_PUBLISHED
	                  : !strcmp(suffix, ".tmp")   ? CACHE_UNFINISHED
	                  : !strcmp(suffix, ".lock")  ? CACHE_LOCK
	                  : !strcmp(suffix, ".lease") ? CACHE_LEASES
	                  : !strcmp(suffix, ".gate")  ? CACHE_GATE
	                  : !strncmp(suffix, ".gone-", 6) && strspn(suffix + 6, hex) == 8 && !suffix[14]
	                          ? CACHE_EVICTING
	                          : CACHE_FOREIGN;
	if (kind != CACHE_FOREIGN) {
		memcpy(key, name, STAGE_KEY_BYTES - 1);
		key[STAGE_KEY_BYTES - 1] = 0;
	}
	return kind;
}

static void note_lease(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	cache_entry *entry = ctx;
	(void)dir;
	(void)name;
	if (l->pin) {
		entry->pinned = true;
	} else if (cache_lease_alive(l)) {
		entry->live_leases++;
		memcpy(entry->holder, l->holder, sizeof entry->holder);
	}
}

/* Returns true when KEY.lock is locked. Does not create the file or write to it. */
static bool is_producing(int area, const char *key)
{
	char name[STAGE_KEY_BYTES + 8];
	snprintf(name, sizeof name, "%s.lock", key);
	int fd = openat(area, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	if (fd >= 0)
		close(fd);
	return held;
}

static int64_t last_use(int area, int dir, const char *key)
{
	static const char *const names[] = {"used", "manifest", "journal", "."};
	int64_t now = (int64_t)time(NULL), used = 0;
	char leases[STAGE_KEY_BYTES + 8];
	struct stat st;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (fstatat(dir, names[i], &st, AT_SYMLINK_NOFOLLOW) == 0) {
			used = st.st_mtim.tv_sec;
			break;
		}
	/* Users of a shared copy cannot write to it, but their leases come and go. */
	snprintf(leases, sizeof leases, "%s.lease", key);
	if (fstatat(area, leases, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mode & S_IWOTH && st.st_mtim.tv_sec > used)
		used = st.st_mtim.tv_sec;
	/* The clock may have been set back since, or a file's time forward. */
	return used < now ? used : now;
}

/* Reads what is in the directory of an entry of ours. 0, or -1 and errno. */
static int look_inside(int area, int dir, cache_entry *entry)
{
	int result =
		entry->kind == CACHE_PUBLISHED ? cache_size_of(dir, &entry->size) : cache_measure(dir, &entry->size);
	if (result < 0)
		return -1;
	entry->used = last_use(area, dir, entry->key);
	entry->whole = entry->size;
	if (entry->kind == CACHE_EVICTING)
		return 0;
	entry->producing = is_producing(area, entry->key);
	if (entry->kind == CACHE_UNFINISHED && entry->producing && cache_reserved(dir, &entry->whole) &&
	    entry->whole.bytes < entry->size.bytes)
		entry->whole = entry->size;
	return cache_lease_each(area, entry->key, note_lease, entry);
}

/* Returns 1 taken, 0 not listed, -1 errno. */
static int describe(int area, const char *name, cache_entry *entry)
{
	int dir = -1, result = 1;
	entry->kind = cache_name(name, entry->key);
	if (entry->kind == CACHE_LOCK || entry->kind == CACHE_LEASES || entry->kind == CACHE_GATE)
		return 0;
	/* In the shared area other users cannot read a copy that is being made. */
	if (entry->kind != CACHE_FOREIGN && (dir = openat(area, name, OPEN_DIR)) < 0 && errno != EACCES) {
		if (errno == ENOENT)
			return 0;
		if (errno != ENOTDIR && errno != ELOOP)
			return -1;
		/* It is not the directory of a copy any more. */
		entry->kind = CACHE_FOREIGN;
		entry->key[0] = 0;
	}
	if (!(entry->name = strdup(name)) || (dir >= 0 && look_inside(area, dir, entry) < 0))
		result = -1;
	if (dir >= 0) {
		int e = errno;
		close(dir);
		errno = e;
	}
	return result;
}

gradcomp_status cache_entry_read(int area, const char *name, cache_entry *out, gradcomp_error *err)
{
	*out = (cache_entry){0};
	int got = describe(area, name, out);
	if (got < 0) {
		cache_entry_free(out);
		return text_cannot(err, "look at", name);
	}
	return GRADCOMP_OK;
}

void cache_entry_free(cache_entry *entry)
{
	free(entry->name);
	entry->name = NULL;
}

static int rank(const cache_entry *i)
{
	return i->kind == CACHE_EVICTING ? 0 : i->kind == CACHE_UNFINISHED ? 1 : i->kind == CACHE_PUBLISHED ? 2 : 3;
}

int cache_entry_turn(const cache_entry *x, const cache_entry *y)
{
	if (rank(x) != rank(y))
		return rank(x) - rank(y);
	if (x->used != y->used)
		return x->used < y->used ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int by_turn(const void *a, const void *b)
{
	return cache_entry_turn(a, b);
}

gradcomp_status cache_entries_each(int area,
                                   gradcomp_status (*each)(void *ctx, cache_entry *entry, gradcomp_error *err),
                                   void *ctx, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	int fd = openat(area, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		return text_cannot(err, "list", "the cache");
	}
	errno = 0;
	for (struct dirent *de; !st && (de = readdir(d)); errno = 0) {
		cache_entry entry = {0};
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		int got = describe(area, de->d_name, &entry);
		if (got < 0)
			st = text_cannot(err, "list", "the cache");
		else if (got)
			st = each(ctx, &entry, err);
		cache_entry_free(&entry);
	}
	if (!st && errno)
		st = text_cannot(err, "list", "the cache");
	closedir(d);
	return st;
}

static gradcomp_status append(void *ctx, cache_entry *entry, gradcomp_error *err)
{
	cache_entries *out = ctx;
	if (out->n == out->capacity) {
		size_t capacity = out->capacity ? 2 * out->capacity : 64;
		cache_entry *more = realloc(out->entry, capacity * sizeof *more);
		if (!more)
			return text_cannot(err, "list", "the cache");
		out->entry = more;
		out->capacity = capacity;
	}
	out->entry[out->n++] = *entry;
	entry->name = NULL;
	return GRADCOMP_OK;
}

gradcomp_status cache_entries_read(int area, cache_entries *out, gradcomp_error *err)
{
	*out = (cache_entries){0};
	gradcomp_status st = cache_entries_each(area, append, out, err);
	if (st)
		cache_entries_free(out);
	else if (out->n)
		qsort(out->entry, out->n, sizeof *out->entry, by_turn);
	return st;
}

void cache_entries_free(cache_entries *entries)
{
	for (size_t i = 0; i < entries->n; i++)
		cache_entry_free(&entries->entry[i]);
	free(entries->entry);
	*entries = (cache_entries){0};
}

bool cache_evictable(const cache_entry *entry)
{
	return entry->kind != CACHE_FOREIGN && !entry->producing &&
	       (entry->kind != CACHE_PUBLISHED || (!entry->pinned && !entry->live_leases));
}
