/* rhd's instance, its circle, and its calls as trips of blocks. */
#include "rhd.h"

#include "blocks.h"
#include "disseminate.h"

/* ---- the circle ---- */

/* Ranks a node when all nodes have as many, else 0. count: nnodes numbers. */
static int even_nodes(const gradcomp_links *l, int32_t *count)
{
	for (int r = 0; r < l->nranks; r++)
		count[l->node[r]]++;
	for (int k = 1; k < l->nnodes; k++)
		if (count[k] != count[0])
			return 0;
	return count[0];
}

/* Places go around the nodes: the first ranks of all nodes, then the second ones. */
static void go_around(rhd *r, int32_t *count)
{
	const gradcomp_links *l = r->links;
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int i = 0; i < l->nranks; i++) {
		int place = count[l->node[i]]++ * l->nnodes + l->node[i];
		r->order[place] = i;
		r->place_of[i] = place;
	}
}

/* `step`: what skips should be multiples of. */
static void choose_skips(rhd *r, int step)
{
	for (int s = r->nranks; s >= 1; r->nskips++) {
		r->skip[r->nskips] = s;
		int half = (s + 1) / 2, even = (half + step - 1) / step * step;
		s = s == 1 ? 0 : even < s ? even : half;
	}
}

static int fold(int p, int d, int n)
{
	return p < d && p + d < n ? p + d : -1;
}

static int partner(int p, int d, int n)
{
	int full = 1;
	while (full <= n / 2)
		full *= 2;
	return p < full ? p ^ d : -1;
}

static void draw_circle(rhd *r, int32_t *count)
{
	const gradcomp_links *l = r->links;
	int even = even_nodes(l, count), around = even > 1 && l->nnodes > 1;
	if (around) {
		go_around(r, count);
	} else {
		r->host->release(r->order);
		r->host->release(r->place_of);
		r->order = r->place_of = NULL;
	}
	r->place = r->place_of ? r->place_of[r->rank] : r->rank;
	choose_skips(r, around ? l->nnodes : 1);
	for (int k = 0; k < r->nskips; k++)
		r->senders[k] = load_senders(l, r->order, load_shift, r->skip[k], count);
	r->doubling[0] = load_senders(l, r->order, fold, r->full, count);
	for (int k = 1, d = 1; d < r->full; d *= 2, k++)
		r->doubling[k] = load_senders(l, r->order, partner, d, count);
}

/* ---- the instance ---- */

gradcomp_status rhd_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, uint64_t brief,
                           rhd **out, gradcomp_error *err)
{
	size_t P = (size_t)links->nranks;
	rhd *r = host->alloc(sizeof *r);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	gradcomp_status st = GRADCOMP_ERR_NOMEM;
	if (r)
		r->host = host;
	if (!r || !count)
		goto nomem;
	r->links = links;
	r->rank = links->rank;
	r->nranks = links->nranks;
	r->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	r->brief = brief;
	for (r->full = 1; r->full <= links->nranks / 2; r->full *= 2)
		;
	r->offset = host->alloc((P + 1) * sizeof *r->offset);
	r->order = host->alloc(P * sizeof *r->order);
	r->place_of = host->alloc(P * sizeof *r->place_of);
	if (!r->offset || !r->order || !r->place_of)
		goto nomem;
	st = tree_create(host, links, chunk, &r->tree, err);
	if (st)
		goto fail;
	draw_circle(r, count);
	host->release(count);
	*out = r;
	return GRADCOMP_OK;
nomem:
	st = host->fail(err, st, "rhd: no memory for an instance of %d ranks", links->nranks);
fail:
	host->release(count);
	rhd_destroy(r);
	return st;
}

void rhd_destroy(void *instance)
{
	rhd *r = instance;
	if (!r)
		return;
	const gradcomp_host *host = r->host;
	tree_destroy(r->tree);
	host->release(r->place_of);
	host->release(r->order);
	host->release(r->offset);
	host->release(r->room);
	host->release(r);
}

/* ---- calls ---- */

/* All blocks of place v end reduced at place v. */
static gradcomp_status halve(rhd *r, const rhd_blocks *c, gradcomp_error *err)
{
	int P = r->nranks, v = r->place;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k + 1 < r->nskips; k++) {
		int s = r->skip[k + 1], n = r->skip[k] - s, to = (v + s) % P;
		st = rhd_trip(r, c, &(rhd_run){to, to, n}, &(rhd_run){(v + P - s) % P, v, n}, err);
	}
	return st;
}

/* The way back: the block of place v goes from place v to everybody. */
static gradcomp_status gather(rhd *r, const rhd_blocks *c, gradcomp_error *err)
{
	int P = r->nranks, v = r->place;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = r->nskips - 1; !st && k > 0; k--) {
		int s = r->skip[k], n = r->skip[k - 1] - s, from = (v + s) % P;
		st = rhd_trip(r, c, &(rhd_run){(v + P - s) % P, v, n}, &(rhd_run){from, from, n}, err);
	}
	return st;
}

/* Block `b` of c, which this rank has the sum of. */
static gradcomp_status scale_block(rhd *r, const rhd_blocks *c, int b, double scale, gradcomp_error *err)
{
	uint64_t n = (c->offset[b + 1] - c->offset[b]) / gradcomp_dtype_bytes(c->dtype);
	if (scale != 1.0 && n && r->host->operators->scale_as(NULL, c->buf + c->offset[b], scale, n, c->dtype))
		return r->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "rhd: elements of type %d cannot be scaled", (int)c->dtype);
	return GRADCOMP_OK;
}

static gradcomp_status halved(rhd *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                              gradcomp_error *err)
{
	rhd_blocks c = {.buf = buf, .offset = r->offset, .reduce = 1, .dtype = dtype, .op = op};
	gradcomp_status st;
	blocks_split(r->offset, r->nranks, count, gradcomp_dtype_bytes(dtype));
	st = halve(r, &c, err);
	if (!st)
		st = scale_block(r, &c, r->place, scale, err);
	c.reduce = 0;
	return st ? st : gather(r, &c, err);
}

gradcomp_status rhd_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                              double scale, gradcomp_error *err)
{
	rhd *r = instance;
	if (!count)
		return GRADCOMP_OK;
	if (r->nranks == 1)
		return scale == 1.0 ? GRADCOMP_OK : r->host->operators->scale_as(NULL, buf, scale, count, dtype);
	return (count * gradcomp_dtype_bytes(dtype) <= r->brief ? rhd_doubled : halved)(r, buf, count, dtype, op, scale,
	                                                                                  err);
}

gradcomp_status rhd_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                   gradcomp_op op, double scale, gradcomp_error *err)
{
	rhd *r = instance;
	rhd_blocks c = {.buf = buf, .offset = r->offset, .place_of = r->place_of, .reduce = 1, .dtype = dtype, .op = op};
	gradcomp_status st;
	blocks_given(r->offset, r->nranks, counts, gradcomp_dtype_bytes(dtype));
	st = halve(r, &c, err);
	return st ? st : scale_block(r, &c, r->rank, scale, err);
}

gradcomp_status rhd_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	rhd *r = instance;
	rhd_blocks c = {.buf = buf, .offset = r->offset, .place_of = r->place_of};
	blocks_given(r->offset, r->nranks, bytes, 1);
	return gather(r, &c, err);
}

/* van de Geijn 1994. A rank that has the blocks of n places from `a` on, counted from
 * the root's, gives those from a + s on to the rank at place a + s. */
static gradcomp_status scatter(rhd *r, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	rhd_blocks c = {.buf = buf, .offset = r->offset};
	int P = r->nranks, base = r->place_of ? r->place_of[root] : root, me = (r->place - base + P) % P, a = 0, n = P;
	const rhd_run nothing = {0, 0, 0};
	gradcomp_status st = GRADCOMP_OK;
	blocks_split(r->offset, P, bytes, 1);
	for (int k = 1; !st && k < r->nskips; k++) {
		int s = r->skip[k], there = (base + a + s) % P, here = (base + a) % P;
		if (n <= s)
			continue;
		if (me == a)
			st = rhd_trip(r, &c, &(rhd_run){there, there, n - s}, &nothing, err);
		else if (me == a + s)
			st = rhd_trip(r, &c, &nothing, &(rhd_run){here, there, n - s}, err);
		if (me < a + s) {
			n = s;
		} else {
			a += s;
			n -= s;
		}
	}
	return st ? st : gather(r, &c, err);
}

gradcomp_status rhd_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	rhd *r = instance;
	if (r->nranks == 1 || !bytes)
		return GRADCOMP_OK;
	return bytes <= r->brief ? tree_broadcast(r->tree, buf, bytes, root, err) : scatter(r, buf, bytes, root, err);
}

gradcomp_status rhd_barrier(void *instance, gradcomp_error *err)
{
	const rhd *r = instance;
	return disseminate(r->links, err);
}

/* ---- what they cost ---- */

static void load_doubled(const rhd *r, uint64_t bytes, load *out)
{
	if (r->full < r->nranks)
		load_add(out, r->doubling[0], 2, (double)bytes);
	for (int k = 1, d = 1; d < r->full; d *= 2, k++)
		load_add(out, r->doubling[k], 1, (double)bytes);
}

void rhd_load(const rhd *r, load_call call, uint64_t bytes, load *out)
{
	int both = call == LOAD_ALLREDUCE || call == LOAD_BROADCAST;
	out->n = 0;
	if (both && bytes <= r->brief) {
		if (call == LOAD_ALLREDUCE)
			load_doubled(r, bytes, out);
		else
			tree_load(r->tree, call, bytes, out);
		return;
	}
	for (int k = 1; k < r->nskips; k++)
		load_add(out, r->senders[k], 1 + both, (double)bytes / r->nranks * (r->skip[k - 1] - r->skip[k]));
}

void rhd_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const rhd *r = instance;
	int trips = 0;
	load l;
	rhd_load(r, LOAD_ALLREDUCE, bytes, &l);
	*messages = load_messages(&l);
	*sent = 2.0 * (r->nranks - 1) / r->nranks * (double)bytes;
	if (bytes > r->brief)
		return;
	while (1 << trips < r->full)
		trips++;
	*sent = (double)bytes * (r->place >= r->full ? 1 : trips + (r->place + r->full < r->nranks));
}
