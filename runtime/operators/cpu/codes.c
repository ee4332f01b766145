/* Sums of what ranks have coded. */
#include "operators/cpu/quantise.h"

static void take_larger(float *y, const float *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] = v[i] > y[i] ? v[i] : y[i];
}

static void add_magnitudes(float *y, float a, const float *values, const uint32_t *bits, size_t n, size_t segment)
{
	for (size_t i = 0; i < n; i += segment, values++) {
		const size_t count = n - i < segment ? n - i : segment;
		const float pair[2] = {*values, -*values};
		KERNEL(sign_add)(NULL, y + i, a, bits, pair, count, count);
		bits += KERNEL(sign_words)(count, count);
	}
}

static void add_codes(const gradcomp_coding *c, const gradcomp_coded *p, const uint8_t *payload, float a)
{
	const uint8_t *codes = payload + p->codes;
	const float *values = (const float *)(const void *)(payload + p->values);
	const uint32_t *words = (const uint32_t *)(const void *)codes;
	int told;
	switch (c->kind) {
	case GRADCOMP_CODING_QUANTISED:
		KERNEL(quantised_add)(p->y, a, payload + p->values, codes, p->n, c->quantiser);
		break;
	case GRADCOMP_CODING_LEVELS:
		KERNEL(levels_values_add)(p->y, a, payload + p->values, codes, p->n, c->levels);
		break;
	case GRADCOMP_CODING_SIGNS:
		KERNEL(sign_add)(NULL, p->y, a, words, values, p->n, p->segment);
		break;
	case GRADCOMP_CODING_MAGNITUDES:
		add_magnitudes(p->y, a, values, words, p->n, p->segment);
		break;
	case GRADCOMP_CODING_TERNARY:
		KERNEL(ternary_add)(NULL, p->y, a, codes, p->scale, p->n, &told);
		break;
	case GRADCOMP_CODING_FLOAT8:
		KERNEL(float8_values_add)(p->y, a, payload + p->values, codes, p->n, c);
		break;
	case GRADCOMP_CODING_POWERS:
		KERNEL(power_values_add)(p->y, a, payload + p->values, codes, p->n);
		break;
	case GRADCOMP_CODING_FLOAT16:
		KERNEL(float16_add)(p->y, a, codes, p->n, c->type);
		break;
	default:
		take_larger(p->y, values, p->n);
	}
}

static int codes_wrong(const gradcomp_quantiser *q, const gradcomp_coded *p, const uint8_t *payload)
{
	return KERNEL(quantised_wrong)(payload + p->values, quantised_steps(q, p->n) / sizeof(float),
	                               payload + p->codes, p->n, q);
}

static int bytes_above(const uint8_t *in, size_t bytes, uint8_t most)
{
	int found = 0;
	for (size_t i = 0; i < bytes; i++)
		found |= in[i] > most;
	return found;
}

static int sent_wrong(const gradcomp_coding *c, const gradcomp_coded *p, const uint8_t *payload)
{
	const float most = 0x1.fffffep127f, *values = (const float *)(const void *)(payload + p->values);
	const gradcomp_levels *l = c->levels;
	size_t runs;
	int out = 0;
	switch (c->kind) {
	case GRADCOMP_CODING_QUANTISED:
		return codes_wrong(c->quantiser, p, payload);
	case GRADCOMP_CODING_LEVELS:
		return codes_wrong(&(gradcomp_quantiser){.bits = l->bits, .levels = l->levels, .block = l->block}, p,
		                   payload);
	case GRADCOMP_CODING_FLOAT8:
		return KERNEL(float8_wrong)(payload + p->values, payload + p->codes, p->n, c);
	case GRADCOMP_CODING_POWERS:
	case GRADCOMP_CODING_FLOAT16:
		return 0;
	case GRADCOMP_CODING_TERNARY:
		return bytes_above(payload + p->codes, (p->n + 4) / 5, 242);
	case GRADCOMP_CODING_LARGEST:
		KERNEL(range_check)(NULL, &out, values, p->n, 0, most);
		return out;
	default:
		runs = p->n / p->segment + (p->n % p->segment != 0);
		runs *= c->kind == GRADCOMP_CODING_SIGNS ? 2 : 1;
		KERNEL(range_check)(NULL, &out, values, runs, -most, most);
		return out;
	}
}

void KERNEL(codes_sum)(void *queue, const gradcomp_coding *coding, const gradcomp_coded *part, size_t parts,
                       const void *const *payload, size_t ranks, float a, int *fault)
{
	for (size_t i = 0; i < parts; i++) {
		const gradcomp_coded *p = &part[i];
		if (p->y && !p->x)
			KERNEL(fill)(queue, p->y, 0, p->n);
		else if (p->y && p->y != p->x)
			KERNEL(copy)(queue, p->y, p->x, p->n * sizeof(float));
		for (size_t r = 0; p->n && r < ranks; r++) {
			if (fault && sent_wrong(coding, p, payload[r]))
				*fault = 1;
			if (p->y)
				add_codes(coding, p, payload[r], a);
		}
		const int runs = coding->kind == GRADCOMP_CODING_SIGNS || coding->kind == GRADCOMP_CODING_MAGNITUDES;
		if (p->y && !runs && p->times != 0)
			KERNEL(scale)(queue, p->y, p->times, p->n);
	}
}
