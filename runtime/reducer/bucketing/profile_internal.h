/* The table of steps behind profile.h, for what is made of it (measure.h). */
#ifndef REDUCER_BUCKETING_PROFILE_INTERNAL_H
#define REDUCER_BUCKETING_PROFILE_INTERNAL_H

#include "reducer/bucketing/profile.h"

/* A bucket's compute tasks, each kind and round by itself. */
enum {
	COMPUTE_BEGIN,
	COMPUTE_FINISH,
	COMPUTE_ENTER,
	COMPUTE_LEAVE,
	COMPUTE_ENCODE,
	COMPUTE_DECODE = COMPUTE_ENCODE + GRADCOMP_MAX_ROUNDS,
	COMPUTE_KINDS = COMPUTE_DECODE + GRADCOMP_MAX_ROUNDS
};
static inline int compute_kind(const task *t)
{
	switch (t->kind) {
	case TASK_BEGIN:
		return COMPUTE_BEGIN;
	case TASK_LOCAL_BEGIN:
		return COMPUTE_ENTER;
	case TASK_LOCAL_END:
		return COMPUTE_LEAVE;
	case TASK_ENCODE:
		return COMPUTE_ENCODE + (int)t->round;
	case TASK_DECODE:
		return COMPUTE_DECODE + (int)t->round;
	default:
		return COMPUTE_FINISH;
	}
}

/* A bucket in one step. */
typedef struct profile_bucket {
	double numel, bytes;             /* bytes: of all rounds */
	uint32_t rounds, bad;            /* bad: a gradient was not finite, and rounds were left out */
	double exchange, reduce, spread; /* seconds */
	float compute[COMPUTE_KINDS];
} profile_bucket;

typedef struct profile_row {
	double *ready; /* by tensor */
	double first, last, ended;
	double gap;                    /* the program's own time before the first gradient */
	double step;                   /* from the end of the step before to this one's */
	double beside[PROFILE_BESIDE]; /* seconds of tasks while gradients came */
	uint32_t given;
	int awaited; /* the device has not told its times yet */
	int dropped; /* the first step, or the first of a plan: memory grows, caches are cold */
	uint32_t nbuckets, room;
	profile_bucket *buckets;
} profile_row;

/* A step that is tried keeps one of these back. */
enum { TRIAL_NOTHING, TRIAL_EXCHANGES, TRIAL_ALL, TRIALS };
enum { TRIAL_PERIOD = 16, TRIALS_LEAST = 3, TRIALS_KEPT = 64 };
typedef struct profile_trials {
	uint64_t n;               /* so far; the latest are kept */
	double pass[TRIALS_KEPT]; /* seconds from the first gradient to the last */
	double share[PROFILE_BESIDE][TRIALS_KEPT];
} profile_trials;

struct profile {
	uint32_t ntensors;
	uint32_t kept;      /* rows that are complete; one more is being filled */
	profile_row *rows;  /* kept + 1 */
	uint64_t at;        /* steps that have ended: rows[at % (kept + 1)] is being filled */
	double ended, last; /* times of the step before */
	double over;        /* the latest step that a device has told of ended; 0: none */
	double blocked;     /* since its last gradient was given */
	double cpu_from;    /* the process's processor time at the end of the step before; negative: not taken */
	double cpu;         /* what it has computed from then to the last gradient; negative: not known */
	int waited, each_layer;
	profile_trials *trials; /* TRIALS; NULL: nothing is tried */
	int let_go;             /* this step keeps nothing back */
	uint64_t made;          /* `summary` is of at == made */
	double *backward;
	profile_summary summary;
};

/* Row k, k < at, when it is kept. */
static inline const profile_row *profile_row_of(const profile *p, uint64_t k)
{
	return &p->rows[k % (p->kept + 1)];
}
/* The first row that is kept. */
static inline uint64_t profile_oldest(const profile *p)
{
	return p->at > p->kept ? p->at - p->kept : 0;
}

#endif
