/* planning.h: what a training step will cost, before anybody pays for it.
 *
 * A model file says what a network's tensors are and how long its passes take; a machine
 * file says what messages, bytes and compressors cost on some nodes. From both follows the
 * step time of every compressor, collective and schedule, on the nodes that were measured
 * or on more of them. `gradcomp probe` and --gradcomp-record write the files, `gradcomp
 * plan` asks the questions; their formats are in doc/user/planning.md.
 *
 * The prediction is a simulation of the reducer's own schedule with the rounds that the
 * compressor itself plans. What it rests on: exchanges cost
 *
 *     sum over levels of messages * a + bytes * b        (levels: in a node, between nodes)
 *
 * with the messages and bytes that the collective plugin tells (predict() in collective.h),
 * and encoding and decoding cost what was measured, by a line.
 *
 * Threads: any. Questions only read models and machines, which several threads may ask about at the
 * same time; nothing else of an object may go on meanwhile. */
#ifndef COST_PLANNING_H
#define COST_PLANNING_H

#include "base/fit.h"
#include "gradcomp/abi.h"

struct sim_class; /* schedule/sim.h */

/* A compressor's work costs a rank this, over all rounds of a bucket; x in numbers (F32) of the bucket. */
typedef struct compressor_curve {
	char *compressor; /* canonical SPEC; owned */
	linear encode, decode;
	double gathered; /* seconds that each byte of another rank's payload adds to decode */
	linear code;     /* CODED: a run of x numbers coded or decoded once, in the exchange */
} compressor_curve;

/* A collective's calls cost this where they were measured, by the bytes that the plugin's predict() is asked for:
 * wins over the levels on as many nodes and ranks. */
typedef struct collective_cost {
	char *collective;   /* canonical SPEC; owned */
	uint32_t primitive; /* one GRADCOMP_CAN_* */
	linear cost;
} collective_cost;

/* A machine file that does not say has this. */
#define COST_SPREAD 0.1

typedef struct machine_file {
	uint32_t nodes, ranks_per_node; /* that were measured */
	uint32_t ncurves, ncalls;
	char name[64];
	linear level[2]; /* a message, and a byte of it: [0] inside a node, [1] between nodes */
	double reduce;   /* seconds to add a byte that came to what is there */
	double memory;   /* seconds to copy a byte */
	/* Seconds that an exchange takes in the host, whatever it sends: waking threads, agreeing on what comes next,
	 * launching. Not of calls that were measured, whose lines have it. */
	double call;
	/* A rank keeps this share of its speed of compressing while its program computes, and while bytes move, as
	 * in the simulator. */
	double beside_application, beside_exchange;
	/* And what its program's passes lose while bytes move, and while it compresses: they take 1 + so
	 * much times as long. */
	double slowed_by_exchange, slowed_by_compute;
	/* How far what was measured is off, relative: 0.05 is 5 % more or less; 0: COST_SPREAD. */
	double spread;
	compressor_curve *curves;
	collective_cost *calls;
} machine_file;

/* Refuses, with file and line, what is missing, negative, not finite, out of all proportion
 * (a message that takes an hour), twice or unknown: INVALID. NOTFOUND and IO are of the file
 * itself. *out is freed by machine_file_free. */
gradcomp_status machine_file_read(const char *path, machine_file **out, gradcomp_error *err);
/* Published by rename: on failure what was there stays. INVALID or RANGE for what could not
 * be read again, IO when the file cannot be written. */
gradcomp_status machine_file_write(const char *path, const machine_file *m, gradcomp_error *err);
/* NULL is fine, as below. */
void machine_file_free(machine_file *m);

typedef struct model_tensor {
	char *name; /* owned, like dims */
	uint64_t *dims;
	uint32_t ndim;
	double forward, backward; /* seconds of its part of the passes */
} model_tensor;

/* Tensors that a pipeline leaves together, and what their output costs; bytes of one sample. */
typedef struct model_layer {
	char *name;               /* owned */
	uint32_t first, ntensors; /* its tensors */
	double output;            /* bytes that go to the next layer */
	/* Bytes that the backward pass needs of the forward pass: [0] on every rank of a tensor-parallel
	 * group, [1] divided among them. */
	double kept[2];
	uint32_t reduces; /* all-reduces of `output` in each pass when matrices are divided; 0: they cannot be */
} model_layer;

typedef struct model_file {
	uint32_t ntensors;
	uint64_t batch; /* samples of a rank and step; 0: not known */
	char name[64];
	double io, copy, update; /* seconds a step: reading a batch, to the device, the optimizer */
	/* A recorded job tells the shares of its backward pass in which bytes moved, and in which it compressed.
	 * What that slowed is in `backward`. 0: it is the pass by itself. */
	double exchanging, compressing;
	/* Times as long as by itself the pass takes beside either, as that job has found out; 0: not known, the machine
	 * says (1 + slowed_by_...). */
	double slower_beside_exchange, slower_beside_compute;
	model_tensor *tensors; /* in forward order */
	/* Section [layers], for hybrid_plan_make(): all tensors, in order. 0: the file has none. */
	uint32_t nlayers;
	model_layer *layers;
} model_file;

/* Reads a model like machine_file_read() a machine. *out is freed by model_file_free. */
gradcomp_status model_file_read(const char *path, model_file **out, gradcomp_error *err);
gradcomp_status model_file_write(const char *path, const model_file *m, gradcomp_error *err);
void model_file_free(model_file *m);

typedef struct cost_question {
	uint32_t nodes, ranks_per_node;
	uint32_t each_layer;    /* the program waits for layers and not for the whole step */
	uint32_t no_read_ahead; /* it reads a batch between steps, not beside one */
	const char *compressor; /* SPECs; NULL: none, and the default collective and schedule */
	const char *collective;
	const char *schedule;
	const char *trace; /* NULL, or a file for the simulated timeline (Chrome trace JSON) */
	/* Of the prediction step_s alone counts: least_s and most_s are the same, what is summed over buckets is 0. */
	uint32_t step_alone;
	/* Ranks whose passes are not as fast as the model's say how fast; the first one's times are told. NULL: all are
	 * alike, of speed 1. */
	const struct sim_class *classes;
	uint32_t nclasses;
} cost_question;

typedef struct cost_prediction {
	uint32_t buckets;
	double step_s; /* seconds a step */
	/* The same plan where exchanging, encoding, decoding and what they slow the passes down by are
	 * less, and more, by the machine's spread. */
	double least_s, most_s;
	double compute_s; /* the program's own part of it, on the slowest rank */
	double exposed_s; /* and what waits for gradients after the backward pass */
	double encode_s, exchange_s, decode_s;
	double sent_bytes; /* a rank and step */
	double node_bytes; /* that leave a node, a step */
} cost_prediction;

/* UNSUPPORTED when the machine file has no curve of the compressor or the collective tells
 * no costs; the text says which and what to do. INVALID for nodes, ranks or SPECs that
 * cannot be. */
gradcomp_status cost_predict(const model_file *model, const machine_file *machine, const cost_question *question,
                             cost_prediction *out, gradcomp_error *err);

/* Returns the compressor of a question that names none. */
const char *cost_default_compressor(void);
/* *share: what a dense compressor sends of a number, as a share of a float: 1, or 0.5 of 16 bits; 0 of one that
 * holds something back. Fails as a prediction does. */
gradcomp_status cost_dense_share(const machine_file *machine, const char *compressor, double *share,
                                 gradcomp_error *err);

/* Writes the plan behind a prediction as a file for --gradcomp-schedule=plan:file=FILE. Fails like the prediction,
 * or with IO. */
gradcomp_status cost_plan_write(const char *path, const model_file *model, const machine_file *machine,
                                const cost_question *question, gradcomp_error *err);

/* Says which plans of a question count. */
typedef enum hybrid_shape {
	HYBRID_ANY,
	HYBRID_UNIFORM, /* all stages on as many ranks, with the same degrees */
	/* That, and all ranks share samples alone, matrices alone, or layers alone. */
	HYBRID_DATA,
	HYBRID_TENSOR,
	HYBRID_PIPELINE,
	HYBRID_SHAPES /* that there are */
} hybrid_shape;

/* How ranks share a transformer: stages of a pipeline, each on some ranks, its matrices divided among `tensor` of
 * them, inside a node or on all ranks of several, and its samples among the `data` groups of those. After Alpa's
 * inter-operator pass (Zheng et al., OSDI 2022): with t the seconds a stage takes of a micro-batch, g of reducing
 * its gradients, B micro-batches, it is the least
 *
 *     sum over stages t + max over stages ((B - 1) t + g)
 *
 * whose stages have the memory they need. Stages take 1, 2, 4 ... ranks of a node, or all ranks
 * of 1, 2, 4 ... nodes. */
typedef struct hybrid_question {
	uint32_t nodes, ranks_per_node;
	uint32_t microbatches;
	uint64_t batch; /* samples of a step, of all ranks; 0: the model's for each rank */
	double memory;  /* bytes that a rank has */
	double state;   /* bytes of the optimizer, a parameter; weights and gradients take 4 each */
	hybrid_shape shape;
	uint32_t groups;                /* layers are put together in at most so many groups; 0: 64, the most */
	const char *const *compressors; /* SPECs that may reduce gradients, ended by NULL; NULL: none does */
	const char *collective;         /* NULL: the default */
} hybrid_question;

typedef struct hybrid_stage {
	uint32_t first, nlayers;        /* its layers of the model */
	uint32_t nodes, ranks_per_node; /* that it is on */
	uint32_t data, tensor;          /* degrees; their product is its ranks */
	uint32_t held;                  /* kinds of layers that it does not divide: hybrid_stage_holds() */
	const char *compressor;         /* one of the question's; NULL: uncompressed, or data is 1 */
	double seconds;                 /* a micro-batch's, both passes */
	double gradient_s;              /* reducing gradients, a step */
	double memory;                  /* bytes that each of its ranks needs */
} hybrid_stage;

typedef struct hybrid_plan {
	uint32_t nstages;
	hybrid_stage *stages; /* from the first layers to the last */
	double step_s;
	uint64_t batch;
} hybrid_plan;

/* RANGE when no plan has the memory it needs; the text says how much would do; or when a step has more
 * than 2^53 samples. UNSUPPORTED when the model has no layers or the machine no [node]; INVALID for a
 * question that cannot be. *out is freed by hybrid_plan_free, and has pointers to the
 * question's SPECs. */
gradcomp_status hybrid_plan_make(const model_file *model, const machine_file *machine, const hybrid_question *question,
                                 hybrid_plan **out, gradcomp_error *err);
/* Makes the plan of every shape, each as if the question's were that; a shape without one has NULL, and why. To ask
 * once takes little longer than for one shape: what ranks and compressors cost is found out once. */
void hybrid_plan_shapes(const model_file *model, const machine_file *machine, const hybrid_question *question,
                        hybrid_plan *out[HYBRID_SHAPES], gradcomp_error why[HYBRID_SHAPES]);
void hybrid_plan_free(hybrid_plan *plan);
/* Returns 1 when each rank of a tensor-parallel group has the whole of a layer of the stage that could be divided. */
int hybrid_stage_holds(const model_file *model, const hybrid_stage *stage, uint32_t layer);

#endif
