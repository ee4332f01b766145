/* Signs and ternary numbers. */
#include "operators/split.h"

typedef struct call {
	size_t n, length, segment;
	float *y, *pairs;
	const float *x, *given; /* `given`: pairs to read, or the scale */
	float a;
	uint32_t *words;
	const uint32_t *bits;
	uint8_t *bytes;
	const uint8_t *in;
	uint64_t seed, stream, first;
	int *fault;
} call;

static void run(call *c, size_t n, size_t length, void (*part)(void *, size_t))
{
	c->n = n;
	c->length = length;
	operator_threads_run(part, c, split_parts(n, length));
}

/* Whole runs a part, so that parts begin where words do. A run longer than a
 * part is cut at words; its parts are runs of their own with the same values. */
static size_t sign_length(size_t segment)
{
	return segment >= OPERATOR_PART ? OPERATOR_PART : OPERATOR_PART / segment * segment;
}

/* A part of one long run, or of many short ones, as a call of its own. */
typedef struct sign_part {
	split_span s;
	size_t segment, word, pair;
} sign_part;

static sign_part part_of(const call *c, size_t i)
{
	const split_span s = split_part(c->n, c->length, i);
	if (c->segment >= c->n)
		return (sign_part){s, s.count, s.from / 32, 0};
	return (sign_part){s, c->segment, split_plain->sign_words(s.from, c->segment), s.from / c->segment * 2};
}

/* Runs that are long but not alone go one by one. */
#define EACH_RUN(statement) \
	if (segment >= OPERATOR_PART && segment < n) { \
		for (size_t i = 0; i < n; i += segment) { \
			const size_t count = n - i < segment ? n - i : segment; \
			const size_t word = split_plain->sign_words(i, segment), pair = i / segment * 2; \
			statement; \
		} \
		return; \
	}

static void pack_part(void *arg, size_t i)
{
	const call *c = arg;
	const sign_part p = part_of(c, i);
	split_plain->sign_pack(NULL, c->words + p.word, c->x + p.s.from, p.s.count, p.segment);
}

void split_sign_pack(void *queue, uint32_t *bits, const float *x, size_t n, size_t segment)
{
	if (!segment)
		return;
	EACH_RUN((void)pair; split_sign_pack(queue, bits + word, x + i, count, count))
	run(&(call){.words = bits, .x = x, .segment = segment}, n, sign_length(segment), pack_part);
}

static void means_part(void *arg, size_t i)
{
	const call *c = arg;
	const sign_part p = part_of(c, i);
	split_plain->sign_means(NULL, c->pairs + p.pair, c->x + p.s.from, p.s.count, p.segment);
}

/* The mean of a long run is one sum. */
void split_sign_means(void *queue, float *pairs, const float *x, size_t n, size_t segment)
{
	if (!segment || segment >= n || segment >= OPERATOR_PART)
		split_plain->sign_means(queue, pairs, x, n, segment);
	else
		run(&(call){.pairs = pairs, .x = x, .segment = segment}, n, sign_length(segment), means_part);
}

static void sign_add_part(void *arg, size_t i)
{
	const call *c = arg;
	const sign_part p = part_of(c, i);
	split_plain->sign_add(NULL, c->y + p.s.from, c->a, c->bits + p.word, c->given + p.pair, p.s.count, p.segment);
}

void split_sign_add(void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n, size_t segment)
{
	if (!segment)
		return;
	EACH_RUN(split_sign_add(queue, y + i, a, bits + word, pairs + pair, count, count))
	run(&(call){.y = y, .a = a, .bits = bits, .given = pairs, .segment = segment}, n, sign_length(segment),
	    sign_add_part);
}

static void sign_error_part(void *arg, size_t i)
{
	const call *c = arg;
	const sign_part p = part_of(c, i);
	split_plain->sign_error(NULL, c->y + p.s.from, c->x + p.s.from, c->bits + p.word, c->given + p.pair, p.s.count,
	                        p.segment);
}

void split_sign_error(void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs, size_t n,
                      size_t segment)
{
	if (!segment)
		return;
	EACH_RUN(split_sign_error(queue, e + i, x + i, bits + word, pairs + pair, count, count))
	run(&(call){.y = e, .x = x, .bits = bits, .given = pairs, .segment = segment}, n, sign_length(segment),
	    sign_error_part);
}

static void ternary_pack_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->n, c->length, i);
	split_plain->ternary_pack(NULL, c->bytes + s.from / 5, c->x + s.from, s.count, c->given, c->seed, c->stream,
	                          c->first + s.from);
}

void split_ternary_pack(void *queue, uint8_t *out, const float *x, size_t n, const float *scale, uint64_t seed,
                        uint64_t stream, uint64_t first)
{
	(void)queue;
	run(&(call){.bytes = out, .x = x, .given = scale, .seed = seed, .stream = stream, .first = first}, n,
	    OPERATOR_PART, ternary_pack_part);
}

static void ternary_add_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->n, c->length, i);
	split_plain->ternary_add(NULL, c->y + s.from, c->a, c->in + s.from / 5, c->given, s.count, c->fault + i);
}

void split_ternary_add(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n, int *fault)
{
	int faults[SPLIT_RUNS] = {0};
	(void)queue;
	run(&(call){.y = y, .a = a, .in = in, .given = scale, .fault = faults}, n, split_length(n), ternary_add_part);
	for (int i = 0; i < SPLIT_RUNS; i++)
		if (faults[i])
			*fault = 1;
}
