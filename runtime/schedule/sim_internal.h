/* Inside of sim.h: one rank and its three threads. */
#ifndef SCHEDULE_SIM_INTERNAL_H
#define SCHEDULE_SIM_INTERNAL_H

#include "schedule/sim.h"

#include "schedule/bucket_order.h"

/* The application's thread does one of these. */
typedef enum sim_doing {
	SIM_INPUT, /* waits for the batch */
	SIM_LAYER, /* waits for the bucket of the tensor that it wants to go through */
	SIM_FORWARD,
	SIM_BACKWARD,
	SIM_STEP, /* waits for all buckets */
	SIM_UPDATE,
	SIM_DONE
} sim_doing;

/* Holds what is left of a bucket when this task of it comes next. */
typedef struct sim_part {
	uint32_t end;  /* the next exchange, or the number of tasks */
	uint32_t left; /* stages */
	double work;   /* seconds of computing up to there */
} sim_part;

typedef struct sim_rank {
	schedule s;
	double speed, now;
	sim_doing doing;
	int busy;            /* it computes, and does not wait */
	uint32_t tensor;     /* the one that LAYER, FORWARD or BACKWARD is at */
	uint32_t step;       /* the application's */
	uint32_t n_ended;    /* steps whose buckets have all ended */
	double since, until; /* the application does what it does from `since` to `until` */
	double slowed;       /* `until` is right while it is so much slower than by itself */
	double batch;        /* when the next one is there */
	uint32_t computing;  /* a bucket, or NONE */
	double work;         /* left of it at full speed */
	double computes_since;
	uint32_t exchanging;
	int look; /* it is to be asked whether an exchange comes next */
	double moves_from, moves_to;
	uint32_t *next; /* the next task of each bucket that has begun, by position % window */
	double given, exposed;
	double ended, ended_before; /* the last two steps */
} sim_rank;

typedef struct sim {
	const sim_input *in;
	sim_part *parts, **part_of; /* part_of[bucket][task] */
	uint32_t *tensors;          /* each bucket's number of them */
	uint32_t *bucket_of;        /* each tensor's */
	uint64_t exchanges;         /* number of them in a step */
	double forward;             /* all of it */
	double *backward;           /* each bucket's tensors */
	sim_rank *ranks;
	/* These are rank 0's in the last step. */
	int with_events, failed;
	double compute, exchange, origin;
	sim_event *events;
	uint32_t nevents, room;
} sim;

/* 0, or -1 without memory; what was made is freed with the rank. */
int sim_rank_make(sim *m, sim_rank *r, const sim_class *c);
/* Goes on until its exchange thread has a bucket in hand, and returns it; moves_from and moves_to are then to be
 * set. NONE when the rank is through, or stuck. */
uint32_t sim_advance(sim *m, sim_rank *r);
uint32_t sim_next_task(const sim *m, const sim_rank *r, uint32_t bucket);

/* The rank's threads share the functions below. */

static inline int sim_last_step(const sim *m, uint32_t step)
{
	return step + 1 == m->in->steps;
}

static inline int sim_told(const sim *m, const sim_rank *r)
{
	return m->with_events && r == m->ranks;
}

static inline int sim_by_layers(const sim *m)
{
	return m->in->each_layer && m->in->steps > 1;
}

void sim_tell(sim *m, const char *what, int thread, uint32_t index, uint32_t round, double start, double end);
/* Begins as many buckets as there is room for, when one was given or has ended. */
void sim_admit(const sim *m, sim_rank *r);
/* sim_application.c: what it did is over at r->now; and what waits for buckets, when one has ended. */
void sim_application(sim *m, sim_rank *r);
void sim_look_up(sim *m, sim_rank *r);

#endif
