/* Room for a copy that is about to be made. */
#include <sys/statvfs.h>

#include "cache/cache.h"

gradcomp_status cache_make_room(stage_run *run, int area, const char *key, uint64_t bytes, uint64_t inodes,
                                gradcomp_error *err)
{
	char need_text[32], left_text[32];
	struct statvfs fs;
	(void)key;
	if (fstatvfs(area, &fs) < 0 || !fs.f_frsize)
		return stage_fail(err, "ask for the free space of", run->where);
	uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (bytes > left)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %s, %s free on %s",
		                 gradcomp_size_text(bytes, need_text), gradcomp_size_text(left, left_text),
		                 run->where);
	if (fs.f_files && inodes > fs.f_favail)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %llu inodes, %llu free on %s",
		                 (unsigned long long)inodes, (unsigned long long)fs.f_favail, run->where);
	return GRADCOMP_OK;
}
