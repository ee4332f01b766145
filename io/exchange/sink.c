/* Checking pieces and writing them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exchange.h"
#include "fileio.h"

/* From this size on a file is brought to the disk while others are copied; one
 * syncfs() at the end does the small ones. */
#define SYNC_BYTES (4u << 20)

/* ---- checksums ---------------------------------------------------------------- */

static int hash_run(void *hash, uint32_t at, const unsigned char *data, uint32_t n)
{
	static const unsigned char zeroes[PIECE_PAGE];
	(void)at;
	if (data)
		sha256_update(hash, data, n);
	for (; !data && n; n -= n < PIECE_PAGE ? n : PIECE_PAGE)
		sha256_update(hash, zeroes, n < PIECE_PAGE ? n : PIECE_PAGE);
	return 0;
}

/* SHA-256 of a block with holes: that of one without any data is known. */
static void hash_holes(exchange *x, const exchange_buffer *b, unsigned char digest[SHA256_BYTES])
{
	sha256 hash;
	if (!b->bytes && b->piece.bytes == STAGE_BLOCK) {
		memcpy(digest, x->zeroes, SHA256_BYTES);
		return;
	}
	sha256_init(&hash);
	piece_runs(b->message, &b->piece, hash_run, &hash);
	sha256_final(&hash, digest);
}

static size_t part_bytes(const exchange *x, const stage_piece *p, size_t entry)
{
	return p->large ? p->bytes : (size_t)x->plan->m->entries[entry].size;
}

void exchange_seal(exchange *x, exchange_buffer *b)
{
	const stage_piece *p = &b->piece;
	const unsigned char *bytes = piece_bytes(b->message, p);
	size_t i = p->first;
	piece_head(b->message, p, 0);
	b->bytes = p->holes ? piece_pack(b->message, p) : p->bytes;
	if (p->holes)
		hash_holes(x, b, piece_digest(b->message, 0));
	for (uint32_t part = 0; !p->holes && part < p->parts; part++) {
		size_t n = part_bytes(x, p, i);
		sha256_digest(bytes, n, piece_digest(b->message, part));
		bytes += n;
		i = piece_file(x->plan->m, x->plan->needed, i + 1);
	}
}

/* ---- files ---------------------------------------------------------------------- */

struct out {
	int fd;
	uint64_t at;
};

static int write_run(void *ctx, uint32_t at, const unsigned char *data, uint32_t n)
{
	const struct out *o = ctx;
	return data ? fileio_write(o->fd, data, n, o->at + at) : 0;
}

static int create(stage_walk *to, const stage_entry *e)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	const char *base;
	int dir = stage_walk_parent(to, e->path, &base);
	if (dir < 0)
		return -1;
	int fd = openat(dir, base, flags, 0600);
	/* Half of it may be there from an interrupted copy. */
	if (fd < 0 && errno == EEXIST && unlinkat(dir, base, 0) == 0)
		fd = openat(dir, base, flags, 0600);
	if (fd >= 0 && e->stored < e->size && ftruncate(fd, (off_t)e->size) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Also of times before 1970. */
static struct timespec time_of(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	if (t.tv_nsec < 0) {
		t.tv_sec--;
		t.tv_nsec += 1000000000;
	}
	return t;
}

/* The file is whole: its mode and time, and the journal. */
static gradcomp_status complete(exchange *x, size_t entry, int fd, gradcomp_error *err)
{
	stage_entry *e = &x->plan->m->entries[entry];
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, time_of(e->mtime_ns)};
	bool failed = fchmod(fd, e->mode) < 0 || futimens(fd, times) < 0 || (e->size >= SYNC_BYTES && fsync(fd) < 0);
	/* close() too may bring the news of a full disk. */
	if (close(fd) < 0 || failed)
		return stage_write_failed(x->plan->run, e->path, err);
	e->sealed = true;
	if (stage_journal_add(x->journal, entry, e) < 0)
		return stage_write_failed(x->plan->run, "the journal", err);
	atomic_fetch_add(&x->plan->run->files, 1);
	return GRADCOMP_OK;
}

/* Who read it and who passed it on: one of them, or what is between them. */
static gradcomp_status wrong(const exchange *x, const exchange_buffer *b, size_t entry, gradcomp_error *err)
{
	const exchange_ring *ring = x->plan->ring;
	char name[STAGE_NAME_MAX];
	int before = (ring->node + ring->nnodes - 1) % ring->nnodes;
	gradcomp_printable(x->plan->m->entries[entry].path, name, sizeof name);
	if (before == b->owner)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "%s came damaged from node %d (%s): its checksum is another", name,
		                 before, ring->hosts[before]);
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "%s of node %d (%s) came damaged from node %d (%s): its checksum is another", name, b->owner,
	                 ring->hosts[b->owner], before, ring->hosts[before]);
}

/* ---- batches of small files --------------------------------------------------------- */

static gradcomp_status store_small(exchange *x, stage_walk *to, size_t entry, const unsigned char *data,
                                   gradcomp_error *err)
{
	const stage_entry *e = &x->plan->m->entries[entry];
	struct out o = {.fd = create(to, e)};
	static const unsigned char zeroes[PIECE_PAGE];
	uint32_t size = (uint32_t)e->size, n;
	bool failed = o.fd < 0;
	for (uint32_t at = 0; !failed && at < size; at += n) {
		n = e->stored < e->size && size - at > PIECE_PAGE ? PIECE_PAGE : size - at;
		if (e->stored >= e->size || memcmp(data + at, zeroes, n < PIECE_PAGE ? n : PIECE_PAGE))
			failed = write_run(&o, at, data + at, n) < 0;
	}
	if (!failed)
		return complete(x, entry, o.fd, err);
	gradcomp_status status = stage_write_failed(x->plan->run, e->path, err);
	if (o.fd >= 0)
		close(o.fd);
	return status;
}

static gradcomp_status store_batch(exchange *x, stage_walk *to, exchange_buffer *b, bool check, gradcomp_error *err)
{
	const stage_manifest *m = x->plan->m;
	const unsigned char *data = piece_bytes(b->message, &b->piece);
	unsigned char digest[SHA256_BYTES];
	gradcomp_status status = GRADCOMP_OK;
	size_t i = b->piece.first;
	for (uint32_t part = 0; !status && part < b->piece.parts; part++) {
		stage_entry *e = &m->entries[i];
		const unsigned char *sum = piece_digest(b->message, part);
		if (atomic_load(&x->stopping))
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (piece_bit(x->plan->wanted, i)) {
			if (check)
				sha256_digest(data, e->size, digest);
			if (check && memcmp(digest, sum, sizeof digest))
				return wrong(x, b, i, err);
			memcpy(e->sha256, sum, SHA256_BYTES);
			atomic_fetch_add(&x->plan->run->bytes, e->size);
			status = store_small(x, to, i, data, err);
		}
		data += e->size;
		i = piece_file(m, x->plan->needed, i + 1);
	}
	return status;
}

/* ---- blocks of large files ----------------------------------------------------------- */

/* Of all threads' blocks of a file the first one opens it. */
static exchange_file *file_of(exchange *x, stage_walk *to, size_t entry)
{
	const stage_entry *e = &x->plan->m->entries[entry];
	pthread_mutex_lock(&x->files_lock);
	exchange_file *f = x->files;
	while (f && f->entry != entry)
		f = f->next;
	if (!f && (f = calloc(1, sizeof *f))) {
		f->entry = entry;
		if ((f->fd = create(to, e)) < 0) {
			free(f);
			f = NULL;
		} else {
			stage_digest_begin(&f->digest, e->size);
			f->next = x->files;
			x->files = f;
		}
	}
	pthread_mutex_unlock(&x->files_lock);
	return f;
}

/* 1: that was the last block, and the file is the caller's; 0; -1: no memory. */
static int add_block(exchange *x, exchange_file *f, uint64_t number, const unsigned char *sum)
{
	pthread_mutex_lock(&x->files_lock);
	int result = stage_digest_block(&f->digest, number, sum);
	if (!result && stage_digest_complete(&f->digest)) {
		exchange_file **at = &x->files;
		while (*at != f)
			at = &(*at)->next;
		*at = f->next;
		result = 1;
	}
	pthread_mutex_unlock(&x->files_lock);
	return result;
}

static gradcomp_status store_block(exchange *x, stage_walk *to, exchange_buffer *b, bool check, gradcomp_error *err)
{
	const stage_piece *p = &b->piece;
	stage_entry *e = &x->plan->m->entries[p->first];
	const unsigned char *sum = piece_digest(b->message, 0), *data = piece_bytes(b->message, p);
	unsigned char digest[SHA256_BYTES];
	if (check && p->holes)
		hash_holes(x, b, digest);
	else if (check)
		sha256_digest(data, p->bytes, digest);
	if (check && memcmp(digest, sum, sizeof digest))
		return wrong(x, b, p->first, err);
	exchange_file *f = file_of(x, to, p->first);
	if (!f)
		return stage_write_failed(x->plan->run, e->path, err);
	struct out o = {.fd = f->fd, .at = p->at};
	if ((p->holes ? piece_runs(b->message, p, write_run, &o) : write_run(&o, 0, data, p->bytes)) < 0)
		return stage_write_failed(x->plan->run, e->path, err);
	/* The disk begins now, so that fsync() has little left to wait for. */
	if (e->size >= SYNC_BYTES && b->bytes)
		sync_file_range(f->fd, (off_t)p->at, (off_t)p->bytes, SYNC_FILE_RANGE_WRITE);
	atomic_fetch_add(&x->plan->run->bytes, p->bytes);
	int last = add_block(x, f, p->at / STAGE_BLOCK, sum);
	if (last < 0)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for checksums");
	if (!last)
		return GRADCOMP_OK;
	int fd = f->fd;
	stage_digest_end(&f->digest, e->sha256);
	free(f);
	return complete(x, p->first, fd, err);
}

gradcomp_status exchange_store(exchange *x, stage_walk *to, exchange_buffer *b, bool check, gradcomp_error *err)
{
	if (!b->piece.large)
		return store_batch(x, to, b, check, err);
	return piece_bit(x->plan->wanted, b->piece.first) ? store_block(x, to, b, check, err) : GRADCOMP_OK;
}

void exchange_abandon(exchange *x)
{
	for (exchange_file *f; (f = x->files);) {
		unsigned char digest[SHA256_BYTES];
		x->files = f->next;
		close(f->fd);
		stage_digest_end(&f->digest, digest);
		free(f);
	}
}

/* ---- what comes round the ring -------------------------------------------------------- */

void exchange_write(exchange *x)
{
	gradcomp_status status;
	gradcomp_error error;
	stage_walk to;
	stage_walk_begin(&to, x->plan->data);
	pthread_mutex_lock(&x->lock);
	for (;;) {
		while (!x->to_write.n && !x->arrived)
			exchange_sleep(x);
		if (!x->to_write.n)
			break;
		exchange_buffer *b = exchange_pop(&x->to_write);
		pthread_mutex_unlock(&x->lock);
		/* After a failure buffers are only given back, for the ring to come to its end. */
		if (!atomic_load(&x->stopping) && (status = exchange_store(x, &to, b, true, &error)))
			exchange_fail(x, status, &error);
		exchange_release(x, b);
		pthread_mutex_lock(&x->lock);
	}
	pthread_mutex_unlock(&x->lock);
	stage_walk_end(&to);
}
