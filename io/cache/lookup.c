/* Finds the key of a copy by what a user typed. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#include "base/fileio.h"
#include "base/text.h"
#include "io/cache/manage_internal.h"
#include "io/manifest/manifest.h"
#include "io/source/nfs_url.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define PREFIX_MIN 4

/* Returns true when the manifest of the item says that it is a copy of `source`. */
static bool is_copy_of(int area, const cache_entry *entry, const char *source)
{
	cache_manifest_head head = {0};
	int dir = openat(area, entry->name, OPEN_DIR);
	bool same = dir >= 0 && cache_manifest_head_read(dir, &head) && !strcmp(head.source, source);
	if (dir >= 0)
		close(dir);
	free(head.source);
	return same;
}

/* The source as manifests name it: resolved, when it is there. */
static char *source_of(const char *name)
{
	char *real = name[0] && !source_url_is(name) ? realpath(name, NULL) : NULL;
	return real ? real : strdup(name);
}

gradcomp_status gradcomp_cache_find(const gradcomp_cache_options *options, const char *name, char key[65],
                                    gradcomp_error *err)
{
	char text[TEXT_NAME_MAX];
	size_t n = strlen(name);
	bool prefix = n >= PREFIX_MIN && n < STAGE_KEY_BYTES && strspn(name, "0123456789abcdef") == n;
	const cache_entry *found = NULL;
	cache_entries entries = {0};
	char *source = NULL;
	cache_area a;
	gradcomp_status st = cache_area_begin(&a, options, false, err);
	if (st)
		return st;
	if (!a.empty && (st = cache_entries_read(a.fd, &entries, err)))
		goto done;
	if (!(source = source_of(name))) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to search the cache");
		goto done;
	}
	for (size_t i = 0; i < entries.n; i++) {
		const cache_entry *entry = &entries.entry[i];
		if (entry->kind != CACHE_PUBLISHED)
			continue;
		/* The last one used is the last in the list. */
		if (prefix ? !strncmp(entry->key, name, n) : is_copy_of(a.fd, entry, source)) {
			if (prefix && found) {
				st = error_set(err, GRADCOMP_ERR_INVALID,
				               "'%s' is the beginning of several keys, %.12s and %.12s among "
				               "them",
				               name, found->key, entry->key);
				goto done;
			}
			found = entry;
		}
	}
	if (found)
		memcpy(key, found->key, STAGE_KEY_BYTES);
	else
		st = error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no copy %s%s in %s", prefix ? "" : "of ",
		               gradcomp_printable(prefix ? name : source, text, sizeof text), a.path);
done:
	free(source);
	cache_entries_free(&entries);
	cache_area_end(&a);
	return st;
}

/* The first lines of a manifest: what the copy is of. */

static bool take(cache_manifest_head *h, char *line, bool *files, bool *bytes)
{
	if (!strncmp(line, "source ", 7))
		return !h->source && line[7] && manifest_take_name(line + 7) && (h->source = strdup(line + 7));
	if (!strncmp(line, "files ", 6))
		return *files = manifest_take_number(line + 6, &h->files);
	if (!strncmp(line, "bytes ", 6))
		return *bytes = manifest_take_number(line + 6, &h->bytes);
	return true;
}

bool cache_manifest_head_read(int dir, cache_manifest_head *out)
{
	char *line = malloc(STAGE_LINE_MAX);
	bool good = true, files = false, bytes = false;
	struct stat st;
	*out = (cache_manifest_head){0};
	int fd = openat(dir, "manifest", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
	for (int i = 0; line && f && good && i < STAGE_HEAD_LINES; i++) {
		int64_t n = fileio_line(f, line, STAGE_LINE_MAX);
		good = n > 0 && strlen(line) == (size_t)n && line[n - 1] == '\n';
		if (good) {
			line[n - 1] = 0;
			good = i ? take(out, line, &files, &bytes) : !strncmp(line, "gradcomp-manifest ", 18);
		}
	}
	if (f)
		fclose(f);
	else if (fd >= 0)
		close(fd);
	free(line);
	if (good && out->source && files && bytes)
		return true;
	free(out->source);
	*out = (cache_manifest_head){0};
	return false;
}
