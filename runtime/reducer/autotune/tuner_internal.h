/* Of auto's files: reducers of parts, what is owed, what they call back, what is told of them
 * (choice.h). */
#ifndef REDUCER_AUTOTUNE_TUNER_INTERNAL_H
#define REDUCER_AUTOTUNE_TUNER_INTERNAL_H

#include "reducer/autotune/tuner.h"

/* Collective over c->group. A failure is that of all ranks and leaves nothing behind. */
gradcomp_status partition_make(choice *c, const assignment *a, parts **out, gradcomp_error *err);
/* The SPECs in full of parts that have just been made from them, for people. */
void partition_resolve(choice *c, const parts *p);
/* Between steps. NULL is fine. What they counted is added to c->gone. `last`: no others
 * follow, and the report gets their row. */
void partition_free(choice *c, parts *p, int last);

/* Between steps: what the parts hold back is owed from now on, and theirs no longer. */
gradcomp_status residual_carry_take(choice *c, const parts *p, gradcomp_error *err);
/* What is owed of tensor i, added to its gradient, in the gradient's own type. */
void residual_carry_add(choice *c, uint32_t i, void *gradient);
/* The average has come: what is in it is owed no longer. Numbers that are not finite
 * carried nothing, on any rank. */
void residual_carry_settle(choice *c, uint32_t i, const void *average);

/* choice.c: the calls, the thread; tuner_open.c: all of it freed, with the report's row when it
 * has run. */
extern const reducer_ops tuner_ops;
void *tuner_main(void *arg);
void tuner_destroy(choice *c);

/* choice.c: a part's tensor is done. */
void tuner_part_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);

/* choice_state.c, tuner_load.c: as the public functions. */
gradcomp_status tuner_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status tuner_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err);

/* choice_tell.c */
const char *tuner_reason_text(tuner_reason r);
void tuner_log(const choice *c, const decision *v);
/* Into the list of changes: c->now from c->changed_at on. */
void tuner_note_change(choice *c, tuner_reason why);
void tuner_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats);
/* The row of the report; and of parts that have gone for good, none. */
void tuner_keep_row(choice *c, const parts *p);
void tuner_drop_rows(choice *c);
/* A part that goes leaves its row of the report. */
void tuner_part_kept(void *ctx, report_reducer *row);
/* Of the part that holds back most; 0: none holds anything back. */
int stats_of_worst(const parts *p, gradcomp_reducer_stats *out);
/* Counters of parts, added to `to`. */
void stats_add(gradcomp_reducer_stats *to, const parts *p);

#endif
