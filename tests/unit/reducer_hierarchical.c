/* Compressors over the collectives that keep a memory of their own (direct), prune on the
 * way (sparse) or sum in two levels (hier): nothing is lost, to rounding, that neither an
 * error memory nor the collective's holds; the same bits on all ranks; a run that is
 * resumed goes on to the bit; a NaN is told and leaves all memories alone. Then the
 * two-step aggregation of 1-bit SGD against a plain one in double, and bytes. */
#include "tests/support/residuals.h"

enum { STEPS = 3 };

typedef struct show {
	const char *spec;
	uint64_t bucket_bytes;
	int nan_step;
	model *models[MAX_RANKS];
	double before[MEMORIES], after[MEMORIES]; /* all memories of all ranks, by position in the layout */
	int failed[MAX_RANKS];
	uint64_t prints[MAX_RANKS];
	double off;
	int nodes; /* that sum ahead; 0: no shards */
	int resident, holders;
	double sent[MAX_RANKS];
} show;

static int resumes(show *s, model *m, int rank, gradcomp_group *g, gradcomp_error *err)
{
	uint64_t bytes = 0, mark;
	model again;
	int failed = gradcomp_reducer_save(m->red, NULL, 0, &bytes, err) != 0;
	void *state = malloc(bytes);
	failed |= gradcomp_reducer_save(m->red, state, bytes, &bytes, err) != 0;
	if (model_open(&again, g, s->spec, s->bucket_bytes, err)) {
		free(state);
		return 1;
	}
	failed |= model_step(&again, rank, 1, err) != 0; /* something else before */
	failed |= gradcomp_reducer_load(again.red, state, bytes, err) != 0;
	failed |= model_step(m, rank, 50, err) != 0;
	mark = fingerprint(m);
	failed |= model_step(&again, rank, 50, err) != 0;
	failed |= mark != fingerprint(&again);
	((char *)state)[7] = '1';
	failed |= gradcomp_reducer_load(again.red, state, bytes, err) != GRADCOMP_ERR_UNSUPPORTED ||
	          !strstr(err->text, "version '1', this library reads versions '2' to '3'");
	err->text[0] = 0;
	err->status = GRADCOMP_OK;
	free(state);
	model_close(&again);
	return failed;
}

static int poisoned(model *m, int rank, int P, gradcomp_error *err)
{
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, 99, t, i);
	if (rank == P - 1)
		m->grad[4][7] = NAN;
	for (int t = T - 1; t >= 0; t--)
		if (gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err))
			return 1;
	return gradcomp_reducer_wait(m->red, err) != 0 || !isnan(m->grad[4][0]);
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	model m;
	if (model_open(&m, world, s->spec, s->bucket_bytes, &err)) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		s->failed[rank] = 1;
		return;
	}
	s->models[rank] = &m;
	if (rank == 0)
		s->nodes = reducer_of(m.red)->eng.list.shards ? reducer_of(m.red)->eng.list.shards->layout.nranks : 0;
	__atomic_add_fetch(&s->resident, reducer_of(m.red)->eng.list.nserver_error > 0, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&s->holders,
	                   reducer_of(m.red)->eng.list.shards && reducer_of(m.red)->eng.list.shards->instance,
	                   __ATOMIC_SEQ_CST);
	ranks_wait();
	for (int step = 0; step < STEPS; step++) {
		if (rank == 0)
			memories(s->models, P, s->before);
		ranks_wait();
		if (step == s->nan_step) {
			s->failed[rank] |= poisoned(&m, rank, P, &err) << 1;
			ranks_wait();
			if (rank == 0) {
				const reducer *in = reducer_of(m.red);
				const gradcomp_bucket *b = &in->eng.list.buckets[in->eng.list.bucket_of[T - 1 - 4]].pub;
				memories(s->models, P, s->after);
				s->failed[0] |=
					memcmp(s->before + b->offset, s->after + b->offset, b->numel * sizeof(double))
						? 4
						: 0;
			}
		} else {
			s->failed[rank] |= model_step(&m, rank, step, &err) << 1;
			ranks_wait();
			if (rank == 0) {
				memories(s->models, P, s->after);
				double off = memories_off(s->models, P, step, s->before, s->after);
				s->off = off <= s->off ? s->off : off;
			}
			s->prints[rank] = mix(s->prints[rank] ^ fingerprint(&m));
		}
		ranks_wait();
	}
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	gradcomp_reducer_get_stats(m.red, &stats);
	s->sent[rank] = stats.wire_bytes;
	ranks_wait();
	s->failed[rank] |= resumes(s, &m, rank, world, &err) << 3;
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

/* Finite gradients whose sum in the node is not: the shard's rounds are given up, and the
 * bucket takes part again in the next step. */
static void overflow_body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_error err = {0};
	model m;
	(void)P;
	s->failed[rank] = model_open(&m, gradcomp_job_world(job), "topk:density=0.1", 1000, &err) != 0;
	if (s->failed[rank])
		return;
	s->failed[rank] |= model_step(&m, rank, 0, &err) != 0;
	for (uint32_t t = 0; t < T; t++) {
		for (uint64_t i = 0; i < numel((int)t); i++)
			m.grad[t][i] = 3e38f;
		s->failed[rank] |= gradcomp_reducer_ready(m.red, t, m.grad[t], &err) != 0;
	}
	s->failed[rank] |= (gradcomp_reducer_wait(m.red, &err) || !isnan(m.grad[4][0])) << 1;
	s->failed[rank] |= (model_step(&m, rank, 2, &err) != 0) << 2;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			s->failed[rank] |= !isfinite(m.grad[t][i]) << 3;
	s->prints[rank] = fingerprint(&m);
	model_close(&m);
}

static void overflows(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error",
	                          "gradcomp.collective=hier:ranks_per_node=2", NULL};
	show *s = calloc(1, sizeof *s);
	run_ranks(4, settings, overflow_body, s);
	for (int r = 0; r < 4; r++)
		ok(!s->failed[r] && s->prints[r] == s->prints[0],
		   "rank %d: a sum in the node that overflows is over with its step (%#x)", r, (unsigned)s->failed[r]);
	free(s);
}

/* nodes: that are to sum ahead, or 0; holders: ranks of a shard, or with a memory of the
 * collective's. */
static void run(const char *spec, const char *collective, int P, uint64_t bucket_bytes, int nan_step, int nodes,
                int holders)
{
	static char setting[100];
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", setting, NULL};
	show *s = calloc(1, sizeof *s);
	int failed = 0, differ = 0;
	snprintf(setting, sizeof setting, "gradcomp.collective=%s", collective);
	s->spec = spec;
	s->bucket_bytes = bucket_bytes;
	s->nan_step = nan_step;
	run_ranks(P, settings, body, s);
	for (int r = 0; r < P; r++) {
		failed |= s->failed[r];
		differ |= s->prints[r] != s->prints[0];
	}
	ok(!failed && !differ && s->off <= 3e-5 && s->nodes == nodes && (nodes ? s->holders : s->resident) == holders,
	   "%s over %s, %d ranks, buckets of %llu bytes%s: %.1e lost; %d of %d hold", spec, collective, P,
	   (unsigned long long)bucket_bytes, nan_step < 0 ? "" : ", a NaN", s->off, nodes ? s->holders : s->resident,
	   P);
	if (failed || differ || s->nodes != nodes)
		printf("# failed %#x, %s, %d nodes\n", (unsigned)failed, differ ? "ranks differ" : "ranks agree",
		       s->nodes);
	free(s);
}

enum { COLUMN = 1024, D = 3163 };

static float mean_of[MAX_RANKS][4][D]; /* by step, what ranks ended with */

/* Two means a column stand for the signs. */
static void one_bit(const double *u, double *out, uint64_t n)
{
	for (uint64_t c = 0; c < n; c += COLUMN) {
		uint64_t end = c + COLUMN < n ? c + COLUMN : n, count[2] = {0};
		double sum[2] = {0};
		for (uint64_t i = c; i < end; i++) {
			sum[u[i] < 0] += u[i];
			count[u[i] < 0]++;
		}
		for (uint64_t i = c; i < end; i++)
			out[i] = sum[u[i] < 0] / (double)count[u[i] < 0];
	}
}

/* The numbers of the layout, which is backward. */
static void in_layout(int rank, int step, double *g)
{
	uint64_t at = 0;
	for (int t = T - 1; t >= 0; t--)
		for (uint64_t i = 0; i < numel(t); i++)
			g[at++] = (double)gradient(rank, step, t, i);
}

static void seide_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	model m;
	(void)P;
	double *sent = arg;
	if (model_open(&m, gradcomp_job_world(job), "onebit", 1 << 20, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		return;
	}
	for (int step = 0; step < 4; step++) {
		uint64_t at = 0;
		model_step(&m, rank, step, &err);
		for (int t = T - 1; t >= 0; t--)
			for (uint64_t i = 0; i < numel(t); i++)
				mean_of[rank][step][at++] = m.grad[t][i];
	}
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	gradcomp_reducer_get_stats(m.red, &stats);
	sent[rank] = stats.wire_bytes / 4;
	model_close(&m);
}

static void seide(int P)
{
	static double e[MAX_RANKS][D], server[D], u[MAX_RANKS][D], coded[D], sum[D], average[D];
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error",
	                          "gradcomp.collective=direct", NULL};
	double sent[MAX_RANKS] = {0}, worst = 0;
	uint64_t wrong = 0, scales = 0;
	run_ranks(P, settings, seide_body, sent);
	memset(e, 0, sizeof e);
	memset(server, 0, sizeof server);
	for (int step = 0; step < 4; step++) {
		for (int r = 0; r < P; r++) {
			in_layout(r, step, u[r]);
			for (uint64_t i = 0; i < D; i++)
				u[r][i] += e[r][i];
			memset(e[r], 0, sizeof e[r]);
		}
		for (uint64_t owner = 0, at = 0; owner < (uint64_t)P; owner++) {
			uint64_t n = D / (uint64_t)P + (owner < D % (uint64_t)P);
			memcpy(sum + at, u[owner] + at, n * sizeof *sum);
			for (int r = 0; r < P; r++) {
				if ((uint64_t)r == owner)
					continue;
				one_bit(u[r] + at, coded + at, n);
				for (uint64_t i = at; i < at + n; i++) {
					sum[i] += coded[i];
					e[r][i] = u[r][i] - coded[i];
				}
			}
			for (uint64_t i = at; i < at + n; i++)
				sum[i] += server[i];
			one_bit(sum + at, average + at, n);
			for (uint64_t i = at; i < at + n; i++) {
				server[i] = sum[i] - average[i];
				average[i] /= P;
			}
			at += n;
			scales += step ? 0 : (n + COLUMN - 1) / COLUMN;
		}
		for (uint64_t i = 0; i < D; i++) {
			double off = fabs((double)mean_of[0][step][i] - average[i]);
			wrong += off > 1e-4;
			worst = off > worst && off <= 1e-4 ? off : worst;
		}
	}
	/* A sum of nearly zero may have another sign in float, once in a long while. */
	ok(wrong <= 8, "onebit over direct, %d ranks: the two-step method in double, within %.1e, but for %llu numbers",
	   P, worst, (unsigned long long)wrong);
	for (int r = 0; r < P; r++) {
		double most =
			2.0 * (P - 1) / P * (D / 8.0 + 8.0 * (double)scales) * 1.05 + 2.0 * (P - 1) * 28 + 16.0 * P;
		ok(sent[r] > 2.0 * (P - 1) / P * D / 8.0 * 0.95 && sent[r] <= most,
		   "rank %d of %d sends %.0f bytes a step; 2 (P-1)/P d/8 and scales are %.0f", r, P, sent[r],
		   2.0 * (P - 1) / P * (D / 8.0 + 8.0 * (double)scales));
	}
}

typedef struct bytes_of {
	const char *spec;
	double sent[MAX_RANKS];
} bytes_of;

static void bytes_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	bytes_of *b = arg;
	model m;
	(void)P;
	if (model_open(&m, gradcomp_job_world(job), b->spec, 1 << 20, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		return;
	}
	model_step(&m, rank, 0, &err);
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	gradcomp_reducer_get_stats(m.red, &stats);
	b->sent[rank] = stats.wire_bytes;
	model_close(&m);
}

static uint64_t code_bytes(uint64_t n)
{
	return 8 + 8 * (uint64_t)fmax(1, floor(0.05 * (double)n + 0.5));
}

static void pruned(int P)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error",
	                          "gradcomp.collective=sparse", NULL};
	bytes_of b = {.spec = "topk:density=0.05"};
	int right = 1;
	run_ranks(P, settings, bytes_body, &b);
	for (int r = 0; r < P; r++) {
		uint64_t want = 8 * (uint64_t)(P - 1); /* the news of NaN */
		for (int step = 0; step < 2 * (P - 1); step++) {
			uint64_t block = (uint64_t)((r - step) % P + P) % (uint64_t)P;
			want += code_bytes(D / (uint64_t)P + (block < D % (uint64_t)P));
		}
		right &= b.sent[r] == (double)want;
	}
	ok(right, "topk over sparse, %d ranks: 8 k/P bytes and a head at each of %d hops, exactly (rank 0: %.0f)", P,
	   2 * (P - 1), b.sent[0]);
}

/* The root of the tree is on the longest way: it gets a payload in each of ceil(log2 P)
 * rounds, and sends the result as often. */
static void merged(int P)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error",
	                          "gradcomp.collective=tree", NULL};
	bytes_of b = {.spec = "gtopk:density=0.05"};
	double payload = (double)code_bytes(D), all = 0;
	int trips = 0;
	run_ranks(P, settings, bytes_body, &b);
	for (int reach = 1; reach < P; reach *= 2)
		trips++;
	for (int r = 0; r < P; r++)
		all += b.sent[r];
	ok(b.sent[0] == trips * payload && all == 2 * (P - 1) * payload,
	   "gtopk over tree, %d ranks: 2 * 8 k * %d bytes and heads on the longest way (%.0f out of the root)", P,
	   trips, b.sent[0]);
}

int main(void)
{
	model_seed();
	for (int P = 1; P <= 5; P++) {
		run("onebit", "direct", P, 5000, -1, 0, P > 1 ? P : 0);
		run("topk:density=0.1", "sparse", P, 5000, -1, 0, 0);
	}
	run("onebit:column=64", "direct", 3, 1 << 20, 1, 0, 3);
	run("signsgd", "direct", 4, 5000, 1, 0, 4);
	run("topk:density=0.1", "direct", 4, 5000, 1, 0, 4);
	run("topk:density=0.2,values=block8,indices=auto", "sparse", 3, 1 << 20, 1, 0, 0);
	run("block", "direct", 3, 5000, 1, 0, 3);
	run("block", "ring:mode=direct", 3, 5000, 1, 0, 0);
	for (int P = 2; P <= 5; P++)
		seide(P);
	for (int P = 2; P <= 6; P += 2)
		pruned(P);
	for (int P = 2; P <= 9; P++)
		merged(P);
	for (int P = 2; P <= 7; P++)
		run("gtopk:density=0.1", "tree", P, 5000, -1, 0, 0);
	/* 3 + 1, 2 x 3, 3 x 2, one node, one rank a node, 2 + 2 + 1. */
	run("topk:density=0.1", "hier:ranks_per_node=3", 4, 5000, -1, 2, 4);
	run("topk:density=0.1", "hier:ranks_per_node=3", 6, 5000, 1, 2, 6);
	run("topk:density=0.1", "hier:ranks_per_node=2", 6, 1 << 20, 1, 3, 6);
	run("topk:density=0.1", "hier:ranks_per_node=4", 4, 5000, -1, 0, 0);
	run("topk:density=0.1", "hier:ranks_per_node=1", 3, 5000, 1, 0, 0);
	run("topk:density=0.1,start_step=1,layerwise=yes", "hier:ranks_per_node=2", 5, 5000, 2, 3, 5);
	run("onebit", "hier:ranks_per_node=2", 4, 5000, 1, 2, 4);
	run("mstopk:density=0.1", "hier:ranks_per_node=3", 6, 1, -1, 2, 6);
	run("lags:density=0.1", "hier:ranks_per_node=2", 4, 5000, 1, 2, 4);
	run("blocktopk:density=0.2,block=32", "hier:ranks_per_node=2", 5, 5000, 1, 3, 5);
	run("blocktopk:density=0.2,rows=yes,start_step=1", "hier:ranks_per_node=3", 6, 5000, 2, 2, 6);
	run("randomk:density=0.1", "hier:ranks_per_node=2", 4, 5000, 1, 2, 4);
	run("block", "hier:ranks_per_node=2", 4, 5000, 1, 0, 0);
	/* A rank of the small node holds several shards of a bucket. */
	run("topk:density=0.1", "hier:ranks_per_node=4", 5, 5000, 1, 2, 5);
	run("topk:density=0.1,start_step=1,layerwise=yes", "hier:ranks_per_node=5", 8, 5000, 2, 2, 8);
	run("randomk:density=0.1", "hier:ranks_per_node=4", 5, 1 << 20, 1, 2, 5);
	run("blocktopk:density=0.2,block=32", "hier:ranks_per_node=3", 5, 5000, 1, 2, 5);
	run("lags:density=0.1", "hier:ranks_per_node=3", 4, 5000, 1, 2, 4);
	run("onebit", "hier:ranks_per_node=4", 7, 5000, 1, 2, 6);
	run("block", "hier:ranks_per_node=3", 4, 5000, 1, 0, 0);
	overflows();
	return done_testing();
}
