/* The model's files on disk. */
#include "fields.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"

gradcomp_status fields_read(inifile *f, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	FILE *stream;

	f->path = path;
	if (fd < 0)
		return error_errno(f->err, errno == ENOENT || errno == ENOTDIR ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO,
		                   "%s", path);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return error_set(f->err, GRADCOMP_ERR_INVALID, "%s is not a regular file", path);
	}
	stream = fdopen(fd, "r");
	if (!stream) {
		close(fd);
		return error_set(f->err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	}
	inifile_read(f, stream);
	fclose(stream);
	return f->status;
}

gradcomp_status fields_publish(const char *path, void (*print)(FILE *out, const void *what), const void *what,
                               gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	char *temp = NULL;
	FILE *out = NULL;
	int fd = -1;

	if (asprintf(&temp, "%s.%d.%llx", path, (int)getpid(), (unsigned long long)(clock_now() * 1e9)) < 0)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out) {
		st = error_errno(err, GRADCOMP_ERR_IO, "%s cannot be written", path);
		goto done;
	}
	print(out, what);
	if (fflush(out) || ferror(out) || fsync(fd) || rename(temp, path))
		st = error_errno(err, GRADCOMP_ERR_IO, "%s cannot be written", path);
done:
	if (st && fd >= 0)
		unlink(temp);
	if (out)
		fclose(out);
	else if (fd >= 0)
		close(fd);
	free(temp);
	return st;
}
