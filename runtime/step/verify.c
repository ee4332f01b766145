#include "step/verify.h"

#include "step/server_error.h"

#include "base/error.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
	INPUT_BAD = 1,  /* gradients of the tensor's bucket are not finite, or not with error memory */
	OUTPUT_BAD = 2, /* the average is not */
	MEMORY_BAD = 4, /* the compressor's own memory is not */
	COARSE = 8,     /* its bucket was summed in half precision, */
	COARSER = 16    /* or in bfloat16 */
};

/* Sums up a tensor in a step: this rank's, then that of all ranks. It is sent in this form. */
typedef struct verify_row {
	uint64_t least, most; /* hash of the result */
	double lost;          /* sum of +-(u - e' - a) */
	double size;          /* sum over ranks of the largest |u| or |e'| */
	double bucket;        /* ... and of the largest |u| of its bucket */
	uint64_t flags;
} verify_row;

/* A float that went through a compressor and a sum may differ by so much of the largest there is. */
#define VERIFY_RELATIVE 1e-6

/* A rank's row of one tensor, for a message. */
typedef struct verify_rank {
	uint64_t hash, flags;
} verify_rank;

struct verify {
	channel *channel;              /* NULL: one rank */
	verify_row *rows, *own, *room; /* by tensor of the layout; all ranks' when they have been shared */
	verify_rank *ranks;
	bool mass;
	/* Copies of what is on a device come here, one array at a time: the compute thread's. */
	const device_calls *d;
	void *copy, *came;
	size_t copy_bytes;
};

gradcomp_status verify_open(engine *eng, gradcomp_error *err)
{
	verify *v;
	if (!config_int(eng->job->config, SET_GRADCOMP_VERIFY))
		return GRADCOMP_OK;
	v = eng->checks.verify = calloc(1, sizeof *v);
	if (v) {
		v->rows = calloc((size_t)eng->layout.ntensors + 1, sizeof *v->rows);
		v->own = calloc((size_t)eng->layout.ntensors + 1, sizeof *v->own);
		v->room = calloc((size_t)eng->layout.ntensors + 1, sizeof *v->room);
		v->ranks = calloc((size_t)eng->layout.nranks * 2, sizeof *v->ranks);
	}
	if (!v || !v->rows || !v->own || !v->room || !v->ranks)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for gradcomp.verify of %u tensors",
		                 eng->layout.ntensors);
	v->mass = gradcomp_keeps_error(eng->compressor, eng->values) &&
	          !(eng->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM);
	return eng->layout.nranks > 1 ? group_channel(eng->group, &v->channel, err) : GRADCOMP_OK;
}

void verify_close(verify *v)
{
	if (!v)
		return;
	if (v->channel)
		channel_close(v->channel);
	if (v->d) {
		v->d->unpin(v->copy);
		v->d->event_free(v->came);
	}
	free(v->rows);
	free(v->own);
	free(v->room);
	free(v->ranks);
	free(v);
}

static verify_row *row_of(const engine *eng, uint32_t tensor)
{
	return &eng->checks.verify->rows[eng->checks.row ? eng->checks.row[tensor] : tensor];
}

/* The functions below look at what this rank's compute thread sees. */

/* Where the compressor works on a device this waits for it: what is looked at must have come. NULL: nothing to see,
 * since the device has failed. */
static const void *look_at(const engine *eng, const void *p, size_t bytes)
{
	const device_arena *a = eng->arrays.arena;
	verify *v = eng->checks.verify;
	const char *why = NULL;
	if (!a)
		return p;
	const device_calls *d = v->d = a->memory.d;
	if (!v->came)
		why = d->event(&v->came);
	if (!why && bytes > v->copy_bytes) {
		d->unpin(v->copy);
		v->copy = NULL;
		v->copy_bytes = 0;
		why = d->pin(&v->copy, bytes);
		v->copy_bytes = why ? 0 : bytes;
	}
	if (!why)
		why = d->copy(a->compute, v->copy, p, bytes);
	if (!why)
		why = d->record(v->came, a->compute);
	if (!why)
		why = d->wait(v->came);
	return why ? NULL : v->copy;
}

/* sum of s[i] x[i], where s[i] = +-1 is a function of the step and of i, of `at` for the first x. */
static double signed_sum(const float *x, uint64_t n, uint64_t at, uint64_t step)
{
	double sum[8] = {0};
	if (!x)
		return NAN;

	for (uint64_t i = 0; i < n;) {
		uint64_t bits = id_mix(step, (at + i) / 64) >> (at + i) % 64;
		uint64_t left = 64 - (at + i) % 64, len = left < n - i ? left : n - i;
		/* Several sums, so that one addition does not wait for the last. */
		for (uint64_t k = 0; k < len; k++)
			sum[k % 8] += (double)x[i + k] * (double)(1 - 2 * (int)(bits >> k & 1));
		i += len;
	}
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static float largest(const float *x, uint64_t n, bool *finite)
{
	float most = 0;
	bool good = x || !n;
	for (uint64_t i = 0; x && i < n; i++) {
		float a = fabsf(x[i]);
		good &= a <= FLT_MAX;
		most = a > most ? a : most;
	}
	*finite = good;
	return most;
}

/* The collective's own error memory, where it is of tensor t: it counts as error memory, in units of the sum. */
static double of_server(const engine *eng, const bucket *b, const gradcomp_tensor *t)
{
	uint64_t begin, end, from, to;
	if (!b->nserver_error)
		return 0;
	begin = server_error_offset(eng, b);
	end = begin + b->nserver_error;
	from = t->offset > begin ? t->offset : begin;
	to = t->offset + t->numel < end ? t->offset + t->numel : end;
	return from < to ? signed_sum(b->server_error + (from - begin), to - from, from, eng->step) : 0;
}

/* Returns true when it can be told what a bucket's error memory is about. */
static bool accounts(const engine *eng, const bucket *b)
{
	return eng->checks.verify->mass && b->work.error &&
	       (!b->nserver_error || eng->coll_ctx.collective->server_error_begin);
}

static uint64_t coarseness(const bucket *b)
{
	uint64_t flags = 0;
	for (uint32_t k = 0; k < b->plan.nrounds; k++) {
		if (b->plan.rounds[k].pattern != GRADCOMP_SUMMED)
			continue;
		flags |= b->plan.rounds[k].dtype == GRADCOMP_F16    ? COARSE
		         : b->plan.rounds[k].dtype == GRADCOMP_BF16 ? COARSER
		                                                    : 0;
	}
	return flags;
}

void verify_input(engine *eng, const bucket *b)
{
	bool whole = true, finite;
	float most = 0;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[b->pub.first + i];
		verify_row *row = row_of(eng, b->pub.first + i);

		const float *x = look_at(eng, b->x[i], t->numel * sizeof(float));
		float u = largest(x, t->numel, &finite);
		most = u > most ? u : most;
		row->size += u;
		row->flags |= coarseness(b);
		whole &= finite;
		if (accounts(eng, b))
			row->lost += signed_sum(x, t->numel, t->offset, eng->step) + of_server(eng, b, t);
	}
	/* One that is not spoils the bucket. */
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		verify_row *row = row_of(eng, b->pub.first + i);
		row->bucket += most;
		row->flags |= whole ? 0 : INPUT_BAD;
	}
}

void verify_output(engine *eng, const bucket *b)
{
	bool finite, kept;
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[b->pub.first + i];
		verify_row *row = row_of(eng, b->pub.first + i);

		const float *x = look_at(eng, b->x[i], t->numel * sizeof(float));
		largest(x, t->numel, &finite);
		row->flags |= finite ? 0 : OUTPUT_BAD;
		if (accounts(eng, b))
			row->lost -= signed_sum(x, t->numel, t->offset, eng->step);
		const float *held = bucket_held_back(eng, b, i);
		if (held) {
			float e = largest(look_at(eng, held, t->numel * sizeof(float)), t->numel, &kept);
			row->flags |= kept ? 0 : MEMORY_BAD;
			row->size += kept ? e : 0;
		}
		if (!accounts(eng, b))
			continue;
		row->lost -= signed_sum(look_at(eng, b->error[i], t->numel * sizeof(float)), t->numel, t->offset,
		                        eng->step) +
		             of_server(eng, b, t);
		/* Given up: there is no average. */
		if (b->bad)
			row->lost = NAN;
	}
}

void verify_result(engine *eng, const bucket *b)
{
	for (uint32_t i = b->pub.first; i < b->pub.first + b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[i];
		size_t bytes = t->numel * gradcomp_dtype_bytes(t->dtype);
		const void *result = look_at(eng, eng->grads[i], bytes);

		eng->checks.verify->rows[i].least = eng->checks.verify->rows[i].most =
			result ? XXH3_64bits(result, bytes) : 0;
	}
}

/* The functions below carry what ranks tell each other. */

static void join_rows(void *to, const void *from, size_t n)
{
	verify_row *a = to;
	const verify_row *b = from;
	for (size_t i = 0; i < n; i++) {
		a[i].least = b[i].least < a[i].least ? b[i].least : a[i].least;
		a[i].most = b[i].most > a[i].most ? b[i].most : a[i].most;
		a[i].lost += b[i].lost;
		a[i].size += b[i].size;
		a[i].bucket += b[i].bucket;
		a[i].flags |= b[i].flags;
	}
}

/* Joins each rank's own, and zero for the others. */
static void join_ranks(void *to, const void *from, size_t n)
{
	verify_rank *a = to;
	const verify_rank *b = from;
	for (size_t i = 0; i < n; i++) {
		a[i].hash |= b[i].hash;
		a[i].flags |= b[i].flags;
	}
}

/* Shares on all ranks the n things of size `each` of all, joined: up a binomial tree to rank 0, and down. */
static gradcomp_status share(const verify *v, void *mine, void *room, size_t n, size_t each,
                             void (*join)(void *to, const void *from, size_t n), gradcomp_error *err)
{
	const gradcomp_links *l = v->channel ? channel_links(v->channel) : NULL;
	int64_t me = l ? l->rank : 0, P = l ? l->nranks : 1, k = 1;
	gradcomp_status st = GRADCOMP_OK;
	for (; !st && k < P && !(me & k); k *= 2) {
		if (me + k >= P)
			continue;
		st = channel_get(v->channel, (int)(me + k), room, n * each, err);
		if (!st)
			join(mine, room, n);
	}
	if (!st && me)
		st = channel_put(v->channel, (int)(me - k), mine, n * each, err);
	if (!st && me)
		st = channel_get(v->channel, (int)(me - k), mine, n * each, err);
	for (k /= 2; !st && k; k /= 2)
		if (me + k < P)
			st = channel_put(v->channel, (int)(me + k), mine, n * each, err);
	return st;
}

/* The functions below say what is wrong. */

typedef enum fault { FAULT_NONE, FAULT_DIFFERS, FAULT_NONFINITE, FAULT_LOST } fault;

/* Returns what rounding explains of a tensor's row->lost: of each number as much as gradcomp plugin-check allows,
 * of signs that are as good as random. */
static double rounding(const engine *eng, const gradcomp_tensor *t, const verify_row *row)
{
	double P = eng->layout.nranks;
	double relative = row->flags & COARSER ? 0x1p-7 : row->flags & COARSE ? 0x1p-10 : VERIFY_RELATIVE;
	double absolute = row->flags & COARSE ? 0x1p-23 : row->flags & COARSER ? 0x1p-132 : 1e-42;
	return sqrt((double)t->numel) * P * (relative * row->size + absolute * P);
}

static fault judge(const engine *eng, const gradcomp_tensor *t, const verify_row *row)
{
	/* Bits of a NaN are nobody's promise, and sums of gradients may be too large for a float; under a code,
	 * which may double a number, they spoil more of the bucket than their tensor. */
	if (row->flags & INPUT_BAD || row->size > FLT_MAX || (row->flags & OUTPUT_BAD && row->bucket > FLT_MAX / 2))
		return FAULT_NONE;
	if (row->flags & (OUTPUT_BAD | MEMORY_BAD))
		return FAULT_NONFINITE;
	if (row->least != row->most)
		return FAULT_DIFFERS;
	return isfinite(row->lost) && fabs(row->lost) > rounding(eng, t, row) ? FAULT_LOST : FAULT_NONE;
}

/* Writes "rank 2 on n3, rank 5 on n4 and 3 more" of those with in[p]. */
static void name_ranks(const engine *eng, const bool *in, char *out, size_t capacity)
{
	enum { SHOWN = 4 };
	int n = 0, more = 0;
	size_t at = 0;

	*out = 0;
	for (int p = 0; p < eng->layout.nranks; p++) {
		if (!in[p])
			continue;
		if (n++ >= SHOWN) {
			more++;
			continue;
		}
		int world = eng->group->ranks[p];
		int len = snprintf(out + at, capacity - at, "%srank %d on %s", n > 1 ? ", " : "", world,
		                   transport_host(eng->job->transport, world));
		at = len > 0 && (size_t)len < capacity - at ? at + (size_t)len : at;
	}
	if (more)
		snprintf(out + at, capacity - at, " and %d more", more);
}

/* Marks in in[] those that have another hash than most; returns whether most have one. */
static bool outvoted(const verify_rank *ranks, int P, bool *in)
{
	int best = 0, votes = 0;
	for (int p = 0; p < P; p++) {
		int same = 0;
		for (int k = 0; k < P; k++)
			same += ranks[k].hash == ranks[p].hash;
		if (same > votes) {
			votes = same;
			best = p;
		}
	}
	for (int p = 0; p < P; p++)
		in[p] = 2 * votes <= P || ranks[p].hash != ranks[best].hash;
	return 2 * votes > P;
}

static gradcomp_status describe(const engine *eng, fault f, const gradcomp_tensor *t, const verify_row *row,
                                const bool *in, bool most, uint32_t more, gradcomp_error *err)
{
	const char *compressor = eng->compressor_spec, *collective = eng->coll_ctx.collective->info.name;
	unsigned long long step = eng->step - 1;
	char ranks[300], others[60] = "";

	name_ranks(eng, in, ranks, sizeof ranks);
	if (more)
		snprintf(others, sizeof others, " (and of %u other tensors)", more);
	switch (f) {
	case FAULT_DIFFERS:
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"gradcomp.verify: step %llu: the averages of '%s'%s are not the same on all ranks; %s: %s (compressor '%s' over "
			"collective '%s')",
			step, t->name, others, most ? "apart from the majority" : "there is no majority", ranks,
			compressor, collective);
	case FAULT_NONFINITE:
		return error_set(
			err, GRADCOMP_ERR_INTERNAL,
			"gradcomp.verify: step %llu: compressor '%s' over collective '%s' has made NaN or Inf of finite gradients, in "
			"the %s of '%s'%s: %s",
			step, compressor, collective, row->flags & OUTPUT_BAD ? "average" : "error memory", t->name,
			others, ranks);
	default:
		return error_set(
			err, GRADCOMP_ERR_INTERNAL,
			"gradcomp.verify: step %llu: compressor '%s' over collective '%s' loses a part of the gradient of '%s'%s: the sum "
			"over ranks of gradient and old error memory is not that of the averages and new error memory (by %.3g along a "
			"vector of random signs; rounding makes %.3g)",
			step, compressor, collective, t->name, others, fabs(row->lost), rounding(eng, t, row));
	}
}

/* Tells which ranks it was, where that shows, and all of it in words. */
static gradcomp_status tell(engine *eng, fault f, uint32_t tensor, uint32_t more, gradcomp_error *err)
{
	verify *v = eng->checks.verify;
	int P = eng->layout.nranks;
	const gradcomp_tensor *t = &eng->layout.tensors[tensor];
	bool *in = calloc((size_t)P, sizeof *in), most = false;
	gradcomp_status st;
	if (!in)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a message about %d ranks", P);
	memset(v->ranks, 0, (size_t)P * sizeof *v->ranks);
	v->ranks[eng->layout.rank] = (verify_rank){v->own[tensor].most, v->own[tensor].flags};
	st = share(v, v->ranks, v->ranks + P, (size_t)P, sizeof *v->ranks, join_ranks, err);
	for (int p = 0; !st && f == FAULT_NONFINITE && p < P; p++)
		in[p] = v->ranks[p].flags & (OUTPUT_BAD | MEMORY_BAD);
	if (!st && f == FAULT_DIFFERS)
		most = outvoted(v->ranks, P, in);
	if (!st)
		st = describe(eng, f, t, &v->rows[tensor], in, most, more, err);
	free(in);
	/* Where numbers that do not fit the payload's type may come out as Inf, as it is said. */
	if (f != FAULT_NONFINITE || !(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE) ||
	    st != GRADCOMP_ERR_INTERNAL)
		return st;
	if (!eng->layout.rank && eng->warned++ < 5)
		log_line(&eng->job->log, GRADCOMP_LOG_WARN, "%s%s", err->text,
		         eng->warned == 5 ? " (not told again)" : "");
	return GRADCOMP_OK;
}

gradcomp_status verify_step(engine *eng, gradcomp_error *err)
{
	verify *v = eng->checks.verify;
	uint32_t n = eng->layout.ntensors, first = n, more = 0;
	fault f = FAULT_NONE;
	gradcomp_status st;
	memcpy(v->own, v->rows, n * sizeof *v->own);
	st = share(v, v->rows, v->room, n, sizeof *v->rows, join_rows, err);
	for (uint32_t i = n; !st && i-- > 0;) {
		fault is = judge(eng, &eng->layout.tensors[i], &v->rows[i]);
		more += is && is == f;
		if (is && !f) {
			f = is;
			first = i;
		}
	}
	if (f)
		st = tell(eng, f, first, more, err);
	memset(v->rows, 0, n * sizeof *v->rows);
	return st;
}
