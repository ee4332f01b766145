/* Every primitive of every installed collective, on 1 to 9 ranks, on several nodes, and on odd sizes: right against
 * float64, the same bits on all ranks and when it is done again, nothing written beside the results; with codes,
 * nothing is lost that no memory has. Types and operations: collective_types.c. The longest message is sent in a
 * third of the layouts, another one every day, and in all of them by check-long; in the others it is as long as
 * some of its pieces. */
#include "tests/support/collective_layouts.h"

#include "tests/support/collective_codes.h"

enum { SIZES = 5, MOST = (1 << 20) + 3, LESS = 150001, ROOM = MOST + 3 * RANKS };
static const uint64_t sizes[SIZES] = {0, 1, 7, 4097, MOST};

/* By rank. */
static float *input[RANKS], *result[RANKS], *first[RANKS], *residual[RANKS], *dropped[RANKS], *packed[RANKS];
static double *sum[RANKS + 1]; /* sum[P][i] of input[0..P-1][i] */
static double held[RANKS];     /* the sum that memories have gained in a call */

typedef enum primitive {
	ALLREDUCE,
	REDUCE_SCATTER,
	ALLGATHER,
	ALLTOALL,
	BROADCAST,
	MERGE,
	CODED_EXACT,
	CODED_BYTES,
	CODED_GATHER,
	CODED_SCATTER,
	EXCHANGE,
	SHARDS,
	PRIMITIVES
} primitive;
static const struct {
	const char *name;
	uint32_t serves;
	double limit; /* how far it may be off */
} primitives[PRIMITIVES] = {
	{"all-reduce", GRADCOMP_CAN_ALLREDUCE, 2e-6},
	{"reduce-scatter", GRADCOMP_CAN_REDUCE_SCATTER, 2e-6},
	{"all-gather", GRADCOMP_CAN_ALLGATHER, 0},
	{"all-to-all", GRADCOMP_CAN_ALLTOALL, 0},
	{"broadcast", GRADCOMP_CAN_BROADCAST, 0},
	{"merge", GRADCOMP_CAN_MERGE, 1e-5},
	{"coded all-reduce, exact", GRADCOMP_CAN_CODED_ALLREDUCE, 1e-5},
	{"coded all-reduce, bytes", GRADCOMP_CAN_CODED_ALLREDUCE, 1e-5},
	{"coded all-gather", GRADCOMP_CAN_CODED_ALLGATHER, 2e-6},
	{"coded reduce-scatter", GRADCOMP_CAN_CODED_REDUCE_SCATTER, 1e-5},
	{"exchange", GRADCOMP_CAN_EXCHANGE, 0.15},
	{"shards", GRADCOMP_CAN_SHARD, 2e-6},
};

typedef struct place {
	const char *spec;
	gradcomp_job *job;
	coll_ctx coll_ctx;
	int rank, P;
	test_code code;
	uint64_t counts[RANKS], bytes[RANKS], at;
} place;

/* The ranks of a run tell this of a primitive. */
typedef struct account {
	int failed, differ, moved, beside;
	double off;
	char text[508];
} account;
typedef struct trial {
	const char *spec;
	uint32_t serves;
	char cannot[508];
	account at[PRIMITIVES][RANKS];
	int early, entered;
	uint64_t most;  /* the largest size */
	uint64_t codes; /* that rank 0 made for an all-gather of 7 numbers */
} trial;

static int scatters(primitive what)
{
	return what == REDUCE_SCATTER || what == CODED_SCATTER || what == ALLTOALL;
}

static uint64_t to_all(uint64_t n, int from, int to, int P)
{
	return n ? n / (uint64_t)P + (uint64_t)(from + 2 * to) % 3 : 0;
}

/* Block by block between all; result is what came. */
static gradcomp_status alltoall(place *p, uint64_t n, uint64_t *numbers, gradcomp_error *err)
{
	uint64_t in[RANKS], out[RANKS], at = 0;
	*numbers = 0;
	for (int r = 0; r < p->P; r++) {
		uint64_t m = to_all(n, p->rank, r, p->P);
		memcpy(packed[p->rank] + at, input[p->rank] + r, 4 * m);
		in[r] = 4 * m;
		at += m;
		out[r] = 4 * to_all(n, r, p->rank, p->P);
		*numbers += out[r] / 4;
	}
	memset(result[p->rank], 0xff, 4 * *numbers);
	set_wall(result[p->rank], 4 * *numbers);
	return p->coll_ctx.collective->alltoall(p->coll_ctx.instance, packed[p->rank], in, result[p->rank], out, err);
}

static double total(const float *x, uint64_t n)
{
	double s = 0;
	for (uint64_t i = 0; i < n; i++)
		s += x[i];
	return s;
}

/* Twice, so that what the first call leaves in its memory counts in the second one. */
static gradcomp_status exchange(place *p, uint64_t n, const gradcomp_codec *codec, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->coll_ctx.collective;
	int r = p->rank;
	uint64_t floats = c->server_error ? c->server_error(p->coll_ctx.instance, n) : 0;
	float *memory = walled(4 * floats);
	gradcomp_status st = floats > MOST ? error_set(err, GRADCOMP_ERR_RANGE, "a memory of %llu floats for %llu",
	                                               (unsigned long long)floats, (unsigned long long)n)
	                                   : GRADCOMP_OK;
	memset(memory, 0, 4 * floats);
	for (int k = 0; !st && k < 2; k++) {
		double before = total(memory, floats);
		memcpy(result[r], input[r], 4 * n);
		memset(residual[r], 0xff, 4 * n);
		const gradcomp_exchange x = {.struct_size = sizeof x,
		                             .buf = result[r],
		                             .count = n,
		                             .scale = 1.0 / p->P,
		                             .codec = codec,
		                             .counter = 1000u + (unsigned)k * 1000000u,
		                             .residual = residual[r],
		                             .server_error = floats ? memory : NULL};
		st = c->exchange(p->coll_ctx.instance, &x, err);
		held[r] = total(residual[r], n) + total(memory, floats) - before;
	}
	if (!st && !walls_stand(memory, 4 * floats))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "written beside the collective's error memory");
	walled_free(memory);
	return st;
}

/* This rank's k-th shard; rank -1: there is none. */
static gradcomp_status shard_at(const place *p, uint32_t k, uint64_t n, gradcomp_shard *s, void **holders,
                                gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->coll_ctx.collective;
	gradcomp_status st;
	*s = (gradcomp_shard){.struct_size = sizeof *s, .rank = -1};
	*holders = p->coll_ctx.instance;
	if (!c->shard_at)
		st = k ? GRADCOMP_OK : c->shard(p->coll_ctx.instance, n, s, err);
	else
		st = c->shard_at(p->coll_ctx.instance, k, n, s, holders, err);
	if (!st && (s->begin > n || s->numel > n - s->begin))
		st = error_set(err, GRADCOMP_ERR_RANGE, "a shard beyond the bucket");
	return st;
}

static gradcomp_status shards(place *p, uint64_t n, float *x, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->coll_ctx.collective;
	gradcomp_shard s = {.rank = 0};
	void *holders;
	float *sums = walled(4 * n);
	gradcomp_status st = c->local_reduce_scatter(p->coll_ctx.instance, x, n, 1.0 / p->P, err);
	if (!st)
		memcpy(sums, x, 4 * n);
	/* Nothing but the shards goes on. */
	for (uint64_t i = 0; !st && i < n; i++)
		x[i] = NAN;
	for (uint32_t k = 0; !st && s.rank >= 0; k++) {
		st = shard_at(p, k, n, &s, &holders, err);
		if (st || s.rank < 0)
			break;
		memcpy(x + s.begin, sums + s.begin, 4 * s.numel);
		st = c->shard_allreduce(holders, x + s.begin, s.numel, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	}
	walled_free(sums);
	return st ? st : c->local_allgather(p->coll_ctx.instance, x, n, err);
}

static gradcomp_status merge(place *p, uint64_t n, float *x, gradcomp_error *err)
{
	test_merger merging = {.dropped = dropped[p->rank]};
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &merging, .merge = test_merge};
	gradcomp_payload payload = {x, 4 * n, 4 * n};
	gradcomp_status st = p->coll_ctx.collective->merge(p->coll_ctx.instance, &payload, 4 * n, &merger, err);
	int trips = 1;
	for (int reach = 1; reach < p->P; reach *= 2)
		trips++;
	if (!st && (payload.data != x || payload.bytes != 4 * n || merging.overlaps || merging.calls > trips))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "%d merges, payloads that overlap or came out otherwise",
		               merging.calls);
	return st;
}

/* Runs one; its result is numbers from..to-1. */
static gradcomp_status run(place *p, primitive what, uint64_t n, uint64_t *from, uint64_t *to, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->coll_ctx.collective;
	void *it = p->coll_ctx.instance;
	int r = p->rank, P = p->P;
	float *x = result[r];
	p->code = (test_code){.kind = what == CODED_EXACT ? CODE_EXACT : CODE_BYTES, .host = &p->job->host};
	gradcomp_codec codec = test_codec(&p->code);
	memcpy(x, input[r], 4 * n);
	memset(residual[r], 0xff, 4 * n);
	memset(dropped[r], 0, 4 * n);
	set_wall(x, 4 * n);
	set_wall(residual[r], 4 * n);
	*from = scatters(what) ? p->at : 0;
	*to = scatters(what) ? p->at + p->counts[r] : n;
	for (uint64_t i = 0; (what == ALLGATHER || what == CODED_GATHER) && i < n; i++)
		if (i < p->at || i >= p->at + p->counts[r])
			x[i] = NAN;
	if (what == BROADCAST && r != P / 2)
		memset(x, 0xff, 4 * n);
	switch (what) {
	case ALLREDUCE:
		return c->allreduce(it, x, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0 / P, err);
	case REDUCE_SCATTER:
		return c->reduce_scatter(it, x, p->counts, GRADCOMP_F32, GRADCOMP_SUM, 1.0 / P, err);
	case ALLGATHER:
		return c->allgather(it, x, p->bytes, err);
	case ALLTOALL:
		*from = 0;
		return alltoall(p, n, to, err);
	case BROADCAST:
		return c->broadcast(it, x, 4 * n, P / 2, err);
	case MERGE:
		return merge(p, n, x, err);
	case CODED_EXACT:
	case CODED_BYTES:
		return c->coded_allreduce(it, x, n, 1.0 / P, &codec, 1000, residual[r], err);
	case CODED_GATHER:
		return c->coded_allgather(it, x, p->counts, &codec, 1000, residual[r], err);
	case CODED_SCATTER:
		return c->coded_reduce_scatter(it, x, p->counts, 1.0 / P, &codec, 1000, residual[r], err);
	case EXCHANGE:
		return exchange(p, n, &codec, err);
	case SHARDS:
		return shards(p, n, x, err);
	case PRIMITIVES:
		break;
	}
	return GRADCOMP_ERR_INTERNAL;
}

/* Returns what rank r should have at i, less what memories have of it. */
static double wanted(const place *p, primitive what, uint64_t n, uint64_t i)
{
	double kept = 0;
	uint64_t begin = 0;
	int owner = 0;
	switch (what) {
	case ALLGATHER:
	case CODED_GATHER:
		for (; i >= begin + p->counts[owner]; owner++)
			begin += p->counts[owner];
		return (double)input[owner][i] - (what == CODED_GATHER ? (double)residual[owner][i - begin] : 0);
	case ALLTOALL:
		for (; i >= begin + to_all(n, owner, p->rank, p->P); owner++)
			begin += to_all(n, owner, p->rank, p->P);
		return input[owner][(uint64_t)p->rank + i - begin];
	case BROADCAST:
		return input[p->P / 2][i];
	case MERGE:
	case CODED_EXACT:
	case CODED_BYTES:
	case CODED_SCATTER:
		for (int r = 0; r < p->P; r++)
			kept += what == MERGE ? dropped[r][i] : residual[r][i];
		return what == MERGE ? sum[p->P][i] - kept : (sum[p->P][i] - kept) / p->P;
	default:
		return sum[p->P][i] / p->P;
	}
}

static void look(const place *p, primitive what, uint64_t n, uint64_t from, uint64_t to, account *o)
{
	const float *x = result[p->rank];
	for (uint64_t i = from; (p->rank == 0 || scatters(what)) && i < to; i++) {
		double off = fabs((double)x[i] - wanted(p, what, n, i));
		if (!(off <= o->off))
			o->off = off;
	}
	o->differ |= !scatters(what) && memcmp(x, result[0], 4 * n) != 0;
	if (what != EXCHANGE || p->rank != 0)
		return;
	/* Where in a memory an element is, is the collective's own; of the whole nothing is lost. */
	double lost = total(x, n) * p->P;
	for (int r = 0; r < p->P; r++)
		lost += held[r] - total(input[r], n);
	o->failed |= !(fabs(lost) <= 1e-6 * p->P * ((double)n + 1));
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	trial *t = arg;
	place p = {.spec = t->spec, .job = job, .rank = rank, .P = P};
	gradcomp_error err = {0};
	if (grid_open(job, t->spec, &p.coll_ctx, &err)) {
		if (rank == 0)
			memcpy(t->cannot, err.text, sizeof t->cannot);
		return;
	}
	if (rank == 0)
		t->serves = p.coll_ctx.collective->serves;
	for (int k = 0; k < 5 && p.coll_ctx.collective->serves & GRADCOMP_CAN_BARRIER; k++) {
		__atomic_add_fetch(&t->entered, 1, __ATOMIC_SEQ_CST);
		if (p.coll_ctx.collective->barrier(p.coll_ctx.instance, &err) ||
		    __atomic_load_n(&t->entered, __ATOMIC_SEQ_CST) < (k + 1) * P)
			__atomic_store_n(&t->early, 1, __ATOMIC_SEQ_CST);
	}
	for (int what = 0; what < PRIMITIVES; what++) {
		account *o = &t->at[what][rank];
		for (int s = 0; p.coll_ctx.collective->serves & primitives[what].serves && s < SIZES; s++) {
			uint64_t n = s == SIZES - 1 ? t->most : sizes[s], from, to, calls = 0;
			grid_split(n, P, p.counts);
			p.at = 0;
			for (int r = 0; r < P; r++) {
				p.bytes[r] = 4 * p.counts[r];
				p.at += r < rank ? p.counts[r] : 0;
			}
			for (int again = 0; again < 2; again++) {
				gradcomp_status st = run(&p, (primitive)what, n, &from, &to, &err);
				o->failed |= st != GRADCOMP_OK;
				if (st)
					snprintf(o->text, sizeof o->text, "%s", err.text);
				o->beside |= !walls_stand(result[rank], 4 * (what == ALLTOALL ? to : n)) ||
				             !walls_stand(residual[rank], 4 * n);
				if (rank == 0 && what == CODED_GATHER && n == 7)
					t->codes = p.code.calls;
				ranks_wait();
				if (!again) {
					look(&p, (primitive)what, n, from, to, o);
					memcpy(first[rank] + from, result[rank] + from, 4 * (to - from));
					calls = p.code.counters;
				}
				o->moved |= memcmp(first[rank] + from, result[rank] + from, 4 * (to - from)) ||
				            calls != p.code.counters;
				ranks_wait();
			}
		}
	}
	group_coll_close(&p.coll_ctx);
}

static void check(const char *spec, const layout *l, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	t->spec = spec;
	t->most = tap_in_part((unsigned long)(l - layouts), 3) ? MOST : LESS;
	grid_run(l, settings, body, t);
	if (*t->cannot)
		skip(t->cannot, "%s, %s", spec, l->name);
	else
		ok(!t->early, "%s, %s: nobody leaves a barrier early", spec, l->name);
	for (int what = 0; what < PRIMITIVES; what++) {
		account all = {0};
		if (!(t->serves & primitives[what].serves))
			continue;
		for (int r = 0; r < l->P; r++) {
			const account *o = &t->at[what][r];
			all.failed |= o->failed;
			all.differ |= o->differ;
			all.moved |= o->moved;
			all.beside |= o->beside;
			all.off = o->off <= all.off ? all.off : o->off;
			if (*o->text)
				printf("# rank %d: %s\n", r, o->text);
		}
		ok(!all.failed && !all.differ && !all.moved && !all.beside && all.off <= primitives[what].limit,
		   "%s, %s: %s (off by %.2g)%s%s%s%s", spec, l->name, primitives[what].name, all.off,
		   all.failed ? "; a call failed, or lost something" : "", all.differ ? "; ranks differ" : "",
		   all.moved ? "; not the same again" : "", all.beside ? "; written beside it" : "");
	}
	/* Blocks of 3, 0, 2, ...: rank 0 codes its own, and in hops those that it hands on. hier codes shards,
	 * which are not blocks. */
	if (l->P > 2 && t->serves & GRADCOMP_CAN_CODED_ALLGATHER && !(t->serves & GRADCOMP_CAN_SHARD)) {
		uint64_t counts[RANKS], want = 1;
		grid_split(7, l->P, counts);
		for (int r = 2; strstr(spec, "hop") && r < l->P; r++)
			want += counts[r] != 0;
		is_int(t->codes, want, "%s, %s: codes that rank 0 made for an all-gather", spec, l->name);
	}
	free(t);
}

int main(void)
{
	/* Parameters change these. */
	static const char *const more[] = {
		"ring:chunk=4096,small=0", "ring:mode=hop",
		"tree:chunk=4096",         "rhd:chunk=4096,short=0",
		"auto:fit=1/2/3/4/5/6/7",  "auto:fit=9000000/9/9/9/9/9/9/9000000/9/9/9/9/9/9"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	test_seed();
	sum[0] = calloc(MOST, sizeof(double));
	for (int r = 0; r < RANKS; r++) {
		input[r] = malloc(4 * ROOM);
		result[r] = walled(4 * ROOM);
		residual[r] = walled(4 * ROOM);
		first[r] = malloc(4 * ROOM);
		dropped[r] = malloc(4 * ROOM);
		packed[r] = malloc(4 * ROOM);
		sum[r + 1] = malloc(MOST * sizeof(double));
		for (uint64_t i = 0; i < ROOM; i++)
			input[r][i] = i % 8192 < 5000 ? (float)(test_uniform() - 0.5) : 0;
		for (uint64_t i = 0; i < MOST; i++)
			sum[r + 1][i] = sum[r][i] + input[r][i];
	}
	grid_find(settings);
	for (int l = 0; l < LAYOUTS; l++) {
		for (int k = 0; k < ncollectives; k++)
			check(collectives[k], &layouts[l], settings);
		for (size_t k = 0; (l == 2 || l == 4 || l == 7 || l == 9) && k < sizeof more / sizeof more[0]; k++)
			check(more[k], &layouts[l], settings);
	}
	for (int r = 0; r < RANKS; r++) {
		free(input[r]), free(first[r]), free(dropped[r]), free(packed[r]);
		walled_free(result[r]), walled_free(residual[r]);
	}
	for (int P = 0; P <= RANKS; P++)
		free(sum[P]);
	return done_testing();
}
