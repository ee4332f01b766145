/* Tests of collectives share this: the layouts they are held to, the plugins that are installed, and numbers that
 * are new in every run. */
#ifndef TESTS_SUPPORT_COLLECTIVE_LAYOUTS_H
#define TESTS_SUPPORT_COLLECTIVE_LAYOUTS_H

#include "tests/support/operator_input.h"
#include "tests/support/thread_ranks.h"

#include "base/error.h"
#include "job/job.h"

enum { RANKS = 9, LAYOUTS = 12, MOST_PLUGINS = 32 };

typedef struct layout {
	const char *name;
	int P, nodes[RANKS];
} layout;

static const layout layouts[LAYOUTS] = {
	{"1 rank", 1, {0}},
	{"2 ranks", 2, {0}},
	{"3 ranks", 3, {0}},
	{"4 ranks", 4, {0}},
	{"5 ranks", 5, {0}},
	{"6 ranks", 6, {0}},
	{"7 ranks", 7, {0}},
	{"8 ranks", 8, {0}},
	{"9 ranks", 9, {0}},
	{"2 nodes of 3 ranks", 6, {0, 0, 0, 1, 1, 1}},
	{"3 nodes of 2 ranks", 6, {0, 0, 1, 1, 2, 2}},
	{"3 + 1 ranks", 4, {0, 0, 0, 1}},
};

/* The collectives of this build, by name. */
static char collectives[MOST_PLUGINS][SPEC_NAME_MAX];
static int ncollectives;

static int grid_note(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                     const char *reason)
{
	(void)ctx, (void)path;
	if (!info)
		ok(0, "collective %s can be loaded: %s", name, reason);
	else if (ncollectives < MOST_PLUGINS)
		snprintf(collectives[ncollectives++], sizeof collectives[0], "%s", name);
	return 0;
}

static int grid_find(const char *const *settings)
{
	gradcomp_error err;
	config *c;
	if (config_load(settings, &c, &err)) {
		ok(0, "%s", err.text);
		return 0;
	}
	registry_each(c, GRADCOMP_KIND_COLLECTIVE, grid_note, NULL);
	config_free(c);
	ok(ncollectives > 0 && ncollectives < MOST_PLUGINS, "%d collectives are installed", ncollectives);
	return ncollectives;
}

__attribute__((unused)) static gradcomp_status grid_open(gradcomp_job *job, const char *text, coll_ctx *out,
                                                         gradcomp_error *err)
{
	const plugin *p;
	spec s;
	gradcomp_status st = spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, text, &p, &s, err);
	if (!st) {
		st = group_coll_open(gradcomp_job_world(job), p, &s, out, err);
		spec_clear(&s);
	}
	return st;
}

__attribute__((unused)) static void grid_run(const layout *l, const char *const *settings,
                                             void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	ranks_on(l->nodes);
	run_ranks(l->P, settings, body, arg);
	ranks_on(NULL);
}

/* Blocks that differ by a lot, some of them empty. */
__attribute__((unused)) static void grid_split(uint64_t n, int P, uint64_t *counts)
{
	uint64_t left = n;
	for (int r = 0; r < P; r++) {
		counts[r] = r == P - 1 ? left : r % 3 == 1 ? 0 : left / 2;
		left -= counts[r];
	}
}

/* Memory of n bytes between walls that must stay as they are. */
enum { WALL = 64 };

__attribute__((unused)) static void *walled(size_t n)
{
	char *p = aligned_alloc(64, (n + 2 * WALL + 63) / 64 * 64);
	if (!p)
		exit(1);
	memset(p, 0xa5, WALL);
	memset(p + WALL + n, 0xa5, WALL);
	return p + WALL;
}

/* Returns 1 when the walls stand, the second one behind n bytes. */
__attribute__((unused)) static int walls_stand(const void *mem, size_t n)
{
	const unsigned char *p = mem;
	int stand = 1;
	for (int i = 1; i <= WALL; i++)
		stand &= p[-i] == 0xa5 && p[n + (size_t)i - 1] == 0xa5;
	return stand;
}

__attribute__((unused)) static void set_wall(void *mem, size_t n)
{
	memset((char *)mem + n, 0xa5, WALL);
}

__attribute__((unused)) static void walled_free(void *mem)
{
	free((char *)mem - WALL);
}

#endif
