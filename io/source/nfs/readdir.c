/* Listing a directory, a page at a time. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "io/source/nfs/nfs.h"

/* An entry that came without attributes is looked up; one that was removed meanwhile is left
 * out. */
static gradcomp_status attributes(struct nfs_reader *r, const char *dir, const char *name, source_stat *sb, bool *gone,
                                  gradcomp_error *err)
{
	char path[4096 + 4096];
	struct nfs_call call = {0};
	snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", name);
	gradcomp_status st = strchr(name, '/') ? nfs_failed(nfs_source_of(r), EBADMSG, "list", dir, err)
	                                       : nfs_find(r, path, &call, err);
	*sb = call.st;
	*gone = st == GRADCOMP_ERR_NOTFOUND;
	return *gone ? GRADCOMP_OK : st;
}

static gradcomp_status entries(struct nfs_reader *r, const char *dir, const struct nfs_page *page, source_each *each,
                               void *ctx, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (size_t i = 0; !st && i < page->n; i++) {
		const char *name = page->names + page->entries[i].name;
		source_stat sb = page->entries[i].st;
		bool gone = false;
		if (!strcmp(name, ".") || !strcmp(name, ".."))
			continue;
		if (!page->entries[i].known)
			st = attributes(r, dir, name, &sb, &gone, err);
		if (!st && !gone)
			st = each(ctx, name, &sb, err);
	}
	return st;
}

gradcomp_status nfs_reader_list(source_reader *base, const char *dir, source_each *each, void *ctx, gradcomp_error *err)
{
	struct nfs_reader *r = (struct nfs_reader *)base;
	const struct nfs_handle *fh;
	gradcomp_status st = nfs_dir(r, dir, strlen(dir), &fh, err);
	if (st)
		return st;
	struct nfs_handle handle = *fh;
	struct nfs_page page = {0};
	struct nfs_call call = {.kind = NFS_READDIR, .fh = &handle, .page = &page};
	do {
		call.state = NFS_NEW;
		if ((st = nfs_request(r, &call, err)))
			break;
		/* A listing whose cookie does not advance would never end. */
		if (!call.error && !page.eof && (!page.n || page.cookie == call.at))
			call.error = EBADMSG;
		if (call.error)
			st = nfs_reader_failed(r, call.error, "list", dir, err);
		else
			st = entries(r, dir, &page, each, ctx, err);
		call.at = page.cookie;
	} while (!st && !page.eof);
	nfs_page_free(&page);
	return st;
}
