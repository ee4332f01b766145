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

/* A link between nodes, or inside the only one. */
typedef struct plan_link {
	double bits;    /* a second */
	double message; /* seconds; negative: the machine's */
} plan_link;

/* The link that a compressor needs for the share of the ideal speed that is asked for. */
typedef struct plan_need {
	const plan_row *row; /* its best on the link that there is */
	double share;        /* of the ideal speed, there */
	double bits;         /* the least rate, with the messages of that link; INFINITY: none is enough */
	double message;      /* the longest message, at the rate of that link; 0: none is short enough */
} plan_need;

/* All predictions for one number of nodes and one link, the quickest first. */
typedef struct plan_table {
	uint32_t nodes;
	machine_file machine; /* the plan's, with that link; what it points to is the plan's */
	plan_row *rows;
	int n;
	plan_need *needs; /* the least rate first */
	int nneeds;
	const plan_row *dense, *half; /* the quickest of each; NULL: there is none */
	/* The row that is advised; NULL: nothing can be predicted. It is dense, first of all in fp32, where nothing
	 * is quicker by more than PLAN_MARGIN. */
	const plan_row *best;
} plan_table;

typedef struct plan {
	model_file *model;
	machine_file *machine;
	uint32_t nodes[PLAN_NODES], ranks_per_node;
	plan_link links[PLAN_NODES]; /* in place of the machine's */
	int nnodes, nlinks;          /* at most one of them is more than 1 */
	double need;                 /* a share of the ideal speed; 0: is not asked for */
	plan_specs compressors, collectives, schedules;
	plan_spec dense, half;
	int each_layer, no_read_ahead, all; /* all: print every row */
	plan_table tables[PLAN_NODES];
	int ntables;
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

/* A trace of torch.profiler as a model; plan_kineto() of plan_import.h says how it is read. */
gradcomp_status plan_import_kineto(const char *path, const char *names, model_file **out, gradcomp_error *err);

/* Fills the list from "SPEC,SPEC", or with all installed ones (NULL). `option` is for messages. */
gradcomp_status plan_take_specs(gradcomp_plugin_kind kind, const char *list, const char *option, plan_specs *out,
                                gradcomp_error *err);
/* The SPECs of the machine's curves, and as skips what is installed and has none. */
gradcomp_status plan_take_curves(plan *p, gradcomp_error *err);
gradcomp_status plan_take_schedules(const char *list, plan_specs *out, gradcomp_error *err);

bool plan_same(const plan_spec *a, const plan_spec *b);
gradcomp_status plan_skip_note(plan *p, const char *what, const char *why, gradcomp_error *err);
/* Reads "10G", "1G,10G,25G" (rising) or "100M..100G" (doubling), each with or without "/50us" behind it, in bits a second
 * and seconds a message. Returns false when the text is none of these. */
bool plan_take_links(plan *p, const char *text);
/* The level of the machine that tables of so many nodes are about. */
static inline int plan_level(uint32_t nodes)
{
	return nodes > 1;
}
enum { PLAN_TEXT = 32 };
/* "952 Mbit/s"; "-" for a link that the machine has not. */
const char *plan_rate_text(double bits, char out[PLAN_TEXT]);
const char *plan_seconds_text(double seconds, char out[PLAN_TEXT]);
/* "4 nodes" or "1 Gbit/s": what tells the table from others. */
const char *plan_table_text(const plan *p, const plan_table *t, char out[PLAN_TEXT]);

/* Every combination in every table, on at most so many threads, the caller's among them.
 * The tables, what is left out and the error do not depend on how many there are. */
gradcomp_status plan_sweep(plan *p, int threads, gradcomp_error *err);
gradcomp_status plan_predict(const plan *p, const machine_file *machine, const plan_row *row, uint32_t nodes,
                             cost_prediction *out, gradcomp_error *err);
cost_question plan_question(const plan *p, const plan_row *row, uint32_t nodes);
/* The quickest row of a compressor; NULL: there is none. */
const plan_row *plan_best_of(const plan_table *t, const plan_spec *compressor);
/* The seconds of a step in which nothing is exchanged or compressed. The table has rows. */
double plan_ideal(const plan *p, const plan_table *t);
/* The needs of every table's compressors, after plan_sweep(). They are looked for where the share that is reached
 * grows with the rate and falls with the length of a message. */
gradcomp_status plan_find_needs(plan *p, int threads, gradcomp_error *err);
double plan_parameters(const model_file *m);
void plan_free(plan *p);

/* Sentences about the winner for one number of nodes, one a line, to out. */
void plan_explain(const plan *p, const plan_table *t, FILE *out);

void plan_show(const plan *p);
void plan_show_needs(const plan *p);
/* The model, the machine, and what is predicted for. */
void plan_show_head(const plan *p);
void plan_show_skips(const plan *p);
void plan_json(const plan *p, FILE *out);

typedef struct plan_hybrid {
	const char *memory, *microbatches, *batch, *state, *emit; /* texts that were given */
	int json;
} plan_hybrid;
/* Prints the plan as the configuration of a training program, "NAME" or "NAME@VERSION"; where there is none, says why.
 * Returns the exit status. */
int plan_emit(const plan *p, const char *trainer, const hybrid_plan *h, uint32_t microbatches,
              const gradcomp_error *why);
/* Says if that names one; else what it must be, on stderr, with the usage. -1, or the exit status. */
int plan_emit_check(const char *trainer, const char *usage);
/* The exit status, after a table or an error. */
int plan_parallel(plan *p, const plan_hybrid *h, const char *usage);

extern const char plan_usage[];
/* These are as they were given; NULL or 0: not given. */
typedef struct plan_arguments {
	const char *model, *kineto, *names, *machine, *nodes, *links, *ranks, *compressors, *collectives, *schedules,
		*dense, *half, *compute, *need, *tokens, *save;
	const char *output, *trace;
	uint64_t ntokens;
	int list, parallel;
	plan_hybrid hybrid;
} plan_arguments;
/* Also sets what of *p follows from them alone. -1 go on, else the exit status. */
int plan_parse(int argc, char **argv, plan_arguments *a, plan *p);

#endif
