/* Moves chunks from node to node: a thread that receives, sends what this node has read, and sends on
 * what it has received. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "config/config.h"
#include "io/transfer/transfer.h"
#include "job/job.h"

#define SENT 2     /* messages under way over a stride */
#define RECEIVED 8 /* buffers beyond those that cannot be spared */
#define QUEUED (2 * TRANSFER_BUFFERS)

/* Keeps what is to be sent over a stride, in the order of turns. */
struct outgoing {
	struct {
		transfer_buffer *b; /* NULL: an own chunk, of this number */
		uint64_t own;
	} queue[QUEUED];
	unsigned head, n;
	struct sent {
		gradcomp_request header, rest;
		bool both;
		transfer_buffer *b; /* or NULL */
		unsigned char bytes[CHUNK_HEAD];
	} sent[SENT];
	unsigned first, nsent;
};

/* Receives what comes over a stride. */
struct incoming {
	transfer_queue queue;
	enum { NOTHING, HEADER, REST } under_way; /* the state of the first of them */
	gradcomp_request request;
};

struct transfer_relay {
	transfer *x;
	const gradcomp_links *links;
	bcast_tree tree;
	bcast_order order; /* the turns that have not begun, except this one: */
	bcast_turn turn;
	bool more;
	unsigned buffers;
	stage_chunk *chunks; /* those that may be on their way */
	uint64_t kept, cut;
	chunk_cursor cursor;
	uint64_t end;      /* the first chunk that is not sent any more */
	uint64_t begun;    /* own chunks that have been sent to a node, or begun to */
	uint64_t admitted; /* all chunks of turns that have begun are before it */
	double quiet;      /* seconds in which nothing happened */
	gradcomp_error error;
	struct incoming in[BCAST_STRIDES];
	struct outgoing out[BCAST_STRIDES];
};

/* Where few nodes read, their trees have few roots, and these would send most: then chunks go round a
 * ring. */
gradcomp_status transfer_relay_new(transfer *x, gradcomp_error *err)
{
	const transfer_peers *peers = x->params->peers;
	uint32_t n = (uint32_t)peers->nnodes;
	struct transfer_relay *r = x->relay = calloc(1, sizeof *r);
	if (!r)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	r->x = x;
	r->links = peers->links;
	bcast_tree_init(&r->tree, n, x->owners < (n + 1) / 2 ? n : BCAST_RADIX);
	bcast_order_init(&r->order, &r->tree, x->owner, x->owners, (uint32_t)peers->node, x->total);
	r->cursor = x->cursor;
	r->end = x->total;
	r->kept = (uint64_t)BCAST_GAP * r->tree.hops + 1;
	r->chunks = calloc(r->kept, sizeof *r->chunks);
	r->buffers = bcast_crowd(&r->order);
	if (!r->chunks || !r->buffers)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for the chunks of %u nodes", n);
	r->buffers += r->tree.nstrides + RECEIVED;
	if ((x->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "no descriptor to wake the thread that sends chunks");
	return GRADCOMP_OK;
}

void transfer_relay_free(transfer *x)
{
	if (x->wake_fd >= 0)
		close(x->wake_fd);
	if (x->relay)
		free(x->relay->chunks);
	free(x->relay);
}

unsigned transfer_relay_buffers(const transfer *x)
{
	return x->relay->buffers;
}

unsigned transfer_relay_first(const transfer *x)
{
	return bcast_reach(&x->relay->tree, 0);
}

static int node_at(const struct transfer_relay *r, uint32_t stride, bool before)
{
	uint32_t n = r->tree.n, d = r->tree.stride[stride];
	return (int)(((uint32_t)r->x->params->peers->node + (before ? n - d : d)) % n);
}

/* Chunks are cut once and kept as long as any node may have to do with them at this time. */
static const stage_chunk *chunk_of(struct transfer_relay *r, const bcast_turn *turn)
{
	for (; r->cut <= turn->chunk; r->cut++)
		chunk_next(&r->cursor, &r->chunks[r->cut % r->kept]);
	return &r->chunks[turn->chunk % r->kept];
}

/* The own chunk that no other node has begun to receive. */
static uint64_t next_own(const struct transfer_relay *r)
{
	const transfer *x = r->x;
	return r->begun < x->mine ? r->begun * x->owners + (uint64_t)x->own : UINT64_MAX;
}

static uint64_t oldest(const struct transfer_relay *r)
{
	uint64_t time = next_own(r);
	for (uint32_t k = 0; k < r->tree.nstrides; k++) {
		const transfer_queue *q = &r->in[k].queue;
		if (q->n && q->item[q->head]->time < time)
			time = q->item[q->head]->time;
	}
	return time;
}

/* Readers may go on when it has changed. */
static void publish_oldest(struct transfer_relay *r)
{
	transfer *x = r->x;
	uint64_t time = oldest(r);
	pthread_mutex_lock(&x->lock);
	if (time > x->oldest) {
		x->oldest = time;
		pthread_cond_broadcast(&x->changed);
	}
	pthread_mutex_unlock(&x->lock);
}

static bool end_at(struct transfer_relay *r, uint64_t end)
{
	if (end >= r->end)
		return true;
	if (end < r->admitted)
		return false;
	r->end = r->order.chunks = end;
	return true;
}

static transfer_buffer *free_buffer(transfer *x)
{
	transfer_buffer *b = NULL;
	pthread_mutex_lock(&x->lock);
	if (x->free_in.n)
		b = transfer_pop(&x->free_in);
	pthread_mutex_unlock(&x->lock);
	return b;
}

/* The next turn begins, if it may: its chunk is to be received, and to be sent. */
static bool begin_turn(struct transfer_relay *r)
{
	transfer *x = r->x;
	const bcast_turn *turn = &r->turn;
	transfer_buffer *b = NULL;
	if (!r->more)
		return false;
	if (turn->chunk < r->end) {
		uint32_t reach = bcast_reach(&r->tree, turn->offset);
		uint64_t since = oldest(r);
		if (turn->time > since && turn->time - since >= TRANSFER_WINDOW)
			return false;
		for (uint32_t k = 0; k < reach; k++)
			if (r->out[k].n == QUEUED)
				return false;
		if (turn->offset) {
			uint32_t k = bcast_from(&r->tree, turn->offset);
			if (!(b = free_buffer(x)))
				return false;
			b->chunk = *chunk_of(r, turn);
			b->owner = (int)turn->owner;
			b->from = node_at(r, k, true);
			b->time = turn->time;
			b->here = b->dropped = false;
			b->refs = reach + 1;
			transfer_push(&r->in[k].queue, b);
		}
		for (uint32_t k = 0; k < reach; k++) {
			struct outgoing *o = &r->out[k];
			unsigned at = (o->head + o->n++) % QUEUED;
			o->queue[at].b = b;
			o->queue[at].own = turn->chunk;
		}
		if (turn->chunk >= r->admitted)
			r->admitted = turn->chunk + 1;
	}
	r->more = bcast_next(&r->order, &r->turn);
	return true;
}

/* Hands the chunk to the writers. It is sent on from its queues. */
static void arrived(struct transfer_relay *r, struct incoming *in)
{
	transfer *x = r->x;
	transfer_buffer *b = transfer_pop(&in->queue);
	in->under_way = NOTHING;
	b->here = true;
	if (!b->dropped)
		atomic_fetch_add(&x->came, b->bytes);
	if (x->writers && !b->dropped) {
		pthread_mutex_lock(&x->lock);
		b->refs++;
		transfer_push(&x->to_write, b);
		pthread_cond_broadcast(&x->changed);
		pthread_mutex_unlock(&x->lock);
	}
	transfer_release(x, b);
}

static gradcomp_status take_header(struct transfer_relay *r, struct incoming *in)
{
	transfer *x = r->x;
	const gradcomp_links *l = r->links;
	transfer_buffer *b = in->queue.item[in->queue.head];
	uint32_t flags;
	uint64_t end;
	int64_t packed = b->chunk.bytes;
	bool sound = chunk_head_check(b->message, &b->chunk, &flags, &end) && end_at(r, end);
	if (sound && b->chunk.holes)
		packed = chunk_packed(b->message, &b->chunk);
	if (!sound || packed < 0)
		return error_set(&r->error, GRADCOMP_ERR_INTERNAL, "what came from node %d (%s) is not chunk %llu",
		                 b->from, x->params->peers->hosts[b->from], (unsigned long long)b->chunk.number);
	b->bytes = (size_t)packed;
	if (flags & CHUNK_STOP) {
		pthread_mutex_lock(&x->lock);
		atomic_store(&x->stopping, true);
		pthread_cond_broadcast(&x->changed);
		pthread_mutex_unlock(&x->lock);
		b->dropped = true;
		arrived(r, in);
		return GRADCOMP_OK;
	}
	in->under_way = REST;
	return l->recv(l->ctx, b->from, b->message + CHUNK_HEAD, transfer_rest(b), &in->request, &r->error);
}

static gradcomp_status receive(struct transfer_relay *r, struct incoming *in, bool *moved)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = GRADCOMP_OK;
	while (!st && (in->under_way ? channel_done(&in->request) : in->queue.n > 0)) {
		transfer_buffer *b = in->queue.item[in->queue.head];
		*moved = true;
		switch (in->under_way) {
		case NOTHING:
			in->under_way = HEADER;
			st = l->recv(l->ctx, b->from, b->message, CHUNK_HEAD, &in->request, &r->error);
			break;
		case HEADER:
			st = take_header(r, in);
			break;
		case REST:
			arrived(r, in);
			break;
		}
	}
	return st;
}

/* NULL: it is not read yet. */
static transfer_buffer *own_chunk(transfer *x, uint64_t number)
{
	pthread_mutex_lock(&x->lock);
	transfer_buffer *b = x->ready[number / x->owners % TRANSFER_BUFFERS];
	pthread_mutex_unlock(&x->lock);
	return b && b->chunk.number == number ? b : NULL;
}

static void collect(struct transfer_relay *r, struct outgoing *o, bool *moved)
{
	for (; o->nsent; o->nsent--, o->first = (o->first + 1) % SENT) {
		struct sent *s = &o->sent[o->first];
		if (!channel_done(&s->header) || (s->both && !channel_done(&s->rest)))
			return;
		*moved = true;
		if (s->b)
			transfer_release(r->x, s->b);
	}
}

/* A node that stops may say so with the first chunk that nobody has from it: no other can have begun
 * a turn that is TRANSFER_WINDOW later, or will before it has learnt of this. */
static void begin_own(struct transfer_relay *r, uint64_t number, bool stop)
{
	if (number != next_own(r))
		return;
	if (stop)
		end_at(r, number + (uint64_t)BCAST_GAP * r->tree.hops + TRANSFER_WINDOW);
	r->begun++;
}

static gradcomp_status send_next(struct transfer_relay *r, uint32_t k, bool *moved)
{
	transfer *x = r->x;
	const gradcomp_links *l = r->links;
	struct outgoing *o = &r->out[k];
	struct sent *s = &o->sent[(o->first + o->nsent) % SENT];
	bool own = !o->queue[o->head].b, stop = atomic_load(&x->stopping);
	uint64_t number = o->queue[o->head].own;
	transfer_buffer *b = own ? own_chunk(x, number) : o->queue[o->head].b;
	if (own ? !b && !stop : !b->here)
		return GRADCOMP_OK;
	*moved = true;
	stop = stop || b->dropped;
	if (own)
		begin_own(r, number, stop);
	o->head = (o->head + 1) % QUEUED;
	o->n--;
	o->nsent++;
	s->b = b;
	s->both = !stop;
	if (stop) {
		const stage_chunk none = {.number = number};
		chunk_head(s->bytes, &none, CHUNK_STOP, r->end);
	} else {
		memcpy(s->bytes, b->message, CHUNK_HEAD);
		chunk_head_end(s->bytes, r->end);
	}
	gradcomp_status st = l->send(l->ctx, node_at(r, k, false), s->bytes, CHUNK_HEAD, &s->header, &r->error);
	if (!st && s->both)
		st = l->send(l->ctx, node_at(r, k, false), b->message + CHUNK_HEAD, transfer_rest(b), &s->rest,
		             &r->error);
	return st;
}

static gradcomp_status send_on(struct transfer_relay *r, uint32_t k, bool *moved)
{
	struct outgoing *o = &r->out[k];
	gradcomp_status st = GRADCOMP_OK;
	bool again = true;
	collect(r, o, moved);
	while (!st && again && o->n && o->nsent < SENT) {
		again = false;
		st = send_next(r, k, &again);
		*moved = *moved || again;
	}
	return st;
}

static bool at_end(const struct transfer_relay *r)
{
	for (uint32_t k = 0; k < r->tree.nstrides; k++)
		if (r->in[k].queue.n || r->out[k].n || r->out[k].nsent)
			return false;
	return !r->more;
}

/* A node that is alive and sends nothing. */
static gradcomp_status overdue(struct transfer_relay *r, double limit)
{
	const transfer_peers *peers = r->x->params->peers;
	for (uint32_t k = 0; k < r->tree.nstrides; k++) {
		if (!r->in[k].under_way)
			continue;
		int from = node_at(r, k, true);
		error_set(
			&r->error, GRADCOMP_ERR_TIMEOUT,
			"node %d (%s) has waited %.3g s for a chunk from node %d (%s), which is alive but sends nothing",
			peers->node, peers->hosts[peers->node], limit, from, peers->hosts[from]);
		transport_overdue(peers->group->job->transport, gradcomp_group_world_rank(peers->group, from),
		                  r->error.text);
		return GRADCOMP_ERR_TIMEOUT;
	}
	r->quiet = 0;
	return GRADCOMP_OK;
}

/* Waits until something can have moved. Time in which this process was stopped does not count as quiet. */
static gradcomp_status pause_relay(struct transfer_relay *r)
{
	double limit = config_float(r->x->params->run->config, SET_TRANSPORT_WAIT_TIMEOUT), nap = limit < 1 ? limit : 1,
	       begin = clock_now();
	eventfd_t events;
	gradcomp_status st = channel_pause(r->links->ctx, r->x->wake_fd, nap, &r->error);
	eventfd_read(r->x->wake_fd, &events);
	r->quiet = clock_now() - begin < 0.9 * nap ? 0 : r->quiet + nap;
	return !st && r->quiet > limit ? overdue(r, limit) : st;
}

static gradcomp_status relay(struct transfer_relay *r)
{
	gradcomp_status st = GRADCOMP_OK;
	r->more = bcast_next(&r->order, &r->turn);
	while (!st && !at_end(r)) {
		bool moved = false;
		while (begin_turn(r))
			moved = true;
		for (uint32_t k = 0; !st && k < r->tree.nstrides; k++)
			st = receive(r, &r->in[k], &moved);
		for (uint32_t k = 0; !st && k < r->tree.nstrides; k++)
			st = send_on(r, k, &moved);
		if (!st && moved)
			publish_oldest(r);
		else if (!st)
			st = pause_relay(r);
	}
	return st;
}

void transfer_relay(transfer *x)
{
	gradcomp_status st = relay(x->relay);
	if (st)
		transfer_fail(x, st, &x->relay->error);
	pthread_mutex_lock(&x->lock);
	if (st && !x->status) { /* although it was about to end */
		x->status = st;
		x->error = x->relay->error;
	}
	x->arrived = true;
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
}
