/* How long results are does not depend on who makes them: the host says. */
#include "operators/cuda/cuda_device.h"

#define GRADCOMP_SIZE(name, parameters, arguments) \
	extern "C" size_t name##_portable parameters; \
	extern "C" size_t name##_cuda parameters \
	{ \
		return name##_portable arguments; \
	}
#include "gradcomp/operators.def"
