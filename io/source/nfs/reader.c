/* Readers: what a source of files over NFS can do. */
#include <stdlib.h>
#include <string.h>

#include "io/source/nfs/nfs.h"

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
	struct nfs_source *s = nfs_source_of(r);
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

static gradcomp_status nfs_reader_lookup(source_reader *base, const char *path, source_stat *sb, gradcomp_error *err)
{
	struct nfs_call call = {0};
	gradcomp_status st = nfs_find((struct nfs_reader *)base, path, &call, err);
	*sb = call.st;
	return st;
}

static gradcomp_status nfs_reader_readlink(source_reader *base, const char *path, char target[4096],
                                           gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_call call = {0}, link = {.kind = NFS_READLINK, .fh = &call.found, .buf = target};
	gradcomp_status st = nfs_find(r, path, &call, err);
	if (st || (st = nfs_request(r, &link, err)))
		return st;
	return link.error ? nfs_failed(nfs_source_of(r), link.error, "read the symbolic link", path, err) : GRADCOMP_OK;
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
