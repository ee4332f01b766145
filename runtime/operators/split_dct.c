/* Transforms of chunks, by rows of chunks of a large matrix. Small ones go together, so that their
 * bases are made once. */
#include "operators/split.h"

#include "operators/cpu/dct.h"

enum { PART_CHUNKS = 16 };

typedef struct call {
	gradcomp_matrix t;
	dct_cut cut;
	uint64_t bands; /* bands of a part */
	uint64_t sent;  /* coefficients before */
	uint32_t chunk, k, flags;
	float *val;
	uint16_t *place;
	const gradcomp_coefficients *from; /* NULL: there, else back */
	size_t ranks;
	float a;
	int *fault;
} call;

static void run(const call *c, const gradcomp_matrix *t, size_t count, uint64_t sent)
{
	gradcomp_coefficients from[GRADCOMP_DCT_RANKS];
	int wrong = 0;
	if (!c->from) {
		split_plain->dct_topk(NULL, c->val + sent, c->place + sent, t, count, c->chunk, c->k);
		return;
	}
	for (size_t r = 0; r < c->ranks; r++)
		from[r] = (gradcomp_coefficients){c->from[r].val + sent, c->from[r].place + sent};
	split_plain->dct_back(NULL, t, count, c->chunk, c->k, from, c->ranks, c->a, c->flags, &wrong);
	if (wrong)
		__atomic_store_n(c->fault, 1, __ATOMIC_RELAXED);
}

static void bands_part(void *arg, size_t i)
{
	const call *c = arg;
	const uint64_t most = c->bands * c->cut.rows, row = i * most, left = c->t.n - row;
	const gradcomp_matrix t = {c->t.x + row * c->t.m, left < most ? left : most, c->t.m};
	run(c, &t, 1, c->sent + i * c->bands * c->cut.band);
}

static void split(call *c, const gradcomp_matrix *t, size_t count)
{
	uint64_t sent = 0, before = 0; /* before: coefficients before the small ones that wait */
	size_t first = 0;
	for (size_t i = 0; i < count; i++) {
		c->cut = dct_cut_of(t[i].n, t[i].m, c->chunk, c->k);
		c->bands = c->cut.across < PART_CHUNKS ? PART_CHUNKS / (c->cut.across + !c->cut.across) : 1;
		if (c->cut.down > c->bands) {
			run(c, t + first, i - first, before);
			c->t = t[i];
			c->sent = sent;
			operator_threads_run(bands_part, c, split_parts(c->cut.down, c->bands));
			first = i + 1;
			before = sent + c->cut.sent;
		}
		sent += c->cut.sent;
	}
	run(c, t + first, count - first, before);
}

void split_dct_topk(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count, uint32_t chunk,
                    uint32_t k)
{
	(void)queue;
	split(&(call){.val = val, .place = place, .chunk = chunk, .k = k}, t, count);
}

void split_dct_back(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
                    const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault)
{
	(void)queue;
	if (ranks > GRADCOMP_DCT_RANKS) {
		split_plain->dct_back(NULL, t, count, chunk, k, from, ranks, a, flags, fault);
		return;
	}
	split(&(call){.from = from, .ranks = ranks, .a = a, .flags = flags, .fault = fault, .chunk = chunk, .k = k}, t,
	      count);
}
