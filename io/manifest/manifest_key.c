/* A manifest that has all its entries: their order, hard links, totals, and the key made of them. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/manifest/manifest.h"

static int by_path(const void *a, const void *b)
{
	return strcmp(((const stage_entry *)a)->path, ((const stage_entry *)b)->path);
}

static int by_inode(const void *a, const void *b)
{
	const struct stage_inode *x = a, *y = b;
	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return strcmp(x->path, y->path);
}

/* Keeps the first in order of the names of one inode as a file; the others become links to it. Names outside the
 * tree do not count. */
static void find_hard_links(stage_manifest *m)
{
	if (m->ninodes)
		qsort(m->inodes, m->ninodes, sizeof *m->inodes, by_inode);
	const struct stage_inode *first = NULL;
	for (size_t i = 0; i < m->ninodes; i++) {
		const struct stage_inode *x = &m->inodes[i];
		stage_entry *e = (stage_entry *)manifest_find(m, x->path, strlen(x->path));
		if (!e) /* it was left out after all */
			continue;
		if (!first || x->dev != first->dev || x->ino != first->ino) {
			first = x;
			continue;
		}
		e->type = STAGE_HARDLINK;
		e->target = (char *)first->path;
		e->size = e->stored = 0;
	}
}

gradcomp_status manifest_finish(stage_manifest *m, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	unsigned char digest[SHA256_BYTES];
	char *line = NULL;
	size_t capacity = 0;
	sha256 hash;
	m->files = m->bytes = 0;
	if (m->n)
		qsort(m->entries, m->n, sizeof *m->entries, by_path);
	for (size_t i = 1; i < m->n; i++)
		if (!strcmp(m->entries[i - 1].path, m->entries[i].path))
			return error_set(err, GRADCOMP_ERR_IO, "%s was listed twice",
			                 gradcomp_printable(m->entries[i].path, name, sizeof name));
	find_hard_links(m);
	sha256_init(&hash);
	sha256_update(&hash, "gradcomp-stage 2\n", 17);
	sha256_update(&hash, m->source, strlen(m->source) + 1);
	for (size_t i = 0; i < m->n; i++) {
		stage_entry *e = &m->entries[i];
		ssize_t n = manifest_entry_line(e, &line, &capacity);
		if (n < 0) {
			free(line);
			return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", m->n);
		}
		line[n] = '\n';
		sha256_update(&hash, line, (size_t)n + 1);
		m->files += e->type == STAGE_FILE || e->type == STAGE_HARDLINK;
		if (__builtin_add_overflow(m->bytes, e->size, &m->bytes) || m->bytes > INT64_MAX) {
			free(line);
			return error_set(err, GRADCOMP_ERR_RANGE,
			                 "the sizes of the files add up to more than 64 bits can count");
		}
	}
	free(line);
	sha256_final(&hash, digest);
	sha256_hex(digest, m->key);
	return GRADCOMP_OK;
}

const char *manifest_complete(stage_manifest *m)
{
	if (m->n != m->promised.entries || !m->n)
		return "it does not have all its entries";
	if (manifest_finish(m, NULL))
		return "there is no memory for it";
	if (m->files != m->promised.files || m->bytes != m->promised.bytes)
		return "its totals are wrong";
	return symlink_outside(m) ? "it has a symbolic link that leads out of the tree" : NULL;
}
