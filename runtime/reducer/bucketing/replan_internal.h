/* Inside of replan.h. */
#ifndef REDUCER_BUCKETING_REPLAN_INTERNAL_H
#define REDUCER_BUCKETING_REPLAN_INTERNAL_H

#include "reducer/bucketing/replan.h"
#include "config/schedule_spec.h"
#include "reducer/bucketing/plan_msg.h"

/* Fewer steps that can be used than this make no profile, nor do passes or exchanges that
 * vary by more than this share of a step, and of their length. */
#define REPLAN_LEAST_STEPS 3
#define REPLAN_MOST_NOISE 0.5
/* By so much a new plan must be better. */
#define REPLAN_GAIN 0.02
/* Plans of steps that are there to be measured: fixed buckets, small ones, large ones. */
#define REPLAN_PHASES 3
/* A rival that was faster by less is not taken. */
#define REPLAN_CLEARLY 0.005

/* On the first rank: the plan in force and another one, each of which runs for some steps. */
typedef struct trial {
	enum { TRIAL_NONE, TRIAL_SOLVED, TRIAL_RIVAL } runs;
	step_plan other; /* that does not run */
	double exposed;  /* predicted of it */
	char name[48];   /* its name */
	double took;     /* seconds a step of it, when it has run */
} trial;

struct replan {
	schedule_spec spec;
	step_plan file;                      /* PLAN */
	uint32_t profile_steps, replan_steps, trial_steps;
	double drift;
	int measures;                        /* plans are made from measurements */
	uint32_t phases;                     /* plans that are tried first; 1: that in force */
	uint32_t phase;                      /* phases: a plan has been made, or will not be */
	uint64_t start;                      /* steps that had ended when measuring began */
	uint64_t from;                       /* the first step that counts */
	uint64_t next;                       /* steps after which the ranks talk; 0: never */
	uint64_t interval;                   /* steps to the next look */
	step_plan before;                    /* the one that was in force when measuring began again, or none */
	int known;                           /* `last` has times to compare with */
	plan_msg last;
	int settled;                         /* a plan made from measurements is in force */
	uint32_t plans;                      /* made */
	int loaded;                          /* the plan in force is a saved state's */
	/* On the first rank: whose the plan in force is, and what it is compared with; and what
	 * these become when all have the plan that was decided on. */
	char name[48], then_name[48];
	trial trial, then;
	char reason[200];                    /* why buckets are fixed, or empty; there too */
};

/* replan_decide.c, on the first rank: what follows from a fit. */
struct fit;
/* The compressor is told what was measured, for the step that comes; the first rank tells it
 * before it solves, since that may change the payloads. Not after a state was loaded, which
 * has been told. */
gradcomp_status replan_notify_compressor(gradcomp_reducer *r, const plan_msg *v, gradcomp_error *err);
gradcomp_status replan_decide(gradcomp_reducer *r, struct fit *f, plan_msg *v, gradcomp_error *err);
/* replan_trial.c, there too. A plan is to run: whether against a rival, of which *rival is
 * taken. Then after each of both has run: which one is next. What they decide on is in `then`
 * until it is in force. */
struct solution;
void ab_test_begin(struct replan *q, struct solution *rival, plan_msg *v);
gradcomp_status ab_test_decide(gradcomp_reducer *r, const struct fit *f, plan_msg *v, gradcomp_error *err);
void ab_test_clear(trial *t);
/* replan_log.c: a plan from this fit, or q->reason, is in force. */
void replan_log(const gradcomp_reducer *r, const struct fit *f);
void replan_log_fixed(const gradcomp_reducer *r);

#endif
