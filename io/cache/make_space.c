/* Space for a copy that is about to be made: what the settings allow, what the disk has, and
 * what is to be evicted for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "io/cache/cache.h"
#include "config/config.h"
#include "base/number.h"

/* Two processes that make space at once would count the same bytes, so there is a lock. The
 * wait for it is limited: its holder may be stopped, or hostile in the shared area. */
#define PATIENCE 30.0

gradcomp_status cache_budget_load(int area, cache_budget *out, gradcomp_error *err)
{
	struct statvfs fs;
	int64_t bytes = 0;
	unsigned high = 0, low = 0;
	int percent = 0;
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	if (fstatvfs(area, &fs) < 0) {
		config_free(c);
		return text_cannot(err, "ask for the size of", "the cache's filesystem");
	}
	number_share(config_str(c, SET_STAGE_CACHE_BYTES), &bytes, &percent);
	*out = (cache_budget){.bytes = percent ? (uint64_t)fs.f_blocks * fs.f_frsize / 100 * (uint64_t)percent
	                                       : (uint64_t)bytes,
	                      .quota = (uint64_t)config_int(c, SET_STAGE_USER_BYTES)};
	number_marks(config_str(c, SET_STAGE_EVICT), &high, &low);
	out->high = out->bytes / 100 * high;
	out->low = out->bytes / 100 * low;
	config_free(c);
	return GRADCOMP_OK;
}

struct quota {
	stage_run *run;
	int area;
	const char *key;
	cache_size need; /* still to come */
	cache_budget budget;
	cache_entries entries;
	cache_size used;     /* taken, or promised to a producer */
	cache_size promised; /* the part of it that others are still to write */
	cache_size evictable;
	cache_size left; /* free on the disk and promised to nobody */
	bool inodes;     /* the filesystem counts them */
	char kept[200];  /* why what stays has to stay */
};

static uint64_t over(uint64_t need, uint64_t have)
{
	return need > have ? need - have : 0;
}

static void lock_area(struct quota *q, int *lock)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	double begin = clock_now();
	*lock = openat(q->area, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (*lock >= 0 && flock(*lock, LOCK_EX | LOCK_NB) < 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
	       clock_now() - begin < PATIENCE && !stage_run_tick(q->run, NULL))
		nanosleep(&pause, NULL);
}

/* Why an entry has to stay; NULL when it may be evicted. */
static const char *stays(const struct quota *q, const cache_entry *i, char out[CACHE_HOLDER_BYTES + 16])
{
	if (i->kind == CACHE_FOREIGN)
		return "";
	if (i->kind == CACHE_EVICTING)
		return NULL;
	if (!strcmp(i->key, q->key)) /* a damaged copy stays until there is a new one */
		return i->kind == CACHE_PUBLISHED ? "damaged, to be replaced" : "";
	if (i->producing)
		return "being staged";
	if (i->kind == CACHE_PUBLISHED && i->pinned)
		return "pinned";
	if (i->kind == CACHE_PUBLISHED && i->live_leases) {
		snprintf(out, CACHE_HOLDER_BYTES + 16, "leased by %s", i->holder);
		return out;
	}
	return NULL;
}

static void keep(struct quota *q, const cache_entry *i, const char *why)
{
	char size[32];
	size_t n = strlen(q->kept);
	if (n + strlen(why) + 40 < sizeof q->kept)
		snprintf(q->kept + n, sizeof q->kept - n, "%s%s %s", n ? ", " : "",
		         gradcomp_size_text(i->whole.bytes, size), why);
	else if (n + 5 < sizeof q->kept && strcmp(q->kept + n - 3, "..."))
		strcpy(q->kept + n, ", ...");
}

static gradcomp_status survey(struct quota *q, gradcomp_error *err)
{
	char text[CACHE_HOLDER_BYTES + 16];
	struct statvfs fs;
	gradcomp_status st = cache_entries_read(q->area, &q->entries, err);
	if (st)
		return st;
	if (fstatvfs(q->area, &fs) < 0 || !fs.f_frsize)
		return text_cannot(err, "ask for the free space of", q->run->where);
	for (size_t i = 0; i < q->entries.n; i++) {
		const cache_entry *entry = &q->entries.entry[i];
		const char *why = stays(q, entry, text);
		q->used.bytes += strcmp(entry->key, q->key) ? entry->whole.bytes : entry->size.bytes;
		if (!why) {
			q->evictable.bytes += entry->size.bytes;
			q->evictable.inodes += entry->size.inodes;
		} else if (*why) {
			keep(q, entry, why);
			q->promised.bytes += entry->whole.bytes - entry->size.bytes;
			q->promised.inodes += over(entry->whole.inodes, entry->size.inodes);
		}
	}
	q->left.bytes = over((uint64_t)fs.f_bavail * fs.f_frsize, q->promised.bytes);
	q->left.inodes = over((uint64_t)fs.f_favail, q->promised.inodes);
	q->inodes = fs.f_files != 0;
	return GRADCOMP_OK;
}

/* Bytes and inodes that have to be freed; bytes of `want` only if they can be. */
static cache_size must_go(const struct quota *q, uint64_t *want)
{
	uint64_t all = q->used.bytes + q->need.bytes;
	cache_size must = {over(q->need.bytes, q->left.bytes), q->inodes ? over(q->need.inodes, q->left.inodes) : 0};
	if (over(all, q->budget.bytes) > must.bytes)
		must.bytes = over(all, q->budget.bytes);
	if (q->budget.quota && over(all, q->budget.quota) > must.bytes)
		must.bytes = over(all, q->budget.quota);
	*want = all > q->budget.high ? over(all, q->budget.low) : 0;
	if (*want < must.bytes)
		*want = must.bytes;
	return must;
}

/* The error: what is missing, with the numbers. */
static gradcomp_status refuse(const struct quota *q, gradcomp_error *err)
{
	char need[32], have[32], limit[32], freeable[32], stay[400];
	cache_size evictable = q->evictable;
	snprintf(stay, sizeof stay, "%s%s%s%s%s", evictable.bytes ? "; " : "",
	         evictable.bytes ? gradcomp_size_text(evictable.bytes, freeable) : "",
	         evictable.bytes ? " could be evicted" : "", *q->kept ? "; what has to stay: " : "", q->kept);
	gradcomp_size_text(q->need.bytes, need);
	if (q->need.bytes > q->left.bytes + evictable.bytes)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %s, %s free on %s%s", need,
		                 gradcomp_size_text(q->left.bytes, have), q->run->where, stay);
	if (q->inodes && q->need.inodes > q->left.inodes + evictable.inodes)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %llu inodes, %llu free on %s%s",
		                 (unsigned long long)q->need.inodes, (unsigned long long)q->left.inodes, q->run->where,
		                 stay);
	bool quota = q->budget.quota && q->budget.quota < q->budget.bytes;
	uint64_t allowed = quota ? q->budget.quota : q->budget.bytes;
	return error_set(err, GRADCOMP_ERR_IO,
	                 "no space in the cache: needs %s, %s of the %s that %s allows are left in %s%s", need,
	                 gradcomp_size_text(over(allowed, q->used.bytes), have), gradcomp_size_text(allowed, limit),
	                 quota ? "stage.user_bytes" : "stage.cache_bytes", q->run->where, stay);
}

/* Least recently used first, until enough is freeable. */
static gradcomp_status evict(struct quota *q, uint64_t want, uint64_t inodes, cache_size *freed, gradcomp_error *err)
{
	char text[CACHE_HOLDER_BYTES + 16], why[CACHE_HOLDER_BYTES];
	for (size_t i = 0; i < q->entries.n && (freed->bytes < want || freed->inodes < inodes); i++) {
		const cache_entry *entry = &q->entries.entry[i];
		if (stays(q, entry, text))
			continue;
		int result = cache_evict(q->area, entry, 0, why);
		if (result < 0)
			return text_cannot(err, "evict", entry->name);
		if (result) {
			freed->bytes += entry->size.bytes;
			freed->inodes += entry->size.inodes;
		} else {
			keep(q, entry, why);
			q->evictable.bytes -= entry->size.bytes;
			q->evictable.inodes -= entry->size.inodes;
		}
		gradcomp_status st = stage_run_tick(q->run, err);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

/* So that the next process that makes space counts what this copy will take. */
static void promise(const struct quota *q)
{
	char name[STAGE_KEY_BYTES + 8];
	cache_size all;
	snprintf(name, sizeof name, "%s.tmp", q->key);
	int temp = openat(q->area, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (temp < 0)
		return;
	if (cache_measure(temp, &all) == 0) {
		all.bytes += q->need.bytes;
		all.inodes += q->need.inodes;
		(void)!cache_reserve(temp, &all);
	}
	close(temp);
}

gradcomp_status cache_ensure_space(stage_run *run, int area, const char *key, uint64_t bytes, uint64_t inodes,
                                   gradcomp_error *err)
{
	struct quota q = {.run = run, .area = area, .key = key, .need = {bytes, inodes}};
	cache_size freed = {0};
	uint64_t want;
	int lock;
	gradcomp_status st = cache_budget_load(area, &q.budget, err);
	if (st)
		return st;
	lock_area(&q, &lock);
	if ((st = survey(&q, err)))
		goto done;
	cache_size must = must_go(&q, &want);
	if (must.bytes > q.evictable.bytes || must.inodes > q.evictable.inodes) {
		st = refuse(&q, err); /* in vain: nothing is evicted */
		goto done;
	}
	if (want || must.inodes)
		st = evict(&q, want, must.inodes, &freed, err);
	if (!st && (freed.bytes < must.bytes || freed.inodes < must.inodes)) {
		q.left.bytes += freed.bytes;
		q.left.inodes += freed.inodes;
		q.used.bytes -= freed.bytes;
		q.evictable.bytes -= freed.bytes;
		q.evictable.inodes -= freed.inodes;
		st = refuse(&q, err);
	}
	if (!st)
		promise(&q);
done:
	cache_entries_free(&q.entries);
	if (lock >= 0)
		close(lock);
	return st;
}
