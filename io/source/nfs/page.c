/* A page of a directory, copied out of the server's answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/source/nfs/nfs.h"

/* Room for `more` behind `n`, twice as much when there is none. */
static int make_room(void **array, size_t n, size_t more, size_t *capacity, size_t bytes)
{
	if (more <= *capacity - n)
		return 0;
	size_t size = 2 * (n + more);
	void *p = reallocarray(*array, size, bytes);
	if (!p)
		return ENOMEM;
	*array = p;
	*capacity = size;
	return 0;
}

int nfs_page_add(struct nfs_page *page, const char *name, size_t n, uint64_t cookie, const source_stat *st)
{
	if (!n || n > 4096 || memchr(name, 0, n))
		return EBADMSG;
	if (make_room((void **)&page->entries, page->n, 1, &page->capacity, sizeof *page->entries) ||
	    make_room((void **)&page->names, page->used, n + 1, &page->size, 1))
		return ENOMEM;
	struct nfs_page_entry *e = &page->entries[page->n++];
	*e = (struct nfs_page_entry){.name = page->used, .known = st != NULL};
	if (st)
		e->st = *st;
	memcpy(page->names + page->used, name, n);
	page->names[page->used + n] = 0;
	page->used += n + 1;
	page->cookie = cookie;
	return 0;
}

void nfs_page_free(struct nfs_page *page)
{
	free(page->entries);
	free(page->names);
}
