#include "plugins/common/collectives/call_cost.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int call_shift(int p, int d, int n)
{
	return (int)(((int64_t)p + d) % n);
}

int call_chain(int p, int d, int n)
{
	return d < n - p ? p + d : -1;
}

int call_halving(int p, int d, int n)
{
	return p % (2 * (int64_t)d) == 0 && d < n - p ? p + d : -1;
}

call_senders call_count_senders(const gradcomp_links *l, const int *order, call_peer *to, int d, int32_t *count)
{
	call_senders s = {0};
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int p = 0; p < l->nranks; p++) {
		int q = to(p, d, l->nranks);
		if (q < 0)
			continue;
		int32_t from = l->node[order ? order[p] : p];
		s.sent++;
		if (from == l->node[order ? order[q] : q])
			continue;
		s.left++;
		if (++count[from] > s.most)
			s.most = count[from];
	}
	s.sent /= l->nranks;
	s.left /= l->nnodes;
	return s;
}

call_senders call_scan_to_all(const gradcomp_links *l, int32_t *count)
{
	call_senders s = {.sent = l->nranks - 1.0};
	for (int k = 0; k < l->nnodes; k++)
		count[k] = 0;
	for (int p = 0; p < l->nranks; p++)
		count[l->node[p]]++;
	for (int k = 0; k < l->nnodes; k++) {
		int64_t leave = (int64_t)count[k] * (l->nranks - count[k]);
		s.most = leave > s.most ? (int)(leave < INT_MAX ? leave : INT_MAX) : s.most;
		s.left += (double)leave / l->nnodes;
	}
	return s;
}

void call_cost_barrier(const gradcomp_links *links, int32_t *count, call_cost *out)
{
	*out = (call_cost){0};
	for (int64_t d = 1; d < links->nranks; d *= 2) {
		call_senders s = call_count_senders(links, NULL, call_shift, (int)d, count);
		call_cost_add(out, &s, 1, 1);
	}
}

__attribute__((format(printf, 3, 4))) static gradcomp_status fail(gradcomp_error *err, gradcomp_status st,
                                                                  const char *fmt, ...)
{
	va_list ap;
	if (!err)
		return st;
	err->status = st;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof err->text, fmt, ap);
	va_end(ap);
	return st;
}

void call_cost_nomem(const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err)
{
	fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory to look at %d ranks on %d nodes", who, nranks, nnodes);
}

gradcomp_status call_group_open(call_group *g, const char *who, int32_t nranks, int32_t nnodes, gradcomp_error *err)
{
	*g = (call_group){0};
	if (nranks < 1 || nnodes < 1 || nnodes > nranks)
		return fail(err, GRADCOMP_ERR_INVALID, "%s: there is no group of %d ranks on %d nodes", who, nranks,
		            nnodes);
	int32_t *node = malloc(((size_t)nranks + (size_t)nnodes) * sizeof *node);
	if (!node) {
		call_cost_nomem(who, nranks, nnodes, err);
		return GRADCOMP_ERR_NOMEM;
	}
	int each = nranks / nnodes, larger = nranks % nnodes;
	for (int32_t k = 0, r = 0; k < nnodes; k++)
		for (int left = each + (k < larger); left > 0; left--)
			node[r++] = k;
	g->links = (gradcomp_links){
		.struct_size = sizeof g->links, .nranks = nranks, .nnodes = nnodes, .node = node, .chunk = CALL_CHUNK};
	g->count = node + nranks;
	return GRADCOMP_OK;
}

void call_group_close(call_group *g)
{
	free((void *)(uintptr_t)g->links.node);
	*g = (call_group){0};
}

void call_cost_export(const call_cost *l, gradcomp_call_load *out)
{
	uint32_t size = out->struct_size;
	*out = (gradcomp_call_load){.struct_size = size,
	                            .reduced = l->reduced,
	                            .coded = l->coded,
	                            .sent = l->sent,
	                            .left = l->left,
	                            .uncoded = {l->uncoded[0], l->uncoded[1]},
	                            .uncoded_sent = l->uncoded_sent};
	for (int k = 0; k < l->n; k++) {
		out->messages[l->round[k].level] += l->round[k].times + CALL_FURTHER * l->round[k].further;
		out->bytes[l->round[k].level] += l->round[k].times * l->round[k].bytes;
	}
}

gradcomp_status call_cost_refuse(const char *who, uint32_t primitive, gradcomp_error *err)
{
	return fail(err, GRADCOMP_ERR_UNSUPPORTED, "%s: serves no primitive 0x%x", who, (unsigned)primitive);
}
