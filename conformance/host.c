#include "conformance/host.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "conformance/fenced_device.h"
#include "conformance/hooks.h"
#include "gradcomp/plugin.h"

#define ALLOCATIONS_MAX 16384

int host_allocated, host_fail_at = -1;
size_t host_most = SIZE_MAX / 4, host_refused, host_spoiled;

static guarded allocations[ALLOCATIONS_MAX];
static int most; /* the most that were in use so far */
/* Ranks of a collective are threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *take(size_t bytes)
{
	int i = 0;
	if (host_fail_at == 0)
		return NULL;
	host_fail_at -= host_fail_at > 0;
	while (i < ALLOCATIONS_MAX && allocations[i].map)
		i++;
	if (bytes > host_most)
		host_refused = bytes;
	if (i == ALLOCATIONS_MAX || bytes > host_most)
		return NULL;
	allocations[i] = guard("memory of the instance", bytes, 64);
	memset(allocations[i].data, 0, bytes);
	host_allocated++;
	most = i < most ? most : i + 1;
	return allocations[i].data;
}

static void *host_alloc(size_t bytes)
{
	void *p;
	hooks_note("host->alloc");
	pthread_mutex_lock(&lock);
	p = take(bytes);
	pthread_mutex_unlock(&lock);
	return p;
}

static void give_back(const void *p)
{
	for (int i = 0; i < ALLOCATIONS_MAX; i++)
		if (allocations[i].map && allocations[i].data == p) {
			if (!guard_intact(&allocations[i]))
				host_spoiled = allocations[i].bytes + 1;
			guard_free(&allocations[i]);
			host_allocated--;
			return;
		}
	/* Released twice, or never allocated: the balance goes wrong for good. */
	host_allocated -= 1000;
}

static void host_release(void *p)
{
	if (!p)
		return;
	hooks_note("host->release");
	pthread_mutex_lock(&lock);
	give_back(p);
	pthread_mutex_unlock(&lock);
}

void host_lock(int read_only)
{
	for (int i = 0; i < most; i++)
		guard_lock(&allocations[i], read_only);
}

static bool is_string(const gradcomp_plugin_info *info, const gradcomp_value *values, uint32_t i)
{
	return info->params[i].type == GRADCOMP_PARAM_STRING && values[i].s;
}

const gradcomp_value *host_lend(host_values *v, const gradcomp_plugin_info *info, const gradcomp_value *values)
{
	size_t bytes = 0, at = 0;
	for (uint32_t i = 0; i < info->nparams; i++)
		bytes += is_string(info, values, i) ? strlen(values[i].s) + 1 : 0;
	v->array = guard("the values of parameters", info->nparams * sizeof *values, 8);
	v->strings = guard("the value of a parameter", bytes, 1);
	gradcomp_value *array = (gradcomp_value *)(void *)v->array.data;
	for (uint32_t i = 0; i < info->nparams; i++) {
		array[i] = values[i];
		if (!is_string(info, values, i))
			continue;
		array[i].s = v->strings.data + at;
		memcpy(v->strings.data + at, values[i].s, strlen(values[i].s) + 1);
		at += strlen(values[i].s) + 1;
	}
	guard_lock(&v->array, 1);
	guard_lock(&v->strings, 1);
	return array;
}

void host_take_back(host_values *v)
{
	guard_free(&v->array);
	guard_free(&v->strings);
}

gradcomp_status host_fail(gradcomp_error *err, gradcomp_status s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (err) {
		err->status = s;
		vsnprintf(err->text, sizeof err->text, fmt, ap);
	}
	va_end(ap);
	return s;
}

GRADCOMP_PRINTF(3, 4) static void host_log(void *ctx, gradcomp_log_level level, const char *fmt, ...)
{
	(void)ctx, (void)level, (void)fmt;
}

/* Gives operators of the fenced device as the host gives those of a real one. */
static const gradcomp_operators *operators_on(gradcomp_device device, gradcomp_error *err)
{
	if (device == GRADCOMP_HOST)
		return gradcomp_host_operators();
	if (device == GRADCOMP_CUDA)
		return fenced_device_operators(gradcomp_host_operators());
	host_fail(err, GRADCOMP_ERR_INVALID, "device %d: must be 0 (host) or 1 (CUDA)", (int)device);
	return NULL;
}

void host_services(gradcomp_host *host, const struct gradcomp_operators *op)
{
	*host = (gradcomp_host){.struct_size = sizeof *host,
	                        .abi_version = GRADCOMP_ABI_VERSION,
	                        .log = host_log,
	                        .fail = host_fail,
	                        .alloc = host_alloc,
	                        .release = host_release,
	                        .operators_v1 = gradcomp_operators_on_v1(GRADCOMP_HOST, NULL),
	                        .operators_on_v1 = gradcomp_operators_on_v1,
	                        .operators = op,
	                        .operators_on = operators_on};
}
