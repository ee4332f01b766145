/* Groups of layers and what they cost on ranks: see hybrid.h. */
#include "cost/hybrid.h"

#include <math.h>
#include <string.h>

/* Every rank of a tensor-parallel group holds these whole, by words in the names of BERT, GPT-2, LLaMA and their
 * like (Shoeybi et al.: Megatron-LM, 2019): norms; positions, whose rows are few; and the biases behind matrices
 * that are divided by rows, which are added to the sum. What is in none of these rows is divided: matrices and
 * tables of words, and biases of columns. */
static const struct {
	const char *word;
	int vectors; /* its vectors alone */
} replicated[] = {{"norm", 0},          {"ln_", 0},        {"wpe", 0},     {"position_embeddings", 0},
                  {"token_type", 0},    {"c_proj.", 1},    {"o_proj.", 1}, {"out_proj.", 1},
                  {"output.dense.", 1}, {"down_proj.", 1}, {"fc2.", 1},    {"dense_4h_to_h.", 1}};

int hybrid_divides(const model_layer *l, const model_tensor *t)
{
	for (size_t i = 0; i < sizeof replicated / sizeof *replicated; i++)
		if ((t->ndim < 2 || !replicated[i].vectors) && strcasestr(t->name, replicated[i].word))
			return 0;
	return l->reduces > 0;
}

static int same_kind(const model_file *m, const model_layer *a, const model_layer *b)
{
	if (a->ntensors != b->ntensors)
		return 0;
	for (uint32_t i = 0; i < a->ntensors; i++) {
		const model_tensor *s = &m->tensors[a->first + i], *t = &m->tensors[b->first + i];

		if (s->ndim != t->ndim || memcmp(s->dims, t->dims, s->ndim * sizeof *s->dims))
			return 0;
	}
	return 1;
}

uint32_t hybrid_kind_of(const model_file *m, const uint32_t *first, uint32_t n, const model_layer *l)
{
	for (uint32_t k = 0; l->reduces && k < n; k++)
		if (same_kind(m, &m->layers[first[k]], l))
			return k;
	return HYBRID_KINDS;
}

uint32_t hybrid_kinds(const model_file *m, uint32_t first[HYBRID_KINDS])
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < m->nlayers && n < HYBRID_KINDS; i++)
		if (m->layers[i].reduces && hybrid_kind_of(m, first, n, &m->layers[i]) == HYBRID_KINDS)
			first[n++] = i;
	return n;
}

static double layer_seconds(const model_file *m, const model_layer *l)
{
	double sum = 0;
	for (uint32_t i = l->first; i < l->first + l->ntensors; i++)
		sum += (m->tensors[i].forward + m->tensors[i].backward) / (double)m->batch;
	return sum;
}

static layer_group group_of(const model_file *m, uint32_t at, const uint32_t *kinds, uint32_t nkinds)
{
	const model_layer *l = &m->layers[at];
	layer_group g = {.first = at, .nlayers = 1, .output = l->output, .kept = l->kept[0]};
	layer_part *part = &g.part[hybrid_kind_of(m, kinds, nkinds, l)];
	*part = (layer_part){.kept = l->kept[1], .reduced = l->reduces * l->output, .reduces = l->reduces};
	for (uint32_t i = l->first; i < l->first + l->ntensors; i++) {
		const model_tensor *t = &m->tensors[i];
		double numel = 1;

		for (uint32_t d = 0; d < t->ndim; d++)
			numel *= (double)t->dims[d];
		*(hybrid_divides(l, t) ? &part->parameters : &g.parameters) += numel;
	}
	/* Whole tensors are vectors, whose seconds are nothing; a head's, which has its matrix from the embeddings,
	 * are that matrix's. */
	*(l->reduces ? &part->seconds : &g.seconds) = layer_seconds(m, l);
	return g;
}

void hybrid_join(layer_group *to, const layer_group *g)
{
	to->nlayers += g->nlayers;
	to->output = g->output;
	to->seconds += g->seconds;
	to->parameters += g->parameters;
	to->kept += g->kept;
	for (uint32_t k = 0; k <= HYBRID_KINDS; k++) {
		to->part[k].seconds += g->part[k].seconds;
		to->part[k].parameters += g->part[k].parameters;
		to->part[k].kept += g->part[k].kept;
		to->part[k].reduced += g->part[k].reduced;
		to->part[k].reduces += g->part[k].reduces;
	}
}

uint32_t hybrid_group(const model_file *m, uint32_t most, layer_group *groups)
{
	uint32_t kinds[HYBRID_KINDS], nkinds = hybrid_kinds(m, kinds), n = 0;
	double all = 0, so_far = 0;
	if (most > m->nlayers)
		most = m->nlayers;
	for (uint32_t i = 0; i < m->nlayers; i++)
		all += layer_seconds(m, &m->layers[i]);
	for (uint32_t i = 0; i < m->nlayers; i++) {
		layer_group g = group_of(m, i, kinds, nkinds);
		/* The group is over when its share of the seconds is; every one gets a layer. */
		int next = !i || so_far >= all * n / most || m->nlayers - i == most - n;

		if (next && n < most)
			groups[n++] = g;
		else
			hybrid_join(&groups[n - 1], &g);
		so_far += layer_seconds(m, &m->layers[i]);
	}
	return n;
}

/* Returns the seconds of a ring of n, of which each sends `beside` others' parts along with its own. */
static double ring(const machine_file *m, int level, double bytes, uint32_t n, uint32_t beside)
{
	double part = bytes / n;
	return (n - 1.0) * (2 * (m->level[level].a + part * beside * m->level[level].b) + part * m->reduce);
}

/* Returns the seconds of an all-reduce of a tensor-parallel group, inside a node or over all ranks of several, by
 * one ring. */
static double one_ring(const machine_file *m, double bytes, const rank_choice *c)
{
	return ring(m, c->tensor > c->ranks_per_node, bytes, c->tensor, 1);
}

/* Returns the same in two levels. */
static double two_levels(const machine_file *m, double bytes, const rank_choice *c)
{
	uint32_t ranks = c->ranks_per_node, nodes = c->tensor / ranks;
	if (c->tensor <= ranks)
		return one_ring(m, bytes, c);
	return ring(m, 0, bytes, ranks, 1) + ring(m, 1, bytes / ranks, nodes, ranks);
}

static double allreduce(const machine_file *m, double bytes, const rank_choice *c)
{
	return fmin(one_ring(m, bytes, c), two_levels(m, bytes, c));
}

int hybrid_hold_pays(const model_file *model, const machine_file *m, uint64_t samples, const rank_choice *c,
                     const model_layer *l)
{
	double x = (double)samples / c->data, bytes = l->output * x;
	/* The longer of both ways counts: without this layer the other may be the one that its stage takes. */
	double saved = 2 * l->reduces * fmax(one_ring(m, bytes, c), two_levels(m, bytes, c));
	return saved > layer_seconds(model, l) * x * (1 - 1.0 / c->tensor);
}

pipeline_cost hybrid_cost(const machine_file *m, const hybrid_question *q, const layer_group *g, int ends,
                          uint64_t samples, const rank_choice *c)
{
	pipeline_cost cost = {.seconds = -1};
	double x = (double)samples / c->data, parameters = g->parameters, seconds = g->seconds, kept = g->kept,
	       reduced = 0;
	uint32_t reduces = 0;
	/* The next stage may well be on another node where there is one. */
	int outside = q->nodes > 1;
	for (uint32_t k = 0; k <= HYBRID_KINDS; k++) {
		const layer_part *part = &g->part[k];
		int held = k < HYBRID_KINDS && c->held >> k & 1;
		uint32_t among = held ? 1 : c->tensor;

		parameters += part->parameters / among;
		seconds += part->seconds / among;
		kept += part->kept / among;
		reduced += held ? 0 : part->reduced;
		reduces += held ? 0 : part->reduces;
	}
	cost.seconds = seconds * x;
	/* Rings of as many messages as there are reductions, of their mean length. */
	if (c->tensor > 1 && reduces)
		cost.seconds += 2 * reduces * allreduce(m, reduced / reduces * x, c);
	if (!ends)
		cost.seconds += 2 * (m->level[outside].a +
		                     m->level[outside].b * g->output * (outside ? (double)samples / c->nodes : x));
	cost.once = c->data > 1 ? c->a + c->b * parameters : 0;
	cost.fixed = parameters * (8 + q->state + c->residual);
	cost.kept = x * kept;
	return cost;
}
