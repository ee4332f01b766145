/* Cleaning up an area: what processes that died left, and what is over the high mark. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/manage_internal.h"

/* Seconds that an unfinished copy waits for a job that goes on with it. */
#define PATIENCE 86400

struct gc {
	const cache_area *area;
	int64_t job; /* its leases only; 0: everything */
	gradcomp_cache_removed *removed;
	void *ctx;
	const char *key; /* its leases are looked at */
};

static void report_removed(const struct gc *g, const char *what, const char *name, uint64_t bytes)
{
	if (g->removed)
		g->removed(g->ctx, what, name, bytes);
}

/* The job's epilog did not run. */
static bool ended(const struct gc *g, const cache_lease_info *l)
{
	const gradcomp_cache_options *o = &g->area->options;
	for (size_t i = 0; o->live_jobs && i < o->nlive_jobs; i++)
		if (o->live_jobs[i] == l->job)
			return false;
	return o->live_jobs && (!o->live_ns || l->written_ns < o->live_ns);
}

static void take_lease(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	const struct gc *g = ctx;
	char what[CACHE_HOLDER_BYTES + 32];
	bool lease = l->pid || l->job;
	bool goes = g->job ? l->job == g->job : !cache_lease_alive(l) || (l->job && ended(g, l));
	if (!goes || (!cache_area_dry(g->area) && unlinkat(dir, name, 0) < 0))
		return;
	snprintf(what, sizeof what, "%s%s", lease ? "lease of " : "unfinished lease", lease ? l->holder : "");
	report_removed(g, what, g->key, 0);
}

/* With the lock of the leases, so that no lease is removed while it is being written. */
static gradcomp_status leases_of(struct gc *g, const char *key, gradcomp_error *err)
{
	bool dry = cache_area_dry(g->area);
	cache_lease_lock lock;
	bool locked = !dry && cache_lease_take(g->area->fd, key, true, &lock) == 0;
	if (!dry && !locked) {
		/* Leased just now, or not ours to remove. Those of a job are whole, and nobody comes again for them. */
		bool leave = errno == EWOULDBLOCK || errno == ENOTDIR || errno == ELOOP;
		if (!leave)
			return text_cannot(err, "open the leases of", key);
		if (!g->job || errno != EWOULDBLOCK)
			return GRADCOMP_OK;
	}
	g->key = key;
	gradcomp_status st = GRADCOMP_OK;
	if (cache_lease_each(g->area->fd, key, take_lease, g) < 0)
		st = text_cannot(err, "list the leases of", key);
	if (locked)
		cache_lease_release(g->area->fd, key, &lock, true);
	return st;
}

static gradcomp_status leases(struct gc *g, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	int fd = openat(g->area->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		return text_cannot(err, "list", g->area->path);
	}
	for (struct dirent *de; !st && (de = readdir(d));) {
		char key[STAGE_KEY_BYTES];
		if (cache_name(de->d_name, key) == CACHE_LEASES)
			st = leases_of(g, key, err);
	}
	closedir(d);
	return st;
}

static const char *what_it_is(const cache_entry *entry)
{
	return entry->kind == CACHE_EVICTING     ? "rest of an evicted copy"
	       : entry->kind == CACHE_UNFINISHED ? "unfinished copy"
	                                         : "copy";
}

/* 1: it was removed, or would have been; 0: it stays; or a status. */
static int drop(const struct gc *g, const cache_entry *entry, unsigned flags, gradcomp_error *err)
{
	char why[CACHE_HOLDER_BYTES];
	int result = cache_area_dry(g->area) ? 1 : cache_evict(g->area->fd, entry, flags, why);
	if (result < 0)
		return text_cannot(err, "remove", entry->name);
	if (result)
		report_removed(g, what_it_is(entry), entry->name, entry->size.bytes);
	return result;
}

/* Returns true when it may still be resumed. */
static bool may_be_resumed(const cache_entry *entry)
{
	return entry->kind == CACHE_UNFINISHED && entry->used + PATIENCE > (int64_t)time(NULL);
}

/* A round over the area: what all of it takes, and what is next to go. A user may have any
 * number of names in his area, and his epilog's memory is not his: so only this many are kept
 * at a time, and there is another round when they were not enough. */
#define ROUND 1024

struct round {
	uint64_t bytes;
	cache_entry after; /* in the order of turns; without a name: from the beginning */
	cache_entry entry[2 * ROUND];
	size_t n;
	bool more;
};

static int by_turn(const void *a, const void *b)
{
	return cache_entry_turn(a, b);
}

/* The first ROUND of what has been seen, in their order. */
static void shorten(struct round *r)
{
	qsort(r->entry, r->n, sizeof *r->entry, by_turn);
	for (; r->n > ROUND; r->more = true)
		cache_entry_free(&r->entry[--r->n]);
}

static gradcomp_status consider(void *ctx, cache_entry *entry, gradcomp_error *err)
{
	struct round *r = ctx;
	(void)err;
	r->bytes += entry->size.bytes;
	if (!cache_evictable(entry) || may_be_resumed(entry) ||
	    (r->after.name && cache_entry_turn(entry, &r->after) <= 0))
		return GRADCOMP_OK;
	if (r->n == 2 * ROUND)
		shorten(r);
	r->entry[r->n++] = *entry;
	entry->name = NULL;
	return GRADCOMP_OK;
}

/* Copies that nobody finishes, then the least recently used while there is too much. */
static gradcomp_status copies(struct gc *g, gradcomp_error *err)
{
	cache_budget budget;
	uint64_t gone = 0; /* in a dry run it is still there */
	bool full = false, done = false;
	gradcomp_status st = cache_budget_load(g->area->fd, &budget, err);
	struct round *r = st ? NULL : calloc(1, sizeof *r);
	if (!r)
		return st ? st : error_set(err, GRADCOMP_ERR_NOMEM, "no memory to clean up the cache");
	uint64_t limit = budget.high, target = budget.low;
	if (budget.quota && budget.quota < limit)
		limit = target = budget.quota;
	do {
		r->bytes = 0;
		r->more = false;
		st = cache_entries_each(g->area->fd, consider, r, err);
		shorten(r);
		uint64_t all = r->bytes - gone;
		for (size_t i = 0; !st && !done && i < r->n; i++) {
			const cache_entry *entry = &r->entry[i];
			if (entry->kind == CACHE_PUBLISHED) {
				/* The first one: is it still too much without the unfinished ones? */
				full = full || all > limit;
				if ((done = !full || all <= target))
					break;
			}
			int result = drop(g, entry, 0, err);
			if (result > 0)
				all -= entry->size.bytes;
			if (result > 0 && cache_area_dry(g->area))
				gone += entry->size.bytes;
			st = result < 0 ? (gradcomp_status)result : cache_area_tick(g->area, err);
		}
		cache_entry_free(&r->after);
		r->after.name = NULL;
		if (r->n)
			r->after = r->entry[--r->n];
		while (r->n)
			cache_entry_free(&r->entry[--r->n]);
	} while (!st && !done && r->more);
	cache_entry_free(&r->after);
	free(r);
	return st;
}

gradcomp_status gradcomp_cache_gc(const gradcomp_cache_options *options, int64_t job, gradcomp_cache_removed *removed,
                                  void *ctx, gradcomp_error *err)
{
	cache_area a;
	struct gc g = {.area = &a, .job = job, .removed = removed, .ctx = ctx};
	gradcomp_status st;
	if (job < 0)
		return error_set(err, GRADCOMP_ERR_INVALID, "%lld is not the number of a job", (long long)job);
	if ((st = cache_area_begin(&a, options, true, err)))
		return st;
	if (!a.empty && !(st = leases(&g, err)) && !job) {
		st = copies(&g, err);
		if (!cache_area_dry(&a))
			cache_sweep(a.fd, ""); /* the locks of dead producers */
	}
	cache_area_end(&a);
	return st;
}

gradcomp_status gradcomp_cache_evict(const gradcomp_cache_options *options, const char *key,
                                     gradcomp_cache_removed *removed, void *ctx, gradcomp_error *err)
{
	char why[CACHE_HOLDER_BYTES];
	cache_area a;
	cache_entry entry = {.kind = CACHE_PUBLISHED};
	struct gc g = {.area = &a, .removed = removed, .ctx = ctx};
	gradcomp_status st = cache_key_check(key, err);
	if (st || (st = cache_area_begin(&a, options, true, err)))
		return st;
	if (a.empty)
		st = cache_no_copy(&a, key, err);
	else
		st = cache_entry_read(a.fd, key, &entry, err);
	if (!st && !entry.name)
		st = cache_no_copy(&a, key, err);
	if (st)
		goto done;
	bool force = a.options.flags & GRADCOMP_CACHE_FORCE;
	int result = 1;
	if (!cache_area_dry(&a))
		result = cache_evict(a.fd, &entry, force ? CACHE_PINNED_TOO : 0, why);
	else if (entry.live_leases || entry.producing || (entry.pinned && !force)) {
		result = 0;
		snprintf(why, sizeof why, "%s%.100s", entry.live_leases ? "leased by " : "",
		         entry.live_leases ? entry.holder
		         : entry.producing ? "being staged"
		                           : "pinned");
	}
	if (result < 0)
		st = text_cannot(err, "evict", key);
	else if (!result)
		st = error_set(err, GRADCOMP_ERR_STATE, "copy %.12s stays: it is %s", key, why);
	else
		report_removed(&g, what_it_is(&entry), entry.name, entry.size.bytes);
done:
	cache_entry_free(&entry);
	cache_area_end(&a);
	return st;
}

gradcomp_status gradcomp_cache_clear(const gradcomp_cache_options *options, gradcomp_cache_removed *removed, void *ctx,
                                     uint32_t *kept, gradcomp_error *err)
{
	cache_area a;
	cache_entries entries = {0};
	struct gc g = {.area = &a, .removed = removed, .ctx = ctx};
	gradcomp_status st = cache_area_begin(&a, options, true, err);
	*kept = 0;
	if (st)
		return st;
	bool force = a.options.flags & GRADCOMP_CACHE_FORCE;
	if (!a.empty && !(st = leases(&g, err)))
		st = cache_entries_read(a.fd, &entries, err);
	for (size_t i = 0; !st && i < entries.n; i++) {
		cache_entry *entry = &entries.entry[i];
		if (entry->kind == CACHE_FOREIGN)
			continue;
		if (force)
			entry->pinned = false;
		int result = cache_evictable(entry) ? drop(&g, entry, force ? CACHE_PINNED_TOO : 0, err) : 0;
		*kept += result == 0;
		st = result < 0 ? (gradcomp_status)result : cache_area_tick(&a, err);
	}
	cache_entries_free(&entries);
	cache_area_end(&a);
	return st;
}
