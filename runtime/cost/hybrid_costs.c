/* Groups of layers and what they cost on ranks: see hybrid.h. */
#include "cost/hybrid.h"

static layer_group group_of(const model_file *m, uint32_t i)
{
	const model_layer *l = &m->layers[i];
	layer_group g = {.first = i,
	                 .nlayers = 1,
	                 .output = l->output,
	                 .reduced = l->reduces * l->output,
	                 .reduces = l->reduces,
	                 .kept = {l->kept[0], l->kept[1]}};
	double seconds = 0, parameters = 0;

	for (uint32_t t = l->first; t < l->first + l->ntensors; t++) {
		double numel = 1;

		for (uint32_t d = 0; d < m->tensors[t].ndim; d++)
			numel *= (double)m->tensors[t].dims[d];
		parameters += numel;
		seconds += m->tensors[t].forward + m->tensors[t].backward;
	}
	seconds /= (double)m->batch;
	g.divided_s = l->reduces ? seconds : 0;
	g.whole_s = l->reduces ? 0 : seconds;
	g.divided = l->reduces ? parameters : 0;
	g.whole = l->reduces ? 0 : parameters;
	return g;
}

/* `to` and the group behind it. */
static void join(layer_group *to, const layer_group *g)
{
	to->nlayers += g->nlayers;
	to->divided_s += g->divided_s;
	to->whole_s += g->whole_s;
	to->divided += g->divided;
	to->whole += g->whole;
	to->output = g->output;
	to->reduced += g->reduced;
	to->reduces += g->reduces;
	to->kept[0] += g->kept[0];
	to->kept[1] += g->kept[1];
}

static double seconds_of(const layer_group *g)
{
	return g->divided_s + g->whole_s;
}

uint32_t hybrid_group(const model_file *m, uint32_t most, layer_group *groups)
{
	double all = 0, so_far = 0;
	uint32_t n = 0;

	if (most > m->nlayers)
		most = m->nlayers;
	for (uint32_t i = 0; i < m->nlayers; i++) {
		layer_group g = group_of(m, i);

		all += seconds_of(&g);
	}
	for (uint32_t i = 0; i < m->nlayers; i++) {
		layer_group g = group_of(m, i);
		/* The group is over when its share of the seconds is; every one gets a layer. */
		int next = !i || so_far >= all * n / most || m->nlayers - i == most - n;

		if (next && n < most)
			groups[n++] = g;
		else
			join(&groups[n - 1], &g);
		so_far += seconds_of(&g);
	}
	return n;
}

/* A ring of n ranks inside a node. */
static double ring(const machine_file *m, double bytes, uint32_t n)
{
	double part = bytes / n;

	return (n - 1.0) * (2 * (m->level[0].a + part * m->level[0].b) + part * m->reduce);
}

pipeline_cost hybrid_cost(const machine_file *m, const hybrid_question *q, const layer_group *groups,
                          uint32_t first, uint32_t last, int ends, uint64_t samples, const rank_choice *c)
{
	layer_group g = groups[first];
	pipeline_cost cost = {.seconds = -1};
	double x = (double)samples / c->data, parameters;
	/* The next stage may well be on another node where there is one. */
	int outside = q->nodes > 1;

	for (uint32_t i = first + 1; i <= last; i++)
		join(&g, &groups[i]);
	parameters = g.divided / c->tensor + g.whole;
	cost.seconds = (g.divided_s / c->tensor + g.whole_s) * x;
	/* Rings of as many messages as there are reductions, of their mean length. */
	if (c->tensor > 1 && g.reduces)
		cost.seconds += 2 * g.reduces * ring(m, g.reduced / g.reduces * x, c->tensor);
	if (!ends)
		cost.seconds += 2 * (m->level[outside].a +
		                     m->level[outside].b * g.output * (outside ? (double)samples / c->nodes : x));
	cost.once = c->data > 1 ? c->a + c->b * parameters : 0;
	cost.fixed = parameters * (8 + q->state + c->residual);
	cost.kept = x * (g.kept[0] + g.kept[1] / c->tensor);
	return cost;
}
