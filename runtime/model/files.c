/* The model's files on disk. */
#include "fields.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "newfile.h"

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
	char why[NEWFILE_WHY];
	newfile *f = newfile_open(path, 0, why);

	if (f) {
		print(newfile_stream(f), what);
		if (!newfile_close(f, why))
			return GRADCOMP_OK;
	}
	return error_set(err, GRADCOMP_ERR_IO, "%s cannot be written: %s", path, why);
}
