/* The conformance kit: a plugin against every rule, group by group. Each group runs
 * in a process of its own with a time limit, so that a crash, a hang or a stray write
 * becomes the name of the rule it breaks. */
#ifndef CONFORMANCE_KIT_H
#define CONFORMANCE_KIT_H

#include "conformance/rules.h"
#include "conformance/fixture.h"
#include "conformance/call.h"
#include "gradcomp/collective.h"
#include "gradcomp/plugin.h"

#include <stdbool.h>

/* Says what is to be done. */
typedef struct kit_options {
	const char *path;
	const char *parameters; /* "key=value,key=value" or "" */
	int ranks_min, ranks_max;
	uint64_t seed;
	int thorough;
	int large;      /* buckets of 2^17 and 2^20 numbers, too */
	int far;        /* many steps, tensors, ranks and buckets, and what stands before 2^32 others */
	double seconds; /* the limit of a group */
} kit_options;

enum { KIT_TEXT = 800 };
/* Says what came out, for each rule. */
typedef struct kit_result {
	rule_result result[RULES];
	int asked[RULES], broken[RULES]; /* how often */
	/* tells the first failure, or the last success; behind a newline: where to look */
	char text[RULES][KIT_TEXT];
	char spec[300];
	char name[64], version[64], licence[64];
	uint32_t abi;   /* that the plugin was built for; 0: not known, taken for today's */
	uint32_t since; /* the ABI that brought what is checked just now; 0: the first */
	gradcomp_plugin_kind kind;
	int rules_kept, rules_broken, rules_skipped, rules_missed, rules_warned;
	int crash_signal; /* signal of the crash that has been told */
	call_which crash_in;
} kit_result;

/* Returns 0 when all rules are kept, 1 when one is broken. */
int kit_run(const kit_options *options, kit_result *out);
/* Does what kit_run() does, on a plugin that is loaded already; only `seed`, ranks, `thorough` and `seconds` of the
 * options count. */
int kit_run_fixture(const kit_options *options, const fixture *t, kit_result *out);
/* Does the same for a collective. */
int kit_run_collective(const kit_options *options, const struct gradcomp_collective_v1 *plugin,
                       const gradcomp_value *values, kit_result *out);
/* Sets `plain` and `neutral` of a fixture: the parameters with those that its plugin calls neutral in place of
 * the user's. *out has the values and is to be freed; NULL: there are none. */
gradcomp_status kit_neutral(fixture *t, const char *parameters, gradcomp_spec **out, gradcomp_error *err);

/* Keeps what the same runs have made in another process, in memory that both see; NULL: it cannot be had. */
typedef struct kit_trace kit_trace;
kit_trace *elsewhere_trace_new(void);
void elsewhere_trace_free(kit_trace *t);

typedef struct kit {
	const kit_options *options;
	fixture fixture;                                 /* a compressor's */
	const struct gradcomp_collective_v1 *collective; /* or this, with its values */
	const gradcomp_value *values;
	int crash_signal; /* not 0: what is reported is a crash */
	kit_trace *trace;
	bool failed;    /* the group */
	rule crash;     /* the rule that a crash would break just now */
	uint32_t since; /* the ABI that brought the checks to come; set anew for each group. 0: the first */
	int out;        /* where results go */
} kit;

/* Adds one result of the group. What stands behind a newline in the text of a failure says where to look: what it
 * is about this failure that points there. */
void kit_ok(kit *k, rule r, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
void kit_fail(kit *k, rule r, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
void kit_skip(kit *k, rule r, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
/* P ranks on a model; false when the failure has been reported. */
bool kit_open(kit *k, ranks *s, int P, model *m);
/* A step; false when the failure has been reported. */
bool kit_step(kit *k, ranks *s, float **g, int interleave);
/* Returns the error memory of rank w: the host's or the plugin's. NULL: none. */
const float *kit_memory(const fixture *t, const ranks *s, int w);

/* The number of a step to begin with: 0, of any length up to 38 bits, or of a job that has run for years. */
uint64_t kit_some_step(void);
/* Returns true when two sets of ranks hold the same gradients and memory; reports a difference. */
bool kit_alike(kit *k, rule r, const char *when, const ranks *a, float **g, const ranks *b, float **h);
/* Runs both on equal, fresh gradients: a bucket after bucket, b interleaved or on other
 * threads or however it was made, and compares every step. */
int kit_run_alike(kit *k, rule r, const char *when, ranks *a, ranks *b, int steps);
/* The coarsest type that is summed gives the rounding, and what still can be summed. */
void kit_rounding(fixture *t);
/* Checks of the descriptor that run nothing. */
void describe_notes(const struct gradcomp_compressor_v1 *plugin, kit_result *out);
void kit_note(kit_result *out, rule r, rule_result v, const char *fmt, ...) GRADCOMP_PRINTF(4, 5);

void parameters_group(kit *k);
void steps_group(kit *k);
void unbiased_group(kit *k);
void resume_group(kit *k);
void saved_state_group(kit *k);
void peers_group(kit *k);
void memory_group(kit *k);
void instances_group(kit *k);
void threads_group(kit *k);
void nonfinite_group(kit *k);
void nonfinite_overflow_group(kit *k);
void device_group(kit *k);
void unbiased_noise_group(kit *k);
void steps_large_group(kit *k);
void steps_reach_group(kit *k);
void elsewhere_trace_group(kit *k);
void elsewhere_group(kit *k);

/* Where there is much of something: buckets, tensors, ranks, numbers, or of what stands before (`far`, see
 * ranks_far). */
typedef struct kit_place {
	int P;
	model *m;
	uint64_t most; /* numbers of a bucket */
	uint64_t from; /* the first step */
	bool far;
} kit_place;
enum { KIT_PLACES = 5 };
/* Counts how many of these KIT_PLACES the options ask for. */
int kit_places(const kit *k);
kit_place kit_reach(const kit *k, int which);
/* Opens a set of ranks in such a place. */
gradcomp_status kit_open_at(const kit *k, ranks *s, const kit_place *p, uint64_t seed);
/* Returns true when it says that it does not work there, which is no fault where so much is asked. */
bool kit_declined(const ranks *s, gradcomp_status st);

/* How far checks go: steps in a run, the step that some begin at, and memory that create() may ask for when
 * the layout has 2^32 numbers that are not reduced. */
enum { REACH_STEPS = 500 };
/* The ABI since which they go that far. */
enum { KIT_FURTHER = 2 };
#define REACH_STEP ((uint64_t)1 << 33)
#define REACH_MEMORY ((size_t)1 << 28)

void predict_group(kit *k);
void collective_primitives_group(kit *k);
void collective_memory_group(kit *k);

#endif
