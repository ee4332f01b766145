/* The options a user gives to srun, sbatch and salloc. */
#ifndef SPANK_OPTIONS_H
#define SPANK_OPTIONS_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>

enum {
	OPTION_COMPRESSOR,
	OPTION_COLLECTIVE,
	OPTION_REPORT,
	OPTION_SCHEDULE,
	OPTION_RECORD,
	OPTION_ATTACH,
	OPTION_ON_FAILURE,
	OPTION_STAGE,
	OPTION_COUNT
};

#define OPTION_BYTES 4096 /* length of a value, with the final 0 */

/* One option, all that is said of it in one place. */
typedef struct option_row {
	const char *name;     /* "--gradcomp-report" */
	const char *argument; /* for srun --help */
	const char *help;
	const char *check;    /* the flag of gradcomp check that takes its value; NULL: there is none */
	const char *variable; /* in which tasks find the value, and */
	const char *word;     /* its name in GRADCOMP_OPTIONS; NULL: it is not for tasks */
	const char *none;     /* the value that turns it off; NULL: there is none */
	bool file;            /* the value is a path */
} option_row;

extern const option_row options_table[OPTION_COUNT];

typedef struct options {
	char *value[OPTION_COUNT]; /* NULL: not given; owned */
} options;

/* Registers the options in any context; `cb` gets OPTION_... as its val. */
int options_register(spank_t sp, spank_opt_cb_f cb);
/* "--gradcomp" and so on. */
const char *option_name(int which);
/* Takes a copy of a value that is within bounds, in place of an earlier one.
 * Else returns -1, *o unchanged, with the reason in `why`. */
int options_set(options *o, int which, const char *value, char *why, size_t size);
/* The value; NULL when it was not given or is the word that turns the option off. */
const char *options_value(const options *o, int which);
/* --gradcomp=off: leave the job alone. */
bool options_off(const options *o);
bool options_any(const options *o);
void options_clear(options *o);

/* srun's version, in the environment of a step with options. The plugin in slurmstepd of the same version takes it
 * away; another one adds its own, behind a blank. So a task that finds it knows that its node has not srun's
 * plugin. srun passes variables that begin with SLURM_ even with --export=NONE. */
#define OPTIONS_PLUGIN "SLURM_GRADCOMP_PLUGIN"

/* A heterogeneous srun has one set of options a component, but Slurm hands only
 * the last value of an option to all of them: these carry the sets in a job's
 * environment. */
#define OPTIONS_COMPONENTS "GRADCOMP_COMPONENTS"

/* Text for n sets, to be freed; NULL when out of memory. */
char *options_join(const options *sets, int n);
/* Set number k (from 0) of such a text, replacing *o. -1 and `why` when there is
 * none or a value is out of bounds. */
int options_split(const char *text, int k, options *o, char *why, size_t size);

#endif
