#include "job/live.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/job_path.h"
#include "base/thread.h"
#include "job/report_internal.h"

#define SEND_MS 2000 /* for who asked to read an answer */
#define PAUSE_MS 20  /* after somebody who may not ask: others cannot keep the thread busy */
#define NOBODY 65534 /* how a user namespace shows every user that is not in it: not to be told apart */

struct live_server {
	int listener, stop;
	void (*tell)(void *ctx, FILE *out);
	void *ctx;
	pthread_t thread;
};

/* False when the server is to stop. */
static bool wait_for(const live_server *l, int fd, short events, int ms, bool *ready)
{
	struct pollfd p[2] = {{.fd = l->stop, .events = POLLIN}, {.fd = fd, .events = events}};
	int n;
	do
		n = poll(p, 2, ms);
	while (n < 0 && errno == EINTR);
	*ready = n > 0 && p[1].revents;
	return n >= 0 && !p[0].revents;
}

static bool of_our_user(int fd)
{
	struct ucred peer;
	socklen_t n = sizeof peer;
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) && peer.uid == geteuid();
}

static void answer(const live_server *l, int fd)
{
	char *text = NULL;
	size_t n = 0;
	bool ready = true;
	FILE *f = open_memstream(&text, &n);
	if (!f)
		return;
	l->tell(l->ctx, f);
	if (!fclose(f))
		for (size_t at = 0; at < n && wait_for(l, fd, POLLOUT, SEND_MS, &ready) && ready;) {
			ssize_t sent = send(fd, text + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);

			if (sent < 0 && errno != EAGAIN && errno != EINTR)
				break;
			at += sent > 0 ? (size_t)sent : 0;
		}
	free(text);
}

static void *serve(void *arg)
{
	const live_server *l = arg;
	bool ready, goes_on = true;
	while (goes_on && wait_for(l, l->listener, POLLIN, -1, &ready)) {
		int fd = ready ? accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

		if (fd >= 0 && of_our_user(fd))
			answer(l, fd);
		else /* or no descriptor is left */
			goes_on = wait_for(l, -1, 0, PAUSE_MS, &ready);
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static gradcomp_status make_name(struct sockaddr_un *sa, socklen_t *bytes, gradcomp_error *err)
{
	uint64_t random;
	char *prefix;
	int n;
	gradcomp_status st = job_path_expand("socket", LIVE_NAME "%j.%s", &prefix, err);
	if (st)
		return st;
	if (getrandom(&random, sizeof random, 0) != sizeof random) {
		free(prefix);
		return error_errno(err, GRADCOMP_ERR_IO, "no random name for the socket of gradcomp watch");
	}
	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "%s/%016" PRIx64, prefix, random);
	*bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	free(prefix);
	return GRADCOMP_OK;
}

gradcomp_status live_open(void (*tell)(void *ctx, FILE *out), void *ctx, live_server **out, gradcomp_error *err)
{
	live_server *l = calloc(1, sizeof *l);
	struct sockaddr_un sa;
	socklen_t bytes = 0;
	gradcomp_status st;
	*out = NULL;
	if (!l)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for gradcomp watch");
	*l = (live_server){.listener = -1, .stop = -1, .tell = tell, .ctx = ctx};
	st = make_name(&sa, &bytes, err);
	if (!st && geteuid() == NOBODY)
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "the user is nobody, whom gradcomp watch does not serve");
	if (!st) {
		l->stop = eventfd(0, EFD_CLOEXEC);
		l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (l->stop < 0 || l->listener < 0 || bind(l->listener, (struct sockaddr *)&sa, bytes) ||
		    listen(l->listener, 4))
			st = error_errno(err, GRADCOMP_ERR_IO, "cannot listen for gradcomp watch");
		else if (thread_start(&l->thread, serve, l))
			st = error_set(err, GRADCOMP_ERR_NOMEM, "no thread for gradcomp watch");
	}
	if (!st) {
		*out = l;
		return GRADCOMP_OK;
	}
	if (l->stop >= 0)
		close(l->stop);
	if (l->listener >= 0)
		close(l->listener);
	free(l);
	return st;
}

void live_close(live_server *l)
{
	if (!l)
		return;
	while (eventfd_write(l->stop, 1) && errno == EINTR)
		continue;
	pthread_join(l->thread, NULL);
	close(l->listener);
	close(l->stop);
	free(l);
}

void live_write(FILE *out, const report_job *job)
{
	report_job brief = *job;
	report_reducer *rows = calloc(job->nreducers + 1, sizeof *rows);
	for (uint32_t i = 0; rows && i < job->nreducers; i++) {
		rows[i] = job->reducers[i];
		rows[i].ntensors = 0;
		rows[i].schedule = NULL;
	}
	brief.reducers = rows;
	brief.nreducers = rows ? job->nreducers : 0;
	brief.hosts = NULL;
	brief.link_map = NULL;
	brief.times = NULL;
	brief.nlink_kinds = brief.nlinks = brief.nnetworks = 0;
	report_write(out, &brief);
	free(rows);
}
