/* Opening a shared object that nobody but root or the user could have written. It
 * stays open for ever: code that has run is not unmapped. */
#ifndef BASE_MODULE_H
#define BASE_MODULE_H

#include "gradcomp/abi.h"

/* *handle is for dlsym(). RTLD_NOW | RTLD_LOCAL. Errors: those of secure_open(),
 * and ERR_ABI with the reason. Any thread. */
gradcomp_status module_open(const char *path, void **handle, gradcomp_error *err);
/* The first DIRECTORY/relative of a list separated by ':' that exists, malloc'ed;
 * NULL and errno ENOENT when there is none, ENOMEM without memory. */
char *module_find(const char *directories, const char *relative);
/* A symbol of one of the library's own modules, by its path relative to a list of directories
 * (gradcomp.plugin_path) or, where it is in none of them, to the installation. */
gradcomp_status module_symbol(const char *directories, const char *relative, const char *name, const void **symbol,
                              gradcomp_error *err);

#endif
