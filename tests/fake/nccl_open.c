/* dlopen() of the collective nccl: its libnccl.so.2 is the fake, whatever the process has loaded. */
#include <dlfcn.h>
#include <string.h>

#ifndef FAKE_NCCL
#define FAKE_NCCL "libnccl.so.2" /* tests/fake/compile gives its path */
#endif

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

void *__wrap_dlopen(const char *name, int flags)
{
	return __real_dlopen(name && !strcmp(name, "libnccl.so.2") ? FAKE_NCCL : name, flags);
}
