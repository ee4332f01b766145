/* How much memory a node's values may take: what the machine has left, and what the
 * control groups of this process still allow. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcomp/stage.h"
#include "job/job.h"
#include "base/fileio.h"
#include "base/number.h"
#include "io/dataset/dataset_internal.h"

/* The number in a file that holds but one, or behind `key` at a line's beginning;
 * UINT64_MAX: none is there ("max" means no limit). */
static uint64_t number_in(const char *folder, const char *name, const char *key)
{
	char line[256], *path = NULL;
	uint64_t value = UINT64_MAX;
	size_t n = key ? strlen(key) : 0;
	FILE *f = asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : fopen(path, "re");
	if (!f) {
		free(path);
		return value;
	}
	while (fgets(line, sizeof line, f))
		if ((!key || !strncmp(line, key, n)) && sscanf(line + n, " %" SCNu64, &value) == 1)
			break;
	fclose(f);
	free(path);
	return value;
}

/* The tightest of a group, whose folder is `path`, and those it is in, whose root's is `top`
 * bytes of it. What was read from files goes when memory is wanted, and does not count. */
static void group_available(char *path, size_t top, bool old, uint64_t *least, const char **what)
{
	for (;;) {
		uint64_t limit = number_in(path, old ? "memory.limit_in_bytes" : "memory.max", NULL);
		uint64_t used = number_in(path, old ? "memory.usage_in_bytes" : "memory.current", NULL);
		uint64_t files = number_in(path, "memory.stat", old ? "total_inactive_file " : "inactive_file ");
		char *slash = strrchr(path, '/');

		if (limit != UINT64_MAX && used != UINT64_MAX) {
			files = files == UINT64_MAX ? 0 : files < used ? files : used;
			used -= files;
			limit = limit > used ? limit - used : 0;
			if (limit < *least) {
				*least = limit;
				*what = "the limit of the control group";
			}
		}
		if (!slash || (size_t)(slash - path) < top)
			return;
		*slash = 0;
	}
}

/* Takes a line of /proc/self/cgroup: NUMBER:CONTROLLERS:PATH, without controllers that of version 2. */
static void group_line(const char *root, char *line, uint64_t *least, const char **what)
{
	char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL, *path, *base;
	int top;
	bool old;
	if (!at)
		return;
	*at++ = 0;
	at[strcspn(at, "\n")] = 0;
	old = names[1] != 0;
	if (old && strcmp(names + 1, "memory"))
		return;
	top = asprintf(&base, "%s/sys/fs/cgroup%s", root, old ? "/memory" : "");
	if (top < 0)
		return;
	if (asprintf(&path, "%s%s", base, at[1] ? at : "") >= 0) {
		group_available(path, (size_t)top, old, least, what);
		free(path);
	}
	free(base);
}

uint64_t mem_limit_available(const char *root, const char **what)
{
	char *folder, line[PATH_MAX + 256];
	uint64_t least = UINT64_MAX;
	FILE *f = NULL;
	*what = "the machine's memory";
	if (asprintf(&folder, "%s/proc", root) < 0)
		return 0;
	least = number_in(folder, "meminfo", "MemAvailable:");
	least = least > UINT64_MAX / 1024 ? UINT64_MAX : least * 1024;
	free(folder);
	if (asprintf(&folder, "%s/proc/self/cgroup", root) >= 0) {
		f = fopen(folder, "re");
		free(folder);
	}
	while (f && fileio_line(f, line, sizeof line) > 0)
		group_line(root, line, &least, what);
	if (f)
		fclose(f);
	return least;
}

gradcomp_status mem_limit_dataset(const gradcomp_dataset *ds, uint64_t *bytes, gradcomp_error *err)
{
	const char *text = config_str(ds->group->job->config, SET_DATASET_MEMORY), *what;
	uint64_t available = mem_limit_available("", &what), index = ds->nslots * sizeof(slot);
	char need[32], left[32], table[32];
	int64_t n;
	*bytes = ds->o.memory;
	if (!*bytes && strchr(text, '%'))
		*bytes = available / 100 * (uint64_t)atoi(text);
	else if (!*bytes && number_size(text, &n) == NUMBER_OK)
		*bytes = (uint64_t)n;
	if (available < index || *bytes > available - index)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "%s for the values of a dataset and %s for the index of its %" PRIu64
		                 " samples here: %s leaves %s "
		                 "(setting dataset.memory, or the option memory)",
		                 gradcomp_size_text(*bytes, need), gradcomp_size_text(index, table), ds->nslots, what,
		                 gradcomp_size_text(available, left));
	return GRADCOMP_OK;
}
