/* Moves chunks from node to node: one thread sends, one receives, each over links of its own. */

#include "io/transfer/transfer.h"

/* How many messages a node receives in a round. */
static uint64_t steps(const transfer *x)
{
	return (uint64_t)x->params->ring->nnodes - 1;
}

/* ---- slots: the order of messages on every link ---------------------------------- */

/* The chunk that its reader sends in slot q is sent on by the next node in slot q +
 * x->gap, so that it has time to arrive while others are on the wire. gap and the number
 * of hops have no common factor: then each slot has one message. */
struct slot {
	uint64_t round;
	int hop; /* 0: from its reader */
};

static uint64_t first_slot(const transfer *x, uint64_t round, uint64_t hop)
{
	return round * steps(x) + hop * x->gap;
}

/* Slots of a node, without those behind the end. With the lock held. */
static uint64_t slots(const transfer *x)
{
	return x->end ? first_slot(x, x->end - 1, steps(x) - 1) + 1 : 0;
}

/* False: nothing is sent in slot q, at the beginning and at the end. */
static bool slot_at(const transfer *x, uint64_t q, struct slot *out)
{
	out->hop = (int)(q % steps(x) * x->inverse % steps(x));
	uint64_t late = (uint64_t)out->hop * x->gap;
	out->round = (q - late) / steps(x);
	return q >= late && out->round < x->end;
}

/* No node begins a round before it knows that the round takes place: a failure in a header of
 * round r is known to all before round r + lag + 1. */
static bool may_begin(const transfer *x, uint64_t round)
{
	return round <= x->lag || x->received > first_slot(x, round - x->lag - 1, steps(x) - 1);
}

static void links_failed(transfer *x, gradcomp_status status, const gradcomp_error *err)
{
	transfer_fail(x, status, err);
	pthread_mutex_lock(&x->lock);
	x->dead = true;
	if (!x->status) { /* although it was about to end */
		x->status = status;
		x->error = *err;
	}
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
}

/* With the lock held: waits for this node's other threads, and checks that the links have not
 * failed. */
static bool wait_alive(transfer *x, const gradcomp_links *links)
{
	gradcomp_error error;
	transfer_wait(x);
	if (x->dead)
		return false;
	pthread_mutex_unlock(&x->lock);
	gradcomp_status status = links->failure(links->ctx, &error);
	if (status)
		links_failed(x, status, &error);
	pthread_mutex_lock(&x->lock);
	return !status;
}

/* The chunk of a node in a round; of no parts when there is none. Rounds are cut once and
 * kept as long as their chunks are on their way. */
static stage_chunk chunk_of(transfer_schedule *s, const transfer *x, uint64_t round, int owner)
{
	for (; s->next <= round; s->next++)
		for (uint32_t k = 0; k < x->owners; k++) {
			stage_chunk *p = &s->rounds[s->next % s->kept * x->owners + k];
			if (!chunk_next(&s->cursor, p))
				*p = (stage_chunk){.number = s->next};
		}
	const stage_chunk none = {.number = round};
	return x->owner_index[owner] < 0 ? none : s->rounds[round % s->kept * x->owners + (uint32_t)x->owner_index[owner]];
}

/* Bytes that are known beforehand: all but those of a chunk with holes. */
static size_t known_bytes(transfer_buffer *b)
{
	size_t head = (size_t)(chunk_bytes(b->message, &b->chunk) - b->message);
	return head + (b->chunk.holes ? 0 : b->chunk.bytes);
}

/* ---- sending -------------------------------------------------------------------- */

static gradcomp_status send_message(transfer *x, transfer_buffer *b, gradcomp_error *err)
{
	const transfer_ring *ring = x->params->ring;
	const gradcomp_links *l = ring->out;
	int next = (ring->node + 1) % ring->nnodes;
	size_t known = known_bytes(b);
	gradcomp_request first, rest;
	bool more = b->chunk.holes && b->bytes;
	gradcomp_status status = l->send(l->ctx, next, b->message, known, &first, err);
	if (!status && more)
		status = l->send(l->ctx, next, b->message + known, b->bytes, &rest, err);
	if (!status)
		status = l->wait(l->ctx, &first, err);
	return status || !more ? status : l->wait(l->ctx, &rest, err);
}

/* False when the exchange ends before round r. */
static bool enter_round(transfer *x, uint64_t r)
{
	bool alive = !x->dead;
	while (alive && r < x->end && !may_begin(x, r))
		alive = wait_alive(x, x->params->ring->out);
	return alive && r < x->end;
}

/* This node's chunk of the round: as it was read, or void where that has ended. */
static transfer_buffer *own_chunk(transfer *x, const stage_chunk *p, uint64_t r)
{
	bool alive = !x->dead;
	transfer_buffer **ready = &x->ready[r % TRANSFER_BUFFERS], *empty = &x->empty;
	while (alive && p->parts && !*ready && !atomic_load(&x->stopping))
		alive = wait_alive(x, x->params->ring->out);
	if (!alive)
		return NULL;
	if (p->parts && !atomic_load(&x->stopping)) {
		transfer_buffer *b = *ready;
		*ready = NULL;
		return b;
	}
	empty->chunk = *p;
	empty->bytes = p->holes ? 0 : p->bytes;
	chunk_head(empty->message, p, atomic_load(&x->stopping) ? CHUNK_STOP : 0);
	if (atomic_load(&x->stopping))
		transfer_stop_at(x, r);
	return empty;
}

static transfer_buffer *passing_chunk(transfer *x)
{
	bool alive = !x->dead;
	while (alive && !x->to_send.n)
		alive = wait_alive(x, x->params->ring->out);
	return alive ? transfer_pop(&x->to_send) : NULL;
}

/* What is sent in a slot. NULL: nothing any more. */
static transfer_buffer *next_message(transfer *x, const struct slot *slot)
{
	stage_chunk p;
	if (slot->hop)
		return passing_chunk(x);
	if (!enter_round(x, slot->round))
		return NULL;
	p = chunk_of(&x->sends, x, slot->round, x->params->ring->node);
	return own_chunk(x, &p, slot->round);
}

void transfer_sender(transfer *x)
{
	gradcomp_error error;
	gradcomp_status status = GRADCOMP_OK;
	transfer_buffer *b;
	struct slot slot;
	pthread_mutex_lock(&x->lock);
	for (uint64_t q = 0; !status && !x->dead && q < slots(x); q++) {
		if (!slot_at(x, q, &slot) || !(b = next_message(x, &slot)))
			continue;
		pthread_mutex_unlock(&x->lock);
		if ((status = send_message(x, b, &error)))
			links_failed(x, status, &error);
		else if (b != &x->empty)
			transfer_release(x, b);
		pthread_mutex_lock(&x->lock);
	}
	pthread_mutex_unlock(&x->lock);
}

/* ---- receiving ------------------------------------------------------------------ */

struct inbox {
	gradcomp_request request[TRANSFER_POSTED];
	transfer_buffer *buffer[TRANSFER_POSTED];
	struct slot slot[TRANSFER_POSTED];
	uint64_t posted, done; /* messages */
	uint64_t next;         /* slot to be posted */
};

/* Whether another receive can be posted now: its round will come, and what was posted last
 * does not have bytes of a number that is not known yet. */
static bool can_post(const transfer *x, struct inbox *in, struct slot *slot)
{
	while (in->next < slots(x) && !slot_at(x, in->next, slot))
		in->next++;
	if (in->posted - in->done == TRANSFER_POSTED || in->next >= slots(x) || !may_begin(x, slot->round))
		return false;
	return in->posted == in->done || !in->buffer[(in->posted - 1) % TRANSFER_POSTED]->chunk.holes;
}

static gradcomp_status post(transfer *x, struct inbox *in, gradcomp_error *err)
{
	const transfer_ring *ring = x->params->ring;
	const gradcomp_links *l = ring->in;
	struct slot slot;
	while (!x->dead && can_post(x, in, &slot)) {
		if (!x->free_in.n && in->posted > in->done)
			break;
		if (!x->free_in.n) {
			if (!wait_alive(x, l))
				break;
			continue;
		}
		transfer_buffer *b = transfer_pop(&x->free_in);
		unsigned at = in->posted % TRANSFER_POSTED;
		int from = (ring->node + ring->nnodes - 1) % ring->nnodes;
		b->owner = (from + ring->nnodes - slot.hop) % ring->nnodes;
		b->chunk = chunk_of(&x->receives, x, slot.round, b->owner);
		in->buffer[at] = b;
		in->slot[at] = slot;
		gradcomp_status status = l->recv(l->ctx, from, b->message, known_bytes(b), &in->request[at], err);
		if (status)
			return status;
		in->posted++;
		in->next++;
	}
	return GRADCOMP_OK;
}

static gradcomp_status take(transfer *x, transfer_buffer *b, gradcomp_request *request, uint32_t *flags,
                            gradcomp_error *err)
{
	const transfer_ring *ring = x->params->ring;
	const gradcomp_links *l = ring->in;
	gradcomp_status status = l->wait(l->ctx, request, err);
	if (status)
		return status;
	int64_t packed = b->chunk.bytes;
	if (chunk_head_check(b->message, &b->chunk, flags) && b->chunk.holes)
		packed = chunk_packed(b->message, &b->chunk);
	else if (!chunk_head_check(b->message, &b->chunk, flags))
		packed = -1;
	if (packed < 0)
		return error_set(err, GRADCOMP_ERR_INTERNAL, "what came from node %d (%s) is not chunk %llu", b->owner,
		                 ring->hosts[b->owner], (unsigned long long)b->chunk.number);
	b->bytes = (size_t)packed;
	if (!b->chunk.holes || !packed)
		return GRADCOMP_OK;
	status = l->recv(l->ctx, (ring->node + ring->nnodes - 1) % ring->nnodes, chunk_bytes(b->message, &b->chunk),
	                 b->bytes, request, err);
	return status ? status : l->wait(l->ctx, request, err);
}

/* Hands the chunk to the writers and to the sender. */
static void forward(transfer *x, transfer_buffer *b, const struct slot *slot, uint32_t flags)
{
	bool pass = (uint64_t)slot->hop + 1 < steps(x), write = x->writers && b->chunk.parts && !(flags & CHUNK_STOP);
	b->refs = (unsigned)pass + (unsigned)write;
	if (pass)
		transfer_push(&x->to_send, b);
	if (write)
		transfer_push(&x->to_write, b);
	if (!b->refs)
		transfer_push(&x->free_in, b);
	if (flags & CHUNK_STOP)
		transfer_stop_at(x, slot->round);
	x->received = first_slot(x, slot->round, (uint64_t)slot->hop) + 1;
	pthread_cond_broadcast(&x->changed);
}

void transfer_receiver(transfer *x)
{
	struct inbox in = {.posted = 0};
	gradcomp_error error;
	gradcomp_status status = GRADCOMP_OK;
	pthread_mutex_lock(&x->lock);
	for (;;) {
		if ((status = post(x, &in, &error)) || x->dead || in.done == in.posted)
			break;
		unsigned at = in.done % TRANSFER_POSTED;
		transfer_buffer *b = in.buffer[at];
		uint32_t flags = 0;
		pthread_mutex_unlock(&x->lock);
		status = take(x, b, &in.request[at], &flags, &error);
		pthread_mutex_lock(&x->lock);
		if (status)
			break;
		atomic_fetch_add(&x->came, b->bytes);
		forward(x, b, &in.slot[at], flags);
		in.done++;
	}
	x->arrived = true;
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
	if (status)
		links_failed(x, status, &error);
}
