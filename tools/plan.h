/* The parts of gradcomp plan share this. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include "cost/planning.h"
#include "gradcomp/plugin.h"
#include "base/json.h"

#include <stdbool.h>

enum { PLAN_SPEC = 256, PLAN_SPECS = 64, PLAN_NODES = 32, PLAN_NODES_MOST = 1 << 20, PLAN_RANKS_MOST = 1024 };

/* A plan is often asked for where users share a machine. */
enum { PLAN_THREADS_MOST = 16 };

/* A rank's tokens of a step, of models that other programs saved. */
enum { PLAN_TOKENS = 4096, PLAN_TOKENS_MOST = 1 << 24 };

/* A compressor that is predicted to win by less than that share of a step does not. */
#define PLAN_MARGIN 0.02

typedef struct plan_spec {
	char text[PLAN_SPEC];  /* the SPEC that is asked with */
	char shown[PLAN_SPEC]; /* without parameters that have their defaults */
} plan_spec;

typedef struct plan_specs {
	plan_spec spec[PLAN_SPECS];
	int n;
} plan_specs;

typedef struct plan_row {
	const plan_spec *compressor, *collective, *schedule;
	cost_prediction p;
} plan_row;

/* Names what was left out, once. */
typedef struct plan_skip {
	char what[PLAN_SPEC], why[508];
} plan_skip;

/* All predictions for one number of nodes, the quickest first. */
typedef struct plan_table {
	uint32_t nodes;
	plan_row *rows;
	int n;
	const plan_row *dense, *half; /* the quickest of each; NULL: there is none */
	/* The row that is advised; NULL: nothing can be predicted. It is dense, first of all in fp32, where nothing
	 * is quicker by more than PLAN_MARGIN. */
	const plan_row *best;
} plan_table;

typedef struct plan {
	model_file *model;
	machine_file *machine;
	uint32_t nodes[PLAN_NODES], ranks_per_node;
	int nnodes;
	plan_specs compressors, collectives, schedules;
	plan_spec dense, half;
	int each_layer, all; /* all: print every row */
	plan_table tables[PLAN_NODES];
	plan_skip *skips;
	int nskips;
} plan;

/* A path, or the name of a model that is installed. Of what other programs saved, seconds are computed for so many
 * tokens of a rank; `timed`: they will be replaced. */
gradcomp_status plan_model(const char *name, uint64_t tokens, bool timed, model_file **out, gradcomp_error *err);
const char *plan_models_folder(void);
/* The installed models as a table. 0, or 1 after a message. */
int plan_list_models(void);

/* Returns true when the path is for plan_import_model(): a folder, *.json or *.safetensors. */
bool plan_imports(const char *path);
/* A folder is taken for what is in it: model.safetensors.index.json, model.safetensors or config.json. NOTFOUND and IO
 * of the file; INVALID for what is in it; UNSUPPORTED for a family without a description, for seconds that do not
 * follow from it, and where gradcomp was built without jansson. *out is freed by model_file_free. */
gradcomp_status plan_import_model(const char *path, uint64_t tokens, bool timed, model_file **out, gradcomp_error *err);

/* Fills the list from "SPEC,SPEC", or with all installed ones (NULL). `option` is for messages. */
gradcomp_status plan_take_specs(gradcomp_plugin_kind kind, const char *list, const char *option, plan_specs *out,
                                gradcomp_error *err);
/* The SPECs of the machine's curves, and as skips what is installed and has none. */
gradcomp_status plan_take_curves(plan *p, gradcomp_error *err);
gradcomp_status plan_take_schedules(const char *list, plan_specs *out, gradcomp_error *err);

bool plan_same(const plan_spec *a, const plan_spec *b);
gradcomp_status plan_skip_note(plan *p, const char *what, const char *why, gradcomp_error *err);
/* Every combination on every number of nodes, on at most so many threads, the caller's among them.
 * The tables, what is left out and the error do not depend on how many there are. */
gradcomp_status plan_sweep(plan *p, int threads, gradcomp_error *err);
gradcomp_status plan_predict(const plan *p, const plan_row *row, uint32_t nodes, cost_prediction *out,
                             gradcomp_error *err);
cost_question plan_question(const plan *p, const plan_row *row, uint32_t nodes);
/* The quickest row of a compressor; NULL: there is none. */
const plan_row *plan_best_of(const plan_table *t, const plan_spec *compressor);
double plan_parameters(const model_file *m);
void plan_free(plan *p);

/* Sentences about the winner for one number of nodes, one a line, to out. */
void plan_explain(const plan *p, const plan_table *t, FILE *out);

void plan_show(const plan *p);
void plan_json(const plan *p, FILE *out);

typedef struct plan_hybrid {
	const char *memory, *microbatches, *batch, *state; /* texts that were given */
	int json;
} plan_hybrid;
/* The exit status, after a table or an error. */
int plan_parallel(plan *p, const plan_hybrid *h, const char *usage);

extern const char plan_usage[];
/* These are as they were given; NULL or 0: not given. */
typedef struct plan_arguments {
	const char *model, *machine, *nodes, *ranks, *compressors, *collectives, *schedules, *dense, *half, *compute,
		*tokens, *save;
	const char *output, *trace;
	uint64_t ntokens;
	int list, parallel;
	plan_hybrid hybrid;
} plan_arguments;
/* Also sets what of *p follows from them alone. -1 go on, else the exit status. */
int plan_parse(int argc, char **argv, plan_arguments *a, plan *p);

#endif
