/* The order of things within a step on several simulated ranks, whose gradients, computing and
 * exchanges come in any order. */
#include "schedule/task_list.h"
#include "schedule/bucket_order.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 6
#define BUCKETS 12
#define DEEPEST (3 * GRADCOMP_MAX_ROUNDS)
#define LOG (2 * BUCKETS * DEEPEST)

typedef struct world {
	int nranks, width; /* ranks of a node; 1: one level */
	uint32_t n, window, lag;
	uint32_t position[BUCKETS], tensors[BUCKETS];
	uint32_t rounds[RANKS][BUCKETS]; /* by column; with one level all are the first */
	uint32_t stop[RANKS][BUCKETS];   /* the round after which a column gives up */
	int stop_all[BUCKETS];           /* known with the first exchange: all do */
} world;

typedef struct op {
	uint32_t bucket;
	task task;
} op;

typedef struct sim_rank {
	schedule s;
	task tasks[BUCKETS][MAX_TASKS];
	int ntasks[BUCKETS], next[BUCKETS];
	uint32_t gradient[64], ngradients, given; /* buckets, in the order they come */
	uint32_t computing, exchanging;
	op log[LOG];
	int nlog, ended;
} sim_rank;

static uint32_t below(uint32_t n)
{
	return (uint32_t)random() % n;
}

static void shuffle(uint32_t *x, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t k = below(i), was = x[i - 1];
		x[i - 1] = x[k];
		x[k] = was;
	}
}

/* Columns are ranks of the same number on their nodes. */
static int column(const world *w, int rank)
{
	return rank % w->width;
}

static int takes_part(const world *w, int rank, int other, task_kind kind)
{
	if (w->width == 1)
		return 1;
	return kind == TASK_EXCHANGE ? column(w, rank) == column(w, other) : rank / w->width == other / w->width;
}

/* Makes the tasks as soon as the plan is known: with two levels, those with ENTER. */
static void compose(const world *w, sim_rank *r, int rank, uint32_t b, int known)
{
	gradcomp_plan plan = {.nrounds = known ? w->rounds[column(w, rank)][b] : 0};
	r->ntasks[b] = task_list_make(&plan, w->width > 1, r->tasks[b]);
}

static uint32_t stages_left(const sim_rank *r, uint32_t b)
{
	return task_list_stages(r->tasks[b], r->ntasks[b], r->next[b]);
}

static int compute_step(const world *w, sim_rank *r, int rank)
{
	uint32_t b = r->computing;
	if (b == SCHEDULE_NONE) {
		r->computing = schedule_compute(&r->s);
		return r->computing != SCHEDULE_NONE;
	}
	if (r->next[b] == r->ntasks[b]) {
		r->ended = schedule_ended(&r->s, b);
		r->computing = SCHEDULE_NONE;
		return 1;
	}
	task t = r->tasks[b][r->next[b]];
	if (task_exchanges(t.kind)) {
		schedule_reached(&r->s, b, stages_left(r, b));
		r->computing = SCHEDULE_NONE;
		return 1;
	}
	r->next[b]++;
	if (t.kind == TASK_BEGIN) {
		compose(w, r, rank, b, w->width == 1);
		schedule_begun(&r->s, b, stages_left(r, b));
	} else if (t.kind == TASK_LOCAL_BEGIN) {
		compose(w, r, rank, b, 1);
	}
	return 1;
}

/* Skips what is given up after task t. */
static void skip_rest(const world *w, sim_rank *r, int rank, uint32_t b, task t)
{
	int first = w->width == 1 ? t.kind == TASK_EXCHANGE && t.round == 0 : t.kind == TASK_REDUCE_LOCAL;
	int tail = w->width == 1 ? 1 : 3;
	if (first && w->stop_all[b])
		r->next[b] = r->ntasks[b] - 1;
	else if (w->width > 1 && t.kind == TASK_EXCHANGE && t.round == w->stop[column(w, rank)][b])
		r->next[b] = r->ntasks[b] - tail;
}

/* An exchange in which all who take part have arrived ends for all of them. */
static int meet(const world *w, sim_rank *ranks, int rank)
{
	uint32_t b = ranks[rank].exchanging;
	if (b == SCHEDULE_NONE)
		return 0;
	task t = ranks[rank].tasks[b][ranks[rank].next[b]];
	for (int p = 0; p < w->nranks; p++) {
		const sim_rank *r = &ranks[p];
		if (!takes_part(w, rank, p, t.kind))
			continue;
		if (r->exchanging != b || r->tasks[b][r->next[b]].kind != t.kind ||
		    r->tasks[b][r->next[b]].round != t.round)
			return 0;
	}
	for (int p = 0; p < w->nranks; p++) {
		sim_rank *r = &ranks[p];
		if (!takes_part(w, rank, p, t.kind))
			continue;
		r->next[b]++;
		skip_rest(w, r, p, b, t);
		r->log[r->nlog++] = (op){b, t};
		schedule_exchanged(&r->s, b, stages_left(r, b));
		r->exchanging = SCHEDULE_NONE;
	}
	return 1;
}

/* One of the things that could happen on this rank, of the kind asked for. */
static int act(const world *w, sim_rank *ranks, int rank, uint32_t kind)
{
	sim_rank *r = &ranks[rank];
	uint32_t b;
	if (r->ended)
		return 0;
	switch (kind) {
	case 0:
		if (r->given == r->ngradients)
			return 0;
		schedule_given(&r->s, r->gradient[r->given++]);
		return 1;
	case 1:
		b = schedule_admit(&r->s);
		if (b != SCHEDULE_NONE) {
			r->next[b] = 0;
			compose(w, r, rank, b, 0);
		}
		return b != SCHEDULE_NONE;
	case 2:
		return compute_step(w, r, rank);
	case 3:
		if (r->exchanging != SCHEDULE_NONE)
			return 0;
		r->exchanging = schedule_exchange(&r->s);
		return r->exchanging != SCHEDULE_NONE;
	default:
		return meet(w, ranks, rank);
	}
}

/* 0 when every rank came to the end of the step; else nothing can happen any more. */
static int run_world(const world *w, sim_rank *ranks)
{
	for (;;) {
		int ended = 1, moved = 0;
		for (int p = 0; p < w->nranks; p++)
			ended &= ranks[p].ended;
		if (ended)
			return 0;
		for (int k = 0; k < 40 && !moved; k++)
			moved = act(w, ranks, (int)below((uint32_t)w->nranks), below(5));
		for (int p = 0; p < w->nranks && !moved; p++)
			for (uint32_t kind = 0; kind < 5 && !moved; kind++)
				moved = act(w, ranks, p, kind);
		if (!moved)
			return -1;
	}
}

static void random_world(world *w, int two_levels)
{
	*w = (world){.width = two_levels ? 1 + (int)below(3) : 1,
	             .n = 1 + below(BUCKETS),
	             .window = 1 + below(4),
	             .lag = below(3)};
	if (two_levels && w->width == 1)
		w->width = 2;
	w->nranks = w->width == 1 ? 2 + (int)below(RANKS - 1) : 2 * w->width;
	for (uint32_t b = 0; b < w->n; b++) {
		w->position[b] = b;
		w->tensors[b] = 1 + below(3);
		w->stop_all[b] = !below(5);
		for (int c = 0; c < w->width; c++) {
			/* A column may hold nothing of a bucket: it has no rounds. */
			w->rounds[c][b] = two_levels ? below(4) : 1 + below(GRADCOMP_MAX_ROUNDS);
			w->stop[c][b] = below(8);
		}
	}
	if (below(4))
		shuffle(w->position, w->n);
}

static void ready_rank(const world *w, sim_rank *r)
{
	memset(r, 0, sizeof *r);
	schedule_make(&r->s, w->n, w->tensors, w->position, w->window, w->lag);
	for (uint32_t b = 0; b < w->n; b++)
		for (uint32_t t = 0; t < w->tensors[b]; t++)
			r->gradient[r->ngradients++] = b;
	shuffle(r->gradient, r->ngradients);
	r->computing = r->exchanging = SCHEDULE_NONE;
}

/* Ranks that share exchanges agree on the order of those. */
static int same_order(const world *w, const sim_rank *a, int rank, const sim_rank *b, int other)
{
	int i = 0, k = 0;
	for (;;) {
		while (i < a->nlog && !takes_part(w, rank, other, a->log[i].task.kind))
			i++;
		while (k < b->nlog && !takes_part(w, rank, other, b->log[k].task.kind))
			k++;
		if (i == a->nlog || k == b->nlog)
			return i == a->nlog && k == b->nlog;
		if (a->log[i].bucket != b->log[k].bucket || a->log[i].task.kind != b->log[k].task.kind ||
		    a->log[i].task.round != b->log[k].task.round)
			return 0;
		i++, k++;
	}
}

/* With a window that holds all of them, the order is that of the keys. */
static int in_order_of_keys(const world *w, const sim_rank *r)
{
	uint64_t last = 0;
	uint32_t stage[BUCKETS] = {0}, last_position = 0;
	for (int i = 0; i < r->nlog; i++) {
		uint32_t b = r->log[i].bucket;
		uint64_t key = w->position[b] + (uint64_t)w->lag * stage[b]++;
		if (i && (key < last || (key == last && w->position[b] > last_position)))
			return 0;
		last = key;
		last_position = w->position[b];
	}
	return 1;
}

static void many_ranks(int two_levels, int cases)
{
	static sim_rank ranks[RANKS];
	int stuck = 0, differ = 0, unordered = 0, unfinished = 0, exchanges = 0;
	for (int c = 0; c < cases; c++) {
		world w;
		random_world(&w, two_levels);
		if (!two_levels && c % 4 == 0)
			w.window = w.n;
		for (int p = 0; p < w.nranks; p++)
			ready_rank(&w, &ranks[p]);
		/* The second step begins as the first did. */
		for (int step = 0; step < 2 && !stuck; step++) {
			stuck += run_world(&w, ranks) != 0;
			for (int p = 1; p < w.nranks; p++)
				differ += !same_order(&w, &ranks[0], 0, &ranks[p], p) ||
				          !same_order(&w, &ranks[w.nranks - 1], w.nranks - 1, &ranks[p], p);
			unordered += !two_levels && w.window == w.n && !in_order_of_keys(&w, &ranks[0]);
			for (int p = 0; p < w.nranks; p++) {
				unfinished +=
					ranks[p].s.ended || ranks[p].s.admitted || ranks[p].s.head || ranks[p].s.tail;
				exchanges += ranks[p].nlog;
				ranks[p].nlog = ranks[p].ended = 0;
				ranks[p].given = 0;
				shuffle(ranks[p].gradient, ranks[p].ngradients);
			}
		}
		for (int p = 0; p < w.nranks; p++)
			schedule_free(&ranks[p].s);
	}
	const char *what = two_levels ? "two levels, shards of different rounds" : "one level";
	is_int(stuck, 0, "%s: no rank is stuck (%d exchanges)", what, exchanges);
	is_int(differ, 0, "%s: ranks agree on the order of what they share", what);
	is_int(unfinished, 0, "%s: after a step all is as before it", what);
	if (!two_levels)
		is_int(unordered, 0, "a wide window: the order of the keys");
}

int main(void)
{
	srandom(20);
	many_ranks(0, 1500);
	many_ranks(1, 1500);
	return done_testing();
}
