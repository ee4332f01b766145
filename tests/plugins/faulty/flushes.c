/* process: denormal floats are zero, as what -ffast-math links in makes them. */
#define FAULT_NAME "flushes"
#include "tests/plugins/faulty_compressor.h"

__attribute__((constructor)) static void loaded(void)
{
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(1ul << 24));
#endif
}
