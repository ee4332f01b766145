/* An NFS server that lies, as the module for nfs:// would tell it: nfs://liar/LIE. What
 * it lists and gives is below; tests/unit/stage_lying_server.c has what is to become of it. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/source/nfs_module.h"

#define FILE (S_IFREG | 0644)
#define FOLDER (S_IFDIR | 0755)
#define LINK (S_IFLNK | 0777)
#define BYTES 300000 /* bytes of a file */

#define N32 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
#define LONG_NAME N32 N32 N32 N32 N32 N32 N32 N32 /* 256 bytes */

static const struct entry {
	const char *lie, *dir, *name;
	uint32_t mode;
	uint64_t size;
	const char *target;
	uint64_t inode; /* the inode of several links */
} entries[] = {
	{"/honest", "", "f", FILE, BYTES, NULL, 0},
	{"/honest", "", "d", FOLDER, 0, NULL, 0},
	{"/honest", "d", "g", FILE, 10, NULL, 0},
	{"/up", "", "..", FOLDER, 0, NULL, 0},
	{"/up", "..", "planted", FILE, 10, NULL, 0},
	{"/climb", "", "../../../planted", FILE, 10, NULL, 0},
	{"/slash", "", "d", FOLDER, 0, NULL, 0},
	{"/slash", "", "d/x", FILE, 10, NULL, 0},
	{"/absolute", "", "/var/tmp/planted", FILE, 10, NULL, 0},
	{"/nameless", "", "", FILE, 10, NULL, 0},
	{"/dot", "", ".", FOLDER, 0, NULL, 0},
	{"/long", "", LONG_NAME, FILE, 10, NULL, 0},
	{"/twice", "", "d", LINK, 0, "/var/tmp", 0},
	{"/twice", "", "d", FOLDER, 0, NULL, 0},
	{"/twice", "d", "planted", FILE, 10, NULL, 0},
	{"/deep", "", "d", FOLDER, 0, NULL, 0},
	{"/outside", "", "l", LINK, 0, "../../..", 0},
	{"/aimless", "", "l", LINK, 0, "", 0},
	{"/full", "", "a", FILE, INT64_MAX, NULL, 0},
	{"/wrapped", "", "c", FILE, INT64_MAX, NULL, 0},
	{"/wrapped", "", "a", FILE, INT64_MAX, NULL, 0},
	{"/wrapped", "", "b", FILE, INT64_MAX, NULL, 0},
	{"/huge", "", "a", FILE, UINT64_MAX, NULL, 0},
	{"/device", "", "a", S_IFBLK | 0666, 0, NULL, 0},
	{"/typeless", "", "a", 0644, 10, NULL, 0},
	{"/shorter", "", "f", FILE, BYTES, NULL, 0},
	{"/changes", "", "f", FILE, BYTES, NULL, 0},
	{"/breaks", "", "f", FILE, BYTES, NULL, 0},
	{"/linked", "", "f", FILE, BYTES, NULL, 7},
	{"/linked", "", "g", FILE, 10, NULL, 7},
};
#define ENTRIES (sizeof entries / sizeof *entries)

struct liar {
	source base;
	char lie[64];
};

static bool is(const source *s, const char *lie)
{
	return !strcmp(((const struct liar *)s)->lie, lie);
}

static source_stat stat_of(const struct entry *e)
{
	return (source_stat){.mode = e->mode,
	                     .nlink = e->inode ? 2 : 1,
	                     .ino = e->inode ? e->inode : 100 + (uint64_t)(e - entries),
	                     .dev = 1,
	                     .size = e->size,
	                     .stored = e->size,
	                     .mtime_ns = 1000000000};
}

static const struct entry *find(const source *s, const char *path)
{
	for (const struct entry *e = entries; e < entries + ENTRIES; e++) {
		size_t n = strlen(e->dir);
		if (is(s, e->lie) && !strncmp(path, e->dir, n) && (!n || path[n] == '/') &&
		    !strcmp(path + n + !!n, e->name))
			return e;
	}
	return NULL;
}

static gradcomp_status fail(gradcomp_error *err, gradcomp_status status, const char *text)
{
	if (err) {
		err->status = status;
		strcpy(err->text, text);
	}
	return status;
}

static void liar_close(source *s)
{
	free(s);
}

static gradcomp_status liar_reader_open(source *s, source_wait wait, source_reader **out, gradcomp_error *err)
{
	if (!(*out = calloc(1, sizeof **out)))
		return fail(err, GRADCOMP_ERR_NOMEM, "no memory");
	(*out)->from = s;
	(*out)->wait = wait;
	return GRADCOMP_OK;
}

static void liar_reader_close(source_reader *r)
{
	free(r);
}

static gradcomp_status liar_list(source_reader *r, const char *dir, source_each *each, void *ctx, gradcomp_error *err)
{
	for (const struct entry *e = entries; e < entries + ENTRIES; e++) {
		source_stat sb = stat_of(e);
		/* A folder that holds itself. */
		if (!is(r->from, e->lie) || (strcmp(dir, e->dir) && !is(r->from, "/deep")))
			continue;
		gradcomp_status st = each(ctx, e->name, &sb, err);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

static gradcomp_status liar_lookup(source_reader *r, const char *path, source_stat *st, gradcomp_error *err)
{
	const struct entry *e = find(r->from, path);
	if (!*path)
		*st = (source_stat){.mode = FOLDER, .nlink = 1, .mtime_ns = 1};
	else if (e)
		*st = stat_of(e);
	else if (is(r->from, "/deep"))
		*st = stat_of(find(r->from, "d"));
	else
		return fail(err, GRADCOMP_ERR_NOTFOUND, "the liar knows no such name");
	return GRADCOMP_OK;
}

static gradcomp_status liar_readlink(source_reader *r, const char *path, char target[4096], gradcomp_error *err)
{
	const struct entry *e = find(r->from, path);
	if (!e || !e->target)
		return fail(err, GRADCOMP_ERR_IO, "the liar knows no such link");
	strcpy(target, e->target);
	return GRADCOMP_OK;
}

static gradcomp_status liar_file(source_reader *r, const char *path, uint64_t ahead, source_stat *st,
                                 gradcomp_error *err)
{
	(void)ahead;
	return liar_lookup(r, path, st, err);
}

static gradcomp_status liar_read(source_reader *r, void *buf, uint64_t n, uint64_t at, uint64_t *got,
                                 gradcomp_error *err)
{
	const struct entry *e = find(r->from, r->path);
	uint64_t size = !e ? 0 : is(r->from, "/shorter") ? e->size / 2 : e->size;
	if (is(r->from, "/breaks") && at + n > BYTES / 2)
		return fail(err, GRADCOMP_ERR_IO, "the liar's disk is broken");
	*got = at >= size ? 0 : size - at < n ? size - at : n;
	memset(buf, 'x', *got);
	return GRADCOMP_OK;
}

static void liar_run(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole)
{
	(void)r;
	*data = at;
	*hole = size;
}

static gradcomp_status liar_again(source_reader *r, source_stat *sb, gradcomp_error *err)
{
	gradcomp_status st = liar_lookup(r, r->path, sb, err);
	sb->mtime_ns += is(r->from, "/changes");
	return st;
}

static const source_ops ops = {
	.close = liar_close,
	.reader_open = liar_reader_open,
	.reader_close = liar_reader_close,
	.list = liar_list,
	.lookup = liar_lookup,
	.readlink = liar_readlink,
	.file = liar_file,
	.read = liar_read,
	.run = liar_run,
	.again = liar_again,
};

static gradcomp_status liar_open(const source_url *url, double timeout, source_wait wait, source **out,
                                 gradcomp_error *err)
{
	struct liar *l = calloc(1, sizeof *l);
	(void)timeout;
	(void)wait;
	if (!l || strlen(url->path) >= sizeof l->lie || !(l->base.name = strdup(url->name))) {
		free(l);
		return fail(err, GRADCOMP_ERR_NOMEM, "no memory");
	}
	l->base.ops = &ops;
	strcpy(l->lie, url->path);
	*out = &l->base;
	return GRADCOMP_OK;
}

extern const source_nfs_module gradcomp_source_nfs;
__attribute__((visibility("default"))) const source_nfs_module gradcomp_source_nfs = {
	.version = SOURCE_NFS_VERSION,
	.struct_size = sizeof gradcomp_source_nfs,
	.ops_size = sizeof ops,
	.open = liar_open,
};
