/* From what a person writes to the key of a copy. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/area.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define PREFIX_MIN 4

/* Whether the manifest of the item says that it is a copy of `source`. */
static bool is_copy_of(int area, const cache_item *item, const char *source)
{
	cache_head head = {0};
	int dir = openat(area, item->name, OPEN_DIR);
	bool same = dir >= 0 && cache_head_read(dir, &head) && !strcmp(head.source, source);
	if (dir >= 0)
		close(dir);
	free(head.source);
	return same;
}

/* The source as manifests name it: resolved, when it is there. */
static char *source_of(const char *name)
{
	char *real = name[0] && strncmp(name, "nfs://", 6) ? realpath(name, NULL) : NULL;
	return real ? real : strdup(name);
}

gradcomp_status gradcomp_cache_find(const gradcomp_cache_options *options, const char *name, char key[65],
                                    gradcomp_error *err)
{
	char text[STAGE_NAME_MAX];
	size_t n = strlen(name);
	bool prefix = n >= PREFIX_MIN && n < STAGE_KEY_BYTES && strspn(name, "0123456789abcdef") == n;
	const cache_item *found = NULL;
	cache_items items = {0};
	char *source = NULL;
	cache_area a;
	gradcomp_status status = cache_area_begin(&a, options, false, err);
	if (status)
		return status;
	if (!a.empty && (status = cache_items_read(a.fd, &items, err)))
		goto done;
	if (!(source = source_of(name))) {
		status = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to search the cache");
		goto done;
	}
	for (size_t i = 0; i < items.n; i++) {
		const cache_item *item = &items.item[i];
		if (item->kind != CACHE_PUBLISHED)
			continue;
		/* The last used comes last. */
		if (prefix ? !strncmp(item->key, name, n) : is_copy_of(a.fd, item, source)) {
			if (prefix && found) {
				status = error_set(err, GRADCOMP_ERR_INVALID,
				                   "'%s' is the beginning of several keys, %.12s and %.12s among "
				                   "them",
				                   name, found->key, item->key);
				goto done;
			}
			found = item;
		}
	}
	if (found)
		memcpy(key, found->key, STAGE_KEY_BYTES);
	else
		status = error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no copy %s%s in %s", prefix ? "" : "of ",
		                   gradcomp_printable(prefix ? name : source, text, sizeof text), a.path);
done:
	free(source);
	cache_items_free(&items);
	cache_area_end(&a);
	return status;
}
