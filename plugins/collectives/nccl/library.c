/* Finding NCCL. */
#include <dlfcn.h>
#include <string.h>

#include "comm.h"

gradcomp_status nccl_load(nccl *n, gradcomp_error *err)
{
	/* Never unloaded: it leaves threads behind. */
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library)
		return n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                     "nccl: %s; install NCCL, or name its folder in LD_LIBRARY_PATH", dlerror());
#define NCCL_LOOK(name) \
	*(void **)&n->f.name = dlsym(library, #name); \
	if (!n->f.name) \
		return n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, \
		                     "nccl: libnccl.so.2 has no %s: it must be of version 2.18 or later", #name);
	NCCL_FUNCTIONS(NCCL_LOOK)
	return GRADCOMP_OK;
}
