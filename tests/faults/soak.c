/* Random collectives by random plugins on random groups of ranks, in random sizes,
 * two channels at a time, while calls come up short, find nothing and are late: all
 * right to the bit, and nothing is kept. TEST_SEED=N repeats a run; SOAK_SECONDS=N
 * makes it longer; GRADCOMP_INJECT chooses the faults (tests/support/inject/inject.h). */
#include "tests/support/exact_primitives.h"
#include "tests/support/fault_run.h"

#include "tests/support/thread_ranks.h"

#include "config/config.h"
#include "tests/support/operator_input.h"
#include "operators/operator_tables.h"
#include "plugin/spec_table.h"
#include "plugin/plugin_host.h"

enum { COLLECTIVES = 32, LANES = 2, LONGEST = 60000, RUNS_A_JOB = 12 };

static config *settings;
static gradcomp_host host;
static const plugin *collective[COLLECTIVES];
static spec values[COLLECTIVES];
static int ncollectives;
static uint64_t plan; /* all ranks of a job draw from it */

typedef struct lane {
	board *b;
	transport *t;
	int rank, number;
	gradcomp_status status;
	gradcomp_error error;
	int wrong, done;
	workspace space;
	pthread_t thread;
} lane;

static uint64_t drawn(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* One group: who is in it, over what, and a few primitives. All ranks draw the same. */
static gradcomp_status group_run(lane *l, uint64_t *state, int k)
{
	int ranks[PRIMITIVE_RANKS], n = 0, me = -1, which = (int)(drawn(state) % (uint64_t)ncollectives);
	const struct gradcomp_collective_v1 *c = collective[which]->collective;
	uint64_t members = drawn(state), turn = drawn(state), runs = 1 + drawn(state) % 5;
	gradcomp_status st;
	void *instance = NULL;
	channel *ch;
	for (int i = 0; i < l->b->n; i++) {
		int r = (int)(((uint64_t)i + turn) % (uint64_t)l->b->n);

		if (!(members >> r & 1) && i)
			continue;
		if (r == l->rank)
			me = n;
		ranks[n++] = r;
	}
	st = me < 0 ? GRADCOMP_OK
	            : channel_open(l->t, (uint64_t)(1 + l->number + LANES * k), ranks, n, me, &ch, &l->error);
	if (me >= 0 && !st) {
		st = c->create(&host, values[which].values, channel_links(ch), &instance, &l->error);
		if (st)
			channel_close(ch);
	}
	for (uint64_t i = 0; i < runs; i++) {
		int what = (int)(drawn(state) % PRIMITIVES);
		uint64_t bits = drawn(state), size = (bits >> 8) % (bits % 4 ? 300 : LONGEST + 1),
			 salt = drawn(state) % 97;

		if (st || me < 0 || !(c->serves & primitives[what].serves))
			continue;
		st = whole_run(c, instance, what, &l->space, size, me, n, salt, &l->wrong, &l->error);
		l->done++;
		if (st || l->wrong)
			printf("# rank %d of %d, %s, %s of %llu: %d wrong, %s\n", me, n, collective[which]->info->name,
			       primitives[what].name, (unsigned long long)size, l->wrong, st ? l->error.text : "well");
	}
	if (instance)
		c->destroy(instance);
	if (instance)
		channel_close(ch);
	return st;
}

static void *lane_main(void *arg)
{
	lane *l = arg;
	uint64_t state = plan + (uint64_t)l->number;
	for (int k = 0; k < RUNS_A_JOB && !l->status; k++)
		l->status = group_run(l, &state, k);
	if (l->status)
		transport_fail(l->t, l->status, l->rank, l->error.text);
	return NULL;
}

static lane lanes[LANES];

static void body(board *b, transport *t, int rank)
{
	fault_run *tr = fault_run_of(b);
	for (int i = 0; i < LANES; i++) {
		workspace space = lanes[i].space;

		lanes[i] = (lane){.b = b, .t = t, .rank = rank, .number = i, .space = space};
		if (i)
			pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]);
	}
	lane_main(&lanes[0]);
	for (int i = 0; i < LANES; i++) {
		if (i)
			pthread_join(lanes[i].thread, NULL);
		tr->wrong[rank] += lanes[i].wrong;
		if (!lanes[i].status)
			continue;
		b->status[rank] = lanes[i].status;
		b->error[rank] = lanes[i].error;
	}
}

static int found(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	gradcomp_error err;
	int k = ncollectives;
	(void)ctx, (void)path, (void)reason;
	if (info && k < COLLECTIVES &&
	    !spec_resolve(settings, GRADCOMP_KIND_COLLECTIVE, name, &collective[k], &values[k], &err)) {
		if (collective[k]->collective->traits & GRADCOMP_TRAIT_CUDA)
			spec_clear(&values[k]);
		else
			ncollectives++;
	}
	return 0;
}

int main(void)
{
	static const char *const allow[] = {"shm", "tcp", "shm,tcp"};
	const char *given[] = {plugin_path_setting(), "gradcomp.log=error", NULL}, *longer = getenv("SOAK_SECONDS"),
		   *told = getenv("GRADCOMP_INJECT");
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	double until = board_now() + (longer ? atof(longer) : 5);
	unsigned long faults = 0;
	int jobs = 0, good = 1;
	gradcomp_error err;
	inject_off();
	test_seed();
	if (config_load(given, &settings, &err)) {
		ok(0, "settings: %s", err.text);
		return done_testing();
	}
	plugin_host(&host, &quiet);
	registry_each(settings, GRADCOMP_KIND_COLLECTIVE, found, NULL);
	for (int i = 0; i < LANES; i++)
		workspace_make(&lanes[i].space, LONGEST, &host);
	for (; good && board_now() < until; jobs++) {
		board *b = board_new(2 + (int)(test_random() % 5));
		fault_run *t = fault_run_new(b);
		const char *why;

		plan = test_random();
		b->options.allow = allow[test_random() % 3];
		b->options.cma = (int)(test_random() % 2);
		b->options.streams = 1 + (int)(test_random() % 3);
		b->options.operators = operators_cpu();
		b->per_node = strchr(b->options.allow, ',') ? 1 + (int)(test_random() % 3) : 0;
		b->body = body;
		t->joins = 1;
		t->seed = (unsigned)(test_random() % 100000);
		snprintf(t->faults, sizeof t->faults, "short=%d;eagain=%d;eintr=%d;delay=1;delay_us=%d",
		         (int)(test_random() % 30), (int)(test_random() % 15), (int)(test_random() % 10),
		         (int)(test_random() % 500));
		if (told)
			snprintf(t->faults, sizeof t->faults, "%s", told);
		fault_run_start(b);
		fault_run_finish(b);
		faults += fault_run_seen(b).faults;
		why = fault_run_check(b, 0);
		if (why) {
			printf("# job %d: %d ranks, %s, %d a node, %d streams, cma %d\n", jobs, b->n, b->options.allow,
			       b->per_node, b->options.streams, b->options.cma);
			fault_run_show(b, why);
			good = 0;
		}
		fault_run_free(b);
	}
	tap_tried(faults, "injected faults");
	ok(good && jobs && (faults || told), "%d jobs of 2 to 6 ranks over %d collectives with %lu faults", jobs,
	   ncollectives, faults);
	for (int i = 0; i < LANES; i++)
		workspace_free(&lanes[i].space);
	for (int k = 0; k < ncollectives; k++)
		spec_clear(&values[k]);
	config_free(settings);
	return done_testing();
}
