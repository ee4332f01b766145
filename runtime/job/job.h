/* Inside of gradcomp_job and gradcomp_group. */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include "base/clock.h"
#include "base/id_mix.h"
#include "config/config.h"
#include "gradcomp/gradcomp.h"
#include "base/log.h"
#include "plugin/spec_table.h"
#include "job/launch_order.h"
#include "job/report.h"
#include "config/spec.h"
#include "transport/core/transport.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct group_calls group_calls; /* job/group_calls.h */

/* The channels of a group that are not opened in one order on all ranks, but when a rank first needs them. */
typedef enum group_own { GROUP_BLOCKING = 1, GROUP_COMMITS, GROUP_MESSAGES } group_own;

/* What a collective works with, kept from one to the next. */
typedef struct group_room {
	char *bytes;
	size_t capacity;
	uint64_t *sizes; /* one for each rank */
	struct block_transfer *transfers;
} group_room;

/* A collective plugin at work on one channel of a group. */
typedef struct coll_ctx {
	channel *channel;
	const struct gradcomp_collective_v1 *collective;
	void *instance;
} coll_ctx;

struct reducer;
struct roster;      /* survivors/roster.h */
struct roster_view; /* likewise */

struct gradcomp_group {
	gradcomp_job *job;
	uint64_t id; /* equal on all ranks of the group, of no other group */
	int me, nranks;
	int *ranks;        /* in the world */
	uint64_t splits;   /* made so far: equal on all ranks */
	uint64_t channels; /* likewise */
	pthread_mutex_t lock;
	/* Lists of ranks that groups were made of by gradcomp_group_create(), and how many of each:
	 * equal on the ranks of the list. Under the lock. */
	struct group_list {
		uint64_t id, made;
	} * lists;
	uint32_t nlists;
	group_calls *calls;
	/* Of the thread that carries out a collective, see group_calls.h. */
	coll_ctx blocking; /* opened on first use */
	group_room room;
	channel *commits; /* group_commit()'s; opened on first use; under the lock */
	uint64_t done;    /* calls that group_commit() has ended well: on two ranks it differs by one at most */
	pthread_mutex_t device_lock; /* guards the blocking collectives on device memory; taken before `lock` */
	struct device_coll *device;  /* likewise */
	launch_turns turns;          /* of its communicators on a device */
};

/* A reducer or coder that the program still has: the row of a report that is written before it is
 * freed. One of the functions is NULL. They fill a row that job_drop_reducer() or job_drop_coder()
 * frees; any thread. */
typedef struct job_part {
	void *of;
	void (*reducer)(void *of, report_reducer *row);
	void (*coder)(void *of, report_coder *row);
	gradcomp_job *job; /* NULL: not shown */
	struct job_part *next;
} job_part;

/* An object on the world, other than a reducer, that outlives ranks (gradcomp.on_failure=shrink). */
typedef struct job_object {
	void *of;    /* the program knows it by this */
	uint64_t id; /* the number, as group.done counts, of the call on the world that made it */
	/* That call has failed at its end, or the one of the number `freeing` that was to free it:
	 * gradcomp_job_shrink() finds out what became of it. */
	bool pending;
	uint64_t freeing;
	/* After a failure: from when it returns nothing of the object uses the transport or the world. Also
	 * of one that is detached, or was attached in part. */
	void (*detach)(struct job_object *o);
	/* Collective over the job's world, which is new: it goes on there. */
	gradcomp_status (*attach)(struct job_object *o, gradcomp_error *err);
	/* Frees one that is detached, and not in the list of the job's. */
	void (*drop)(struct job_object *o);
	struct job_object *next;
} job_object;

struct gradcomp_job {
	config *config;
	log_sink log;
	gradcomp_host host;
	int rank, nranks;
	transport *transport;
	transport_options transport_options; /* it was made with */
	struct roster *roster;               /* with gradcomp.on_failure=shrink; else NULL */
	/* the ranks that are in the world, by those that the job began with; NULL: all of them */
	struct roster_view *view;
	int32_t *survivors;           /* told by the last shrink */
	struct enduring *enduring;    /* reducers that outlive ranks, in the order they were made */
	job_object *objects;          /* likewise, what else does */
	void *made;                   /* a reducer or object that the failed call was to make, and that is made */
	pthread_rwlock_t shrink_lock; /* shrink writes: calls that must not meet it read */
	bool shrink_failed;           /* the last one did, and has taken down what it had to move */
	gradcomp_group *world;
	launch_order order;                  /* of the communicators on a device */
	spec_table specs;                    /* every SPEC that the job asks for */
	report *report;                      /* rank 0, when asked for */
	struct model_capture *model_capture; /* likewise */
	/* Called with it and a reducer that is about to be freed; NULL: with none. */
	void (*on_reducer_free)(struct model_capture *rec, struct reducer *r);
	struct trace *trace;        /* when rank 0 wants a timeline; else NULL */
	struct outfile *trace_file; /* rank 0's, until there is a trace */
	int operator_threads;       /* started */
	double started;
	struct times_keeper *times; /* job/rank_times.h; NULL: nothing is counted */
	pthread_mutex_t lock;       /* guards what follows */
	struct progress *progress;  /* the threads of its reducers, while it has some */
	report_reducer *reducers;   /* rows of reducers that have been freed; owned */
	uint32_t nreducers;
	report_coder *coders; /* likewise */
	uint32_t ncoders;
	pthread_mutex_t parts_lock; /* guards `parts`; taken before a part's own */
	job_part *parts;
	bool watched;    /* SIGTERM writes the report */
	int device_told; /* why collectives on device memory go through host memory; of one thread at a time */
	int aside_told;  /* likewise, reducers */
	struct live_server *live_server; /* rank 0, unless the settings say no */
	int live;                        /* groups but the world, reducers, coders and the like */
};

/* Finds the collective that the settings name, which lives as long as the job. */
gradcomp_status job_collective(gradcomp_job *job, const plugin **collective, const spec **values, gradcomp_error *err);
/* Fails the job because this rank cannot go on with what the others have begun. All ranks
 * report which rank it was and why. */
void job_fail(gradcomp_job *job, gradcomp_status status, const char *text);
/* The report has a row for each reducer and coder that has been freed, at most so many: what ends later is added to
 * the first row of the same SPECs, or to the last one. */
#define JOB_ROWS_KEPT 64
/* Takes over `r` and what it points to. */
void job_keep_reducer(gradcomp_job *job, report_reducer *r);
void job_drop_reducer(report_reducer *r);
void job_keep_coder(gradcomp_job *job, report_coder *c);
void job_drop_coder(report_coder *c);
/* Shows `part` in reports that are written from now on. */
void job_show(gradcomp_job *job, job_part *part);
/* Waits for one that is being written. Nothing where `part` was not shown. */
void job_hide(job_part *part);
/* The rows of what has been freed, then of what has not. */
typedef struct job_rows {
	report_reducer *reducers;
	report_coder *coders;
	uint32_t nreducers, ncoders;
	uint32_t freed_reducers, freed_coders; /* the first of these, which the job owns */
} job_rows;
void job_rows_take(gradcomp_job *job, job_rows *out);
void job_rows_drop(job_rows *rows);
void job_count(gradcomp_job *job, int delta);
/* Enters a call of this name that gradcomp_job_shrink() may meet on another thread: waits for job_leave(), or,
 * when it is at work already, has the call refused. */
gradcomp_status job_enter(gradcomp_job *job, const char *call, gradcomp_error *err);
void job_leave(gradcomp_job *job);
/* Collective, as making and freeing the object is: they stand in one order on all ranks. */
void job_add_object(gradcomp_job *job, job_object *o);
void job_remove_object(gradcomp_job *job, job_object *o);
int job_count_objects(const gradcomp_job *job);
/* (job_objects.c) After a failure; and collective, over a world that is new, until one of them fails. */
void job_detach_objects(gradcomp_job *job);
gradcomp_status job_attach_objects(gradcomp_job *job, gradcomp_error *err);
/* Settles calls that have failed at their end, when `done` calls are done on all ranks: what is not to be is freed,
 * and what the last one has made is job->made. All objects are detached. */
void job_settle_objects(gradcomp_job *job, uint64_t done);
/* Frees those that the program has not been told of, or has tried to free. */
void job_sweep_objects(gradcomp_job *job);

/* Makes the group of ranks[0..n-1] (copied). */
gradcomp_status group_create(gradcomp_job *job, uint64_t id, const int *ranks, int n, int me, gradcomp_group **out,
                             gradcomp_error *err);
void group_destroy(gradcomp_group *g);
/* Returns true when its ranks are on several nodes, and at least two of them on one; false where there is
 * no memory to find out. */
bool group_has_levels(const gradcomp_group *g);
/* Closes what the blocking collectives work with; it is made anew when they are called. Nothing of it is in use. */
void group_close(gradcomp_group *g);
/* Leaves the group as if it was made anew, of all `nranks` ranks of a world; `id` was of no group before. Nothing
 * of it is in use. */
gradcomp_status group_renew(gradcomp_group *world, uint64_t id, int nranks, int me, gradcomp_error *err);

/* Opens the next channel of the group. Every rank of the group opens the same channels, with a collective on them
 * or without, in the same order. */
gradcomp_status group_channel(gradcomp_group *g, channel **out, gradcomp_error *err);
/* Opens one of the group that may be opened when the others have not. */
gradcomp_status group_own_channel(gradcomp_group *g, group_own which, channel **out, gradcomp_error *err);
/* Those channels of the blocking collectives and of messages are closed here for good: ranks that wait for this one on
 * them, or will, are told so; with `all` also those that this one was to connect to. */
void group_dismiss(gradcomp_group *g, bool all);
/* Makes a collective on a channel, which it takes over; closed on failure. */
gradcomp_status group_coll_on(gradcomp_group *g, channel *on, const plugin *collective, const spec *spec, coll_ctx *out,
                              gradcomp_error *err);
/* Opens the next channel with a collective on it. */
gradcomp_status group_coll_open(gradcomp_group *g, const plugin *collective, const spec *spec, coll_ctx *out,
                                gradcomp_error *err);
void group_coll_close(coll_ctx *p);
void group_room_free(group_room *room);

/* The blocking collectives and a split, for what is a part of a call: a public one ends with group_commit(). */
gradcomp_status group_split(gradcomp_group *parent, int colour, int key, gradcomp_group **out, gradcomp_error *err);
gradcomp_status group_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                gradcomp_error *err);
gradcomp_status group_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                gradcomp_dtype dtype, gradcomp_error *err);
gradcomp_status group_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                gradcomp_error *err);
gradcomp_status group_barrier(gradcomp_group *g, gradcomp_error *err);
/* Arguments are wrong on all ranks alike, and the job goes on. */
static inline bool group_refused(gradcomp_status st)
{
	return st == GRADCOMP_ERR_INVALID || st == GRADCOMP_ERR_UNSUPPORTED || st == GRADCOMP_ERR_RANGE;
}
/* Returns st. Any other failure is this rank's own, and ends the job: the others must not wait for it. */
gradcomp_status group_failed(gradcomp_group *g, gradcomp_status st, const gradcomp_error *err);
/* Waits at a barrier over a channel of its own. */
gradcomp_status group_meet(channel *c, gradcomp_error *err);
/* Ends a collective call of the program's on the world of a job that may outlive ranks, when all of its work is in
 * place here: a rank that leaves it knows that the same is so on all ranks. So where it fails on some,
 * gradcomp_job_shrink() finds out from the others' group.done whether the call is done. Returns `st` if that is a
 * failure, and in other groups and jobs. */
gradcomp_status group_commit(gradcomp_group *g, gradcomp_status st, gradcomp_error *err);
/* Does an all-gather of equal blocks, by the group's blocking collectives. */
gradcomp_status group_exchange(gradcomp_group *g, const void *mine, void *all, size_t bytes, gradcomp_error *err);

#endif
