/* The list of what a tree holds, and its memory. */
#include <stdlib.h>
#include <string.h>

#include "io/manifest/manifest.h"

struct stage_block {
	struct stage_block *next;
	size_t used, size;
	char bytes[];
};

void manifest_clear(stage_manifest *m)
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

char *manifest_join(stage_manifest *m, const char *dir, const char *name)
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

stage_entry *manifest_add(stage_manifest *m)
{
	if (make_room((void **)&m->entries, m->n, &m->capacity, sizeof *m->entries) < 0)
		return NULL;
	m->entries[m->n] = (stage_entry){0};
	return &m->entries[m->n++];
}

int manifest_inode(stage_manifest *m, dev_t dev, ino_t ino, const char *path)
{
	if (make_room((void **)&m->inodes, m->ninodes, &m->inode_capacity, sizeof *m->inodes) < 0)
		return -1;
	m->inodes[m->ninodes++] = (struct stage_inode){dev, ino, path};
	return 0;
}

const stage_entry *manifest_find(const stage_manifest *m, const char *path, size_t length)
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
