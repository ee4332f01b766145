/* P ranks of one compressor in one process: the harness makes the instances, plays
 * the host (error memory, buckets, work) and the exchange, which sums in the
 * order of a ring and gathers by hand. Buffers have a wall behind them and are
 * read-only where the contract says so: breaking a bound ends the program.
 *
 * Uses the public headers, an operator table and a parsed SPEC, nothing else of
 * the library. One thread. */
#ifndef CONTRACT_RANKS_H
#define CONTRACT_RANKS_H

#include "contract/guard.h"
#include "gradcomp/compressor.h"

enum { RANKS_MAX = 16, TENSORS_MAX = 32 };

/* ---- the ranks -------------------------------------------------------------------- */

typedef struct ranks {
	const struct gradcomp_compressor_v1 *plugin;
	const gradcomp_value *values;
	gradcomp_host host;
	int P;
	gradcomp_tensor tensors[TENSORS_MAX];
	gradcomp_layout layout[RANKS_MAX];
	gradcomp_bucket buckets[TENSORS_MAX];
	uint32_t nbuckets;
	void *instance[RANKS_MAX];
	float *error[RANKS_MAX], *state[RANKS_MAX]; /* layout.numel, and state_arrays times that */
	uint64_t step;
	uint64_t sent; /* payload bytes of a rank in the last step */
	int abandon;   /* encode round 0 and stop, as when a gradient is not finite */
	int whole;     /* no buffer was written outside of its bounds, no input changed */
	/* Called with every gathered payload before decode, to tamper with it. */
	void (*tamper)(struct ranks *s, gradcomp_payload *in);
	gradcomp_error err;
} ranks;

/* Buckets of at most `most` elements, at least one tensor each. */
__attribute__((unused)) static void ranks_plan(ranks *s, uint64_t most)
{
	s->nbuckets = 0;
	for (uint32_t i = 0; i < s->layout[0].ntensors; i++) {
		gradcomp_bucket *b = s->nbuckets ? &s->buckets[s->nbuckets - 1] : NULL;
		if (!b || b->numel + s->tensors[i].numel > most) {
			b = &s->buckets[s->nbuckets];
			*b = (gradcomp_bucket){.struct_size = sizeof *b,
			                       .index = s->nbuckets++,
			                       .first = i,
			                       .offset = s->tensors[i].offset};
		}
		b->ntensors++;
		b->numel += s->tensors[i].numel;
	}
}

__attribute__((unused)) static void ranks_close(ranks *s)
{
	for (int w = 0; w < s->P; w++) {
		s->plugin->destroy(s->instance[w]);
		free(s->error[w]);
		free(s->state[w]);
	}
}

/* dims: two numbers a tensor; 0 in the second place: a vector of the first. They
 * must outlive s. */
__attribute__((unused)) static gradcomp_status ranks_open(ranks *s, const struct gradcomp_compressor_v1 *plugin,
                                                          const gradcomp_operators *op,
                                                          const gradcomp_value *values, int P, uint32_t ntensors,
                                                          uint64_t (*dims)[2], uint64_t seed)
{
	uint64_t numel = 0;
	*s = (ranks){.plugin = plugin, .values = values, .P = P, .whole = 1};
	s->host = (gradcomp_host){.struct_size = sizeof s->host,
	                          .abi_version = GRADCOMP_ABI_VERSION,
	                          .log = host_log,
	                          .fail = host_fail,
	                          .alloc = host_alloc,
	                          .release = host_release,
	                          .operators = op};
	for (uint32_t i = 0; i < ntensors; i++) {
		s->tensors[i] = (gradcomp_tensor){.name = "tensor",
		                                  .offset = numel,
		                                  .dims = dims[i],
		                                  .ndim = dims[i][1] ? 2 : 1,
		                                  .numel = dims[i][0] * (dims[i][1] ? dims[i][1] : 1)};
		numel += s->tensors[i].numel;
	}
	for (int w = 0; w < P; w++) {
		s->layout[w] = (gradcomp_layout){.struct_size = sizeof s->layout[w],
		                                 .ntensors = ntensors,
		                                 .tensors = s->tensors,
		                                 .numel = numel,
		                                 .rank = w,
		                                 .nranks = P,
		                                 .seed = seed};
		s->error[w] = calloc(numel + 1, sizeof(float));
		s->state[w] = calloc(numel * plugin->state_arrays + 1, sizeof(float));
		gradcomp_status st = s->error[w] && s->state[w] ? plugin->create(&s->host, values, &s->layout[w],
		                                                                 &s->instance[w], &s->err)
		                                                : GRADCOMP_ERR_NOMEM;
		if (st) {
			s->P = w + 1;
			ranks_close(s);
			return st;
		}
	}
	ranks_plan(s, UINT64_MAX);
	return GRADCOMP_OK;
}

/* ---- one step ------------------------------------------------------------------------ */

/* One bucket of one rank in flight. */
typedef struct flight {
	gradcomp_work work;
	float *x[TENSORS_MAX], *error[TENSORS_MAX], *state[8];
	guarded flat, scratch, payload;
	gradcomp_payload out;
} flight;

static size_t element(gradcomp_dtype t)
{
	return t == GRADCOMP_F64 || t == GRADCOMP_I64    ? 8
	       : t == GRADCOMP_F16 || t == GRADCOMP_BF16 ? 2
	       : t == GRADCOMP_U8                        ? 1
	                                                 : 4;
}

static void flight_begin(ranks *s, flight *f, int w, const gradcomp_bucket *b, const gradcomp_plan *plan, float *g)
{
	int remembers = !!(s->plugin->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK);
	memset(f, 0, sizeof *f);
	f->flat = guard(b->numel * sizeof(float), 8);
	f->scratch = guard(plan->scratch_bytes, 64);
	float *x = (float *)f->flat.data, *e = s->error[w] + b->offset;
	for (uint64_t i = 0; i < b->numel; i++)
		x[i] = remembers ? g[b->offset + i] + e[i] : g[b->offset + i];
	for (uint32_t i = 0; i < b->ntensors; i++) {
		f->x[i] = x + (s->tensors[b->first + i].offset - b->offset);
		f->error[i] = s->error[w] + s->tensors[b->first + i].offset;
	}
	for (uint32_t k = 0; k < s->plugin->state_arrays && k < 8; k++)
		f->state[k] = s->state[w] + k * s->layout[w].numel + b->offset;
	f->work = (gradcomp_work){
		.struct_size = sizeof f->work,
		.bucket = b,
		.step = s->step,
		.x = f->x,
		.flat = s->plugin->traits & GRADCOMP_TRAIT_SHAPED ? NULL : x,
		.error = remembers ? f->error : NULL,
		.error_flat = remembers ? e : NULL,
		.state = f->state,
		.scratch = f->scratch.data,
		.scratch_bytes = plan->scratch_bytes,
		.operators = s->host.operators,
	};
}

/* x is read-only here. */
static gradcomp_status flight_encode(ranks *s, flight *f, int w, const gradcomp_round *rd, uint32_t round)
{
	size_t capacity = rd->pattern == GRADCOMP_SUMMED ? rd->count * element(rd->dtype) : rd->bound;
	guard_free(&f->payload);
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE) {
		f->work.flat = (float *)f->flat.data;
		f->out = (gradcomp_payload){f->flat.data, capacity, capacity};
		return GRADCOMP_OK;
	}
	f->payload = guard(capacity, 8);
	f->out = (gradcomp_payload){f->payload.data, capacity, 0};
	guard_lock(&f->flat, 1);
	gradcomp_status st = s->plugin->encode(s->instance[w], &f->work, round, &f->out, &s->err);
	guard_lock(&f->flat, 0);
	if (!st && (f->out.data != f->payload.data || f->out.bytes > capacity ||
	            (rd->pattern == GRADCOMP_SUMMED && f->out.bytes != capacity) ||
	            ((rd->flags & GRADCOMP_ROUND_FIXED) && f->out.bytes != capacity)))
		st = host_fail(&s->err, GRADCOMP_ERR_INTERNAL, "a payload of %llu bytes, %zu were planned",
		               (unsigned long long)f->out.bytes, capacity);
	return st;
}

/* Sums as a ring does: chunk c begins at rank c + 1 and ends at rank c. */
static void exchange_sum(ranks *s, flight *f, const gradcomp_round *rd)
{
	size_t size = element(rd->dtype);
	char *sum = malloc(rd->count * size + 1);
	for (uint64_t c = 0; c < (uint64_t)s->P; c++) {
		uint64_t from = rd->count * c / (uint64_t)s->P, n = rd->count * (c + 1) / (uint64_t)s->P - from;
		for (int k = 0; n && k < s->P; k++) {
			const char *in = (char *)f[(c + 1 + (uint64_t)k) % (uint64_t)s->P].out.data + from * size;
			if (k)
				s->host.operators->reduce(NULL, sum + from * size, in, n, rd->dtype, GRADCOMP_SUM);
			else
				memcpy(sum + from * size, in, n * size);
		}
	}
	if (rd->flags & GRADCOMP_ROUND_MEAN)
		s->host.operators->scale_as(NULL, sum, 1.0 / s->P, rd->count, rd->dtype);
	for (int w = 0; rd->count && w < s->P; w++)
		memcpy(f[w].out.data, sum, rd->count * size);
	free(sum);
}

static gradcomp_status exchange_and_decode(ranks *s, flight *f, const gradcomp_round *rd, uint32_t round)
{
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_payload in[RANKS_MAX];
	if (rd->pattern == GRADCOMP_SUMMED)
		exchange_sum(s, f, rd);
	for (int w = 0; w < s->P; w++) {
		s->whole &= !f[w].payload.map || guard_whole(&f[w].payload);
		guard_lock(&f[w].payload, 1);
		in[w] = f[w].out;
	}
	if (rd->pattern == GRADCOMP_GATHERED && s->tamper)
		s->tamper(s, in);
	for (int w = 0; !st && w < s->P; w++) {
		if (rd->pattern == GRADCOMP_SUMMED)
			st = s->plugin->decode(s->instance[w], &f[w].work, round, &f[w].out, 1, &s->err);
		else
			st = s->plugin->decode(s->instance[w], &f[w].work, round, in, (uint32_t)s->P, &s->err);
	}
	for (int w = 0; w < s->P; w++)
		guard_lock(&f[w].payload, 0);
	return st;
}

/* grad[w]: the gradients of rank w on entry, the average on return. With
 * `interleave` the buckets are all in flight at once. */
__attribute__((unused)) static gradcomp_status ranks_step(ranks *s, float **grad, int interleave)
{
	flight *f = calloc((size_t)s->nbuckets * (size_t)s->P + 1, sizeof *f);
	gradcomp_plan *plan = calloc(s->nbuckets + 1, sizeof *plan);
	gradcomp_status st = GRADCOMP_OK;
	uint32_t together = interleave ? s->nbuckets : 1;
	s->sent = 0;
	for (uint32_t first = 0; !st && first < s->nbuckets; first += together) {
		for (uint32_t b = first; !st && b < first + together; b++)
			for (int w = 0; !st && w < s->P; w++) {
				gradcomp_plan mine = {.struct_size = sizeof mine};
				st = s->plugin->plan(s->instance[w], &s->buckets[b], s->step, &mine, &s->err);
				if (!st && w && memcmp(&mine, &plan[b], sizeof mine))
					st = host_fail(&s->err, GRADCOMP_ERR_INTERNAL,
					               "ranks 0 and %d have different plans", w);
				plan[b] = mine;
				if (!st)
					flight_begin(s, &f[b * (uint32_t)s->P + (uint32_t)w], w, &s->buckets[b],
					             &plan[b], grad[w]);
			}
		for (uint32_t round = 0; !st && round < (s->abandon ? 1 : GRADCOMP_MAX_ROUNDS); round++) {
			for (uint32_t b = first; !st && b < first + together; b++)
				for (int w = 0; !st && round < plan[b].nrounds && w < s->P; w++) {
					flight *mine = &f[b * (uint32_t)s->P + (uint32_t)w];
					st = flight_encode(s, mine, w, &plan[b].rounds[round], round);
					s->sent += w ? 0 : mine->out.bytes;
				}
			for (uint32_t b = first + together; !st && b-- > first;)
				if (round < plan[b].nrounds && !s->abandon)
					st = exchange_and_decode(s, &f[b * (uint32_t)s->P], &plan[b].rounds[round],
					                         round);
		}
	}
	for (uint32_t i = 0; i < s->nbuckets * (uint32_t)s->P; i++) {
		const gradcomp_bucket *b = f[i].work.bucket;
		if (!b)
			continue;
		s->whole &= guard_whole(&f[i].flat) && guard_whole(&f[i].scratch);
		if (!st)
			memcpy(grad[i % (uint32_t)s->P] + b->offset, f[i].flat.data, b->numel * sizeof(float));
		guard_free(&f[i].flat), guard_free(&f[i].scratch), guard_free(&f[i].payload);
	}
	free(f);
	free(plan);
	s->step += !st;
	return st;
}

/* ---- state ------------------------------------------------------------------------------ */

/* All of rank w's state goes from one set of ranks to another, as through a
 * checkpoint. */
__attribute__((unused)) static gradcomp_status ranks_carry(ranks *from, ranks *to, int w)
{
	uint64_t bytes = 0;
	gradcomp_status st = GRADCOMP_OK;
	memcpy(to->error[w], from->error[w], from->layout[w].numel * sizeof(float));
	memcpy(to->state[w], from->state[w], from->plugin->state_arrays * from->layout[w].numel * sizeof(float));
	to->step = from->step;
	if (!from->plugin->save)
		return st;
	st = from->plugin->save(from->instance[w], NULL, 0, &bytes, &from->err);
	guarded g = guard(bytes, 8);
	if (!st)
		st = from->plugin->save(from->instance[w], g.data, bytes, &bytes, &from->err);
	guard_lock(&g, 1);
	if (!st)
		st = to->plugin->load(to->instance[w], g.data, bytes, &to->err);
	guard_free(&g);
	return st;
}

#endif
