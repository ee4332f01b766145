/* NFS by libnfs's calls of single procedures: what is open is a file handle and no
 * state of the server's, so a connection that is lost is made anew and requests that were not
 * answered are sent again. Names are looked up one at a time in directories known by
 * handle, which no symbolic link can lead elsewhere. NFSv4.0 reads with the anonymous
 * state id and needs no lease.
 *
 * A libnfs context belongs to one thread: each reader has its own connection. */
#ifndef IO_SOURCE_NFS_NFS_H
#define IO_SOURCE_NFS_NFS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "io/source/nfs_module.h"

#define NFS_HANDLE_MAX 128
/* Bytes of one READ and of one READDIR at most. */
#define NFS_READ_MAX (256u << 10)
#define NFS_LIST_MAX (128u << 10)
/* Bytes that are read along with the lookup of a file. */
#define NFS_FIRST (64u << 10)
/* Operations of a compound. */
#define NFS_OPS_MAX 6

struct nfs_handle {
	uint32_t n; /* 0: the root of the server, NFSv4 only */
	char data[NFS_HANDLE_MAX];
};

enum nfs_kind { NFS_LOOKUP, NFS_GETATTR, NFS_READLINK, NFS_READDIR, NFS_READ, NFS_LIMITS, NFS_MOUNT };

/* A page of a directory. */
struct nfs_page {
	struct nfs_page_entry {
		size_t name; /* in names */
		bool known;  /* st is */
		source_stat st;
	} * entries;
	char *names;
	size_t n, capacity, used, size;
	uint64_t cookie; /* the last one's */
	bool eof;
};

/* A request and its answer. */
struct nfs_call {
	enum nfs_kind kind;
	const struct nfs_handle *fh;
	const char *name; /* LOOKUP; MOUNT: a path */
	uint64_t at;      /* READ; READDIR: the cookie */
	uint32_t n;       /* READ: bytes; LOOKUP: bytes to read along; 0: none */
	char *buf;        /* for these bytes; READLINK: 4096 bytes. NULL: they are dropped */
	char verifier[8]; /* READDIR, in and out */
	struct nfs_page *page;

	uint32_t ops[NFS_OPS_MAX], nops; /* NFSv4 only: these were asked for, and the answer has to be of these */

	enum { NFS_NEW, NFS_SENT, NFS_ANSWERED } state;
	bool busy;               /* the server answered to try again later */
	int error;               /* errno; EBADMSG: the answer is invalid */
	struct nfs_handle found; /* LOOKUP, MOUNT */
	bool known;              /* st is: LOOKUP, GETATTR */
	source_stat st;
	uint32_t got; /* READ, LOOKUP with n */
	bool eof;
	int read_error;   /* LOOKUP with n: errno of the reading */
	bool after_known; /* after is: the file as it was after that READ */
	source_stat after;
	uint32_t read_max; /* LIMITS */
	struct nfs_conn *conn;
};

struct rpc_context;

struct nfs_conn {
	struct rpc_context *rpc; /* NULL: not connected */
	int mounting;            /* to the mount service instead */
	enum { NFS_DOWN, NFS_CONNECTING, NFS_UP } state;
	bool lost;
	char trouble[160]; /* says what went wrong with the last attempt */
	double begun;      /* when the connection or the attempt began, or when to try again */
	double last_answer;
	size_t address; /* number of the source's address */
	uint32_t nsent; /* requests not answered */
	struct nfs_conn *next;
};

struct nfs_source {
	source base;
	source_url url;
	double timeout;
	char (*addresses)[64]; /* numeric */
	size_t naddresses;
	int (*send)(struct rpc_context *rpc, struct nfs_call *call); /* its version's: nfs_v3_send() or nfs_v4_send() */
	struct nfs_handle root;
	uint32_t read_max;
	pthread_mutex_t lock;
	struct nfs_conn *idle; /* those of readers that were closed */
};

struct nfs_reader {
	source_reader base;
	struct nfs_conn *conn;
	struct nfs_level {  /* directories on the way to where the reader is, the root left out */
		size_t end; /* length of its path in `at` */
		struct nfs_handle fh;
	} * levels;
	size_t depth, capacity;
	char at[4096];
	struct nfs_file *file;
	struct nfs_prefetch *prefetch;
};

/* conn.c */

struct nfs_conn *nfs_conn_new(void);
void nfs_conn_free(struct nfs_conn *c);
/* Returns when all n calls are answered; those that are NEW are sent, again when a connection
 * was lost. `patient`: waits for a server that does not answer; else the first failure to
 * connect to each address ends it. STATE when the caller is to stop, TIMEOUT or IO
 * with the server's name. */
gradcomp_status nfs_wait(struct nfs_source *s, struct nfs_conn *c, source_wait wait, bool patient,
                         struct nfs_call *calls, size_t n, gradcomp_error *err);
/* Sends what is NEW, if there is a connection, without waiting for anything. */
void nfs_send(struct nfs_source *s, struct nfs_conn *c, struct nfs_call *calls, size_t n);

/* xdr.c */

/* Returns true when what a server sends is checked before libnfs decodes it. Not so where libnfs was loaded before
 * this module: it is bound to its own decoders then. */
bool nfs_guarded(void);

/* v3.c, v4.c */

/* Queues the request. -1: it cannot be (call->error). */
int nfs_v3_send(struct rpc_context *rpc, struct nfs_call *call);
int nfs_v4_send(struct rpc_context *rpc, struct nfs_call *call);
/* For their answers. nfs_answered(): false when the connection was lost. nfs_settle(): the
 * result. */
bool nfs_answered(struct nfs_call *call, int status);
void nfs_settle(struct nfs_call *call, int error, bool busy);
/* Adds an entry whose name has n bytes. Names with a zero byte are invalid. */
int nfs_page_add(struct nfs_page *page, const char *name, size_t n, uint64_t cookie, const source_stat *st);
void nfs_page_free(struct nfs_page *page);

/* position.c */

static inline struct nfs_source *nfs_source_of(const struct nfs_reader *r)
{
	return (struct nfs_source *)r->base.from;
}

/* Reports the failure of a request about `path`: errno `error`, as what was tried. NOTFOUND when it is not there or
 * something else is. */
gradcomp_status nfs_failed(const struct nfs_source *s, int error, const char *what, const char *path,
                           gradcomp_error *err);
/* Does the same, and notes for source_denied() whether it was for want of rights. */
gradcomp_status nfs_reader_failed(struct nfs_reader *r, int error, const char *what, const char *path,
                                  gradcomp_error *err);
/* Makes one call over the reader's connection. */
gradcomp_status nfs_request(struct nfs_reader *r, struct nfs_call *call, gradcomp_error *err);
/* Looks up the handle of a directory, good until the next call. */
gradcomp_status nfs_dir(struct nfs_reader *r, const char *path, size_t length, const struct nfs_handle **fh,
                        gradcomp_error *err);
/* Looks up `path` with what it is; fh and st of *call. */
gradcomp_status nfs_find(struct nfs_reader *r, const char *path, struct nfs_call *call, gradcomp_error *err);
/* The parent directory of `path` if the reader has its handle; else NULL. */
const struct nfs_handle *nfs_parent_known(const struct nfs_reader *r, const char *path);

/* reader.c, readdir.c, file.c, prefetch.c */

gradcomp_status nfs_reader_list(source_reader *r, const char *dir, source_each *each, void *ctx, gradcomp_error *err);
gradcomp_status nfs_file_open(source_reader *r, const char *path, uint64_t ahead, source_stat *st, gradcomp_error *err);
gradcomp_status nfs_file_read(source_reader *r, void *buf, uint64_t n, uint64_t at, uint64_t *got, gradcomp_error *err);
void nfs_file_run(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole);
gradcomp_status nfs_file_again(source_reader *r, source_stat *st, gradcomp_error *err);
/* Drops the answers that are still to come. */
void nfs_file_close(struct nfs_reader *r);

/* Prefetched lookups of files that will be opened (prefetch.c). */
bool nfs_prefetch(source_reader *r, const char *path, uint64_t size);
/* If `path` was prefetched (*known), fills *call with the answer and *buf with the bytes that
 * came with it. Prefetched answers for other paths before it are dropped. */
gradcomp_status nfs_prefetch_take(struct nfs_reader *r, const char *path, struct nfs_call *call, char *buf, bool *known,
                                  gradcomp_error *err);
bool nfs_prefetch_sent(const struct nfs_reader *r);
void nfs_prefetch_free(struct nfs_reader *r);

extern const source_ops nfs_ops;

#endif
