/* The CODED exchange: a ring that codes what it sends. In the reduce-scatter a rank
 * codes its partial sum of a block, remembers what that lost, and the next rank adds
 * what it decodes; where nobody remembers it, each rank codes its own block once, and the
 * owner adds them up. In the all-gather the owner codes the mean once and takes, as all
 * do, what is decoded; its loss counts P times. Blocks travel in pieces. */
#include "conformance/bucket_run.h"

#include "plugin/code_view.h"

#include <math.h>
#include <string.h>

/* Returns the piece of an exchange; another in each, so that codes meet runs of many lengths. */
static uint64_t piece_of(const ranks *s, uint64_t index)
{
	static const uint64_t lengths[] = {1009, UINT64_MAX, 65536, 4099};
	return lengths[(s->step + index) % (sizeof lengths / sizeof lengths[0])];
}

/* No two runs have one, in whatever step. */
static uint64_t counter_of(const ranks *s, uint64_t index, uint64_t c, uint64_t k)
{
	return s->step << 60 ^ (s->step >> 4) * 0x9e3779b97f4a7c15u ^ index << 48 ^ c << 40 ^ k;
}

/* The n floats of a run as rank w decodes them; *out is the caller's to free. */
static gradcomp_status decode_run(ranks *s, int w, const guarded *wire, uint64_t bytes, uint64_t n, guarded *out)
{
	*out = guard("the output of code_decode()", n * sizeof(float), 8);
	return ranks_call(s, &(call){.which = CALL_CODE_DECODE,
	                             .rank = w,
	                             .from = wire->data,
	                             .capacity = bytes,
	                             .to = out->data,
	                             .count = n});
}

/* A run of floats of one rank, coded; *wire is the caller's to free. The loss goes to
 * `lost`. */
static gradcomp_status code_run(ranks *s, int w, const float *x, uint64_t n, uint64_t counter, float *lost,
                                guarded *wire, uint64_t *bytes)
{
	uint64_t bound = s->plugin->code_bound(s->instance[w], n);
	guarded in = guard("the input of code()", n * sizeof(float), 8), back;
	gradcomp_status st;
	if (bound > 4 * n + n / 64 + 64) {
		guard_free(&in);
		*wire = guard("a coded run", 0, 8);
		return ranks_broke(s, RULE_CODE, "code_bound(%llu) is %llu, more than 4 n + n / 64 + 64",
		                   (unsigned long long)n, (unsigned long long)bound);
	}
	*wire = guard("a coded run", bound, 8);
	if (s->stale)
		memset(wire->data, s->stale, bound);
	memcpy(in.data, x, n * sizeof(float));
	guard_lock(&in, 1);
	*bytes = 0;
	st = ranks_call(s, &(call){.which = CALL_CODE,
	                           .rank = w,
	                           .from = in.data,
	                           .count = n,
	                           .counter = counter,
	                           .to = wire->data,
	                           .bytes = bytes});
	if (!st && *bytes > bound)
		st = ranks_broke(s, RULE_CODE, "code() of %llu floats made %llu bytes, its bound is %llu",
		                 (unsigned long long)n, (unsigned long long)*bytes, (unsigned long long)bound);
	s->intact &= guard_intact(wire);
	guard_free(&in);
	if (st)
		return st;
	st = decode_run(s, w, wire, *bytes, n, &back);
	for (uint64_t i = 0; !st && i < n; i++)
		lost[i] = x[i] - ((float *)(void *)back.data)[i];
	if (!st && (s->plugin->traits & GRADCOMP_TRAIT_LOSSLESS) && memcmp(back.data, x, n * sizeof(float)))
		st = ranks_broke(s, RULE_CODE, "what is decoded is not what was coded, to the bit");
	guard_free(&back);
	return st;
}

/* code_decode_add() must have added to `was` what code_decode() gives. */
static gradcomp_status added(ranks *s, int w, const guarded *wire, uint64_t bytes, const float *was, const float *x,
                             uint64_t n)
{
	guarded back;
	gradcomp_status st = decode_run(s, w, wire, bytes, n, &back);
	const float *v = (const float *)(const void *)back.data;
	for (uint64_t i = 0; !st && i < n; i++)
		if (fabsf(x[i] - (was[i] + v[i])) > 1e-6f * (fabsf(was[i]) + fabsf(v[i])))
			st = ranks_broke(
				s, RULE_CODE,
				"code_decode_add() of %llu floats makes %.9g of %.9g at number %llu, where code_decode() "
				"gives %.9g",
				(unsigned long long)n, (double)x[i], (double)was[i], (unsigned long long)i,
				(double)v[i]);
	guard_free(&back);
	return st;
}

/* Decodes what a peer coded, into x of rank w. */
static gradcomp_status take_run(ranks *s, int w, call_which how, const guarded *wire, uint64_t bytes, float *x,
                                uint64_t n)
{
	gradcomp_payload in[2] = {{NULL, 0, 0}, {wire->data, bytes, bytes}};
	guarded copy = guard("a coded run from a peer", bytes, 8), out;
	gradcomp_status st;
	memcpy(copy.data, wire->data, bytes);
	guard_lock(&copy, 1);
	in[1].data = copy.data;
	if (s->tamper)
		s->tamper(s, in, 2);
	out = guard("the floats that are decoded", n * sizeof(float), 8);
	memcpy(out.data, x, n * sizeof(float));
	st = ranks_call(s, &(call){.which = how,
	                           .rank = w,
	                           .from = in[1].data,
	                           .capacity = in[1].bytes,
	                           .to = out.data,
	                           .count = n});
	s->intact &= guard_intact(&out);
	if (!st && how == CALL_CODE_DECODE_ADD && !s->tamper && !s->light)
		st = added(s, w, wire, bytes, x, (const float *)(const void *)out.data, n);
	memcpy(x, out.data, n * sizeof(float));
	guard_free(&out);
	guard_free(&copy);
	return st;
}

/* Takes one piece of block c around the ring. */
static gradcomp_status piece(ranks *s, bucket_run *f, float *const *lost, int c, uint64_t at, uint64_t n,
                             uint64_t counter)
{
	gradcomp_status st = GRADCOMP_OK;
	guarded wire = {.map = NULL};
	gradcomp_payload made;
	uint64_t bytes = 0;
	for (int k = 0; !st && k < s->P; k++) {
		int w = (c + 1 + k) % s->P, next = code_view_flags(s->plugin) ? c : (w + 1) % s->P,
		    complete = k == s->P - 1;
		float *x = (float *)(void *)f[w].flat.data + at;
		guard_free(&wire);
		if (complete)
			s->host.operators->scale(NULL, x, 1.0f / (float)s->P, n);
		st = code_run(s, w, x, n, counter, lost[w] + at, &wire, &bytes);
		for (uint64_t i = 0; complete && i < n; i++)
			lost[w][at + i] *= (float)s->P;
		s->sent_of[w] += bytes;
		made = (gradcomp_payload){wire.data, wire.bytes, bytes};
		if (!st && s->made)
			s->made(s, f->work.bucket, 0, w, &made);
		bytes = made.bytes;
		if (!st && !complete)
			st = take_run(s, next, CALL_CODE_DECODE_ADD, &wire, bytes,
			              (float *)(void *)f[next].flat.data + at, n);
	}
	for (int w = 0; !st && w < s->P; w++)
		st = take_run(s, w, CALL_CODE_DECODE, &wire, bytes, (float *)(void *)f[w].flat.data + at, n);
	guard_free(&wire);
	return st;
}

gradcomp_status bucket_run_exchange_coded(ranks *s, bucket_run *f, const gradcomp_round *rd)
{
	uint64_t P = (uint64_t)s->P, index = f->work.bucket->index, most = piece_of(s, index);
	int remembers = gradcomp_keeps_error(s->plugin, s->values);
	gradcomp_status st = GRADCOMP_OK;
	float *lost[RANKS_MAX];
	guarded room[RANKS_MAX];
	for (int w = 0; w < s->P; w++) {
		room[w] = guard("what was lost", rd->count * sizeof(float), 8);
		lost[w] = (float *)(void *)room[w].data;
		memset(lost[w], 0, rd->count * sizeof(float));
	}
	for (uint64_t c = 0; s->P > 1 && c < P; c++) {
		uint64_t end = rd->count * (c + 1) / P;
		for (uint64_t at = rd->count * c / P, k = 0, n; !st && at < end; at += n, k++) {
			n = end - at < most ? end - at : most;
			st = piece(s, f, lost, (int)c, at, n, counter_of(s, index, c, k));
		}
	}
	for (int w = 0; w < s->P; w++) {
		if (remembers && !st)
			memcpy(f[w].memory.data, lost[w], rd->count * sizeof(float));
		guard_free(&room[w]);
	}
	for (int w = 0; !st && s->plugin->decode && w < s->P; w++)
		st = ranks_call(s,
		                &(call){.which = CALL_DECODE, .rank = w, .work = &f[w].work, .in = &f[w].out, .n = 1});
	return st;
}
