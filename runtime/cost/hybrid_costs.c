/* Groups of layers and what they cost on ranks: see hybrid.h. */
#include "cost/hybrid.h"

#include <math.h>
#include <string.h>

/* What every rank of a tensor-parallel group holds whole, by words in the names of BERT, GPT-2, LLaMA
 * and their like (Shoeybi et al.: Megatron-LM, 2019): norms; positions, whose rows are few; and the biases
 * behind matrices that are divided by rows, which are added to the sum. What is in none of
 * these rows is divided: matrices and tables of words, and biases of columns. */
static const struct {
	const char *word;
	int vectors; /* its vectors alone */
} replicated[] = {{"norm", 0},          {"ln_", 0},           {"wpe", 0},      {"position_embeddings", 0},
                  {"token_type", 0},    {"c_proj.", 1},       {"o_proj.", 1},  {"out_proj.", 1},
                  {"output.dense.", 1}, {"down_proj.", 1},    {"fc2.", 1},     {"dense_4h_to_h.", 1}};

int hybrid_divides(const model_layer *l, const model_tensor *t)
{
	for (size_t i = 0; i < sizeof replicated / sizeof *replicated; i++)
		if ((t->ndim < 2 || !replicated[i].vectors) && strcasestr(t->name, replicated[i].word))
			return 0;
	return l->reduces > 0;
}

static layer_group group_of(const model_file *m, uint32_t i)
{
	const model_layer *l = &m->layers[i];
	layer_group g = {.first = i,
	                 .nlayers = 1,
	                 .output = l->output,
	                 .reduced = l->reduces * l->output,
	                 .reduces = l->reduces,
	                 .kept = {l->kept[0], l->kept[1]}};

	for (uint32_t i = l->first; i < l->first + l->ntensors; i++) {
		const model_tensor *t = &m->tensors[i];
		double numel = 1;

		for (uint32_t d = 0; d < t->ndim; d++)
			numel *= (double)t->dims[d];
		*(hybrid_divides(l, t) ? &g.divided : &g.whole) += numel;
		/* What is whole is vectors, whose seconds are nothing; a head's, which has its matrix from the
		 * embeddings, are that matrix's. */
		*(l->reduces ? &g.divided_s : &g.whole_s) += (t->forward + t->backward) / (double)m->batch;
	}
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

/* A ring of n, of which each sends `beside` others' parts along with its own. */
static double ring(const machine_file *m, int level, double bytes, uint32_t n, uint32_t beside)
{
	double part = bytes / n;

	return (n - 1.0) * (2 * (m->level[level].a + part * beside * m->level[level].b) + part * m->reduce);
}

/* Of a tensor-parallel group: inside a node, or over all ranks of several, by one ring or in two levels. */
static double allreduce(const machine_file *m, double bytes, const rank_choice *c)
{
	uint32_t ranks = c->ranks_per_node, nodes = c->tensor / ranks;

	if (c->tensor <= ranks)
		return ring(m, 0, bytes, c->tensor, 1);
	return fmin(ring(m, 1, bytes, c->tensor, 1),
	            ring(m, 0, bytes, ranks, 1) + ring(m, 1, bytes / ranks, nodes, ranks));
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
		cost.seconds += 2 * g.reduces * allreduce(m, g.reduced / g.reduces * x, c);
	if (!ends)
		cost.seconds += 2 * (m->level[outside].a +
		                     m->level[outside].b * g.output * (outside ? (double)samples / c->nodes : x));
	cost.once = c->data > 1 ? c->a + c->b * parameters : 0;
	cost.fixed = parameters * (8 + q->state + c->residual);
	cost.kept = x * (g.kept[0] + g.kept[1] / c->tensor);
	return cost;
}
