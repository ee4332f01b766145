/* Sparse vectors: ascending indices and their values. */
#include "operators/cpu/select.h"

void KERNEL(gather)(void *queue, float *val, const float *x, const uint32_t *idx, size_t k)
{
	(void)queue;
	for (size_t j = 0; j < k; j++)
		val[j] = x[idx[j]];
}

void KERNEL(scatter)(void *queue, float *y, const uint32_t *idx, const float *val, size_t k)
{
	(void)queue;
	for (size_t j = 0; j < k; j++)
		y[idx[j]] = val ? val[j] : 0;
}

/* Returns true when all indices are below n, or stand for none. Counting from one further on puts GRADCOMP_NO_INDEX
 * at the bottom. */
static int within(const uint32_t *idx, size_t k, size_t n)
{
	size_t j = 0;
	if (n >= UINT32_MAX)
		return 1;
	uint32_t limit = (uint32_t)n;
	v8i out = {0};
	for (; j + 8 <= k; j += 8)
		out |= (v8i)(*(const v8u_any *)(idx + j) + 1 > limit);
	for (int i = 0; i < 8; i++)
		if (out[i])
			return 0;
	for (; j < k; j++)
		if (idx[j] + 1 > limit)
			return 0;
	return 1;
}

gradcomp_status KERNEL(scatter_add)(void *queue, float *y, size_t n, const uint32_t *idx, const float *val, size_t k,
                                    float a)
{
	(void)queue;
	if (!within(idx, k, n))
		return GRADCOMP_ERR_RANGE;
	for (size_t j = 0; j < k; j++)
		if (idx[j] != GRADCOMP_NO_INDEX)
			y[idx[j]] += a * val[j];
	return GRADCOMP_OK;
}

void KERNEL(sparse_check)(void *queue, int *fault, const uint32_t *idx, const float *val, size_t k, size_t n)
{
	(void)queue;
	int bad = 0;
	if (!k)
		return;
	for (size_t j = 0; j + 1 < k; j++)
		bad |= idx[j] >= idx[j + 1];
	for (size_t j = 0; val && j < k; j++)
		bad |= key_of(val[j]) >= KEY_INF;
	if (bad || idx[k - 1] >= n)
		*fault = 1;
}

void KERNEL(sparse_sum)(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs,
                        size_t ranks, float a, int *fault)
{
	for (size_t p = 0; p < parts; p++)
		KERNEL(fill)(queue, part[p].y, 0, part[p].n);
	for (size_t i = 0; i < parts * ranks; i++) {
		const gradcomp_sparse *to = &part[i % parts];
		int wrong = 0;
		KERNEL(sparse_check)(queue, &wrong, pairs[i].idx, pairs[i].val, pairs[i].k, to->n);
		if (wrong)
			*fault = 1;
		else
			KERNEL(scatter_add)(queue, to->y, to->n, pairs[i].idx, pairs[i].val, pairs[i].k, a);
	}
}

size_t KERNEL(sparse_merge_scratch)(size_t k)
{
	return (2 * k * (sizeof(float) + sizeof(uint32_t)) + 63) / 64 * 64;
}

/* The union, ascending. */
static size_t unite(uint32_t *idx, float *val, const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx,
                    const float *b_val, size_t k)
{
	size_t i = 0, j = 0, n = 0;
	while (i < k && j < k) {
		uint32_t a = a_idx[i], b = b_idx[j];
		idx[n] = a < b ? a : b;
		val[n++] = a < b ? a_val[i] : a > b ? b_val[j] : a_val[i] + b_val[j];
		i += a <= b;
		j += b <= a;
	}
	for (; i < k; i++) {
		idx[n] = a_idx[i];
		val[n++] = a_val[i];
	}
	for (; j < k; j++) {
		idx[n] = b_idx[j];
		val[n++] = b_val[j];
	}
	return n;
}

void KERNEL(sparse_merge)(void *queue, uint32_t *idx, float *val, uint32_t *left_idx, float *left_val,
                          const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val,
                          size_t k, void *scratch)
{
	(void)queue;
	if (!k)
		return;
	float *sum = scratch;
	uint32_t *names = (uint32_t *)(void *)(sum + 2 * k);
	size_t n = unite(names, sum, a_idx, a_val, b_idx, b_val, k), kept = 0, left = 0;
	cut c = KERNEL(select_cut)(sum, n, k, NULL);
	for (size_t i = 0; i < n; i++) {
		uint32_t key = key_of(sum[i]);
		if (key > c.key || (key == c.key && c.ties)) {
			c.ties -= key == c.key;
			idx[kept] = names[i];
			val[kept++] = sum[i];
		} else {
			left_idx[left] = names[i];
			left_val[left++] = sum[i];
		}
	}
	for (; left < k; left++) {
		left_idx[left] = GRADCOMP_NO_INDEX;
		left_val[left] = 0;
	}
}
