/* A call of manage.h opens an area, and keeps what its caller has asked for until it ends. */
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "config/config.h"
#include "io/cache/manage_internal.h"

#define FLAGS (GRADCOMP_CACHE_DRY_RUN | GRADCOMP_CACHE_FORCE | GRADCOMP_CACHE_SHARED)

static gradcomp_status open_shared(cache_area *a, const config *c, const char *dir, bool write, gradcomp_error *err)
{
	uid_t owner;
	gradcomp_status st = cache_shared_owner(c, &owner, err);
	if (!st && write && geteuid() != owner && geteuid() != 0)
		st = error_set(err, GRADCOMP_ERR_INSECURE,
		               "you are uid %u; only root and %s (stage.shared_user) may change the shared area",
		               (unsigned)geteuid(), config_str(c, SET_STAGE_SHARED_USER));
	return st ? st : cache_shared_area(dir, owner, false, &a->fd, a->path, err);
}

gradcomp_status cache_area_begin(cache_area *a, const gradcomp_cache_options *options, bool write, gradcomp_error *err)
{
	config *c;
	*a = (cache_area){.fd = -1};
	if (options)
		memcpy(&a->options, options,
		       options->struct_size < sizeof a->options ? options->struct_size : sizeof a->options);
	if (a->options.flags & ~FLAGS)
		return error_set(err, GRADCOMP_ERR_INVALID, "cache flags are 0x%x; 0x%x are known", a->options.flags,
		                 FLAGS);
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	const char *dir = a->options.cache_dir ? a->options.cache_dir : config_str(c, SET_STAGE_CACHE_DIR);
	st = a->options.flags & GRADCOMP_CACHE_SHARED ? open_shared(a, c, dir, write, err)
	                                              : cache_user_area(dir, false, &a->fd, a->path, err);
	config_free(c);
	a->empty = st == GRADCOMP_ERR_NOTFOUND;
	return a->empty ? GRADCOMP_OK : st;
}

void cache_area_end(cache_area *a)
{
	if (a->fd >= 0)
		close(a->fd);
}

bool cache_area_dry(const cache_area *a)
{
	return a->options.flags & GRADCOMP_CACHE_DRY_RUN;
}

gradcomp_status cache_area_tick(const cache_area *a, gradcomp_error *err)
{
	if (!a->options.stop || !a->options.stop(a->options.ctx))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE, "stopped before the end");
}

gradcomp_status cache_key_check(const char *key, gradcomp_error *err)
{
	char taken[STAGE_KEY_BYTES], name[TEXT_NAME_MAX];
	if (key && cache_name(key, taken) == CACHE_PUBLISHED)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is not a key of 64 hexadecimal digits",
	                 key ? gradcomp_printable(key, name, sizeof name) : "");
}

gradcomp_status cache_no_copy(const cache_area *a, const char *key, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no copy %.12s in %s", key, a->path);
}
