/* Cleaning up an area: what the dead left, and what is too much. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/area.h"

/* Seconds that an unfinished copy waits for a job that goes on with it. */
#define PATIENCE 86400

struct gc {
	const cache_area *area;
	int64_t job; /* its leases only; 0: everything */
	gradcomp_cache_removed *removed;
	void *ctx;
	const char *key; /* of the leases that are looked at */
};

static void say(const struct gc *g, const char *what, const char *name, uint64_t bytes)
{
	if (g->removed)
		g->removed(g->ctx, what, name, bytes);
}

/* ---- leases ------------------------------------------------------------------------ */

static void take_lease(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	const struct gc *g = ctx;
	char what[CACHE_HOLDER_BYTES + 32];
	bool lease = l->pid || l->job;
	bool goes = g->job ? l->job == g->job : !cache_lease_alive(l);
	if (!goes || (!cache_area_dry(g->area) && unlinkat(dir, name, 0) < 0))
		return;
	snprintf(what, sizeof what, "%s%s", lease ? "lease of " : "unfinished lease", lease ? l->holder : "");
	say(g, what, g->key, 0);
}

/* With the gate shut, so that none is removed that is just being written. */
static gradcomp_status leases_of(struct gc *g, const char *key, gradcomp_error *err)
{
	bool dry = cache_area_dry(g->area);
	int gate = dry ? -1 : cache_gate_enter(g->area->fd, key, true);
	if (!dry && gate < 0) {
		/* Leased just now, or not ours to remove. */
		bool leave = errno == EWOULDBLOCK || errno == ENOTDIR || errno == ELOOP;
		return leave ? GRADCOMP_OK : stage_fail(err, "open the leases of", key);
	}
	g->key = key;
	gradcomp_status status = GRADCOMP_OK;
	if (cache_lease_each(g->area->fd, key, take_lease, g) < 0)
		status = stage_fail(err, "list the leases of", key);
	if (gate >= 0)
		cache_gate_leave(g->area->fd, key, gate, true);
	return status;
}

static gradcomp_status leases(struct gc *g, gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;
	int fd = openat(g->area->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		return stage_fail(err, "list", g->area->path);
	}
	for (struct dirent *de; !status && (de = readdir(d));) {
		char key[STAGE_KEY_BYTES];
		if (cache_name(de->d_name, key) == CACHE_LEASES)
			status = leases_of(g, key, err);
	}
	closedir(d);
	return status;
}

/* ---- copies ------------------------------------------------------------------------- */

static const char *what_it_is(const cache_item *item)
{
	return item->kind == CACHE_GONE         ? "rest of an evicted copy"
	       : item->kind == CACHE_UNFINISHED ? "unfinished copy"
	                                        : "copy";
}

/* 1 it went, or would have, 0 it stays, or a status. */
static int drop(const struct gc *g, const cache_item *item, unsigned flags, gradcomp_error *err)
{
	char why[CACHE_HOLDER_BYTES];
	int result = cache_area_dry(g->area) ? 1 : cache_evict(g->area->fd, item, flags, why);
	if (result < 0)
		return stage_fail(err, "remove", item->name);
	if (result)
		say(g, what_it_is(item), item->name, item->size.bytes);
	return result;
}

/* Whether it waits to be gone on with. */
static bool may_be_resumed(const cache_item *item)
{
	return item->kind == CACHE_UNFINISHED && item->used + PATIENCE > (int64_t)time(NULL);
}

/* What nobody finishes, then the least recently used while there is too much. */
static gradcomp_status copies(struct gc *g, gradcomp_error *err)
{
	uint64_t all = 0;
	cache_budget budget;
	cache_items items;
	gradcomp_status status = cache_budget_load(g->area->fd, &budget, err);
	if (status || (status = cache_items_read(g->area->fd, &items, err)))
		return status;
	for (size_t i = 0; i < items.n; i++)
		all += items.item[i].size.bytes;
	uint64_t limit = budget.high, target = budget.low;
	if (budget.quota && budget.quota < limit)
		limit = target = budget.quota;
	bool full = false;
	for (size_t i = 0; !status && i < items.n; i++) {
		const cache_item *item = &items.item[i];
		bool copy = item->kind == CACHE_PUBLISHED;
		if (copy && !full) /* the first one: is it still too much without the rest? */
			full = all > limit;
		if (!cache_evictable(item) || may_be_resumed(item) || (copy && (!full || all <= target)))
			continue;
		int result = drop(g, item, 0, err);
		if (result > 0)
			all -= item->size.bytes;
		status = result < 0 ? (gradcomp_status)result : cache_area_tick(g->area, err);
	}
	cache_items_free(&items);
	return status;
}

gradcomp_status gradcomp_cache_gc(const gradcomp_cache_options *options, int64_t job,
                                  gradcomp_cache_removed *removed, void *ctx, gradcomp_error *err)
{
	cache_area a;
	struct gc g = {.area = &a, .job = job, .removed = removed, .ctx = ctx};
	gradcomp_status status;
	if (job < 0)
		return error_set(err, GRADCOMP_ERR_INVALID, "%lld is not the number of a job", (long long)job);
	if ((status = cache_area_begin(&a, options, true, err)))
		return status;
	if (!a.empty && !(status = leases(&g, err)) && !job) {
		status = copies(&g, err);
		if (!cache_area_dry(&a))
			stage_sweep(a.fd, ""); /* the locks of dead producers */
	}
	cache_area_end(&a);
	return status;
}

/* ---- by hand --------------------------------------------------------------------------- */

gradcomp_status gradcomp_cache_evict(const gradcomp_cache_options *options, const char *key,
                                     gradcomp_cache_removed *removed, void *ctx, gradcomp_error *err)
{
	char why[CACHE_HOLDER_BYTES];
	cache_area a;
	cache_item item = {.kind = CACHE_PUBLISHED};
	struct gc g = {.area = &a, .removed = removed, .ctx = ctx};
	gradcomp_status status = cache_key_check(key, err);
	if (status || (status = cache_area_begin(&a, options, true, err)))
		return status;
	if (a.empty)
		status = cache_no_copy(&a, key, err);
	else
		status = cache_item_read(a.fd, key, &item, err);
	if (!status && !item.name)
		status = cache_no_copy(&a, key, err);
	if (status)
		goto done;
	bool force = a.options.flags & GRADCOMP_CACHE_FORCE;
	int result = 1;
	if (!cache_area_dry(&a))
		result = cache_evict(a.fd, &item, force ? CACHE_PINNED_TOO : 0, why);
	else if (item.held || item.producing || (item.pinned && !force)) {
		result = 0;
		snprintf(why, sizeof why, "%s%.100s", item.held ? "leased by " : "",
		         item.held        ? item.holder
		         : item.producing ? "being staged"
		                          : "pinned");
	}
	if (result < 0)
		status = stage_fail(err, "evict", key);
	else if (!result)
		status = error_set(err, GRADCOMP_ERR_STATE, "copy %.12s stays: it is %s", key, why);
	else
		say(&g, what_it_is(&item), item.name, item.size.bytes);
done:
	cache_item_free(&item);
	cache_area_end(&a);
	return status;
}

gradcomp_status gradcomp_cache_clear(const gradcomp_cache_options *options, gradcomp_cache_removed *removed,
                                     void *ctx, uint32_t *kept, gradcomp_error *err)
{
	cache_area a;
	cache_items items = {0};
	struct gc g = {.area = &a, .removed = removed, .ctx = ctx};
	gradcomp_status status = cache_area_begin(&a, options, true, err);
	*kept = 0;
	if (status)
		return status;
	bool force = a.options.flags & GRADCOMP_CACHE_FORCE;
	if (!a.empty && !(status = leases(&g, err)))
		status = cache_items_read(a.fd, &items, err);
	for (size_t i = 0; !status && i < items.n; i++) {
		cache_item *item = &items.item[i];
		if (item->kind == CACHE_FOREIGN)
			continue;
		if (force)
			item->pinned = false;
		int result = cache_evictable(item) ? drop(&g, item, force ? CACHE_PINNED_TOO : 0, err) : 0;
		*kept += result == 0;
		status = result < 0 ? (gradcomp_status)result : cache_area_tick(&a, err);
	}
	cache_items_free(&items);
	cache_area_end(&a);
	return status;
}
