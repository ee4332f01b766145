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
