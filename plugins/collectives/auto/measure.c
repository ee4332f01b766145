/* Measures what a message costs here, by its length.
 *
 * Two ranks of each node, and the first ranks of two nodes, exchange messages, all such
 * pairs at once, as in a collective. One of a pair leads: it says how long the next
 * message is, and takes the time. Messages grow until one takes so long that what is
 * longer can be told from it: over slow links too that is some 20 ms. The slowest pair
 * counts, and all ranks take up the same numbers, so that they always choose alike. */
#include "plugins/collectives/auto/auto_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const uint32_t fit_sizes[FIT_SIZES] = {8, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};
#define LONGEST fit_sizes[FIT_SIZES - 1]
#define LONG_ENOUGH 3e-3 /* s */
#define QUICK 5e-4       /* s; what is longer than such a message is sampled as often as short ones */
enum { SAMPLES = 7, SAMPLES_LONG = 2, SHORT_SIZES = 4 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gradcomp_status both_ways(const gradcomp_links *l, int peer, const void *out, void *in, size_t bytes,
                                 gradcomp_request req[2], gradcomp_error *err)
{
	gradcomp_status st = l->recv(l->ctx, peer, in, bytes, &req[0], err);
	if (!st)
		st = l->send(l->ctx, peer, out, bytes, &req[1], err);
	if (!st)
		st = l->wait(l->ctx, &req[0], err);
	return st ? st : l->wait(l->ctx, &req[1], err);
}

/* Measures the seconds of one exchange and of the word before it. 0 bytes: the last word. */
static gradcomp_status lead(automatic *a, int peer, char *scratch, uint64_t bytes, double *seconds, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_request req[2], word;
	double begin = now();
	gradcomp_status st = l->send(l->ctx, peer, &bytes, sizeof bytes, &word, err);
	if (!st && bytes)
		st = both_ways(l, peer, scratch, scratch + LONGEST, bytes, req, err);
	if (!st)
		st = l->wait(l->ctx, &word, err);
	*seconds = now() - begin;
	return st;
}

static gradcomp_status follow(automatic *a, int peer, char *scratch, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_request req[2];
	gradcomp_status st = GRADCOMP_OK;
	uint64_t bytes = 1;
	while (!st && bytes) {
		st = l->recv(l->ctx, peer, &bytes, sizeof bytes, &req[0], err);
		if (!st)
			st = l->wait(l->ctx, &req[0], err);
		if (!st && bytes > LONGEST)
			st = a->host->fail(err, GRADCOMP_ERR_MISMATCH,
			                   "auto: rank %d of the group measures with %llu bytes, at most "
			                   "%u are possible",
			                   peer, (unsigned long long)bytes, (unsigned)LONGEST);
		if (!st && bytes)
			st = both_ways(l, peer, scratch, scratch + LONGEST, bytes, req, err);
	}
	return st;
}

/* Takes the middle of n exchanges; of two the shorter. */
static gradcomp_status sample(automatic *a, int peer, char *scratch, uint64_t bytes, int n, double *seconds,
                              gradcomp_error *err)
{
	double t[SAMPLES] = {0}, one;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < n; k++) {
		int at = k;
		st = lead(a, peer, scratch, bytes, &one, err);
		for (; at > 0 && t[at - 1] > one; at--)
			t[at] = t[at - 1];
		t[at] = one;
	}
	*seconds = st ? 0 : t[(n - 1) / 2];
	return st;
}

static gradcomp_status measure_pair(automatic *a, int peer, char *scratch, double *t, gradcomp_error *err)
{
	double word = 0;
	/* The first ones connect. */
	gradcomp_status st = sample(a, peer, scratch, fit_sizes[0], 2, &word, err);
	for (int k = 0; !st && k < FIT_SIZES; k++) {
		if (k && t[k - 1] > LONG_ENOUGH) {
			t[k] = t[k - 1] * fit_sizes[k] / fit_sizes[k - 1];
			continue;
		}
		st = sample(a, peer, scratch, fit_sizes[k],
		            k < SHORT_SIZES || t[k - 1] < QUICK ? SAMPLES : SAMPLES_LONG, &t[k], err);
		if (k == 0)
			word = t[0] / 2;
		t[k] -= word;
		/* A disturbance of a shorter one makes it longer. */
		for (int j = k; j-- > 0 && t[j] > t[k];)
			t[j] = t[k];
	}
	return st ? st : lead(a, peer, scratch, 0, &word, err);
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
	double *t = out->seconds[0];
	int n = 0;
	for (const char *at = text;; at++) {
		size_t digits = strspn(at, "0123456789");
		if (!digits || digits > 12 || n == CALL_LEVELS * FIT_SIZES)
			return -1;
		t[n++] = 1e-9 * (double)strtoll(at, NULL, 10);
		at += digits;
		if (!*at)
			return n == FIT_SIZES || n == CALL_LEVELS * FIT_SIZES ? 0 : -1;
		if (*at != '/')
			return -1;
	}
}

/* Writes what auto_fit_read() takes: a job with it chooses as this one. */
static void fit_write(link_fit *fit, int ways, char *out, size_t capacity)
{
	size_t at = 0;
	for (int k = 0; k < ways * FIT_SIZES && at < capacity; k++)
		at += (size_t)snprintf(out + at, capacity - at, "%s%.0f", k ? "/" : "",
		                       1e9 * fit->seconds[k / FIT_SIZES][k % FIT_SIZES]);
	auto_fit_read(out, fit);
}

gradcomp_status auto_measure(automatic *a, gradcomp_error *err)
{
	const gradcomp_links *l = a->links;
	gradcomp_status st = GRADCOMP_OK;
	char text[400], fit[CALL_LEVELS * FIT_SIZES * 16];
	if (a->measured || l->nranks == 1)
		return GRADCOMP_OK;
	double begin = now();
	char *scratch = a->host->alloc(2 * (size_t)LONGEST);
	if (!scratch)
		return a->host->fail(err, GRADCOMP_ERR_NOMEM, "auto: no memory for messages to measure with");
	for (int k = 0; !st && k < CALL_LEVELS; k++) {
		int peer = partner(l, k);
		if (peer >= 0)
			st = l->rank < peer ? measure_pair(a, peer, scratch, a->shape.fit.seconds[k], err)
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
