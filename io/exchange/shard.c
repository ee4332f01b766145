/* What node i of n has in mode shard: the files at i, i + n, ... of the sorted list,
 * and all directories and symbolic links, of which some then lead nowhere. */
#include <stdlib.h>
#include <string.h>

#include "together.h"

static bool is_file(const stage_entry *e)
{
	return e->type == STAGE_FILE || e->type == STAGE_HARDLINK;
}

/* A name of a file whose first name is another node's is the file here, and further
 * names of it become links to this one. The first name's entry remembers that: it is
 * not needed any more. */
static void keep_name(stage_manifest *m, const unsigned char *kept, stage_entry *e)
{
	stage_entry *first = (stage_entry *)stage_manifest_find(m, e->target, strlen(e->target));
	if (!first || piece_bit(kept, (size_t)(first - m->entries)))
		return;
	if (first->target) {
		e->target = first->target;
		return;
	}
	first->target = e->path;
	e->type = STAGE_FILE;
	e->target = NULL;
	e->size = first->size;
	e->stored = first->stored;
	e->mtime_ns = first->mtime_ns;
}

gradcomp_status staging_shard(stage_manifest *m, int i, int n, gradcomp_error *err)
{
	unsigned char *kept = calloc(1, m->n / 8 + 1);
	char *source = NULL;
	size_t files = 0, left = 0;
	if (!kept || asprintf(&source, "shard %d/%d of %s", i, n, m->source) < 0) {
		free(kept);
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", m->n);
	}
	for (size_t k = 0; k < m->n; k++)
		if (!is_file(&m->entries[k]) || files++ % (size_t)n == (size_t)i)
			piece_set(kept, k);
	for (size_t k = 0; k < m->n; k++)
		if (m->entries[k].type == STAGE_HARDLINK && piece_bit(kept, k))
			keep_name(m, kept, &m->entries[k]);
	for (size_t k = 0; k < m->n; k++)
		if (piece_bit(kept, k))
			m->entries[left++] = m->entries[k];
	m->n = left;
	free(kept);
	free(m->source);
	m->source = source;
	m->ninodes = 0; /* their links are found already */
	return stage_manifest_finish(m, err);
}
