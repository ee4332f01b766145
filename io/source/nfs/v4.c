/* NFSv4.0: each request is a compound of a handle and what is done with it. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <nfsc/libnfs-zdr.h>

#include <nfsc/libnfs.h>

#include <nfsc/libnfs-raw.h>

#include <nfsc/libnfs-raw-nfs4.h>

#include "io/source/nfs/nfs.h"

#define FIRST_WORD (1u << FATTR4_TYPE | 1u << FATTR4_SIZE | 1u << FATTR4_FSID | 1u << FATTR4_FILEID)
#define SECOND_WORD \
	(1u << (FATTR4_MODE - 32) | 1u << (FATTR4_NUMLINKS - 32) | 1u << (FATTR4_SPACE_USED - 32) | \
	 1u << (FATTR4_TIME_MODIFY - 32))

/* Requested attributes of a file; of an entry of a directory (with RDATTR_ERROR, so that one that
 * cannot be read does not fail the others); of the server. libnfs does not write to them. */
static uint32_t wanted[2] = {FIRST_WORD, SECOND_WORD};
static uint32_t wanted_of_entries[2] = {FIRST_WORD | 1u << FATTR4_RDATTR_ERROR, SECOND_WORD};
static uint32_t wanted_limits[1] = {1u << FATTR4_MAXREAD};

static int errno_of(nfsstat4 status)
{
	switch (status) {
	case NFS4_OK:
		return 0;
	case NFS4ERR_SYMLINK:
		return ELOOP;
	case NFS4ERR_WRONGSEC:
		return EPROTONOSUPPORT;
	case NFS4ERR_FHEXPIRED:
		return ESTALE;
	case NFS4ERR_MINOR_VERS_MISMATCH:
		return EPROTO;
	default:;
		int e = nfsstat4_to_errno((int)status);
		return e < 0 ? -e : e ? e : EIO;
	}
}

static bool is_busy(nfsstat4 status)
{
	return status == NFS4ERR_DELAY || status == NFS4ERR_GRACE;
}

struct attributes {
	const unsigned char *s;
	size_t left;
	bool good;
};

static uint64_t take(struct attributes *a, size_t bytes)
{
	uint64_t value = 0;
	if (a->left < bytes) {
		a->good = false;
		return 0;
	}
	for (size_t i = 0; i < bytes; i++)
		value = value << 8 | a->s[i];
	a->s += bytes;
	a->left -= bytes;
	return value;
}

/* libnfs decodes to unaligned addresses: copied before use. */
static uint32_t mask_word(const fattr4 *f, unsigned i)
{
	uint32_t word = 0;
	if (i < f->attrmask.bitmap4_len)
		memcpy(&word, (const char *)f->attrmask.bitmap4_val + i * sizeof word, sizeof word);
	return word;
}

static bool has(const fattr4 *f, unsigned attribute)
{
	return mask_word(f, attribute / 32) >> attribute % 32 & 1;
}

static uint32_t type_bits(uint64_t type)
{
	static const uint32_t bits[] = {0, S_IFREG, S_IFDIR, S_IFBLK, S_IFCHR, S_IFLNK, S_IFSOCK, S_IFIFO};
	return type < sizeof bits / sizeof *bits ? bits[type] : 0;
}

/* Attributes stand in the order of their numbers; *read_max may be NULL. */
static bool take_attributes(const fattr4 *f, source_stat *st, uint64_t *read_max)
{
	struct attributes a = {(const unsigned char *)f->attr_vals.attrlist4_val, f->attr_vals.attrlist4_len, true};
	bool error = false;
	for (unsigned i = 0; i < f->attrmask.bitmap4_len; i++) {
		uint32_t known =
			(i < 2 ? wanted[i] : 0) | (i == 0 ? 1u << FATTR4_RDATTR_ERROR | 1u << FATTR4_MAXREAD : 0);
		if (mask_word(f, i) & ~known)
			return false; /* its length is not known either */
	}
	*st = (source_stat){.nlink = 1, .mode = 0444};
	if (has(f, FATTR4_TYPE))
		st->mode |= type_bits(take(&a, 4));
	if (has(f, FATTR4_SIZE))
		st->size = take(&a, 8);
	if (has(f, FATTR4_FSID)) {
		uint64_t major = take(&a, 8);
		st->dev = major * 0x9e3779b97f4a7c15u ^ take(&a, 8);
	}
	if (has(f, FATTR4_RDATTR_ERROR))
		error = take(&a, 4) != 0;
	if (has(f, FATTR4_FILEID))
		st->ino = take(&a, 8);
	if (has(f, FATTR4_MAXREAD)) {
		uint64_t max = take(&a, 8);
		if (read_max)
			*read_max = max;
	}
	if (has(f, FATTR4_MODE))
		st->mode = (st->mode & S_IFMT) | (take(&a, 4) & 07777);
	if (has(f, FATTR4_NUMLINKS))
		st->nlink = (uint32_t)take(&a, 4);
	st->stored = has(f, FATTR4_SPACE_USED) ? take(&a, 8) : st->size;
	if (has(f, FATTR4_TIME_MODIFY)) {
		int64_t seconds = (int64_t)take(&a, 8);
		st->mtime_ns = source_time_ns(seconds, (int64_t)(take(&a, 4) % 1000000000));
	}
	if (error || !a.good || a.left || st->size > INT64_MAX)
		return false;
	/* Without a number of its own a file cannot be told to be another's second name. */
	if (!has(f, FATTR4_FILEID))
		st->nlink = 1;
	return read_max || (has(f, FATTR4_TYPE) && has(f, FATTR4_SIZE) && has(f, FATTR4_TIME_MODIFY));
}

struct compound {
	nfs_argop4 ops[NFS_OPS_MAX];
	u_int n;
};

static nfs_argop4 *op(struct compound *c, nfs_opnum4 number)
{
	nfs_argop4 *o = &c->ops[c->n++];
	memset(o, 0, sizeof *o);
	o->argop = number;
	return o;
}

static void op_getattr(struct compound *c, uint32_t *bits, u_int n)
{
	bitmap4 *b = &op(c, OP_GETATTR)->nfs_argop4_u.opgetattr.attr_request;
	b->bitmap4_val = bits;
	b->bitmap4_len = n;
}

/* Reads with the anonymous state id, all zeroes: without an open. */
static void op_read(struct compound *c, uint64_t at, uint32_t n)
{
	READ4args *a = &op(c, OP_READ)->nfs_argop4_u.opread;
	a->offset = at;
	a->count = n;
}

static void op_readdir(struct compound *c, struct nfs_call *call)
{
	READDIR4args *a = &op(c, OP_READDIR)->nfs_argop4_u.opreaddir;
	call->page->n = call->page->used = 0;
	a->cookie = call->at;
	memcpy(a->cookieverf, call->verifier, sizeof a->cookieverf);
	a->dircount = a->maxcount = NFS_LIST_MAX;
	a->attr_request.bitmap4_val = wanted_of_entries;
	a->attr_request.bitmap4_len = 2;
}

static void answer(struct rpc_context *rpc, int status, void *data, void *arg);

int nfs_v4_send(struct rpc_context *rpc, struct nfs_call *call)
{
	struct compound c = {.n = 0};
	if (call->fh->n) {
		nfs_fh4 *fh = &op(&c, OP_PUTFH)->nfs_argop4_u.opputfh.object;
		fh->nfs_fh4_len = call->fh->n;
		fh->nfs_fh4_val = (char *)call->fh->data;
	} else {
		op(&c, OP_PUTROOTFH);
	}
	switch (call->kind) {
	case NFS_LOOKUP:;
		component4 *name = &op(&c, OP_LOOKUP)->nfs_argop4_u.oplookup.objname;
		name->utf8string_len = (u_int)strlen(call->name);
		name->utf8string_val = (char *)call->name;
		call->got = 0;
		op(&c, OP_GETFH);
		op_getattr(&c, wanted, 2);
		if (call->n) {
			op_read(&c, 0, call->n);
			op_getattr(&c, wanted, 2);
		}
		break;
	case NFS_GETATTR:
		op_getattr(&c, wanted, 2);
		break;
	case NFS_LIMITS:
		op_getattr(&c, wanted_limits, 1);
		break;
	case NFS_READLINK:
		op(&c, OP_READLINK);
		break;
	case NFS_READDIR:
		op_readdir(&c, call);
		break;
	case NFS_READ:
		op_read(&c, call->at + call->got, call->n - call->got);
		break;
	default:
		call->error = EINVAL;
		return -1;
	}
	call->nops = c.n;
	for (u_int i = 0; i < c.n; i++)
		call->ops[i] = c.ops[i].argop;
	COMPOUND4args args = {.argarray = {.argarray_len = c.n, .argarray_val = c.ops}};
	return rpc_nfs4_compound_async(rpc, answer, &args, call);
}

static bool take_handle(const GETFH4res *r, struct nfs_handle *out)
{
	const nfs_fh4 *fh = &r->GETFH4res_u.resok4.object;
	if (!fh->nfs_fh4_len || fh->nfs_fh4_len > NFS_HANDLE_MAX)
		return false;
	out->n = fh->nfs_fh4_len;
	memcpy(out->data, fh->nfs_fh4_val, out->n);
	return true;
}

static bool take_read(const READ4res *r, struct nfs_call *call)
{
	const READ4resok *ok = &r->READ4res_u.resok4;
	if (ok->data.data_len > call->n - call->got)
		return false;
	if (call->buf && ok->data.data_len)
		memcpy(call->buf + call->got, ok->data.data_val, ok->data.data_len);
	call->got += ok->data.data_len;
	call->eof = ok->eof != 0;
	return call->eof || ok->data.data_len > 0;
}

static bool take_link(const READLINK4res *r, struct nfs_call *call)
{
	const linktext4 *t = &r->READLINK4res_u.resok4.link;
	if (!t->utf8string_len || t->utf8string_len >= 4096 || memchr(t->utf8string_val, 0, t->utf8string_len))
		return false;
	memcpy(call->buf, t->utf8string_val, t->utf8string_len);
	call->buf[t->utf8string_len] = 0;
	return true;
}

static int take_entries(const READDIR4res *r, struct nfs_call *call)
{
	const READDIR4resok *ok = &r->READDIR4res_u.resok4;
	memcpy(call->verifier, ok->cookieverf, sizeof call->verifier);
	entry4 e;
	for (const entry4 *next = ok->reply.entries; next; next = e.nextentry) {
		source_stat st;
		memcpy(&e, (const void *)next, sizeof e);
		bool known = take_attributes(&e.attrs, &st, NULL);
		int error = nfs_page_add(call->page, e.name.utf8string_val, e.name.utf8string_len, e.cookie,
		                         known ? &st : NULL);
		if (error)
			return error;
	}
	call->page->eof = ok->reply.eof != 0;
	return 0;
}

static nfs_resop4 result(const COMPOUND4res *res, u_int i)
{
	nfs_resop4 r;
	memcpy(&r, (const char *)res->resarray.resarray_val + i * sizeof r, sizeof r);
	return r;
}

/* Returns true when the results are of what was asked, in order: all of it when the compound went well, else up to
 * the one that failed. What a result holds is by its own word, and there is none where it failed. */
static bool results_fit(const COMPOUND4res *res, const struct nfs_call *call)
{
	u_int n = res->resarray.resarray_len;
	if (n > call->nops || (res->status == NFS4_OK && n < call->nops))
		return false;
	for (u_int i = 0; i < n; i++) {
		nfs_resop4 r = result(res, i);
		/* Each result begins with its status. */
		if (r.resop != call->ops[i] || r.nfs_resop4_u.opgetattr.status != (i + 1 < n ? NFS4_OK : res->status))
			return false;
	}
	return true;
}

/* Takes one result of a compound; errno. */
static int take_result(const nfs_resop4 *r, struct nfs_call *call)
{
	uint64_t max = 0;
	source_stat none;
	switch (r->resop) {
	case OP_GETFH:
		return take_handle(&r->nfs_resop4_u.opgetfh, &call->found) ? 0 : EBADMSG;
	case OP_GETATTR:;
		const fattr4 *f = &r->nfs_resop4_u.opgetattr.GETATTR4res_u.resok4.obj_attributes;
		if (call->kind == NFS_LIMITS) {
			if (!take_attributes(f, &none, &max))
				return EBADMSG;
			call->read_max = max < UINT32_MAX ? (uint32_t)max : UINT32_MAX;
			return 0;
		}
		if (!call->known)
			return (call->known = take_attributes(f, &call->st, NULL)) ? 0 : EBADMSG;
		call->after_known = take_attributes(f, &call->after, NULL);
		return 0;
	case OP_READ:
		return take_read(&r->nfs_resop4_u.opread, call) ? 0 : EBADMSG;
	case OP_READLINK:
		return take_link(&r->nfs_resop4_u.opreadlink, call) ? 0 : EBADMSG;
	case OP_READDIR:
		return take_entries(&r->nfs_resop4_u.opreaddir, call);
	default:
		return 0;
	}
}

static void answer(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const COMPOUND4res *res = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	if (!results_fit(res, call)) {
		nfs_settle(call, EBADMSG, false);
		return;
	}
	u_int good = res->resarray.resarray_len;
	nfsstat4 failure = res->status;
	if (failure != NFS4_OK && good)
		good--; /* the last one is what failed */
	call->known = call->after_known = false;
	int error = 0;
	for (u_int i = 0; i < good && !error; i++) {
		nfs_resop4 r = result(res, i);
		error = take_result(&r, call);
	}
	if (!error && failure != NFS4_OK && call->kind == NFS_LOOKUP && call->known) {
		/* The lookup succeeded even if the read did not. */
		call->read_error = errno_of(failure);
	} else if (!error) {
		error = errno_of(failure);
	}
	if (!error && call->kind == NFS_LOOKUP && !call->known)
		error = EBADMSG;
	nfs_settle(call, error, is_busy(failure));
	if (call->kind == NFS_READ && !error && call->got < call->n && !call->eof)
		call->state = NFS_NEW; /* the rest */
}
