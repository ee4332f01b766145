/* A thread's position in the tree: the handles of the directories it is in. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/source/nfs/nfs.h"

static struct nfs_source *source_of(const struct nfs_reader *r)
{
	return (struct nfs_source *)r->base.from;
}

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
	return nfs_failed(source_of(r), error, what, path, err);
}

gradcomp_status nfs_request(struct nfs_reader *r, struct nfs_call *call, gradcomp_error *err)
{
	return nfs_wait(source_of(r), r->conn, r->base.wait, true, call, 1, err);
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
	return r->depth ? &r->levels[r->depth - 1].fh : &source_of(r)->root;
}

/* Looks up `name` in the directory `fh`; the answer is in *call. */
static gradcomp_status look_up(struct nfs_reader *r, const struct nfs_handle *fh, const char *name, const char *path,
                               struct nfs_call *call, gradcomp_error *err)
{
	call->kind = NFS_LOOKUP;
	call->fh = fh;
	call->name = name;
	gradcomp_status status = nfs_request(r, call, err);
	if (!status && !call->error && !call->known) {
		struct nfs_call more = {.kind = NFS_GETATTR, .fh = &call->found};
		status = nfs_request(r, &more, err);
		call->error = more.error;
		call->st = more.st;
	}
	return status || !call->error ? status : nfs_failed(source_of(r), call->error, "look at", path, err);
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
	gradcomp_status status = look_up(r, here(r), name, shown, &call, err);
	if (status)
		return status;
	if (!S_ISDIR(call.st.mode))
		return nfs_failed(source_of(r), ENOTDIR, "enter", shown, err);
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
		gradcomp_status status = enter(r, path, begin, slash ? (size_t)(slash - path) : length, err);
		if (status)
			return status;
	}
	*fh = here(r);
	return GRADCOMP_OK;
}

const struct nfs_handle *nfs_parent_known(const struct nfs_reader *r, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t length = slash ? (size_t)(slash - path) : 0;
	if (!length)
		return &source_of(r)->root;
	for (size_t i = r->depth; i--;)
		if (r->levels[i].end == length)
			return memcmp(r->at, path, length) ? NULL : &r->levels[i].fh;
	return NULL;
}

gradcomp_status nfs_find(struct nfs_reader *r, const char *path, struct nfs_call *call, gradcomp_error *err)
{
	const struct nfs_handle *fh;
	const char *slash = strrchr(path, '/');
	gradcomp_status status = nfs_dir(r, path, slash ? (size_t)(slash - path) : 0, &fh, err);
	if (status)
		return status;
	if (*path)
		return look_up(r, fh, slash ? slash + 1 : path, path, call, err);
	call->kind = NFS_GETATTR;
	call->fh = fh;
	if ((status = nfs_request(r, call, err)))
		return status;
	call->found = *fh;
	return call->error ? nfs_reader_failed(r, call->error, "look at", path, err) : GRADCOMP_OK;
}

static gradcomp_status nfs_reader_open(source *base, source_wait wait, source_reader **out, gradcomp_error *err)
{
	struct nfs_source *s = (struct nfs_source *)base;
	struct nfs_reader *r = calloc(1, sizeof *r);
	if (!r)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	r->base = (source_reader){.from = base, .wait = wait};
	pthread_mutex_lock(&s->lock);
	if ((r->conn = s->idle))
		s->idle = r->conn->next;
	pthread_mutex_unlock(&s->lock);
	if (!r->conn && !(r->conn = nfs_conn_new())) {
		free(r);
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	}
	*out = &r->base;
	return GRADCOMP_OK;
}

static void nfs_reader_close(source_reader *base)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_source *s = source_of(r);
	nfs_file_close(r);
	if (r->conn) {
		pthread_mutex_lock(&s->lock);
		r->conn->next = s->idle;
		s->idle = r->conn;
		pthread_mutex_unlock(&s->lock);
	}
	free(r->levels);
	free(r);
}

static void nfs_source_close(source *base)
{
	struct nfs_source *s = (struct nfs_source *)base;
	while (s->idle) {
		struct nfs_conn *c = s->idle;
		s->idle = c->next;
		nfs_conn_free(c);
	}
	pthread_mutex_destroy(&s->lock);
	free(s->addresses);
	free(s);
}

static gradcomp_status nfs_reader_lookup(source_reader *base, const char *path, source_stat *st, gradcomp_error *err)
{
	struct nfs_call call = {0};
	gradcomp_status status = nfs_find((struct nfs_reader *)base, path, &call, err);
	*st = call.st;
	return status;
}

static gradcomp_status nfs_reader_readlink(source_reader *base, const char *path, char target[4096],
                                           gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_call call = {0}, link = {.kind = NFS_READLINK, .fh = &call.found, .buf = target};
	gradcomp_status status = nfs_find(r, path, &call, err);
	if (status || (status = nfs_request(r, &link, err)))
		return status;
	return link.error ? nfs_failed(source_of(r), link.error, "read the symbolic link", path, err) : GRADCOMP_OK;
}

const source_ops nfs_ops = {
	.close = nfs_source_close,
	.reader_open = nfs_reader_open,
	.reader_close = nfs_reader_close,
	.list = nfs_reader_list,
	.lookup = nfs_reader_lookup,
	.readlink = nfs_reader_readlink,
	.file = nfs_file_open,
	.prefetch = nfs_prefetch,
	.read = nfs_file_read,
	.run = nfs_file_run,
	.again = nfs_file_again,
};
