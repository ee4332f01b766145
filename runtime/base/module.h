/* Opening a shared object that nobody but root or the user could have written and
 * that is whole. It stays open for ever: code that has run is not unmapped. */
#ifndef BASE_MODULE_H
#define BASE_MODULE_H

#include "gradcomp/abi.h"

/* *handle is for dlsym(). RTLD_NOW | RTLD_LOCAL. Errors: those of secure_open(),
 * and ERR_ABI with the reason. Any thread. */
gradcomp_status module_open(const char *path, void **handle, gradcomp_error *err);
/* The first DIRECTORY/relative of a list separated by ':' that exists, malloc'ed;
 * NULL when there is none. */
char *module_find(const char *directories, const char *relative);

#endif
