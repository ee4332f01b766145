#include "conformance/kit_fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/host.h"

struct transfer {
	transfer *next;
	int peer;
	bool sends, done, waited;
	unsigned char *buf;
	size_t bytes;
	const gradcomp_request *req; /* where it was posted, and stays */
	uint64_t turn;               /* its number among those between the same two ranks in this direction */
	int multicast;               /* its number among this rank's; 0: it is part of none */
};

static gradcomp_status failed(link_end *e, gradcomp_error *err)
{
	e->met_failure = true;
	if (err)
		*err = e->fabric->failure;
	return e->fabric->failure.status;
}

__attribute__((format(printf, 3, 4))) static gradcomp_status fail(fabric *f, gradcomp_status st, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (!f->failure.status) {
		f->failure.status = st;
		vsnprintf(f->failure.text, sizeof f->failure.text, fmt, ap);
	}
	va_end(ap);
	pthread_cond_broadcast(&f->moved);
	return f->failure.status;
}

static transfer *of_turn(const link_end *e, int peer, bool sends, uint64_t turn)
{
	for (transfer *t = e->posted; t; t = t->next)
		if (t->peer == peer && t->sends == sends && t->turn == turn)
			return t;
	return NULL;
}

static gradcomp_status post(link_end *e, bool sends, int multicast, int peer, void *buf, size_t bytes,
                            gradcomp_request *req, gradcomp_error *err)
{
	fabric *f = e->fabric;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t turn = 0;
	transfer *t;
	pthread_mutex_lock(&f->lock);
	if (++e->calls == e->fail_at)
		fail(f, GRADCOMP_ERR_PEER, "rank %d has left", (e->api.rank + 1) % f->P);
	if (peer < 0 || peer >= f->P || peer == e->api.rank)
		fail(f, GRADCOMP_ERR_INVALID, "rank %d of %d posts a transfer with rank %d", e->api.rank, f->P, peer);
	for (t = e->posted; t; t = t->next)
		turn += t->peer == peer && t->sends == sends;
	t = f->failure.status ? NULL : calloc(1, sizeof *t);
	if (t) {
		*t = (transfer){e->posted, peer, sends, false, false, buf, bytes, req, turn, multicast};
		e->posted = t;
		memset(req, 0x5a, sizeof *req);
		memcpy(req->opaque, &t, sizeof t);
		pthread_cond_broadcast(&f->moved);
	} else {
		if (!f->failure.status)
			fail(f, GRADCOMP_ERR_NOMEM, "no memory");
		st = failed(e, err);
	}
	pthread_mutex_unlock(&f->lock);
	return st;
}

static gradcomp_status post_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                 gradcomp_error *err)
{
	return post(ctx, true, 0, peer, (void *)(uintptr_t)buf, bytes, req, err);
}

static gradcomp_status post_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                 gradcomp_error *err)
{
	return post(ctx, false, 0, peer, buf, bytes, req, err);
}

static gradcomp_status post_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                      gradcomp_request *reqs, gradcomp_error *err)
{
	link_end *e = ctx;
	gradcomp_status st = GRADCOMP_OK;
	e->multicasts++;
	for (int i = 0; !st && i < n; i++)
		st = post(e, true, e->multicasts, peers[i], (void *)(uintptr_t)buf, bytes, &reqs[i], err);
	return st;
}

/* The peer's side of a transfer, when it may move: a multicast moves when all its receivers are there. */
static transfer *meets(const link_end *e, const transfer *t)
{
	const fabric *f = e->fabric;
	transfer *other = of_turn(&f->ends[t->peer], e->api.rank, !t->sends, t->turn);
	const link_end *from = t->sends ? e : &f->ends[t->peer];
	int multicast = t->sends ? t->multicast : other ? other->multicast : 0;
	for (const transfer *m = from->posted; other && multicast && m; m = m->next)
		if (m->multicast == multicast && !of_turn(&f->ends[m->peer], from->api.rank, false, m->turn))
			return NULL;
	return other;
}

/* Moves what both sides of this rank's transfers have posted. */
static void move_all(link_end *e)
{
	fabric *f = e->fabric;
	for (transfer *t = e->posted; t && !f->failure.status; t = t->next) {
		transfer *other = t->done ? NULL : meets(e, t);
		const transfer *from = t->sends ? t : other;
		transfer *to = t->sends ? other : t;

		if (!other)
			continue;
		if (from->bytes != to->bytes) {
			fail(f, GRADCOMP_ERR_MISMATCH, "rank %d receives %zu bytes from rank %d, which sends %zu",
			     t->sends ? t->peer : e->api.rank, to->bytes, t->sends ? e->api.rank : t->peer,
			     from->bytes);
			return;
		}
		if (from->bytes)
			memcpy(to->buf, from->buf, from->bytes);
		t->done = other->done = true;
		pthread_cond_broadcast(&f->moved);
	}
}

/* Returns true when nobody runs who could still post what others wait for. */
static bool all_wait(const fabric *f)
{
	for (int r = 0; r < f->P; r++) {
		const transfer *t = f->ends[r].awaits;

		if (f->ends[r].running && (!t || t->done || meets(&f->ends[r], t)))
			return false;
	}
	return true;
}

/* The lock is held. NULL: the failure is the fabric's. */
static transfer *transfer_of(link_end *e, const gradcomp_request *req)
{
	transfer *t = NULL;
	if (e->fabric->failure.status)
		return NULL;
	for (transfer *p = e->posted; p && !t; p = p->next)
		if (!memcmp(req->opaque, &p, sizeof p))
			t = p;
	if (!t)
		fail(e->fabric, GRADCOMP_ERR_INVALID, "rank %d waits for a request that it has not posted",
		     e->api.rank);
	else if (t->req != req)
		fail(e->fabric, GRADCOMP_ERR_INVALID,
		     "rank %d waits for a copy of a request: it stays where it was posted until it has been waited for",
		     e->api.rank);
	return e->fabric->failure.status ? NULL : t;
}

static void stuck(link_end *e, const transfer *t)
{
	const link_end *peer = &e->fabric->ends[t->peer];
	const transfer *its = peer->awaits;
	e->fabric->stuck = true;
	fail(e->fabric, GRADCOMP_ERR_TIMEOUT,
	     its ? "all ranks wait: rank %d to %s rank %d, which waits to %s rank %d"
	         : "all ranks wait: rank %d to %s rank %d, which has returned",
	     e->api.rank, t->sends ? "send to" : "hear from", t->peer, its && its->sends ? "send to" : "hear from",
	     its ? its->peer : 0);
}

static gradcomp_status wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	link_end *e = ctx;
	fabric *f = e->fabric;
	gradcomp_status st = GRADCOMP_OK;
	transfer *t;
	pthread_mutex_lock(&f->lock);
	t = transfer_of(e, req);
	while (!f->failure.status && (move_all(e), !t->done) && !f->failure.status) {
		e->awaits = t;
		if (all_wait(f))
			stuck(e, t);
		else
			pthread_cond_wait(&f->moved, &f->lock);
		e->awaits = NULL;
	}
	if (f->failure.status)
		st = failed(e, err);
	else
		t->waited = true;
	pthread_mutex_unlock(&f->lock);
	return st;
}

static gradcomp_status test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	link_end *e = ctx;
	fabric *f = e->fabric;
	gradcomp_status st = GRADCOMP_OK;
	transfer *t;
	pthread_mutex_lock(&f->lock);
	t = transfer_of(e, req);
	move_all(e);
	if (f->failure.status)
		st = failed(e, err);
	else
		*done = t->waited = t->done;
	pthread_mutex_unlock(&f->lock);
	return st;
}

static gradcomp_status failure(void *ctx, gradcomp_error *err)
{
	link_end *e = ctx;
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&e->fabric->lock);
	if (e->fabric->failure.status)
		st = failed(e, err);
	pthread_mutex_unlock(&e->fabric->lock);
	return st;
}

void fabric_open(fabric *f, int P, int per_node)
{
	*f = (fabric){.P = P, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
	for (int r = 0; r < P; r++)
		f->node[r] = r / per_node;
	for (int r = 0; r < P; r++)
		f->ends[r] = (link_end){.fabric = f,
		                        .api = {.struct_size = sizeof f->ends[r].api,
		                                .rank = r,
		                                .nranks = P,
		                                .nnodes = (P + per_node - 1) / per_node,
		                                .node = f->node,
		                                .ctx = &f->ends[r],
		                                .send = post_send,
		                                .recv = post_recv,
		                                .wait = wait,
		                                .test = test,
		                                .chunk = 4096,
		                                .failure = failure,
		                                .multicast = post_multicast}};
}

void fabric_forget(fabric *f)
{
	for (int r = 0; r < f->P; r++) {
		for (transfer *t = f->ends[r].posted, *next; t; t = next) {
			next = t->next;
			free(t);
		}
		f->ends[r].posted = NULL;
		f->ends[r].multicasts = 0;
	}
}

void fabric_close(fabric *f)
{
	fabric_forget(f);
	pthread_cond_destroy(&f->moved);
	pthread_mutex_destroy(&f->lock);
}

void fabric_enter(fabric *f)
{
	for (int r = 0; r < f->P; r++)
		f->ends[r].running = true;
}

int fabric_leave(fabric *f, int rank)
{
	int unwaited = 0;
	pthread_mutex_lock(&f->lock);
	for (const transfer *t = f->ends[rank].posted; t; t = t->next)
		unwaited += !t->waited;
	f->ends[rank].running = false;
	pthread_cond_broadcast(&f->moved);
	pthread_mutex_unlock(&f->lock);
	return unwaited;
}
