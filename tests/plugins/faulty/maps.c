/* steady: asks for pages in every step. */
#define FAULT_NAME "maps"
#include <sys/mman.h>
#define FAULT_ENCODE munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096)
#include "tests/plugins/faulty_compressor.h"
