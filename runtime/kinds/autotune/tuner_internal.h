/* The files of auto share this (tuner.h): reducers of parts, residuals that are carried over, callbacks, the
 * report. */
#ifndef KINDS_AUTOTUNE_TUNER_INTERNAL_H
#define KINDS_AUTOTUNE_TUNER_INTERNAL_H

#include "kinds/autotune/tuner.h"

/* Makes a partition; collective over c->group. A failure is that of all ranks and leaves nothing behind. */
gradcomp_status partition_make(tuner *c, const assignment *a, partition **out, gradcomp_error *err);
/* The SPECs in full of parts that have just been made from them, for people. */
void partition_resolve(tuner *c, const partition *p);
/* Called between steps. NULL is fine. What they counted is added to c->gone. `last`: no others follow, and the
 * report gets their row. */
void partition_free(tuner *c, partition *p, int last);

/* Called between steps: carries over the residuals of the reducers, which are theirs no longer. */
gradcomp_status residual_carry_take(tuner *c, const partition *p, gradcomp_error *err);
/* Returns 1 when something of tensor i is carried over, or held back by reducers that are set aside; the second
 * function adds that, into to[numel], where it stays too. Between steps. */
int residual_carried(const tuner *c, uint32_t i);
gradcomp_status residual_carry_copy(const tuner *c, uint32_t i, float *to, gradcomp_error *err);
/* Returns 1 when the reducers that are set aside are those of an assignment. */
int partition_aside_is(const tuner *c, const assignment *a);
/* They do not come back: their residuals are carried over. Between steps; fine when there are none. */
gradcomp_status partition_aside_end(tuner *c, gradcomp_error *err);
/* Adds what is carried over of tensor i to its gradient, in the gradient's own type. */
gradcomp_status residual_carry_add(tuner *c, uint32_t i, void *gradient, gradcomp_error *err);
/* The average has come: what is in it is no longer carried over. Numbers that are not finite
 * carried nothing, on any rank. */
gradcomp_status residual_carry_settle(tuner *c, uint32_t i, const void *average, gradcomp_error *err);

/* tuner.c: the calls, the thread; all of it freed, with the report's row when it has run. */
extern const reducer_ops tuner_ops;
void *tuner_main(void *arg);
void tuner_destroy(tuner *c);

/* A tensor is in one of these states in this step. */
enum { TENSOR_MISSING, TENSOR_WAITS, TENSOR_FORWARDED, TENSOR_DONE };

/* tuner_step.c, with the lock held: what has failed here alone, as memory of a device may, others wait for: they are
 * told. */
void tuner_fail(tuner *c, gradcomp_status status, const char *text);
/* Calls, with the lock held and dropped meanwhile, the program's callback for tensor i. */
void tuner_tell(tuner *c, uint32_t i, gradcomp_status status, const gradcomp_error *err);
/* A reducer's tensor is done. */
void tuner_part_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);

/* tuner_state.c, tuner_load.c: as the public functions. */
gradcomp_status tuner_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status tuner_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err);
gradcomp_status tuner_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err);

/* tuner_report.c */
const char *tuner_reason_text(tuner_reason r);
void tuner_log(const tuner *c, const decision *v);
/* Puts into the list of changes: c->now from c->changed_at on. */
void tuner_note_change(tuner *c, tuner_reason why);
void tuner_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats);
void tuner_row(gradcomp_reducer *base, report_reducer *row);
/* The row of the report; and of parts that have gone for good, none. */
void tuner_keep_row(tuner *c, const partition *p);
void tuner_drop_rows(tuner *c);
/* A part that goes leaves its row of the report. */
void tuner_part_kept(void *ctx, report_reducer *row);
/* Returns the counters of the part that holds back most; 0: none holds anything back. */
int tuner_stats_of_worst(const partition *p, gradcomp_reducer_stats *out);
/* Adds the counters of parts to `to`. */
void tuner_stats_add(gradcomp_reducer_stats *to, const partition *p);

#endif
