/* Where a dataset comes from: a directory or file of a mounted filesystem, or of
 * an NFS server spoken to directly (a module, so that the library needs no
 * libnfs). Everything below is reached one component at a time without following
 * symbolic links.
 *
 * A source is shared by threads; each thread has a reader of its own. Paths are
 * relative to the root ("" is the root itself) and of at most PATH_MAX bytes.
 * Functions that return a status name the path in the text. */
#ifndef IO_SOURCE_SOURCE_H
#define IO_SOURCE_SOURCE_H

#include <stdbool.h>

#include "base/error.h"

typedef struct source source;
typedef struct source_reader source_reader;
struct config;

/* The attributes of an entry. */
typedef struct source_stat {
	uint32_t mode; /* S_IFMT and permission bits */
	uint32_t nlink;
	uint64_t dev, ino, size;
	uint64_t stored; /* bytes it takes there; less than size: it may have holes */
	int64_t mtime_ns;
	bool linked; /* a symbolic link was followed to it */
} source_stat;

/* Called about ten times a second while a call waits for a server; non-zero ends
 * the call with STATE. stop may be NULL; ctx lives as long as the reader. */
typedef struct source_wait {
	int (*stop)(void *ctx);
	void *ctx;
} source_wait;

/* `spec`: a path, or nfs://SERVER[:PORT]/EXPORT/PATH[?key=value&...] with libnfs's
 * arguments (version, nfsport, uid, gid ...). NOTFOUND, UNSUPPORTED (no libnfs in
 * this build), INVALID (neither directory nor file). */
gradcomp_status source_open(const struct config *c, const char *spec, source_wait wait, source **out,
                            gradcomp_error *err);
/* Closes the source, after its last reader; NULL is fine. */
void source_close(source *s);
/* Returns its path with symbolic links resolved, or the URL without arguments: the name in the key and in messages.
 * Owned by the source. */
const char *source_name(const source *s);
/* The source is one file: its tree is a directory that holds it alone, by this name.
 * NULL: it is a directory. */
const char *source_is_file(const source *s);
/* A mounted filesystem: entries can be reached by source_name() as a path. */
bool source_is_mounted(const source *s);

/* Makes symbolic links stand for what they lead to, from now on. UNSUPPORTED where that cannot be had. */
gradcomp_status source_follow(source *s, gradcomp_error *err);
/* Returns true when the last call of the reader failed because it may not. Its text names the options of staging
 * that would do. */
bool source_denied(const source_reader *r);
/* A path as the value of exclude=: what a SPEC or a glob would take for something else is '?'. */
const char *source_glob_of(const char *path, char *out, size_t size);

/* Milliseconds for which its server has not answered a reader; 0: it answers. Any thread. */
unsigned source_silent(const source *s);

gradcomp_status source_reader_open(source *s, source_wait wait, source_reader **out, gradcomp_error *err);
void source_reader_close(source_reader *r);

typedef gradcomp_status source_each(void *ctx, const char *name, const source_stat *st, gradcomp_error *err);

/* Calls each() for every entry of a directory but . and .., in any order, until one
 * returns a failure, which is returned. The names last for the call. `dir` is open
 * meanwhile: each() may call source_readlink() for an entry of it, and nothing else
 * of the reader. A server may give any name, and the same one twice. NOTFOUND: there is
 * no such directory, or something else is there. */
gradcomp_status source_list(source_reader *r, const char *dir, source_each *each, void *ctx, gradcomp_error *err);
gradcomp_status source_lookup(source_reader *r, const char *path, source_stat *st, gradcomp_error *err);
/* Up to PATH_MAX - 1 bytes and a 0; longer ones are UNSUPPORTED. */
gradcomp_status source_readlink(source_reader *r, const char *path, char target[4096], gradcomp_error *err);

/* One file at a time is open in a reader; opening the next closes it. NOTFOUND also
 * when it is not a regular file any more. *st is that of the open file. The caller
 * will next read `ahead` bytes from its beginning: a server may send them with the answer, which
 * spares small files a round trip. 0 when it will not. */
gradcomp_status source_file(source_reader *r, const char *path, uint64_t ahead, source_stat *st, gradcomp_error *err);
/* Gives a hint: after the files of earlier hints the reader will open `path`, and read `size` bytes from its
 * beginning. These are requested from a server at once, which hides the latency of many small files. False: no more
 * hints are taken before some of the files were opened. Files may be opened in another order. */
bool source_prefetch(source_reader *r, const char *path, uint64_t size);
/* Reads the open file at `at`: *got is less than n at its end only. */
gradcomp_status source_read(source_reader *r, void *buf, uint64_t n, uint64_t at, uint64_t *got, gradcomp_error *err);
/* The next byte at or behind `at` that may not be zero, and the end of that run; both
 * the file's size when there is none. Servers that cannot tell have one run. */
void source_run(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole);
/* The attributes of the open file as they are now, to check after it was read. */
gradcomp_status source_again(source_reader *r, source_stat *st, gradcomp_error *err);

#endif
