/* Which ranks have held up the others in the stretches of a job: a cause that comes late, or goes, is small in the
 * totals of all steps. A stretch is half a minute and at least some steps. It reads no clock: time is what the tables of
 * totals say. One thread at a time. */
#ifndef JOB_SLOW_HISTORY_H
#define JOB_SLOW_HISTORY_H

#include "job/slow_rank.h"

typedef struct slow_history slow_history;

#define SLOW_STRETCH_SECONDS 30.0
#define SLOW_STRETCH_STEPS 20.0

/* Begins one of a job of n ranks. NULL: no memory. */
slow_history *slow_history_open(int n);
void slow_history_close(slow_history *h);
int slow_history_ranks(const slow_history *h);
/* Asks whether a stretch is over at these totals of rank 0. */
bool slow_history_is_due(const slow_history *h, const rank_times *rank0);
/* Ends a stretch at these totals of all ranks. */
void slow_history_add(slow_history *h, const rank_times *now);
/* Finds the rank of the latest stretch, or before the first one has ended, of the totals `now`. Like slow_rank_find(). */
bool slow_history_latest(const slow_history *h, const rank_times *now, slow_rank *out);
/* Finds the rank that has cost the most of all steps up to `now`: in them as a whole, or in the stretches in which one
 * cause was found. Like slow_rank_find(); `share` is of all steps, the figures are those of the worst stretch. */
bool slow_history_worst(const slow_history *h, const rank_times *now, slow_rank *out);

#endif
