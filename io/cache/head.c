/* The first lines of a manifest: what the copy is of. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/area.h"
#include "manifest.h"

static bool take(cache_head *h, char *line, bool *files, bool *bytes)
{
	if (!strncmp(line, "source ", 7))
		return !h->source && line[7] && stage_take_name(line + 7) && (h->source = strdup(line + 7));
	if (!strncmp(line, "files ", 6))
		return *files = stage_take_number(line + 6, &h->files);
	if (!strncmp(line, "bytes ", 6))
		return *bytes = stage_take_number(line + 6, &h->bytes);
	return true;
}

bool cache_head_read(int dir, cache_head *out)
{
	char *line = malloc(STAGE_LINE_MAX);
	bool good = true, files = false, bytes = false;
	struct stat st;
	*out = (cache_head){0};
	int fd = openat(dir, "manifest", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
	for (int i = 0; line && f && good && i < STAGE_HEAD_LINES && fgets(line, STAGE_LINE_MAX, f); i++) {
		size_t n = strlen(line);
		good = n && line[n - 1] == '\n';
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
	*out = (cache_head){0};
	return false;
}
