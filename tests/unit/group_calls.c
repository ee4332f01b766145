/* Calls of a group (gradcomp_call): every kind, type and operation over random sizes, blocks and roots, on 1 to 5
 * ranks, against numbers that are counted here; several under way at once; messages in any order; limits, groups that
 * are given up, and very many groups. */
#include "tests/support/thread_ranks.h"

#include "job/job.h"
#include "operators/operator_tables.h"
#include "tests/support/pace.h"

#include <math.h>
#include <stdbool.h>

enum { MOST_RANKS = 5, MOST = 40000, CASES = 160 };

static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_F64, GRADCOMP_F16, GRADCOMP_BF16, GRADCOMP_I8,
                                       GRADCOMP_U8,  GRADCOMP_I16, GRADCOMP_I32, GRADCOMP_I64};
enum { TYPES = sizeof types / sizeof types[0] };

static bool is_float(gradcomp_dtype d)
{
	return d <= GRADCOMP_F64;
}

/* Keeps what an integer type keeps of a number. */
static int64_t wrapped(gradcomp_dtype d, int64_t v)
{
	switch (d) {
	case GRADCOMP_I8:
		return (int8_t)v;
	case GRADCOMP_U8:
		return (uint8_t)v;
	case GRADCOMP_I16:
		return (int16_t)v;
	case GRADCOMP_I32:
		return (int32_t)v;
	default:
		return v;
	}
}

/* The number itself, or what an integer type keeps of it. */
static double kept(gradcomp_dtype d, double v)
{
	return is_float(d) ? v : (double)wrapped(d, (int64_t)v);
}

static void put(gradcomp_dtype d, void *buf, uint64_t i, double v)
{
	char *at = (char *)buf + i * gradcomp_dtype_bytes(d);
	float f = (float)v;
	int64_t n = (int64_t)v;
	if (d == GRADCOMP_F64)
		memcpy(at, &v, 8);
	else if (is_float(d))
		operators_cpu()->cast_from_f32(NULL, at, &f, 1, d, 0);
	else
		memcpy(at, &n, gradcomp_dtype_bytes(d));
}

static double get(gradcomp_dtype d, const void *buf, uint64_t i)
{
	const char *at = (const char *)buf + i * gradcomp_dtype_bytes(d);
	double v;
	float f;
	int64_t n = 0;
	if (d == GRADCOMP_F64) {
		memcpy(&v, at, 8);
		return v;
	}
	if (is_float(d)) {
		operators_cpu()->cast_to_f32(NULL, &f, at, 1, d);
		return (double)f;
	}
	memcpy(&n, at, gradcomp_dtype_bytes(d));
	return (double)wrapped(d, n);
}

/* Random numbers of a case, the same on all ranks. */
static uint64_t mixed(uint64_t a, uint64_t b)
{
	uint64_t x = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xbf58476d1ce4e5b9u;
	x ^= x >> 29;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 32;
}

/* Element i of rank r: small, so that all types hold what is made of five of them. */
static double number(uint64_t seed, int r, uint64_t i)
{
	return (double)(mixed(seed + (uint64_t)r * 977, i) % 6) - 2;
}

/* What `op` makes of element i of all ranks. */
static double made(gradcomp_dtype d, gradcomp_op op, uint64_t seed, int P, double factor, uint64_t i)
{
	int64_t all = 0;
	double sum = 0;
	for (int r = 0; r < P; r++) {
		double v = number(seed, r, i) * (factor != 0 ? factor : 1);
		int64_t n = wrapped(d, (int64_t)v);
		sum = !r                       ? v
		      : op == GRADCOMP_MAX     ? fmax(sum, v)
		      : op == GRADCOMP_MIN     ? fmin(sum, v)
		      : op == GRADCOMP_PRODUCT ? sum * v
		                               : sum + v;
		all = !r                       ? n
		      : op == GRADCOMP_MAX     ? (n > all ? n : all)
		      : op == GRADCOMP_MIN     ? (n < all ? n : all)
		      : op == GRADCOMP_PRODUCT ? all * n
		      : op == GRADCOMP_BAND    ? all & n
		      : op == GRADCOMP_BOR     ? all | n
		      : op == GRADCOMP_BXOR    ? all ^ n
		                               : all + n;
	}
	all = wrapped(d, all);
	if (op == GRADCOMP_AVG)
		return is_float(d) ? sum / P : (double)(all / P);
	return is_float(d) ? sum : (double)all;
}

static bool near(gradcomp_dtype d, double got, double want)
{
	double rounding = d == GRADCOMP_BF16  ? 0x1p-7
	                  : d == GRADCOMP_F16 ? 0x1p-10
	                  : d == GRADCOMP_F32 ? 0x1p-23
	                                      : 0x1p-52;
	return !is_float(d) ? got == want : fabs(got - want) <= rounding * fabs(want);
}

typedef struct one_case {
	gradcomp_call call;
	uint64_t seed;
	uint64_t counts[MOST_RANKS],
		back[MOST_RANKS]; /* of blocks; back: what others send this rank, of an all-to-all */
	bool unequal, apart;      /* blocks of several lengths; blocks that stand apart */
	bool in_place;
} one_case;

static gradcomp_op some_op(gradcomp_dtype d, uint64_t draw)
{
	static const gradcomp_op of_floats[] = {GRADCOMP_SUM, GRADCOMP_MAX, GRADCOMP_MIN, GRADCOMP_PRODUCT,
	                                        GRADCOMP_AVG};
	return is_float(d) ? of_floats[draw % 5] : (gradcomp_op)(draw % (GRADCOMP_AVG + 1));
}

static one_case draw_case(uint64_t seed, int rank, int P)
{
	static const uint64_t sizes[] = {0, 1, 3, 17, 256, 1000, 9001, MOST};
	one_case k = {.seed = seed};
	gradcomp_call *c = &k.call;
	c->struct_size = sizeof *c;
	c->kind = (uint32_t)(mixed(seed, 1) % (GRADCOMP_CALL_ALLTOALL + 1));
	c->dtype = types[mixed(seed, 2) % TYPES];
	c->op = some_op((gradcomp_dtype)c->dtype, mixed(seed, 3));
	c->peer = (int32_t)(mixed(seed, 4) % (uint64_t)P);
	c->count = sizes[mixed(seed, 5) % (sizeof sizes / sizeof sizes[0])];
	bool whole = c->kind <= GRADCOMP_CALL_BROADCAST;
	if (!whole)
		c->count /= (uint64_t)P;
	k.unequal = mixed(seed, 6) % 2;
	k.apart = mixed(seed, 7) % 2;
	k.in_place = mixed(seed, 8) % 2;
	for (int r = 0; r < P; r++) {
		uint64_t n = c->count ? c->count : 1;
		k.counts[r] = k.unequal ? mixed(seed, 20 + (uint64_t)r) % n : c->count;
		if (c->kind == GRADCOMP_CALL_ALLTOALL && k.unequal) {
			k.counts[r] = mixed(seed, 100 + (uint64_t)(rank * P + r)) % n;
			k.back[r] = mixed(seed, 100 + (uint64_t)(r * P + rank)) % n;
		} else {
			k.back[r] = k.counts[r];
		}
	}
	if (is_float((gradcomp_dtype)c->dtype) && (c->op == GRADCOMP_SUM || c->op == GRADCOMP_AVG) &&
	    mixed(seed, 9) % 2)
		c->factor = 0.5;
	return k;
}

static uint64_t sum_of(const uint64_t *counts, int n)
{
	uint64_t sum = 0;
	for (int r = 0; r < n; r++)
		sum += counts[r];
	return sum;
}

/* Buffers of a rank, with room for what must not be touched behind them. */
typedef struct buffers {
	char *in, *out;
	const void *in_blocks[MOST_RANKS];
	void *out_blocks[MOST_RANKS];
} buffers;

static void prepare(one_case *k, buffers *b, int rank, int P)
{
	gradcomp_call *c = &k->call;
	gradcomp_dtype d = (gradcomp_dtype)c->dtype;
	size_t size = gradcomp_dtype_bytes(d);
	bool blocks = c->kind >= GRADCOMP_CALL_ALLGATHER, root = rank == c->peer;
	uint64_t total = blocks ? sum_of(k->counts, P) : c->count, returned = blocks ? sum_of(k->back, P) : c->count;
	uint64_t before = blocks ? sum_of(k->counts, rank) : 0, at = 0, back = 0;
	b->in = calloc(total + 1, size);
	b->out = calloc((total > returned ? total : returned) + 1, size);
	bool gathers = c->kind == GRADCOMP_CALL_ALLGATHER || c->kind == GRADCOMP_CALL_GATHER;
	for (uint64_t i = 0; i < (gathers ? k->counts[rank] : total); i++)
		put(d, b->in, i, number(k->seed, rank, i));
	for (int r = 0; r < P; r++) {
		b->in_blocks[r] = b->in + at * size;
		b->out_blocks[r] = b->out + back * size;
		at += k->counts[r];
		back += k->back[r];
	}
	c->in = b->in;
	c->out = b->out;
	if (k->unequal) {
		c->in_counts = k->counts;
		c->out_counts = k->back;
		c->count = blocks ? 0 : c->count;
	}
	if (gathers && k->unequal && !root && c->kind == GRADCOMP_CALL_GATHER && k->apart) {
		c->out_counts = NULL;
		c->count = k->counts[rank];
	}
	if (k->apart && c->kind >= GRADCOMP_CALL_SCATTER)
		c->in_blocks = b->in_blocks;
	if (k->apart && (gathers || c->kind == GRADCOMP_CALL_ALLTOALL))
		c->out_blocks = b->out_blocks;
	if (k->in_place && !blocks && c->kind != GRADCOMP_CALL_BARRIER) {
		memcpy(b->out, b->in, total * size);
		c->in = k->seed % 2 ? NULL : b->out;
	} else if (k->in_place && c->kind == GRADCOMP_CALL_ALLGATHER && !k->apart) {
		memcpy(b->out + before * size, b->in, k->counts[rank] * size);
		c->in = k->seed % 2 ? NULL : b->out + before * size;
	} else if (k->in_place && c->kind == GRADCOMP_CALL_REDUCE_SCATTER) {
		c->flags = GRADCOMP_CALL_OVERWRITE;
	}
}

/* Returns the first element that is not right, or -1. */
static int64_t wrong(const one_case *k, const buffers *b, int rank, int P)
{
	const gradcomp_call *c = &k->call;
	gradcomp_dtype d = (gradcomp_dtype)c->dtype;
	uint64_t count = c->kind >= GRADCOMP_CALL_ALLGATHER ? 0 : c->count, begin = sum_of(k->counts, rank), at = 0;
	switch ((gradcomp_call_kind)c->kind) {
	case GRADCOMP_CALL_ALLREDUCE:
	case GRADCOMP_CALL_REDUCE:
		for (uint64_t i = 0; (c->kind == GRADCOMP_CALL_ALLREDUCE || rank == c->peer) && i < count; i++)
			if (!near(d, get(d, b->out, i), made(d, (gradcomp_op)c->op, k->seed, P, c->factor, i)))
				return (int64_t)i;
		/* Elsewhere it is not touched. */
		for (uint64_t i = 0; c->kind == GRADCOMP_CALL_REDUCE && rank != c->peer && !k->in_place && i < count;
		     i++)
			if (get(d, b->out, i) != 0)
				return (int64_t)i;
		return -1;
	case GRADCOMP_CALL_BROADCAST:
		for (uint64_t i = 0; i < count; i++)
			if (get(d, b->out, i) != kept(d, number(k->seed, c->peer, i)))
				return (int64_t)i;
		return -1;
	case GRADCOMP_CALL_ALLGATHER:
	case GRADCOMP_CALL_GATHER:
		if (c->kind == GRADCOMP_CALL_GATHER && rank != c->peer)
			return -1;
		for (int r = 0; r < P; r++)
			for (uint64_t i = 0; i < k->counts[r]; i++, at++) {
				double v = number(k->seed, r, i);
				if (get(d, b->out, at) != kept(d, v))
					return (int64_t)at;
			}
		return -1;
	case GRADCOMP_CALL_SCATTER:
		for (uint64_t i = 0; i < k->counts[rank]; i++) {
			double v = number(k->seed, c->peer, begin + i);
			if (get(d, b->out, i) != kept(d, v))
				return (int64_t)i;
		}
		return -1;
	case GRADCOMP_CALL_REDUCE_SCATTER:
		for (uint64_t i = 0; i < k->counts[rank]; i++)
			if (!near(d, get(d, b->out, i), made(d, (gradcomp_op)c->op, k->seed, P, c->factor, begin + i)))
				return (int64_t)i;
		return -1;
	case GRADCOMP_CALL_ALLTOALL:
		for (int r = 0; r < P; r++) {
			one_case theirs = draw_case(k->seed, r, P);
			uint64_t from = sum_of(theirs.counts, rank);
			for (uint64_t i = 0; i < k->back[r]; i++, at++) {
				double v = number(k->seed, r, from + i);
				if (get(d, b->out, at) != kept(d, v))
					return (int64_t)at;
			}
		}
		return -1;
	default:
		return -1;
	}
}

static const char *const kind_names[] = {"barrier", "all-reduce", "reduce",         "broadcast", "all-gather",
                                         "gather",  "scatter",    "reduce-scatter", "all-to-all"};

static void check_case(const one_case *k, const buffers *b, int rank, int P, gradcomp_status st,
                       const gradcomp_error *err)
{
	int64_t at = st ? 0 : wrong(k, b, rank, P);
	case_of(kind_names[k->call.kind], !st && at < 0,
	        "seed %llu, rank %d of %d, type %u, op %u, count %llu: %s at %lld", (unsigned long long)k->seed, rank,
	        P, k->call.dtype, k->call.op, (unsigned long long)k->call.count, st ? err->text : "other",
	        (long long)at);
}

static void every_kind(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	const uint64_t *first = arg;
	for (uint64_t s = 0; s < CASES; s++) {
		one_case k = draw_case(*first + s, rank, P);
		gradcomp_error err = {0};
		buffers b;
		prepare(&k, &b, rank, P);
		check_case(&k, &b, rank, P, gradcomp_group_call(w, &k.call, &err), &err);
		free(b.in);
		free(b.out);
	}
}

/* The same over a plugin that has few primitives and takes the first types and operations alone, of which each rank
 * makes a copy for itself. */
static void with_a_poor_plugin(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	struct gradcomp_collective_v1 poor;
	const struct gradcomp_collective_v1 *rich;
	gradcomp_error err;
	gradcomp_barrier(w, &err);
	rich = w->blocking.collective;
	poor = *rich;
	poor.traits &= ~GRADCOMP_TRAIT_ALL_TYPES;
	if (*(const uint64_t *)arg % 2) {
		poor.allreduce = NULL;
		poor.reduce_scatter = NULL;
	}
	poor.allgather = NULL;
	poor.broadcast = NULL;
	poor.barrier = NULL;
	w->blocking.collective = &poor;
	every_kind(job, rank, P, arg);
	w->blocking.collective = rich;
}

/* Many at once, waited for in another order than they were started in. */
static void in_flight(gradcomp_job *job, int rank, int P, void *arg)
{
	enum { AT_ONCE = 24 };
	gradcomp_group *w = gradcomp_job_world(job);
	const uint64_t *first = arg;
	one_case k[AT_ONCE];
	buffers b[AT_ONCE];
	gradcomp_group_request *q[AT_ONCE];
	gradcomp_error err = {0};
	for (int i = 0; i < AT_ONCE; i++) {
		k[i] = draw_case(*first + 1000 + (uint64_t)i, rank, P);
		prepare(&k[i], &b[i], rank, P);
		if (gradcomp_group_start(w, &k[i].call, &q[i], &err))
			ok(0, "started: %s", err.text);
	}
	for (int i = 0; i < AT_ONCE; i++) {
		int at = (i * 7 + rank) % AT_ONCE, done = 0;
		if (i % 3 == 0)
			while (!gradcomp_group_test(q[at], &done, &err) && !done)
				usleep(50);
		gradcomp_status st = gradcomp_group_wait(q[at], i % 2 ? -1 : 100, &done, &err);
		check_case(&k[at], &b[at], rank, P, st, &err);
		case_of("a call that was waited for is done", done, "call %d", at);
		gradcomp_group_request_free(q[at]);
	}
	for (int i = 0; i < AT_ONCE; i++) {
		free(b[i].in);
		free(b[i].out);
	}
}

static void message(gradcomp_call *c, gradcomp_call_kind kind, int peer, void *buf, uint64_t count, uint64_t tag)
{
	*c = (gradcomp_call){.struct_size = sizeof *c,
	                     .kind = kind,
	                     .dtype = GRADCOMP_U8,
	                     .peer = peer,
	                     .in = buf,
	                     .out = buf,
	                     .count = count,
	                     .tag = tag};
}

/* Everybody sends to everybody, short and long, and receives in another order; some from any rank. */
static void messages(gradcomp_job *job, int rank, int P, void *arg)
{
	static const uint64_t sizes[] = {0, 1, 32, 33, 5000, 65536, 65537, 700000};
	enum { SIZES = sizeof sizes / sizeof sizes[0] };
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_group_request *sent[MOST_RANKS][SIZES], *got[MOST_RANKS][SIZES];
	char *out[MOST_RANKS][SIZES], *in[MOST_RANKS][SIZES];
	int32_t from[MOST_RANKS][SIZES];
	uint64_t came[MOST_RANKS][SIZES];
	gradcomp_error err = {0};
	gradcomp_call c;
	(void)arg;
	for (int r = 0; r < P; r++)
		for (int s = 0; r != rank && s < SIZES; s++) {
			out[r][s] = malloc(sizes[s] + 1);
			memset(out[r][s], rank * 31 + r * 7 + s, sizes[s]);
			message(&c, GRADCOMP_CALL_SEND, r, out[r][s], sizes[s], (uint64_t)s);
			if (gradcomp_group_start(w, &c, &sent[r][s], &err))
				ok(0, "a send: %s", err.text);
		}
	for (int s = SIZES - 1; s >= 0; s--)
		for (int r = 0; r < P; r++) {
			if (r == rank)
				continue;
			in[r][s] = malloc(sizes[s] + 1);
			message(&c, GRADCOMP_CALL_RECV, s % 2 ? r : GRADCOMP_ANY_RANK, in[r][s], sizes[s], (uint64_t)s);
			c.from = &from[r][s];
			c.got = &came[r][s];
			from[r][s] = -2;
			if (gradcomp_group_start(w, &c, &got[r][s], &err))
				ok(0, "a receive: %s", err.text);
		}
	for (int r = P - 1; r >= 0; r--)
		for (int s = 0; r != rank && s < SIZES; s++) {
			gradcomp_status st = gradcomp_group_wait(got[r][s], -1, NULL, &err);
			int f = from[r][s];
			bool right =
				!st && f >= 0 && f < P && f != rank && (s % 2 == 0 || f == r) && came[r][s] == sizes[s];
			for (uint64_t i = 0; right && i < sizes[s]; i++)
				right = in[r][s][i] == (char)(f * 31 + rank * 7 + s);
			case_of("messages come to the receives that match", right,
			        "rank %d of %d, from %d (%d), size %llu: %s", rank, P, r, f,
			        (unsigned long long)sizes[s], st ? err.text : "other bytes");
			gradcomp_group_request_free(got[r][s]);
			free(in[r][s]);
		}
	for (int r = 0; r < P; r++)
		for (int s = 0; r != rank && s < SIZES; s++) {
			case_of("sends end well", !gradcomp_group_wait(sent[r][s], -1, NULL, &err), "%s", err.text);
			gradcomp_group_request_free(sent[r][s]);
			free(out[r][s]);
		}
	/* Messages of one tag keep their order, and wait for no collective. */
	for (int k = 0; k < 50; k++) {
		int32_t x = k * P + rank, y = -1, to = (rank + 1) % P, prev = (rank + P - 1) % P;
		gradcomp_group_request *q;
		if (P == 1)
			break;
		message(&c, GRADCOMP_CALL_SEND, to, &x, sizeof x, 99);
		if (gradcomp_group_start(w, &c, &q, &err))
			ok(0, "a send: %s", err.text);
		message(&c, GRADCOMP_CALL_RECV, prev, &y, sizeof y, 99);
		bool right = !gradcomp_group_call(w, &c, &err) && y == k * P + prev;
		case_of("messages of one tag keep their order", right, "got %d: %s", y, err.text);
		if (k % 10 == 0)
			gradcomp_barrier(w, &err);
		gradcomp_group_request_free(q);
	}
}

/* Two ranks, a message that is too long, receives that nothing comes for, and calls that others do not make. */
static void limits(gradcomp_job *job, int rank, int P, void *arg)
{
	static const int pair[2] = {0, 1};
	gradcomp_group *w = gradcomp_job_world(job), *g;
	gradcomp_group_request *q;
	gradcomp_error err = {0};
	gradcomp_call c;
	char *buf = calloc(1, 200000), x = 0;
	int done = 1;
	(void)P, (void)arg;
	for (int s = 0; s < 2; s++) {
		uint64_t n = s ? 100000 : 100;
		message(&c, rank ? GRADCOMP_CALL_SEND : GRADCOMP_CALL_RECV, !rank, buf, rank ? n : n - 1, 5);
		gradcomp_status st = gradcomp_group_call(w, &c, &err);
		ok(st == (rank ? GRADCOMP_OK : GRADCOMP_ERR_MISMATCH), "rank %d: a message that is too long: %d %s",
		   rank, st, st ? err.text : "");
	}
	message(&c, rank ? GRADCOMP_CALL_SEND : GRADCOMP_CALL_RECV, !rank, buf, 7, 5);
	is_int(gradcomp_group_call(w, &c, &err), GRADCOMP_OK, "rank %d: the next one comes", rank);

	/* A message that nobody takes, and one that does not come. */
	for (int s = 0; s < 2; s++) {
		/* Else a send would meet a receive of a rank that is behind, and end in the middle of it. */
		ranks_wait();
		message(&c, s ? GRADCOMP_CALL_SEND : GRADCOMP_CALL_RECV, !rank, buf, 150000, 6);
		c.timeout = 0.05;
		is_int(gradcomp_group_call(w, &c, &err), GRADCOMP_ERR_TIMEOUT, "rank %d: a %s ends at its limit", rank,
		       s ? "send" : "receive");
	}
	ranks_wait();
	message(&c, rank ? GRADCOMP_CALL_SEND : GRADCOMP_CALL_RECV, !rank, buf, 150000, 6);
	is_int(gradcomp_group_call(w, &c, &err), GRADCOMP_OK,
	       "rank %d: and the group goes on, what was withdrawn is gone", rank);

	/* A wait that ends before the call. */
	if (rank == 0) {
		message(&c, GRADCOMP_CALL_RECV, 1, &x, 1, 7);
		is_int(gradcomp_group_start(w, &c, &q, &err), GRADCOMP_OK, "a receive is started");
		is_int(gradcomp_group_wait(q, 0.01, &done, &err), GRADCOMP_ERR_TIMEOUT, "a wait ends at its limit");
		is_int(done, 0, "and the call goes on");
	}
	ranks_wait();
	message(&c, GRADCOMP_CALL_SEND, 0, buf, 1, 7);
	if (rank)
		gradcomp_group_call(w, &c, &err);
	else {
		is_int(gradcomp_group_wait(q, -1, &done, &err), GRADCOMP_OK, "until it comes");
		gradcomp_group_request_free(q);
	}

	/* One rank enters a barrier, and the other one does not. */
	gradcomp_group_create(w, pair, 2, &g, &err);
	gradcomp_barrier(g, &err);
	c = (gradcomp_call){.struct_size = sizeof c, .kind = GRADCOMP_CALL_BARRIER, .timeout = 0.1};
	if (rank == 0) {
		is_int(gradcomp_group_call(g, &c, &err), GRADCOMP_ERR_TIMEOUT, "a barrier ends at its limit");
		like(err.text, "rank 1 on", "with the name of the rank that did not come");
		c.timeout = 0;
		is_int(gradcomp_group_call(g, &c, &err), GRADCOMP_ERR_STATE, "the group is over then");
	}
	ranks_wait();
	c.timeout = 10;
	if (rank == 1) {
		/* The other one had entered the first. */
		gradcomp_status st = gradcomp_group_call(g, &c, &err);
		st = st ? st : gradcomp_group_call(g, &c, &err);
		is_int(st, GRADCOMP_ERR_PEER, "also for the other rank");
	}
	gradcomp_group_free(g);
	is_int(gradcomp_barrier(w, &err), GRADCOMP_OK, "rank %d: other groups go on", rank);
	free(buf);
}

typedef struct waiter {
	gradcomp_group *g;
	gradcomp_status st;
	gradcomp_error err;
} waiter;

static void *wait_alone(void *arg)
{
	waiter *at = arg;
	gradcomp_call c = {.struct_size = sizeof c, .kind = GRADCOMP_CALL_BARRIER};
	at->st = gradcomp_group_call(at->g, &c, &at->err);
	return NULL;
}

/* A group is given up, or freed, while calls on it wait for another rank. */
static void given_up(gradcomp_job *job, int rank, int P, void *arg)
{
	static const int pair[2] = {0, 1};
	gradcomp_group *w = gradcomp_job_world(job), *g;
	gradcomp_group_request *q[3];
	gradcomp_error err = {0};
	(void)P, (void)arg;
	enum { ROUNDS = 21 };
	for (int round = 0; round < ROUNDS; round++) {
		const int freed = round > 0;
		gradcomp_group_create(w, pair, 2, &g, &err);
		gradcomp_barrier(g, &err);
		char x[3] = {0};
		if (rank == 0) {
			gradcomp_call c = {.struct_size = sizeof c, .kind = GRADCOMP_CALL_BARRIER};
			waiter other = {.g = g};
			pthread_t thread;
			for (int i = 0; i < 3; i++) {
				if (i == 2)
					message(&c, GRADCOMP_CALL_RECV, 1, x, 3, 1);
				if (gradcomp_group_start(g, &c, &q[i], &err))
					ok(0, "started: %s", err.text);
			}
			if (!freed) {
				pthread_create(&thread, NULL, wait_alone, &other);
				usleep(3000);
				is_int(gradcomp_group_abort(g, "enough of it", &err), GRADCOMP_OK, "given up");
				pthread_join(thread, NULL);
				is_int(other.st, GRADCOMP_ERR_STATE, "a call that waits ends: %s", other.err.text);
			} else {
				usleep(3000);
				gradcomp_group_free(g);
			}
			for (int i = 0; i < 3; i++) {
				is_int(gradcomp_group_wait(q[i], -1, NULL, &err), GRADCOMP_ERR_STATE,
				       "call %d in flight ends: %s", i, err.text);
				gradcomp_group_request_free(q[i]);
			}
			if (!freed) {
				is_int(gradcomp_group_start(g, &c, &q[0], &err), GRADCOMP_ERR_STATE,
				       "no other is started");
				like(err.text, "enough of it", "with the reason that was given");
				gradcomp_group_free(g);
			}
		} else {
			gradcomp_call c;
			message(&c, GRADCOMP_CALL_RECV, 0, x, 3, 1);
			gradcomp_status st = gradcomp_group_call(g, &c, &err);
			is_int(st, GRADCOMP_ERR_PEER, "the other rank's receive ends: %s", err.text);
			like(err.text, "rank 0 on", "with the name");
			c = (gradcomp_call){.struct_size = sizeof c, .kind = GRADCOMP_CALL_BARRIER};
			/* The other rank had entered some. */
			st = GRADCOMP_OK;
			for (int i = 0; !st && i < 4; i++)
				st = gradcomp_group_call(g, &c, &err);
			is_int(st, GRADCOMP_ERR_PEER, "and its collective: %s", err.text);
			gradcomp_group_free(g);
		}
		is_int(gradcomp_barrier(w, &err), GRADCOMP_OK, "rank %d: the world goes on", rank);
	}
}

static void count_done(void *ctx, gradcomp_status st, const gradcomp_error *err)
{
	int *n = ctx;
	(void)err;
	*n += st ? 1000 : 1;
}

/* Groups that are made, used in every way and freed. */
static void many_groups(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job), *g;
	const int *n = arg;
	int all[MOST_RANKS], bad = 0, called = 0;
	gradcomp_error err = {0};
	for (int r = 0; r < P; r++)
		all[r] = r;
	for (int k = 0; k < *n; k++) {
		int64_t x = rank + k, y = -1, z = rank;
		gradcomp_group_request *q, *s;
		gradcomp_call c = {.struct_size = sizeof c,
		                   .kind = GRADCOMP_CALL_ALLREDUCE,
		                   .dtype = GRADCOMP_I64,
		                   .out = &x,
		                   .count = 1,
		                   .done = count_done,
		                   .ctx = &called};
		bad |= gradcomp_group_create(w, all, P, &g, &err) != 0;
		bad |= gradcomp_group_start(g, &c, &q, &err) != 0;
		if (k % 10 == 0 && P > 1) {
			message(&c, GRADCOMP_CALL_SEND, (rank + 1) % P, &z, sizeof z, 1);
			bad |= gradcomp_group_start(g, &c, &s, &err) != 0;
			message(&c, GRADCOMP_CALL_RECV, (rank + P - 1) % P, &y, sizeof y, 1);
			bad |= gradcomp_group_call(g, &c, &err) != 0 || y != (rank + P - 1) % P;
			gradcomp_group_request_free(s);
		}
		bad |= gradcomp_group_wait(q, -1, NULL, &err) != 0 || x != (int64_t)P * (P - 1) / 2 + (int64_t)k * P;
		gradcomp_group_request_free(q);
		gradcomp_group_free(g);
	}
	ok(!bad && called == *n, "rank %d of %d: %d groups, %d done: %s", rank, P, *n, called, err.text);
}

static void refusals(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err;
	float x = 0;
	gradcomp_call right = {.struct_size = sizeof right, .kind = GRADCOMP_CALL_ALLREDUCE, .out = &x, .count = 1}, c;
	(void)rank, (void)P, (void)arg;
#define WRONG(field, value, status, says) \
	do { \
		c = right; \
		c.field = value; \
		is_int(gradcomp_group_call(w, &c, &err), status, "%s", #field " " #value); \
		like(err.text, says, "says what"); \
	} while (0)
	WRONG(struct_size, 8, GRADCOMP_ERR_INVALID, "a call of 8 bytes");
	WRONG(kind, 77, GRADCOMP_ERR_INVALID, "kind 77 of a call");
	WRONG(dtype, 77, GRADCOMP_ERR_INVALID, "element type 77");
	WRONG(dtype, GRADCOMP_F8E4M3, GRADCOMP_ERR_UNSUPPORTED, "8 bits");
	WRONG(op, 77, GRADCOMP_ERR_INVALID, "operation 77");
	WRONG(op, GRADCOMP_BXOR, GRADCOMP_ERR_UNSUPPORTED, "bitwise exclusive or");
	WRONG(out, NULL, GRADCOMP_ERR_INVALID, "buffer is NULL for 1 elements");
	WRONG(flags, 8, GRADCOMP_ERR_INVALID, "flags 0x8");
	WRONG(timeout, -1, GRADCOMP_ERR_INVALID, "timeout -1");
	WRONG(count, UINT64_MAX / 2, GRADCOMP_ERR_RANGE, "more than memory can have");
	right.kind = GRADCOMP_CALL_BROADCAST;
	WRONG(peer, 1, GRADCOMP_ERR_INVALID, "root 1: must be 0..0");
	right.kind = GRADCOMP_CALL_RECV;
	WRONG(peer, 0, GRADCOMP_ERR_INVALID, "to itself");
	WRONG(peer, 5, GRADCOMP_ERR_INVALID, "rank 5: must be 0..0");
	is_int(gradcomp_group_call(NULL, &right, &err), GRADCOMP_ERR_INVALID, "no group");
	is_int(gradcomp_group_call(w, NULL, &err), GRADCOMP_ERR_INVALID, "no call");
	is_int(gradcomp_group_wait(NULL, 0, NULL, &err), GRADCOMP_ERR_INVALID, "no request");
	gradcomp_group_request_free(NULL);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "transport.wait_timeout=60", NULL};
	const char *over_tcp[] = {plugin_path_setting(), "transport.timeout=20", "transport.wait_timeout=60",
	                          "transport.allow=tcp", NULL};
	const char *ring[] = {plugin_path_setting(), "transport.timeout=20", "transport.wait_timeout=60",
	                      "gradcomp.collective=ring", NULL};
	const char *const *how[] = {settings, over_tcp, ring};
	char who[64];
	uint64_t seed = 1;
	int groups = 1000, few = 100;
	run_ranks(1, settings, refusals, NULL);
	for (int h = 0; h < 3; h++)
		for (int P = 1; P <= MOST_RANKS; P++, seed += 10000) {
			run_ranks(P, how[h], every_kind, &seed);
			run_ranks(P, how[h], in_flight, &seed);
			if (h < 2)
				run_ranks(P, how[h], messages, NULL);
			snprintf(who, sizeof who, "%d ranks, %s", P, h == 0 ? "shm" : h == 1 ? "tcp" : "ring");
			tap_cases(who);
		}
	for (int P = 1; P <= MOST_RANKS; P++, seed += 10001)
		run_ranks(P, settings, with_a_poor_plugin, &seed);
	tap_cases("a plugin with few primitives");
	for (int h = 0; h < 2; h++) {
		run_ranks(2, how[h], limits, NULL);
		run_ranks(2, how[h], given_up, NULL);
	}
	run_ranks(2, settings, many_groups, &groups);
	run_ranks(4, settings, many_groups, &few);
	return done_testing();
}
