/* Counts where this rank's steps go, and tells rank 0 of it up the control tree, as a record of totals: now and then
 * while steps go on, and when the job ends. Of reducers on the whole world one at a time is counted; of groups none,
 * since a rank that waits for one of another group would look slow itself. */
#ifndef JOB_RANK_TIMES_H
#define JOB_RANK_TIMES_H

#include "job/job.h"
#include "job/slow_rank.h"

/* A record is "GCT1", the number of its fields in 4 bytes, and the fields of rank_times, 8 bytes each, little-endian.
 * New fields are appended: who knows fewer skips the rest, who knows more takes 0 for what is not there. */
#define RANK_TIMES_BYTES (8 + 8 * RANK_TIMES_FIELDS)
_Static_assert(RANK_TIMES_BYTES <= TALLY_BYTES_MAX, "a record is a tally");

void rank_times_write(const rank_times *t, unsigned char out[RANK_TIMES_BYTES]);
/* Takes a record of another rank, which may hold anything; false where it is none. */
bool rank_times_read(const unsigned char *in, size_t bytes, rank_times *out);

typedef struct times_keeper times_keeper;

/* NULL: there is no memory, and nothing is counted. */
times_keeper *rank_times_open(void);
void rank_times_close(times_keeper *k);

/* A step, seconds. */
typedef struct step_times {
	double step, own, wait;
	double code_total, exchange_total; /* the reducer's since it was made */
	double cpu;                        /* that the process computed in the own part; negative: not known */
} step_times;

/* Adds a step to the totals, with what it waited for samples and how many it got. One thread at a time. */
void rank_times_add(times_keeper *k, const step_times *s, double load, double samples);
/* Copies the totals; likewise. */
void rank_times_get(times_keeper *k, rank_times *out);

/* A step of the reducer `of` on the world is over. Any thread, one at a time of a reducer. */
void rank_times_step(gradcomp_job *job, const void *of, const step_times *s);
/* The program has waited so long for the next samples, and has got them. Any thread. */
void rank_times_load(gradcomp_job *job, double seconds, uint64_t samples);
/* Returns true when the links are to be looked at again, for rank_times_link(). */
bool rank_times_wants_link(gradcomp_job *job);
void rank_times_link(gradcomp_job *job, const link_load *l);

/* The job ends: tells the last record. Where steps were counted rank 0 waits a moment for those of all others. */
void rank_times_end(gradcomp_job *job);
/* On rank 0: the totals of all ranks, the caller's to free; NULL: no rank has told any. */
rank_times *rank_times_table(gradcomp_job *job);
/* Looks at such a table, and at what was found in the stretches of the job (slow_history.h): who has cost the most of
 * all steps, or of the latest ones. On rank 0. */
bool rank_times_slowest(gradcomp_job *job, const rank_times *now, bool lately, slow_rank *out);

#endif
