/* Predicts what the exchanges of a bucket cost. */
#include "cost/cost_internal.h"

#include "base/error.h"
#include "plugin/code_view.h"

#include <string.h>

static known_load *place_of(const cost_model *c, const call *k)
{
	uint64_t h = (k->bytes * 0x9e3779b97f4a7c15u) ^ ((uint64_t)k->primitive << 40);
	return &c->known[(h >> 32 ^ h >> 50 ^ (uint64_t)k->among_holders) % KNOWN];
}

static const char *level_name(int level)
{
	return level ? "network" : "node";
}

static gradcomp_status ask(const cost_model *c, const call *k, gradcomp_call_load *l, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *p = c->plugins[1]->collective;
	int32_t nranks = k->among_holders ? c->nodes : c->nodes * c->ranks_per_node;
	known_load *known = place_of(c, k);
	gradcomp_error inner = {0};
	gradcomp_status st;
	if (known->primitive == k->primitive && known->bytes == k->bytes && known->among_holders == k->among_holders) {
		*l = known->load;
		return GRADCOMP_OK;
	}
	*l = (gradcomp_call_load){.struct_size = sizeof *l};
	if (!p->predict)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"collective '%s' does not tell what its calls cost (it has no predict): plan with another",
			p->info.name);
	st = p->predict(c->specs[1]->values, nranks, c->nodes, k->primitive, k->bytes, l, &inner);
	if (st)
		return error_set(err, st, "%s%s%s", *inner.text ? "" : p->info.name,
		                 *inner.text ? "" : ": predict() fails without a reason: ",
		                 *inner.text ? inner.text : gradcomp_strerror(st));
	for (int level = 0; !st && level < 2; level++)
		if (worthless(l->messages[level]) || worthless(l->bytes[level]) || worthless(l->uncoded[level]))
			st = GRADCOMP_ERR_INTERNAL;
	if (!st && (worthless(l->reduced) || worthless(l->coded) || worthless(l->sent) || worthless(l->left) ||
	            worthless(l->uncoded_sent)))
		st = GRADCOMP_ERR_INTERNAL;
	if (st == GRADCOMP_ERR_INTERNAL)
		error_set(
			err, st,
			"collective '%s' tells costs that are no numbers from 0 on (gradcomp plugin-check says of what)",
			p->info.name);
	if (!st)
		*known = (known_load){k->bytes, k->primitive, k->among_holders, *l};
	return st;
}

/* Returns the part of `bytes` that travels: codes are shorter than floats. */
static double travels(double bytes, double uncoded, double coded)
{
	return uncoded < bytes ? uncoded + (bytes - uncoded) * coded : bytes;
}

/* Adds its seconds to *seconds, and its bytes to *sum. */
gradcomp_status cost_call(const cost_model *c, const call *k, double *seconds, bucket_cost *sum, gradcomp_error *err)
{
	const machine_file *m = c->machine;
	const linear *known = k->among_holders ? NULL : c->measured[cost_primitive_bit(k->primitive)];
	/* The ranks of a node hold a shard each, and share the way out. */
	double sharing = k->among_holders ? c->ranks_per_node : 1, share;
	gradcomp_call_load l;
	gradcomp_status st = ask(c, k, &l, err);
	if (st)
		return st;
	share = l.bytes[1] > 0 ? l.uncoded[1] / l.bytes[1] : 0;
	sum->sent += travels(l.sent, l.uncoded_sent, k->coded);
	sum->left += sharing * travels(l.left, share < 1 ? share * l.left : l.left, k->coded);
	if (known) {
		*seconds += linear_at(known, (double)k->bytes);
		return GRADCOMP_OK;
	}
	for (int level = 0; level < 2; level++) {
		double bytes = travels(l.bytes[level], l.uncoded[level], k->coded) * (level ? sharing : 1);

		if ((l.messages[level] > 0 || bytes > 0) && m->level[level].b <= 0)
			return error_set(
				err, GRADCOMP_ERR_UNSUPPORTED,
				"machine '%s' was measured on %u nodes with %u ranks each: it says nothing of [%s], which "
				"collective '%s' needs on %d nodes with %d ranks each; probe on such nodes",
				m->name, m->nodes, m->ranks_per_node, level_name(level), c->plugins[1]->info->name,
				c->nodes, c->ranks_per_node);
		*seconds += l.messages[level] * m->level[level].a + bytes * m->level[level].b;
	}
	if (l.messages[0] > 0 || l.messages[1] > 0)
		*seconds += m->call;
	*seconds += l.reduced * m->reduce;
	if (l.coded > 0 && c->curve)
		*seconds += linear_at(&c->curve->code, l.coded);
	return GRADCOMP_OK;
}

/* A word of all ranks: whether a gradient is not finite. */
gradcomp_status cost_nonfinite(const cost_model *c, double *seconds, bucket_cost *sum, gradcomp_error *err)
{
	const call k = {.primitive = GRADCOMP_CAN_ALLREDUCE, .bytes = 8, .coded = 1};
	return cost_call(c, &k, seconds, sum, err);
}

static int passes_nonfinite(const cost_model *c)
{
	return !!(c->plugins[0]->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
}

static uint64_t words(double bytes)
{
	return ((uint64_t)bytes + 7) & ~(uint64_t)7;
}

static gradcomp_status add_coded(const cost_model *c, const gradcomp_round *rd, double *seconds, bucket_cost *sum,
                                 gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *p = c->plugins[0]->compressor;
	double code = rd->count ? (double)p->code_bound(c->instance, rd->count) / (4.0 * (double)rd->count) : 1;
	const uint32_t serves = c->plugins[1]->collective->serves;
	const call k = {.primitive = task_round_primitive(GRADCOMP_CODED, serves) | code_view_sums(p, serves),
	                .bytes = task_round_bytes(rd),
	                .coded = code};
	gradcomp_status st = passes_nonfinite(c) ? GRADCOMP_OK : cost_nonfinite(c, seconds, sum, err);
	return st ? st : cost_call(c, &k, seconds, sum, err);
}

/* `payload`: bytes of a rank that are expected of a GATHERED round. */
gradcomp_status cost_round(const cost_model *c, const gradcomp_round *rd, uint32_t round, double payload,
                           double *seconds, bucket_cost *sum, gradcomp_error *err)
{
	call k = {.primitive = task_round_primitive(rd->pattern, c->plugins[1]->collective->serves),
	          .coded = 1,
	          .among_holders = c->two_levels};
	int fixed = !!(rd->flags & GRADCOMP_ROUND_FIXED);
	gradcomp_status st = GRADCOMP_OK;
	switch (rd->pattern) {
	case GRADCOMP_SUMMED:
		k.bytes = rd->count;
		if (!round && !(rd->flags & GRADCOMP_ROUND_IN_PLACE) && !passes_nonfinite(c))
			k.bytes += SUMMED_MARKS;
		k.bytes *= gradcomp_dtype_bytes(rd->dtype);
		break;
	case GRADCOMP_GATHERED:
		k.bytes = 8;
		if (!fixed)
			st = cost_call(c, &k, seconds, sum, err);
		k.bytes = words(payload) + 8 * (uint64_t)fixed;
		break;
	case GRADCOMP_MERGED:
		k.bytes = words((double)rd->bound) + 8;
		/* Merged as often as the tree is deep; taken to be as fast as adding. */
		*seconds += ceil(log2(c->layout.nranks)) * (double)k.bytes * c->machine->reduce;
		break;
	case GRADCOMP_CODED:
		return add_coded(c, rd, seconds, sum, err);
	}
	return st ? st : cost_call(c, &k, seconds, sum, err);
}
