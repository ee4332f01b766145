/* Sums of what ranks have coded: each part of the numbers once, for all ranks. */
#include "operators/split.h"

#include <stdbool.h>

typedef struct call {
	const gradcomp_coding *coding;
	const gradcomp_coded *whole;
	size_t length;
	const void *const *payload;
	size_t ranks;
	float a;
	int *fault;
} call;

static bool has_signs(const gradcomp_coding *c)
{
	return c->kind == GRADCOMP_CODING_SIGNS || c->kind == GRADCOMP_CODING_MAGNITUDES;
}

static size_t whole_blocks(uint32_t block)
{
	return OPERATOR_PART / block ? OPERATOR_PART / block * block : block;
}

/* How many numbers of `p` begin where a block, a run or a word of a run that is alone does. */
static size_t length_of(const gradcomp_coding *c, const gradcomp_coded *p)
{
	if (c->kind == GRADCOMP_CODING_QUANTISED)
		return whole_blocks(c->quantiser->block);
	if (c->kind == GRADCOMP_CODING_LEVELS)
		return whole_blocks(c->levels->block);
	if (c->kind == GRADCOMP_CODING_FLOAT8)
		return whole_blocks(c->block);
	if (!has_signs(c) || p->segment >= p->n)
		return OPERATOR_PART;
	return p->segment >= OPERATOR_PART ? p->segment : OPERATOR_PART / p->segment * p->segment;
}

/* The numbers of a span, as a vector of its own. */
static gradcomp_coded cut(const gradcomp_coding *c, const gradcomp_coded *p, split_span s)
{
	gradcomp_coded to = *p;
	to.y = p->y ? p->y + s.from : NULL;
	to.x = p->x ? p->x + s.from : NULL;
	to.n = s.count;
	switch (c->kind) {
	case GRADCOMP_CODING_QUANTISED:
		to.values +=
			c->quantiser->norm == GRADCOMP_NORM_GIVEN ? 0 : s.from / c->quantiser->block * sizeof(float);
		to.codes += s.from / 8 * c->quantiser->bits;
		break;
	case GRADCOMP_CODING_LEVELS:
		to.values += s.from / c->levels->block * sizeof(float);
		to.codes += s.from / 8 * c->levels->bits;
		break;
	case GRADCOMP_CODING_TERNARY:
		to.codes += s.from / 5;
		break;
	case GRADCOMP_CODING_LARGEST:
		to.values += s.from * sizeof(float);
		break;
	case GRADCOMP_CODING_FLOAT8:
		to.values += gradcomp_float8_scales(s.from, c->block, c->powers);
		to.codes += gradcomp_float8_codes(s.from, c->type);
		break;
	case GRADCOMP_CODING_FLOAT16:
		to.codes += s.from * sizeof(uint16_t);
		break;
	case GRADCOMP_CODING_POWERS:
		to.values += s.from;
		to.codes += s.from / 8;
		break;
	default:
		if (p->segment >= p->n) {
			to.codes += s.from / 8;
			break;
		}
		to.values += s.from / p->segment * (c->kind == GRADCOMP_CODING_SIGNS ? 2 : 1) * sizeof(float);
		to.codes += split_plain->sign_words(s.from, p->segment) * sizeof(uint32_t);
	}
	return to;
}

static void sum_part(void *arg, size_t i)
{
	const call *c = arg;
	const gradcomp_coded p = cut(c->coding, c->whole, split_part(c->whole->n, c->length, i));
	int wrong = 0;
	split_plain->codes_sum(NULL, c->coding, &p, 1, c->payload, c->ranks, c->a, c->fault ? &wrong : NULL);
	if (wrong)
		__atomic_store_n(c->fault, 1, __ATOMIC_RELAXED);
}

static void sum_one(const call *from, const gradcomp_coded *p)
{
	call c = *from;
	c.whole = p;
	c.length = length_of(c.coding, p);
	operator_threads_run(sum_part, &c, split_parts(p->n, c.length));
}

void split_codes_sum(void *queue, const gradcomp_coding *coding, const gradcomp_coded *part, size_t parts,
                     const void *const *payload, size_t ranks, float a, int *fault)
{
	const call c = {.coding = coding, .payload = payload, .ranks = ranks, .a = a, .fault = fault};
	(void)queue;
	for (size_t i = 0; i < parts; i++) {
		const gradcomp_coded *p = &part[i];
		if (!has_signs(coding) || p->segment < OPERATOR_PART || p->segment >= p->n) {
			sum_one(&c, p);
			continue;
		}
		/* Runs that are long but not alone go one by one. */
		for (size_t from = 0; from < p->n; from += p->segment) {
			const size_t left = p->n - from;
			const gradcomp_coded run =
				cut(coding, p, (split_span){from, left < p->segment ? left : p->segment});
			sum_one(&c, &run);
		}
	}
}
