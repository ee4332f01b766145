/* Reading a file. Several requests are under way at a time; when the caller has said
 * how much he will read, also beyond what he has asked for so far. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/source/nfs/nfs.h"

#define CALLS 8

struct nfs_file {
	struct nfs_handle fh;
	source_stat st, after; /* at the beginning; behind the last byte, when it came along */
	bool after_known;
	uint64_t ahead; /* the caller reads up to here */
	uint32_t first; /* bytes of `begin` */
	char begin[NFS_FIRST];
	char *slots;                  /* NFS_READ_MAX bytes for each of the calls */
	struct nfs_call calls[CALLS]; /* in the order of their offsets, from `head` on */
	unsigned head, n;
};

static struct nfs_call *call_at(struct nfs_file *f, unsigned i)
{
	return &f->calls[(f->head + i) % CALLS];
}

/* Buffers of requests that are dropped but not answered yet are not free. */
static gradcomp_status forget(struct nfs_reader *r, gradcomp_error *err)
{
	struct nfs_file *f = r->file;
	gradcomp_status st = GRADCOMP_OK;
	for (; f->n && !st; f->n--, f->head++) {
		struct nfs_call *call = call_at(f, 0);
		if (call->state == NFS_SENT)
			st = nfs_request(r, call, err);
	}
	return st;
}

/* Without their connection no request is under way. */
void nfs_file_close(struct nfs_reader *r)
{
	bool sent = nfs_prefetch_sent(r);
	for (unsigned i = 0; r->file && i < r->file->n; i++)
		sent |= call_at(r->file, i)->state == NFS_SENT;
	if (sent) {
		nfs_conn_free(r->conn);
		r->conn = NULL;
	}
	nfs_prefetch_free(r);
	if (r->file)
		free(r->file->slots);
	free(r->file);
	r->file = NULL;
}

gradcomp_status nfs_file_open(source_reader *base, const char *path, uint64_t ahead, source_stat *sb,
                              gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_source *s = nfs_source_of(r);
	gradcomp_status st;
	bool known;
	if (r->file && (st = forget(r, err)))
		return st;
	if (!r->file && !(r->file = calloc(1, sizeof *r->file)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	struct nfs_file *f = r->file;
	f->head = f->n = f->first = 0;
	uint32_t along = NFS_FIRST < s->read_max ? NFS_FIRST : s->read_max;
	struct nfs_call call = {.n = ahead < along ? (uint32_t)ahead : along, .buf = f->begin};
	if ((st = nfs_prefetch_take(r, path, &call, f->begin, &known, err)) ||
	    (!known && (st = nfs_find(r, path, &call, err))))
		return st;
	if (!S_ISREG(call.st.mode))
		return nfs_failed(s, ENOENT, "read", path, err);
	if (call.read_error)
		return nfs_reader_failed(r, call.read_error, "read", path, err);
	f->fh = call.found;
	*sb = f->st = call.st;
	f->ahead = ahead < f->st.size ? ahead : f->st.size;
	f->first = call.got;
	/* Only when all of the file came along was it looked at behind its last byte. */
	f->after_known = call.after_known && call.got >= f->st.size;
	f->after = call.after;
	return GRADCOMP_OK;
}

static void send_all(struct nfs_reader *r)
{
	struct nfs_file *f = r->file;
	struct nfs_source *s = nfs_source_of(r);
	unsigned first = f->head % CALLS, straight = f->n < CALLS - first ? f->n : CALLS - first;
	nfs_send(s, r->conn, f->calls + first, straight);
	nfs_send(s, r->conn, f->calls, f->n - straight);
}

/* Requests from `at`, or from where the last one ends, up to `end`, as many as there is
 * room for. */
static void request(struct nfs_reader *r, uint64_t at, uint64_t end)
{
	struct nfs_file *f = r->file;
	uint64_t max = nfs_source_of(r)->read_max;
	uint64_t next = f->n ? call_at(f, f->n - 1)->at + call_at(f, f->n - 1)->n : at;
	while (next < end && f->n < CALLS) {
		struct nfs_call *call = call_at(f, f->n);
		*call = (struct nfs_call){
			.kind = NFS_READ,
			.fh = &f->fh,
			.at = next,
			.n = (uint32_t)(end - next < max ? end - next : max),
			.buf = f->slots + (size_t)(call - f->calls) * NFS_READ_MAX,
		};
		next += call->n;
		f->n++;
	}
	send_all(r);
}

/* Takes from the first request's answer what belongs to [at, at + n), once it is there. 0 bytes: the file ends
 * before. */
static gradcomp_status take_answer(struct nfs_reader *r, char *buf, uint64_t at, uint64_t n, uint64_t *got,
                                   gradcomp_error *err)
{
	struct nfs_file *f = r->file;
	struct nfs_call *call = call_at(f, 0);
	gradcomp_status st = nfs_request(r, call, err);
	if (st)
		return st;
	if (call->error)
		return nfs_reader_failed(r, call->error, "read", r->base.path, err);
	uint64_t skip = at - call->at, have = call->got > skip ? call->got - skip : 0;
	*got = n < have ? n : have;
	memcpy(buf, call->buf + skip, *got);
	f->after_known = call->after_known && call->at == 0 && call->n >= f->st.size;
	f->after = call->after;
	if (skip + *got == call->n) {
		f->head++;
		f->n--;
	}
	return GRADCOMP_OK;
}

gradcomp_status nfs_file_read(source_reader *base, void *buf, uint64_t n, uint64_t at, uint64_t *got,
                              gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_file *f = r->file;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t end = at + n > f->ahead ? at + n : f->ahead, more = 0;
	if ((*got = at < f->first ? f->first - at : 0) > n)
		*got = n;
	memcpy(buf, f->begin + (*got ? at : 0), *got);
	if (!f->slots && *got < n && !(f->slots = malloc((size_t)CALLS * NFS_READ_MAX)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	for (; !st && *got < n; *got += more) {
		uint64_t from = at + *got;
		if (f->n && (from < call_at(f, 0)->at || from >= call_at(f, 0)->at + call_at(f, 0)->n) &&
		    (st = forget(r, err)))
			break;
		request(r, from, end);
		st = take_answer(r, (char *)buf + *got, from, n - *got, &more, err);
		if (!st && !more)
			break;
	}
	/* While the caller is busy with these, the next are on their way. */
	if (!st && at + *got < f->ahead && at + *got >= f->first)
		request(r, at + *got, f->ahead);
	return st;
}

/* NFS before 4.2 does not tell holes. */
void nfs_file_run(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole)
{
	(void)r;
	*data = at < size ? at : size;
	*hole = size;
}

gradcomp_status nfs_file_again(source_reader *base, source_stat *sb, gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_file *f = r->file;
	if (f->after_known) {
		*sb = f->after;
		return GRADCOMP_OK;
	}
	struct nfs_call call = {.kind = NFS_GETATTR, .fh = &f->fh};
	gradcomp_status st = nfs_request(r, &call, err);
	if (st)
		return st;
	*sb = call.st;
	return call.error ? nfs_failed(nfs_source_of(r), call.error, "look at", base->path, err) : GRADCOMP_OK;
}
