/* A thread's position in the tree: the handles of the directories it is in. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/source/nfs/nfs.h"

gradcomp_status nfs_failed(const struct nfs_source *s, int error, const char *what, const char *path,
                           gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	gradcomp_printable(*path ? path : s->base.name, name, sizeof name);
	switch (error) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ESTALE:
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "cannot %s %s on the NFS server %s: %s", what, name,
		                 s->url.server, strerror(error));
	case EACCES:
	case EPERM:
		return error_set(err, GRADCOMP_ERR_IO, "cannot %s %s: the NFS server %s denies it to user %u%s", what,
		                 name, s->url.server, s->url.uid,
		                 s->url.uid == 0 ? "; it may treat root as nobody (root_squash)" : "");
	case EBADMSG:
		return error_set(err, GRADCOMP_ERR_IO, "cannot %s %s: an answer of the NFS server %s makes no sense",
		                 what, name, s->url.server);
	case EPROTONOSUPPORT:
		return error_set(err, GRADCOMP_ERR_IO,
		                 "cannot %s %s: the NFS server %s wants another security than AUTH_SYS", what, name,
		                 s->url.server);
	default:
		return error_set(err, error == ENOMEM ? GRADCOMP_ERR_NOMEM : GRADCOMP_ERR_IO,
		                 "cannot %s %s on the NFS server %s: %s", what, name, s->url.server, strerror(error));
	}
}

gradcomp_status nfs_reader_failed(struct nfs_reader *r, int error, const char *what, const char *path,
                                  gradcomp_error *err)
{
	r->base.denied = error == EACCES || error == EPERM;
	return nfs_failed(nfs_source_of(r), error, what, path, err);
}

gradcomp_status nfs_request(struct nfs_reader *r, struct nfs_call *call, gradcomp_error *err)
{
	return nfs_wait(nfs_source_of(r), r->conn, r->base.wait, true, call, 1, err);
}

/* Goes up until all of where the reader is stands in path[0..length). */
static void leave(struct nfs_reader *r, const char *path, size_t length)
{
	while (r->depth) {
		size_t end = r->levels[r->depth - 1].end;
		if (end <= length && !memcmp(r->at, path, end) && (end == length || path[end] == '/'))
			return;
		r->depth--;
	}
}

static const struct nfs_handle *here(const struct nfs_reader *r)
{
	return r->depth ? &r->levels[r->depth - 1].fh : &nfs_source_of(r)->root;
}

/* Looks up `name` in the directory `fh`; the answer is in *call. */
static gradcomp_status look_up(struct nfs_reader *r, const struct nfs_handle *fh, const char *name, const char *path,
                               struct nfs_call *call, gradcomp_error *err)
{
	call->kind = NFS_LOOKUP;
	call->fh = fh;
	call->name = name;
	gradcomp_status st = nfs_request(r, call, err);
	if (!st && !call->error && !call->known) {
		struct nfs_call more = {.kind = NFS_GETATTR, .fh = &call->found};
		st = nfs_request(r, &more, err);
		call->error = more.error;
		call->st = more.st;
	}
	return st || !call->error ? st : nfs_failed(nfs_source_of(r), call->error, "look at", path, err);
}

static gradcomp_status enter(struct nfs_reader *r, const char *path, size_t begin, size_t end, gradcomp_error *err)
{
	char name[256], shown[4096];
	struct nfs_call call = {0};
	if (end >= sizeof r->at || end - begin >= sizeof name)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "a path is longer than %zu bytes", sizeof r->at - 1);
	if (r->depth == r->capacity) {
		size_t more = r->capacity + 16;
		struct nfs_level *p = reallocarray(r->levels, more, sizeof *p);
		if (!p)
			return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
		r->levels = p;
		r->capacity = more;
	}
	memcpy(name, path + begin, end - begin);
	name[end - begin] = 0;
	memcpy(shown, path, end);
	shown[end] = 0;
	gradcomp_status st = look_up(r, here(r), name, shown, &call, err);
	if (st)
		return st;
	if (!S_ISDIR(call.st.mode))
		return nfs_failed(nfs_source_of(r), ENOTDIR, "enter", shown, err);
	memcpy(r->at, path, end);
	r->levels[r->depth++] = (struct nfs_level){.end = end, .fh = call.found};
	return GRADCOMP_OK;
}

gradcomp_status nfs_dir(struct nfs_reader *r, const char *path, size_t length, const struct nfs_handle **fh,
                        gradcomp_error *err)
{
	leave(r, path, length);
	for (;;) {
		size_t at = r->depth ? r->levels[r->depth - 1].end : 0;
		if (at == length)
			break;
		size_t begin = at ? at + 1 : 0;
		const char *slash = memchr(path + begin, '/', length - begin);
		gradcomp_status st = enter(r, path, begin, slash ? (size_t)(slash - path) : length, err);
		if (st)
			return st;
	}
	*fh = here(r);
	return GRADCOMP_OK;
}

const struct nfs_handle *nfs_parent_known(const struct nfs_reader *r, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t length = slash ? (size_t)(slash - path) : 0;
	if (!length)
		return &nfs_source_of(r)->root;
	for (size_t i = r->depth; i--;)
		if (r->levels[i].end == length)
			return memcmp(r->at, path, length) ? NULL : &r->levels[i].fh;
	return NULL;
}

gradcomp_status nfs_find(struct nfs_reader *r, const char *path, struct nfs_call *call, gradcomp_error *err)
{
	const struct nfs_handle *fh;
	const char *slash = strrchr(path, '/');
	gradcomp_status st = nfs_dir(r, path, slash ? (size_t)(slash - path) : 0, &fh, err);
	if (st)
		return st;
	if (*path)
		return look_up(r, fh, slash ? slash + 1 : path, path, call, err);
	call->kind = NFS_GETATTR;
	call->fh = fh;
	if ((st = nfs_request(r, call, err)))
		return st;
	call->found = *fh;
	return call->error ? nfs_reader_failed(r, call->error, "look at", path, err) : GRADCOMP_OK;
}
