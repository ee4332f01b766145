/* A device that is none: its memory cannot be touched but by its operators, which are
 * the host's with the fence lowered. Finds plugins that read or write device memory
 * themselves, without a device. */
#ifndef CONFORMANCE_FENCED_DEVICE_H
#define CONFORMANCE_FENCED_DEVICE_H

#include "gradcomp/operators.h"

/* Returns the table of the fenced device, made of `host`. One at a time. */
const gradcomp_operators *fenced_device_operators(const gradcomp_operators *host);

#endif
