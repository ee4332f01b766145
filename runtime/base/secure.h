/* Files whose content decides what runs in a user's process: settings and
 * plugins. They are opened only when nobody but root and the user could have
 * put them there. Any thread. */
#ifndef BASE_SECURE_H
#define BASE_SECURE_H

#include "gradcomp/abi.h"

/* Opens a regular file for reading when it and every directory above it belong
 * to root or to the effective user and cannot be written by group or others; a
 * directory with the sticky bit (/tmp) may be written by anybody, since entries
 * in it cannot be exchanged. Symbolic links are followed first, and the
 * rules apply to what they lead to.
 *
 * *fd (O_CLOEXEC) and *real (the path without links, malloc'ed) are the
 * caller's. Errors: NOTFOUND; INSECURE with the reason and the command that
 * mends it; INVALID for a directory, FIFO, socket or device, which is never
 * opened; IO. */
gradcomp_status secure_open(const char *path, int *fd, char **real, gradcomp_error *err);

#endif
