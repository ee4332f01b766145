/* threads: code() and the decoder use one workspace of the instance. */
#define CODE_NAME "code_shares"
#define CODE_SHARED
#include "tests/plugins/faulty_code.h"
