/* The parts of gradcomp plan share this. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include "cost/planning.h"
#include "gradcomp/plugin.h"
#include "base/json.h"
#include "schedule/sim.h"

#include "tools/commands.h"

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

/* A link has so many bits a second at least: the least of a machine file. */
#define PLAN_RATE_LEAST 800

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

enum { PLAN_CLASSES = COMMAND_TIMES_MOST };

/* Ranks that are alike. */
typedef struct plan_class {
	uint32_t ranks;
	double speed;   /* of its forward and backward passes, relative to the model's */
	plan_link link; /* of its ranks' nodes; bits 0: the machine's */
	/* With work divided by speed: samples of a rank, relative to the batch; where that is known the samples, and how
	 * many of the ranks have one more; 0: it is not known. */
	double share;
	uint64_t samples;
	uint32_t more;
} plan_class;

/* Returns the class's link, where others have the usual one. */
static inline linear plan_link_of(const plan_class *c, linear usual)
{
	return c->link.bits > 0 ? (linear){c->link.message >= 0 ? c->link.message : usual.a, 8 / c->link.bits} : usual;
}

typedef enum plan_by { PLAN_BY_NOTHING, PLAN_BY_COMPUTING, PLAN_BY_LINK, PLAN_BY_BOTH } plan_by;

/* What the slowest ranks cost the best plan of a table, in seconds of a step. */
typedef struct plan_slowest {
	double step, alike, divided; /* as it is, with all ranks as the fastest, and with work divided by speed */
	double cost, gain;
	double of[PLAN_BY_LINK + 1]; /* that would be gained by the fastest computing, or the quickest link, alone */
	plan_by by;
	int who; /* the class that holds it up */
} plan_slowest;

/* All predictions for one number of nodes and one link, the quickest first. */
typedef struct plan_table {
	uint32_t nodes;
	machine_file machine; /* the plan's, with that link, or the slowest class's; what it points to is the plan's */
	machine_file alike;   /* with the quickest class's */
	linear usual;         /* the link of classes that have none of their own */
	/* The slowest in computing first, with ranks that are in no class as one of speed 1; 0: all are alike. */
	plan_class classes[PLAN_CLASSES + 1];
	sim_class speeds[PLAN_CLASSES + 1];
	int nclasses, slow_link; /* the class with the slowest link */
	plan_slowest slowest;
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
	plan_class classes[PLAN_CLASSES];
	int nclasses;
	const char *measured; /* the report that they are from; NULL: they were given */
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
/* Reads one of these; "Mbit" and its like are units too. */
bool plan_take_link(const char *text, plan_link *out);
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
/* With the classes of the table. */
gradcomp_status plan_predict(const plan *p, const plan_table *t, const machine_file *machine, const plan_row *row,
                             uint32_t nodes, cost_prediction *out, gradcomp_error *err);
cost_question plan_question(const plan *p, const plan_table *t, const plan_row *row, uint32_t nodes);
/* Takes "2:speed=0.5,link=100M"; -1 to go on, else the exit status after a message. */
int plan_take_class(plan *p, const char *text, const char *usage);
/* The same from a job's report: ranks that compute as fast as each other, those with a slow link apart. Speed 1 is rank
 * 0's. The machine has been read. */
int plan_measured_classes(plan *p, const char *path);
/* Says if the classes have more ranks than the least job that is predicted. -1, or the exit status. */
int plan_check_classes(const plan *p, const char *usage);
/* Finds out what the slowest costs each table's best plan, and what dividing work by speed gains, after plan_sweep(). */
gradcomp_status plan_weigh_classes(plan *p, gradcomp_error *err);
/* "computing", "link", ... */
const char *plan_by_text(plan_by by);
/* Sentences about that, to out. */
void plan_say_classes(const plan_table *t, FILE *out);
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
	const char *output, *trace, *measured, *classes[COMMAND_TIMES_MOST];
	int nclasses;
	uint64_t ntokens;
	int list, parallel;
	plan_hybrid hybrid;
} plan_arguments;
/* Also sets what of *p follows from them alone. -1 go on, else the exit status. */
int plan_parse(int argc, char **argv, plan_arguments *a, plan *p);

#endif
