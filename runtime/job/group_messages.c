/* Messages between two ranks of a group, matched by source and tag.
 *
 * They go over a channel of their own, on which ranks connect when one first needs the other. Each rank always has a
 * receive posted for the heading of the next message from every rank that it is connected to. Up to EAGER_BYTES the
 * message follows its heading at once, and is kept where it arrives when no receive has been started for it. A longer one is offered,
 * asked for when a receive has matched it, and then goes from the sender's buffer to the receiver's. */
#include "job/group_calls.h"

#include "base/error.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EAGER_BYTES (64u << 10)
#define SMALL_BYTES 32 /* go in the heading */
#define HEADING_MAGIC 0x4d434731u

typedef enum heading_kind {
	HEADING_MESSAGE = 1, /* the bytes follow */
	HEADING_OFFER,
	HEADING_TAKE,     /* asks for what was offered under this number */
	HEADING_DECLINE,  /* it is not wanted */
	HEADING_ANSWER,   /* the bytes that were asked for follow */
	HEADING_WITHDRAWN /* what was offered is not to be had any more */
} heading_kind;

typedef struct heading {
	uint32_t magic, kind;
	uint64_t tag, bytes, number;
	unsigned char small[SMALL_BYTES];
} heading;

/* On its way to another rank. */
typedef struct parcel {
	struct parcel *next;
	heading h;
	gradcomp_request head, body;
	bool has_body;
	gradcomp_group_request *q; /* ends with it; may be NULL */
} parcel;

/* A message that is here, or offered, before the receive for it. */
typedef struct arrival {
	struct arrival *next;
	int from;
	uint64_t tag, bytes, number;
	bool offer, whole, unwanted;
	gradcomp_group_request *taker; /* waits for it to be whole */
	unsigned char data[];
} arrival;

typedef struct correspondent {
	bool open; /* a receive for a heading, or for what follows it, is posted */
	bool left;
	heading in;
	bool moving; /* what follows the heading is on its way: to `into`, or else to taker's buffer */
	gradcomp_request head, body;
	arrival *into;
	gradcomp_group_request *taker;
	parcel *first, **last;
} correspondent;

typedef struct group_messages {
	group_calls *calls;
	channel *channel; /* NULL: closed; under the calls' lock */
	const gradcomp_links *links;
	int wake_fd;
	/* Under the lock. */
	bool driving, background, asleep, kicked;
	int wanted;                                    /* threads that are to take over from the group's own */
	gradcomp_group_request *posted, **last_posted; /* nobody has looked at them */
	/* Of the thread that drives. */
	gradcomp_group_request *live, **last_live;   /* in the order in which they were posted */
	gradcomp_group_request *ended, **last_ended; /* that the lock is to be taken for */
	arrival *arrivals, **last_arrival;
	int parcels;
	uint64_t numbers;
	gradcomp_status status; /* the channel has failed */
	gradcomp_error error;
	correspondent *with[];
} group_messages;

static uint64_t bytes_of(const gradcomp_group_request *q)
{
	return q->call.count * gradcomp_dtype_bytes((gradcomp_dtype)q->call.dtype);
}

static void unlink_live(group_messages *m, gradcomp_group_request *q)
{
	gradcomp_group_request **at = &m->live;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	if (m->last_live == &q->next)
		m->last_live = at;
}

/* The request ends when the driver next takes the lock. */
static void settle(group_messages *m, gradcomp_group_request *q, gradcomp_status st, const char *text)
{
	unlink_live(m, q);
	q->state = MESSAGE_ENDED;
	q->status = st;
	if (st)
		error_set(&q->error, st, "%s", text);
	q->next = NULL;
	*m->last_ended = q;
	m->last_ended = &q->next;
}

static void fail(group_messages *m, gradcomp_status st, const gradcomp_error *err)
{
	if (!m->status) {
		m->status = st;
		m->error = *err;
	}
}

/* Posts a parcel; q, which ends with it, may be NULL. */
static void post(group_messages *m, int to, const heading *h, const void *body, gradcomp_group_request *q)
{
	correspondent *w = m->with[to];
	const gradcomp_links *l = m->links;
	gradcomp_error err = {0};
	parcel *p = calloc(1, sizeof *p);
	gradcomp_status st = p ? GRADCOMP_OK : error_set(&err, GRADCOMP_ERR_NOMEM, "no memory for a message");
	if (p) {
		p->h = *h;
		p->h.magic = HEADING_MAGIC;
		p->q = q;
		p->has_body = body != NULL;
		*w->last = p;
		w->last = &p->next;
		m->parcels++;
		st = l->send(l->ctx, to, &p->h, sizeof p->h, &p->head, &err);
		if (!st && body)
			st = l->send(l->ctx, to, body, h->bytes, &p->body, &err);
	}
	if (st)
		fail(m, st, &err);
}

/* Waits for a heading from that rank, from now on. */
static correspondent *open_to(group_messages *m, int peer)
{
	correspondent *w = m->with[peer];
	gradcomp_error err = {0};
	if (!w) {
		w = m->with[peer] = calloc(1, sizeof *w);
		if (!w) {
			fail(m, error_set(&err, GRADCOMP_ERR_NOMEM, "no memory for messages with rank %d", peer), &err);
			return NULL;
		}
		w->last = &w->first;
	}
	if (!w->open && !w->left) {
		w->open = true;
		gradcomp_status st = m->links->recv(m->links->ctx, peer, &w->in, sizeof w->in, &w->head, &err);
		if (st)
			fail(m, st, &err);
		channel_may_end(m->channel, peer);
	}
	return w;
}

static void describe_rank(const group_messages *m, int peer, char *out, size_t capacity)
{
	const gradcomp_group *g = m->calls->group;
	if (peer < 0)
		snprintf(out, capacity, "any rank");
	else
		snprintf(out, capacity, "rank %d on %s", g->ranks[peer],
		         transport_host(g->job->transport, g->ranks[peer]));
}

static void settle_left(group_messages *m, gradcomp_group_request *q)
{
	char who[160], text[320];
	describe_rank(m, q->peer, who, sizeof who);
	snprintf(text, sizeof text, "%s has left the group, and takes no part in a message with tag %llu", who,
	         (unsigned long long)q->call.tag);
	settle(m, q, GRADCOMP_ERR_PEER, text);
}

/* Receives. */

static bool matches(const gradcomp_group_request *q, int from, uint64_t tag)
{
	return q->call.kind == GRADCOMP_CALL_RECV && q->state == MESSAGE_OPEN && q->call.tag == tag &&
	       (q->call.peer == from || q->call.peer == GRADCOMP_ANY_RANK);
}

static gradcomp_group_request *find_receive(group_messages *m, int from, uint64_t tag)
{
	for (gradcomp_group_request *q = m->live; q; q = q->next)
		if (matches(q, from, tag))
			return q;
	return NULL;
}

static gradcomp_group_request *find_number(group_messages *m, message_state state, int peer, uint64_t number)
{
	for (gradcomp_group_request *q = m->live; q; q = q->next)
		if (q->state == state && q->peer == peer && q->number == number)
			return q;
	return NULL;
}

static void settle_received(group_messages *m, gradcomp_group_request *q, int from, uint64_t bytes)
{
	if (q->call.from)
		*q->call.from = from;
	if (q->call.got)
		*q->call.got = bytes / gradcomp_dtype_bytes((gradcomp_dtype)q->call.dtype);
	settle(m, q, GRADCOMP_OK, NULL);
}

/* Returns true, and ends the receive, when the message does not fit into its buffer. */
static bool too_long(group_messages *m, gradcomp_group_request *q, int from, uint64_t bytes)
{
	char who[160], text[400];
	if (bytes <= bytes_of(q))
		return false;
	describe_rank(m, from, who, sizeof who);
	snprintf(text, sizeof text, "%s sent %llu bytes with tag %llu to a receive of %llu", who,
	         (unsigned long long)bytes, (unsigned long long)q->call.tag, (unsigned long long)bytes_of(q));
	settle(m, q, GRADCOMP_ERR_MISMATCH, text);
	return true;
}

/* A receive and what was offered have met. */
static void take_offer(group_messages *m, gradcomp_group_request *q, int from, uint64_t bytes, uint64_t number)
{
	heading h = {.kind = HEADING_TAKE, .number = number};
	if (too_long(m, q, from, bytes)) {
		h.kind = HEADING_DECLINE;
	} else {
		q->state = MESSAGE_TAKEN;
		q->peer = from;
		q->number = number;
	}
	post(m, from, &h, NULL, NULL);
}

static arrival *remember(group_messages *m, int from, const heading *h, bool offer)
{
	uint64_t bytes = offer ? 0 : h->bytes;
	arrival *a = calloc(1, sizeof *a + bytes);
	gradcomp_error err = {0};
	if (!a) {
		fail(m,
		     error_set(&err, GRADCOMP_ERR_NOMEM, "no memory for a message of %llu bytes",
		               (unsigned long long)h->bytes),
		     &err);
		return NULL;
	}
	*a = (arrival){.from = from, .tag = h->tag, .bytes = h->bytes, .number = h->number, .offer = offer};
	*m->last_arrival = a;
	m->last_arrival = &a->next;
	return a;
}

static void forget(group_messages *m, arrival *a)
{
	arrival **at = &m->arrivals;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	if (m->last_arrival == &a->next)
		m->last_arrival = at;
	free(a);
}

/* Gives a whole message to the receive that takes it. */
static void hand_over(group_messages *m, arrival *a, gradcomp_group_request *q)
{
	if (!too_long(m, q, a->from, a->bytes)) {
		if (a->bytes)
			memcpy(q->call.out, a->data, a->bytes);
		settle_received(m, q, a->from, a->bytes);
	}
	forget(m, a);
}

/* A receive that has been posted, or is open again, takes what has come before it. */
static void take_arrival(group_messages *m, gradcomp_group_request *q)
{
	for (arrival *a = m->arrivals; a; a = a->next) {
		if (a->taker || a->unwanted || !matches(q, a->from, a->tag))
			continue;
		if (a->offer) {
			take_offer(m, q, a->from, a->bytes, a->number);
			forget(m, a);
		} else if (a->whole) {
			hand_over(m, a, q);
		} else {
			a->taker = q;
			q->state = MESSAGE_MOVING;
			q->peer = a->from;
		}
		return;
	}
}

static void receive_body(group_messages *m, int from, void *out)
{
	correspondent *w = m->with[from];
	gradcomp_error err = {0};
	gradcomp_status st = m->links->recv(m->links->ctx, from, out, w->in.bytes, &w->body, &err);
	w->moving = true;
	if (st)
		fail(m, st, &err);
}

/* A message whose bytes follow its heading, or stand in it. */
static void message_came(group_messages *m, int from)
{
	correspondent *w = m->with[from];
	const heading *h = &w->in;
	gradcomp_group_request *q = find_receive(m, from, h->tag);
	bool small = h->bytes <= SMALL_BYTES, unwanted = q && too_long(m, q, from, h->bytes);
	arrival *a;
	if (q && !unwanted) {
		q->peer = from;
		if (!small) {
			q->state = MESSAGE_MOVING;
			w->taker = q;
			receive_body(m, from, q->call.out);
			return;
		}
		if (h->bytes)
			memcpy(q->call.out, h->small, h->bytes);
		settle_received(m, q, from, h->bytes);
		return;
	}
	if (unwanted && small)
		return;
	a = remember(m, from, h, false);
	if (!a)
		return;
	a->unwanted = unwanted;
	a->whole = small;
	if (small) {
		memcpy(a->data, h->small, h->bytes);
		return;
	}
	w->into = a;
	receive_body(m, from, a->data);
}

/* Another rank has asked for what this one offers, or does not want it. */
static void offer_met(group_messages *m, int from, const heading *in)
{
	gradcomp_group_request *q = find_number(m, MESSAGE_OFFERED, from, in->number);
	if (!q) /* it was withdrawn */
		return;
	if (in->kind == HEADING_DECLINE) {
		settle(m, q, GRADCOMP_OK, NULL);
		return;
	}
	q->state = MESSAGE_MOVING;
	heading h = {.kind = HEADING_ANSWER, .bytes = bytes_of(q), .number = q->number};
	post(m, from, &h, q->call.in, q);
}

static void withdrawn(group_messages *m, int from, uint64_t number)
{
	gradcomp_group_request *q = find_number(m, MESSAGE_TAKEN, from, number);
	if (q) {
		q->state = MESSAGE_OPEN;
		q->peer = q->call.peer;
		take_arrival(m, q);
		return;
	}
	for (arrival *a = m->arrivals; a; a = a->next)
		if (a->offer && a->from == from && a->number == number) {
			forget(m, a);
			return;
		}
}

static void heading_came(group_messages *m, int from)
{
	correspondent *w = m->with[from];
	const heading *h = &w->in;
	gradcomp_error err = {0};
	gradcomp_group_request *q;
	bool right = h->magic == HEADING_MAGIC;
	switch (right ? (heading_kind)h->kind : 0) {
	case HEADING_MESSAGE:
		right = h->bytes <= EAGER_BYTES;
		if (right)
			message_came(m, from);
		break;
	case HEADING_OFFER:
		q = find_receive(m, from, h->tag);
		if (q)
			take_offer(m, q, from, h->bytes, h->number);
		else
			remember(m, from, h, true);
		break;
	case HEADING_TAKE:
	case HEADING_DECLINE:
		offer_met(m, from, h);
		break;
	case HEADING_ANSWER:
		q = find_number(m, MESSAGE_TAKEN, from, h->number);
		right = q && h->bytes <= bytes_of(q);
		if (right) {
			q->state = MESSAGE_MOVING;
			w->taker = q;
			receive_body(m, from, q->call.out);
		}
		break;
	case HEADING_WITHDRAWN:
		withdrawn(m, from, h->number);
		break;
	default:
		right = false;
	}
	if (!right)
		fail(m, error_set(&err, GRADCOMP_ERR_INTERNAL, "rank %d of the group sends what is no message", from),
		     &err);
}

static void body_came(group_messages *m, int from)
{
	correspondent *w = m->with[from];
	arrival *a = w->into;
	w->moving = false;
	w->into = NULL;
	if (!a) {
		settle_received(m, w->taker, from, w->in.bytes);
		w->taker = NULL;
		return;
	}
	a->whole = true;
	if (a->taker)
		hand_over(m, a, a->taker);
	else if (a->unwanted)
		forget(m, a);
}

/* Looks at what has come from a rank; true when something had. */
static bool hear(group_messages *m, int from)
{
	correspondent *w = m->with[from];
	bool heard = false;
	while (!m->status && w->open && channel_done(w->moving ? &w->body : &w->head)) {
		gradcomp_error err = {0};
		heard = true;
		if (w->moving)
			body_came(m, from);
		else
			heading_came(m, from);
		if (w->moving || m->status)
			continue;
		gradcomp_status st = m->links->recv(m->links->ctx, from, &w->in, sizeof w->in, &w->head, &err);
		if (st)
			fail(m, st, &err);
	}
	return heard;
}

/* Sends. */

/* Ends the sends whose buffers are free. */
static bool sweep(group_messages *m, correspondent *w)
{
	bool swept = false;
	while (w->first && channel_done(&w->first->head) && (!w->first->has_body || channel_done(&w->first->body))) {
		parcel *p = w->first;
		w->first = p->next;
		if (!w->first)
			w->last = &w->first;
		m->parcels--;
		if (p->q)
			settle(m, p->q, GRADCOMP_OK, NULL);
		free(p);
		swept = true;
	}
	return swept;
}

static void drop_parcels(group_messages *m, correspondent *w)
{
	while (w->first) {
		parcel *p = w->first;
		w->first = p->next;
		free(p);
		m->parcels--;
	}
	w->last = &w->first;
}

static void begin_send(group_messages *m, gradcomp_group_request *q)
{
	uint64_t bytes = bytes_of(q);
	heading h = {.kind = HEADING_MESSAGE, .tag = q->call.tag, .bytes = bytes};
	if (bytes > EAGER_BYTES) {
		h.kind = HEADING_OFFER;
		h.number = q->number = ++m->numbers;
		q->state = MESSAGE_OFFERED;
		post(m, q->peer, &h, NULL, NULL);
		return;
	}
	q->state = MESSAGE_MOVING;
	if (bytes <= SMALL_BYTES && bytes)
		memcpy(h.small, q->call.in, bytes);
	post(m, q->peer, &h, bytes > SMALL_BYTES ? q->call.in : NULL, q);
}

static void begin(group_messages *m, gradcomp_group_request *q)
{
	q->next = NULL;
	*m->last_live = q;
	m->last_live = &q->next;
	q->state = MESSAGE_OPEN;
	q->peer = q->call.peer;
	if (m->status) {
		settle(m, q, m->status, m->error.text);
		return;
	}
	if (q->call.kind == GRADCOMP_CALL_RECV)
		take_arrival(m, q);
	if (q->state == MESSAGE_ENDED || q->peer < 0)
		return;
	correspondent *w = open_to(m, q->peer);
	if (!w || m->status)
		return;
	if (w->left && q->state != MESSAGE_MOVING)
		settle_left(m, q);
	else if (q->call.kind == GRADCOMP_CALL_SEND)
		begin_send(m, q);
}

/* The other side of a correspondence is closed, and all that came before has been heard. */
static void leave(group_messages *m, int peer)
{
	correspondent *w = m->with[peer];
	arrival *next;
	w->open = false;
	w->left = true;
	channel_hang_up(m->channel, peer);
	for (gradcomp_group_request *q = m->live, *after; q; q = after) {
		after = q->next;
		if (q->peer == peer)
			settle_left(m, q);
	}
	w->taker = NULL;
	w->moving = false;
	w->into = NULL;
	drop_parcels(m, w);
	for (arrival *a = m->arrivals; a; a = next) {
		next = a->next;
		if (a->from == peer && !a->whole)
			forget(m, a);
	}
}

/* All. */

/* Does what there is to do without waiting; true when there was something. */
static bool look(group_messages *m)
{
	bool found = false;
	int n = m->links->nranks;
	for (int peer; !m->status && (peer = channel_caller(m->channel)) >= 0; found = true) {
		correspondent *w = open_to(m, peer);
		if (w && w->left) /* its end is closed for good */
			break;
	}
	for (int r = 0; !m->status && r < n; r++) {
		correspondent *w = m->with[r];
		if (!w || !w->open)
			continue;
		found |= hear(m, r);
		found |= sweep(m, w);
		if (m->status || !channel_ended(m->channel, r))
			continue;
		/* What it sent before may have to be asked for. */
		gradcomp_error err = {0};
		int done = 0;
		gradcomp_status st = m->links->test(m->links->ctx, w->moving ? &w->body : &w->head, &done, &err);
		if (st)
			fail(m, st, &err);
		else if (!done)
			leave(m, r);
		found = true;
	}
	return found;
}

/* Ends what has taken too long; gives the time of the next one, 0: there is none. */
static double overdue(group_messages *m)
{
	double nearest = 0, now = 0;
	for (gradcomp_group_request *q = m->live, *after; q; q = after) {
		char who[160], text[400];
		after = q->next;
		if (!(q->deadline > 0))
			continue;
		now = now > 0 ? now : clock_now();
		if (now < q->deadline) {
			nearest = nearest > 0 && nearest < q->deadline ? nearest : q->deadline;
			continue;
		}
		describe_rank(m, q->peer, who, sizeof who);
		snprintf(text, sizeof text, "rank %d has waited %.3g s %s %s with tag %llu", m->calls->group->job->rank,
		         q->call.timeout,
		         q->call.kind == GRADCOMP_CALL_RECV ? "for a message from" : "to send a message to", who,
		         (unsigned long long)q->call.tag);
		if (q->state == MESSAGE_OFFERED) {
			heading h = {.kind = HEADING_WITHDRAWN, .number = q->number};
			post(m, q->peer, &h, NULL, NULL);
			settle(m, q, GRADCOMP_ERR_TIMEOUT, text);
		} else if (q->state == MESSAGE_OPEN) {
			settle(m, q, GRADCOMP_ERR_TIMEOUT, text);
		} else {
			gradcomp_error err;
			fail(m, error_set(&err, GRADCOMP_ERR_TIMEOUT, "%s", text), &err);
		}
	}
	return nearest;
}

/* The channel is of no use any more: all messages end. */
static void end_all(group_messages *m)
{
	group_calls *c = m->calls;
	channel *ch = m->channel;
	while (m->live)
		settle(m, m->live, m->status, m->error.text);
	pthread_mutex_lock(&c->lock);
	m->channel = NULL;
	if (!transport_failure(c->group->job->transport, NULL))
		group_calls_over(c, m->status, m->error.text);
	pthread_mutex_unlock(&c->lock);
	channel_close(ch);
	while (m->arrivals)
		forget(m, m->arrivals);
	for (int r = 0; r < c->group->nranks; r++) {
		if (m->with[r])
			drop_parcels(m, m->with[r]);
		free(m->with[r]);
		m->with[r] = NULL;
	}
}

/* With the lock held, which is left meanwhile: takes up what was posted, and ends what has ended. */
static void exchange_posts(group_messages *m)
{
	group_calls *c = m->calls;
	while (m->posted || m->ended) {
		gradcomp_group_request *begun = m->posted, *ended = m->ended;
		m->posted = m->ended = NULL;
		m->last_posted = &m->posted;
		m->last_ended = &m->ended;
		pthread_mutex_unlock(&c->lock);
		for (gradcomp_group_request *q = ended; q; q = q->next)
			if (q->call.done)
				q->call.done(q->call.ctx, q->status, q->status ? &q->error : NULL);
		for (gradcomp_group_request *q = begun, *after; q; q = after) {
			after = q->next;
			begin(m, q);
		}
		if (m->status && m->channel)
			end_all(m);
		pthread_mutex_lock(&c->lock);
		/* The owner may free it as soon as it is done. */
		for (gradcomp_group_request *after; ended; ended = after) {
			after = ended->next;
			ended->done = true;
		}
		pthread_cond_broadcast(&c->ended);
	}
}

static bool enough(const group_messages *m, const gradcomp_group_request *q, double until)
{
	if (q ? q->done : m->wanted || m->calls->messages.stopping || !(m->live || m->parcels))
		return true;
	return until > 0 && clock_now() >= until;
}

/* With the lock held: this thread moves messages until q has ended (NULL: there is nothing to move, or another thread
 * wants to), or until that time; `once`: it does not wait at all. */
static void drive(group_messages *m, const gradcomp_group_request *q, double until, bool once)
{
	group_calls *c = m->calls;
	gradcomp_error err = {0};
	m->driving = true;
	m->background = !q && !once;
	for (;;) {
		double next, nap = 1;
		exchange_posts(m);
		if (enough(m, q, until) || !m->channel)
			break;
		pthread_mutex_unlock(&c->lock);
		while (!m->status && look(m))
			;
		next = m->status ? 0 : overdue(m);
		gradcomp_status st = m->links->failure(m->links->ctx, &err);
		if (st)
			fail(m, st, &err);
		if (m->status)
			end_all(m);
		pthread_mutex_lock(&c->lock);
		exchange_posts(m);
		if (enough(m, q, until) || !m->channel || once)
			break;
		next = until > 0 && (until < next || !(next > 0)) ? until : next;
		if (next > 0)
			nap = next - clock_now();
		m->asleep = true;
		pthread_mutex_unlock(&c->lock);
		if (nap > 0) {
			nap = nap < 1 ? nap : 1;
			st = q ? channel_linger(m->channel, m->wake_fd, nap, &err)
			       : channel_pause(m->channel, m->wake_fd, nap, &err);
			if (st)
				fail(m, st, &err);
		}
		pthread_mutex_lock(&c->lock);
		m->asleep = false;
		if (m->kicked) {
			eventfd_t count;
			eventfd_read(m->wake_fd, &count);
		}
		m->kicked = false;
	}
	m->driving = m->background = false;
	pthread_cond_broadcast(&c->ended);
}

/* Has the thread that drives look at what is new. */
static void kick(group_messages *m)
{
	if (!m->asleep || m->kicked)
		return;
	m->kicked = true;
	eventfd_write(m->wake_fd, 1);
}

static gradcomp_status open_messages(group_calls *c, gradcomp_error *err)
{
	gradcomp_group *g = c->group;
	group_messages *m = c->carrier;
	gradcomp_status st;
	if (!m) {
		m = calloc(1, sizeof *m + (size_t)g->nranks * sizeof m->with[0]);
		if (!m || (m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
			free(m);
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory or descriptors for messages of %d ranks",
			                 g->nranks);
		}
		m->calls = c;
		m->last_posted = &m->posted;
		m->last_live = &m->live;
		m->last_ended = &m->ended;
		m->last_arrival = &m->arrivals;
		c->carrier = m;
	}
	if (m->channel)
		return GRADCOMP_OK;
	st = group_own_channel(g, GROUP_MESSAGES, &m->channel, err);
	if (st)
		return st;
	m->status = GRADCOMP_OK;
	m->links = channel_links(m->channel);
	channel_on_demand(m->channel);
	channel_apart(m->channel, true, 0);
	return GRADCOMP_OK;
}

gradcomp_status group_message_post(group_calls *c, gradcomp_group_request *q, gradcomp_error *err)
{
	gradcomp_status st = open_messages(c, err);
	group_messages *m = c->carrier;
	if (st)
		return st;
	q->state = MESSAGE_NEW;
	q->next = NULL;
	*m->last_posted = q;
	m->last_posted = &q->next;
	kick(m);
	return GRADCOMP_OK;
}

void group_messages_turn(group_calls *c)
{
	if (!c->carrier->driving)
		drive(c->carrier, NULL, 0, true);
}

void group_message_wait(group_calls *c, gradcomp_group_request *q, double until)
{
	group_messages *m = c->carrier;
	while (!q->done && !(until > 0 && clock_now() >= until)) {
		if (!m->driving) {
			drive(m, q, until, false);
			continue;
		}
		m->wanted++;
		if (m->background)
			kick(m);
		if (until > 0)
			thread_wait_until(&c->ended, &c->lock, until);
		else
			pthread_cond_wait(&c->ended, &c->lock);
		m->wanted--;
		if (c->over)
			pthread_cond_broadcast(&c->ended);
	}
}

void group_messages_end(group_calls *c)
{
	group_messages *m = c->carrier;
	if (!m || !m->channel)
		return;
	transport_end_channel(m->channel, c->why.status, c->why.text);
	if (m->driving)
		return;
	m->driving = true;
	fail(m, c->why.status, &c->why);
	pthread_mutex_unlock(&c->lock);
	end_all(m);
	pthread_mutex_lock(&c->lock);
	exchange_posts(m);
	m->driving = false;
	pthread_cond_broadcast(&c->ended);
}

void group_messages_free(group_calls *c)
{
	group_messages *m = c->carrier;
	/* Threads that wait for a message leave now that it has ended. */
	while (m && (m->driving || m->wanted))
		pthread_cond_wait(&c->ended, &c->lock);
	c->carrier = NULL;
	if (m)
		close(m->wake_fd);
	free(m);
}

double group_messages_pending(const group_calls *c)
{
	const group_messages *m = c->carrier;
	return m->posted ? m->posted->began : m->live ? m->live->began : m->parcels ? 1e-9 : 0;
}

bool group_messages_vacant(const group_calls *c)
{
	return !c->carrier->driving && !c->carrier->wanted;
}

void group_messages_carry(group_calls *c)
{
	drive(c->carrier, NULL, 0, false);
}
