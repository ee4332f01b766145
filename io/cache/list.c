/* Listing an area, and how full it is. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/manage_internal.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct leases {
	gradcomp_cache_lease *lease;
	uint32_t n, capacity, nlive;
	bool failed;
};

static void add_lease(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	struct leases *s = ctx;
	(void)dir;
	(void)name;
	if (!l->pin && !l->pid && !l->job)
		return;
	if (s->n == s->capacity) {
		uint32_t capacity = s->capacity ? 2 * s->capacity : 8;
		gradcomp_cache_lease *more = realloc(s->lease, capacity * sizeof *more);
		s->failed |= !more;
		if (!more)
			return;
		s->lease = more;
		s->capacity = capacity;
	}
	char *holder = strdup(l->pin ? "pin" : l->holder);
	s->failed |= !holder;
	if (!holder)
		return;
	bool alive = cache_lease_alive(l);
	s->lease[s->n++] = (gradcomp_cache_lease){.holder = holder, .pid = l->pid, .job = l->job, .alive = alive};
	s->nlive += alive;
}

static void free_leases(struct leases *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		free((char *)s->lease[i].holder);
	free(s->lease);
}

/* Returns 0, what each() returned, or a negative status. */
static int show(const cache_area *a, const cache_entry *entry, int (*each)(void *ctx, const gradcomp_cache_entry *e),
                void *ctx, gradcomp_error *err)
{
	static const gradcomp_cache_kind kinds[] = {
		[CACHE_PUBLISHED] = GRADCOMP_CACHE_PUBLISHED,
		[CACHE_UNFINISHED] = GRADCOMP_CACHE_UNFINISHED,
		[CACHE_EVICTING] = GRADCOMP_CACHE_EVICTED,
		[CACHE_FOREIGN] = GRADCOMP_CACHE_FOREIGN,
	};
	char path[4096 + 300];
	struct leases leases = {0};
	cache_manifest_head head = {0};
	int dir = entry->kind == CACHE_PUBLISHED ? openat(a->fd, entry->name, OPEN_DIR) : -1, result;
	if (dir >= 0) {
		cache_manifest_head_read(dir, &head);
		close(dir);
	}
	if (entry->kind == CACHE_PUBLISHED && cache_lease_each(a->fd, entry->key, add_lease, &leases) < 0) {
		result = text_cannot(err, "list the leases of", entry->key);
		goto done;
	}
	if (leases.failed) {
		result = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to list the cache");
		goto done;
	}
	snprintf(path, sizeof path, "%s/%.260s%s", a->path, entry->name, entry->kind == CACHE_PUBLISHED ? "/data" : "");
	const gradcomp_cache_entry e = {
		.struct_size = sizeof e,
		.kind = kinds[entry->kind],
		.name = entry->name,
		.key = entry->key,
		.source = head.source,
		.path = path,
		.files = head.files,
		.bytes = head.bytes,
		.allocated = entry->size.bytes,
		.inodes = entry->size.inodes,
		.last_use = entry->used,
		.pinned = entry->pinned,
		.producing = entry->producing,
		.nleases = leases.n,
		.nlive = leases.nlive,
		.leases = leases.lease,
	};
	result = each(ctx, &e);
	if (result < 0)
		result = 1;
done:
	free_leases(&leases);
	free(head.source);
	return result;
}

gradcomp_status gradcomp_cache_each(const gradcomp_cache_options *options,
                                    int (*each)(void *ctx, const gradcomp_cache_entry *e), void *ctx,
                                    gradcomp_error *err)
{
	cache_area a;
	cache_entries entries = {0};
	gradcomp_status st = cache_area_begin(&a, options, false, err);
	if (!st && !a.empty)
		st = cache_entries_read(a.fd, &entries, err);
	for (size_t i = 0; !st && i < entries.n; i++) {
		int result = show(&a, &entries.entry[i], each, ctx, err);
		if (result > 0)
			break;
		st = (gradcomp_status)result;
		if (!st)
			st = cache_area_tick(&a, err);
	}
	cache_entries_free(&entries);
	cache_area_end(&a);
	return st;
}

/* The nearest directory above `path` that there is. */
static int open_above(const char *path)
{
	char dir[4096];
	int fd = -1;
	snprintf(dir, sizeof dir, "%s", path);
	for (char *slash; fd < 0 && (slash = strrchr(dir, '/')); *slash = 0)
		fd = open(slash == dir ? "/" : dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd;
}

gradcomp_status gradcomp_cache_get_usage(const gradcomp_cache_options *options, gradcomp_cache_usage *usage,
                                         gradcomp_error *err)
{
	gradcomp_cache_usage u = {.struct_size = usage->struct_size};
	cache_budget budget;
	cache_entries entries = {0};
	struct statvfs fs = {0};
	cache_area a;
	gradcomp_status st = cache_area_begin(&a, options, false, err);
	if (st)
		return st;
	if (a.empty)
		a.fd = open_above(a.path);
	else
		st = cache_entries_read(a.fd, &entries, err);
	if (!st && (a.fd < 0 || fstatvfs(a.fd, &fs) < 0))
		st = text_cannot(err, "ask for the free space of", a.path);
	if (!st && !(st = cache_budget_load(a.fd, &budget, err))) {
		u.budget = budget.bytes;
		u.high = budget.high;
		u.low = budget.low;
		u.quota = budget.quota;
		u.disk_size = (uint64_t)fs.f_blocks * fs.f_frsize;
		u.disk_free = (uint64_t)fs.f_bavail * fs.f_frsize;
		snprintf(u.path, sizeof u.path, "%s", a.path);
	}
	for (size_t i = 0; i < entries.n; i++) {
		const cache_entry *entry = &entries.entry[i];
		u.entries += entry->kind == CACHE_PUBLISHED;
		u.bytes += entry->size.bytes;
		if (cache_evictable(entry))
			u.evictable += entry->size.bytes;
	}
	if (!st)
		memcpy(usage, &u, usage->struct_size < sizeof u ? usage->struct_size : sizeof u);
	cache_entries_free(&entries);
	cache_area_end(&a);
	return st;
}
