/* Long sends over tcp straight out of the caller's buffer (MSG_ZEROCOPY; kernel:
 * Documentation/networking/msg_zerocopy.rst). The kernel numbers the calls and
 * reports on the socket's error queue which have finished; a send is done when all of its
 * calls have. When the kernel reports that it had to copy after all, as it does on
 * loopback and between virtual machines, transport.zerocopy=auto ends it for that
 * connection. */
#ifndef TRANSPORT_TCP_ZEROCOPY_H
#define TRANSPORT_TCP_ZEROCOPY_H

#include "transport/link/link.h"

#define ZEROCOPY_MIN (64u << 10) /* shorter sends are cheaper to copy */
#define ZEROCOPY_CALLS 32        /* unfinished, per connection */

typedef struct zerocopy {
	uint32_t next, done;         /* calls made, and finished in order up to here */
	uint64_t copied;             /* calls the kernel had to copy for */
	int off;                     /* ended for this connection */
	request *of[ZEROCOPY_CALLS]; /* the request of a call; NULL: finished before an earlier one */
} zerocopy;

/* NULL when the setting or the kernel does not allow it, or without memory. */
zerocopy *zerocopy_start(const transport *t, int fd);
/* MSG_ZEROCOPY when the next send of so many bytes is to be one, else 0. */
int zerocopy_flag(const zerocopy *z, size_t bytes);
/* The call for r succeeded. */
void zerocopy_sent(zerocopy *z, request *r);
/* Takes the kernel's notifications; finishes requests. 1 when there was one. */
int zerocopy_reap(const transport *t, zerocopy *z, int fd);
static inline int zerocopy_busy(const zerocopy *z)
{
	return z && z->next != z->done;
}
/* The buffers are given back: what is not sent yet never will be. */
void zerocopy_abort(zerocopy *z, int fd);

#endif
