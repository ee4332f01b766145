/* The rank that leads an agreement. Normally the lowest that lives; the others wait a little, and
 * take over from one that is silent. That two lead at once costs time and nothing else. */
#include "survivors/roster_internal.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_SECONDS 1.3   /* silence of a leader, before another takes over */
#define MAJORITY_SECONDS 5.0 /* without one, before this rank gives up */

/* Holds what one leader knows. Bitmaps are over the members of the epoch. */
typedef struct attempt {
	roster_message q;
	roster_view view;     /* the epoch's whose members decide */
	roster_message tally; /* the latest round's */
	roster_blob gone;     /* those that have not answered, in rounds with this ballot */
	int waiting;          /* rank that lives and has not come, or -1 */
	int yes;
	bool refused;
} attempt;

static bool quorum(const attempt *a)
{
	return 2 * a->yes > a->view.n || (2 * a->yes == a->view.n && roster_bit(&a->tally.set, 0));
}

/* Asks those members. The answers stay in a->tally. */
static void ask(roster *m, attempt *a, uint32_t type, const roster_blob *set)
{
	a->q.type = type;
	roster_message_clear(&a->tally);
	a->tally.epoch = a->view.epoch;
	roster_ask(m, &a->view, set, &a->q, ROSTER_CALL_SECONDS, false, &a->tally);
	a->yes = 0;
	a->waiting = -1;
	for (int i = 0; i < a->view.n; i++) {
		a->yes += roster_bit(&a->tally.set, i);
		if (roster_bit(&a->tally.late, i))
			a->waiting = a->view.ranks[i];
	}
	a->refused = a->tally.promised > a->q.ballot;
	if (a->tally.view.bytes) {
		roster_message told = {.type = ROSTER_COMMIT, .from = (uint32_t)m->rank, .value = a->tally.view},
			       ignored = {0};

		roster_answer(m, &told, &ignored);
	}
}

/* Asks all for a promise, but those that have not answered before. -1 without memory. */
static int prepare(roster *m, attempt *a)
{
	roster_blob set = {0};
	int rc = 0;
	for (int i = 0; !rc && i < a->view.n; i++)
		if (!roster_bit(&a->gone, i))
			rc = roster_bit_set(&set, a->view.n, i);
	if (!rc)
		ask(m, a, ROSTER_PREPARE, &set);
	for (int i = 0; !rc && !a->refused && i < a->view.n; i++)
		if (!roster_bit(&a->tally.set, i) && !roster_bit(&a->tally.late, i))
			rc = roster_bit_set(&a->gone, a->view.n, i);
	free(set.p);
	return rc;
}

/* Chooses what somebody may have accepted already, else those that have promised. */
static int choose(const roster *m, attempt *a)
{
	roster_view v = {.epoch = a->view.epoch + 1};
	int rc;
	free(a->q.value.p);
	a->q.value = (roster_blob){0};
	if (a->tally.ballot)
		return roster_blob_copy(&a->q.value, a->tally.value.p, a->tally.value.bytes);
	v.ranks = calloc((size_t)a->view.n, sizeof *v.ranks);
	rc = !v.ranks || secret_random(v.nonce, sizeof v.nonce, NULL) ? -1 : 0;
	for (int i = 0; !rc && i < a->view.n; i++)
		if (roster_bit(&a->tally.set, i))
			v.ranks[v.n++] = a->view.ranks[i];
	if (!rc)
		rc = roster_view_write(&v, m->n, &a->q.value);
	free(v.ranks);
	return rc;
}

/* Tells those that have promised, and those that go on. */
static int tell(roster *m, attempt *a, roster_blob *set)
{
	roster_view v;
	int rc = roster_view_read(&a->q.value, m->n, &v);
	for (int i = 0; !rc && i < a->view.n; i++)
		if (roster_view_find(&v, a->view.ranks[i]) >= 0)
			rc = roster_bit_set(set, a->view.n, i);
	roster_view_clear(&v);
	if (!rc)
		ask(m, a, ROSTER_COMMIT, set);
	return rc;
}

/* Holds one ballot. Returns 1 when it is decided. */
static int lead(roster *m, attempt *a, uint64_t *highest)
{
	roster_blob set = {0};
	int decided = 0;
	if (!a->q.ballot) {
		a->q.ballot = ((*highest >> 32) + 1) << 32 | (uint64_t)(m->rank + 1);
		*highest = a->q.ballot;
		free(a->gone.p);
		a->gone = (roster_blob){0};
	}
	if (prepare(m, a) || (!a->refused && a->waiting >= 0)) {
		/* Again, with the same ballot. */
	} else if (a->refused || !quorum(a) || choose(m, a) ||
	           roster_blob_copy(&set, a->tally.set.p, a->tally.set.bytes)) {
		*highest = a->tally.promised > *highest ? a->tally.promised : *highest;
		a->q.ballot = 0;
	} else {
		ask(m, a, ROSTER_ACCEPT, &set);
		a->q.ballot = 0;
		decided = quorum(a);
		if (decided)
			tell(m, a, &set);
	}
	free(set.p);
	return decided;
}

/* Called with the lock held. */
static gradcomp_status copy_view(const roster *m, attempt *a, const char *why, gradcomp_error *err)
{
	size_t n = (size_t)m->view.n;
	a->view = (roster_view){.epoch = m->view.epoch, .n = m->view.n, .ranks = malloc(n * sizeof(int))};
	a->q.from = (uint32_t)m->rank;
	a->q.epoch = m->view.epoch;
	if (!a->view.ranks || roster_blob_copy(&a->q.text, why, strlen(why)) ||
	    (m->decided.p && roster_blob_copy(&a->q.view, m->decided.p, m->decided.bytes)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to agree with %d ranks", m->view.n);
	memcpy(a->view.ranks, m->view.ranks, n * sizeof(int));
	return GRADCOMP_OK;
}

/* Returns, with the lock held, the seconds that this rank lets others lead first. One rank of each node comes
 * before a second one, since those of a node are lost together. */
static double turn(const roster *m)
{
	int *seen = calloc((size_t)m->n, sizeof *seen); /* by node */
	int k = 0, mine = 0;
	for (int i = 0; i < m->view.n && m->view.ranks[i] < m->rank; i++)
		mine += m->node[m->view.ranks[i]] == m->node[m->rank];
	for (int i = 0; seen && i < m->view.n; i++) {
		int r = m->view.ranks[i], nth = seen[m->node[r]]++;

		k += nth < mine || (nth == mine && r < m->rank);
	}
	free(seen);
	return k < 3 ? 0.2 * k : 0.6 + 0.02 * (k - 3);
}

/* Called with the lock held. */
static gradcomp_status outcome(roster *m, roster_view *out, gradcomp_error *err)
{
	if (roster_view_find(&m->view, m->rank) < 0)
		return error_set(
			err, GRADCOMP_ERR_PEER,
			"rank %d on %s was given up by the others, which go on as %d ranks (epoch %llu): it has no part in the "
			"job any more",
			m->rank, roster_host(m, m->rank), m->view.n, (unsigned long long)m->view.epoch);
	return roster_view_read(&m->decided, m->n, out)
	               ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", m->view.n)
	               : GRADCOMP_OK;
}

/* Called with the lock held: sleeps until `when`, or until something has changed; not for ever, since it may be
 * heard of a leader, which tells nobody. */
static void sleep_until(roster *m, double when)
{
	double left = when - clock_now();
	thread_wait(&m->changed, &m->lock, left < 0.001 ? 1 : left < 0.2 ? (int)(left * 1e3) + 1 : 200);
}

gradcomp_status roster_agree(roster *m, double patience, roster_view *out, gradcomp_error *err)
{
	attempt a = {.waiting = -1};
	gradcomp_error why = {.text = "a rank was lost"};
	double began = clock_now(), begin, wait, alone = began;
	uint64_t highest = 0;
	gradcomp_status st;
	pthread_mutex_lock(&m->lock);
	if (m->transport)
		transport_failure(m->transport, &why);
	st = m->closed ? error_set(err, GRADCOMP_ERR_STATE, "this rank has no part in the job any more")
	               : copy_view(m, &a, why.text, err);
	if (!st && roster_view_find(&m->view, m->rank) < 0)
		st = outcome(m, out, err);
	m->calling = !st;
	wait = turn(m);
	begin = began + wait;
	while (!st && m->view.epoch == a.view.epoch) {
		double now = clock_now(), silent = m->heard > 0 ? m->heard + SILENT_SECONDS + wait : 0;

		if (now < begin || now < silent) {
			sleep_until(m, begin > silent ? begin : silent);
			continue;
		}
		highest = m->promised > highest ? m->promised : highest;
		pthread_mutex_unlock(&m->lock);
		int decided = lead(m, &a, &highest);
		double took = clock_now() - now;
		pthread_mutex_lock(&m->lock);
		/* Its own questions do not count. */
		m->heard = 0;
		now += took;
		if (decided || a.waiting >= 0 || a.refused || quorum(&a))
			alone = now;
		if (!decided && a.waiting >= 0 && now - began >= patience)
			st = error_set(err, GRADCOMP_ERR_TIMEOUT,
			               "rank %d on %s lives, but has not called gradcomp_job_shrink() for %.3g s",
			               a.waiting, roster_host(m, a.waiting), patience);
		else if (!decided && now - alone >= MAJORITY_SECONDS)
			st = error_set(
				err, GRADCOMP_ERR_PEER,
				"rank %d on %s can reach %d of %d ranks, itself counted, which is no majority: the rest of the job may go "
				"on without them, so this rank ends (%s)",
				m->rank, roster_host(m, m->rank), a.yes, a.view.n, why.text);
		/* Two leaders do not meet again and again; and the answers of many take their time. */
		begin = now + (a.refused ? 0.05 + 0.03 * (m->rank % 16) : took < 0.1 ? 0.02 + took / 2 : 0.02);
	}
	if (!st)
		st = outcome(m, out, err);
	m->calling = false;
	m->closed |= st != GRADCOMP_OK;
	pthread_mutex_unlock(&m->lock);
	roster_view_clear(&a.view);
	roster_message_clear(&a.q);
	roster_message_clear(&a.tally);
	free(a.gone.p);
	return st;
}
