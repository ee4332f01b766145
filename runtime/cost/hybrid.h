/* hybrid_plan_make() is made of these: groups of layers, choices of ranks, and what a run of groups costs on each
 * (the intra-operator table of pipeline.h).
 *
 * A choice is a submesh (all ranks of some nodes, or a part of the ranks of one), a tensor degree, inside a node or
 * over all ranks of several, the kinds of layers that all ranks of a group then hold and compute whole all the
 * same, which saves their all-reduces, and a compressor; data degree = its ranks / tensor. On it a stage takes, of
 * each micro-batch of m samples, x = m / data of them on a rank:
 *
 *     seconds of its layers * x / tensor           (layers that cannot be divided, or are held: * x)
 *   + 2 passes * reduces * all-reduce(output * x)  among `tensor` ranks: a ring in a node; over nodes one
 *                                                  ring, or two levels, whichever takes less
 *   + 2 passes * (a + b * output * m / nodes)      to the next stage, if there is one
 *
 * and once a step the reduction of its gradients over the data-parallel ranks, a line in
 * their number fitted to two predictions (predict.c) of the model divided alike; `tensor`
 * reductions share a node's interface. Memory: parameters * (8 + state + error memory), and
 * for each micro-batch in flight x * (kept[0] + kept[1] / tensor). */
#ifndef COST_HYBRID_H
#define COST_HYBRID_H

#include "cost/planning.h"
#include "cost/pipeline.h"

#define HYBRID_GROUPS PIPELINE_LAYERS_MAX
#define HYBRID_UNITS 512 /* the smallest submesh is that share of all ranks */
#define HYBRID_CHOICES_MAX 1024
#define HYBRID_KINDS 3 /* kinds of layers that may be held; layers of later kinds are divided */

/* Adds up what can be divided of layers of one kind, for a sample. */
typedef struct layer_part {
	double seconds; /* forward and backward */
	double parameters, kept;
	double reduced; /* sum of reduces * output */
	uint32_t reduces;
} layer_part;

/* Neighbouring layers, or several such groups in a row. */
typedef struct layer_group {
	uint32_t first, nlayers;           /* its layers of the model */
	double output;                     /* its last layer's */
	double seconds, parameters, kept;  /* sums of what cannot be divided: hybrid_divides() */
	layer_part part[HYBRID_KINDS + 1]; /* the last one: of other kinds */
} layer_group;

typedef struct rank_choice {
	uint32_t nodes, ranks_per_node, tensor, data;
	uint32_t held;          /* kinds of layers that each rank of a tensor-parallel group has whole: bits */
	const char *compressor; /* NULL: nothing to reduce, or uncompressed */
	double residual;        /* bytes of error memory, a parameter */
	double a, b;            /* reducing gradients: a + b * the rank's parameters */
} rank_choice;

/* Returns 1 when the ranks of a tensor-parallel group divide a tensor of the layer among themselves, instead of all
 * holding and computing it. */
int hybrid_divides(const model_layer *layer, const model_tensor *tensor);
/* Layers that can be divided are of one kind when their tensors have the same dimensions. The first layer of each
 * of the first kinds; returns how many there are. */
uint32_t hybrid_kinds(const model_file *model, uint32_t first[HYBRID_KINDS]);
/* HYBRID_KINDS for a layer of none of them. */
uint32_t hybrid_kind_of(const model_file *model, const uint32_t *first, uint32_t n, const model_layer *layer);
/* Returns 1 when the seconds of a layer may be less with the whole of it on each rank of the choice's groups. */
int hybrid_hold_pays(const model_file *model, const machine_file *machine, uint64_t samples, const rank_choice *choice,
                     const model_layer *layer);
/* Joins `to` and the group behind it. */
void hybrid_join(layer_group *to, const layer_group *behind);
/* groups[] has room for all layers; returns how many were made, at most `most`. */
uint32_t hybrid_group(const model_file *model, uint32_t most, layer_group *groups);
/* Every submesh, degree and compressor, and the kinds that may be held where that pays; choices that take as many
 * ranks stand in a row. UNSUPPORTED when no compressor can be predicted. *n at most HYBRID_CHOICES_MAX. */
gradcomp_status hybrid_choices(const model_file *model, const machine_file *machine, const hybrid_question *q,
                               uint64_t samples, rank_choice *choices, uint32_t *n, gradcomp_error *err);
/* Returns what a stage of these layers costs, of a micro-batch of `samples`; `ends`: no stage comes after it. */
pipeline_cost hybrid_cost(const machine_file *machine, const hybrid_question *q, const layer_group *group, int ends,
                          uint64_t samples, const rank_choice *choice);

#endif
