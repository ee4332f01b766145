/* Values that the node's memory has no space for: in one file a node and dataset, below
 * the directory the user named. It has no name, so it is removed with the last process
 * that has it open, however that ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fileio.h"
#include "gradcomp/stage.h"
#include "io/dataset/dataset_internal.h"

#define NAME_MOST 400
#define LEFT_PERCENT 5 /* the share of the filesystem that the file leaves to others */

gradcomp_status spill_open(gradcomp_dataset *ds, gradcomp_error *err)
{
	char name[NAME_MOST], path[4096];
	struct statvfs fs;
	uint64_t free_bytes, kept;
	ds->spill_fd = open(ds->spill, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (ds->spill_fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
		if ((size_t)snprintf(path, sizeof path, "%s/.gradcomp-spill-XXXXXX", ds->spill) < sizeof path)
			ds->spill_fd = mkostemp(path, O_CLOEXEC);
		if (ds->spill_fd >= 0)
			unlink(path);
	}
	if (ds->spill_fd < 0 || fstatvfs(ds->spill_fd, &fs))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a file for values in %s (option spill)",
		                   gradcomp_printable(ds->spill, name, sizeof name));
	free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	kept = (uint64_t)fs.f_blocks * fs.f_frsize / 100 * LEFT_PERCENT;
	ds->head->spill_limit = free_bytes > kept ? free_bytes - kept : 0;
	return GRADCOMP_OK;
}

bool spill_write(gradcomp_dataset *ds, const void *data, uint64_t bytes, uint64_t *offset)
{
	shared_head *h = ds->head;
	uint64_t at = atomic_load(&h->spill_used);
	if (ds->spill_fd < 0)
		return false;
	do {
		if (bytes > h->spill_limit - at)
			return false;
	} while (!atomic_compare_exchange_weak(&h->spill_used, &at, at + bytes));
	*offset = at;
	return fileio_write(ds->spill_fd, data, bytes, at) == 0;
}

bool spill_read(gradcomp_dataset *ds, uint64_t offset, void *data, uint64_t bytes)
{
	return fileio_read(ds->spill_fd, data, bytes, offset) == (int64_t)bytes;
}
