/* peers: a decoder that does not look how many bytes there are. */
#define CODE_NAME "code_reads_on"
#define CODE_TRUSTING
#include "tests/plugins/faulty_code.h"
