/* topk against a sort; tests/long/selection tries more. */
#include "tests/support/selection_sorted.h"

/* A gradient that is none must not overflow what it is sent in. */
static void not_finite(const char *name, const gradcomp_operators *op)
{
	const size_t n = 70000, k = 500, bytes = op->mstopk_scratch(n, k);
	int whole = 1;
	for (size_t bad = 1; bad <= n; bad *= 17) {
		float *x = magnitudes(NORMAL, n, 0), *val = test_alloc(k, 1), *idx = test_alloc(k, 2),
		      *scratch = test_alloc(bytes / 4, 0);
		for (size_t i = 0; i < bad; i++)
			x[test_random() % n] = test_bits(0x7f800000u | (uint32_t)test_random());
		op->topk(NULL, (uint32_t *)idx, val, x, n, k, scratch);
		op->mstopk(NULL, (uint32_t *)idx, val, x, n, k, 30, 1, 2, scratch);
		whole &= test_free(val, k, 1) & test_free(idx, k, 2) & test_free(scratch, bytes / 4, 0);
		test_free(x, n, 0);
	}
	ok(whole, "%s: of numbers that are not finite no more than k are taken", name);
}

int main(void)
{
	test_seed();
	selections_are_sorted(3);
	test_variants(not_finite);
	return done_testing();
}
