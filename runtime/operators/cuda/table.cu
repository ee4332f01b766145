/* The table of the device. */
#include "operators/cuda/cuda_device.h"

#include "operators/cuda/cuda_checked.h"
#include "operators/cuda/cuda_module.h"

static constexpr gradcomp_operators make()
{
	gradcomp_operators t = {};
	t.struct_size = sizeof t;
	t.device = GRADCOMP_CUDA;
	t.failed = checked_failed;
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) CHECKED(t, name, &name##_cuda);
#define GRADCOMP_SCRATCH(name, parameters, arguments) t.name = name##_cuda;
#define GRADCOMP_SIZE(name, parameters, arguments) t.name = name##_cuda;
#include "gradcomp/operators.def"
	return t;
}

static constexpr gradcomp_operators table = make();

extern "C" GRADCOMP_EXPORT const cuda_module gradcomp_operators_cuda;
const cuda_module gradcomp_operators_cuda = {sizeof(cuda_module), CUDA_MODULE_VERSION, &table, cuda_missing};
