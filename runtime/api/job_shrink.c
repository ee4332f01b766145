/* A job that goes on without the ranks it has lost: the roster says who is left, a new transport
 * connects them, and the world and the reducers move over to it. Any of it may fail because
 * another rank is lost; then it begins again, in the next epoch. */
#include "api/job_join.h"
#include "api/job_report.h"

#include "base/error.h"
#include "survivors/roster.h"
#include "kinds/enduring.h"
#include "security/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For those that have just agreed, and wait for each other. Where that was too little, or one of them is
 * lost just then, they agree again, and wait twice as long. */
#define JOIN_SECONDS 1.0
#define JOIN_SECONDS_MAX 16.0
#define WORLD_ID 1 /* the first epoch's world */

static gradcomp_status check(const gradcomp_job *job, gradcomp_error *err)
{
	int others = job->live - enduring_count(job) - job_count_objects(job);
	if (transport_forked(job->transport))
		return transport_failure(job->transport, err);
	if (!job->transport_options.outlives)
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "gradcomp_job_shrink: the job began with gradcomp.on_failure=abort");
	if (!transport_failure(job->transport, NULL))
		return error_set(err, GRADCOMP_ERR_STATE, "gradcomp_job_shrink: nothing has failed");
	if (job->shrink_failed)
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "gradcomp_job_shrink: it has failed before, and the job has ended");
	if (others)
		return error_set(
			err, GRADCOMP_ERR_STATE,
			"gradcomp_job_shrink: %d groups, links, coders or the like have not been freed, which are of the ranks "
			"there were",
			others);
	return GRADCOMP_OK;
}

/* Makes the first view: all ranks. */
static gradcomp_status begin_view(gradcomp_job *job, gradcomp_error *err)
{
	roster_view *v;
	if (job->view)
		return GRADCOMP_OK;
	v = calloc(1, sizeof *v);
	if (v)
		v->ranks = calloc((size_t)job->nranks, sizeof *v->ranks);
	if (!v || !v->ranks) {
		free(v);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
	}
	v->n = job->nranks;
	for (int r = 0; r < job->nranks; r++)
		v->ranks[r] = r;
	job->view = v;
	return GRADCOMP_OK;
}

/* Makes a transport of the ranks of *v, at the sockets that this one had. */
static gradcomp_status inherit(const gradcomp_job *job, const roster_view *v, double join, transport **out,
                               gradcomp_error *err)
{
	transport_options o = job->transport_options;
	int *peers = malloc((size_t)v->n * sizeof *peers);
	gradcomp_status st = GRADCOMP_OK;
	*out = NULL;
	o.rank = roster_view_find(v, job->view->ranks[job->rank]);
	o.nranks = v->n;
	o.join_timeout = join < o.timeout ? join : o.timeout;
	if (!peers)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", v->n);
	for (int i = 0; !st && i < v->n; i++) {
		peers[i] = roster_view_find(job->view, v->ranks[i]);
		if (peers[i] < 0)
			st = error_set(err, GRADCOMP_ERR_INTERNAL,
			               "rank %d of the job's beginning goes on, but had been given up", v->ranks[i]);
	}
	if (!st)
		st = transport_inherit(job->transport, &o, peers, out, err);
	free(peers);
	return st;
}

/* The job's transport becomes `t`, of the ranks of *v, which is taken over. */
static gradcomp_status move_over(gradcomp_job *job, transport *t, roster_view *v, gradcomp_error *err)
{
	unsigned char secret[TRANSPORT_SECRET_BYTES];
	int me = roster_view_find(v, job->view->ranks[job->rank]);
	gradcomp_status st;
	roster_watch(job->roster, NULL);
	transport_stop(job->transport, NULL);
	job->transport = t;
	roster_view_clear(job->view);
	*job->view = *v;
	job->rank = job->log.rank = me;
	job->nranks = v->n;
	st = group_renew(job->world, id_mix(WORLD_ID, v->epoch), v->n, me, err);
	roster_secret(job->roster, v, secret);
	/* Whoever finds first that one of them is missing tells the others. */
	roster_watch(job->roster, t);
	if (!st)
		st = transport_start(t, NULL, secret, err);
	secret_wipe(secret, sizeof secret);
	if (st)
		transport_fail(t, st, -1, err->text);
	return st;
}

/* One epoch. *agreed: this rank is in it, and has moved over to it. */
static gradcomp_status next_epoch(gradcomp_job *job, double join, int *agreed, gradcomp_error *err)
{
	int least = (int)config_int(job->config, SET_GRADCOMP_MIN_RANKS);
	roster_view v = {0};
	transport *t = NULL;
	gradcomp_status st;
	*agreed = 0;
	/* A rank that has heard of the decision first may connect before this rank has heard of it. */
	transport_suspend(job->transport);
	st = roster_agree(job->roster, job->transport_options.wait_timeout, &v, err);
	if (!st && v.n < least)
		st = error_set(err, GRADCOMP_ERR_PEER, "%d ranks are left, gradcomp.min_ranks is %d: the job ends", v.n,
		               least);
	if (!st)
		st = inherit(job, &v, join, &t, err);
	if (st) {
		roster_view_clear(&v);
		return st;
	}
	*agreed = 1;
	return move_over(job, t, &v, err);
}

static gradcomp_status tell(gradcomp_job *job, const roster_view *old, int old_rank, int step_done,
                            gradcomp_survivors *out, gradcomp_error *err)
{
	int32_t *ranks = malloc(((size_t)old->n + 1) * sizeof *ranks);
	int32_t live = 0, lost = job->nranks;
	if (!ranks)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", old->n);
	for (int i = 0; i < old->n; i++)
		if (roster_view_find(job->view, old->ranks[i]) >= 0)
			ranks[live++] = i;
		else
			ranks[lost++] = i;
	free(job->survivors);
	job->survivors = ranks;
	gradcomp_survivors s = {.epoch = (uint32_t)job->view->epoch,
	                        .rank = job->rank,
	                        .nranks = job->nranks,
	                        .old_rank = old_rank,
	                        .old_nranks = old->n,
	                        .ranks = ranks,
	                        .lost = ranks + job->nranks,
	                        .step_done = step_done};
	if (out) {
		uint32_t size = out->struct_size;
		s.struct_size = size;
		s.made = job->made;
		if (size >= sizeof s)
			job->made = NULL;
		memcpy(out, &s, size < sizeof s ? size : sizeof s);
	}
	if (!job->rank)
		log_line(&job->log, GRADCOMP_LOG_WARN,
		         "the job goes on as %d of %d ranks (epoch %u); the step that failed is %s on all", job->nranks,
		         old->n, s.epoch, step_done ? "done" : "void");
	return GRADCOMP_OK;
}

static void detach(gradcomp_job *job)
{
	enduring_detach(job);
	job_detach_objects(job);
}

/* How far a rank has come with the calls on the world, and what it has. */
typedef struct position {
	uint64_t done;
	uint32_t leaving, nreducers;
} position;

/* The ranks that do not leave do one of these. */
typedef enum course { COURSE_GO_ON, COURSE_STAY, COURSE_WITHOUT } course;

/* Where ranks leave: whoever has come as far goes on without them. If there is no such rank, all that is left to
 * the others is to be told that the call that failed is done; they may be at their end as well. */
static course course_of(const position *all, int n, uint64_t done, int *leaving)
{
	course c = COURSE_GO_ON;
	*leaving = -1;
	for (int r = 0; r < n; r++)
		if (all[r].leaving)
			*leaving = r;
	if (*leaving < 0)
		return c;
	c = COURSE_STAY;
	for (int r = 0; r < n; r++)
		if (!all[r].leaving && all[r].done == done)
			c = COURSE_WITHOUT;
	return c;
}

static bool on_all(const uint64_t *ids, const position *all, int n, uint64_t id)
{
	for (int r = 0; r < n; r++) {
		bool has = false;
		for (uint32_t i = 0; i < all[r].nreducers; i++)
			has |= *ids++ == id;
		if (!has)
			return false;
	}
	return true;
}

/* A rank may have freed a reducer that the failed step of another one is of. */
static gradcomp_status common_reducers(gradcomp_job *job, const position *all, gradcomp_error *err)
{
	uint64_t *counts = calloc((size_t)job->nranks + 1, sizeof *counts), total = 0, before = 0, *ids;
	for (int r = 0; counts && r < job->nranks; r++) {
		before += r < job->rank ? all[r].nreducers : 0;
		total += counts[r] = all[r].nreducers;
	}
	ids = calloc(total + 1, sizeof *ids);
	gradcomp_status st =
		counts && ids ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
	if (st)
		job_fail(job, st, err->text);
	if (!st) {
		enduring_ids(job, ids + before);
		st = group_allgather(job->world, ids + before, ids, counts, GRADCOMP_I64, err);
	}
	for (uint32_t i = 0; !st && i < all[job->rank].nreducers; i++)
		if (!on_all(ids, all, job->nranks, ids[before + i]))
			enduring_part(job, ids[before + i]);
	free(counts);
	free(ids);
	return st;
}

/* Calls that have failed on some ranks only: if one has come back from the last one, it is done on all. */
static gradcomp_status settle(gradcomp_job *job, int leaving, position *all, course *c, int *step_done,
                              gradcomp_error *err)
{
	const position mine = {job->world->done, (uint32_t)leaving, enduring_all(job)};
	gradcomp_status st = group_exchange(job->world, &mine, all, sizeof mine, err);
	uint64_t done = mine.done;
	int who;
	for (int r = 0; !st && r < job->nranks; r++)
		done = all[r].done > done ? all[r].done : done;
	if (st)
		return st;
	*c = course_of(all, job->nranks, done, &who);
	if (*c == COURSE_GO_ON)
		st = common_reducers(job, all, err);
	if (st)
		return st;
	*step_done |= done > mine.done;
	job->world->done = done;
	enduring_settle(job, done);
	job_settle_objects(job, done);
	if (*c == COURSE_WITHOUT && !leaving) {
		char text[300];
		snprintf(text, sizeof text, "rank %d on %s left the job", who, transport_host(job->transport, who));
		transport_fail(job->transport, GRADCOMP_ERR_PEER_LOST, who, text);
		st = error_set(err, GRADCOMP_ERR_PEER_LOST, "%s", text);
	}
	return st;
}

static gradcomp_status attach(gradcomp_job *job, int leaving, course *c, int *step_done, gradcomp_error *err)
{
	position *all = calloc((size_t)job->nranks + 1, sizeof *all);
	gradcomp_status st;
	if (!all) {
		job_fail(job, GRADCOMP_ERR_NOMEM, "no memory to go on");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
	}
	st = settle(job, leaving, all, c, step_done, err);
	free(all);
	if (st || *c != COURSE_GO_ON)
		return st;
	st = enduring_attach(job, step_done, err);
	return st ? st : job_attach_objects(job, err);
}

static gradcomp_status shrink(gradcomp_job *job, int leaving, gradcomp_survivors *survivors, gradcomp_error *err)
{
	roster_view old = {0};
	course c = COURSE_GO_ON;
	int old_rank, step_done = 0, agreed = 1;
	double join = JOIN_SECONDS;
	gradcomp_status st;
	st = check(job, err);
	if (!st && !job->roster)
		st = error_set(err, GRADCOMP_ERR_PEER, "the job has one rank, and it has failed");
	if (!st)
		st = begin_view(job, err);
	if (st)
		return st;
	old_rank = job->rank;
	old.n = job->view->n;
	old.ranks = malloc((size_t)old.n * sizeof *old.ranks);
	if (!old.ranks)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", old.n);
	memcpy(old.ranks, job->view->ranks, (size_t)old.n * sizeof *old.ranks);
	/* A report looks at the transport and the reducers that are being replaced. */
	if (!leaving)
		job_report_watch(job, false);
	do {
		detach(job);
		group_close(job->world);
		st = next_epoch(job, join, &agreed, err);
		join = join < JOIN_SECONDS_MAX ? 2 * join : join;
		if (!st)
			st = attach(job, leaving, &c, &step_done, err);
		if (!st && c != COURSE_WITHOUT)
			st = group_barrier(job->world, err);
		/* Somebody was lost meanwhile; what is wrong here alone ends the job here. */
	} while (st == GRADCOMP_ERR_PEER_LOST ||
	         (st && agreed && transport_failure(job->transport, NULL) == GRADCOMP_ERR_PEER_LOST));
	if (!st && !leaving)
		st = tell(job, &old, old_rank, step_done, survivors, err);
	else if (st && !transport_failure(job->transport, NULL))
		job_fail(job, st, err->text);
	job->shrink_failed = st != GRADCOMP_OK;
	if (!leaving)
		job_report_watch(job, true);
	free(old.ranks);
	return st;
}

gradcomp_status gradcomp_job_shrink(gradcomp_job *job, gradcomp_survivors *survivors, gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st;
	err = err ? err : &own;
	if (!job)
		return error_set(err, GRADCOMP_ERR_INVALID, "job is NULL");
	/* One at a time. Calls that are under way end: the job has failed. */
	st = job_enter(job, "gradcomp_job_shrink()", err);
	if (st)
		return st;
	st = check(job, err);
	job_leave(job);
	if (st)
		return st;
	pthread_rwlock_wrlock(&job->shrink_lock);
	st = shrink(job, 0, survivors, err);
	pthread_rwlock_unlock(&job->shrink_lock);
	return st;
}

void job_shrink_leaving(gradcomp_job *job)
{
	gradcomp_error ignored;
	if (job->roster && !job->shrink_failed && transport_leave(job->transport, &ignored) == GRADCOMP_ERR_PEER_LOST)
		(void)shrink(job, 1, NULL, &ignored);
}
