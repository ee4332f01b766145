/* Stripes under a code: two lossy steps, however many ranks there are (1-bit SGD: Seide,
 * Fu, Droppo, Li, Yu, Interspeech 2014, section 3.3).
 *
 * Every rank codes its part of a stripe for the owner, who adds what they decode to onto
 * its own part, which is as it was. The complete sum, with what the owner still has from
 * the last step (its server_error: the second error memory of 1-bit SGD's server
 * side), is scaled and coded once; those bytes go to all, and the owner too takes what
 * they decode to, so all ranks end with the same bits. Parts are added in the order in
 * which the owner meets their ranks, which is the same in every run.
 *
 * Where nobody keeps what is lost, the owner's own part becomes what its code decodes to, as
 * those of the others: so who owns a number does not show in the sum. */
#include "plugins/common/collectives/direct.h"

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/coding.h"

#include <stdbool.h>

/* A run: long enough for any code, short enough that the next one overlaps. */
#define RUN_BYTES ((size_t)1 << 20)

typedef struct coded {
	direct *d;
	coding c;
	float *buf;
	uint64_t piece, pieces; /* floats of a piece, pieces of a block */
	uint64_t stride;        /* bytes of a slot */
	double scale;
	uint64_t counter;
	float *residual; /* belongs to buf from element residual_from on; or NULL */
	uint64_t residual_from;
	float *server_error; /* this rank's stripe of it, or NULL */
	int gathers;         /* else the sum stays with its owner, as it is */
	int rounds;          /* the owner's part is coded too */
} coded;

static float *locate(const coded *t, int block, uint64_t piece, uint64_t *n)
{
	uint64_t begin = t->d->offset[block] + piece * t->piece, end = t->d->offset[block + 1];
	*n = begin >= end ? 0 : end - begin < t->piece ? end - begin : t->piece;
	return t->buf + begin;
}

static char *came_slot(const coded *t, direct_step s)
{
	return t->d->scratch + s.index % DIRECT_AHEAD * t->stride;
}

/* A part on its way to an owner; a result on its way to all. */
static char *part_slot(const coded *t, direct_step s)
{
	return t->d->scratch + (DIRECT_AHEAD + s.index % DIRECT_AHEAD) * t->stride;
}

static char *result_slot(const coded *t, uint64_t piece)
{
	return t->d->scratch + (2 * DIRECT_AHEAD + piece % 2) * t->stride;
}

static char *own_slot(const coded *t)
{
	return t->d->scratch + (2 * DIRECT_AHEAD + 2) * t->stride;
}

static float *loss_of(const coded *t, const float *x)
{
	return t->residual ? t->residual + ((uint64_t)(x - t->buf) - t->residual_from) : NULL;
}

static gradcomp_status recv(void *ctx, direct_step s, gradcomp_error *err)
{
	const coded *t = ctx;
	uint64_t n;
	locate(t, s.gather ? s.from : t->d->rank, s.piece, &n);
	return n ? coding_recv(&t->c, s.from, came_slot(t, s), n, &t->d->recv[s.index % DIRECT_AHEAD], err)
	         : GRADCOMP_OK;
}

static gradcomp_request *sending(const coded *t, direct_step s)
{
	return &t->d->send[2 * (s.index % DIRECT_AHEAD)];
}

static gradcomp_status send(void *ctx, direct_step s, gradcomp_error *err)
{
	const coded *t = ctx;
	char *slot = s.gather ? result_slot(t, s.piece) : part_slot(t, s);
	uint64_t n;
	const float *x = locate(t, s.gather ? t->d->rank : s.to, s.piece, &n);
	gradcomp_status st = GRADCOMP_OK;
	if (n && !s.gather)
		st = coding_make(&t->c, x, n, t->counter + s.index, slot, err);
	if (n && !st)
		st = coding_send(&t->c, s.to, slot, n, sending(t, s), err);
	/* The wire is busy meanwhile. */
	return st || !n || s.gather ? st : coding_loss(&t->c, x, n, slot, loss_of(t, x), err);
}

/* Counters of results come after those of all transfers, and these after them. */
static uint64_t result_counter(const coded *t, uint64_t piece)
{
	return t->counter + t->pieces * (uint64_t)(t->d->nranks - 1) * 2 + piece;
}

static gradcomp_status round_own(const coded *t, uint64_t piece, float *x, uint64_t n, gradcomp_error *err)
{
	gradcomp_status st = coding_make(&t->c, x, n, result_counter(t, t->pieces + piece), own_slot(t), err);
	return st ? st : coding_take(&t->c, own_slot(t), x, n, err);
}

static gradcomp_status arrive(void *ctx, direct_step s, gradcomp_error *err)
{
	const coded *t = ctx;
	char *slot = came_slot(t, s);
	uint64_t n;
	float *x = locate(t, s.gather ? s.from : t->d->rank, s.piece, &n);
	gradcomp_status st = GRADCOMP_OK;
	bool first = !s.gather && s.index % (uint64_t)(t->d->nranks - 1) == 0;
	if (n && first && t->rounds)
		st = round_own(t, s.piece, x, n, err);
	if (n && !st)
		st = coding_arrive(&t->c, s.from, slot, n, &t->d->recv[s.index % DIRECT_AHEAD], err);
	if (st || !n)
		return st;
	return s.gather ? coding_take(&t->c, slot, x, n, err) : coding_add(&t->c, slot, x, n, err);
}

static gradcomp_status sent(void *ctx, direct_step s, gradcomp_error *err)
{
	const coded *t = ctx;
	uint64_t n;
	locate(t, s.gather ? t->d->rank : s.to, s.piece, &n);
	return n ? coding_sent(&t->c, n, sending(t, s), err) : GRADCOMP_OK;
}

static gradcomp_status settle(void *ctx, uint64_t piece, gradcomp_error *err)
{
	const coded *t = ctx;
	const gradcomp_operators *ops = t->d->host->operators;
	uint64_t n;
	float *x = locate(t, t->d->rank, piece, &n), *e = loss_of(t, x);
	gradcomp_status st = GRADCOMP_OK;
	if (!n)
		return GRADCOMP_OK;
	if (t->server_error) {
		float *m = t->server_error + piece * t->piece;
		ops->add(NULL, x, m, n);
		if (e)
			ops->fill(NULL, e, 0, n);
		e = m;
	}
	if (t->scale != 1.0)
		st = ops->scale_as(NULL, x, t->scale, n, GRADCOMP_F32);
	if (!t->gathers && e)
		ops->fill(NULL, e, 0, n);
	if (st || !t->gathers)
		return st;
	st = coding_make(&t->c, x, n, result_counter(t, piece), result_slot(t, piece), err);
	return st ? st : coding_settle(&t->c, x, n, t->scale, result_slot(t, piece), e, err);
}

static gradcomp_status run(coded *t, int reduces, int gathers, gradcomp_error *err)
{
	static const direct_calls calls = {recv, send, arrive, sent, settle};
	direct *d = t->d;
	uint64_t longest = direct_longest(d), most = RUN_BYTES / sizeof(float);
	gradcomp_status st;
	if (!longest)
		return GRADCOMP_OK;
	t->gathers = gathers;
	t->piece = longest < most ? (longest + CODING_GRAIN - 1) / CODING_GRAIN * CODING_GRAIN : most;
	t->pieces = (longest + t->piece - 1) / t->piece;
	t->stride = coding_stride(&t->c, d->offset, d->nranks, t->piece);
	st = direct_reserve(d, (2 * DIRECT_AHEAD + 2 + (size_t)t->rounds) * t->stride, err);
	return st ? st : direct_run(d, &calls, t, t->pieces, reduces, gathers, err);
}

static coded prepare(direct *d, float *buf, double scale, const gradcomp_codec *codec, uint64_t counter,
                     float *residual)
{
	return (coded){.d = d,
	               .c = {.host = d->host, .links = d->links, .who = "direct", .codec = codec},
	               .buf = buf,
	               .scale = scale,
	               .counter = counter,
	               .residual = residual,
	               .rounds = coding_loses(codec, residual)};
}

/* Runs on one rank alone: nothing is coded, and so nothing lost. */
static gradcomp_status alone(direct *d, float *buf, uint64_t n, double scale, float *residual)
{
	if (residual)
		d->host->operators->fill(NULL, residual, 0, n);
	return scale == 1.0 ? GRADCOMP_OK : d->host->operators->scale_as(NULL, buf, scale, n, GRADCOMP_F32);
}

gradcomp_status direct_exchange(void *instance, const gradcomp_exchange *x, gradcomp_error *err)
{
	direct *d = instance;
	coded t = prepare(d, x->buf, x->scale, x->codec, x->counter, x->residual);
	if (d->nranks == 1)
		return alone(d, x->buf, x->count, x->scale, x->residual);
	t.server_error = x->server_error;
	blocks_split(d->offset, d->nranks, x->count, 1);
	return run(&t, 1, 1, err);
}

gradcomp_status direct_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	const gradcomp_exchange x = {.struct_size = sizeof x,
	                             .buf = buf,
	                             .count = count,
	                             .scale = scale,
	                             .codec = codec,
	                             .counter = counter,
	                             .residual = residual};
	return direct_exchange(instance, &x, err);
}

gradcomp_status direct_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err)
{
	direct *d = instance;
	coded t = prepare(d, buf, 1.0, codec, counter, residual);
	if (d->nranks == 1)
		return alone(d, buf, counts[0], 1.0, residual);
	blocks_given(d->offset, d->nranks, counts, 1);
	t.residual_from = d->offset[d->rank];
	return run(&t, 0, 1, err);
}

gradcomp_status direct_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err)
{
	direct *d = instance;
	coded t = prepare(d, buf, scale, codec, counter, residual);
	if (d->nranks == 1)
		return alone(d, buf, counts[0], scale, residual);
	blocks_given(d->offset, d->nranks, counts, 1);
	return run(&t, 1, 0, err);
}
