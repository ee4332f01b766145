/* Prefetching small files: looked up and read before they are opened, many in a round trip. */
#include <stdlib.h>
#include <string.h>

#include "io/source/nfs/nfs.h"

#define SLOTS 16

struct nfs_prefetch {
	unsigned head, n;
	struct nfs_prefetch_file {
		char *path;
		struct nfs_handle dir;
		struct nfs_call call;
		char *buf; /* NFS_FIRST bytes */
	} files[SLOTS];
};

static struct nfs_prefetch_file *file_at(struct nfs_prefetch *s, unsigned i)
{
	return &s->files[(s->head + i) % SLOTS];
}

static void take_off(struct nfs_prefetch *s)
{
	free(file_at(s, 0)->path);
	file_at(s, 0)->path = NULL;
	s->head++;
	s->n--;
}

bool nfs_prefetch(source_reader *base, const char *path, uint64_t size)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	struct nfs_source *source = nfs_source_of(r);
	const struct nfs_handle *dir = nfs_parent_known(r, path);
	const char *slash = strrchr(path, '/');
	if (!r->prefetch && !(r->prefetch = calloc(1, sizeof *r->prefetch)))
		return false;
	struct nfs_prefetch *s = r->prefetch;
	struct nfs_prefetch_file *f = file_at(s, s->n);
	if (!dir || s->n == SLOTS || (!f->buf && !(f->buf = malloc(NFS_FIRST))) || !(f->path = strdup(path)))
		return false;
	uint32_t most = NFS_FIRST < source->read_max ? NFS_FIRST : source->read_max;
	f->dir = *dir;
	f->call = (struct nfs_call){
		.kind = NFS_LOOKUP,
		.fh = &f->dir,
		.name = f->path + (slash ? slash + 1 - path : 0),
		.n = size < most ? (uint32_t)size : most,
		.buf = f->buf,
	};
	s->n++;
	nfs_send(source, r->conn, &f->call, 1);
	return true;
}

gradcomp_status nfs_prefetch_take(struct nfs_reader *r, const char *path, struct nfs_call *call, char *buf, bool *known,
                                  gradcomp_error *err)
{
	struct nfs_prefetch *s = r->prefetch;
	gradcomp_status st = GRADCOMP_OK;
	*known = false;
	while (s && s->n && !st && !*known) {
		struct nfs_prefetch_file *f = file_at(s, 0);
		bool wanted = !strcmp(f->path, path);
		/* After a lost connection all of them are sent again. */
		for (unsigned i = 0; i < s->n; i++)
			nfs_send(nfs_source_of(r), r->conn, &file_at(s, i)->call, 1);
		if (wanted || f->call.state == NFS_SENT)
			st = nfs_request(r, &f->call, err);
		/* A request that failed is made again when the file is opened, for the error; so is one whose
		 * answer lacks attributes. */
		if (!st && wanted && !f->call.error && f->call.known) {
			*known = true;
			*call = f->call;
			memcpy(buf, f->buf, f->call.got);
		}
		if (!st)
			take_off(s);
		if (wanted)
			break;
	}
	return st;
}

bool nfs_prefetch_sent(const struct nfs_reader *r)
{
	bool sent = false;
	for (unsigned i = 0; r->prefetch && i < SLOTS; i++)
		sent |= r->prefetch->files[i].call.state == NFS_SENT;
	return sent;
}

void nfs_prefetch_free(struct nfs_reader *r)
{
	for (unsigned i = 0; r->prefetch && i < SLOTS; i++) {
		free(r->prefetch->files[i].path);
		free(r->prefetch->files[i].buf);
	}
	free(r->prefetch);
	r->prefetch = NULL;
}
