/* code: a sum that overflows becomes the largest number. */
#define CODE_NAME "code_caps"
#define CODE_CAPS
#include "tests/plugins/faulty_code.h"
