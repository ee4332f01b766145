/* Checking chunks and writing them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/cache/resume_log.h"
#include "base/text.h"
#include "io/transfer/transfer.h"
#include "base/fileio.h"

/* From this size on a file is flushed to the disk while others are copied; one syncfs() at the
 * end flushes the small ones. */
#define SYNC_BYTES (4u << 20)

static int hash_run(void *hash, uint32_t at, const unsigned char *data, uint32_t n)
{
	static const unsigned char zeroes[CHUNK_PAGE];
	(void)at;
	if (data)
		sha256_update(hash, data, n);
	for (; !data && n; n -= n < CHUNK_PAGE ? n : CHUNK_PAGE)
		sha256_update(hash, zeroes, n < CHUNK_PAGE ? n : CHUNK_PAGE);
	return 0;
}

/* SHA-256 of a block with holes: that of one without any data is known. */
static void hash_holes(transfer *x, const transfer_buffer *b, unsigned char digest[SHA256_BYTES])
{
	sha256 hash;
	if (!b->bytes && b->chunk.bytes == STAGE_BLOCK) {
		memcpy(digest, x->zeroes, SHA256_BYTES);
		return;
	}
	sha256_init(&hash);
	chunk_runs(b->message, &b->chunk, hash_run, &hash);
	sha256_final(&hash, digest);
}

static size_t part_bytes(const transfer *x, const stage_chunk *p, size_t entry)
{
	return p->large ? p->bytes : (size_t)x->params->m->entries[entry].size;
}

void transfer_hash(transfer *x, transfer_buffer *b)
{
	const stage_chunk *p = &b->chunk;
	const unsigned char *bytes = chunk_bytes(b->message, p);
	size_t i = p->first;
	chunk_head(b->message, p, 0, UINT64_MAX);
	b->bytes = p->holes ? chunk_pack(b->message, p) : p->bytes;
	if (p->holes)
		hash_holes(x, b, chunk_digest(b->message, 0));
	for (uint32_t part = 0; !p->holes && part < p->parts; part++) {
		size_t n = part_bytes(x, p, i);
		sha256_digest(bytes, n, chunk_digest(b->message, part));
		bytes += n;
		i = chunk_file(x->params->m, x->params->needed, i + 1);
	}
	if (x->params->peers->nnodes > 1)
		chunk_sum(b->message, transfer_rest(b));
}

struct out {
	int fd;
	uint64_t at;
};

static int write_run(void *ctx, uint32_t at, const unsigned char *data, uint32_t n)
{
	const struct out *o = ctx;
	return data ? fileio_write(o->fd, data, n, o->at + at) : 0;
}

static int create(dirwalk *to, const stage_entry *e)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	const char *base;
	int dir = dirwalk_parent(to, e->path, &base);
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

/* The file is whole: its mode and time, and the resume log. */
static gradcomp_status complete(transfer *x, size_t entry, int fd, gradcomp_error *err)
{
	stage_entry *e = &x->params->m->entries[entry];
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, time_of(e->mtime_ns)};
	bool failed = fchmod(fd, e->mode) < 0 || futimens(fd, times) < 0 || (e->size >= SYNC_BYTES && fsync(fd) < 0);
	/* close() too may report a full disk. */
	if (close(fd) < 0 || failed)
		return cache_write_failed(x->params->run, e->path, err);
	e->sealed = true;
	if (resume_log_add(x->resume_log, entry, e) < 0)
		return cache_write_failed(x->params->run, "the journal", err);
	atomic_fetch_add(&x->params->run->files, 1);
	return GRADCOMP_OK;
}

/* The first part whose bytes do not have its digest. */
static size_t damaged_entry(const transfer *x, transfer_buffer *b)
{
	const stage_manifest *m = x->params->m;
	const unsigned char *data = chunk_bytes(b->message, &b->chunk);
	unsigned char digest[SHA256_BYTES];
	size_t i = b->chunk.first;
	for (uint32_t part = 0; !b->chunk.large && part < b->chunk.parts; part++) {
		sha256_digest(data, m->entries[i].size, digest);
		if (memcmp(digest, chunk_digest(b->message, part), sizeof digest))
			return i;
		data += m->entries[i].size;
		i = chunk_file(m, x->params->needed, i + 1);
	}
	return b->chunk.first;
}

/* Names the node that read the chunk and the one that passed it on. */
static gradcomp_status wrong(const transfer *x, const transfer_buffer *b, size_t entry, gradcomp_error *err)
{
	const char *const *hosts = x->params->peers->hosts;
	char name[TEXT_NAME_MAX];
	gradcomp_printable(x->params->m->entries[entry].path, name, sizeof name);
	if (b->from == b->owner)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "%s came damaged from node %d (%s): its checksum is another", name, b->from,
		                 hosts[b->from]);
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "%s of node %d (%s) came damaged from node %d (%s): its checksum is another", name, b->owner,
	                 hosts[b->owner], b->from, hosts[b->from]);
}

static gradcomp_status store_small(transfer *x, dirwalk *to, size_t entry, const unsigned char *data,
                                   gradcomp_error *err)
{
	const stage_entry *e = &x->params->m->entries[entry];
	struct out o = {.fd = create(to, e)};
	static const unsigned char zeroes[CHUNK_PAGE];
	uint32_t size = (uint32_t)e->size, n;
	bool failed = o.fd < 0;
	for (uint32_t at = 0; !failed && at < size; at += n) {
		n = e->stored < e->size && size - at > CHUNK_PAGE ? CHUNK_PAGE : size - at;
		if (e->stored >= e->size || memcmp(data + at, zeroes, n < CHUNK_PAGE ? n : CHUNK_PAGE))
			failed = write_run(&o, at, data + at, n) < 0;
	}
	if (!failed)
		return complete(x, entry, o.fd, err);
	gradcomp_status st = cache_write_failed(x->params->run, e->path, err);
	if (o.fd >= 0)
		close(o.fd);
	return st;
}

static gradcomp_status store_batch(transfer *x, dirwalk *to, transfer_buffer *b, gradcomp_error *err)
{
	const stage_manifest *m = x->params->m;
	const unsigned char *data = chunk_bytes(b->message, &b->chunk);
	gradcomp_status st = GRADCOMP_OK;
	size_t i = b->chunk.first;
	for (uint32_t part = 0; !st && part < b->chunk.parts; part++) {
		stage_entry *e = &m->entries[i];
		const unsigned char *sum = chunk_digest(b->message, part);
		if (atomic_load(&x->stopping))
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (entry_bit(x->params->wanted, i)) {
			memcpy(e->sha256, sum, SHA256_BYTES);
			atomic_fetch_add(&x->params->run->bytes, e->size);
			st = store_small(x, to, i, data, err);
		}
		data += e->size;
		i = chunk_file(m, x->params->needed, i + 1);
	}
	return st;
}

/* Finds the file of a block; the first of all threads' blocks of it opens it. */
static transfer_file *file_of(transfer *x, dirwalk *to, size_t entry)
{
	const stage_entry *e = &x->params->m->entries[entry];
	pthread_mutex_lock(&x->files_lock);
	transfer_file *f = x->files;
	while (f && f->entry != entry)
		f = f->next;
	if (!f && (f = calloc(1, sizeof *f))) {
		f->entry = entry;
		if ((f->fd = create(to, e)) < 0) {
			free(f);
			f = NULL;
		} else {
			block_digest_begin(&f->digest, e->size);
			f->next = x->files;
			x->files = f;
		}
	}
	pthread_mutex_unlock(&x->files_lock);
	return f;
}

/* 1: that was the last block, and the file is the caller's; 0; -1: no memory. */
static int add_block(transfer *x, transfer_file *f, uint64_t number, const unsigned char *sum)
{
	pthread_mutex_lock(&x->files_lock);
	int result = block_digest_block(&f->digest, number, sum);
	if (!result && block_digest_complete(&f->digest)) {
		transfer_file **at = &x->files;
		while (*at != f)
			at = &(*at)->next;
		*at = f->next;
		result = 1;
	}
	pthread_mutex_unlock(&x->files_lock);
	return result;
}

static gradcomp_status store_block(transfer *x, dirwalk *to, transfer_buffer *b, gradcomp_error *err)
{
	const stage_chunk *p = &b->chunk;
	stage_entry *e = &x->params->m->entries[p->first];
	const unsigned char *sum = chunk_digest(b->message, 0), *data = chunk_bytes(b->message, p);
	transfer_file *f = file_of(x, to, p->first);
	if (!f)
		return cache_write_failed(x->params->run, e->path, err);
	struct out o = {.fd = f->fd, .at = p->at};
	if ((p->holes ? chunk_runs(b->message, p, write_run, &o) : write_run(&o, 0, data, p->bytes)) < 0)
		return cache_write_failed(x->params->run, e->path, err);
	/* The disk starts writing now, so that fsync() has little left to wait for. */
	if (e->size >= SYNC_BYTES && b->bytes)
		sync_file_range(f->fd, (off_t)p->at, (off_t)p->bytes, SYNC_FILE_RANGE_WRITE);
	atomic_fetch_add(&x->params->run->bytes, p->bytes);
	int last = add_block(x, f, p->at / STAGE_BLOCK, sum);
	if (last < 0)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for checksums");
	if (!last)
		return GRADCOMP_OK;
	int fd = f->fd;
	block_digest_end(&f->digest, e->sha256);
	free(f);
	return complete(x, p->first, fd, err);
}

gradcomp_status transfer_store(transfer *x, dirwalk *to, transfer_buffer *b, bool check, gradcomp_error *err)
{
	if (check && !chunk_sum_check(b->message, transfer_rest(b)))
		return wrong(x, b, damaged_entry(x, b), err);
	if (!b->chunk.large)
		return store_batch(x, to, b, err);
	return entry_bit(x->params->wanted, b->chunk.first) ? store_block(x, to, b, err) : GRADCOMP_OK;
}

void transfer_close_files(transfer *x)
{
	for (transfer_file *f; (f = x->files);) {
		unsigned char digest[SHA256_BYTES];
		x->files = f->next;
		close(f->fd);
		block_digest_end(&f->digest, digest);
		free(f);
	}
}

/* The functions below write what comes from other nodes. */

void transfer_writer(transfer *x)
{
	gradcomp_status st;
	gradcomp_error error;
	dirwalk to;
	dirwalk_begin(&to, x->params->data);
	pthread_mutex_lock(&x->lock);
	for (;;) {
		while (!x->to_write.n && !x->arrived)
			transfer_wait(x);
		if (!x->to_write.n)
			break;
		transfer_buffer *b = transfer_pop(&x->to_write);
		pthread_mutex_unlock(&x->lock);
		/* After a failure buffers are only released, so that the others can finish. */
		if (!atomic_load(&x->stopping) && (st = transfer_store(x, &to, b, true, &error)))
			transfer_fail(x, st, &error);
		transfer_release(x, b);
		pthread_mutex_lock(&x->lock);
	}
	pthread_mutex_unlock(&x->lock);
	dirwalk_end(&to);
}
