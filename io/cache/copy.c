/* Says what went wrong when copying fails, and reads a copy again. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/block_digest.h"
#include "io/cache/cache.h"

gradcomp_status cache_write_failed(stage_run *run, const char *path, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX], need[32], left[32];
	struct statvfs fs;
	int e = errno;
	atomic_store(&run->unwritable, true);
	gradcomp_printable(path, name, sizeof name);
	if (e == EDQUOT)
		return error_set(err, GRADCOMP_ERR_IO,
		                 "your disk quota is used up in %s, writing %s: the dataset needs %s; remove "
		                 "something or set stage.cache_dir",
		                 run->where, name, gradcomp_size_text(run->bytes_total, need));
	if (e == ENOSPC)
		return error_set(err, GRADCOMP_ERR_IO,
		                 "no space: the dataset needs %s, %s free on %s when writing %s failed",
		                 gradcomp_size_text(run->bytes_total, need),
		                 statvfs(run->where, &fs) == 0
		                         ? gradcomp_size_text((uint64_t)fs.f_bavail * fs.f_frsize, left)
		                         : "nothing",
		                 run->where, name);
	errno = e;
	return text_cannot(err, "write the copy of", path);
}

gradcomp_status copy_source_changed(stage_run *run, const stage_entry *e, const char *how, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX / 2], glob[TEXT_NAME_MAX / 2];
	atomic_store(&run->changed, true);
	return error_set(
		err, GRADCOMP_ERR_STATE,
		"the source changed while it was staged: %s %s; if it is none of the data, exclude=%s leaves it out",
		gradcomp_printable(e->path, name, sizeof name), how, source_glob_of(e->path, glob, sizeof glob));
}

bool copy_is_same(const source_stat *st, const stage_entry *e)
{
	return st->size == e->size && st->mtime_ns == e->mtime_ns;
}

/* 0, or what errno says: the file's blocks into a checksum, as far as it goes. */
static int digest_file(stage_run *run, stage_worker *w, const stage_entry *e, int fd, stage_digest *d)
{
	unsigned char digest[SHA256_BYTES];
	for (uint64_t i = 0, blocks = block_digest_blocks(e->size); i < blocks; i++) {
		size_t have = 0;
		while (have < STAGE_BLOCK) {
			if (atomic_load(w->stop))
				return ECANCELED;
			ssize_t n = pread(fd, w->buffer + have, STAGE_BLOCK - have, (off_t)(i * STAGE_BLOCK + have));
			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				return errno;
			if (n == 0)
				break;
			have += (size_t)n;
		}
		sha256_digest(w->buffer, have, digest);
		if (block_digest_block(d, i, digest) < 0)
			return ENOMEM;
		atomic_fetch_add(&run->bytes, have);
	}
	return 0;
}

int cache_check_file(stage_run *run, stage_worker *w, const stage_entry *e)
{
	unsigned char digest[SHA256_BYTES];
	const char *base;
	struct stat st;
	stage_digest d;
	int dir = dirwalk_parent(&w->to, e->path, &base);
	int fd = dir < 0 ? -1 : openat(dir, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENXIO ? 0 : -1;
	int wrong = fstat(fd, &st) < 0 ? errno : 0, result = -1;
	if (!wrong && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != e->size)) {
		result = 0;
	} else if (!wrong) {
		block_digest_begin(&d, e->size);
		wrong = digest_file(run, w, e, fd, &d);
		block_digest_end(&d, digest);
		if (!wrong)
			result = !memcmp(digest, e->sha256, sizeof digest);
	}
	close(fd);
	errno = wrong;
	return result;
}
