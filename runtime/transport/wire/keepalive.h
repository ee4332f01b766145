/* Does the host at the other end of a data connection still answer? The control tree
 * finds dead and stopped ranks; this finds a connection whose packets are lost while the
 * tree's are not. TCP_USER_TIMEOUT would not do: it also ends connections to a
 * rank that lives and only does not read for a while. */
#ifndef TRANSPORT_WIRE_KEEPALIVE_H
#define TRANSPORT_WIRE_KEEPALIVE_H

#include <stdbool.h>

/* From now on the kernel probes when the connection is idle. To be called when it has been made, even if it then waits
 * to be used: else keepalive_lost() may find a long silence in which nothing was asked. */
void keepalive_start(int fd, double timeout);
/* True: the other host has not answered for `timeout` seconds (3 at least) though it was
 * probed or sent something. */
bool keepalive_lost(int fd, double timeout);

/* Probes a connection that keepalive_lost() has found to be lost, and returns the bytes of the packets that do not
 * get through, where the host does answer a small one within `seconds`; 0: it answers none, or nothing waits to be
 * acknowledged. */
unsigned keepalive_too_large(int fd, double seconds);

#endif
