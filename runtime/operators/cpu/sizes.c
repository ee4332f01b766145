/* Sizes of what the quantisers write, and the check of their settings. */
#include "operators/cpu/quantise.h"

#include "base/first_sizes.h"

size_t KERNEL(quantised_bytes)(const gradcomp_quantiser *q, size_t n)
{
	if (q->struct_size < FIRST_SIZE(gradcomp_quantiser) || (q->bits != 2 && q->bits != 4 && q->bits != 8))
		return 0;
	if (!q->levels || q->levels > (1u << (q->bits - 1)) - 1 || !q->block || q->block % QUANTISE_GROUP ||
	    q->block > 65536 || q->norm > GRADCOMP_NORM_ABSMAX_OR_NAN || q->rounding > GRADCOMP_TO_ZERO)
		return 0;
	return quantised_steps(q, n) + quantised_codes(n, q->bits);
}

size_t KERNEL(sign_words)(size_t n, size_t segment)
{
	return segment ? n / segment * ((segment + 31) / 32) + (n % segment + 31) / 32 : 0;
}
