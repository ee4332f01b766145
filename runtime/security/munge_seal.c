#include "security/munge_seal.h"

#include "base/error.h"

#if HAVE_MUNGE

#include <munge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static munge_ctx_t munge_begin(const char *socket)
{
	munge_ctx_t c = munge_ctx_create();

	if (c && *socket && munge_ctx_set(c, MUNGE_OPT_SOCKET, socket) != EMUNGE_SUCCESS) {
		munge_ctx_destroy(c);
		c = NULL;
	}
	return c;
}

gradcomp_status munge_seal(const char *socket, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err)
{
	munge_ctx_t c = munge_begin(socket);
	gradcomp_status st = GRADCOMP_OK;
	munge_err_t rc = EMUNGE_NO_MEMORY;
	char *cred = NULL;

	if (c)
		rc = munge_ctx_set(c, MUNGE_OPT_UID_RESTRICTION, geteuid());
	/* Ranks, and the stagers of a step, may come minutes later. */
	if (c && rc == EMUNGE_SUCCESS)
		rc = munge_ctx_set(c, MUNGE_OPT_TTL, MUNGE_TTL_MAXIMUM);
	if (c && rc == EMUNGE_SUCCESS)
		rc = munge_encode(&cred, c, secret, SECRET_BYTES);
	if (rc != EMUNGE_SUCCESS)
		st = error_set(err, GRADCOMP_ERR_IO, "munge cannot seal the job's secret: %s", munge_strerror(rc));
	else if (snprintf(text, MUNGE_TEXT, "%s", cred) >= MUNGE_TEXT)
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "munge made a credential of %zu bytes", strlen(cred));
	free(cred);
	if (c)
		munge_ctx_destroy(c);
	return st;
}

gradcomp_status munge_open(const char *socket, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err)
{
	munge_ctx_t c = munge_begin(socket);
	gradcomp_status st = GRADCOMP_OK;
	munge_err_t rc = EMUNGE_NO_MEMORY;
	void *payload = NULL;
	int bytes = 0;
	uid_t uid = (uid_t)-1;
	gid_t gid;

	if (c)
		rc = munge_decode(text, c, &payload, &bytes, &uid, &gid);
	/* Each rank of a node opens it once; munged calls that a replay, and gives
	 * the content all the same. */
	if (rc != EMUNGE_SUCCESS && rc != EMUNGE_CRED_REPLAYED)
		st = error_set(err, GRADCOMP_ERR_AUTH, "munge does not open what rank 0 has sealed: %s", munge_strerror(rc));
	else if (uid != geteuid())
		st = error_set(err, GRADCOMP_ERR_AUTH, "what should be of rank 0 was sealed by user %u, not by user %u",
		               (unsigned)uid, (unsigned)geteuid());
	else if (bytes != SECRET_BYTES)
		st = error_set(err, GRADCOMP_ERR_AUTH, "what rank 0 has sealed has %d bytes, not %d", bytes, SECRET_BYTES);
	else
		memcpy(secret, payload, SECRET_BYTES);
	if (payload && bytes > 0)
		secret_wipe(payload, (size_t)bytes);
	free(payload);
	if (c)
		munge_ctx_destroy(c);
	return st;
}

#else

gradcomp_status munge_seal(const char *socket, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err)
{
	(void)socket, (void)secret, (void)text;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "security.secret=munge: this gradcomp was built without it (configure --with-munge)");
}

gradcomp_status munge_open(const char *socket, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err)
{
	(void)text;
	return munge_seal(socket, secret, NULL, err);
}

#endif
