/* What the transport needs to know for links over verbs: the settings, and the module
 * transport/verbs.so, which is loaded where there is a device. */
#ifndef VERBS_MODULE_H
#define VERBS_MODULE_H

#include "config.h"
#include "transport/transport.h"

/* Fills the verbs_ fields of *o; *why, kept as long as *o is used, holds the reason
 * when there is no module. */
void verbs_options(const config *c, transport_options *o, gradcomp_error *why);

#endif
