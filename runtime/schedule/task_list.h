/* The tasks of a bucket's step, from what its compressor plans. The reducer runs them, the
 * simulator (sim.h) gives them seconds. */
#ifndef SCHEDULE_TASK_LIST_H
#define SCHEDULE_TASK_LIST_H

#include "gradcomp/compressor.h"

typedef enum task_kind {
	TASK_BEGIN,
	TASK_ENCODE,
	TASK_EXCHANGE,
	TASK_DECODE,
	TASK_FINISH,
	/* These are of two levels, see step/levels/hierarchical.h. */
	TASK_REDUCE_LOCAL,
	TASK_LOCAL_BEGIN,
	TASK_LOCAL_END,
	TASK_ALLGATHER_LOCAL
} task_kind;

/* Returns 1 when the exchange thread runs it. */
static inline int task_exchanges(task_kind kind)
{
	return kind == TASK_EXCHANGE || kind == TASK_REDUCE_LOCAL || kind == TASK_ALLGATHER_LOCAL;
}

typedef struct task {
	task_kind kind;
	uint32_t round;
} task;

#define MAX_TASKS (6 + 3 * GRADCOMP_MAX_ROUNDS)

/* Into tasks[MAX_TASKS]; returns how many. The plan has at most GRADCOMP_MAX_ROUNDS rounds.
 * Of two levels it is that of this rank's shard, and may have none: while it is not known,
 * or when the rank holds nothing. */
int task_list_make(const gradcomp_plan *plan, int two_levels, task *tasks);
/* The index of the first task of this kind; n when there is none. */
int task_list_find(const task *tasks, int n, task_kind kind);
/* How many of its stages (bucket_order.h) a bucket has left whose next task is tasks[next]. Each
 * exchange is one; of two levels REDUCE_LOCAL, all rounds together, and ALLGATHER_LOCAL are, since shards
 * may differ in their rounds and ranks of a node must keep one order. */
uint32_t task_list_stages(const task *tasks, int n, int next);
/* A model's numbers, and a payload, must be countable on every machine. */
#define NUMEL_MAX ((uint64_t)1 << 48)
/* Checks that the rounds that a compressor has planned of a bucket are among those that it may plan: `patterns` as
 * in the layout. */
gradcomp_status task_list_check_plan(const struct gradcomp_compressor_v1 *c, uint32_t patterns, uint64_t numel,
                                     const gradcomp_plan *plan, gradcomp_error *err);
/* Returns the bytes of a rank's payload of a round, as planned: the same on all ranks. What it comes to may be
 * less (GATHERED, MERGED), or a code of it (CODED). */
uint64_t task_round_bytes(const gradcomp_round *rd);
/* Elements behind those of a bucket's first round where that is SUMMED, not in place, and the
 * compressor does not pass NaN on: whether a rank's gradient is not finite, and a 1 in one of
 * the others, which says the step. */
#define SUMMED_STEPS 4
#define SUMMED_MARKS (1 + SUMMED_STEPS)
/* Returns the GRADCOMP_CAN_* that carries such a round, of a collective that serves these. */
uint32_t task_round_primitive(gradcomp_pattern pattern, uint32_t serves);
/* Returns "encode", "exchange", ...: for people. */
const char *task_name(task_kind kind);

#endif
