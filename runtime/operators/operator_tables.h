/* The operator tables of this machine (gradcomp/operators.h). */
#ifndef OPERATORS_OPERATOR_TABLES_H
#define OPERATORS_OPERATOR_TABLES_H

#include "device/device.h"
#include "gradcomp/operators.h"

/* The best table this processor can run, shared out among threads where there are
 * any (threads.h). Constant, never NULL; any thread. */
const gradcomp_operators *operators_cpu(void);
/* One table of host operators by name, so that tests can hold them against each
 * other: "portable", "avx2" or "avx512". NULL when it was not built or cannot run here. */
const gradcomp_operators *operators_cpu_variant(const char *name);
/* The operators of NVIDIA GPUs, from a module that the first call loads. Their queue is
 * a cudaStream_t of the device that is current. NULL and the reason in *err (may be
 * NULL) where there are none: not built, no driver, no device. Any thread. */
const gradcomp_operators *operators_cuda(gradcomp_error *err);
/* All that works on gradients in GPU memory begins with this: it checks *m, the program's allocator, and opens the
 * device, m->d, and the operators. `what` ("gradients") is not served here where there are none. */
gradcomp_status operators_on_device(const struct config *c, const char *what, device_memory *m,
                                    const gradcomp_operators **ops, gradcomp_error *err);

#endif
