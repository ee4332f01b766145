/* --gradcomp=auto: a reducer that chooses. It stands in front of reducers of parts of the
 * model, and changes them while the job runs, where that is faster.
 *
 *     LOOK      the base, the first of the candidates, which is dense; is anything exposed?
 *     MEASURE   likewise, while every rank times what the candidates compute
 *     TRY       some real steps of the candidate that is predicted to be the fastest
 *     KEEP      with what won
 *     GUARD     now and then a few dense steps again: does it still win?
 *
 * Ranks talk at checks, between two steps. All know the step of the next one, since rank 0
 * said it at the last. At a check every rank shows what it has measured, rank 0 decides, and
 * the others hold its decision against what it may say before they believe it. Gradients of
 * the next step that come meanwhile wait. So all ranks change at the same step.
 *
 * What a compressor that is left still held back (its error memory) is owed: it is added to
 * the next gradient of its tensor, until a step has carried it.
 *
 * Files: choice.c the front, tuner_open.c how one is made, choice_spec.c what is asked for,
 * choice_parts.c reducers of parts and what is owed, tuner_probe.c the first look at the
 * network, choice_pulse.c times of steps, tuner_check.c a check, choice_facts.c what is shown
 * there, choice_policy.c what rank 0 decides, choice_trial.c which candidates it tries,
 * choice_decision.c what it may say, tuner_measure_cost.c the candidates' work, choice_wire.c their
 * exchanges, choice_assign.c who is best off with which, tuner_predict.c step times,
 * choice_state.c save, tuner_load.c load, choice_tell.c lines and the report. */
#ifndef REDUCER_AUTOTUNE_TUNER_H
#define REDUCER_AUTOTUNE_TUNER_H

#include "reducer/bucketing/replan.h"
#include "reducer/layout.h"
#include "reducer/reducer.h"
#include "reducer/bucketing/profile.h"

#include "cost/planning.h"

enum { TUNER_CANDIDATES = 16, TUNER_PARTS = 4, TUNER_WINDOW = 64, TUNER_TRIALS = 2, TUNER_SWITCHES = 64 };
#define TUNER_NONE UINT32_MAX
/* The text of a candidate that nobody can write down: for each tensor one of the others. */
#define TUNER_MIX "a mix"

/* ---- what is asked for (choice_spec.c) ---- */

/* Of the front as a whole; the table of its parameters. Not a plugin. */
extern const gradcomp_plugin_info tuner_info;
/* Whether a compressor's SPEC (NULL: the configured one) asks for it. */
int tuner_requested(const config *c, const char *compressor);

typedef struct candidate {
	char *text;       /* COMPRESSOR or COMPRESSOR@COLLECTIVE, as written */
	char *compressor; /* SPECs */
	char *collective; /* NULL: the one that was asked for, or else the usual one */
	/* Known when it has been resolved. */
	const plugin *plugins[2];
	spec specs[2]; /* text NULL: it has not been resolved */
	int mixed;         /* TUNER_MIX, the last one; no compressor of its own, nothing to resolve */
	int dense;         /* sends every number, at most rounded, and keeps nothing back */
	int unusable;      /* on some rank */
	char *why;         /* it is left out, as this rank found; told once */
	int costed;        /* what follows is known */
	struct candidate_cost {
		gradcomp_line encode, decode; /* over numbers, all rounds; decode with the payloads of all ranks */
	} cost;
	struct candidate_load *load; /* by tensor of the layout, on rank 0: see tuner_measure_cost.c */
} candidate;

/* What a tensor sends, were it a bucket. */
typedef struct candidate_load {
	double bytes[4]; /* by gradcomp_pattern, of all rounds */
	uint32_t exchanges;
	uint32_t reserved0;
} candidate_load;

typedef struct tuner_config {
	char *text; /* what all ranks must agree on, lists as a hash */
	double max_error, margin;
	uint32_t window, interval;
	candidate *candidate; /* [0] is the base */
	uint32_t n;
} tuner_config;

/* SPEC (NULL: the configured one) and settings; nothing is loaded. */
gradcomp_status tuner_config_read(const config *c, const char *spec, tuner_config *out, gradcomp_error *err);
void tuner_config_clear(tuner_config *w);
/* Loads a candidate's plugins. */
gradcomp_status candidate_resolve(const config *c, const char *collective, candidate *k, gradcomp_error *err);
/* Whether a compressor of each name of a list a/b/c is installed. */
gradcomp_status tuner_names_installed(const config *c, const char *what, const char *list, gradcomp_error *err);
/* For gradcomp_spec_check(): the SPEC, that there is a base, and what the SPEC itself names. */
gradcomp_status tuner_check_spec(const config *c, const char *spec, const char *collective, gradcomp_error *err);

/* ---- what is in force ---- */

/* Every tensor goes to `candidate` or to the base; of a mix to any, of TUNER_PARTS at most. */
typedef struct assignment {
	uint32_t candidate;
	uint8_t *of; /* a candidate, by tensor in the caller's order */
} assignment;

typedef struct choice choice;

typedef struct part {
	choice *of;
	reducer *r;
	uint32_t candidate, n;
	uint32_t *tensor; /* of the caller, by the part's own */
} part;

/* Reducers of an assignment, the base's last. */
typedef struct parts {
	part part[TUNER_PARTS];
	uint32_t n;
	uint8_t *of; /* part of each of the caller's tensors */
	uint32_t *as; /* and its number there */
} parts;

/* ---- what is measured (choice_facts.c) ---- */

/* Doubles, of which the ranks' maximum is formed, and of those marked - the minimum. */
typedef struct facts {
	uint32_t ntensors, ncandidates;
	double *value; /* all of them, `count` */
	uint32_t count;
	/* Parts of it. Of steps, the latest comes last; of steps that do not count: 0. */
	double *took;     /* TUNER_WINDOW seconds from the end of one step to the end of the next */
	double *exposed;  /* - TUNER_WINDOW seconds from the last gradient to the end */
	double *error;    /* 1: what is kept back, as a share, smoothed over steps */
	double *line;     /* - 2: an exchange in this assignment, a and b */
	double *costed;   /* - 1: whether candidates' costs are known */
	double *forward;  /* 1 */
	double *backward; /* by tensor of the layout */
	double *cost;     /* TUNER_COSTS of each candidate, see choice_facts.c */
	double *unusable; /* of each candidate; 1: on some rank */
} facts;

/* Steps of which took[] and exposed[] tell: since the change, but for the first, which
 * connects. */
uint32_t metrics_steps(const choice *c);
gradcomp_status metrics_make(facts *f, uint32_t ntensors, uint32_t ncandidates, gradcomp_error *err);
void metrics_free(facts *f);
/* This rank's, then all ranks'. */
void metrics_fill(choice *c);
gradcomp_status metrics_share(choice *c, gradcomp_error *err);
/* Median of the last n of a window's numbers. */
double metrics_median(const double *window, uint32_t n);

/* ---- what is decided ---- */

typedef enum tuner_phase { TUNER_LOOK, TUNER_MEASURE, TUNER_TRY, TUNER_KEEP, TUNER_GUARD } tuner_phase;

typedef enum tuner_reason {
	TUNER_GOES_ON,
	TUNER_ALONE,      /* one rank */
	TUNER_HIDDEN,     /* less is exposed than the margin */
	TUNER_NO_GAIN,    /* no candidate is predicted to gain the margin */
	TUNER_TRIES,
	TUNER_WON,        /* a candidate, in its trial */
	TUNER_LOST,       /* all trials */
	TUNER_GUARDS,     /* dense steps to compare with */
	TUNER_STILL_WINS,
	TUNER_NO_LONGER_WINS,
	TUNER_ERROR,      /* more is kept back than max_error */
	TUNER_REFUSED,    /* a candidate could not be made */
	TUNER_LOADED,     /* from a saved state */
	TUNER_REASONS
} tuner_reason;

/* What rank 0 tells the others at a check; `of` of the assignment follows it. */
typedef struct decision {
	uint64_t magic, step;
	uint32_t phase, reason;
	uint32_t candidate;
	uint32_t next;    /* steps to the next check; 0: another round at once */
	uint32_t measure; /* candidates' costs are to be measured */
	uint32_t reserved0;
	/* Seconds a step, of the candidates; 0: not known. */
	double predicted[TUNER_CANDIDATES], measured[TUNER_CANDIDATES];
	double exposed; /* of the base */
} decision;

#define TUNER_MAGIC 0x314f545541434721u
#define TUNER_NEXT_MAX (1u << 24)
/* What another rank may say at `step`. */
gradcomp_status decision_check(const choice *c, const decision *v, const uint8_t *of, gradcomp_error *err);

/* Rank 0's memory from check to check. Seconds a step; 0: not known. */
typedef struct policy {
	tuner_phase phase;
	double base, exposed;
	uint32_t base_steps; /* that it rests on */
	double predicted[TUNER_CANDIDATES], measured[TUNER_CANDIDATES];
	uint8_t banned[TUNER_CANDIDATES]; /* lost too much, or cannot be made */
	uint8_t tried[TUNER_CANDIDATES];
	uint32_t trials;
	uint8_t *of; /* of an assignment, for each of TUNER_CANDIDATES */
	uint32_t guarded;  /* the candidate that is compared with dense, */
	double before;     /* and what its steps took */
	uint32_t over;     /* checks in a row at which too much was held back */
	uint32_t lost;     /* trials and guards that ended with dense */
	uint32_t patience; /* intervals until the next guard or look; doubles */
	uint64_t guard_at;
} policy;

void policy_start(policy *p);
/* At a check, from c->facts and c->now: the decision, and of[] of its assignment. */
void policy_decide(choice *c, decision *v, uint8_t *of);
/* Candidate k could not be made: without it. */
void policy_refused(choice *c, uint32_t k);
/* Goes on with what a saved state says (c->last, c->now); `looks`: nothing was decided. */
void policy_resume(choice *c, int looks, uint64_t guard_at);

/* tuner_predict.c: seconds a step of candidate k, from facts; of the tensors it is best used
 * for, as of[] of an assignment. Negative: it cannot be said, or there is no such mix. */
double tuner_predict(choice *c, uint32_t k, uint8_t *of);
/* tuner_probe.c: the base's links are made, and timed by some all-reduces. Collective. */
gradcomp_status tuner_probe(choice *c, gradcomp_error *err);
/* tuner_measure_cost.c: what the candidate's work costs on this rank. */
gradcomp_status tuner_measure_cost(choice *c, candidate *k, gradcomp_error *err);

/* ---- the front ---- */

typedef struct change {
	uint64_t step;
	char *to;
	tuner_reason reason;
} change;

/* Seconds of steps as they go, by step % TUNER_WINDOW. */
typedef struct pulse {
	double took[TUNER_WINDOW], exposed[TUNER_WINDOW];
	double first_given, last_given, last_end; /* of the step in flight, and the end of the one before */
	double *given, *backward;                 /* by tensor of the layout: when, and what it took */
	double forward, error, exposed_s;
	uint64_t bad;
} pulse;

struct choice {
	gradcomp_reducer base;
	gradcomp_job *job;
	gradcomp_group *group;  /* its own, of the caller's ranks */
	gradcomp_layout layout; /* of all tensors */
	schedule_request asked; /* for each part */
	uint32_t ntensors;
	gradcomp_reducer_options options;
	char *collective, *schedule; /* what options point to */
	tuner_config wish;
	assignment now;
	parts *parts;
	float **owed;        /* by the caller's tensor; NULL: nothing */
	uint64_t changed_at; /* step at which `now` began */
	gradcomp_line probed; /* an all-reduce of bytes before the first step */
	facts facts;
	policy policy;       /* rank 0's */
	decision last;
	change *change;
	uint32_t nchanges;
	gradcomp_reducer_stats gone; /* counted by parts that have gone */
	report_reducer row[TUNER_PARTS]; /* of the report: left by parts that have gone last */
	uint32_t nrows;
	/* For tests: before facts are shared, and before a decision is believed. */
	void (*shows)(choice *c, void *ctx);
	void (*hears)(choice *c, decision *v, uint8_t *of, void *ctx);
	void *test;

	pthread_mutex_t lock;
	pthread_cond_t wake, changed;
	pthread_t thread;
	int started, stop;
	int busy;      /* a check is due or runs: what is given waits */
	int measure;   /* when it is over, costs are to be measured */
	int measuring; /* they are: candidates belong to the thread */
	int inside;    /* calls that may touch parts */
	int callbacks;
	uint8_t *state; /* of each of the caller's tensors in this step: see choice.c */
	void **given;
	uint32_t ngiven, ndone;
	uint64_t steps, next_check;
	pulse pulse;
	gradcomp_status failed;
	gradcomp_error failure;
};

gradcomp_status tuner_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                            const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);
/* tuner_check.c, on the front's thread, between two steps of all parts. */
gradcomp_status tuner_check(choice *c, gradcomp_error *err);
/* Costs of the candidates that have none yet. */
void tuner_measure(choice *c);
/* Puts other reducers to work. *refused: a candidate cannot be made, on any rank, and all
 * is as before. */
gradcomp_status tuner_change(choice *c, const assignment *to, tuner_reason why, int *refused,
                              gradcomp_error *err);
void assignment_clear(assignment *a);

/* choice_pulse.c: with the lock held. */
gradcomp_status step_timer_make(pulse *p, uint32_t ntensors, gradcomp_error *err);
void step_timer_free(pulse *p);
void step_timer_given(choice *c, uint32_t i);
void step_timer_step(choice *c);

#endif
