/* The rank that leads an agreement. Normally the lowest that lives; the others wait a little, and
 * take over from one that is silent. That two lead at once costs time and nothing else. */
#include "job/roster_internal.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_SECONDS 1.3   /* of a leader, before another takes over */
#define MAJORITY_SECONDS 5.0 /* without one, before this rank gives up */
#define AGAIN_MS 20

/* What one leader knows. */
typedef struct attempt {
	roster_message q;
	roster_view view; /* of the epoch whose members decide; without records */
	roster_message *answers;
	int waiting;      /* rank that lives and has not come, or -1 */
	int yes;
	bool lowest, refused;
} attempt;

static bool quorum(const attempt *a)
{
	return 2 * a->yes > a->view.n || (2 * a->yes == a->view.n && a->lowest);
}

/* Asks all members. The answers stay in a->answers. */
static void ask(roster *m, attempt *a, uint32_t type, uint32_t good, uint64_t *highest)
{
	a->q.type = type;
	for (int i = 0; i < a->view.n; i++)
		roster_message_clear(&a->answers[i]);
	roster_ask(m, a->view.ranks, a->view.n, &a->q, a->answers);
	a->yes = 0;
	a->lowest = a->refused = false;
	a->waiting = -1;
	for (int i = 0; i < a->view.n; i++) {
		const roster_message *r = &a->answers[i];

		a->yes += r->type == good;
		a->lowest |= !i && r->type == good;
		a->refused |= r->type == ROSTER_REFUSED;
		if (r->type == ROSTER_NOT_YET)
			a->waiting = a->view.ranks[i];
		if (r->type == ROSTER_REFUSED && r->ballot > *highest)
			*highest = r->ballot;
		if (r->type == ROSTER_AHEAD) {
			roster_message told = {.type = ROSTER_COMMIT, .from = (uint32_t)m->rank}, ignored;

			told.value = r->view;
			roster_answer(m, &told, &ignored);
		}
	}
}

/* What somebody may have accepted already, else those that have promised. */
static int choose(attempt *a)
{
	uint64_t best = 0;
	roster_view v = {.epoch = a->view.epoch + 1};
	int rc;

	for (int i = 0; i < a->view.n; i++) {
		const roster_message *r = &a->answers[i];

		if (r->type != ROSTER_PROMISE || !r->value.p || r->ballot <= best)
			continue;
		best = r->ballot;
		free(a->q.value.p);
		if (roster_blob_copy(&a->q.value, r->value.p, r->value.bytes))
			return -1;
	}
	if (best)
		return 0;
	v.ranks = calloc((size_t)a->view.n, sizeof *v.ranks);
	v.records = calloc((size_t)a->view.n, sizeof *v.records);
	rc = !v.ranks || !v.records || secret_random(v.nonce, sizeof v.nonce, NULL) ? -1 : 0;
	for (int i = 0; !rc && i < a->view.n; i++)
		if (a->answers[i].type == ROSTER_PROMISE) {
			v.ranks[v.n] = a->view.ranks[i];
			v.records[v.n++] = (char *)a->answers[i].text.p;
		}
	free(a->q.value.p);
	a->q.value = (roster_blob){0};
	if (!rc)
		rc = roster_view_write(&v, &a->q.value);
	free(v.ranks);
	free((void *)v.records);
	return rc;
}

/* One ballot. 1 when it is decided. */
static int lead(roster *m, attempt *a, uint64_t *highest)
{
	a->q.ballot = ((*highest >> 32) + 1) << 32 | (uint64_t)(m->rank + 1);
	*highest = a->q.ballot;
	ask(m, a, ROSTER_PREPARE, ROSTER_PROMISE, highest);
	if (a->waiting >= 0 || a->refused || !quorum(a) || choose(a))
		return 0;
	ask(m, a, ROSTER_ACCEPT, ROSTER_ACCEPTED, highest);
	if (!quorum(a))
		return 0;
	ask(m, a, ROSTER_COMMIT, ROSTER_ACCEPTED, highest);
	return 1;
}

/* With the lock held. */
static gradcomp_status copy_view(const roster *m, attempt *a, const char *why, gradcomp_error *err)
{
	size_t n = (size_t)m->view.n;

	a->view = (roster_view){.epoch = m->view.epoch, .n = m->view.n, .ranks = malloc(n * sizeof(int))};
	a->answers = calloc(n, sizeof *a->answers);
	a->q.from = (uint32_t)m->rank;
	a->q.epoch = m->view.epoch;
	if (!a->view.ranks || !a->answers || roster_blob_copy(&a->q.text, why, strlen(why)) ||
	    (m->decided.p && roster_blob_copy(&a->q.view, m->decided.p, m->decided.bytes)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to agree with %d ranks", m->view.n);
	memcpy(a->view.ranks, m->view.ranks, n * sizeof(int));
	return GRADCOMP_OK;
}

/* With the lock held: seconds that this rank lets others lead first. */
static double turn(const roster *m)
{
	int k = 0;

	while (k < m->view.n && m->view.ranks[k] < m->rank)
		k++;
	return k < 3 ? 0.2 * k : 0.6 + 0.02 * (k - 3);
}

/* With the lock held. */
static gradcomp_status outcome(roster *m, roster_view *out, gradcomp_error *err)
{
	if (!roster_view_has(&m->view, m->rank))
		return error_set(err, GRADCOMP_ERR_PEER,
		                 "rank %d on %s was given up by the others, which go on as %d ranks (epoch %llu): it has no part in the "
		                 "job any more",
		                 m->rank, roster_host(m, m->rank), m->view.n, (unsigned long long)m->view.epoch);
	return roster_view_read(&m->decided, m->n, out) ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", m->view.n)
	                                                : GRADCOMP_OK;
}

gradcomp_status roster_agree(roster *m, const char *record, double patience, roster_view *out, gradcomp_error *err)
{
	attempt a = {.waiting = -1};
	gradcomp_error why = {.text = "a rank was lost"};
	double began = clock_now(), begin, alone = began;
	uint64_t highest = 0;
	gradcomp_status st;

	pthread_mutex_lock(&m->lock);
	if (m->transport)
		transport_failure(m->transport, &why);
	st = m->closed ? error_set(err, GRADCOMP_ERR_STATE, "this rank has no part in the job any more")
	               : copy_view(m, &a, why.text, err);
	if (!roster_view_has(&m->view, m->rank) && !st)
		st = outcome(m, out, err);
	m->record = record;
	begin = began + turn(m);
	while (!st && m->view.epoch == a.view.epoch) {
		double now = clock_now();

		if (now < begin || (m->heard > 0 && now < m->heard + SILENT_SECONDS)) {
			thread_wait(&m->changed, &m->lock, AGAIN_MS);
			continue;
		}
		highest = m->promised > highest ? m->promised : highest;
		pthread_mutex_unlock(&m->lock);
		int decided = lead(m, &a, &highest);
		pthread_mutex_lock(&m->lock);
		/* Its own questions do not count. */
		m->heard = 0;
		now = clock_now();
		if (decided || a.waiting >= 0 || a.refused || quorum(&a))
			alone = now;
		if (!decided && a.waiting >= 0 && now - began >= patience)
			st = error_set(err, GRADCOMP_ERR_TIMEOUT,
			               "rank %d on %s lives, but has not called gradcomp_job_shrink() for %.3g s", a.waiting,
			               roster_host(m, a.waiting), patience);
		else if (!decided && now - alone >= MAJORITY_SECONDS)
			st = error_set(err, GRADCOMP_ERR_PEER,
			               "rank %d on %s can reach %d of %d ranks, itself counted, which is no majority: the rest of the job may go "
			               "on without them, so this rank ends (%s)",
			               m->rank, roster_host(m, m->rank), a.yes, a.view.n, why.text);
		/* Two leaders do not meet again and again. */
		begin = now + (a.refused ? 0.05 + 0.03 * (m->rank % 16) : 0.02);
	}
	if (!st)
		st = outcome(m, out, err);
	m->record = NULL;
	m->closed |= st != GRADCOMP_OK;
	pthread_mutex_unlock(&m->lock);
	for (int i = 0; a.answers && i < a.view.n; i++)
		roster_message_clear(&a.answers[i]);
	free(a.answers);
	roster_view_clear(&a.view);
	roster_message_clear(&a.q);
	return st;
}
