/* The lines before the entries, and what they promise. */
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

char *stage_manifest_head(const stage_manifest *m, const char *first, size_t *bytes)
{
	/* The source has the escape of an entry's path. */
	static const char before[] = "d 0000 0 0 ";
	stage_entry e = {.path = m->source, .type = STAGE_DIR};
	char *line = NULL, *text = NULL;
	size_t capacity = 0;
	ssize_t n = stage_entry_line(&e, &line, &capacity);
	int len = -1;
	if (n > 0)
		len = asprintf(&text, "%s\nsource %.*s\nentries %zu\nfiles %llu\nbytes %llu\n", first,
		               (int)(n - (ssize_t)sizeof before + 1), line + sizeof before - 1, m->n,
		               (unsigned long long)m->files, (unsigned long long)m->bytes);
	free(line);
	if (len < 0)
		return NULL;
	*bytes = (size_t)len;
	return text;
}

static bool value_of(const char *line, const char *name, uint64_t *out)
{
	size_t n = strlen(name);
	return !strncmp(line, name, n) && line[n] == ' ' && stage_take_number(line + n + 1, out);
}

bool stage_manifest_head_line(stage_manifest *m, int i, const char *first, char *line, size_t n)
{
	if (memchr(line, 0, n))
		return false;
	line[n] = 0;
	switch (i) {
	case 0:
		return !strcmp(line, first);
	case 1:
		if (strncmp(line, "source ", 7) || !line[7] || !stage_take_name(line + 7))
			return false;
		m->source = strdup(line + 7);
		return m->source != NULL;
	case 2:
		return value_of(line, "entries", &m->promised.entries);
	case 3:
		return value_of(line, "files", &m->promised.files);
	default:
		return value_of(line, "bytes", &m->promised.bytes);
	}
}

const char *stage_manifest_complete(stage_manifest *m)
{
	if (m->n != m->promised.entries || !m->n)
		return "it does not have all its entries";
	if (stage_manifest_finish(m, NULL))
		return "there is no memory for it";
	if (m->files != m->promised.files || m->bytes != m->promised.bytes)
		return "its totals are wrong";
	return stage_symlink_outside(m) ? "it has a symbolic link that leads out of the tree" : NULL;
}
