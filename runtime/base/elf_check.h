/* Whether a file is a whole shared object for this machine. dlopen() maps what
 * the headers promise: a file cut short on a full disk would end the process
 * with SIGBUS instead of a message. */
#ifndef BASE_ELF_CHECK_H
#define BASE_ELF_CHECK_H

#include "gradcomp/abi.h"

/* Reads the headers of `fd`, leaves its offset alone. `path` is for messages.
 * ERR_ABI says what is wrong. Any thread. */
gradcomp_status elf_check(int fd, const char *path, gradcomp_error *err);

#endif
