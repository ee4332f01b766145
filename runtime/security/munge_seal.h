/* A secret in an envelope that only processes of this user open, on any node of the
 * cluster: a MUNGE credential restricted to the user's id, which munged checks
 * with the kernel on both ends.
 *
 * What a credential is for is sealed with the secret, so one that was made for another
 * purpose or job, and came into wrong hands or to a wrong place, is refused. */
#ifndef SECURITY_MUNGE_SEAL_H
#define SECURITY_MUNGE_SEAL_H

#include <stdbool.h>

#include "base/log.h"
#include "security/secret.h"

#define MUNGE_TEXT 700
#define MUNGE_PURPOSE 240 /* with the final 0 */

typedef struct munge_request {
	const char *socket;  /* munged's, "" for its usual place */
	const char *purpose; /* the secret's use and its job; printable */
	double patience;     /* s: a munged that is busy, away or silent is asked again for so long */
	const log_sink *log; /* NULL: says nothing */
} munge_request;

/* Returns true when this gradcomp was built with it. */
bool munge_built(void);
/* munged's socket by a value of security.secret, "" its usual place; NULL: the value is for
 * another way than munge and auto. */
const char *munge_socket(const char *setting);

/* No call to munged takes more than about 10 s, which comes on top of the patience. */
gradcomp_status munge_seal(const munge_request *q, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err);
/* Only what a process of this user has sealed for this purpose. */
gradcomp_status munge_open(const munge_request *q, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err);

#endif
