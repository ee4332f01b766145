/* The primitives of a collective, between threads, on numbers whose sums are exact. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/call.h"
#include "conformance/hooks.h"
#include "conformance/kit.h"
#include "conformance/kit_fabric.h"

enum { RUNS_MAX = 2048, LARGE = (1 << 17) + 1 };

/* Those with a codec. */
enum {
	CODED_BLOCKS = GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER,
	CODED = CODED_BLOCKS | GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_EXCHANGE
};

/* Keeps what the codec has seen of a rank's runs. */
typedef struct coder {
	uint64_t counters[RUNS_MAX];
	int runs;
} coder;

struct trial;
typedef struct rank_call {
	struct trial *t;
	int rank;
	pthread_t thread;
	guarded buf, out, residual, memory; /* memory: of an exchange */
	uint64_t lengths[LINKS_RANKS_MAX], out_lengths[LINKS_RANKS_MAX];
	coder coder;
	gradcomp_codec codec;
	gradcomp_shard shard;
	gradcomp_status st;
	gradcomp_error err;
	int unwaited, early;
} rank_call;

/* One primitive, called by all ranks. */
typedef struct trial {
	kit *k;
	const struct gradcomp_collective_v1 *c;
	gradcomp_host host;
	fabric f;
	void *instance[LINKS_RANKS_MAX];
	rank_call *calls;
	int P, bit, root, entered; /* bit: of the primitive, in `serves` */
	uint64_t count;
	gradcomp_dtype dtype;
	gradcomp_op op;
	double scale;
	bool forgets; /* codes need not say what they lose: no residual, no memory */
	int failures; /* that were reported: no more of the same */
} trial;

static bool is(const trial *t, uint32_t primitives)
{
	return 1u << t->bit & primitives;
}

static double value(int rank, uint64_t i)
{
	return rank % 4 + (double)(i % 5);
}

static void put(const trial *t, void *buf, uint64_t i, double v)
{
	float f = (float)v;
	int64_t n = (int64_t)v;
	int32_t n32 = (int32_t)v;
	int16_t n16 = (int16_t)v;
	char *at = (char *)buf + i * gradcomp_dtype_bytes(t->dtype);
	switch (t->dtype) {
	case GRADCOMP_F32:
		memcpy(at, &f, 4);
		break;
	case GRADCOMP_F64:
		memcpy(at, &v, 8);
		break;
	case GRADCOMP_I32:
		memcpy(at, &n32, 4);
		break;
	case GRADCOMP_I64:
		memcpy(at, &n, 8);
		break;
	case GRADCOMP_I16:
		memcpy(at, &n16, 2);
		break;
	case GRADCOMP_U8:
	case GRADCOMP_I8:
		*at = (char)n;
		break;
	default:
		t->host.operators->cast_from_f32(NULL, at, &f, 1, t->dtype, 0);
	}
}

static double get(const trial *t, const void *buf, uint64_t i)
{
	const char *at = (const char *)buf + i * gradcomp_dtype_bytes(t->dtype);
	double v = 0;
	float f = 0;
	int64_t n;
	int32_t n32;
	int16_t n16;
	switch (t->dtype) {
	case GRADCOMP_F32:
		memcpy(&f, at, 4);
		return (double)f;
	case GRADCOMP_F64:
		memcpy(&v, at, 8);
		return v;
	case GRADCOMP_I32:
		memcpy(&n32, at, 4);
		return n32;
	case GRADCOMP_I64:
		memcpy(&n, at, 8);
		return (double)n;
	case GRADCOMP_U8:
		return (unsigned char)*at;
	case GRADCOMP_I8:
		return (signed char)*at;
	case GRADCOMP_I16:
		memcpy(&n16, at, 2);
		return n16;
	default:
		t->host.operators->cast_to_f32(NULL, &f, at, 1, t->dtype);
		return (double)f;
	}
}

static double reduced(const trial *t, uint64_t i)
{
	double all = value(0, i);
	for (int r = 1; r < t->P; r++) {
		double v = value(r, i);
		all = t->op == GRADCOMP_SUM       ? all + v
		      : t->op == GRADCOMP_MAX     ? fmax(all, v)
		      : t->op == GRADCOMP_MIN     ? fmin(all, v)
		      : t->op == GRADCOMP_PRODUCT ? all * v
		      : t->op == GRADCOMP_BAND    ? (double)((int64_t)all & (int64_t)v)
		      : t->op == GRADCOMP_BXOR    ? (double)((int64_t)all ^ (int64_t)v)
		                                  : (double)((int64_t)all | (int64_t)v);
	}
	/* Products of four ranks are more than a byte holds. */
	if (t->dtype == GRADCOMP_I8)
		return (int8_t)(int64_t)all;
	if (t->dtype == GRADCOMP_U8)
		return (uint8_t)(int64_t)all;
	return all * t->scale;
}

static uint64_t half_bound(void *ctx, uint64_t n)
{
	(void)ctx;
	return 2 * n;
}

static gradcomp_status half_code(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                                 gradcomp_error *err)
{
	coder *c = ctx;
	int run = __atomic_fetch_add(&c->runs, 1, __ATOMIC_RELAXED);
	(void)err;
	if (run < RUNS_MAX)
		c->counters[run] = counter;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t w;
		memcpy(&w, &in[i], 4);
		w >>= 16;
		memcpy((char *)out + 2 * i, &(uint16_t){(uint16_t)w}, 2);
	}
	*bytes = 2 * n;
	return GRADCOMP_OK;
}

static gradcomp_status half_get(const void *in, uint64_t bytes, float *out, uint64_t n, bool add, gradcomp_error *err)
{
	if (bytes != 2 * n)
		return host_fail(err, GRADCOMP_ERR_MISMATCH, "%llu bytes are no code of %llu floats",
		                 (unsigned long long)bytes, (unsigned long long)n);
	for (uint64_t i = 0; i < n; i++) {
		uint16_t half;
		uint32_t w;
		float v;
		memcpy(&half, (const char *)in + 2 * i, 2);
		w = (uint32_t)half << 16;
		memcpy(&v, &w, 4);
		out[i] = add ? out[i] + v : v;
	}
	return GRADCOMP_OK;
}

static gradcomp_status half_decode(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                   gradcomp_error *err)
{
	(void)ctx;
	return half_get(in, bytes, out, n, false, err);
}

static gradcomp_status half_decode_add(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	(void)ctx;
	return half_get(in, bytes, out, n, true, err);
}

static gradcomp_status add_payloads(void *ctx, const gradcomp_payload *a, const gradcomp_payload *b,
                                    gradcomp_payload *out, gradcomp_error *err)
{
	(void)ctx;
	if (a->bytes != b->bytes || out->capacity < a->bytes)
		return host_fail(err, GRADCOMP_ERR_MISMATCH, "payloads of %llu and %llu bytes are merged into %llu",
		                 (unsigned long long)a->bytes, (unsigned long long)b->bytes,
		                 (unsigned long long)out->capacity);
	for (uint64_t i = 0; i < a->bytes / sizeof(float); i++)
		((float *)out->data)[i] = ((const float *)a->data)[i] + ((const float *)b->data)[i];
	out->bytes = a->bytes;
	return GRADCOMP_OK;
}

/* Goes through both levels in turn: the sum of all ranks. */
static gradcomp_status two_levels(rank_call *c)
{
	const struct gradcomp_collective_v1 *p = c->t->c;
	void *instance = c->t->instance[c->rank];
	float *buf = (float *)(void *)c->buf.data;
	uint64_t n = c->t->count, ids[LINKS_RANKS_MAX], lengths[LINKS_RANKS_MAX];
	void *holders = instance;
	gradcomp_status st = p->local_reduce_scatter(instance, buf, n, 1.0, &c->err);
	for (uint32_t k = 0; !st && (!k || p->shard_at); k++) {
		c->shard = (gradcomp_shard){.struct_size = sizeof c->shard, .rank = -1};
		st = p->shard_at ? p->shard_at(instance, k, n, &c->shard, &holders, &c->err)
		                 : p->shard(instance, n, &c->shard, &c->err);
		if (st || c->shard.rank < 0)
			break;
		if (c->shard.begin > n || c->shard.numel > n - c->shard.begin || c->shard.nranks > c->t->P ||
		    k >= n + c->t->P)
			return host_fail(&c->err, GRADCOMP_ERR_INTERNAL, "its shard is not within the bucket");
		st = p->shard_allreduce(holders, buf + c->shard.begin, c->shard.numel, GRADCOMP_F32, GRADCOMP_SUM,
		                        c->t->scale, &c->err);
		for (int r = 0; r < c->shard.nranks; r++) {
			ids[r] = r == c->shard.rank ? (uint64_t)r : ~0u;
			lengths[r] = sizeof *ids;
		}
		if (!st)
			st = p->shard_allgather(holders, ids, lengths, &c->err);
		for (int r = 0; !st && r < c->shard.nranks; r++)
			if (ids[r] != (uint64_t)r)
				st = host_fail(&c->err, GRADCOMP_ERR_INTERNAL,
				               "shard_allgather(): block %d is not that of holder %d", r, r);
	}
	return st ? st : p->local_allgather(instance, buf, n, &c->err);
}

static gradcomp_status barrier(rank_call *c)
{
	const struct timespec late = {.tv_nsec = 3000000};
	gradcomp_status st;
	if (c->rank == c->t->P - 1)
		nanosleep(&late, NULL);
	__atomic_fetch_add(&c->t->entered, 1, __ATOMIC_SEQ_CST);
	st = c->t->c->barrier(c->t->instance[c->rank], &c->err);
	c->early = __atomic_load_n(&c->t->entered, __ATOMIC_SEQ_CST) < c->t->P;
	return st;
}

static gradcomp_status dispatch(rank_call *c)
{
	const trial *t = c->t;
	const struct gradcomp_collective_v1 *p = t->c;
	void *instance = t->instance[c->rank], *buf = c->buf.data;
	float *residual = t->forgets ? NULL : (float *)(void *)c->residual.data;
	gradcomp_merger merger = {.struct_size = sizeof merger, .merge = add_payloads};
	gradcomp_payload payload = {buf, c->buf.bytes, c->buf.bytes};
	gradcomp_status st;
	switch (1u << t->bit) {
	case GRADCOMP_CAN_ALLREDUCE:
		return p->allreduce(instance, buf, t->count, t->dtype, t->op, t->scale, &c->err);
	case GRADCOMP_CAN_REDUCE_SCATTER:
		return p->reduce_scatter(instance, buf, c->lengths, t->dtype, t->op, t->scale, &c->err);
	case GRADCOMP_CAN_ALLGATHER:
		return p->allgather(instance, buf, c->lengths, &c->err);
	case GRADCOMP_CAN_ALLTOALL:
		return p->alltoall(instance, buf, c->lengths, c->out.data, c->out_lengths, &c->err);
	case GRADCOMP_CAN_BROADCAST:
		return p->broadcast(instance, buf, c->buf.bytes, t->root, &c->err);
	case GRADCOMP_CAN_BARRIER:
		return barrier(c);
	case GRADCOMP_CAN_MERGE:
		st = p->merge(instance, &payload, c->buf.bytes, &merger, &c->err);
		if (!st && (payload.data != buf || payload.bytes != c->buf.bytes))
			st = host_fail(&c->err, GRADCOMP_ERR_INTERNAL,
			               "the payload it leaves is another buffer, or of another length");
		return st;
	case GRADCOMP_CAN_CODED_ALLREDUCE:
		return p->coded_allreduce(instance, (float *)buf, t->count, t->scale, &c->codec, 1000, residual,
		                          &c->err);
	case GRADCOMP_CAN_CODED_ALLGATHER:
		return p->coded_allgather(instance, (float *)buf, c->lengths, &c->codec, 1000, residual, &c->err);
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
		return p->coded_reduce_scatter(instance, (float *)buf, c->lengths, t->scale, &c->codec, 1000, residual,
		                               &c->err);
	case GRADCOMP_CAN_EXCHANGE:
		return p->exchange(instance,
		                   &(gradcomp_exchange){.struct_size = sizeof(gradcomp_exchange),
		                                        .buf = (float *)buf,
		                                        .count = t->count,
		                                        .scale = t->scale,
		                                        .codec = &c->codec,
		                                        .counter = 1000,
		                                        .residual = residual,
		                                        .server_error =
		                                                t->forgets ? NULL : (float *)(void *)c->memory.data},
		                   &c->err);
	default:
		return two_levels(c);
	}
}

static void *run_rank(void *ctx)
{
	rank_call *c = ctx;
	c->st = dispatch(c);
	c->unwaited = fabric_leave(&c->t->f, c->rank);
	return NULL;
}

__attribute__((format(printf, 3, 4))) static void broken(trial *t, rule r, const char *fmt, ...)
{
	char text[240], of[80] = "";
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (is(t, GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER))
		snprintf(of, sizeof of, ", type %d, operation %d, scale %g", (int)t->dtype, (int)t->op, t->scale);
	kit_fail(t->k, r, "%s() of %llu numbers%s, %d ranks on %d nodes: %s", call_primitive(t->bit),
	         (unsigned long long)t->count, of, t->P, t->f.ends[0].api.nnodes, text);
	t->failures++;
}

static void run_all(trial *t)
{
	t->entered = 0;
	fabric_enter(&t->f);
	call_begin((call_which)(CALL_PRIMITIVE + t->bit), 0, t->P, 0);
	for (int r = 0; r < t->P; r++)
		if (pthread_create(&t->calls[r].thread, NULL, run_rank, &t->calls[r]))
			exit(1);
	for (int r = 0; r < t->P; r++)
		pthread_join(t->calls[r].thread, NULL);
	call_end();
	fabric_forget(&t->f);
}

/* False when the failure has been reported. */
static bool call_all(trial *t)
{
	run_all(t);
	if (t->f.stuck)
		broken(t, RULE_LINKS, "%s", t->f.failure.text);
	for (int r = 0; r < t->P && !t->f.stuck; r++) {
		const rank_call *c = &t->calls[r];

		if (c->st)
			broken(t, t->f.failure.status ? RULE_LINKS : RULE_PRIMITIVES, "rank %d fails: %s", r,
			       c->err.text[0] ? c->err.text : "(without a word)");
		else if (c->unwaited)
			broken(t, RULE_LINKS, "rank %d returns and has not waited for %d of its transfers", r,
			       c->unwaited);
		else if (c->early)
			broken(t, RULE_PRIMITIVES, "rank %d leaves before all have entered", r);
		else
			continue;
		return false;
	}
	return !t->f.stuck;
}

/* The functions below say what goes in and what must come out. */

/* Uneven blocks that make up `count`; some are empty. */
static uint64_t block(const trial *t, int rank)
{
	uint64_t weight = 0, before = 0;
	for (int r = 0; r < t->P; r++)
		weight += (uint64_t)(r % 3);
	for (int r = 0; r < rank; r++)
		before += (uint64_t)(r % 3);
	if (!weight)
		return rank ? 0 : t->count;
	return t->count * (before + (uint64_t)(rank % 3)) / weight - t->count * before / weight;
}

static uint64_t block_begin(const trial *t, int rank)
{
	uint64_t at = 0;
	for (int r = 0; r < rank; r++)
		at += block(t, r);
	return at;
}

static int block_owner(const trial *t, uint64_t i)
{
	int owner = 0;
	while (owner + 1 < t->P && i >= block_begin(t, owner + 1))
		owner++;
	return owner;
}

static void begin(trial *t)
{
	size_t size = gradcomp_dtype_bytes(t->dtype);
	for (int r = 0; r < t->P; r++) {
		rank_call *c = &t->calls[r];

		memset(c, 0, sizeof *c);
		c->t = t;
		c->rank = r;
		c->codec = (gradcomp_codec){.struct_size = sizeof c->codec,
		                            .ctx = &c->coder,
		                            .bound = half_bound,
		                            .code = half_code,
		                            .decode = half_decode,
		                            .decode_add = half_decode_add};
		c->buf = guard("the buffer of a primitive", t->count * size, 8);
		c->out =
			guard("the output of a primitive", is(t, GRADCOMP_CAN_ALLTOALL) ? (uint64_t)t->P * size : 0, 8);
		c->residual = guard("the residual", t->count * sizeof(float), 8);
		c->memory = guard("the server's error", 0, 8);
		for (uint64_t i = 0; i < t->count; i++)
			put(t, c->buf.data, i, value(r, i));
		for (int q = 0; q < t->P; q++) {
			c->lengths[q] = block(t, q) * (is(t, GRADCOMP_CAN_ALLGATHER) ? size : 1);
			if (is(t, GRADCOMP_CAN_ALLTOALL))
				c->lengths[q] = (uint64_t)q < t->count ? size : 0;
			c->out_lengths[q] = (uint64_t)r < t->count ? size : 0;
		}
	}
}

static void end(trial *t)
{
	for (int r = 0; r < t->P; r++) {
		rank_call *c = &t->calls[r];

		if (!guard_intact(&c->buf) || !guard_intact(&c->out) || !guard_intact(&c->residual) ||
		    !guard_intact(&c->memory))
			broken(t, RULE_BOUNDS, "rank %d: bytes beside a buffer were written", r);
		guard_free(&c->buf);
		guard_free(&c->out);
		guard_free(&c->residual);
		guard_free(&c->memory);
	}
}

/* Returns what number i of rank r's buffer is to be; NAN: it may be anything. */
static double expected(const trial *t, int r, uint64_t i)
{
	switch (1u << t->bit) {
	case GRADCOMP_CAN_REDUCE_SCATTER:
		return block_owner(t, i) == r ? reduced(t, i) : NAN;
	case GRADCOMP_CAN_ALLGATHER:
		return value(block_owner(t, i), i);
	case GRADCOMP_CAN_BROADCAST:
		return value(t->root, i);
	case GRADCOMP_CAN_ALLTOALL:
	case GRADCOMP_CAN_BARRIER:
		return value(r, i);
	default:
		return reduced(t, i);
	}
}

static void compare(trial *t)
{
	for (int r = 0; r < t->P; r++) {
		const rank_call *c = &t->calls[r];

		for (uint64_t i = 0; i < t->count; i++) {
			double want = expected(t, r, i), got = get(t, c->buf.data, i);

			if (!isnan(want) && got != want) {
				broken(t, RULE_PRIMITIVES, "rank %d has %.9g at number %llu, %.9g is right", r, got,
				       (unsigned long long)i, want);
				return;
			}
		}
		for (int q = 0; is(t, GRADCOMP_CAN_ALLTOALL) && (uint64_t)r < t->count && q < t->P; q++)
			if (get(t, c->out.data, (uint64_t)q) != value(q, (uint64_t)r)) {
				broken(t, RULE_PRIMITIVES, "rank %d has not what rank %d has sent it", r, q);
				return;
			}
	}
}

/* Fills in numbers that a code does not keep: random ones. */
static void fill_random(trial *t)
{
	for (int r = 0; r < t->P; r++)
		for (uint64_t i = 0; i < t->count; i++)
			put(t, t->calls[r].buf.data, i, (double)random_check_normal());
}

/* sum_w u_w = result / scale + sum_w residual_w, of a number; and so of all numbers together. */
static double gone_in(const trial *t, float *const *before, uint64_t i, int owner)
{
	double all = 0;
	for (int r = 0; r < t->P; r++)
		if (owner < 0 || r == owner)
			/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): it has memory for each of P ranks */
			all += (double)before[r][i];
	return all;
}

static double accounted(const trial *t, uint64_t i, int owner)
{
	uint64_t begins = owner < 0 ? 0 : block_begin(t, owner);
	double all = get(t, t->calls[owner < 0 ? 0 : owner].buf.data, i) / t->scale;
	for (int r = 0; r < t->P; r++) {
		const float *residual = (const float *)(void *)t->calls[r].residual.data;

		if (!is(t, GRADCOMP_CAN_CODED_ALLGATHER))
			all += (double)residual[i];
		else if (r == owner)
			all += (double)residual[i - begins];
	}
	return all;
}

/* Whose block number i is, of a primitive with blocks; -1: all ranks have a result there. */
static int owner_of(const trial *t, uint64_t i)
{
	return is(t, CODED_BLOCKS) ? block_owner(t, i) : -1;
}

static bool conserved(trial *t, float *const *before)
{
	for (uint64_t i = 0; i < t->count; i++) {
		int owner = owner_of(t, i);
		int from = is(t, GRADCOMP_CAN_CODED_ALLGATHER) ? owner : -1;
		double in = gone_in(t, before, i, from), out = accounted(t, i, owner);

		if (!(fabs(in - out) <= 1e-4 * t->P)) {
			broken(t, RULE_CONSERVATION, "number %llu: %.9g went in, result and residuals make %.9g",
			       (unsigned long long)i, in, out);
			return false;
		}
	}
	return true;
}

static double in_memory(const trial *t)
{
	double all = 0;
	for (int r = 0; r < t->P; r++)
		for (uint64_t i = 0; i < t->calls[r].memory.bytes / sizeof(float); i++)
			all += (double)((const float *)(void *)t->calls[r].memory.data)[i];
	return all;
}

/* The server's memory is of another number of floats than the result: all of it together. */
static bool conserved_together(trial *t, float *const *before, double remembered)
{
	double in = remembered, out = 0, room = 1e-6;
	for (uint64_t i = 0; i < t->count; i++) {
		in += gone_in(t, before, i, -1);
		out += accounted(t, i, -1);
		room += 1e-5 * t->P;
	}
	out += in_memory(t);
	if (fabs(in - out) <= room)
		return true;
	broken(t, RULE_CONSERVATION, "%.9g went in, result, residuals and the server's error make %.9g", in, out);
	return false;
}

static bool alike(trial *t)
{
	for (int r = 1; r < t->P && !is(t, GRADCOMP_CAN_CODED_REDUCE_SCATTER); r++)
		if (memcmp(t->calls[r].buf.data, t->calls[0].buf.data, t->calls[0].buf.bytes) != 0) {
			broken(t, RULE_AGREEMENT, "ranks 0 and %d end with different bits", r);
			return false;
		}
	return true;
}

static bool own_counters(trial *t)
{
	for (int r = 0; r < t->P; r++) {
		const coder *c = &t->calls[r].coder;

		for (int i = 0; i < c->runs && i < RUNS_MAX; i++)
			for (int j = 0; j <= i; j++)
				if (c->counters[i] < 1000 || c->counters[i] >= 1000 + (1u << 24) ||
				    (j < i && c->counters[i] == c->counters[j])) {
					broken(t, RULE_PRIMITIVES, "rank %d codes a run under counter %llu, %s", r,
					       (unsigned long long)c->counters[i],
					       j < i ? "as another one before" : "which is not from the counter on");
					return false;
				}
	}
	return true;
}

/* On random numbers: nothing is lost, all ranks have the same bits. */
static void coded(trial *t)
{
	float *before[LINKS_RANKS_MAX] = {NULL};
	const int P = t->P;
	bool exchange = is(t, GRADCOMP_CAN_EXCHANGE);
	double remembered = 0;
	begin(t);
	for (int r = 0; r < P; r++)
		before[r] = malloc(t->count * sizeof(float) + 1);
	for (int r = 0; exchange && t->c->server_error && r < P; r++) {
		guard_free(&t->calls[r].memory);
		t->calls[r].memory =
			guard("the server's error", t->c->server_error(t->instance[r], t->count) * sizeof(float), 8);
		memset(t->calls[r].memory.data, 0, t->calls[r].memory.bytes);
	}
	for (int step = 0; step < (exchange ? 3 : 1); step++) {
		fill_random(t);
		for (int r = 0; r < P; r++) {
			memcpy(before[r], t->calls[r].buf.data, t->count * sizeof(float));
			t->calls[r].coder.runs = 0;
		}
		if (!call_all(t) || !alike(t) || !own_counters(t) ||
		    !(exchange ? conserved_together(t, before, remembered) : conserved(t, before)))
			break;
		remembered = in_memory(t);
	}
	for (int r = 0; r < P; r++)
		free(before[r]);
	end(t);
}

/* Checks the same for a compressor without error memory. */
static void coded_without(trial *t)
{
	t->forgets = true;
	begin(t);
	fill_random(t);
	if (call_all(t))
		alike(t);
	end(t);
	t->forgets = false;
}

/* Zeroes of both signs: of the larger or smaller of them all ranks have the same. */
static void signed_zeroes(trial *t)
{
	bool fine;
	begin(t);
	for (int r = 0; r < t->P; r++)
		for (uint64_t i = 0; i < t->count; i++)
			put(t, t->calls[r].buf.data, i, (i + (uint64_t)r) % 2 ? -0.0 : 0.0);
	fine = call_all(t);
	for (int r = 1; fine && r < t->P; r++)
		if (memcmp(t->calls[r].buf.data, t->calls[0].buf.data, t->calls[0].buf.bytes) != 0) {
			broken(t, RULE_AGREEMENT,
			       "of 0 and -0 ranks 0 and %d have different ones: in reduce() let acc be the lower rank's",
			       r);
			fine = false;
		}
	end(t);
}

/* Works on random floats, twice: the same bits on all ranks, and again. */
static void repeated(trial *t)
{
	char *first = malloc(t->count * sizeof(float) + 1);
	uint64_t seed = random_check();
	for (int n = 0; n < 2; n++) {
		begin(t);
		random_check_seed(seed);
		fill_random(t);
		if (call_all(t) && alike(t) && n && memcmp(first, t->calls[0].buf.data, t->count * sizeof(float)) != 0)
			broken(t, RULE_AGREEMENT, "the same call gives other bits the next time");
		memcpy(first, t->calls[0].buf.data, t->count * sizeof(float));
		end(t);
	}
	free(first);
}

static void exact(trial *t)
{
	begin(t);
	if (call_all(t))
		compare(t);
	end(t);
}

static bool is_float(gradcomp_dtype d)
{
	return d <= GRADCOMP_F64;
}

static void every_type(trial *t)
{
	bool all = t->c->traits & GRADCOMP_TRAIT_ALL_TYPES;
	for (int d = GRADCOMP_F32; d <= (all ? GRADCOMP_I16 : GRADCOMP_U8); d++)
		for (int op = GRADCOMP_SUM; op <= (all ? GRADCOMP_BXOR : GRADCOMP_BOR); op++) {
			bool bits = op == GRADCOMP_BOR || op == GRADCOMP_BAND || op == GRADCOMP_BXOR;
			if (d == GRADCOMP_F8E4M3 || d == GRADCOMP_F8E5M2)
				continue;
			t->dtype = (gradcomp_dtype)d;
			t->op = (gradcomp_op)op;
			t->scale = is_float(t->dtype) && t->op == GRADCOMP_SUM ? 0.5 : 1.0;
			if (!bits || !is_float(t->dtype))
				exact(t);
			if (is_float(t->dtype) && (t->op == GRADCOMP_MAX || t->op == GRADCOMP_MIN) &&
			    is(t, GRADCOMP_CAN_ALLREDUCE))
				signed_zeroes(t);
		}
	t->dtype = GRADCOMP_F32;
	t->op = GRADCOMP_SUM;
	t->scale = 1.0;
}

static void primitive(trial *t)
{
	static const uint64_t counts[] = {0, 1, 7, 1027, LARGE};
	for (size_t i = 0; i < sizeof counts / sizeof *counts && t->failures < 3; i++) {
		t->count = counts[i];
		t->scale = is(t, GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_EXCHANGE) ? 0.25 : 1.0;
		if (t->count == LARGE && t->P != 3)
			continue;
		if (is(t, CODED)) {
			coded(t);
			coded_without(t);
		}
		for (t->root = 0; !is(t, CODED) && t->root < (is(t, GRADCOMP_CAN_BROADCAST) ? t->P : 1); t->root++)
			exact(t);
		t->root = 0;
		if (is(t, GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_MERGE))
			repeated(t);
		if (t->count == 1027 && t->P <= 4 && is(t, GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER))
			every_type(t);
	}
}

/* P ranks with instances; false: there can be none, and why has been said. */
static bool open_trial(trial *t, kit *k, int P, int per_node)
{
	gradcomp_error err = {.status = GRADCOMP_OK};
	gradcomp_status st = GRADCOMP_OK;
	*t = (trial){.k = k, .c = k->collective, .P = P, .scale = 1.0};
	t->calls = calloc((size_t)P, sizeof *t->calls);
	host_services(&t->host, gradcomp_host_operators());
	fabric_open(&t->f, P, per_node);
	for (int r = 0; t->calls && !st && r < P; r++) {
		host_values lent;
		const gradcomp_value *values = host_lend(&lent, &t->c->info, k->values);
		call_begin(CALL_CREATE, r, P, 0);
		st = t->c->create(&t->host, values, &t->f.ends[r].api, &t->instance[r], &err);
		call_end();
		host_take_back(&lent);
	}
	if (st == GRADCOMP_ERR_UNSUPPORTED && err.text[0])
		kit_skip(k, RULE_PRIMITIVES, "create() refuses: %s", err.text);
	else if (st)
		kit_fail(k, RULE_PRIMITIVES, "create() fails for %d ranks: %s", P,
		         err.text[0] ? err.text : "(without a word)");
	return !st && t->calls;
}

static void close_trial(trial *t)
{
	for (int r = 0; r < t->P; r++) {
		call_begin(CALL_DESTROY, r, t->P, 0);
		t->c->destroy(t->instance[r]);
		call_end();
	}
	fabric_close(&t->f);
	free(t->calls);
}

/* A transfer fails on rank 1: it must say so, and the others must not wait. */
static void failing(kit *k, int bit, int nth)
{
	trial t;
	if (open_trial(&t, k, 3, 2)) {
		t.bit = bit;
		t.count = 100;
		begin(&t);
		t.f.ends[1].fail_at = nth;
		run_all(&t);
		for (int r = 0; r < t.P; r++)
			if (t.f.ends[r].met_failure && !t.calls[r].st) {
				broken(&t, RULE_LINKS,
				       "transfer %d of rank 1 fails, and rank %d, which was told so, returns 0", nth,
				       r);
				break;
			}
		end(&t);
	}
	close_trial(&t);
}

void collective_primitives_group(kit *k)
{
	const kit_options *o = k->options;
	uint32_t serves = k->collective->serves;
	int served = __builtin_popcount(serves & ((1u << PRIMITIVES) - 1));
	trial t;
	for (int P = o->ranks_min; P <= o->ranks_max; P++)
		for (int layout = 0; layout < (P < 3 ? P : 3); layout++) {
			int per_node = layout == 2 ? P : layout + 1;

			if (!open_trial(&t, k, P, per_node)) {
				close_trial(&t);
				kit_skip(k, RULE_LINKS, "no instances");
				kit_skip(k, RULE_AGREEMENT, "no instances");
				kit_skip(k, RULE_CONSERVATION, "no instances");
				kit_skip(k, RULE_BOUNDS, "no instances");
				return;
			}
			for (t.bit = 0; t.bit < PRIMITIVES; t.bit++)
				if (serves >> t.bit & 1 && !t.f.failure.status)
					primitive(&t);
			close_trial(&t);
		}
	for (int bit = 0; bit < PRIMITIVES && o->ranks_max >= 3; bit++)
		for (int nth = 1; serves >> bit & 1 && nth <= 3; nth++)
			failing(k, bit, nth);
	kit_ok(k, RULE_PRIMITIVES, "%d of them on %d to %d ranks, all types and operations, blocks of no numbers",
	       served, o->ranks_min, o->ranks_max);
	kit_ok(k, RULE_LINKS, "nothing is left unwaited for, no rank misses a failure");
	kit_ok(k, RULE_AGREEMENT, "equal bits on all ranks, and again");
	kit_ok(k, RULE_BOUNDS, "walls behind all buffers: untouched");
	if (serves & CODED)
		kit_ok(k, RULE_CONSERVATION, "what codes lose is in the residuals");
	else
		kit_skip(k, RULE_CONSERVATION, "of codes");
}

void collective_memory_group(kit *k)
{
	int before = host_allocated, plain = hooks_outstanding(), failed = 0;
	gradcomp_error err = {.status = GRADCOMP_OK};
	gradcomp_status st = GRADCOMP_ERR_NOMEM;
	trial t;
	for (int n = 0; n < 200 && st; n++) {
		void *instance = NULL;

		t = (trial){.k = k, .c = k->collective};
		host_services(&t.host, gradcomp_host_operators());
		fabric_open(&t.f, 4, 2);
		host_fail_at = n;
		call_begin(CALL_CREATE, 0, 4, 0);
		st = t.c->create(&t.host, k->values, &t.f.ends[0].api, &instance, &err);
		call_end();
		host_fail_at = -1;
		failed += st != 0;
		if (st && instance)
			kit_fail(k, RULE_MEMORY, "create() fails and leaves something in *instance");
		t.c->destroy(instance);
		fabric_close(&t.f);
		if (st == GRADCOMP_ERR_UNSUPPORTED) {
			kit_skip(k, RULE_MEMORY, "no instances");
			return;
		}
	}
	if (host_allocated != before || hooks_outstanding() != plain)
		kit_fail(k, RULE_MEMORY, "%d blocks of host->alloc and %d of malloc are left", host_allocated - before,
		         hooks_outstanding() - plain);
	kit_ok(k, RULE_MEMORY, "each of %d allocations may fail; nothing is left behind", failed);
}
