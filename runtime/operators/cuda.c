/* The CUDA module, operators/cuda.so, loaded when it is first asked for. */
#include <pthread.h>
#include <string.h>

#include "config/config.h"
#include "operators/cuda/cuda_module.h"
#include "base/error.h"
#include "operators/operator_tables.h"
#include "base/module.h"

static gradcomp_status load(const cuda_module **out, gradcomp_error *err)
{
	const void *symbol = NULL;
	const cuda_module *module;
	config *c;
	gradcomp_status st = config_load(NULL, &c, err);
	if (st)
		return st;
	st = module_symbol(config_str(c, SET_GRADCOMP_PLUGIN_PATH), "operators/cuda.so", CUDA_MODULE_SYMBOL, &symbol,
	                   err);
	config_free(c);
	if (st)
		return st;
	module = symbol;
	if (module->struct_size != sizeof *module || module->version != CUDA_MODULE_VERSION ||
	    module->table->struct_size != sizeof *module->table)
		return error_set(
			err, GRADCOMP_ERR_ABI,
			"the CUDA module operators/cuda.so is of version %u, this library wants %d: install both "
			"from one build",
			module->version, CUDA_MODULE_VERSION);
	*out = module;
	return GRADCOMP_OK;
}

const gradcomp_operators *operators_cuda(gradcomp_error *err)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const cuda_module *module;
	const gradcomp_operators *table = NULL;
	char why[320];
	pthread_mutex_lock(&lock);
	if (!module)
		load(&module, err);
	/* Asked each time: kernels are loaded to the device that the calling thread has now. */
	if (module && !module->missing(why, sizeof why))
		table = module->table;
	else if (module)
		error_set(err, GRADCOMP_ERR_UNSUPPORTED, "operators/cuda.so cannot be used: %s", why);
	pthread_mutex_unlock(&lock);
	return table;
}

gradcomp_status operators_on_device(const config *c, const char *what, device_memory *m, const gradcomp_operators **ops,
                                    gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gradcomp_status st = device_memory_check(m, err);
	if (st)
		return st;
	m->d = device_open(c, &inner);
	*ops = m->d ? operators_cuda(&inner) : NULL;
	return *ops ? GRADCOMP_OK
	            : error_set(err, inner.status, "%s in CUDA memory are not served here: %s", what, inner.text);
}
