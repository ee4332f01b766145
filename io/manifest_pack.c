/* A listing on its way to another node. */
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

#define FIRST "gradcomp-listing 2"

/* SUM EXTRA LINE of one entry at `out`, which has room. */
static ssize_t pack_entry(const stage_entry *e, char *out, char **line, size_t *capacity)
{
	size_t o;
	ssize_t n = stage_entry_line(e, line, capacity);
	if (n < 0)
		return -1;
	if (e->type == STAGE_FILE && e->sealed) {
		sha256_hex(e->sha256, out);
		o = 2 * SHA256_BYTES;
	} else {
		out[0] = '-';
		o = 1;
	}
	out[o++] = ' ';
	o += stage_entry_extra(e, out + o);
	memcpy(out + o, *line, (size_t)n);
	o += (size_t)n;
	out[o++] = '\n';
	return (ssize_t)o;
}

ssize_t stage_manifest_pack(const stage_manifest *m, size_t *next, char *buf, size_t capacity)
{
	char *line = NULL;
	size_t line_capacity = 0, used = 0;
	ssize_t n = 0;
	if (*next == 0) {
		char *head = stage_manifest_head(m, FIRST, &used);
		if (!head)
			return -1;
		memcpy(buf, head, used);
		free(head);
	}
	while (*next < m->n && capacity - used >= STAGE_LINE_MAX) {
		if ((n = pack_entry(&m->entries[*next], buf + used, &line, &line_capacity)) < 0)
			break;
		used += (size_t)n;
		++*next;
	}
	free(line);
	return n < 0 ? -1 : (ssize_t)used;
}

gradcomp_status stage_manifest_unpack(stage_manifest *m, char *text, size_t n, gradcomp_error *err)
{
	const char *why = NULL;
	for (char *end, *line = text; !why && line < text + n; line = end + 1) {
		if (!(end = memchr(line, '\n', (size_t)(text + n - line))))
			return error_set(err, GRADCOMP_ERR_INVALID, "a listing ends within a line");
		if (m->promised.lines < STAGE_HEAD_LINES) {
			int i = (int)m->promised.lines++;
			if (!stage_manifest_head_line(m, i, FIRST, line, (size_t)(end - line)))
				why = "its first lines are wrong";
		} else if (m->n == m->promised.entries) {
			why = "it has more entries than it says";
		} else {
			why = stage_manifest_take(m, line, (size_t)(end - line), true);
		}
	}
	return why ? error_set(err, GRADCOMP_ERR_INVALID, "a listing cannot be taken: %s", why) : GRADCOMP_OK;
}

gradcomp_status stage_manifest_unpacked(stage_manifest *m, gradcomp_error *err)
{
	const char *why = stage_manifest_complete(m);
	return why ? error_set(err, GRADCOMP_ERR_INVALID, "a listing cannot be taken: %s", why) : GRADCOMP_OK;
}
