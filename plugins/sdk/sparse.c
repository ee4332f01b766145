/* All sparse methods with error memory do this with a bucket:
 *
 *     encode   choose k of u, send them
 *     decode   average = 1/P * sum of what was sent     error = u - own share of it */
#include "gradcomp/sdk/sparse.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/needs.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/scratch.h"

static size_t largest_scratch(const sdk_sparse *s, uint64_t d, uint64_t k)
{
	return sdk_layout_operators(s->host, s->layout)->topk_scratch(d, k);
}

static void select_largest(const sdk_sparse *s, const gradcomp_work *work, const sdk_sparse_part *p, const float *x,
                           sdk_sparse_pairs out, void *scratch)
{
	(void)s;
	work->operators->topk(work->queue, out.idx, out.val, x, p->d, p->k, scratch);
}

/* Parts that one call adds up at most. */
enum { SUMS = 32 };

gradcomp_status sdk_sparse_open(sdk_sparse *s, const gradcomp_host *host, const gradcomp_value *values,
                                const gradcomp_layout *layout, const char *name, int rows, gradcomp_error *err)
{
	static const gradcomp_need needs[] = {SDK_SPARSE_NEEDS};
	s->host = host;
	s->layout = layout;
	s->name = name;
	s->select_scratch = largest_scratch;
	s->select = select_largest;
	if (rows > SDK_SPARSE_INDICES)
		s->coding.indices = (uint32_t)values[SDK_SPARSE_INDICES].i;
	if (rows > SDK_SPARSE_VALUES)
		s->coding.values = (uint32_t)values[SDK_SPARSE_VALUES].i;
	s->layerwise = rows > SDK_SPARSE_LAYERWISE && values[SDK_SPARSE_LAYERWISE].i;
	gradcomp_status st = sdk_needs(host, name, needs, sizeof needs / sizeof *needs, err);
	if (st)
		return st;
	if (layout->device != GRADCOMP_HOST) {
		s->pairs = host->alloc(SUMS * (size_t)layout->nranks * sizeof *s->pairs);
		if (!s->pairs)
			return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for the payloads of %d ranks", name,
			                  layout->nranks);
	}
	return sdk_sparse_schedule_read(&s->schedule, host, values, name, err);
}

gradcomp_status sdk_sparse_new(size_t bytes, const gradcomp_host *host, const gradcomp_value *values,
                               const gradcomp_layout *layout, const char *name, int rows, void **instance,
                               gradcomp_error *err)
{
	sdk_sparse *s = host->alloc(bytes);
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory", name);
	gradcomp_status st = sdk_sparse_open(s, host, values, layout, name, rows, err);
	if (st)
		sdk_sparse_destroy(s);
	else
		*instance = s;
	return st;
}

void sdk_sparse_destroy(void *instance)
{
	sdk_sparse *s = instance;
	if (!s)
		return;
	s->host->release(s->encode_scratch);
	s->host->release(s->decode_scratch);
	s->host->release(s->pairs);
	s->host->release(s);
}

uint32_t sdk_sparse_parts(const sdk_sparse *s, const gradcomp_bucket *bucket)
{
	return s->layerwise ? bucket->ntensors : 1;
}

sdk_sparse_part sdk_sparse_part_at(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step, uint32_t i)
{
	sdk_sparse_part p = {.d = bucket->numel, .tensor = bucket->first};
	if (s->layerwise) {
		const gradcomp_tensor *t = &s->layout->tensors[bucket->first + i];
		p = (sdk_sparse_part){.at = t->offset - bucket->offset, .d = t->numel, .tensor = bucket->first + i};
	}
	if (p.d)
		p.k = s->kept ? s->kept(s, &p, step) : sdk_sparse_share(sdk_sparse_density(&s->schedule, step), p.d);
	return p;
}

/* The parts of a payload, one after another; begins as {0}. */
typedef struct walk {
	uint32_t i;
	uint64_t from, bytes; /* the part's place and length in the payload */
	sdk_sparse_part p;
} walk;

static int next(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step, walk *w)
{
	if (w->i == sdk_sparse_parts(s, bucket))
		return 0;
	w->from += w->bytes;
	w->p = sdk_sparse_part_at(s, bucket, step, w->i++);
	w->bytes = sdk_sparse_bytes(s->host->operators, s->coding, w->p.d, w->p.k);
	return 1;
}

#define EACH_PART(s, bucket, step, w) for (walk w = {0}; next(s, bucket, step, &w);)

uint64_t sdk_sparse_payload_bytes(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step)
{
	uint64_t bytes = 0;
	EACH_PART(s, bucket, step, w)
	bytes += w.bytes;
	return bytes;
}

/* Scratch: the unpacked pairs of one part, unless they lie in the payload; then
 * what choosing or unpacking them needs. */
static uint64_t pairs_bytes(const sdk_sparse *s, uint64_t k)
{
	return sdk_sparse_plain(s->coding) ? 0 : (k * (sizeof(float) + sizeof(uint32_t)) + 63) / 64 * 64;
}

uint64_t sdk_sparse_scratch(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step)
{
	uint64_t most = 0;
	EACH_PART(s, bucket, step, w)
	{
		uint64_t select = s->select_scratch ? s->select_scratch(s, w.p.d, w.p.k) : 0;
		uint64_t unpack = sdk_sparse_index_scratch(sdk_layout_operators(s->host, s->layout), s->coding.indices,
		                                           w.p.d, w.p.k);
		uint64_t bytes = pairs_bytes(s, w.p.k) + ((select > unpack ? select : unpack) + 63) / 64 * 64;
		most = bytes > most ? bytes : most;
	}
	return most;
}

static sdk_sparse_pairs pairs_in(void *memory, uint64_t k)
{
	return (sdk_sparse_pairs){.val = memory, .idx = (uint32_t *)memory + k};
}

/* The pairs of a part; on a device its coding is checked here. */
static sdk_sparse_pairs unpacked(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in,
                                 const walk *w)
{
	char *at = (char *)in->data + w->from;
	if (sdk_sparse_plain(s->coding))
		return pairs_in(at, w->p.k);
	sdk_sparse_pairs p = pairs_in(work->scratch, w->p.k);
	sdk_sparse_unpack_on(work->operators, work->queue, work->fault, s->coding, at, p, w->p.d, w->p.k,
	                     (char *)work->scratch + pairs_bytes(s, w->p.k));
	return p;
}

gradcomp_status sdk_sparse_encode_from(const sdk_sparse *s, const gradcomp_work *work, const float *from,
                                       gradcomp_payload *out, gradcomp_error *err)
{
	int plain = sdk_sparse_plain(s->coding);
	EACH_PART(s, work->bucket, work->step, w)
	{
		char *at = (char *)out->data + w.from;
		if (!w.p.k)
			continue;
		sdk_sparse_pairs p = pairs_in(plain ? (void *)at : work->scratch, w.p.k);
		s->select(s, work, &w.p, from + w.p.at, p, (char *)work->scratch + pairs_bytes(s, w.p.k));
		/* Coding relies on it, and a peer would blame this rank's link. */
		const char *wrong = work->device == GRADCOMP_HOST ? sdk_sparse_index_check(p.idx, w.p.d, w.p.k) : NULL;
		if (wrong)
			return s->host->fail(err, GRADCOMP_ERR_INTERNAL,
			                     "%s: what was chosen for bucket %u %s (%llu of %llu numbers from '%s' on)",
			                     s->name, work->bucket->index, wrong, (unsigned long long)w.p.k,
			                     (unsigned long long)w.p.d, s->layout->tensors[w.p.tensor].name);
		if (!plain)
			sdk_sparse_pack(work->operators, work->queue, s->coding, at, p, w.p.d, w.p.k);
	}
	out->bytes = sdk_sparse_payload_bytes(s, work->bucket, work->step);
	return GRADCOMP_OK;
}

static const char *check_part(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, const walk *w)
{
	const gradcomp_operators *op = work->operators;
	char *at = (char *)in->data + w->from;
	/* There sdk_sparse_average() looks. */
	if (work->device != GRADCOMP_HOST)
		return NULL;
	if (!sdk_sparse_plain(s->coding))
		return sdk_sparse_unpack(op, s->coding, at, pairs_in(work->scratch, w->p.k), w->p.d, w->p.k);
	sdk_sparse_pairs p = pairs_in(at, w->p.k);
	const char *wrong = sdk_sparse_index_check(p.idx, w->p.d, w->p.k);
	return wrong ? wrong : sdk_sparse_value_check(op, p.val, w->p.k);
}

static gradcomp_status refuse(const sdk_sparse *s, const gradcomp_work *work, uint32_t rank, const sdk_sparse_part *p,
                              const char *wrong, gradcomp_error *err)
{
	return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
	                     "%s: rank %u's payload for bucket %u %s (%llu of %llu numbers from '%s' on)", s->name,
	                     rank, work->bucket->index, wrong, (unsigned long long)p->k, (unsigned long long)p->d,
	                     s->layout->tensors[p->tensor].name);
}

gradcomp_status sdk_sparse_verify(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in,
                                  uint32_t n, gradcomp_error *err)
{
	gradcomp_status st = sdk_gathered_expect(s->host, s->layout, s->name, work, in, n,
	                                         sdk_sparse_payload_bytes(s, work->bucket, work->step), err);
	for (uint32_t r = 0; r < n && !st; r++)
		EACH_PART(s, work->bucket, work->step, w)
		{
			const char *wrong = st ? NULL : check_part(s, work, &in[r], &w);
			if (wrong)
				st = refuse(s, work, r, &w.p, wrong, err);
		}
	return st;
}

void sdk_sparse_add(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float a, float *y)
{
	EACH_PART(s, work->bucket, work->step, w)
	{
		sdk_sparse_pairs p = unpacked(s, work, in, &w);
		work->operators->scatter_add(work->queue, y + w.p.at, w.p.d, p.idx, p.val, w.p.k, a);
	}
}

void sdk_sparse_clear(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float *y)
{
	EACH_PART(s, work->bucket, work->step, w)
	work->operators->scatter(work->queue, y + w.p.at, unpacked(s, work, in, &w).idx, NULL, w.p.k);
}

/* Pairs that lie in payloads are checked and added up where they are, all ranks' of a part at once. */
static void sum_pairs(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n)
{
	gradcomp_sparse to[SUMS];
	uint32_t parts = sdk_sparse_parts(s, work->bucket), first = 0, some = parts < SUMS ? parts : SUMS;
	EACH_PART(s, work->bucket, work->step, w)
	{
		uint32_t i = w.i - 1 - first;
		to[i] = (gradcomp_sparse){work->flat + w.p.at, w.p.d};
		for (uint32_t r = 0; r < n; r++) {
			sdk_sparse_pairs p = pairs_in((char *)in[r].data + w.from, w.p.k);
			s->pairs[r * some + i] = (gradcomp_pairs){p.idx, p.val, w.p.k};
		}
		if (i + 1 < some)
			continue;
		work->operators->sparse_sum(work->queue, to, some, s->pairs, n, 1.0f / (float)n, work->fault);
		first = w.i;
		some = parts - first < SUMS ? parts - first : SUMS;
	}
}

void sdk_sparse_average(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n)
{
	if (work->device != GRADCOMP_HOST && sdk_sparse_plain(s->coding)) {
		sum_pairs(s, work, in, n);
		return;
	}
	work->operators->fill(work->queue, work->flat, 0, work->bucket->numel);
	for (uint32_t r = 0; r < n; r++)
		sdk_sparse_add(s, work, &in[r], 1.0f / (float)n, work->flat);
}

gradcomp_status sdk_sparse_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	(void)err;
	if (sdk_sparse_is_passthrough(s, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	if (s->coded) {
		sdk_coded_round(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(sdk_sparse_payload_bytes(s, bucket, step));
	plan->scratch_bytes = sdk_sparse_scratch(s, bucket, step);
	return GRADCOMP_OK;
}

gradcomp_status sdk_sparse_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                  gradcomp_error *err)
{
	(void)round;
	return sdk_sparse_encode_from(instance, work, work->flat, out, err);
}

gradcomp_status sdk_sparse_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                  uint32_t n, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	(void)round;
	if (sdk_sparse_is_passthrough(s, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	if (s->coded)
		return GRADCOMP_OK;
	gradcomp_status st = sdk_sparse_verify(s, work, in, n, err);
	if (st)
		return st;
	sdk_residual_all(work);
	sdk_sparse_add(s, work, &in[s->layout->rank], -1, work->error_flat);
	sdk_sparse_average(s, work, in, n);
	return GRADCOMP_OK;
}

gradcomp_status sdk_sparse_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	int dense = sdk_sparse_is_passthrough(s, step);
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense      ? 4.0 * (double)bucket->numel
	                   : s->coded ? (double)sdk_sparse_code_bound(instance, bucket->numel)
	                              : (double)sdk_sparse_payload_bytes(s, bucket, step);
	cost->passes = dense ? 1 : 4; /* choosing reads once; x to the error; x cleared */
	return GRADCOMP_OK;
}
