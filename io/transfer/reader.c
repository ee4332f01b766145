/* Reading this node's share of the chunks. */
#include <string.h>

#include "io/transfer/transfer.h"

/* One thread's reading. */
struct reader {
	transfer *x;
	source_reader *from;
	size_t entry; /* whose file is open; SIZE_MAX: none */
};

static int stopped(void *x)
{
	return atomic_load(&((transfer *)x)->stopping);
}

static gradcomp_status open_file(struct reader *f, size_t entry, uint64_t ahead, gradcomp_error *err)
{
	const stage_entry *e = &f->x->params->m->entries[entry];
	source_stat sb;
	if (f->entry == entry)
		return GRADCOMP_OK;
	f->entry = SIZE_MAX;
	gradcomp_status st = source_file(f->from, e->path, ahead, &sb, err);
	if (st == GRADCOMP_ERR_NOTFOUND)
		return copy_source_changed(f->x->params->run, e, "was removed or replaced", err);
	if (st)
		return st;
	if (!copy_is_same(&sb, e))
		return copy_source_changed(f->x->params->run, e, "was written to", err);
	f->entry = entry;
	return GRADCOMP_OK;
}

static gradcomp_status read_run(struct reader *f, const stage_entry *e, unsigned char *to, uint64_t n, uint64_t at,
                                gradcomp_error *err)
{
	uint64_t got = 0;
	gradcomp_status st = source_read(f->from, to, n, at, &got, err);
	if (!st && got < n)
		return copy_source_changed(f->x->params->run, e, "became shorter", err);
	atomic_fetch_add(&f->x->read, f->x->params->server ? got : 0);
	return st;
}

/* Reads a file with holes; what lies in holes is zero and is not read. */
static gradcomp_status read_holes(struct reader *f, const stage_entry *e, unsigned char *to, uint64_t n, uint64_t at,
                                  gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	uint64_t end = at + n, data, hole;
	memset(to, 0, n);
	for (uint64_t i = at; !st && i < end; i = hole) {
		source_run(f->from, i, e->size, &data, &hole);
		if (data >= end)
			break;
		if (hole > end)
			hole = end;
		st = read_run(f, e, to + (data - at), hole - data, data, err);
	}
	return st;
}

static gradcomp_status read_file(struct reader *f, size_t entry, unsigned char *to, uint64_t n, uint64_t at,
                                 gradcomp_error *err)
{
	const stage_entry *e = &f->x->params->m->entries[entry];
	source_stat sb;
	gradcomp_status st = open_file(f, entry, at || e->stored < e->size ? 0 : n, err);
	if (!st)
		st = e->stored < e->size ? read_holes(f, e, to, n, at, err) : read_run(f, e, to, n, at, err);
	if (!st && !(st = source_again(f->from, &sb, err)) && !copy_is_same(&sb, e))
		st = copy_source_changed(f->x->params->run, e, "was written to", err);
	return st;
}

/* Returns the bytes to be fetched early; none of a file with holes: they are not read. */
static uint64_t first_bytes(const stage_entry *e)
{
	return e->stored < e->size ? 0 : e->size;
}

static gradcomp_status read_chunk(struct reader *f, transfer_buffer *b, gradcomp_error *err)
{
	const stage_manifest *m = f->x->params->m;
	const stage_chunk *p = &b->chunk;
	unsigned char *to = chunk_bytes(b->message, p);
	gradcomp_status st = GRADCOMP_OK;
	if (p->large)
		return read_file(f, p->first, to, p->bytes, p->at, err);
	size_t i = p->first, upcoming = i;
	for (uint32_t part = 0, announced = 0; !st && part < p->parts; part++) {
		if (stopped(f->x))
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (announced <= part) {
			announced = part;
			upcoming = i;
		}
		for (; announced < p->parts &&
		       source_prefetch(f->from, m->entries[upcoming].path, first_bytes(&m->entries[upcoming]));
		     announced++)
			upcoming = chunk_file(m, f->x->params->needed, upcoming + 1);
		st = read_file(f, i, to, m->entries[i].size, 0, err);
		to += m->entries[i].size;
		i = chunk_file(m, f->x->params->needed, i + 1);
	}
	return st;
}

static bool must_wait(const transfer *x)
{
	return !x->free_own.n || (x->relay && x->next * x->owners + (uint64_t)x->own >= x->oldest + TRANSFER_WINDOW);
}

/* The next own chunk and a buffer for it; NULL when there is nothing more to do. */
static transfer_buffer *next_chunk(transfer *x, uint64_t *turn)
{
	transfer_buffer *b = NULL;
	pthread_mutex_lock(&x->lock);
	while (!atomic_load(&x->stopping) && x->next < x->mine && must_wait(x))
		transfer_wait(x);
	if (!atomic_load(&x->stopping) && x->next < x->mine) {
		b = transfer_pop(&x->free_own);
		*turn = x->next++;
		while (x->cursor.number <= *turn * x->owners + (uint64_t)x->own)
			chunk_next(&x->cursor, &b->chunk);
		b->owner = x->params->peers->node;
		b->here = true;
		b->refs = 1;
	}
	pthread_mutex_unlock(&x->lock);
	return b;
}

/* Passes a chunk to the other nodes and to this node's own copy: the bytes go out while they are written. */
static gradcomp_status pass(transfer *x, transfer_buffer *b, uint64_t turn, dirwalk *to, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (x->params->peers->nnodes > 1) {
		pthread_mutex_lock(&x->lock);
		b->refs += transfer_relay_first(x);
		x->ready[turn % TRANSFER_BUFFERS] = b;
		pthread_mutex_unlock(&x->lock);
		transfer_wake(x);
	}
	if (x->params->wanted)
		st = transfer_store(x, to, b, false, err);
	transfer_release(x, b);
	return st;
}

void transfer_reader(transfer *x)
{
	struct reader f = {.x = x, .entry = SIZE_MAX};
	gradcomp_error error;
	transfer_buffer *b;
	dirwalk to;
	uint64_t turn = 0;
	gradcomp_status st = source_reader_open(x->params->from, (source_wait){stopped, x}, &f.from, &error);
	dirwalk_begin(&to, x->params->data);
	while (!st && (b = next_chunk(x, &turn))) {
		st = read_chunk(&f, b, &error);
		if (!st) {
			transfer_hash(x, b);
			st = pass(x, b, turn, &to, &error);
		}
	}
	if (st)
		transfer_fail(x, st, &error);
	dirwalk_end(&to);
	source_reader_close(f.from);
}
