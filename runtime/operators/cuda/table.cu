/* The table of the device. */
#include "operators/cuda/cuda_device.h"

#include "operators/cuda/cuda_checked.h"
#include "operators/cuda/cuda_module.h"

static constexpr gradcomp_operators make()
{
	gradcomp_operators t = {};
	t.struct_size = sizeof t;
	t.device = GRADCOMP_CUDA;
	t.quantised_bytes = quantised_bytes;
	t.sign_words = sign_words;
	t.index_words = index_words;
	t.failed = checked_failed;
#define PUT_CHECKED(name) CHECKED(t, name, &name##_cuda);
#define PUT_SIZE(name) t.name = name##_cuda;
	EACH_OPERATOR(PUT_CHECKED)
	EACH_SIZE(PUT_SIZE)
	return t;
}

static constexpr gradcomp_operators table = make();

extern "C" GRADCOMP_EXPORT const cuda_module gradcomp_operators_cuda;
const cuda_module gradcomp_operators_cuda = {sizeof(cuda_module), CUDA_MODULE_VERSION, &table, cuda_missing};
