#define _GNU_SOURCE
#include "security/munge_seal.h"

#include "base/error.h"

#include <string.h>

const char *munge_socket(const char *setting)
{
	const char *colon = strchr(setting, ':');
	size_t n = colon ? (size_t)(colon - setting) : strlen(setting);
	if ((n != 5 || strncmp(setting, "munge", n)) && (n != 4 || strncmp(setting, "auto", n)))
		return NULL;
	return colon ? colon + 1 : "";
}

#if HAVE_MUNGE

#include "base/clock.h"

#include <errno.h>
#include <munge.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAUSE_FIRST 0.05 /* s */
#define PAUSE_MOST 1.0

bool munge_built(void)
{
	return true;
}

static munge_ctx_t munge_begin(const char *socket)
{
	munge_ctx_t c = munge_ctx_create();
	if (c && *socket && munge_ctx_set(c, MUNGE_OPT_SOCKET, socket) != EMUNGE_SUCCESS) {
		munge_ctx_destroy(c);
		c = NULL;
	}
	return c;
}

/* Says why munged did not do it; libmunge's own words name the socket. */
static const char *munge_why(munge_ctx_t c, munge_err_t rc)
{
	const char *text = c ? munge_ctx_strerror(c) : NULL;
	return text ? text : munge_strerror(rc);
}

typedef munge_err_t munge_call(void *ctx, munge_ctx_t c);

/* libmunge writes to a socket whose other end may have hung up; that must not end the program. */
static munge_err_t without_sigpipe(munge_call *call, void *ctx, munge_ctx_t c)
{
	sigset_t pipe_set, kept, pending;
	const struct timespec none = {0, 0};
	sigemptyset(&pipe_set);
	sigaddset(&pipe_set, SIGPIPE);
	sigpending(&pending);
	bool before = sigismember(&pending, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe_set, &kept);
	munge_err_t rc = call(ctx, c);
	while (!before && sigtimedwait(&pipe_set, NULL, &none) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &kept, NULL);
	return rc;
}

/* Anybody on the node can fill munged's queue, and then the kernel turns this connection away at
 * once; libmunge itself tries again only where one was made. */
static munge_err_t munge_ask(const munge_request *q, munge_ctx_t c, munge_call *call, void *ctx)
{
	double now, until = clock_now() + q->patience, pause = PAUSE_FIRST;
	bool told = false;
	for (;;) {
		munge_err_t rc = without_sigpipe(call, ctx, c);
		unsigned char random = 0;

		if (rc != EMUNGE_SOCKET && rc != EMUNGE_TIMEOUT)
			return rc;
		now = clock_now();
		if (now >= until)
			return rc;
		if (!told && q->log)
			log_line(q->log, GRADCOMP_LOG_WARN, "munged does not serve: %s; trying again for %.3g s",
			         munge_why(c, rc), until - now);
		told = true;
		/* The ranks of a node do not come back all at once. */
		(void)secret_random(&random, 1, NULL);
		pause = pause < PAUSE_MOST ? pause : PAUSE_MOST;
		double rest = pause * (0.5 + random / 512.0);
		(void)poll(NULL, 0, (int)((rest < until - now ? rest : until - now) * 1e3) + 1);
		pause *= 2;
	}
}

struct sealing {
	unsigned char payload[MUNGE_PURPOSE + SECRET_BYTES];
	size_t bytes;
	char *cred;
};

static munge_err_t encode(void *ctx, munge_ctx_t c)
{
	struct sealing *s = ctx;
	return munge_encode(&s->cred, c, s->payload, (int)s->bytes);
}

gradcomp_status munge_seal(const munge_request *q, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err)
{
	munge_ctx_t c = munge_begin(q->socket);
	struct sealing s = {.bytes = strlen(q->purpose) + 1, .cred = NULL};
	gradcomp_status st = GRADCOMP_OK;
	munge_err_t rc = EMUNGE_NO_MEMORY;
	if (s.bytes > MUNGE_PURPOSE) {
		if (c)
			munge_ctx_destroy(c);
		return error_set(err, GRADCOMP_ERR_INTERNAL, "munge: a purpose of %zu bytes", s.bytes);
	}
	memcpy(s.payload, q->purpose, s.bytes);
	memcpy(s.payload + s.bytes, secret, SECRET_BYTES);
	s.bytes += SECRET_BYTES;
	if (c)
		rc = munge_ctx_set(c, MUNGE_OPT_UID_RESTRICTION, geteuid());
	/* Ranks, and the stagers of a step, may come minutes later. */
	if (c && rc == EMUNGE_SUCCESS)
		rc = munge_ctx_set(c, MUNGE_OPT_TTL, MUNGE_TTL_MAXIMUM);
	if (c && rc == EMUNGE_SUCCESS)
		rc = munge_ask(q, c, encode, &s);
	if (rc != EMUNGE_SUCCESS)
		st = error_set(err, GRADCOMP_ERR_IO, "munge cannot seal the job's secret: %s", munge_why(c, rc));
	else if (snprintf(text, MUNGE_TEXT, "%s", s.cred) >= MUNGE_TEXT)
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "munge made a credential of %zu bytes", strlen(s.cred));
	secret_wipe(s.payload, sizeof s.payload);
	free(s.cred);
	if (c)
		munge_ctx_destroy(c);
	return st;
}

struct opening {
	const char *text;
	void *payload;
	int bytes;
	uid_t uid;
	gid_t gid;
};

static munge_err_t decode(void *ctx, munge_ctx_t c)
{
	struct opening *o = ctx;
	return munge_decode(o->text, c, &o->payload, &o->bytes, &o->uid, &o->gid);
}

gradcomp_status munge_open(const munge_request *q, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err)
{
	munge_ctx_t c = munge_begin(q->socket);
	struct opening o = {.text = text, .uid = (uid_t)-1};
	gradcomp_status st = GRADCOMP_OK;
	munge_err_t rc = EMUNGE_NO_MEMORY;
	const unsigned char *end;
	if (c)
		rc = munge_ask(q, c, decode, &o);
	end = o.payload && o.bytes > 0 ? memchr(o.payload, 0, (size_t)o.bytes) : NULL;
	/* Each rank of a node opens it once; munged calls that a replay, and gives
	 * the content all the same. */
	if (rc != EMUNGE_SUCCESS && rc != EMUNGE_CRED_REPLAYED)
		st = error_set(err, GRADCOMP_ERR_AUTH, "munge does not open what rank 0 has sealed: %s",
		               munge_why(c, rc));
	else if (o.uid != geteuid())
		st = error_set(err, GRADCOMP_ERR_AUTH, "what should be of rank 0 was sealed by user %u, not by user %u",
		               (unsigned)o.uid, (unsigned)geteuid());
	else if (!end || (size_t)(end - (unsigned char *)o.payload) + 1 + SECRET_BYTES != (size_t)o.bytes)
		st = error_set(err, GRADCOMP_ERR_AUTH, "what rank 0 has sealed (%d bytes) is no secret of gradcomp",
		               o.bytes);
	else if (strcmp(o.payload, q->purpose))
		st = error_set(err, GRADCOMP_ERR_AUTH, "what rank 0 has sealed is the %.150s; this must be the %.150s",
		               (char *)o.payload, q->purpose);
	else
		memcpy(secret, end + 1, SECRET_BYTES);
	if (o.payload && o.bytes > 0)
		secret_wipe(o.payload, (size_t)o.bytes);
	free(o.payload);
	if (c)
		munge_ctx_destroy(c);
	return st;
}

#else

bool munge_built(void)
{
	return false;
}

gradcomp_status munge_seal(const munge_request *q, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err)
{
	(void)q, (void)secret, (void)text;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "security.secret=munge: this gradcomp was built without it (configure --with-munge)");
}

gradcomp_status munge_open(const munge_request *q, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err)
{
	(void)text;
	return munge_seal(q, secret, NULL, err);
}

#endif
