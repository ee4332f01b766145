/* topk() against a sort. */
#ifndef TESTS_SUPPORT_SELECTION_SORTED_H
#define TESTS_SUPPORT_SELECTION_SORTED_H

#include "tests/support/selection_cases.h"

/* The places of x by magnitude, the largest first, equal ones by place. */
static uint32_t *sorted_places(const float *x, size_t n)
{
	uint32_t *from = malloc((n + 1) * sizeof *from), *to = malloc((n + 1) * sizeof *to);
	for (size_t i = 0; i < n; i++)
		from[i] = (uint32_t)i;
	for (int shift = 0; shift < 33; shift += 11) {
		size_t first[2049] = {0};
		for (size_t i = 0; i < n; i++)
			first[(~key_of(x[i]) >> shift & 2047) + 1]++;
		for (int b = 0; b < 2048; b++)
			first[b + 1] += first[b];
		for (size_t i = 0; i < n; i++)
			to[first[~key_of(x[from[i]]) >> shift & 2047]++] = from[i];
		uint32_t *swap = from;
		from = to;
		to = swap;
	}
	free(to);
	return from;
}

enum { SELECTION_TABLES = 3 };

/* Counts what has been found of one kind of numbers, by one table of operators. */
typedef struct selections {
	const char *name;
	const gradcomp_operators *op;
	size_t tried;
	size_t bad_n, bad_k; /* the first that was wrong; 0: none was */
	const char *wrong;
} selections;

static const char *selection_compare(selections *s, const float *x, const uint32_t *place, size_t n, size_t k)
{
	const size_t bytes = s->op->topk_scratch(n, k);
	float *val = test_alloc(k, 1), *idx = test_alloc(k, 2), *scratch = test_alloc(bytes / 4, 0);
	const char *wrong = NULL;
	s->op->topk(NULL, (uint32_t *)idx, val, x, n, k, scratch);
	for (size_t j = 0, before = 0; j < k && !wrong; j++) {
		uint32_t at;
		memcpy(&at, &idx[j], sizeof at);
		if (at < before)
			wrong = "indices that do not ascend";
		else if (at >= n)
			wrong = "an index past the end";
		else if (place[at] >= k)
			wrong = "a number that is none of the largest";
		else if (memcmp(&val[j], &x[at], sizeof *x))
			wrong = "a value that does not stand there";
		before = (size_t)at + 1;
	}
	if (!(test_free(val, k, 1) & test_free(idx, k, 2) & test_free(scratch, bytes / 4, 0)))
		wrong = "something written outside";
	return wrong;
}

static void selection_try(selections *s, size_t tables, int kind, size_t n)
{
	const size_t odd = 1 + test_random() % 8;
	float *x = selection_numbers(kind, n, odd);
	uint32_t *order = sorted_places(x, n), *place = malloc(n * sizeof *place);
	size_t k[SELECTION_TAKEN];
	selection_taken(k, n);
	for (size_t i = 0; i < n; i++)
		place[order[i]] = (uint32_t)i;
	for (size_t t = 0; t < tables; t++)
		for (int i = 0; i < SELECTION_TAKEN; i++, s[t].tried++) {
			const char *wrong = selection_compare(&s[t], x, place, n, k[i]);
			if (wrong && !s[t].bad_n) {
				s[t].wrong = wrong;
				s[t].bad_n = n;
				s[t].bad_k = k[i];
			}
		}
	free(order);
	free(place);
	test_free(x, n, odd);
}

/* Tries of each kind the edges and `drawn` other sizes, with every table that this machine runs. */
static void selections_are_sorted(size_t drawn)
{
	static const char *const names[SELECTION_TABLES] = {"portable", "avx2", "avx512"};
	for (int kind = 0; kind < SELECTION_KINDS; kind++) {
		selections s[SELECTION_TABLES] = {{0}};
		size_t tables = 0;
		for (int i = 0; i < SELECTION_TABLES; i++) {
			const gradcomp_operators *op = operators_cpu_variant(names[i]);
			if (op)
				s[tables++] = (selections){.name = names[i], .op = op};
		}
		for (size_t i = 0; i < SELECTION_EDGES + drawn; i++)
			selection_try(s, tables, kind, selection_size(i));
		for (size_t t = 0; t < tables; t++) {
			ok(!s[t].bad_n, "%s, %s: %zu selections are the sort's", s[t].name, selection_kind(kind),
			   s[t].tried);
			if (s[t].bad_n)
				printf("# %zu of %zu numbers: %s\n", s[t].bad_k, s[t].bad_n, s[t].wrong);
		}
	}
}

#endif
