#include "base/module.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/install.h"
#include "base/secure.h"

/* dlopen() refuses whatever is no shared object for this machine, but of one that a full disk
 * has cut short it maps what is not there, and the process ends by SIGBUS. The linker writes
 * the section headers last. */
static gradcomp_status module_not_cut(int fd, const char *path, gradcomp_error *err)
{
	Elf64_Ehdr h;
	struct stat st;
	if (fstat(fd, &st))
		return error_errno(err, GRADCOMP_ERR_IO, "%s", path);
	if (pread(fd, &h, sizeof h, 0) != sizeof h || memcmp(h.e_ident, ELFMAG, SELFMAG) ||
	    h.e_ident[EI_CLASS] != ELFCLASS64)
		return GRADCOMP_OK;
	if (h.e_shoff > (uint64_t)st.st_size || (uint64_t)h.e_shnum * h.e_shentsize > (uint64_t)st.st_size - h.e_shoff)
		return error_set(err, GRADCOMP_ERR_ABI, "%s is truncated: it has %llu bytes; install the file again",
		                 path, (unsigned long long)st.st_size);
	return GRADCOMP_OK;
}

gradcomp_status module_open(const char *path, void **handle, gradcomp_error *err)
{
	gradcomp_status st;
	char *real = NULL;
	int fd = -1;
	st = secure_open(path, &fd, &real, err);
	if (st)
		return st;
	st = module_not_cut(fd, path, err);
	close(fd);
	*handle = st ? NULL : dlopen(real, RTLD_NOW | RTLD_LOCAL);
	if (!st && !*handle)
		st = error_set(err, GRADCOMP_ERR_ABI, "%s cannot be loaded: %s", path, dlerror());
	free(real);
	return st;
}

char *module_find(const char *directories, const char *relative)
{
	for (const char *p = directories;; p++) {
		size_t n = strcspn(p, ":");
		char *path;

		if (asprintf(&path, "%.*s/%s", (int)n, p, relative) < 0) {
			errno = ENOMEM;
			return NULL;
		}
		if (!access(path, F_OK))
			return path;
		free(path);
		p += n;
		if (!*p) {
			errno = ENOENT;
			return NULL;
		}
	}
}

gradcomp_status module_symbol(const char *directories, const char *relative, const char *name, const void **symbol,
                              gradcomp_error *err)
{
	char *installed = NULL, *path = module_find(directories, relative);
	gradcomp_status st;
	void *handle;
	/* A plugin path of the user's own need not name the installation. */
	if (!path && (installed = install_path(GRADCOMP_PLUGINDIR)))
		path = module_find(installed, relative);
	if (!path)
		st = error_set(err, GRADCOMP_ERR_NOTFOUND,
		               "%s is not installed in %s or %s (gradcomp was built without it)", relative, directories,
		               installed ? installed : GRADCOMP_PLUGINDIR);
	else if (!(st = module_open(path, &handle, err)) && !(*symbol = dlsym(handle, name)))
		st = error_set(err, GRADCOMP_ERR_ABI, "%s does not export %s", path, name);
	free(path);
	free(installed);
	return st;
}
