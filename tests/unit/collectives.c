/* Every primitive of the installed collectives, on 1 to 9 ranks and odd sizes: right
 * against float64, the same bits on all ranks and from run to run, and with codes
 * nothing is lost that no residual has. Then ranks that break the rules. */
#include "ranks.h"

#include "collective_codes.h"
#include "operators.h"

#include "error.h"
#include "job.h"

enum { RANKS = 9, SIZES = 5 };
static const uint64_t sizes[SIZES] = {0, 1, 7, 4097, (1 << 20) + 3};
static const uint64_t most = (1 << 20) + 3;

static float *input[RANKS], *residual[RANKS], *dropped[RANKS];
static double *sum[RANKS + 1]; /* sum[P][i] of input[0..P-1][i] */

typedef enum primitive {
	ALLREDUCE, ALLREDUCE_MAX, REDUCE_SCATTER, ALLGATHER, BROADCAST, MERGE, CODED_EXACT, CODED_BYTES, CODED_GATHER,
	CODED_SCATTER, PRIMITIVES
} primitive;
static const struct {
	const char *name;
	uint32_t serves;
} primitives[PRIMITIVES] = {
	{"all-reduce", GRADCOMP_CAN_ALLREDUCE},
	{"all-reduce of maxima", GRADCOMP_CAN_ALLREDUCE},
	{"reduce-scatter", GRADCOMP_CAN_REDUCE_SCATTER},
	{"all-gather", GRADCOMP_CAN_ALLGATHER},
	{"broadcast", GRADCOMP_CAN_BROADCAST},
	{"merge", GRADCOMP_CAN_MERGE},
	{"coded all-reduce, exact", GRADCOMP_CAN_CODED_ALLREDUCE},
	{"coded all-reduce, bytes", GRADCOMP_CAN_CODED_ALLREDUCE},
	{"coded all-gather", GRADCOMP_CAN_CODED_ALLGATHER},
	{"coded reduce-scatter", GRADCOMP_CAN_CODED_REDUCE_SCATTER},
};

/* What one run of a primitive left, by rank. */
typedef struct outcome {
	int failed;
	uint64_t hash, calls, counters;
	double off; /* of what this rank looks at */
} outcome;
typedef struct trial {
	const char *spec;
	uint32_t serves;
	outcome at[PRIMITIVES][SIZES][2][RANKS];
	int barrier_early;
	int entered;
} trial;

static uint64_t hash_of(const void *p, uint64_t bytes)
{
	const unsigned char *c = p;
	uint64_t h = bytes, w;
	for (; bytes >= 8; bytes -= 8, c += 8) {
		memcpy(&w, c, 8);
		h = id_mix(h, w);
	}
	w = 0;
	memcpy(&w, c, bytes);
	return id_mix(h, w);
}

static gradcomp_status open_port(gradcomp_job *job, const char *text, port *out, gradcomp_error *err)
{
	const plugin *p;
	spec s;
	gradcomp_status st = registry_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, text, &p, &s, err);
	if (!st) {
		st = port_open(gradcomp_job_world(job), p, &s, out, err);
		spec_clear(&s);
	}
	return st;
}

static int scatters(primitive what)
{
	return what == REDUCE_SCATTER || what == CODED_SCATTER;
}

/* Blocks that differ by a lot, some of them empty. */
static void split(uint64_t n, int P, uint64_t *counts)
{
	uint64_t left = n;
	for (int r = 0; r < P; r++) {
		counts[r] = r == P - 1 ? left : r % 3 == 1 ? 0 : left / 2;
		left -= counts[r];
	}
}

/* Runs one and returns by how much it is off at most, from this rank's place. */
static double run_one(gradcomp_job *job, port *port, primitive what, uint64_t n, int rank, int P, float *x, outcome *o)
{
	const struct gradcomp_collective_v1 *c = port->collective;
	gradcomp_error err = {0};
	test_code code = {.kind = what == CODED_EXACT ? CODE_EXACT : CODE_BYTES, .host = &job->host};
	test_merger merging = {.dropped = dropped[rank]};
	gradcomp_codec codec = test_codec(&code);
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &merging, .merge = test_merge};
	gradcomp_payload payload = {x, 4 * n, 4 * n};
	uint64_t counts[RANKS], bytes[RANKS], at = 0, from = 0, to = n, trips = 0;
	double off = 0;
	gradcomp_status st = GRADCOMP_OK;
	split(n, P, counts);
	for (int r = 0; r < P; r++) {
		bytes[r] = 4 * counts[r];
		at += r < rank ? counts[r] : 0;
	}
	memcpy(x, input[rank], 4 * n);
	memset(residual[rank], 0xff, 4 * n); /* NaN */
	memset(dropped[rank], 0, 4 * n);
	switch (what) {
	case ALLREDUCE:
		st = c->allreduce(port->instance, x, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0 / P, &err);
		break;
	case ALLREDUCE_MAX:
		st = c->allreduce(port->instance, x, n, GRADCOMP_F32, GRADCOMP_MAX, 1.0, &err);
		break;
	case REDUCE_SCATTER:
		st = c->reduce_scatter(port->instance, x, counts, GRADCOMP_F32, GRADCOMP_SUM, 1.0 / P, &err);
		from = at, to = at + counts[rank];
		break;
	case ALLGATHER:
	case CODED_GATHER:
		for (uint64_t i = 0; i < n; i++)
			if (i < at || i >= at + counts[rank])
				x[i] = NAN;
		st = what == ALLGATHER ? c->allgather(port->instance, x, bytes, &err)
		                       : c->coded_allgather(port->instance, x, counts, &codec, 1000, residual[rank], &err);
		break;
	case BROADCAST:
		for (uint64_t i = 0; rank != P / 2 && i < n; i++)
			x[i] = NAN;
		st = c->broadcast(port->instance, x, 4 * n, P / 2, &err);
		break;
	case MERGE:
		st = c->merge(port->instance, &payload, 4 * n, &merger, &err);
		o->failed |= payload.data != x || payload.bytes != 4 * n || merging.overlaps;
		for (int reach = 1; reach < P; reach *= 2)
			trips++;
		o->failed |= (uint64_t)merging.calls > trips + 1;
		break;
	case CODED_EXACT:
	case CODED_BYTES:
		st = c->coded_allreduce(port->instance, x, n, 1.0 / P, &codec, 1000, residual[rank], &err);
		break;
	case CODED_SCATTER:
		st = c->coded_reduce_scatter(port->instance, x, counts, 1.0 / P, &codec, 1000, residual[rank], &err);
		from = at, to = at + counts[rank];
		break;
	case PRIMITIVES:
		break;
	}
	o->failed |= st != GRADCOMP_OK;
	if (st)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	o->hash = hash_of(x + from, 4 * (to - from));
	o->calls = code.calls;
	o->counters = code.counters;
	pthread_barrier_wait(&ranks_meet);
	for (uint64_t i = from; (rank == 0 || scatters(what)) && i < to; i++) {
		double want = sum[P][i] / P, kept = 0;
		if (what == ALLREDUCE_MAX) {
			want = input[0][i];
			for (int r = 1; r < P; r++)
				want = input[r][i] > want ? input[r][i] : want;
		}
		if (what == ALLGATHER || what == CODED_GATHER) {
			uint64_t begin = 0;
			int owner = 0;
			while (i >= begin + counts[owner])
				begin += counts[owner++];
			want = input[owner][i];
			kept = what == CODED_GATHER ? residual[owner][i - begin] : 0;
		}
		if (what == BROADCAST)
			want = input[P / 2][i];
		if (what == CODED_BYTES || what == CODED_EXACT || what == CODED_SCATTER || what == MERGE) {
			for (int r = 0; r < P; r++)
				kept += (double)(what == MERGE ? dropped[r][i] : residual[r][i]) / P;
			if (what == MERGE)
				want = sum[P][i], kept *= P;
		}
		double wrong = fabs((double)x[i] + kept - want);
		if (!(wrong <= off))
			off = wrong;
	}
	pthread_barrier_wait(&ranks_meet);
	return off;
}

static void trial_body(gradcomp_job *job, int rank, int P, void *arg)
{
	trial *t = arg;
	float *x = malloc(4 * most);
	gradcomp_error err = {0};
	port port;
	if (open_port(job, t->spec, &port, &err)) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		t->at[0][0][0][rank].failed = 1;
		free(x);
		return;
	}
	if (rank == 0)
		t->serves = port.collective->serves;
	for (int k = 0; k < 5; k++) {
		__atomic_add_fetch(&t->entered, 1, __ATOMIC_SEQ_CST);
		if (port.collective->barrier(port.instance, &err) ||
		    __atomic_load_n(&t->entered, __ATOMIC_SEQ_CST) < (k + 1) * P)
			__atomic_store_n(&t->barrier_early, 1, __ATOMIC_SEQ_CST);
	}
	for (int what = 0; what < PRIMITIVES; what++)
		for (int s = 0; s < SIZES; s++)
			for (int again = 0; port.collective->serves & primitives[what].serves && again < 2; again++) {
				outcome *o = &t->at[what][s][again][rank];
				o->off = run_one(job, &port, (primitive)what, sizes[s], rank, P, x, o);
			}
	port_close(&port);
	free(x);
}

static void check_spec(const char *spec, int P, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	t->spec = spec;
	run_ranks(P, settings, trial_body, t);
	ok(!t->barrier_early, "%s, %d ranks: nobody leaves a barrier early", spec, P);
	for (int what = 0; what < PRIMITIVES; what++) {
		int failed = 0, differ = 0, moved = 0;
		double worst = 0, limit = what >= MERGE && what != CODED_GATHER ? 1e-5 : 2e-6;
		if (!(t->serves & primitives[what].serves))
			continue;
		for (int s = 0; s < SIZES; s++) {
			for (int r = 0; r < P; r++) {
				const outcome *o = t->at[what][s][0] + r, *o2 = t->at[what][s][1] + r;
				failed |= o->failed || o2->failed;
				differ |= !scatters((primitive)what) && o->hash != t->at[what][s][0][0].hash;
				moved |= o->hash != o2->hash || o->counters != o2->counters;
				worst = o->off <= worst ? worst : o->off;
			}
		}
		ok(!failed && !differ && !moved && worst <= limit, "%s, %d ranks: %s (off by %.2g)%s%s%s", spec, P,
		   primitives[what].name, worst, failed ? "; a call failed" : "", differ ? "; ranks differ" : "",
		   moved ? "; not the same again" : "");
	}
	/* Seven numbers in blocks of 3, 0, 2, ...: rank 0 codes its own, and in hops the others it hands on. */
	if (P > 2 && t->serves & GRADCOMP_CAN_CODED_ALLGATHER) {
		uint64_t counts[RANKS], wanted = 1;
		split(7, P, counts);
		for (int r = 2; strstr(spec, "hop") && r < P; r++)
			wanted += counts[r] != 0;
		is_int((long long)t->at[CODED_GATHER][2][0][0].calls, (long long)wanted, "%s, %d ranks: codes made by rank 0", spec,
		       P);
	}
	free(t);
}

int main(void)
{
	static const char *const specs[] = {"auto", "ring", "tree", "rhd", "ring:chunk=4096,small=0", "ring:mode=hop", "tree:chunk=4096", "rhd:chunk=4096,short=0"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	test_seed();
	for (int r = 0; r < RANKS; r++) {
		input[r] = malloc(4 * most);
		residual[r] = malloc(4 * most);
		dropped[r] = malloc(4 * most);
		for (uint64_t i = 0; i < most; i++)
			input[r][i] = i % 8192 < 5000 ? (float)(test_uniform() - 0.5) : 0;
	}
	sum[0] = calloc(most, sizeof(double));
	for (int P = 1; P <= RANKS; P++) {
		sum[P] = malloc(most * sizeof(double));
		for (uint64_t i = 0; i < most; i++)
			sum[P][i] = sum[P - 1][i] + input[P - 1][i];
	}
	for (int P = 1; P <= RANKS; P++)
		for (size_t k = 0; k < (P == 2 || P == 3 || P == 5 || P == 8 ? sizeof specs / sizeof specs[0] : 4); k++)
			check_spec(specs[k], P, settings);
	for (int r = 0; r < RANKS; r++)
		free(input[r]), free(residual[r]), free(dropped[r]);
	for (int P = 0; P <= RANKS; P++)
		free(sum[P]);
	return done_testing();
}
