/* process: has an allocator of its own, which others could come to use. */
#define FAULT_NAME "own_malloc"
#include <stddef.h>
#include "tests/plugins/faulty_compressor.h"

GRADCOMP_EXPORT void *malloc(size_t bytes)
{
	static _Alignas(16) char room[65536];
	static size_t used;
	used += (bytes + 15) / 16 * 16;
	return used <= sizeof room ? room + used - (bytes + 15) / 16 * 16 : NULL;
}
