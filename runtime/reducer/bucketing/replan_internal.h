/* The files of replan.h share this. */
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
/* Steps for each of two plans that are compared: the median of fewer says little, more cost more than what is
 * gained. */
#define REPLAN_TRIAL_STEPS 8
/* By so much, as a share, times must have changed for a new plan: less is what times vary by on a quiet network. */
#define REPLAN_DRIFT 0.25
/* A candidate that was faster by less is not taken. */
#define REPLAN_CLEARLY 0.005

/* On the first rank: the plan that the search found and a simple one, its candidate, each of
 * which runs for some steps. */
typedef struct ab_test {
	enum { AB_NONE, AB_FOUND, AB_CANDIDATE } runs;
	step_plan other; /* that does not run */
	double exposed;  /* predicted of it */
	char name[48];   /* its name */
	double took;     /* seconds a step of it, when it has run */
} ab_test;

struct replan {
	schedule_request asked;
	step_plan file;    /* PLAN */
	int measures;      /* plans are made from measurements */
	uint32_t phases;   /* plans that are tried first; 1: that in force */
	uint32_t phase;    /* phases: a plan has been made, or will not be */
	uint64_t start;    /* steps that had ended when measuring began */
	uint64_t from;     /* the first step that counts */
	uint64_t next;     /* steps after which the ranks replan; 0: never */
	uint64_t interval; /* steps to the next look */
	step_plan before;  /* the one that was in force when measuring began again, or none */
	int known;         /* `last` has times to compare with */
	plan_msg last;
	int settled;    /* a plan made from measurements is in force */
	uint32_t plans; /* made */
	int loaded;     /* the plan in force is a saved state's */
	/* On the first rank: whose the plan in force is, and what it is compared with; and what
	 * these become when all have the plan that was decided on. */
	char name[48], then_name[48];
	ab_test ab_test, then;
	char reason[200]; /* why buckets are fixed, or empty; there too */
};

/* replan_decide.c: the first rank decides, from a fit of what was measured, on the plan that follows. */
struct fit;
/* The compressor is told what was measured, for the step that comes; the first rank tells it
 * before it searches, since that may change the payloads. Not after a state was loaded, which
 * has been told. */
gradcomp_status replan_notify_compressor(reducer *r, const plan_msg *v, gradcomp_error *err);
gradcomp_status replan_decide(reducer *r, struct fit *f, plan_msg *v, gradcomp_error *err);
/* ab_test.c, on the first rank. ab_test_begin() is called when a plan is to run, and says if it does so against a
 * candidate, of which *candidate is taken; ab_test_decide() after each of both has run, and says which is next. What
 * they decide on is in `then` until it is in force. */
struct plan_found;
void ab_test_begin(struct replan *q, struct plan_found *candidate, plan_msg *v);
gradcomp_status ab_test_decide(reducer *r, const struct fit *f, plan_msg *v, gradcomp_error *err);
void ab_test_clear(ab_test *t);
/* replan_report.c: a plan from this fit, or q->reason, is in force. */
void replan_log(const reducer *r, const struct fit *f);
void replan_log_fixed(const reducer *r);

#endif
