/* dlopen() of the collective nccl: its libnccl.so.2 is the fake, whatever the process has loaded.
 * FAKE_NCCL_ABSENT=1: there is none. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_NCCL
#define FAKE_NCCL "libnccl.so.2" /* tests/fake/compile gives its path */
#endif

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

void *__wrap_dlopen(const char *name, int flags)
{
	const char *fake = getenv("FAKE_NCCL_ABSENT") ? "libnccl.so.absent" : FAKE_NCCL;
	return __real_dlopen(name && !strcmp(name, "libnccl.so.2") ? fake : name, flags);
}
