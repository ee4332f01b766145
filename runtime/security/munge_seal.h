/* A secret in an envelope that only processes of this user open, on any node of the
 * cluster: a MUNGE credential restricted to the user's id, which munged checks
 * with the kernel on both ends. */
#ifndef SECURITY_MUNGE_SEAL_H
#define SECURITY_MUNGE_SEAL_H

#include "security/secret.h"

#define MUNGE_TEXT 700

/* `socket`: munged's, "" for its usual place. */
gradcomp_status munge_seal(const char *socket, const unsigned char secret[SECRET_BYTES], char text[MUNGE_TEXT],
                           gradcomp_error *err);
/* Only what a process of this user has sealed. */
gradcomp_status munge_open(const char *socket, const char *text, unsigned char secret[SECRET_BYTES],
                           gradcomp_error *err);

#endif
