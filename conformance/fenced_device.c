/* The operators of the fenced device: the host's, with the fence lowered while they
 * run. */
#include "conformance/fenced_device.h"
#include "conformance/guard.h"

static gradcomp_operators host;

static void fence_again(const int *lowered)
{
	(void)lowered;
	guard_fence(1);
}

#define GRADCOMP_OPERATOR(result, name, promise, on_host, parameters, arguments) \
	static result fenced_##name parameters \
	{ \
		__attribute__((cleanup(fence_again))) const int lowered = 1; \
		(void)lowered; \
		guard_fence(0); \
		return host.name arguments; \
	}
#include "gradcomp/operators.def"

/* Sizes touch no memory and stay as they are. */
const gradcomp_operators *fenced_device_operators(const gradcomp_operators *of)
{
	static gradcomp_operators table;
	host = *of;
	table = *of;
	table.device = GRADCOMP_CUDA;
#define GRADCOMP_OPERATOR(result, name, promise, on_host, parameters, arguments) table.name = fenced_##name;
#include "gradcomp/operators.def"
	return &table;
}
