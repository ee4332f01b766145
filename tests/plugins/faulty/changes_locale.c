/* steady process: speaks UTF-8, and so does the application now. */
#define FAULT_NAME "changes_locale"
#include <locale.h>
#define FAULT_CREATE setlocale(LC_ALL, "C.UTF-8")
#include "tests/plugins/faulty_compressor.h"
