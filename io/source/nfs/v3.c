/* NFSv3 and its mount service. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <nfsc/libnfs-zdr.h>

#include <nfsc/libnfs.h>

#include <nfsc/libnfs-raw.h>

#include <nfsc/libnfs-raw-mount.h>

#include <nfsc/libnfs-raw-nfs.h>

#include "io/source/nfs/nfs.h"

static int errno_of(nfsstat3 status)
{
	int e = status == NFS3_OK ? 0 : nfsstat3_to_errno((int)status);
	return e < 0 ? -e : status == NFS3_OK ? 0 : e ? e : EIO;
}

static bool take_fattr(const fattr3 *f, source_stat *st)
{
	static const uint32_t bits[] = {0, S_IFREG, S_IFDIR, S_IFBLK, S_IFCHR, S_IFLNK, S_IFSOCK, S_IFIFO};
	if ((unsigned)f->type >= sizeof bits / sizeof *bits || f->size > INT64_MAX)
		return false;
	*st = (source_stat){
		.mode = bits[f->type] | (f->mode & 07777),
		.nlink = f->nlink,
		.dev = f->fsid,
		.ino = f->fileid,
		.size = f->size,
		.stored = f->used,
		.mtime_ns = source_time_ns(f->mtime.seconds, f->mtime.nseconds % 1000000000),
	};
	return true;
}

static bool take_post(const post_op_attr *a, source_stat *st)
{
	return a->attributes_follow && take_fattr(&a->post_op_attr_u.attributes, st);
}

static bool take_handle(const char *data, u_int n, struct nfs_handle *out)
{
	if (!n || n > 64)
		return false;
	out->n = n;
	memcpy(out->data, data, n);
	return true;
}

static void settle(struct nfs_call *call, nfsstat3 status, bool sense)
{
	nfs_settle(call, status != NFS3_OK ? errno_of(status) : sense ? 0 : EBADMSG, status == NFS3ERR_JUKEBOX);
}

static void answer_lookup(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const LOOKUP3res *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	const LOOKUP3resok *ok = &r->LOOKUP3res_u.resok;
	bool good =
		r->status == NFS3_OK && take_handle(ok->object.data.data_val, ok->object.data.data_len, &call->found);
	call->known = good && take_post(&ok->obj_attributes, &call->st);
	settle(call, r->status, good);
}

static void answer_getattr(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const GETATTR3res *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	call->known = r->status == NFS3_OK && take_fattr(&r->GETATTR3res_u.resok.obj_attributes, &call->st);
	settle(call, r->status, call->known);
}

static void answer_readlink(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const READLINK3res *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	const char *target = r->status == NFS3_OK ? r->READLINK3res_u.resok.data : NULL;
	bool good = target && *target && strlen(target) < 4096;
	if (good)
		strcpy(call->buf, target);
	settle(call, r->status, good);
}

static void answer_readdir(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const READDIRPLUS3res *r = data;
	int error = 0;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	if (r->status != NFS3_OK) {
		settle(call, r->status, false);
		return;
	}
	const READDIRPLUS3resok *ok = &r->READDIRPLUS3res_u.resok;
	memcpy(call->verifier, ok->cookieverf, sizeof call->verifier);
	entryplus3 e;
	for (const entryplus3 *next = ok->reply.entries; next && !error; next = e.nextentry) {
		source_stat st;
		/* libnfs decodes to unaligned addresses. */
		memcpy(&e, (const void *)next, sizeof e);
		bool known = take_post(&e.name_attributes, &st);
		if (!e.name)
			error = EBADMSG;
		else
			error = nfs_page_add(call->page, e.name, strlen(e.name), e.cookie, known ? &st : NULL);
	}
	call->page->eof = ok->reply.eof != 0;
	nfs_settle(call, error, false);
}

static void answer_read(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const READ3res *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	const READ3resok *ok = &r->READ3res_u.resok;
	bool good = r->status == NFS3_OK && ok->data.data_len <= call->n - call->got;
	if (good) {
		if (call->buf && ok->data.data_len)
			memcpy(call->buf + call->got, ok->data.data_val, ok->data.data_len);
		call->got += ok->data.data_len;
		call->eof = ok->eof != 0;
		call->after_known = take_post(&ok->file_attributes, &call->after);
		good = call->eof || ok->data.data_len > 0;
	}
	settle(call, r->status, good);
	if (good && call->got < call->n && !call->eof)
		call->state = NFS_NEW; /* the rest */
}

static void answer_fsinfo(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const FSINFO3res *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	call->read_max = r->status == NFS3_OK ? r->FSINFO3res_u.resok.rtmax : 0;
	settle(call, r->status, true);
}

static void answer_mount(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_call *call = arg;
	const mountres3 *r = data;
	(void)rpc;
	if (!nfs_answered(call, status))
		return;
	if (r->fhs_status != MNT3_OK) {
		int e = mountstat3_to_errno((int)r->fhs_status);
		nfs_settle(call, e < 0 ? -e : e ? e : EIO, false);
		return;
	}
	const fhandle3 *fh = &r->mountres3_u.mountinfo.fhandle;
	nfs_settle(call, take_handle(fh->fhandle3_val, fh->fhandle3_len, &call->found) ? 0 : EBADMSG, false);
}

static int send_readdir(struct rpc_context *rpc, struct nfs_call *call, nfs_fh3 fh)
{
	READDIRPLUS3args a = {.dir = fh, .cookie = call->at, .dircount = NFS_LIST_MAX, .maxcount = NFS_LIST_MAX};
	memcpy(a.cookieverf, call->verifier, sizeof a.cookieverf);
	call->page->n = call->page->used = 0;
	return rpc_nfs3_readdirplus_async(rpc, answer_readdir, &a, call);
}

int nfs_v3_send(struct rpc_context *rpc, struct nfs_call *call)
{
	nfs_fh3 fh = {{0, NULL}};
	if (call->fh) {
		fh.data.data_len = call->fh->n;
		fh.data.data_val = (char *)call->fh->data;
	}
	switch (call->kind) {
	case NFS_LOOKUP:;
		LOOKUP3args lookup = {.what = {.dir = fh, .name = (char *)call->name}};
		call->got = 0;
		return rpc_nfs3_lookup_async(rpc, answer_lookup, &lookup, call);
	case NFS_GETATTR:;
		GETATTR3args getattr = {.object = fh};
		return rpc_nfs3_getattr_async(rpc, answer_getattr, &getattr, call);
	case NFS_READLINK:;
		READLINK3args link = {.symlink = fh};
		return rpc_nfs3_readlink_async(rpc, answer_readlink, &link, call);
	case NFS_READDIR:
		return send_readdir(rpc, call, fh);
	case NFS_READ:;
		READ3args read = {.file = fh, .offset = call->at + call->got, .count = call->n - call->got};
		return rpc_nfs3_read_async(rpc, answer_read, &read, call);
	case NFS_LIMITS:;
		FSINFO3args info = {.fsroot = fh};
		return rpc_nfs3_fsinfo_async(rpc, answer_fsinfo, &info, call);
	default:
		return rpc_mount3_mnt_async(rpc, answer_mount, (char *)call->name, call);
	}
}
