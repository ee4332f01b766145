/* The order in which buckets go: other positions and lags than the usual ones give every rank
 * the same numbers, of every compressor; a tensor that goes first is done first; a gradient
 * that never comes is named, and its rank. */
#include "tests/support/small_model.h"

#include "config/config.h"
#include "reducer/bucketing/rebucket.h"
#include "plugin/registry.h"

#include <math.h>

enum { STEPS = 4, NAN_STEP = 2 };

typedef struct order {
	uint32_t position[T], lag;
	const char *text;
} order;

static const order orders[] = {
	{{0, 1, 2, 3, 4, 5}, 1, "lag 1"},
	{{5, 4, 3, 2, 1, 0}, 0, "backwards"},
	{{5, 4, 3, 2, 1, 0}, 1, "backwards, lag 1"},
	{{2, 5, 0, 4, 1, 3}, 1, "mixed up, lag 1"},
};
enum { ORDERS = sizeof orders / sizeof *orders };

typedef struct show {
	const char *spec;
	int failed[MAX_RANKS], differ[MAX_RANKS][ORDERS], two_levels;
	char cannot[508]; /* why there is no such reducer here */
	uint64_t prints[MAX_RANKS];
} show;

static gradcomp_status plan(gradcomp_reducer *r, const order *o, gradcomp_error *err)
{
	uint32_t end[T] = {1, 2, 3, 4, 5, 6}, position[T];
	memcpy(position, o->position, sizeof position);
	return reducer_rebucket(reducer_of(r),
	                        &(step_plan){.nbuckets = T, .end = end, .position = position, .lag = o->lag}, err);
}

static gradcomp_status step_of(model *m, int rank, int P, int step, gradcomp_error *err)
{
	if (step != NAN_STEP)
		return model_step(m, rank, step, err);
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, step, t, i);
	if (rank == P - 1)
		m->grad[4][7] = NAN;
	gradcomp_status st = GRADCOMP_OK;
	for (int t = T - 1; !st && t >= 0; t--)
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	if (!st)
		st = gradcomp_reducer_wait(m->red, err);
	/* The numbers that stand for the average of a bad gradient have no bits worth comparing. */
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = isfinite(m->grad[t][i]) ? m->grad[t][i] : 0;
	return st;
}

static void order_body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_error err = {0};
	model usual, m[ORDERS];
	int opened = 0;
	if (model_open(&usual, gradcomp_job_world(job), s->spec, 1, &err)) {
		s->failed[rank] = 1;
		if (!rank)
			memcpy(s->cannot, err.text, sizeof s->cannot);
		return;
	}
	for (; opened < ORDERS && !s->failed[rank]; opened++) {
		if (model_open(&m[opened], gradcomp_job_world(job), s->spec, 1, &err)) {
			s->failed[rank] = 1;
			break;
		}
		s->failed[rank] |= plan(m[opened].red, &orders[opened], &err) != 0;
	}
	if (!rank)
		s->two_levels = reducer_of(usual.red)->eng.list.shards != NULL;
	for (int step = 0; step < STEPS && !s->failed[rank]; step++) {
		s->failed[rank] |= step_of(&usual, rank, P, step, &err) != 0;
		s->prints[rank] = mix(s->prints[rank] ^ fingerprint(&usual));
		for (int k = 0; k < opened && !s->failed[rank]; k++) {
			s->failed[rank] |= step_of(&m[k], rank, P, step, &err) != 0;
			s->differ[rank][k] += fingerprint(&m[k]) != fingerprint(&usual);
		}
	}
	if (s->failed[rank])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	for (int k = 0; k < opened; k++)
		model_close(&m[k]);
	model_close(&usual);
}

static void run_orders(const char *spec, int P, const char *const *settings, const char *what)
{
	show *s = calloc(1, sizeof *s);
	int failed = 0, apart = 0, differ[ORDERS] = {0}, all = 0;
	s->spec = spec;
	run_ranks(P, settings, order_body, s);
	for (int r = 0; r < P; r++) {
		failed += s->failed[r];
		apart += s->prints[r] != s->prints[0];
		for (int k = 0; k < ORDERS; k++) {
			differ[k] += s->differ[r][k];
			all += s->differ[r][k];
		}
	}
	if (s->cannot[0])
		skip(s->cannot, "%s", spec);
	else
		ok(!failed && !apart && !all && s->two_levels == !!*what,
		   "%s, %d ranks%s: any order gives the same bits", spec, P, what);
	for (int k = 0; k < ORDERS && !s->cannot[0]; k++)
		if (differ[k])
			printf("# %s: %d differ from the usual order\n", orders[k].text, differ[k]);
	free(s);
}

static int each(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	(void)reason;
	if (info && strstr(path, "/lib/gradcomp/"))
		run_orders(name, 3, ctx, "");
	return 0;
}

typedef struct single {
	int failed[MAX_RANKS], early, late_right;
	gradcomp_status status[MAX_RANKS];
	char text[MAX_RANKS][508];
} single;

static const order first_layer_first = {{5, 4, 3, 2, 1, 0}, 0, ""};

static double distance(const model *m, int P, int step, int t)
{
	double worst = 0;
	for (uint64_t i = 0; i < numel(t); i++) {
		double want = 0;
		for (int r = 0; r < P; r++)
			want += (double)gradient(r, step, t, i) / P;
		worst = fmax(worst, fabs(m->grad[t][i] - want));
	}
	return worst;
}

static void fill(model *m, int rank, int step)
{
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, step, t, i);
}

static void wait_for_body(gradcomp_job *job, int rank, int P, void *arg)
{
	single *s = arg;
	gradcomp_error err = {0};
	model m;
	s->failed[rank] |=
		model_open(&m, gradcomp_job_world(job), "none", 1, &err) || plan(m.red, &first_layer_first, &err);
	s->failed[rank] |= gradcomp_reducer_wait_for(m.red, T, &err) != GRADCOMP_ERR_INVALID;
	s->failed[rank] |= gradcomp_reducer_wait_for(m.red, 0, &err) != GRADCOMP_OK; /* no step has begun */
	fill(&m, rank, 0);
	/* The last rank keeps all but the first layer's to itself. */
	for (int t = 0; t < (rank == P - 1 ? 1 : T); t++)
		s->failed[rank] |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err) != 0;
	if (rank == P - 1)
		s->failed[rank] |= gradcomp_reducer_wait_for(m.red, 3, &err) != GRADCOMP_ERR_STATE ||
		                   !strstr(err.text, "tensor 3 'scale' was not given in step 0");
	s->failed[rank] |= gradcomp_reducer_wait_for(m.red, 0, &err) != GRADCOMP_OK || distance(&m, P, 0, 0) > 1e-6;
	pthread_mutex_lock(&reducer_of(m.red)->lock);
	if (!rank)
		s->early = reducer_of(m.red)->step.given[0] &&
		           reducer_of(m.red)->eng.step == 0; /* tensor 5, the first of the layout */
	pthread_mutex_unlock(&reducer_of(m.red)->lock);
	ranks_wait();
	for (int t = 1; rank == P - 1 && t < T; t++)
		s->failed[rank] |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err) != 0;
	for (int t = T - 1; t >= 0; t--)
		s->failed[rank] |= gradcomp_reducer_wait_for(m.red, (uint32_t)t, &err) != GRADCOMP_OK ||
		                   distance(&m, P, 0, t) > 1e-6;
	s->failed[rank] |= gradcomp_reducer_wait(m.red, &err) != GRADCOMP_OK || m.done != T;
	s->failed[rank] |= model_step(&m, rank, 1, &err) != 0;
	ranks_wait();
	/* One gives up in the middle of the next, while the others wait for a tensor. */
	fill(&m, rank, 2);
	for (int t = 0; t < (rank == P - 1 ? 2 : T); t++)
		s->failed[rank] |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err) != 0;
	ranks_wait();
	s->status[rank] = rank == P - 1 ? GRADCOMP_OK : gradcomp_reducer_wait_for(m.red, 5, &err);
	memcpy(s->text[rank], err.text, sizeof err.text);
	model_close(&m);
}

static void one_tensor(const char *const *settings)
{
	const char *const *all[MAX_RANKS] = {settings};
	rank_arg left[MAX_RANKS];
	single *s = calloc(1, sizeof *s);
	int failed = 0, named = 0;
	ranks_wait_init(3);
	run_ranks_with(3, all, left, wait_for_body, s);
	ranks_wait_end();
	for (int r = 0; r < 3; r++) {
		failed += s->failed[r];
		named += r < 2 && s->status[r] &&
		         strstr(s->text[r], "rank 2 gave up its reducer in the middle of a step, "
		                            "without tensor 5 'w2' of step 2");
	}
	is_int(failed, 0, "wait_for: of what is given, not given, over, and no tensor");
	ok(s->early, "the first layer is done while others are held back");
	is_int(named, 2, "a rank that gives up is named to those who wait for one tensor");
	if (named < 2)
		printf("# %s\n", s->text[0]);
	free(s);
}

static void missing_body(gradcomp_job *job, int rank, int P, void *arg)
{
	single *s = arg;
	gradcomp_error err = {0};
	model m;
	s->failed[rank] |= model_open(&m, gradcomp_job_world(job), "none", 1, &err) != 0;
	/* A rank that is slow is waited for. */
	fill(&m, rank, 0);
	for (int t = T - 1; t >= 0; t--) {
		if (rank == 1 && t == 2)
			usleep(200000);
		s->failed[rank] |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err) != 0;
	}
	s->failed[rank] |= gradcomp_reducer_wait(m.red, &err) != 0;
	fill(&m, rank, 1);
	for (int t = T - 1; t >= 0; t--)
		if (rank != 1 || t != 4)
			s->failed[rank] |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err) != 0;
	do {
		s->status[rank] = gradcomp_reducer_wait(m.red, &err);
		usleep(20000);
	} while (rank == 1 && s->status[rank] && strstr(err.text, "wait: only 5 of 6 tensors were given"));
	memcpy(s->text[rank], err.text, sizeof err.text);
	s->failed[rank] |= m.done < T + 1000; /* all that was given is done with */
	(void)P;
	model_close(&m);
}

static void never_given(const char *const *settings)
{
	const char *const *all[MAX_RANKS] = {settings};
	rank_arg left[MAX_RANKS];
	single *s = calloc(1, sizeof *s);
	run_ranks_with(3, all, left, missing_body, s);
	for (int r = 0; r < 3; r++) {
		ok(!s->failed[r] && s->status[r], "rank %d: a step that lacks a gradient fails", r);
		like(s->text[r], "rank 1 on ", "the rank that lacks it is named");
		like(s->text[r], "tensor 4 'conv' of step 1 was never given", "and the tensor");
	}
	free(s);
}

int main(void)
{
	static const int two_nodes[MAX_RANKS] = {0, 0, 1, 1, 2, 2};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error", NULL};
	const char *ring[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error",
	                      "gradcomp.collective=ring", NULL};
	const char *hier[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error",
	                      "gradcomp.collective=hier", NULL};
	const char *brief[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error",
	                       "transport.wait_timeout=8", NULL};
	gradcomp_error err;
	config *c;
	model_seed();
	if (config_load(settings, &c, &err)) {
		ok(0, "%s", err.text);
		return done_testing();
	}
	registry_each(c, GRADCOMP_KIND_COMPRESSOR, each, settings);
	config_free(c);
	run_orders("powersgd:rank=2,restart=3", 4, ring, "");
	ranks_on(two_nodes);
	run_orders("topk:density=0.1", 4, hier, " on two nodes");
	run_orders("topk:density=0.1", 6, hier, " on three nodes");
	run_orders("qsgd", 4, hier, " on two nodes");
	ranks_on(NULL);
	one_tensor(brief);
	never_given(brief);
	return done_testing();
}
