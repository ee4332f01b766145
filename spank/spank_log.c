#include "spank/spank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define FLUSH_MS 5000

void log_flush(void)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	int size = -1;
	/* It does not shrink while it holds more than that. */
	for (int ms = 0; ms < FLUSH_MS && (size = fcntl(fd.fd, F_SETPIPE_SZ, 1)) < 0 && errno == EBUSY; ms++)
		poll(NULL, 0, 1);
	if (size >= 0)
		poll(&fd, 1, FLUSH_MS);
}
