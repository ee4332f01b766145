/* One file from the source into the cache, with its checksum; and reading a copy
 * again. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "staging.h"

#define ZERO_BLOCK 65536u
/* From this size on a file is brought to the disk by the thread that wrote it,
 * while others copy; one syncfs() at the end does the small ones. */
#define SYNC_BYTES (4u << 20)

static const unsigned char zeroes[ZERO_BLOCK];

gradcomp_status stage_write_failed(stage_run *run, const char *path, gradcomp_error *err)
{
	char name[STAGE_NAME_MAX], need[32], left[32];
	struct statvfs fs;
	int e = errno;
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
	return stage_fail(err, "write the copy of", path);
}

static gradcomp_status changed(stage_run *run, const stage_entry *e, const char *how, gradcomp_error *err)
{
	char name[STAGE_NAME_MAX];
	atomic_store(&run->changed, true);
	return error_set(err, GRADCOMP_ERR_STATE, "the source changed while it was staged: %s %s",
	                 gradcomp_printable(e->path, name, sizeof name), how);
}

static bool same(const source_stat *st, const stage_entry *e)
{
	return st->size == e->size && st->mtime_ns == e->mtime_ns;
}

/* Also of times before 1970. */
static struct timespec time_of(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	if (t.tv_nsec < 0) {
		t.tv_sec--;
		t.tv_nsec += 1000000000;
	}
	return t;
}

static int write_all(int fd, const unsigned char *data, size_t n, off_t at)
{
	while (n) {
		ssize_t w = pwrite(fd, data, n, at);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return -1;
		data += w;
		n -= (size_t)w;
		at += w;
	}
	return 0;
}

/* Of a sparse file blocks of zeroes are not written: a server that cannot tell
 * holes (NFS before 4.2) sends them as data. */
static int write_data(int fd, const unsigned char *data, size_t n, off_t at, bool sparse)
{
	if (!sparse)
		return write_all(fd, data, n, at);
	for (size_t i = 0; i < n; i += ZERO_BLOCK) {
		size_t len = n - i < ZERO_BLOCK ? n - i : ZERO_BLOCK;
		if (memcmp(data + i, zeroes, len) && write_all(fd, data + i, len, at + (off_t)i) < 0)
			return -1;
	}
	return 0;
}

static void hash_zeroes(sha256 *hash, uint64_t n)
{
	for (; n; n -= n < ZERO_BLOCK ? n : ZERO_BLOCK)
		sha256_update(hash, zeroes, n < ZERO_BLOCK ? n : ZERO_BLOCK);
}

/* Copies the bytes; the entry's size is not exceeded. */
static gradcomp_status copy_bytes(stage_run *run, stage_worker *w, stage_entry *e, int out, gradcomp_error *err)
{
	bool sparse = e->stored < e->size;
	uint64_t at = 0, end = e->size, data_end = sparse ? 0 : end, data, n;
	sha256 hash;
	sha256_init(&hash);
	while (at < end) {
		if (atomic_load(w->stop))
			return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		if (at >= data_end) {
			source_run(w->from, at, end, &data, &data_end);
			hash_zeroes(&hash, data - at);
			atomic_fetch_add(&run->bytes, data - at);
			if ((at = data) >= end)
				break;
		}
		uint64_t want = data_end - at < STAGE_BUFFER ? data_end - at : STAGE_BUFFER;
		gradcomp_status status = source_read(w->from, w->buffer, want, at, &n, err);
		if (status)
			return status;
		if (n < want)
			return changed(run, e, "became shorter", err);
		sha256_update(&hash, w->buffer, n);
		if (write_data(out, w->buffer, n, (off_t)at, sparse) < 0)
			return stage_write_failed(run, e->path, err);
		at += n;
		atomic_fetch_add(&run->bytes, n);
	}
	if (sparse && ftruncate(out, (off_t)end) < 0)
		return stage_write_failed(run, e->path, err);
	sha256_final(&hash, e->sha256);
	return GRADCOMP_OK;
}

gradcomp_status stage_copy(stage_run *run, stage_worker *w, stage_entry *e, gradcomp_error *err)
{
	const char *base;
	source_stat st;
	int out = -1;
	gradcomp_status status = source_file(w->from, e->path, e->size < STAGE_BUFFER ? e->size : STAGE_BUFFER, &st, err);
	if (status == GRADCOMP_ERR_NOTFOUND)
		return changed(run, e, "was removed or replaced", err);
	if (status)
		return status;
	if (!same(&st, e))
		return changed(run, e, "was written to", err);
	int dir = stage_walk_parent(&w->to, e->path, &base);
	if (dir >= 0 && (unlinkat(dir, base, 0) == 0 || errno == ENOENT))
		out = openat(dir, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (out < 0)
		return stage_write_failed(run, e->path, err);
	if ((status = copy_bytes(run, w, e, out, err)) || (status = source_again(w->from, &st, err)))
		goto done;
	if (!same(&st, e)) {
		status = changed(run, e, "was written to", err);
		goto done;
	}
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, time_of(st.mtime_ns)};
	bool failed =
		fchmod(out, e->mode) < 0 || futimens(out, times) < 0 || (e->size >= SYNC_BYTES && fsync(out) < 0);
	/* close() too may bring the news of a full disk. */
	if (close(out) < 0)
		failed = true;
	out = -1;
	if (failed)
		status = stage_write_failed(run, e->path, err);
	else
		e->sealed = true;
done:
	if (out >= 0)
		close(out);
	return status;
}

int stage_check(stage_run *run, stage_worker *w, const stage_entry *e)
{
	unsigned char digest[SHA256_BYTES];
	const char *base;
	struct stat st;
	sha256 hash;
	int result = -1;
	int dir = stage_walk_parent(&w->to, e->path, &base);
	int fd = dir < 0 ? -1 : openat(dir, base, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENXIO ? 0 : -1;
	if (fstat(fd, &st) < 0)
		goto done;
	result = 0;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != e->size)
		goto done;
	sha256_init(&hash);
	for (;;) {
		if (atomic_load(w->stop)) {
			errno = ECANCELED;
			result = -1;
			goto done;
		}
		ssize_t n = read(fd, w->buffer, STAGE_BUFFER);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			result = -1;
		if (n <= 0)
			break;
		sha256_update(&hash, w->buffer, (size_t)n);
		atomic_fetch_add(&run->bytes, (uint64_t)n);
	}
	sha256_final(&hash, digest);
	if (result == 0)
		result = !memcmp(digest, e->sha256, sizeof digest);
done:;
	int e2 = errno;
	close(fd);
	errno = e2;
	return result;
}
