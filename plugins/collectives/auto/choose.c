/* Which way is fastest: what its load costs over links as they were measured. */
#include "plugins/collectives/auto/auto_internal.h"

#include <stdarg.h>
#include <stdio.h>

/* Beyond this a buffer that is not cut into blocks is added from memory, not from the cache, while
 * nothing is on its way: what messages cost does not tell that. */
#define UNCUT_MOST (64u << 10)
/* Without one copy for all of them: longer blocks leave the caches when they are received (transport/shm), and who
 * passes them on reads them from memory again. What messages cost tells neither. */
#define PASSED_ON_MOST (1u << 20)

static const char *const names[WAYS] = {"doubled", "peers", "tree", "halved", "levels", "ring", "straight", "direct"};

static void set(way w, uint64_t *small, uint64_t *brief)
{
	*small = w == PEERS ? UNCUT_MOST : 0;
	*brief = w == DOUBLED ? UINT64_MAX : 0;
}

/* Returns 1 when it is a way of this call. */
static int serves(const auto_shape *s, way w, call_kind call, uint64_t bytes)
{
	switch (w) {
	case PEERS:
		return call == CALL_ALLREDUCE && s->nranks <= RING_AHEAD && bytes <= UNCUT_MOST;
	case DOUBLED:
		return call == CALL_ALLREDUCE && bytes <= UNCUT_MOST;
	case TREE:
		return call == CALL_ALLREDUCE || call == CALL_BROADCAST;
	case LEVELS:
		return call == CALL_ALLREDUCE && s->levels;
	case RING: /* a short broadcast is a tree there too */
		return call != CALL_BROADCAST || bytes > s->ring.piece;
	case ACROSS:
		return s->across && call != CALL_BROADCAST;
	case STRAIGHT:
		if (call != CALL_ALLGATHER && (call != CALL_ALLREDUCE || s->straight != DIRECT_ONE_COPY_LEAST))
			return 0;
		return s->straight && bytes / (uint64_t)s->nranks >= s->straight;
	default:
		return 1;
	}
}

/* Longer ones than were measured are on the line from the shortest to the longest: between the last two, noise
 * decides how steep it is. */
static double message(const double *t, double bytes)
{
	double longest = fit_sizes[FIT_SIZES - 1];
	int k = 1;
	if (bytes > longest)
		return t[0] + (t[FIT_SIZES - 1] - t[0]) * bytes / longest;
	while (k < FIT_SIZES - 1 && bytes > fit_sizes[k])
		k++;
	double from = fit_sizes[k - 1], to = fit_sizes[k];
	return bytes <= fit_sizes[0] ? t[0] : t[k - 1] + (t[k] - t[k - 1]) * (bytes - from) / (to - from);
}

/* An all-reduce is a reduce-scatter around the ring first. */
static void straight_cost(const auto_shape *s, call_kind call, uint64_t bytes, call_cost *l)
{
	*l = (call_cost){0};
	if (call == CALL_ALLREDUCE)
		ring_call_cost(&s->ring, CALL_REDUCE_SCATTER, bytes, l);
	call_cost_add_to_all(l, &s->to_all, s->nranks, (double)bytes / s->nranks);
}

/* Stripes to their ranks, and sums to all. */
static void across_cost(const auto_shape *s, call_kind call, uint64_t bytes, call_cost *l)
{
	*l = (call_cost){0};
	for (int k = 0; k < 1 + (call == CALL_ALLREDUCE); k++)
		call_cost_add_to_all(l, &s->to_all, s->nranks, (double)bytes / s->nranks);
	l->reduced = call == CALL_ALLGATHER ? 0 : (s->nranks - 1) * ((double)bytes / s->nranks);
}

static double seconds(auto_shape *s, way w, call_kind call, uint64_t bytes, call_cost *l)
{
	double sum = 0;
	set(w, &s->ring.small, &s->rhd->brief);
	if (w == PEERS || w == RING)
		ring_call_cost(&s->ring, call, bytes, l);
	else if (w == LEVELS)
		hier_call_cost(s->levels, bytes, l);
	else if (w == ACROSS)
		across_cost(s, call, bytes, l);
	else if (w == STRAIGHT)
		straight_cost(s, call, bytes, l);
	else if (w == TREE)
		tree_call_cost(&s->rhd->tree, call, bytes, l);
	else
		rhd_call_cost(s->rhd, call, bytes, l);
	for (int k = 0; k < l->n; k++)
		sum += l->round[k].times * message(s->fit.seconds[l->round[k].level], l->round[k].bytes) +
		       l->round[k].further * s->fit.further[l->round[k].level];
	return sum;
}

int auto_across(int nranks, int nnodes)
{
	return nnodes > 1 && nranks <= DIRECT_AHEAD + 1;
}

uint64_t auto_straight(int nranks, int nnodes, int one_copy)
{
	if (nnodes > 1)
		return 0;
	if (one_copy)
		return DIRECT_ONE_COPY_LEAST;
	return nranks <= DIRECT_AHEAD + 1 ? PASSED_ON_MOST : 0;
}

/* Returns 1 when blocks go straight to all others in place of how they would go by the best of the other ways. */
static int saves_copies(call_kind call, way best)
{
	return call == CALL_ALLGATHER || best == RING || best == HALVED;
}

way auto_best(auto_shape *s, call_kind call, uint64_t bytes, call_cost *out)
{
	way best = WAYS;
	double least = 0;
	call_cost l;
	for (way w = DOUBLED; w < WAYS; w++) {
		if (!serves(s, w, call, bytes))
			continue;
		double t = seconds(s, w, call, bytes, &l);
		/* A ring adds a piece while the next ones are on their way; the cost of messages
		 * does not tell that either. */
		if (w == RING)
			t *= 0.9;
		/* Nor that a block is copied once for all. */
		if (w == STRAIGHT)
			t *= 0.6;
		if (best == WAYS || t < least || (w == STRAIGHT && saves_copies(call, best))) {
			best = w;
			least = t;
			if (out)
				*out = l;
		}
	}
	return best;
}

way auto_choose(automatic *a, call_kind call, uint64_t bytes)
{
	if (!bytes || a->last[call].bytes != bytes) {
		a->last[call].way = auto_best(&a->shape, call, bytes, NULL);
		a->last[call].bytes = a->measured ? bytes : 0;
	}
	set(a->last[call].way, &a->ring->small, &a->rhd->shape.brief);
	return a->last[call].way;
}

__attribute__((format(printf, 4, 5))) static void add(char *out, size_t capacity, size_t *at, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(out + *at, capacity - *at, fmt, ap);
	va_end(ap);
	*at = n > 0 && (size_t)n < capacity - *at ? *at + (size_t)n : capacity - 1;
}

void auto_describe(automatic *a, char *out, size_t capacity)
{
	static const char *const calls[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast"};
	static const char units[] = " KMG";
	size_t at = 0;
	out[0] = 0;
	for (call_kind call = CALL_ALLREDUCE; call <= CALL_BROADCAST; call++) {
		way now = auto_choose(a, call, 1);
		add(out, capacity, &at, "%s%s: ", call ? "; " : "", calls[call]);
		for (int bit = 1; bit < 38; bit++) {
			way next = auto_choose(a, call, UINT64_C(1) << bit);
			if (next == now)
				continue;
			int u = (bit - 1) / 10;
			add(out, capacity, &at, "%s up to %d%.*s, ", names[now], 1 << (bit - 1) % 10, u > 0, units + u);
			now = next;
		}
		add(out, capacity, &at, "%s", names[now]);
	}
}

gradcomp_status auto_predict(const link_fit *fit, int32_t nranks, int32_t nnodes, size_t chunk, uint32_t primitive,
                             uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	ring_options pieces = {.chunk = chunk};
	auto_shape s = {.nranks = nranks, .fit = *fit};
	hier_shape levels;
	call_group g;
	call_cost l = {0};
	call_kind call = CALL_ALLREDUCE;
	gradcomp_status st;
	if (ring_sum_options(&pieces, nranks, &primitive) && nnodes > 1 && nnodes < nranks)
		return hier_predict(chunk, 0, nranks, nnodes, primitive, bytes, out, err);
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
		break;
	case GRADCOMP_CAN_REDUCE_SCATTER:
		call = CALL_REDUCE_SCATTER;
		break;
	case GRADCOMP_CAN_ALLGATHER:
		call = CALL_ALLGATHER;
		break;
	case GRADCOMP_CAN_BROADCAST:
		call = CALL_BROADCAST;
		break;
	case GRADCOMP_CAN_MERGE:
	case GRADCOMP_CAN_BARRIER:
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	case GRADCOMP_CAN_CODED_ALLREDUCE:
	case GRADCOMP_CAN_CODED_ALLGATHER:
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
		return ring_predict(&pieces, nranks, nnodes, primitive, bytes, out, err);
	default:
		return call_cost_refuse("auto", primitive, err);
	}
	st = call_group_open(&g, "auto", nranks, nnodes, err);
	if (st)
		return st;
	ring_scan(&s.ring, &g.links, 0, chunk, g.count);
	s.straight = auto_straight(nranks, nnodes, direct_copies_once(nranks));
	s.across = auto_across(nranks, nnodes);
	s.to_all = call_scan_to_all(&g.links, g.count);
	call_group_close(&g);
	st = rhd_even(&s.rhd, 0, nranks, nnodes, err);
	if (!st && nnodes > 1 && nnodes < nranks) {
		st = hier_even(&levels, chunk, 0, nranks, nnodes, err);
		s.levels = &levels;
	}
	if (st)
		return st;
	auto_best(&s, call, call_bytes(primitive, nranks, bytes), &l);
	call_cost_export(&l, out);
	return GRADCOMP_OK;
}
