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
/* The file leaves this share of the filesystem to others, but not more than these bytes: of a large disk that is
 * nearly full the share would be more than there is. */
#define LEFT_PERCENT 5
#define LEFT_MOST ((uint64_t)1 << 30)

gradcomp_status spill_open(gradcomp_dataset *ds, gradcomp_error *err)
{
	char name[NAME_MOST], path[4096], left[32], want[32];
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
	if (kept > LEFT_MOST)
		kept = LEFT_MOST;
	ds->head->spill_limit = free_bytes > kept ? free_bytes - kept : 0;
	if (!ds->head->spill_limit)
		log_line(&ds->group->job->log, GRADCOMP_LOG_WARN,
		         "%s (option spill) has %s free, and %s are left to others: values that memory cannot keep are "
		         "prepared again each time",
		         gradcomp_printable(ds->spill, name, sizeof name), gradcomp_size_text(free_bytes, left),
		         gradcomp_size_text(kept, want));
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
