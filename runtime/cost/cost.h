/* Predicts what a bucket costs on a machine: the rounds that its compressor plans, on so many nodes and ranks, in
 * seconds.
 *
 * An exchange: messages a + bytes b, of each level, by what the collective's predict()
 * says, and what is added up or coded on the way; or what was measured, where as many nodes
 * and ranks were. Compute tasks: the compressor's lines, evenly over its rounds. */
#ifndef COST_COST_H
#define COST_COST_H

#include "cost/planning.h"
#include "schedule/sim.h"
#include "plugin/spec_table.h"

/* Adds up what a bucket costs, or several. */
typedef struct bucket_cost {
	double encode, exchange, decode; /* seconds of its tasks */
	double payload;                  /* bytes of a rank, of all rounds; floats where those are coded */
	double packed;                   /* the same, of codes their bytes */
	double sent, left;               /* bytes: as gradcomp_call_load has them */
} bucket_cost;

struct known_load; /* holds what predict() has said: cost_exchange.c */

typedef struct cost_model {
	const model_file *model;
	const machine_file *machine;
	int32_t nodes, ranks_per_node;
	config *config;
	const plugin *plugins[2];
	spec_table table;
	const spec *specs[2];          /* in it */
	const compressor_curve *curve; /* NULL: the compressor costs nothing but a look at the gradient */
	gradcomp_host host;
	gradcomp_operators operators; /* the host's */
	gradcomp_layout layout;       /* the compressor works on it: with two levels, rank 0's shards */
	gradcomp_tensor *tensors;     /* the layout's */
	uint64_t *whole;              /* the numel of each in the model, backward order */
	uint64_t *dims;               /* with two levels: two for each part */
	int two_levels;
	/* Each has the cost of a call of the collective, by the bit of GRADCOMP_CAN_*, when the machine was
	 * measured on as many nodes and ranks; NULL: what messages and bytes come to. */
	const linear *measured[32];
	void *instance;
	struct known_load *known;
} cost_model;

/* compressor: NULL for none; collective: NULL for the usual one. Model and machine have been
 * checked. UNSUPPORTED says what the machine or the plugin does not tell. *out is to be
 * cleared when it was OK. */
gradcomp_status cost_open(cost_model *out, const model_file *model, const machine_file *machine, int32_t nodes,
                          int32_t ranks_per_node, const char *compressor, const char *collective, gradcomp_error *err);
void cost_clear(cost_model *c);

/* The bucket of tensors [first, end), in backward order; *sum is added to. */
gradcomp_status cost_bucket(cost_model *c, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                            bucket_cost *sum, gradcomp_error *err);

#endif
