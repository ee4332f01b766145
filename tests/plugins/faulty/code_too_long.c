/* code: a code that makes more bytes than its bound. */
#define CODE_NAME "code_too_long"
#define CODE_EXTRA 8
#include "tests/plugins/faulty_code.h"
