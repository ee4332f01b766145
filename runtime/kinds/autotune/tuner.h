/* --gradcomp=auto: a reducer that chooses its compressors. It has a reducer for each part of
 * the model, and exchanges them for others while the job runs, where that is faster.
 *
 *     LOOK      the base, the first of the candidates, which is dense; is anything exposed?
 *     MEASURE   likewise, while every rank times what the candidates compute
 *     TRY       some real steps of the candidate that is predicted to be the fastest
 *     KEEP      with what won
 *     GUARD     now and then a few dense steps again: does it still win?
 *
 * Ranks meet at checks, between two steps. All know the step of the next check, since it is
 * part of the last decision. At a check one all-reduce combines what the ranks have measured,
 * rank 0 decides, and the others check its decision before they follow it. Gradients of the
 * next step that come meanwhile wait. So all ranks change at the same step.
 *
 * What a compressor holds back (its residual) when it is given up is carried over: it is added
 * to the next gradient of its tensor, until a step has carried it. While a guard compares it with
 * dense steps it is set aside with what it holds back, and takes that up again when it wins.
 *
 * Files: tuner.c the calls and the thread, tuner_step.c the end of a tensor's step, tuner_open.c how one is made,
 * tuner_network.c all-reduces that are timed, tuner_config.c its SPEC and settings, partition.c reducers of parts,
 * residual_carry.c residuals that are carried over, metrics.c times of steps and what ranks combine, tuner_check.c
 * a check, policy.c what rank 0 decides, candidate_cost.c the candidates' work, exchange_cost.c their exchanges,
 * tensor_assign.c which tensor is best off with which, tuner_predict.c step times, tuner_state.c save, tuner_load.c
 * load, tuner_report.c log lines and the report, tuner_gpu.c what is different of gradients in GPU memory. */
#ifndef KINDS_AUTOTUNE_TUNER_H
#define KINDS_AUTOTUNE_TUNER_H

#include "reducer/bucketing/replan.h"
#include "step/layout.h"
#include "reducer/reducer.h"
#include "reducer/bucketing/profile.h"

#include "base/fit.h"

enum { TUNER_CANDIDATES = 16, TUNER_PARTS = 4, TUNER_WINDOW = 64, TUNER_TRIALS = 2, TUNER_SWITCHES = 64 };
#define TUNER_NONE UINT32_MAX
/* The text of a candidate that nobody can write down: for each tensor one of the others. */
#define TUNER_MIX "a mix"

/* The functions below read what is asked for (tuner_config.c). */

/* Asks whether a compressor's SPEC (NULL: the configured one) is for it. */
bool tuner_requested(const config *c, const char *compressor);

typedef struct candidate {
	char *text;       /* COMPRESSOR or COMPRESSOR@COLLECTIVE, as written */
	char *compressor; /* SPECs */
	char *collective; /* NULL: the one that was asked for, or else the usual one */
	/* Known when it has been resolved. */
	const plugin *plugins[2];
	const spec *specs[2]; /* the job's; NULL: it has not been resolved */
	int mixed;            /* TUNER_MIX, the last one; no compressor of its own, nothing to resolve */
	int dense;            /* sends every number, at most rounded, and keeps nothing back */
	int on_device;        /* gradients are in GPU memory */
	bool in_levels;       /* group_has_levels() */
	int unusable;         /* on some rank */
	char *why;            /* it is left out, as this rank found; logged once */
	int costed;           /* 1: the members below are known */
	struct candidate_cost {
		linear encode, decode; /* over numbers, all rounds; decode with the payloads of all ranks */
	} cost;
	struct candidate_load *load; /* by tensor of the layout, on rank 0: see candidate_cost.c */
} candidate;

/* Adds up what a tensor sends, were it a bucket. */
typedef struct candidate_load {
	double bytes[4]; /* by gradcomp_pattern, of all rounds */
	uint32_t exchanges;
	uint32_t reserved0;
} candidate_load;

typedef struct tuner_config {
	char *text; /* all ranks must agree on this, lists as a hash */
	double max_error, margin;
	uint32_t window, interval;
	candidate *candidate; /* [0] is the base */
	uint32_t n;
} tuner_config;

/* SPEC (NULL: the configured one) and settings; nothing is loaded. */
gradcomp_status tuner_config_read(spec_table *specs, const char *text, tuner_config *out, gradcomp_error *err);
void tuner_config_clear(tuner_config *w);
/* Loads a candidate's plugins. */
gradcomp_status tuner_candidate_resolve(spec_table *specs, const char *collective, candidate *k, gradcomp_error *err);
/* For gradcomp_spec_check(): the SPEC, that there is a base, and what the SPEC itself names. */
gradcomp_status tuner_check_spec(spec_table *specs, const char *text, const char *collective, gradcomp_error *err);

/* The structures below say what is in force. */

/* Every tensor goes to `candidate` or to the base; of a mix to any, of TUNER_PARTS at most. */
typedef struct assignment {
	uint32_t candidate;
	uint8_t *of; /* a candidate, by tensor in the caller's order */
} assignment;

typedef struct tuner tuner;
typedef struct tuner_gpu tuner_gpu; /* tuner_gpu.h */

typedef struct subreducer {
	tuner *of;
	reducer *r;
	uint32_t candidate, n;
	uint32_t *tensor; /* the caller's numbers, by the reducer's own */
	uint32_t last;    /* its own tensor that is done last; under auto's lock */
} subreducer;

/* Reducers of an assignment, the base's last. */
typedef struct partition {
	subreducer sub[TUNER_PARTS];
	uint32_t n;
	uint8_t *of;  /* reducer of each of the caller's tensors */
	uint32_t *as; /* and its number there */
} partition;

/* The structures below keep what is measured (metrics.c). */

/* Doubles, of which the ranks' maximum is formed, and of those marked - the minimum. */
typedef struct metrics {
	uint32_t ntensors, ncandidates;
	double *value; /* all of them, `count` */
	uint32_t count;
	/* Parts of it. Of steps, the latest comes last; of steps that do not count: 0. */
	double *took;     /* TUNER_WINDOW seconds from the end of one step to the end of the next */
	double *exposed;  /* - TUNER_WINDOW seconds from the last gradient to the end */
	double *error;    /* 1: what is kept back, as a share, smoothed over steps */
	double *line;     /* - 2: an exchange in this assignment, a and b */
	double *fitted;   /* - 2: likewise of messages as a candidate sends them; 0: not timed */
	double *costed;   /* - 1: whether candidates' costs are known */
	double *forward;  /* 1 */
	double *backward; /* by tensor of the layout */
	double *cost;     /* TUNER_COSTS of each candidate, see metrics.c */
	double *unusable; /* each candidate's; 1: on some rank */
} metrics;

/* Steps that took[] and exposed[] have: since the change, but for the first, which
 * connects. */
uint32_t metrics_steps(const tuner *c);
gradcomp_status metrics_make(metrics *f, uint32_t ntensors, uint32_t ncandidates, gradcomp_error *err);
void metrics_free(metrics *f);
/* This rank's, then all ranks'. */
void metrics_fill(tuner *c);
gradcomp_status metrics_share(tuner *c, gradcomp_error *err);
/* Returns the median of the last n of a window's numbers. */
double metrics_median(const double *window, uint32_t n);

/* The structures below keep what is decided. */

typedef enum tuner_phase { TUNER_LOOK, TUNER_MEASURE, TUNER_TRY, TUNER_KEEP, TUNER_GUARD } tuner_phase;

typedef enum tuner_reason {
	TUNER_GOES_ON,
	TUNER_ALONE,   /* one rank */
	TUNER_HIDDEN,  /* less is exposed than the margin */
	TUNER_NO_GAIN, /* no candidate is predicted to gain the margin */
	TUNER_TRIES,
	TUNER_WON,    /* a candidate, in its trial */
	TUNER_LOST,   /* all trials */
	TUNER_GUARDS, /* dense steps to compare with */
	TUNER_STILL_WINS,
	TUNER_NO_LONGER_WINS,
	TUNER_ERROR,   /* more is kept back than max_error */
	TUNER_REFUSED, /* a candidate could not be made */
	TUNER_LOADED,  /* from a saved state */
	TUNER_REASONS
} tuner_reason;

/* Rank 0 broadcasts this at a check; `of` of the assignment follows it. */
typedef struct decision {
	uint64_t magic, step;
	uint32_t phase, reason;
	uint32_t candidate;
	uint32_t next;    /* steps to the next check; 0: another round at once */
	uint32_t measure; /* candidates' costs are to be measured */
	uint32_t fit;     /* bytes of all-reduces that are to be timed now; 0: none */
	/* Seconds a step, of the candidates; 0: not known. */
	double predicted[TUNER_CANDIDATES], measured[TUNER_CANDIDATES];
	double exposed; /* the base's */
} decision;

#define TUNER_MAGIC 0x314f545541434721u
#define TUNER_NEXT_MAX (1u << 24)
#define TUNER_FIT_MIN 256u
#define TUNER_FIT_MAX (1u << 22)
/* Checks what another rank may say at `step`. */
gradcomp_status policy_check_decision(const tuner *c, const decision *v, const uint8_t *of, gradcomp_error *err);

/* Rank 0's memory from check to check. Seconds a step; 0: not known. */
typedef struct policy {
	tuner_phase phase;
	double base, exposed;
	uint32_t base_steps; /* that it rests on */
	int fitted;          /* the exchange has been timed at the sizes of what was predicted then */
	double predicted[TUNER_CANDIDATES], measured[TUNER_CANDIDATES];
	double left[TUNER_CANDIDATES];    /* waited for communication in a step, where it was tried */
	uint8_t banned[TUNER_CANDIDATES]; /* lost too much, or cannot be made */
	uint8_t tried[TUNER_CANDIDATES];
	uint32_t trials;
	uint8_t *of;       /* an assignment's, for each of TUNER_CANDIDATES */
	uint32_t guarded;  /* the candidate that is compared with dense, */
	double before;     /* and what its steps took */
	uint32_t n_over;   /* checks in a row at which far too much was held back */
	double over_wait;  /* steps that numbers waited when it was first too much, or has been since; 0: it is not */
	uint64_t over_at;  /* when that was */
	uint32_t lost;     /* trials and guards that ended with dense */
	uint32_t patience; /* intervals until the next guard or look; doubles */
	uint64_t guard_at;
} policy;

void policy_start(policy *p);
/* Decides at a check, from c->metrics and c->now: fills the decision, and of[] of its assignment. */
void policy_decide(tuner *c, decision *v, uint8_t *of);
/* Goes on without candidate k, which could not be made. */
void policy_refused(tuner *c, uint32_t k);
/* Goes on with what a saved state says (c->last, c->now); `looks`: nothing was decided. */
void policy_resume(tuner *c, int looks, uint64_t guard_at);

/* tuner_predict.c: seconds a step of candidate k, from metrics; of the tensors it is best used
 * for, as of[] of an assignment. Negative: it cannot be said, or there is no such mix. *message: bytes
 * of an all-reduce that takes the network as long as one of its messages does; may be NULL. */
double tuner_predict(tuner *c, uint32_t k, uint8_t *of, double *message);
/* candidate_cost.c: what the candidate's work costs on this rank. */
gradcomp_status candidate_cost_measure(tuner *c, candidate *k, gradcomp_error *err);

typedef struct change {
	uint64_t step;
	char *to;
	tuner_reason reason;
} change;

/* Times of steps as they go, by step % TUNER_WINDOW. */
typedef struct step_timer {
	double took[TUNER_WINDOW], exposed[TUNER_WINDOW];
	/* those of the step in flight; the last is the end of the one before */
	double first_given, last_given, last_end;
	double *given, *backward; /* by tensor of the layout: when, and what it took */
	double forward, error, exposed_s;
	uint64_t bad;
} step_timer;

/* Times one step, in seconds of one clock. */
typedef struct step_times {
	uint64_t step;
	int connected;      /* `since` is the end of the step before it */
	const double *made; /* when each gradient was, by tensor of the layout */
	double since, first, last, end;
} step_times;

/* This was asked for. */
typedef struct tuner_request {
	schedule_request asked; /* for each part */
	gradcomp_reducer_options options;
	char *collective, *schedule; /* the options point to these */
} tuner_request;

/* These reduce, or have reduced. */
typedef struct tuner_parts {
	assignment now;
	partition *partition;
	partition *aside;                /* these are compared with dense steps; NULL: no comparison is under way */
	float **carry;                   /* by the caller's tensor; NULL: nothing */
	uint64_t changed_at;             /* step at which `now` began */
	gradcomp_reducer_stats gone;     /* counted by parts that have gone */
	report_reducer row[TUNER_PARTS]; /* the report's: left by parts that have gone last */
	uint32_t nrows;
} tuner_parts;

/* So long the network takes. */
typedef struct tuner_network {
	linear probed; /* an all-reduce of bytes before the first step */
	linear fitted; /* one of fit_bytes and fewer, at the latest prediction; fit_bytes 0: there is none */
	uint32_t fit_bytes;
} tuner_network;

typedef struct tuner_choice {
	metrics metrics;
	policy policy; /* rank 0's */
	decision last;
	change *change;
	uint32_t nchanges;
} tuner_choice;

/* The thread is at this, and calls wait for it. */
typedef struct tuner_turns {
	pthread_cond_t wake, changed;
	pthread_t thread;
	int started, stop;
	int busy;      /* a check is due or runs: what is given waits */
	int measure;   /* when it is over, costs are to be measured */
	int measuring; /* they are: candidates belong to the thread */
	int inside;    /* calls that may touch parts */
	int callbacks;
} tuner_turns;

typedef struct tuner_step {
	uint8_t *state; /* one for each of the caller's tensors in this step: see tuner.c */
	void **given;
	uint32_t ngiven, ndone;
} tuner_step;

struct tuner {
	gradcomp_reducer base;
	gradcomp_job *job;
	gradcomp_group *group;  /* its own, of the caller's ranks */
	gradcomp_layout layout; /* has all tensors */
	uint32_t ntensors;
	tuner_request wants;
	tuner_config config;
	tuner_parts parts;
	tuner_gpu *gpu; /* NULL: gradients are in host memory */
	tuner_network network;
	tuner_choice choice;
	pthread_mutex_t lock;
	tuner_turns turns;
	tuner_step step;
	uint64_t steps, next_check;
	step_timer timer;
	gradcomp_status failed;
	gradcomp_error failure;
};

/* Creates a reducer that chooses, like reducer_create(). */
gradcomp_status tuner_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t n,
                           const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);
/* tuner_check.c, on auto's thread, between two steps of all parts. */
gradcomp_status tuner_check(tuner *c, gradcomp_error *err);
/* tuner_network.c: the first look at the network, when the base is there. Collective. */
gradcomp_status tuner_probe(tuner *c, gradcomp_error *err);
/* Called on auto's thread, between two steps with the base alone at work: times all-reduces of the base of `bytes`
 * and of a quarter. Collective. */
gradcomp_status tuner_fit(tuner *c, uint32_t bytes, gradcomp_error *err);
/* Costs of the candidates that have none yet. */
void tuner_measure(tuner *c);
/* Puts other reducers to work; those that a guard compares with are set aside, and come back when
 * they still win. *refused: a candidate cannot be made, on any rank, and all
 * is as before. */
gradcomp_status tuner_change(tuner *c, const assignment *to, tuner_reason why, int *refused, gradcomp_error *err);
void tuner_assignment_clear(assignment *a);

/* metrics.c: with the lock held. */
gradcomp_status metrics_timer_make(step_timer *p, uint32_t ntensors, gradcomp_error *err);
void metrics_timer_free(step_timer *p);
void metrics_timer_given(tuner *c, uint32_t i);
void metrics_timer_step(tuner *c);
void metrics_timer_take(tuner *c, const step_times *t);

#endif
