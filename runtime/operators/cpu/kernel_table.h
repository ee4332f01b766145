/* The table of a variant, for kernels.h's KERNEL(): included once, behind `const gradcomp_operators NAME =`. */
#ifndef OPERATORS_CPU_KERNEL_TABLE_H
#define OPERATORS_CPU_KERNEL_TABLE_H

#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) .name = KERNEL(name),
#define GRADCOMP_SCRATCH(name, parameters, arguments) .name = KERNEL(name),
#define GRADCOMP_SIZE(name, parameters, arguments) .name = KERNEL(name),
{
	.struct_size = sizeof(gradcomp_operators),
	.device = GRADCOMP_HOST,
	.failed = KERNEL(failed),
#include "gradcomp/operators.def"
};

#endif
