#include "base/fileio.h"

#include <errno.h>
#include <unistd.h>

int64_t fileio_read(int fd, void *buf, uint64_t n, uint64_t at)
{
	uint64_t done = 0;
	while (done < n) {
		ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(at + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		done += (uint64_t)got;
	}
	return (int64_t)done;
}

int fileio_write(int fd, const void *data, uint64_t n, uint64_t at)
{
	for (uint64_t done = 0; done < n;) {
		ssize_t put = pwrite(fd, (const char *)data + done, n - done, (off_t)(at + done));

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return -1;
		done += (uint64_t)put;
	}
	return 0;
}

int64_t fileio_line(FILE *f, char *line, size_t room)
{
	size_t n = 0;
	int c = 0;
	flockfile(f);
	while (c != '\n' && n + 1 < room && (c = getc_unlocked(f)) != EOF)
		line[n++] = (char)c;
	funlockfile(f);
	line[n] = 0;
	return (c == EOF && ferror(f)) || (c != EOF && c != '\n') ? -1 : (int64_t)n;
}
