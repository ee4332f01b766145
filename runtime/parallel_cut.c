/* Pieces of work in runs of neighbours. */
#include "parallel.h"

/* As many pieces into every run as weigh no more than `most`. Returns whether all found a
 * place; the heaviest run is in *heaviest. */
static int fill(const double *weight, uint32_t n, uint32_t runs, double most, uint32_t *cut, double *heaviest)
{
	uint32_t at = 0;
	*heaviest = 0;
	for (uint32_t r = 0; r < runs; r++) {
		double sum = 0;
		cut[r] = at;
		while (at < n && sum + weight[at] <= most)
			sum += weight[at++];
		if (sum > *heaviest)
			*heaviest = sum;
	}
	cut[runs] = n;
	return at == n;
}

double parallel_cut(const double *weight, uint32_t n, uint32_t runs, uint32_t *cut)
{
	double too_little = 0, enough = 0, heaviest = 0;
	for (uint32_t i = 0; i < n; i++)
		enough += weight[i];
	/* Halving a double comes to its end: there is nothing between. */
	for (;;) {
		double most = too_little + (enough - too_little) / 2;
		if (most <= too_little || most >= enough)
			break;
		if (fill(weight, n, runs, most, cut, &heaviest))
			enough = heaviest;
		else
			too_little = most;
	}
	fill(weight, n, runs, enough, cut, &heaviest);
	return heaviest;
}
