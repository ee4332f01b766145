/* A connection, made anew for as long as the server may be away, and waiting for
 * answers without ever sleeping for long. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <nfsc/libnfs-zdr.h>

#include <nfsc/libnfs.h>

#include <nfsc/libnfs-raw.h>

#include "base/clock.h"
#include "io/source/nfs/nfs.h"

#define NFS_PROGRAM 100003
#define MOUNT_PROGRAM 100005
#define NFS_PORT 2049
#define TICK_MS 100
/* Seconds: between attempts; for one attempt of a caller who is not patient. */
#define RETRY 0.5
#define CONNECT 10.0

struct nfs_conn *nfs_conn_new(void)
{
	return calloc(1, sizeof(struct nfs_conn));
}

/* Whatever was asked is NEW again: libnfs tells each request that it is cancelled. */
static void drop(struct nfs_conn *c)
{
	struct rpc_context *rpc = c->rpc;
	c->rpc = NULL;
	if (rpc)
		rpc_destroy_context(rpc);
	c->state = NFS_DOWN;
	c->lost = false;
}

void nfs_conn_free(struct nfs_conn *c)
{
	if (c)
		drop(c);
	free(c);
}

static void lose(struct nfs_conn *c, const char *why)
{
	if (!c->lost)
		snprintf(c->trouble, sizeof c->trouble, "%s", why && *why ? why : "the connection was closed");
	c->lost = true;
}

bool nfs_answered(struct nfs_call *call, int status)
{
	if (status == RPC_STATUS_SUCCESS)
		return true;
	call->state = NFS_NEW;
	if (call->conn->rpc)
		lose(call->conn, rpc_get_error(call->conn->rpc));
	return false;
}

void nfs_settle(struct nfs_call *call, int error, bool busy)
{
	call->state = NFS_ANSWERED;
	call->error = error;
	call->busy = busy;
	if (!busy)
		call->conn->last_answer = clock_now();
}

static void connected(struct rpc_context *rpc, int status, void *data, void *arg)
{
	struct nfs_conn *c = arg;
	(void)data;
	if (!c->rpc)
		return;
	if (status == RPC_STATUS_SUCCESS)
		c->state = NFS_UP;
	else
		lose(c, rpc_get_error(rpc));
}

/* The user's numbers and, when they are the process's own, up to 16 other groups: more
 * do not fit in a request. */
static struct AUTH *credentials(const source_url *url)
{
	char host[64] = "localhost";
	gid_t groups[256];
	uint32_t others[16], n = 0;
	int have = url->own ? getgroups(256, groups) : 0;
	gethostname(host, sizeof host - 1);
	for (int i = 0; i < have && n < 16; i++)
		if (groups[i] != url->gid)
			others[n++] = groups[i];
	return libnfs_authunix_create(host, url->uid, url->gid, n, n ? others : NULL);
}

static void begin(const struct nfs_source *s, struct nfs_conn *c)
{
	int program = c->mounting ? MOUNT_PROGRAM : NFS_PROGRAM, version = c->mounting ? 3 : s->url.version;
	int port = c->mounting ? s->url.mount_port : s->url.port ? s->url.port : s->url.version == 4 ? NFS_PORT : 0;
	const char *address = s->addresses[c->address % s->naddresses];
	c->begun = clock_now();
	c->state = NFS_CONNECTING;
	c->lost = false;
	if (!(c->rpc = rpc_init_context())) {
		lose(c, "there is no memory for a connection");
		return;
	}
	rpc_set_auth(c->rpc, credentials(&s->url));
	int rc = port ? rpc_connect_port_async(c->rpc, address, port, program, version, connected, c)
	              : rpc_connect_program_async(c->rpc, address, program, version, connected, c);
	if (rc < 0)
		lose(c, rpc_get_error(c->rpc));
}

/* A peer that is gone makes SIGPIPE of a write, which libnfs does not prevent. */
static int service(struct rpc_context *rpc, int events)
{
	const struct timespec now = {0};
	sigset_t pipe, old, pending;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &pipe, &old);
	int rc = rpc_service(rpc, events);
	if (!sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

static void turn(struct nfs_conn *c, int ms)
{
	struct pollfd p = {.fd = c->rpc ? rpc_get_fd(c->rpc) : -1};
	if (p.fd >= 0)
		p.events = (short)rpc_which_events(c->rpc);
	int ready = poll(&p, p.fd >= 0, ms), error = 0;
	if (ready > 0 && c->state == NFS_CONNECTING && (p.revents & (POLLERR | POLLHUP)) &&
	    !getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}) && error)
		lose(c, strerror(error)); /* libnfs does not say which */
	else if (ready > 0 && service(c->rpc, p.revents) < 0)
		lose(c, rpc_get_error(c->rpc));
}

static int send_one(const struct nfs_source *s, struct nfs_conn *c, struct nfs_call *call)
{
	call->conn = c;
	call->busy = false;
	call->error = 0;
	call->state = NFS_SENT;
	return s->send(c->rpc, call);
}

static bool send_new(struct nfs_source *s, struct nfs_conn *c, struct nfs_call *calls, size_t n)
{
	bool any = false;
	for (size_t i = 0; i < n; i++) {
		if (calls[i].state != NFS_NEW)
			continue;
		any = true;
		if (send_one(s, c, &calls[i]) < 0) {
			calls[i].state = NFS_ANSWERED;
			calls[i].error = calls[i].error ? calls[i].error : ENOMEM;
		}
	}
	return any;
}

void nfs_send(struct nfs_source *s, struct nfs_conn *c, struct nfs_call *calls, size_t n)
{
	if (c->state == NFS_UP && !c->lost && send_new(s, c, calls, n))
		turn(c, 0);
}

/* Reads may be answered in part: the rest is asked for. True when all is there. */
static bool finished(struct nfs_call *calls, size_t n, bool *busy)
{
	bool all = true;
	*busy = false;
	for (size_t i = 0; i < n; i++) {
		*busy |= calls[i].state == NFS_ANSWERED && calls[i].busy;
		all &= calls[i].state == NFS_ANSWERED && !calls[i].busy;
	}
	return all;
}

static gradcomp_status away(struct nfs_source *s, struct nfs_conn *c, double seconds, bool busy, gradcomp_error *err)
{
	if (busy)
		return error_set(
			err, GRADCOMP_ERR_TIMEOUT,
			"the NFS server %s has reported for %.0f s that it is busy (setting stage.source_timeout)",
			s->url.server, seconds);
	return error_set(err, GRADCOMP_ERR_TIMEOUT,
	                 "the NFS server %s does not answer for %.0f s (setting stage.source_timeout)%s%s",
	                 s->url.server, seconds, *c->trouble ? ": " : "", c->trouble);
}

/* The connection failed or was lost. A failure ends the call. */
static gradcomp_status again(struct nfs_source *s, struct nfs_conn *c, bool patient, size_t *tried, gradcomp_error *err)
{
	drop(c);
	c->address++;
	c->begun = clock_now() + (++*tried % s->naddresses ? 0 : RETRY);
	if (patient || *tried < s->naddresses)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_IO, "the NFS server %s cannot be reached: %s", s->url.server, c->trouble);
}

gradcomp_status nfs_wait(struct nfs_source *s, struct nfs_conn *c, source_wait wait, bool patient,
                         struct nfs_call *calls, size_t n, gradcomp_error *err)
{
	double start = clock_now(), now = start;
	gradcomp_status st = GRADCOMP_OK;
	size_t tried = 0;
	bool busy = false;
	for (;; now = clock_now()) {
		if (c->lost && (st = again(s, c, patient, &tried, err)))
			break;
		if (c->state == NFS_DOWN && now >= c->begun)
			begin(s, c);
		if (c->state == NFS_UP && !c->lost)
			send_new(s, c, calls, n);
		if (finished(calls, n, &busy))
			break;
		double silent = now - (c->last_answer > start ? c->last_answer : start),
		       alive = c->last_answer > c->begun ? c->last_answer : c->begun;
		atomic_store(&s->base.silent_ms, silent > 1 ? (unsigned)(silent * 1000) : 0);
		if (silent > s->timeout) {
			st = away(s, c, silent, busy, err);
			break;
		}
		if (wait.stop && wait.stop(wait.ctx)) {
			st = error_set(err, GRADCOMP_ERR_STATE, "stopped before the copy was complete");
			break;
		}
		/* One that came back under the same address knows nothing of the connection. */
		double enough = patient ? s->timeout / 3 : c->state == NFS_UP ? s->timeout : CONNECT;
		if (c->state != NFS_DOWN && now - alive > enough)
			lose(c, "no answer");
		else
			turn(c, TICK_MS);
		if (busy)
			poll(NULL, 0, TICK_MS);
		for (size_t i = 0; busy && i < n; i++)
			if (calls[i].state == NFS_ANSWERED && calls[i].busy)
				calls[i].state = NFS_NEW;
	}
	atomic_store(&s->base.silent_ms, 0);
	if (st)
		drop(c); /* the requests under way live as long as this call */
	else
		*c->trouble = 0;
	return st;
}
