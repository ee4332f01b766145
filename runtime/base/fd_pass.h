/* Descriptors that go through a local socket with bytes (SCM_RIGHTS). */
#ifndef BASE_FD_PASS_H
#define BASE_FD_PASS_H

#include <stddef.h>
#include <sys/types.h>

#define FD_NONE (-1) /* none came */
#define FD_LOST (-2) /* one came, and this process can have no more */

/* Sends bytes, at least one, and `fd` with the first of them. As send() that neither blocks nor
 * raises SIGPIPE; `fd` stays the caller's. */
ssize_t fd_pass(int socket, const void *buf, size_t bytes, int fd);
/* Receives like recv(), without blocking. *fd is the caller's, closed on exec, or FD_NONE or FD_LOST; of several
 * only the last is kept. */
ssize_t fd_take(int socket, void *buf, size_t bytes, int *fd);

#endif
