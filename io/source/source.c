/* Sources of any kind: which one a text names, and files as trees of one entry. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/source/nfs_module.h"

gradcomp_status source_open(const struct config *c, const char *spec, source_wait wait, source **out,
                            gradcomp_error *err)
{
	return source_url_is(spec) ? source_nfs_open(c, spec, wait, out, err) : source_posix_open(spec, out, err);
}

void source_close(source *s)
{
	if (!s)
		return;
	free(s->name);
	free(s->only);
	s->ops->close(s);
}

const char *source_name(const source *s)
{
	return s->name;
}

const char *source_is_file(const source *s)
{
	return s->only;
}

bool source_is_mounted(const source *s)
{
	return s->mounted;
}

gradcomp_status source_follow(source *s, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	s->follow = s->can_follow;
	return s->follow
	               ? GRADCOMP_OK
	               : error_set(
				 err, GRADCOMP_ERR_UNSUPPORTED,
				 "%s is not mounted: links=follow needs a source that is, since a server does not say "
				 "what lies outside of its export",
				 gradcomp_printable(s->name, name, sizeof name));
}

bool source_denied(const source_reader *r)
{
	return r->denied;
}

const char *source_glob_of(const char *path, char *out, size_t size)
{
	size_t n = 0;
	for (; path[n] && n + 1 < size; n++)
		out[n] = strchr(",:\\*?[]'\"$`!", path[n]) || (unsigned char)path[n] <= ' ' ||
		                         (unsigned char)path[n] >= 0x7f
		                 ? '?'
		                 : path[n];
	out[n] = 0;
	return out;
}

/* A failure for want of rights also says what would do. */
static gradcomp_status with_advice(const source_reader *r, const char *path, gradcomp_status status,
                                   gradcomp_error *err)
{
	char glob[TEXT_NAME_MAX / 2];
	if (status && r->denied && *path && err)
		return error_set(err, status, "%s; unreadable=skip or exclude=%s leaves it out", err->text,
		                 source_glob_of(path, glob, sizeof glob));
	return status;
}

unsigned source_silent(const source *s)
{
	return atomic_load(&s->silent_ms);
}

gradcomp_status source_reader_open(source *s, source_wait wait, source_reader **out, gradcomp_error *err)
{
	return s->ops->reader_open(s, wait, out, err);
}

void source_reader_close(source_reader *r)
{
	if (!r)
		return;
	free(r->path);
	r->from->ops->reader_close(r);
}

/* The root of a source that is a file has this: nothing of it depends on the directory in which it happens to be. */
static const source_stat alone = {.mode = S_IFDIR | 0755, .nlink = 1};

/* Returns true when the path can be there: all of them, unless the source is a file. */
static bool within(const source_reader *r, const char *path)
{
	return !r->from->only || !*path || !strcmp(path, r->from->only);
}

static gradcomp_status missing(const char *path, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no %s in the source",
	                 gradcomp_printable(path, name, sizeof name));
}

gradcomp_status source_list(source_reader *r, const char *dir, source_each *each, void *ctx, gradcomp_error *err)
{
	const char *only = r->from->only;
	source_stat sb;
	r->denied = false;
	if (!only)
		return with_advice(r, dir, r->from->ops->list(r, dir, each, ctx, err), err);
	if (*dir)
		return missing(dir, err);
	gradcomp_status st = r->from->ops->lookup(r, only, &sb, err);
	return st ? st : each(ctx, only, &sb, err);
}

gradcomp_status source_lookup(source_reader *r, const char *path, source_stat *st, gradcomp_error *err)
{
	if (!within(r, path))
		return missing(path, err);
	if (r->from->only && !*path) {
		*st = alone;
		return GRADCOMP_OK;
	}
	return r->from->ops->lookup(r, path, st, err);
}

gradcomp_status source_readlink(source_reader *r, const char *path, char target[4096], gradcomp_error *err)
{
	return within(r, path) ? r->from->ops->readlink(r, path, target, err) : missing(path, err);
}

gradcomp_status source_file(source_reader *r, const char *path, uint64_t ahead, source_stat *st, gradcomp_error *err)
{
	if (!within(r, path))
		return missing(path, err);
	free(r->path);
	if (!(r->path = strdup(path)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	r->denied = false;
	return with_advice(r, path, r->from->ops->file(r, path, ahead, st, err), err);
}

bool source_prefetch(source_reader *r, const char *path, uint64_t size)
{
	return r->from->ops->prefetch && within(r, path) && r->from->ops->prefetch(r, path, size);
}

gradcomp_status source_read(source_reader *r, void *buf, uint64_t n, uint64_t at, uint64_t *got, gradcomp_error *err)
{
	r->denied = false;
	return r->from->ops->read(r, buf, n, at, got, err);
}

void source_run(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole)
{
	r->from->ops->run(r, at, size, data, hole);
}

gradcomp_status source_again(source_reader *r, source_stat *st, gradcomp_error *err)
{
	return r->from->ops->again(r, st, err);
}
