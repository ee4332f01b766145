/* One call of a coder, on its thread.
 *
 * It begins with an all-reduce of three words: whether this rank's numbers are not finite, and what
 * call this rank means, twice, so that the largest and the smallest come out. Numbers are looked at
 * and widened a tile at a time, while the tile is in the cache. */
#include "coder/coder_gpu.h"

#include "base/error.h"
#include "plugin/code_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE 16384u
/* No call takes more runs. */
#define RUN_BITS 24
#define TELL_MOST 5

const char *coder_dtype_name(gradcomp_dtype dtype)
{
	static const char *const names[] = {
		[GRADCOMP_F32] = "float32", [GRADCOMP_F16] = "float16",        [GRADCOMP_BF16] = "bfloat16",
		[GRADCOMP_F64] = "float64", [GRADCOMP_I32] = "int32",          [GRADCOMP_I64] = "int64",
		[GRADCOMP_U8] = "uint8",    [GRADCOMP_F8E4M3] = "float8_e4m3", [GRADCOMP_F8E5M2] = "float8_e5m2"};
	return (unsigned)dtype < sizeof names / sizeof names[0] ? names[dtype] : "unknown";
}

static void *at(const void *buf, uint64_t i, gradcomp_dtype dtype)
{
	return (char *)buf + i * gradcomp_dtype_bytes(dtype);
}

/* x = in + e (NULL: none). Returns whether a number of `in` is not finite. x may be `in`. */
static bool widen(const gradcomp_operators *ops, float *x, const void *in, gradcomp_dtype dtype, const float *e,
                  uint64_t n)
{
	bool bad = false;
	for (uint64_t i = 0; i < n; i += TILE) {
		uint64_t count = n - i < TILE ? n - i : TILE;
		int tile_bad = 0;
		if (in != (const void *)x)
			ops->cast_to_f32(NULL, x + i, at(in, i, dtype), count, dtype);
		ops->nonfinite(NULL, x + i, count, &tile_bad);
		bad |= tile_bad != 0;
		if (e)
			ops->add(NULL, x + i, e + i, count);
	}
	return bad;
}

/* out = x * scale, rounded once, held within the type; `tile` has room for TILE. */
static void narrow_scaled(const gradcomp_operators *ops, void *out, gradcomp_dtype dtype, double scale, uint64_t n,
                          float *tile)
{
	for (uint64_t i = 0; i < n; i += TILE) {
		uint64_t count = n - i < TILE ? n - i : TILE;
		ops->cast_to_f32(NULL, tile, at(out, i, dtype), count, dtype);
		ops->scale_as(NULL, tile, scale, count, GRADCOMP_F32);
		ops->cast_from_f32(NULL, at(out, i, dtype), tile, count, dtype, 0);
	}
}

static void fill_nan(const gradcomp_operators *ops, void *out, gradcomp_dtype dtype, uint64_t n)
{
	const float nan = NAN;
	uint16_t half, *h = out;
	if (dtype == GRADCOMP_F32) {
		ops->fill(NULL, out, nan, n);
		return;
	}
	ops->cast_from_f32(NULL, &half, &nan, 1, dtype, 0);
	for (uint64_t i = 0; i < n; i++)
		h[i] = half;
}

static gradcomp_status reserve(gradcomp_coder *c, uint64_t n, gradcomp_error *err)
{
	if (n <= c->room)
		return GRADCOMP_OK;
	free(c->work);
	c->room = 0;
	c->work = malloc(n * sizeof *c->work);
	if (!c->work)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a workspace of %llu bytes",
		                 (unsigned long long)(n * sizeof *c->work));
	c->room = n;
	return GRADCOMP_OK;
}

/* A compressor may size what it works with by the model that it is made for. */
static gradcomp_status fit_instance(gradcomp_coder *c, uint64_t n, gradcomp_error *err)
{
	if (c->parts.dense || n <= c->layout.numel)
		return GRADCOMP_OK;
	c->parts.compressor->destroy(c->instance);
	c->instance = NULL;
	c->shard.numel = c->layout.numel = n;
	return coder_instance(&c->parts, &c->job->host, &c->layout, &c->instance, err);
}

/* The functions below carry what ranks tell each other. */

/* A call as text, and as a number that differs when anything does. */
typedef struct claim {
	uint64_t hash;
	char text[248];
} claim;

static void describe(const gradcomp_coder *c, const gradcomp_coder_request *q, claim *out)
{
	uint64_t scale;
	memset(out, 0, sizeof *out);
	memcpy(&scale, &q->scale, sizeof scale);
	uint64_t h = id_mix(id_mix((uint64_t)q->kind, (uint64_t)q->dtype), id_mix(scale, q->slot_number));
	int n = snprintf(out->text, sizeof out->text, "%s of %llu %s", coder_kind_name(q->kind),
	                 (unsigned long long)q->total, coder_dtype_name(q->dtype));
	if (q->kind == CODER_REDUCE_SCATTER)
		n += snprintf(out->text + n, sizeof out->text - (size_t)n, " times %.9g", q->scale);
	if (q->slot_number != GRADCOMP_CODER_NO_SLOT)
		n += snprintf(out->text + n, sizeof out->text - (size_t)n, ", slot %u", q->slot_number);
	for (int r = 0; r < c->layout.nranks; r++) {
		h = id_mix(h, q->counts[r]);
		if (n < (int)sizeof out->text)
			n += snprintf(out->text + n, sizeof out->text - (size_t)n, "%s%llu", r ? "," : ", blocks of ",
			              (unsigned long long)q->counts[r]);
	}
	out->hash = h;
}

/* Gathers block[r] of every rank's, `bytes` each; freed by the caller. */
static gradcomp_status share(gradcomp_coder *c, const void *mine, size_t bytes, void **all, gradcomp_error *err)
{
	size_t P = (size_t)c->layout.nranks;
	uint64_t *lengths = malloc(P * sizeof *lengths);
	char *buf = malloc(P * bytes);
	*all = NULL;
	gradcomp_status st = lengths && buf
	                             ? GRADCOMP_OK
	                             : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %zu ranks tell", P);
	for (size_t r = 0; !st && r < P; r++)
		lengths[r] = bytes;
	if (!st) {
		memcpy(buf + (size_t)c->layout.rank * bytes, mine, bytes);
		st = c->parts.collective->allgather(c->coll_ctx.instance, buf, lengths, err);
	}
	free(lengths);
	if (st)
		free(buf);
	else
		*all = buf;
	return st;
}

/* Ranks mean different calls: names the first one that is not like the group's first. */
static gradcomp_status differing(gradcomp_coder *c, const claim *mine, gradcomp_error *err)
{
	void *blocks;
	gradcomp_status st = share(c, mine, sizeof *mine, &blocks, err);
	claim *all = blocks;
	int r = 0;
	if (st)
		return st;
	for (int i = 0; i < c->layout.nranks; i++)
		all[i].text[sizeof all[i].text - 1] = 0;
	while (r < c->layout.nranks - 1 && all[r].hash == all[0].hash)
		r++;
	st = error_set(err, GRADCOMP_ERR_MISMATCH, "coder '%s': rank %d on %s calls %.160s; rank %d calls %.160s%s",
	               c->name, c->group->ranks[r], transport_host(c->job->transport, c->group->ranks[r]), all[r].text,
	               c->group->ranks[0], all[0].text,
	               strcmp(all[r].text, all[0].text) ? "" : " (the counts of later blocks differ)");
	free(blocks);
	return st;
}

static gradcomp_status agree(gradcomp_coder *c, const gradcomp_coder_request *q, bool *bad, gradcomp_error *err)
{
	claim mine;
	describe(c, q, &mine);
	int64_t key = (int64_t)(mine.hash >> 2), words[3] = {*bad, key, -key};
	gradcomp_status st =
		c->parts.collective->allreduce(c->coll_ctx.instance, words, 3, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	if (st)
		return st;
	if (words[1] != -words[2])
		return differing(c, &mine, err);
	*bad = words[0] != 0;
	return GRADCOMP_OK;
}

/* Whose numbers are not finite: (*flags)[r], freed by the caller. */
static gradcomp_status whose(gradcomp_coder *c, const gradcomp_coder_request *q, bool mine, uint64_t **flags,
                             gradcomp_error *err)
{
	const uint64_t own = mine;
	void *all = NULL;
	gradcomp_status st = share(c, &own, sizeof own, &all, err);
	*flags = all;
	for (int r = 0; !st && r < c->layout.nranks && c->told < TELL_MOST; r++) {
		if (!(*flags)[r])
			continue;
		c->told++;
		log_line(&c->job->log, GRADCOMP_LOG_INFO,
		         "coder '%s': rank %d on %s has a NaN or Inf in what it gave to a %s; %s NaN on all "
		         "ranks%s",
		         c->name, c->group->ranks[r], transport_host(c->job->transport, c->group->ranks[r]),
		         coder_kind_name(q->kind), q->kind == CODER_ALL_GATHER ? "its block is" : "the result is",
		         c->told == TELL_MOST ? " (not told again)" : "");
	}
	return st;
}

typedef struct stopwatch {
	double last;
} stopwatch;

static void lap(stopwatch *s, double *sum)
{
	double now = clock_now();
	*sum += now - s->last;
	s->last = now;
}

/* Clears the residual where a sum was not finite: what is lost by it is not kept. */
static void clear_damaged(gradcomp_coder *c, const gradcomp_coder_request *q)
{
	const gradcomp_operators *ops = c->job->host.operators;
	int bad = 0;
	ops->nonfinite(NULL, q->slot->e, q->total, &bad);
	if (bad)
		ops->fill(NULL, q->slot->e, 0, q->total);
}

static gradcomp_status scatter_coded(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call,
                                     gradcomp_coder_stats *took, gradcomp_error *err)
{
	const gradcomp_operators *ops = c->job->host.operators;
	code_source source = {c->parts.compressor, c->instance};
	const gradcomp_codec codec = code_view(&source);
	float *x = q->dtype == GRADCOMP_F32 ? q->in : c->work, *e = q->slot ? q->slot->e : NULL;
	uint64_t own = q->counts[c->layout.rank], *flags;
	stopwatch watch = {clock_now()};
	bool mine = widen(ops, x, q->in, q->dtype, e, q->total) && !c->passes, bad = mine;
	lap(&watch, &took->convert_s);
	gradcomp_status st = agree(c, q, &bad, err);
	if (!st && bad) {
		took->nonfinite = 1;
		st = whose(c, q, mine, &flags, err);
		free(flags);
		fill_nan(ops, q->out, q->dtype, own);
		return st;
	}
	if (!st)
		st = c->parts.collective->coded_reduce_scatter(c->coll_ctx.instance, x, q->counts, q->scale, &codec,
		                                               call << RUN_BITS, e, err);
	lap(&watch, &took->exchange_s);
	if (st)
		return st;
	if (e)
		clear_damaged(c, q);
	if (own && q->out != (void *)(x + q->begin))
		ops->cast_from_f32(NULL, q->out, x + q->begin, own, q->dtype, 0);
	lap(&watch, &took->convert_s);
	return GRADCOMP_OK;
}

/* A sum of 16-bit numbers could overflow where what comes out after `scale` does not. */
static gradcomp_status scatter_dense(gradcomp_coder *c, const gradcomp_coder_request *q, gradcomp_coder_stats *took,
                                     gradcomp_error *err)
{
	bool bad = false, first = q->dtype != GRADCOMP_F32 && fabs(q->scale) < 1;
	uint64_t own = q->counts[c->layout.rank];
	void *mine = at(q->in, q->begin, q->dtype);
	stopwatch watch = {clock_now()};
	gradcomp_status st = agree(c, q, &bad, err);
	lap(&watch, &took->exchange_s);
	if (!st && first)
		narrow_scaled(c->job->host.operators, q->in, q->dtype, q->scale, q->total, c->work);
	lap(&watch, &took->convert_s);
	if (!st)
		st = c->parts.collective->reduce_scatter(c->coll_ctx.instance, q->in, q->counts, q->dtype, GRADCOMP_SUM,
		                                         first ? 1 : q->scale, err);
	if (!st && own && q->out != mine)
		memmove(q->out, mine, own * gradcomp_dtype_bytes(q->dtype));
	lap(&watch, &took->exchange_s);
	return st;
}

/* Blocks of ranks that have a NaN or Inf, now that the others have gone round. */
static void spoil(const gradcomp_coder *c, const gradcomp_coder_request *q, const uint64_t *flags)
{
	uint64_t begin = 0;
	for (int r = 0; r < c->layout.nranks; begin += q->counts[r++])
		if (flags[r])
			fill_nan(c->job->host.operators, at(q->out, begin, q->dtype), q->dtype, q->counts[r]);
}

static gradcomp_status gather_coded(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call,
                                    gradcomp_coder_stats *took, gradcomp_error *err)
{
	const gradcomp_operators *ops = c->job->host.operators;
	code_source source = {c->parts.compressor, c->instance};
	const gradcomp_codec codec = code_view(&source);
	float *x = q->dtype == GRADCOMP_F32 ? q->out : c->work;
	uint64_t own = q->counts[c->layout.rank], *flags = NULL;
	stopwatch watch = {clock_now()};
	bool mine = widen(ops, x + q->begin, q->in, q->dtype, NULL, own) && !c->passes, bad = mine;
	if (mine)
		ops->fill(NULL, x + q->begin, 0, own);
	lap(&watch, &took->convert_s);
	gradcomp_status st = agree(c, q, &bad, err);
	if (!st && bad) {
		took->nonfinite = 1;
		st = whose(c, q, mine, &flags, err);
	}
	if (!st)
		st = c->parts.collective->coded_allgather(c->coll_ctx.instance, x, q->counts, &codec, call << RUN_BITS,
		                                          NULL, err);
	lap(&watch, &took->exchange_s);
	if (!st && q->dtype != GRADCOMP_F32)
		ops->cast_from_f32(NULL, q->out, x, q->total, q->dtype, 0);
	if (!st && flags)
		spoil(c, q, flags);
	lap(&watch, &took->convert_s);
	free(flags);
	return st;
}

static gradcomp_status gather_dense(gradcomp_coder *c, const gradcomp_coder_request *q, gradcomp_coder_stats *took,
                                    gradcomp_error *err)
{
	size_t size = gradcomp_dtype_bytes(q->dtype), P = (size_t)c->layout.nranks;
	uint64_t own = q->counts[c->layout.rank], *bytes = malloc(P * sizeof *bytes);
	void *mine = at(q->out, q->begin, q->dtype);
	bool bad = false;
	stopwatch watch = {clock_now()};
	gradcomp_status st =
		bytes ? agree(c, q, &bad, err) : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu counts", P);
	for (size_t r = 0; !st && r < P; r++)
		bytes[r] = q->counts[r] * size;
	if (!st && own && mine != q->in)
		memmove(mine, q->in, own * size);
	if (!st)
		st = c->parts.collective->allgather(c->coll_ctx.instance, q->out, bytes, err);
	lap(&watch, &took->exchange_s);
	free(bytes);
	return st;
}

gradcomp_status coder_call(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call,
                           gradcomp_coder_stats *took, gradcomp_error *err)
{
	bool scatters = q->kind == CODER_REDUCE_SCATTER, dense = c->parts.dense;
	uint64_t own = q->counts[c->layout.rank];
	bool bad = false;
	gradcomp_status st = c->gpu ? agree(c, q, &bad, err) : fit_instance(c, q->total, err);
	if (!st && !c->gpu && q->dtype != GRADCOMP_F32)
		st = reserve(c, dense ? TILE : q->total, err);
	if (st)
		return st;
	st = c->gpu     ? coder_gpu_call(c, q, call, err)
	     : scatters ? dense ? scatter_dense(c, q, took, err) : scatter_coded(c, q, call, took, err)
	     : dense ? gather_dense(c, q, took, err)
	                : gather_coded(c, q, call, took, err);
	if (st)
		return st;
	took->reduce_scatters = scatters;
	took->all_gathers = !scatters;
	took->dense_bytes = (double)gradcomp_dtype_bytes(q->dtype) *
	                    (scatters ? (double)(q->total - own) : (double)own * (c->layout.nranks - 1));
	return GRADCOMP_OK;
}
