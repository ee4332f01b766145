/* Opening a source: the server's addresses, the directory or file that the URL means. */
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/source/nfs/nfs.h"

#define ADDRESSES_MAX 8

static gradcomp_status resolve(struct nfs_source *s, gradcomp_error *err)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int rc = getaddrinfo(s->url.server, NULL, &hints, &found);
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "the NFS server %s is not known: %s", s->url.server,
		                 rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	if (!(s->addresses = calloc(ADDRESSES_MAX, sizeof *s->addresses))) {
		freeaddrinfo(found);
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	}
	for (struct addrinfo *a = found; a && s->naddresses < ADDRESSES_MAX; a = a->ai_next)
		if (!getnameinfo(a->ai_addr, a->ai_addrlen, s->addresses[s->naddresses], sizeof *s->addresses, NULL, 0,
		                 NI_NUMERICHOST))
			s->naddresses++;
	freeaddrinfo(found);
	return s->naddresses ? GRADCOMP_OK
	                     : error_set(err, GRADCOMP_ERR_NOTFOUND, "the NFS server %s has no address", s->url.server);
}

/* NFSv3: the handle of an exported directory is asked of the mount service. errno in
 * *error when the server does not give it. */
static gradcomp_status mount_path(struct nfs_source *s, source_wait wait, const char *path, int *error,
                                  gradcomp_error *err)
{
	struct nfs_call call = {.kind = NFS_MOUNT, .name = path};
	struct nfs_conn *c = nfs_conn_new();
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	c->mounting = 1;
	gradcomp_status st = nfs_wait(s, c, wait, false, &call, 1, err);
	nfs_conn_free(c);
	*error = call.error;
	s->root = call.found;
	return st;
}

static gradcomp_status refused(const struct nfs_source *s, int error, gradcomp_error *err)
{
	if (error == EACCES || error == EPERM)
		return error_set(err, GRADCOMP_ERR_IO, "the NFS server %s does not export %s to this node",
		                 s->url.server, s->base.name);
	return error_set(err, error == ENOENT || error == ENOTDIR ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO,
	                 "the NFS server %s does not give %s: %s", s->url.server, s->base.name, strerror(error));
}

/* The source is the last name of the path in the directory before it. */
static gradcomp_status be_file(struct nfs_source *s, const char *name, gradcomp_error *err)
{
	s->base.only = strdup(name);
	return s->base.only ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
}

static gradcomp_status neither(const struct nfs_source *s, const char *name, bool link, gradcomp_error *err)
{
	char text[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 link ? "%s in %s is a symbolic link, which is not followed; name what it points to"
	                      : "%s in %s is neither a directory nor a file; only these can be staged",
	                 gradcomp_printable(name, text, sizeof text), s->base.name);
}

static gradcomp_status limits(struct nfs_source *s, struct nfs_conn *c, source_wait wait, gradcomp_error *err)
{
	struct nfs_call call = {.kind = NFS_LIMITS, .fh = &s->root};
	gradcomp_status st = nfs_wait(s, c, wait, false, &call, 1, err);
	if (st)
		return st;
	s->read_max = call.error || call.read_max < 4096 ? 4096 : call.read_max;
	if (s->read_max > NFS_READ_MAX)
		s->read_max = NFS_READ_MAX;
	return GRADCOMP_OK;
}

/* Goes from s->root down the names of `path`. The last one may be a file: the root is then the directory that has
 * it. */
static gradcomp_status descend(struct nfs_source *s, struct nfs_conn *c, source_wait wait, char *path,
                               gradcomp_error *err)
{
	char *rest = NULL;
	for (char *name = strtok_r(path, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
		struct nfs_call call = {.kind = NFS_LOOKUP, .fh = &s->root, .name = name};
		gradcomp_status st = nfs_wait(s, c, wait, false, &call, 1, err);
		if (!st && !call.error && !call.known) {
			struct nfs_call more = {.kind = NFS_GETATTR, .fh = &call.found};
			st = nfs_wait(s, c, wait, false, &more, 1, err);
			call.error = more.error;
			call.st = more.st;
		}
		if (st)
			return st;
		if (call.error)
			return refused(s, call.error, err);
		if (S_ISREG(call.st.mode) && (!rest || !*rest))
			return be_file(s, name, err);
		if (!S_ISDIR(call.st.mode))
			return S_ISREG(call.st.mode) ? refused(s, ENOTDIR, err)
			                             : neither(s, name, S_ISLNK(call.st.mode), err);
		s->root = call.found;
	}
	return GRADCOMP_OK;
}

/* The path itself may be exported, or lie in what is; a file is looked up in the
 * directory that has it. */
static gradcomp_status mount_root(struct nfs_source *s, struct nfs_conn *c, source_wait wait, gradcomp_error *err)
{
	char path[sizeof s->url.path];
	struct nfs_call call = {.kind = NFS_GETATTR, .fh = &s->root};
	int error, other;
	strcpy(path, s->url.path);
	gradcomp_status st = mount_path(s, wait, path, &error, err);
	if (st)
		return st;
	if (!error && !(st = nfs_wait(s, c, wait, false, &call, 1, err)) && !call.error && S_ISDIR(call.st.mode))
		return GRADCOMP_OK;
	char *slash = strrchr(path, '/');
	if (st || !slash[1])
		return st ? st : refused(s, error ? error : call.error, err);
	*slash = 0;
	if ((st = mount_path(s, wait, *path ? path : "/", &other, err)))
		return st;
	return other ? refused(s, error ? error : call.error, err) : descend(s, c, wait, slash + 1, err);
}

static gradcomp_status find_root(struct nfs_source *s, source_wait wait, gradcomp_error *err)
{
	char path[sizeof s->url.path];
	struct nfs_conn *c = nfs_conn_new();
	if (!c)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	gradcomp_status st;
	strcpy(path, s->url.path);
	if (s->url.version == 3)
		st = mount_root(s, c, wait, err);
	else
		st = descend(s, c, wait, path, err);
	if (!st)
		st = limits(s, c, wait, err);
	if (st)
		nfs_conn_free(c);
	else
		s->idle = c;
	return st;
}

static gradcomp_status nfs_open_source(const source_url *url, double timeout, source_wait wait, source **out,
                                       gradcomp_error *err)
{
	if (!nfs_guarded())
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"this program has loaded libnfs before gradcomp did, so what the server %s sends could "
			"not be checked; run gradcomp stage, or stage before libnfs is loaded",
			url->server);
	struct nfs_source *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	s->base.ops = &nfs_ops;
	s->url = *url;
	s->send = url->version == 3 ? nfs_v3_send : nfs_v4_send;
	s->timeout = timeout;
	pthread_mutex_init(&s->lock, NULL);
	gradcomp_status st = GRADCOMP_OK;
	if (!(s->base.name = strdup(url->name)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	if (!st && !(st = resolve(s, err)) && !(st = find_root(s, wait, err))) {
		*out = &s->base;
		return GRADCOMP_OK;
	}
	free(s->base.name);
	free(s->base.only);
	nfs_ops.close(&s->base);
	return st;
}

GRADCOMP_EXPORT const source_nfs_module gradcomp_source_nfs = {
	.version = SOURCE_NFS_VERSION,
	.struct_size = sizeof(source_nfs_module),
	.ops_size = sizeof(source_ops),
	.open = nfs_open_source,
};
