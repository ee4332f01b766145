#include "load.h"

int load_shift(int p, int d, int n)
{
	return (p + d) % n;
}

int load_senders(const gradcomp_links *l, const int *order, load_trip *to, int d, int32_t *count)
{
	int32_t most = 0;
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int p = 0; p < l->nranks; p++) {
		int q = to(p, d, l->nranks);
		if (q < 0)
			continue;
		int32_t from = l->node[order ? order[p] : p];
		if (from != l->node[order ? order[q] : q] && ++count[from] > most)
			most = count[from];
	}
	return (int)most;
}
