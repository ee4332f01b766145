#include "plugin/plugin_host.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "operators/operator_tables.h"
#include "plugin/operators_v1.h"

static void host_log(void *ctx, gradcomp_log_level level, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	log_vline(ctx, level, fmt, ap);
	va_end(ap);
}

static void *host_alloc(size_t bytes)
{
	size_t whole;
	void *p;
	if (bytes > PTRDIFF_MAX - 63)
		return NULL;
	whole = (bytes + 63) / 64 * 64;
	p = aligned_alloc(64, whole ? whole : 64);
	return p ? memset(p, 0, whole) : NULL;
}

static const gradcomp_operators *host_operators_on(gradcomp_device device, gradcomp_error *err)
{
	if (device == GRADCOMP_CUDA)
		return operators_cuda(err);
	if (device != GRADCOMP_HOST)
		error_set(err, GRADCOMP_ERR_INVALID, "device %d: must be 0 (host) or 1 (CUDA)", (int)device);
	return device == GRADCOMP_HOST ? operators_cpu() : NULL;
}

void plugin_host(gradcomp_host *host, const log_sink *log)
{
	*host = (gradcomp_host){
		.struct_size = sizeof *host,
		.abi_version = GRADCOMP_ABI_VERSION,
		.ctx = (void *)log, /* only read, by host_log */
		.log = host_log,
		.fail = error_set,
		.alloc = host_alloc,
		.release = free,
		.operators_v1 = operators_v1(),
		.operators_on_v1 = operators_v1_on,
		.operators = operators_cpu(),
		.operators_on = host_operators_on,
	};
}
