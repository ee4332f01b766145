#include "base/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/elf_check.h"
#include "base/error.h"
#include "base/secure.h"

gradcomp_status module_open(const char *path, void **handle, gradcomp_error *err)
{
	gradcomp_status status;
	char *real = NULL;
	int fd = -1;

	status = secure_open(path, &fd, &real, err);
	if (status)
		return status;
	status = elf_check(fd, path, err);
	close(fd);
	if (!status) {
		*handle = dlopen(real, RTLD_NOW | RTLD_LOCAL);
		if (!*handle)
			status = error_set(err, GRADCOMP_ERR_ABI, "%s cannot be loaded: %s", path, dlerror());
	}
	free(real);
	return status;
}

char *module_find(const char *directories, const char *relative)
{
	for (const char *p = directories;; p++) {
		size_t n = strcspn(p, ":");
		char *path;

		if (asprintf(&path, "%.*s/%s", (int)n, p, relative) < 0)
			return NULL;
		if (!access(path, F_OK))
			return path;
		free(path);
		p += n;
		if (!*p)
			return NULL;
	}
}
