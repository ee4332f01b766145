/* Measures what a message costs here, by its length.
 *
 * Two ranks of each node, and the first ranks of two nodes, exchange messages, all such
 * pairs at once, as in a collective. One of a pair leads: it says how long the next
 * message is, and takes the time. Messages grow until one takes so long that what is
 * longer can be told from it: over slow links too that is some 20 ms. How much longer
 * several short ones take that are posted at once says what a further one costs: where
 * links have a latency, far less than the first. The slowest pair counts, and all ranks
 * take up the same numbers, so that they always choose alike. */
#include "plugins/collectives/auto/auto_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const uint32_t fit_sizes[FIT_SIZES] = {8, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
#define LONGEST fit_sizes[FIT_SIZES - 1]
#define LONG_ENOUGH 3e-3 /* s */
#define QUICK 5e-4       /* s; what is longer than such a message is sampled as often as short ones */
enum { SAMPLES = 7, SAMPLES_LONG = 2, SHORT_SIZES = 4, AT_ONCE = 5, AT_ONCE_MOST = 8 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* So many messages of so many bytes each way. */
typedef struct exchange {
	uint32_t bytes, messages;
} exchange;

static gradcomp_status both_ways(const gradcomp_links *l, int peer, exchange x, char *scratch, gradcomp_error *err)
{
	gradcomp_request req[2 * AT_ONCE_MOST];
	gradcomp_status st = GRADCOMP_OK;
	uint32_t posted = 0, waited = 0;
	for (uint32_t k = 0; !st && k < x.messages; k++) {
		size_t at = (size_t)k * x.bytes;
		st = l->recv(l->ctx, peer, scratch + LONGEST + at, x.bytes, &req[posted], err);
		posted += !st;
		if (!st)
			st = l->send(l->ctx, peer, scratch + at, x.bytes, &req[posted], err);
		posted += !st;
	}
	while (!st && waited < posted)
		st = l->wait(l->ctx, &req[waited++], err);
	return st;
}

/* Measures the seconds of one exchange and of the word before it. No messages: the last word. */
static gradcomp_status lead(automatic *a, int peer, char *scratch, exchange x, double *seconds, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_request word;
	double begin = now();
	gradcomp_status st = l->send(l->ctx, peer, &x, sizeof x, &word, err);
	if (!st && x.messages)
		st = both_ways(l, peer, x, scratch, err);
	if (!st)
		st = l->wait(l->ctx, &word, err);
	*seconds = now() - begin;
	return st;
}

static gradcomp_status follow(automatic *a, int peer, char *scratch, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_request word;
	gradcomp_status st = GRADCOMP_OK;
	exchange x = {.messages = 1};
	while (!st && x.messages) {
		st = l->recv(l->ctx, peer, &x, sizeof x, &word, err);
		if (!st)
			st = l->wait(l->ctx, &word, err);
		if (!st && (x.messages > AT_ONCE_MOST || (uint64_t)x.bytes * x.messages > LONGEST))
			st = a->host->fail(err, GRADCOMP_ERR_MISMATCH,
			                   "auto: rank %d of the group measures with %u messages of %u bytes, at most "
			                   "%d and %u bytes together are possible",
			                   peer, (unsigned)x.messages, (unsigned)x.bytes, AT_ONCE_MOST,
			                   (unsigned)LONGEST);
		if (!st && x.messages)
			st = both_ways(l, peer, x, scratch, err);
	}
	return st;
}

/* Takes the middle of n exchanges; of two the shorter. */
static gradcomp_status sample(automatic *a, int peer, char *scratch, exchange x, int n, double *seconds,
                              gradcomp_error *err)
{
	double t[SAMPLES] = {0}, one;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < n; k++) {
		int at = k;
		st = lead(a, peer, scratch, x, &one, err);
		for (; at > 0 && t[at - 1] > one; at--)
			t[at] = t[at - 1];
		t[at] = one;
	}
	*seconds = st ? 0 : t[(n - 1) / 2];
	return st;
}

/* Measures what a message takes by its length, and what a further one. */
static gradcomp_status measure_pair(automatic *a, int peer, char *scratch, double *t, double *further,
                                    gradcomp_error *err)
{
	double word = 0, several = 0;
	/* The first ones connect. */
	gradcomp_status st = sample(a, peer, scratch, (exchange){fit_sizes[0], 1}, 2, &word, err);
	const int few = word > LONG_ENOUGH ? SAMPLES_LONG : SAMPLES;
	for (int k = 0; !st && k < FIT_SIZES; k++) {
		if (k && t[k - 1] - t[0] > LONG_ENOUGH) {
			t[k] = t[0] + (t[k - 1] - t[0]) * fit_sizes[k] / fit_sizes[k - 1];
			continue;
		}
		st = sample(a, peer, scratch, (exchange){fit_sizes[k], 1},
		            k < SHORT_SIZES || t[k - 1] < QUICK ? few : SAMPLES_LONG, &t[k], err);
		if (k == 0)
			word = t[0] / 2;
		t[k] -= word;
		/* A disturbance of a shorter one makes it longer. */
		for (int j = k; j-- > 0 && t[j] > t[k];)
			t[j] = t[k];
	}
	if (!st)
		st = sample(a, peer, scratch, (exchange){fit_sizes[0], AT_ONCE}, few, &several, err);
	*further = (several - word - t[0]) / (AT_ONCE - 1);
	*further = *further < 0 ? 0 : *further > CALL_FURTHER * t[0] ? CALL_FURTHER * t[0] : *further;
	return st ? st : lead(a, peer, scratch, (exchange){0}, &several, err);
}

/* Chooses the rank to measure with: within the node, or between nodes by their first ranks; -1: none. */
static int partner(const gradcomp_links *l, int way)
{
	int mine = l->node[l->rank], before = 0, last = -1, next = -1, first = -1, other = mine ^ 1;
	for (int r = 0; r < l->nranks; r++) {
		if (r < l->rank && l->node[r] == mine)
			before++, last = r;
		if (r > l->rank && next < 0 && l->node[r] == mine)
			next = r;
		if (l->node[r] == other && first < 0)
			first = r;
	}
	if (way == CALL_WITHIN)
		return before % 2 ? last : next;
	return before ? -1 : first;
}

int auto_fit_read(const char *text, link_fit *out)
{
	*out = (link_fit){0};
	double t[CALL_LEVELS * (FIT_SIZES + 1)] = {0};
	int n = 0;
	for (const char *at = text;; at++) {
		size_t digits = strspn(at, "0123456789");
		if (!digits || digits > 12 || n == CALL_LEVELS * (FIT_SIZES + 1))
			return -1;
		t[n++] = 1e-9 * (double)strtoll(at, NULL, 10);
		at += digits;
		if (!*at)
			break;
		if (*at != '/')
			return -1;
	}
	const int with = n % (FIT_SIZES + 1) == 0, each = FIT_SIZES + with;
	if (n % each || n / each > CALL_LEVELS)
		return -1;
	for (int k = 0; k < n / each; k++) {
		memcpy(out->seconds[k], t + k * each, sizeof out->seconds[k]);
		out->further[k] = with ? t[k * each + FIT_SIZES] : CALL_FURTHER * out->seconds[k][0];
	}
	return 0;
}

/* Writes what auto_fit_read() takes: a job with it chooses as this one. */
static void fit_write(link_fit *fit, int ways, char *out, size_t capacity)
{
	size_t at = 0;
	for (int k = 0; k < ways * (FIT_SIZES + 1) && at < capacity; k++) {
		const int level = k / (FIT_SIZES + 1), size = k % (FIT_SIZES + 1);
		at += (size_t)snprintf(out + at, capacity - at, "%s%.0f", k ? "/" : "",
		                       1e9 * (size < FIT_SIZES ? fit->seconds[level][size] : fit->further[level]));
	}
	auto_fit_read(out, fit);
}

gradcomp_status auto_measure(automatic *a, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_status st = GRADCOMP_OK;
	char text[400], fit[CALL_LEVELS * (FIT_SIZES + 1) * 16];
	if (a->measured || l->nranks == 1)
		return GRADCOMP_OK;
	double begin = now();
	char *scratch = a->host->alloc(2 * (size_t)LONGEST);
	if (!scratch)
		return a->host->fail(err, GRADCOMP_ERR_NOMEM, "auto: no memory for messages to measure with");
	for (int k = 0; !st && k < CALL_LEVELS; k++) {
		int peer = partner(l, k);
		if (peer >= 0)
			st = l->rank < peer ? measure_pair(a, peer, scratch, a->shape.fit.seconds[k],
			                                   &a->shape.fit.further[k], err)
			                    : follow(a, peer, scratch, err);
	}
	a->host->release(scratch);
	if (!st)
		st = rhd_allreduce(a->rhd, &a->shape.fit, sizeof a->shape.fit / sizeof a->shape.fit.seconds[0][0],
		                   GRADCOMP_F64, GRADCOMP_MAX, 1.0, err);
	a->measured = !st;
	if (st)
		return st;
	fit_write(&a->shape.fit, l->nnodes > 1 ? CALL_LEVELS : 1, fit, sizeof fit);
	if (l->rank != 0)
		return GRADCOMP_OK;
	auto_describe(a, text, sizeof text);
	a->host->log(a->host->ctx, GRADCOMP_LOG_INFO, "auto: %d ranks on %d nodes: %s; measured in %.0f ms, fit=%s",
	             l->nranks, l->nnodes, text, 1e3 * (now() - begin), fit);
	return GRADCOMP_OK;
}
