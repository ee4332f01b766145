/* Makes the gradcomp_host that plugins are given. */
#ifndef PLUGIN_PLUGIN_HOST_H
#define PLUGIN_PLUGIN_HOST_H

#include "base/log.h"
#include "gradcomp/abi.h"

/* The services handed to plugins; `log` must outlive every instance. */
void plugin_host(gradcomp_host *host, const log_sink *log);

#endif
