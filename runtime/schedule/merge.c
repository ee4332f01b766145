/* The merge plans that others have published; merge_dp.c has the optimum. */
#include "schedule/merge.h"

#include <string.h>

static double exchange(const merge_problem *p, uint64_t numel)
{
	return p->a + p->b * (double)numel;
}

static double select_time(const merge_problem *p, uint64_t numel)
{
	return p->select_a + p->select_b * (double)numel;
}

static int fits(const merge_problem *p, uint64_t numel)
{
	return !p->max_numel || numel <= p->max_numel;
}

void merge_wfbp(const merge_problem *p, uint8_t *cut)
{
	memset(cut, 1, p->n);
}

void merge_single(const merge_problem *p, uint8_t *cut)
{
	merge_fixed(p, UINT64_MAX, UINT64_MAX, cut);
}

void merge_fixed(const merge_problem *p, uint64_t first, uint64_t numel, uint8_t *cut)
{
	uint64_t has = 0, full = first;
	for (uint32_t i = 0; i < p->n; i++) {
		has += p->numel[i];
		cut[i] = i + 1 == p->n || has >= full || !fits(p, has + p->numel[i + 1]);
		if (cut[i]) {
			has = 0;
			full = numel;
		}
	}
}

int merge_mgwfbp(const merge_problem *p, uint8_t *cut)
{
	double end = 0, ready = 0; /* `end`: of the last bucket that is cut off; `ready`: of tensor i */
	uint64_t has = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		double start, next;

		ready += p->backward[i];
		has += p->numel[i];
		cut[i] = 1;
		start = end > ready ? end : ready;
		if (i + 1 < p->n && fits(p, has + p->numel[i + 1])) {
			next = ready + p->backward[i + 1];
			if (start + exchange(p, has) > next && (start > next || next - start < p->a))
				cut[i] = 0;
		}
		if (cut[i]) {
			end = start + exchange(p, has);
			has = 0;
		}
	}
	return 0;
}

/* t_wait < t_save, with everything linear: merging saves one a, and one select_a of the
 * stream. */
int merge_omgs(const merge_problem *p, uint8_t *cut)
{
	double end = 0, stream = 0; /* the stream is at the end of tensor i's backward pass */
	uint64_t has = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		double selected, start;

		stream += p->backward[i];
		has += p->numel[i];
		cut[i] = 1;
		selected = stream + select_time(p, has);
		start = end > selected ? end : selected;
		if (i + 1 < p->n && fits(p, has + p->numel[i + 1]))
			cut[i] = !(p->backward[i + 1] - p->select_a - (start - selected) < p->a);
		if (cut[i]) {
			end = start + exchange(p, has);
			stream = selected;
			has = 0;
		}
	}
	return 0;
}

double merge_end(const merge_problem *p, const uint8_t *cut)
{
	double end = 0, ready = 0;
	uint64_t has = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		ready += p->backward[i];
		has += p->numel[i];
		if (!cut[i])
			continue;
		ready += select_time(p, has);
		end = (end > ready ? end : ready) + exchange(p, has);
		has = 0;
	}
	return end;
}
