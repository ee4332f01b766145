/* A listening socket for any address, on a port of a range. */
#ifndef TRANSPORT_CORE_PORTS_H
#define TRANSPORT_CORE_PORTS_H

#include <stdint.h>

#include "gradcomp/abi.h"

/* `range` is "" (any free port) or FIRST-LAST; INVALID when it is neither. */
gradcomp_status address_ports_listen(const char *range, int *fd, uint16_t *port, gradcomp_error *err);

#endif
