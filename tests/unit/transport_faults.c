/* Peers that die, stop, leave or do something else: everybody else learns who it
 * was, soon, and nobody hangs. */
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"
#include "transport/core/transport_internal.h"

#include <fcntl.h>

#define SHIFT_BYTES (4u << 20)
#define CLOSED_SECONDS 10 /* the limit for a connection that closed */
#define SILENT_SECONDS \
	2.0 /* transport.timeout where a rank is silent, on an idle machine; those who work answer sooner */

static int culprit;
static int with_workers; /* each rank has forked a process that outlives it */
static const char *expect;

/* Everybody sends to the right and receives from the left, for ever. */
static void shifting(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *out = calloc(1, SHIFT_BYTES), *in = calloc(1, SHIFT_BYTES);
	int right = (rank + 1) % b->n, left = (rank + b->n - 1) % b->n;
	gradcomp_request s, r;
	gradcomp_status st = GRADCOMP_OK;
	if (with_workers && !fork()) {
		alarm(5);
		if (l->send(l->ctx, right, out, 1, &s, NULL) != GRADCOMP_ERR_STATE)
			atomic_fetch_add(&b->wrong, 1);
		channel_close(c);
		if (transport_stop(t, NULL))
			atomic_fetch_add(&b->wrong, 1);
		pause();
		_exit(0);
	}
	for (int k = 0; !st; k++) {
		if (k == 3)
			atomic_fetch_add(&b->ready, 1);
		st = l->recv(l->ctx, left, in, SHIFT_BYTES, &r, &b->error[rank]);
		if (!st)
			st = l->send(l->ctx, right, out, SHIFT_BYTES, &s, &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &r, &b->error[rank]);
		if (!st)
			st = l->wait(l->ctx, &s, &b->error[rank]);
	}
	b->when[rank] = board_now();
	b->status[rank] = st;
	/* The same answer for ever after. */
	if (l->send(l->ctx, right, out, 1, &s, NULL) != st || l->wait(l->ctx, &r, NULL) != st)
		atomic_fetch_add(&b->wrong, 1);
	channel_close(c);
	free(out);
	free(in);
}

/* Every rank but the culprit ends with `status` within `seconds` of `begin`, and
 * names the culprit. */
static int all_blame(board *b, gradcomp_status status, double begin, double seconds)
{
	char who[40];
	int good = 1;
	snprintf(who, sizeof who, "rank %d on ", culprit);
	for (int r = 0; r < b->n; r++) {
		if (r == culprit)
			continue;
		if (b->status[r] == status && in_time(b->when[r] - begin, seconds) && strstr(b->error[r].text, who) &&
		    strstr(b->error[r].text, who) < b->error[r].text + 4 && strstr(b->error[r].text, expect) &&
		    b->stopped[r] == status)
			continue;
		printf("# rank %d: %d after %.2f s: %s\n", r, b->status[r], b->when[r] - begin, b->error[r].text);
		good = 0;
	}
	return good && !atomic_load(&b->wrong);
}

static void wait_ready(board *b)
{
	double until = board_now() + 40;
	while (atomic_load(&b->ready) < b->n && board_now() < until)
		usleep(1000);
}

static void killed(int n, int who, const char *allow, int cma)
{
	board *b = board_new(n);
	double begin;
	b->options.allow = allow;
	b->options.cma = cma;
	b->body = shifting;
	culprit = who;
	/* The control tree says that it died; a link whose control thread gets no CPU, that it closed. */
	expect = "connection";
	board_fork(b);
	wait_ready(b);
	begin = board_now();
	kill(b->pid[who], SIGKILL);
	board_join(b);
	ok(all_blame(b, GRADCOMP_ERR_PEER, begin, CLOSED_SECONDS),
	   "rank %d of %d killed in a transfer over %s%s: all others name it", who, n, allow,
	   cma ? "" : " without cma");
	board_free(b);
}

static void stopped(int n, int who, const char *allow)
{
	board *b = board_new(n);
	static char silent[60];
	double begin;
	b->options.allow = allow;
	b->options.timeout = SILENT_SECONDS * pace();
	/* Not what ends it, however slow the machine is. */
	b->options.wait_timeout = 10 * b->options.timeout;
	b->body = shifting;
	culprit = who;
	snprintf(silent, sizeof silent, "has not answered for %.3g s", b->options.timeout);
	expect = silent;
	board_fork(b);
	wait_ready(b);
	begin = board_now();
	kill(b->pid[who], SIGSTOP);
	for (int r = 0; r < n; r++)
		if (r != who)
			waitpid(b->pid[r], NULL, 0);
	ok(all_blame(b, GRADCOMP_ERR_TIMEOUT, begin, b->options.timeout + CLOSED_SECONDS),
	   "rank %d of %d stopped (%s): all others name it in time", who, n, allow);
	kill(b->pid[who], SIGCONT);
	waitpid(b->pid[who], NULL, 0);
	ok(b->status[who] < 0, "the stopped one learns of it when it goes on: %s", b->error[who].text);
	board_free(b);
}

static void quiet(board *b, transport *t, int rank)
{
	(void)t;
	(void)rank;
	board_exchange(b);
	while (!atomic_load(&b->late))
		usleep(1000);
}

/* A worker forked off a rank cleans up what it thinks is its own. */
static void beside(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *out = calloc(1, SHIFT_BYTES), *in = calloc(1, SHIFT_BYTES);
	gradcomp_request s, r;
	for (int k = 0; k < 4 && !b->status[rank]; k++) {
		b->status[rank] = l->recv(l->ctx, !rank, in, SHIFT_BYTES, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->send(l->ctx, !rank, out, SHIFT_BYTES, &s, &b->error[rank]);
		if (k == 2) {
			pid_t pid = fork();

			if (!pid) {
				if (l->wait(l->ctx, &r, NULL) != GRADCOMP_ERR_STATE)
					atomic_fetch_add(&b->wrong, 1);
				channel_close(c);
				transport_stop(t, NULL);
				_exit(0);
			}
			waitpid(pid, NULL, 0);
		}
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
	}
	channel_close(c);
	free(out);
	free(in);
}

static void workers(const char *allow)
{
	board *b = board_new(2);
	b->options.allow = allow;
	b->body = beside;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "a worker forked off a rank changes nothing when it ends, %s",
	   allow);
	board_free(b);
}

/* A connection that rank 0 has accepted and not taken up, when it forks a worker. */
static void unclaimed(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request rq;
	char x = 0;
	if (rank) {
		b->status[1] = l->send(l->ctx, 0, &x, 1, &rq, &b->error[1]);
	} else {
		int fd[8], n = 0, status;
		pid_t pid;

		while (!n) {
			usleep(1000);
			pthread_mutex_lock(&t->lock);
			for (const backlog_conn *p = t->backlog.first; p && n < 7; p = p->next) {
				fd[n++] = p->fd;
				if (p->passed >= 0)
					fd[n++] = p->passed;
			}
			pthread_mutex_unlock(&t->lock);
		}
		pid = fork();
		if (!pid) {
			int open = 0;

			for (int i = 0; i < n; i++)
				open += fcntl(fd[i], F_GETFD) >= 0;
			channel_close(c);
			transport_stop(t, NULL);
			_exit(open);
		}
		waitpid(pid, &status, 0);
		atomic_fetch_add(&b->wrong, status != 0);
		for (int i = 0; i < n; i++)
			atomic_fetch_add(&b->wrong, fcntl(fd[i], F_GETFD) < 0);
		b->status[0] = l->recv(l->ctx, 1, &x, 1, &rq, &b->error[0]);
	}
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	channel_close(c);
}

static void forked_backlog(const char *allow)
{
	board *b = board_new(2);
	b->options.allow = allow;
	b->options.streams = 1;
	b->body = unclaimed;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "a worker does not keep what waits in the backlog open, %s",
	   allow);
	board_free(b);
}

/* Stopped for less than the limit, and then all stopped for longer than it. */
static void suspended(void)
{
	board *b = board_new(3);
	b->options.timeout = SILENT_SECONDS * pace();
	/* Not what ends it, however slow the machine is. */
	b->options.wait_timeout = 10 * b->options.timeout;
	b->body = quiet;
	board_fork(b);
	wait_ready(b);
	kill(b->pid[1], SIGSTOP);
	usleep(500000);
	kill(b->pid[1], SIGCONT);
	usleep(500000);
	for (int r = 0; r < 3; r++)
		kill(b->pid[r], SIGSTOP);
	usleep((useconds_t)(1.5e6 * b->options.timeout));
	for (int r = 0; r < 3; r++)
		kill(b->pid[r], SIGCONT);
	usleep(500000);
	atomic_store(&b->late, 1);
	board_join(b);
	ok(board_well(b), "a short stop of one, and a long one of all together, are nobody's fault");
	board_free(b);
}

/* Rank 1 ends in its own way while rank 0 waits for it. */
static void one_way(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char x[100] = {0};
	gradcomp_request s, r;
	if (rank < 2) {
		l->send(l->ctx, !rank, x, 1, &s, NULL);
		l->recv(l->ctx, !rank, x, 1, &r, NULL);
		l->wait(l->ctx, &r, NULL);
		l->wait(l->ctx, &s, NULL);
	}
	if (rank == 1 && b->arg)
		_exit(3);
	if (!rank) {
		b->status[0] = l->recv(l->ctx, 1, x, 100, &r, &b->error[0]);
		if (!b->status[0])
			b->status[0] = l->wait(l->ctx, &r, &b->error[0]);
		b->when[0] = board_now();
	}
	channel_close(c);
}

static void leaving(const char *allow, int crash)
{
	board *b = board_new(3);
	double begin = board_now();
	b->options.allow = allow;
	b->body = one_way;
	b->arg = crash ? b : NULL;
	board_fork(b);
	board_join(b);
	is_int(b->status[0], GRADCOMP_ERR_PEER, "%s, rank 1 %s: an error", allow, crash ? "exits" : "leaves");
	like(b->error[0].text, crash ? "connection" : "left the job", "it says how");
	like(b->error[0].text, "rank 0 was waiting to receive 100 bytes from rank 1 on ", "and what was waited for");
	ok(in_time(b->when[0] - begin, CLOSED_SECONDS), "soon");
	is_int(b->stopped[2], GRADCOMP_ERR_PEER, "a rank that had nothing to do with it learns of it in stop()");
	board_free(b);
}

static void lengths(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	size_t *len = b->arg;
	char *x = calloc(1, len[rank] + 1);
	gradcomp_request rq;
	b->status[rank] = rank ? l->send(l->ctx, 0, x, len[1], &rq, &b->error[rank])
	                       : l->recv(l->ctx, 1, x, len[0], &rq, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	channel_close(c);
	free(x);
}

static void mismatch(const char *allow, int cma, size_t sent, size_t expected)
{
	size_t len[2] = {expected, sent};
	board *b = board_new(2);
	char text[80];
	b->options.allow = allow;
	b->options.cma = cma;
	b->arg = len;
	b->body = lengths;
	board_threads(b);
	snprintf(text, sizeof text, " sent %zu bytes where rank 0 on ", sent);
	is_int(b->status[0], GRADCOMP_ERR_MISMATCH, "%s%s: %zu bytes sent, %zu expected", allow,
	       cma ? "" : " without cma", sent, expected);
	like(b->error[0].text, text, "the text has what was sent");
	snprintf(text, sizeof text, " expects %zu:", expected);
	like(b->error[0].text, text, "and what was expected");
	is_int(b->stopped[1], GRADCOMP_ERR_MISMATCH, "the sender learns of it");
	board_free(b);
}

static void idle(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request rq;
	char x;
	if (!rank) {
		b->status[0] = l->recv(l->ctx, 1, &x, 1, &rq, &b->error[0]);
		if (!b->status[0])
			b->status[0] = l->wait(l->ctx, &rq, &b->error[0]);
		atomic_store(&b->late, 1);
	}
	while (!atomic_load(&b->late))
		usleep(1000);
	channel_close(c);
}

static void told(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request rq;
	char x;
	if (rank == b->n - 1) {
		usleep(100000);
		transport_fail(t, GRADCOMP_ERR_NOTFOUND, rank, "the last rank lacks its data");
		transport_fail(t, GRADCOMP_ERR_IO, 0, "a second failure");
	} else {
		b->status[rank] = l->recv(l->ctx, b->n - 1, &x, 1, &rq, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
	}
	channel_close(c);
}

/* Rank 0 sends to rank 2, of which it has only received for longer than the time limit, and then to rank 1, whose
 * connection has been idle for that long before rank 0 took it up. Neither has acknowledged what it gets when rank
 * 0 looks. */
static void seldom(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	double until = board_now() + b->options.timeout + 0.5;
	gradcomp_status st = GRADCOMP_OK;
	char x = 0, last = 0;
	if (rank == 1) {
		st = channel_put(c, 0, &x, 1, &b->error[1]);
	} else {
		while (!st && !last) {
			last = board_now() > until;
			st = rank ? channel_put(c, 0, &last, 1, &b->error[2])
			          : channel_get(c, 2, &last, 1, &b->error[0]);
			usleep(rank ? 20000 : 0);
		}
	}
	for (int r = 2; !rank && r && !st; r--) {
		gradcomp_request rq;

		usleep(1100000); /* it looks each second */
		if (r == 1)
			st = channel_get(c, 1, &x, 1, &b->error[0]);
		if (!st)
			st = l->send(l->ctx, r, &x, 1, &rq, &b->error[0]);
		if (!st)
			st = channel_get(c, r, &x, 1, &b->error[0]);
	}
	if (rank && !st)
		st = channel_get(c, 0, &x, 1, &b->error[rank]);
	usleep(rank ? 100000 : 0);
	if (rank && !st)
		st = channel_put(c, 0, &x, 1, &b->error[rank]);
	b->status[rank] = st;
	channel_close(c);
}

static void answering(void)
{
	board *b = board_new(3);
	b->options.allow = "tcp";
	b->options.timeout = 3 * pace();
	b->body = seldom;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !b->status[0], "hosts that answer are not given up, whatever came from them before: %s",
	   b->error[0].text);
	board_free(b);
}

static void nothing(board *b, transport *t, int rank)
{
	(void)b;
	(void)t;
	(void)rank;
}

static void absent(void)
{
	board *b = board_new(4);
	double begin = board_now();
	b->options.timeout = SILENT_SECONDS * pace();
	/* Not what ends it, however slow the machine is. */
	b->options.wait_timeout = 10 * b->options.timeout;
	b->late_rank = 3;
	b->body = nothing;
	board_fork(b);
	for (int r = 0; r < 3; r++)
		waitpid(b->pid[r], NULL, 0);
	is_int(b->started[1], GRADCOMP_ERR_TIMEOUT, "a rank that never comes: its parent says so");
	like(b->start_error[1].text, "rank 3 on ", "and names it");
	is_int(b->started[0] ? b->started[0] : b->stopped[0], GRADCOMP_ERR_TIMEOUT, "and so do the others");
	ok(in_time(board_now() - begin, b->options.timeout + CLOSED_SECONDS), "in time");
	kill(b->pid[3], SIGKILL);
	waitpid(b->pid[3], NULL, 0);
	board_free(b);
}

int main(void)
{
	static const char *const allow[] = {"shm", "tcp"};
	board *b;
	for (int n = 2; n <= 7; n++)
		for (int who = 0; who < n; who++)
			killed(n, who, allow[(n + who) % 2], who % 3 != 0);
	with_workers = 1;
	killed(4, 1, "shm", 1);
	killed(3, 2, "tcp", 1);
	with_workers = 0;
	for (int a = 0; a < 2; a++) {
		for (int who = 0; who < 3; who++)
			stopped(3, who, allow[a]);
		workers(allow[a]);
		forked_backlog(allow[a]);
		leaving(allow[a], 0);
		leaving(allow[a], 1);
		mismatch(allow[a], 1, 100, 64);
		mismatch(allow[a], 1, 0, 64);
		mismatch(allow[a], 1, 300000, 299999);
		mismatch(allow[a], 0, 1000, 1000000);
	}
	suspended();
	absent();
	answering();

	b = board_new(2);
	b->options.wait_timeout = 2;
	b->body = idle;
	board_threads(b);
	is_int(b->status[0], GRADCOMP_ERR_TIMEOUT, "a peer that lives but takes no part");
	like(b->error[0].text, "is alive but takes no part", "is told from a dead one");
	board_free(b);

	b = board_new(6);
	b->body = told;
	board_threads(b);
	for (int r = 0; r < 5; r++) {
		is_int(b->status[r], GRADCOMP_ERR_NOTFOUND, "a declared failure reaches rank %d", r);
		like(b->error[r].text, "the last rank lacks its data", "the first one wins");
	}
	board_free(b);
	return done_testing();
}
