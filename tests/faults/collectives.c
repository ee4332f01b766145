/* Every primitive of every installed collective, over shared memory, TCP and both,
 * while reads and writes come up short, find nothing, are interrupted and late:
 * right to the bit. Then with a connection that breaks and with every allocation
 * that fails: an error everybody hears of. */
#include "tests/support/exact_primitives.h"
#include "tests/support/fault_run.h"

#include "tests/support/thread_ranks.h"

#include "config/config.h"
#include "tests/support/operator_input.h"
#include "operators/operator_tables.h"
#include "plugin/spec_table.h"
#include "plugin/plugin_host.h"

enum { RANKS = 4, SIZES = 4, COLLECTIVES = 32, TOGETHER = 5 };
static const uint64_t sizes[SIZES] = {0, 7, 4097, 70001};
static const uint64_t most = 70001;

typedef struct way {
	const char *name, *allow;
	int per_node, cma;
} way;
static const way ways[] = {
	{"shm", "shm", 0, 1}, {"shm without cma", "shm", 0, 0}, {"tcp", "tcp", 0, 1}, {"two nodes", "shm,tcp", 2, 1}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static config *settings;
static gradcomp_host host;
static workspace space;
static char names[COLLECTIVES][32];
static int ncollectives;

static const plugin *collective;
static spec values;
static unsigned seed;
static int all; /* every point, not only some */

/* All of it until something fails; a failure of this rank alone is told to the others,
 * as the runtime does it. */
static void body(board *b, transport *t, int rank)
{
	fault_run *tr = fault_run_of(b);
	gradcomp_error *err = &b->error[rank];
	gradcomp_status st;
	const struct gradcomp_collective_v1 *c = collective->collective;
	int ranks[RANKS] = {0, 1, 2, 3};
	channel *ch = NULL;
	void *instance = NULL;
	if (!tr->joins)
		board_exchange(b);
	fault_run_begin(b, rank);
	st = channel_open(t, 3, ranks, b->n, rank, &ch, err);
	if (!st)
		st = c->create(&host, values.values, channel_links(ch), &instance, err);
	for (int what = 0; !st && what < PRIMITIVES; what++)
		for (int s = 0; !st && s < SIZES; s++)
			if (c->serves & primitives[what].serves)
				st = whole_run(c, instance, what, &space, sizes[s], rank, b->n, (uint64_t)(what + s),
				               &tr->wrong[rank], err);
	if (st) {
		char text[600];

		snprintf(text, sizeof text, "rank %d on %s: %s", rank, transport_host(t, rank), err->text);
		transport_fail(t, st, rank, text);
	}
	if (instance)
		c->destroy(instance);
	channel_close(ch);
	if (!tr->joins)
		inject_off();
	b->status[rank] = st;
}

static board *new_run(const way *w, const char *faults)
{
	board *b = board_new(RANKS);
	fault_run *t = fault_run_new(b);
	b->options.allow = w->allow;
	b->options.cma = w->cma;
	b->options.operators = operators_cpu();
	b->options.timeout = 5;
	b->options.wait_timeout = 10;
	b->per_node = w->per_node;
	b->body = body;
	t->seed = seed;
	snprintf(t->faults, sizeof t->faults, "%s", faults);
	return b;
}

static int judged(board *b, int may_fail)
{
	const char *why = fault_run_check(b, may_fail);
	if (why)
		fault_run_show(b, why);
	return !why;
}

static void disturbed(const way *w, const char *faults, int joins)
{
	board *b = new_run(w, faults);
	int good;
	fault_run_of(b)->joins = joins;
	fault_run_start(b);
	fault_run_finish(b);
	good = judged(b, 0);
	tap_tried(fault_run_seen(b).faults, "injected faults");
	ok(good && (!*faults || fault_run_seen(b).faults), "%s, %s: right with %s%s (%lu faults, %.2f s)",
	   collective->info->name, w->name, *faults ? faults : "none", joins ? ", joining and leaving too" : "",
	   fault_run_seen(b).faults, fault_run_of(b)->seconds);
	fault_run_free(b);
}

/* The n-th thing of a kind fails in one rank, for n from `from` on by `step`, until a
 * run has fewer. Several runs at a time: they mostly wait. */
static void broken(const way *w, const char *kind, unsigned long from, unsigned long step)
{
	int good = 1, runs = 0, hit = 0, failed = 0, over = 0;
	double longest = 0;
	board *b[TOGETHER];
	for (unsigned long n = from; good && !over;) {
		for (int k = 0; k < TOGETHER; k++, n += step) {
			char text[40];

			snprintf(text, sizeof text, "%s=%lu", kind, n);
			b[k] = new_run(w, text);
			fault_run_of(b[k])->who = (int)(n / step) % RANKS;
			fault_run_start(b[k]);
		}
		for (int k = 0; k < TOGETHER; k++) {
			fault_run_finish(b[k]);
			good &= judged(b[k], 1);
			runs++;
			hit += fault_run_seen(b[k]).faults != 0;
			over |= !fault_run_seen(b[k]).faults;
			failed += fault_run_failed(b[k], 0) != 0;
			longest = fault_run_of(b[k])->seconds > longest ? fault_run_of(b[k])->seconds : longest;
			fault_run_free(b[k]);
		}
		/* Later connections break in the middle of the same. */
		step = !all && *kind == 'r' ? 2 * step : step;
	}
	tap_tried((unsigned long)hit, "injected faults");
	ok(good && hit, "%s, %s: %s, %d of %d runs hit, %d failed on all ranks, the longest took %.2f s",
	   collective->info->name, w->name, kind, hit, runs, failed, longest);
}

static int found(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	(void)ctx, (void)path;
	if (!info)
		printf("# %s cannot be used: %s\n", name, reason);
	else if (ncollectives < COLLECTIVES && strlen(name) < sizeof names[0])
		strcpy(names[ncollectives++], name);
	return 0;
}

int main(void)
{
	const char *given[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	gradcomp_error err;
	test_seed();
	seed = (unsigned)(test_random() % 100000);
	all = getenv("TEST_ALL") != NULL;
	if (config_load(given, &settings, &err)) {
		ok(0, "settings: %s", err.text);
		return done_testing();
	}
	plugin_host(&host, &quiet);
	workspace_make(&space, most, &host);
	registry_each(settings, GRADCOMP_KIND_COLLECTIVE, found, NULL);
	ok(ncollectives >= 2, "%d collectives are installed", ncollectives);
	for (int k = 0; k < ncollectives; k++) {
		if (spec_resolve(settings, GRADCOMP_KIND_COLLECTIVE, names[k], &collective, &values, &err)) {
			ok(0, "%s: %s", names[k], err.text);
			continue;
		}
		if (collective->collective->traits & GRADCOMP_TRAIT_CUDA) {
			skip("it works on device memory", "%s", names[k]);
			spec_clear(&values);
			continue;
		}
		for (int w = 0; w < WAYS; w++) {
			if (!all && !tap_in_part((unsigned long)(k + w), 2))
				continue;
			disturbed(&ways[w], "", 0);
			disturbed(&ways[w], "short=30;delay=5;delay_us=200", 0);
			disturbed(&ways[w], "eagain=40;eintr=20", w % 2);
			disturbed(&ways[w], "short=60;eagain=30;eintr=20;delay=2;delay_us=500", w % 2);
		}
		for (int w = 0; w < WAYS; w += all ? 1 : 2)
			broken(&ways[w], "reset", 1 + seed % 3, all ? 1 : 5);
		for (int w = 0; w < WAYS; w++)
			broken(&ways[w], "alloc", all ? 1 : 1 + (seed + (unsigned)w) % 3, all ? 1 : 3);
		disturbed(&ways[3], "", 0);
		spec_clear(&values);
	}
	workspace_free(&space);
	config_free(settings);
	return done_testing();
}
