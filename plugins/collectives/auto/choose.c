/* Which way is fastest: what its load costs over links as they were measured. */
#include "auto.h"

#include <stdarg.h>
#include <stdio.h>

/* Beyond this a buffer that goes whole is added from memory, not from the cache, while
 * nothing is on its way: what messages cost does not tell that. */
#define WHOLE_MOST (64u << 10)

static const char *const names[WAYS] = {"doubled", "peers", "tree", "halved", "levels", "ring"};

void auto_set(automatic *a, way w)
{
	a->ring->small = w == PEERS ? WHOLE_MOST : 0;
	a->rhd->brief = w == DOUBLED ? UINT64_MAX : 0;
}

/* Whether it is a way of this call. */
static int serves(const automatic *a, way w, load_call call, uint64_t bytes)
{
	switch (w) {
	case PEERS:
		return call == LOAD_ALLREDUCE && a->links->nranks <= RING_AHEAD && bytes <= WHOLE_MOST;
	case DOUBLED:
		return call == LOAD_ALLREDUCE && bytes <= WHOLE_MOST;
	case TREE:
		return call == LOAD_ALLREDUCE || call == LOAD_BROADCAST;
	case LEVELS:
		return call == LOAD_ALLREDUCE && a->levels;
	case RING: /* a short broadcast is a tree there too */
		return call != LOAD_BROADCAST || bytes > a->ring->piece;
	default:
		return 1;
	}
}

static double message(const double *t, double bytes)
{
	int k = 1;
	while (k < FIT_SIZES - 1 && bytes > fit_sizes[k])
		k++;
	double from = fit_sizes[k - 1], to = fit_sizes[k];
	return bytes <= fit_sizes[0] ? t[0] : t[k - 1] + (t[k] - t[k - 1]) * (bytes - from) / (to - from);
}

static double seconds(automatic *a, way w, load_call call, uint64_t bytes)
{
	double sum = 0;
	load l;
	auto_set(a, w);
	if (w == PEERS || w == RING)
		ring_load(a->ring, a->senders, call, bytes, &l);
	else if (w == LEVELS)
		hier_load(a->levels, bytes, &l);
	else if (w == TREE)
		tree_load(a->rhd->tree, call, bytes, &l);
	else
		rhd_load(a->rhd, call, bytes, &l);
	for (int k = 0; k < l.n; k++)
		sum += l.trip[k].times * message(a->fit.seconds[l.trip[k].way], l.trip[k].bytes);
	return sum;
}

way auto_choose(automatic *a, load_call call, uint64_t bytes)
{
	way best = WAYS;
	double least = 0;
	for (way w = DOUBLED; w < WAYS; w++) {
		if (!serves(a, w, call, bytes))
			continue;
		double s = seconds(a, w, call, bytes);
		/* A ring adds a piece while the next ones are on their way; the cost of messages
		 * does not tell that either. */
		if (w == RING)
			s *= 0.9;
		if (best == WAYS || s < least) {
			best = w;
			least = s;
		}
	}
	auto_set(a, best);
	return best;
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
	for (load_call call = LOAD_ALLREDUCE; call <= LOAD_BROADCAST; call++) {
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
