/* The list of what a tree holds, and the key made of it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/cache/cache.h"

struct stage_block {
	struct stage_block *next;
	size_t used, size;
	char bytes[];
};

struct stage_inode {
	dev_t dev;
	ino_t ino;
	const char *path;
};

void stage_manifest_clear(stage_manifest *m)
{
	while (m->blocks) {
		struct stage_block *next = m->blocks->next;
		free(m->blocks);
		m->blocks = next;
	}
	free(m->inodes);
	free(m->entries);
	free(m->source);
	free(m->left_out);
	*m = (stage_manifest){0};
}

char *stage_manifest_join(stage_manifest *m, const char *dir, const char *name)
{
	size_t nd = strlen(dir), nn = strlen(name), slash = nd ? 1 : 0, need = nd + slash + nn + 1;
	struct stage_block *block = m->blocks;
	if (!block || block->size - block->used < need) {
		size_t size = need > 65536 ? need : 65536;
		if (!(block = malloc(sizeof *block + size)))
			return NULL;
		*block = (struct stage_block){.next = m->blocks, .size = size};
		m->blocks = block;
	}
	char *s = block->bytes + block->used;
	block->used += need;
	memcpy(s, dir, nd);
	memcpy(s + nd, "/", slash);
	memcpy(s + nd + slash, name, nn + 1);
	return s;
}

/* Room for one more element, half as much again when there is none. */
static int make_room(void **array, size_t n, size_t *capacity, size_t bytes)
{
	if (n < *capacity)
		return 0;
	size_t more = *capacity ? *capacity + *capacity / 2 : 64;
	void *p = reallocarray(*array, more, bytes);
	if (!p)
		return -1;
	*array = p;
	*capacity = more;
	return 0;
}

stage_entry *stage_manifest_add(stage_manifest *m)
{
	if (make_room((void **)&m->entries, m->n, &m->capacity, sizeof *m->entries) < 0)
		return NULL;
	m->entries[m->n] = (stage_entry){0};
	return &m->entries[m->n++];
}

int stage_manifest_inode(stage_manifest *m, dev_t dev, ino_t ino, const char *path)
{
	if (make_room((void **)&m->inodes, m->ninodes, &m->inode_capacity, sizeof *m->inodes) < 0)
		return -1;
	m->inodes[m->ninodes++] = (struct stage_inode){dev, ino, path};
	return 0;
}

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

const stage_entry *stage_manifest_find(const stage_manifest *m, const char *path, size_t length)
{
	for (size_t lo = 0, hi = m->n; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		const char *p = m->entries[mid].path;
		int order = strncmp(p, path, length);
		if (!order && p[length])
			order = 1;
		if (!order)
			return &m->entries[mid];
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* Of the names of one inode the first in order stays a file; the others become
 * links to it. Names outside the tree do not count. */
static void find_hard_links(stage_manifest *m)
{
	if (m->ninodes)
		qsort(m->inodes, m->ninodes, sizeof *m->inodes, by_inode);
	const struct stage_inode *first = NULL;
	for (size_t i = 0; i < m->ninodes; i++) {
		const struct stage_inode *x = &m->inodes[i];
		stage_entry *e = (stage_entry *)stage_manifest_find(m, x->path, strlen(x->path));
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

gradcomp_status stage_manifest_finish(stage_manifest *m, gradcomp_error *err)
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
		ssize_t n = stage_entry_line(e, &line, &capacity);
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
