/* Top-k as a code: whoever codes a run keeps its largest numbers. */
#include "gradcomp/sdk/sparse.h"

#include "gradcomp/sdk/coded.h"

gradcomp_status sdk_sparse_code_open(sdk_sparse *s, gradcomp_error *err)
{
	const gradcomp_operators *op = s->host->operators;
	uint64_t n = s->layout->numel, k = sdk_sparse_share(s->schedule.density, n), pairs = 8 * k + 64;
	if (!sdk_coded_instead(s->layout))
		return GRADCOMP_OK;
	if (s->layerwise || s->schedule.count)
		return s->host->fail(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"%s: %s needs a collective that gathers; where sums are coded, runs know neither tensors "
			"nor steps",
			s->name, s->layerwise ? "layerwise=yes" : "warmup");
	s->encode_scratch = s->host->alloc(pairs + op->topk_scratch(n, k));
	s->decode_scratch = s->host->alloc(pairs);
	if (!s->encode_scratch || !s->decode_scratch)
		return s->host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for codes of %llu numbers", s->name,
		                     (unsigned long long)n);
	s->coded = 1;
	return GRADCOMP_OK;
}

/* Pairs of a run of n; n: all its floats. */
static uint64_t kept(const sdk_sparse *s, uint64_t n)
{
	uint64_t k = sdk_sparse_share(s->schedule.density, n);
	return n && sdk_sparse_bytes(s->host->operators, s->coding, n, k) <= 4 * n ? k : n;
}

static int all_of(const sdk_sparse *s, uint64_t n)
{
	return kept(s, n) == n && (!n || sdk_sparse_bytes(s->host->operators, s->coding, n, n) > 4 * n);
}

uint64_t sdk_sparse_code_bound(void *instance, uint64_t n)
{
	const sdk_sparse *s = instance;
	return all_of(s, n) ? 4 * n : sdk_sparse_bytes(s->host->operators, s->coding, n, kept(s, n));
}

static sdk_sparse_pairs pairs_in(void *scratch, uint64_t k)
{
	return (sdk_sparse_pairs){.val = scratch, .idx = (uint32_t *)scratch + k};
}

/* Returns the place behind the pairs in the scratch of code(). */
static void *scratch(const sdk_sparse *s)
{
	return (char *)s->encode_scratch + (8 * sdk_sparse_share(s->schedule.density, s->layout->numel) + 63) / 64 * 64;
}

gradcomp_status sdk_sparse_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = s->host->operators;
	uint64_t k = kept(s, n);
	sdk_sparse_pairs p = pairs_in(sdk_sparse_plain(s->coding) ? out : s->encode_scratch, k);
	(void)counter, (void)err;
	*bytes = sdk_sparse_code_bound(instance, n);
	if (all_of(s, n)) {
		op->copy(NULL, out, in, 4 * n);
		return GRADCOMP_OK;
	}
	op->topk(NULL, p.idx, p.val, in, n, k, scratch(s));
	if (!sdk_sparse_plain(s->coding))
		sdk_sparse_pack(op, NULL, s->coding, out, p, n, k);
	return GRADCOMP_OK;
}

gradcomp_status sdk_sparse_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = s->host->operators;
	const sdk_coded about = {.host = s->host, .name = s->name};
	const char *wrong = NULL;
	uint64_t k = kept(s, n);
	sdk_sparse_pairs p = pairs_in(sdk_sparse_plain(s->coding) ? (void *)(uintptr_t)in : s->decode_scratch, k);
	gradcomp_status st = sdk_coded_length(&about, bytes, sdk_sparse_code_bound(instance, n), n, err);
	if (st)
		return st;
	/* Values may be those of a sum that has overflowed. */
	if (!all_of(s, n))
		wrong = sdk_sparse_plain(s->coding) ? sdk_sparse_index_check(p.idx, n, k)
		                                    : sdk_sparse_unpack_sums(op, s->coding, in, p, n, k);
	if (wrong)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: a run of %llu numbers came as a code that %s",
		                     s->name, (unsigned long long)n, wrong);
	if (!all_of(s, n))
		return op->scatter_add(NULL, out, n, p.idx, p.val, k, 1);
	op->add(NULL, out, in, n);
	return GRADCOMP_OK;
}

gradcomp_status sdk_sparse_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	s->host->operators->fill(NULL, out, 0, n);
	return sdk_sparse_code_decode_add(instance, in, bytes, out, n, err);
}
