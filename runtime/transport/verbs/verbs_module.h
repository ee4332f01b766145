/* The settings of links over verbs, and the module transport/verbs.so, which is loaded
 * only where there is a device. */
#ifndef TRANSPORT_VERBS_VERBS_MODULE_H
#define TRANSPORT_VERBS_VERBS_MODULE_H

#include "config/config.h"
#include "transport/core/transport.h"

/* Fills the verbs_ fields of *o; *why, kept as long as *o is used, holds the reason
 * when there is no module. */
void verbs_options(const config *c, transport_options *o, gradcomp_error *why);

#endif
