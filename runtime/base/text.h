/* Names for people, names of files, and hexadecimal digits. gradcomp_printable() and gradcomp_size_text()
 * are public (gradcomp/stage.h). */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "gradcomp/stage.h"

#define TEXT_NAME_MAX 400 /* for gradcomp_printable() in messages */

/* Fails with "cannot WHAT NAME: strerror(errno)", NAME printable: IO, or NOMEM. */
gradcomp_status text_cannot(gradcomp_error *err, const char *what, const char *name);
#ifdef __clang_analyzer__ /* error.h says why */
#define text_cannot(err, what, name) ((void)text_cannot(err, what, name), GRADCOMP_ERR_IO)
#endif

/* Where a text has the first character that cannot be seen and is no blank, and what that is; -1: it has none. */
int text_hidden(const char *text, const char **what);
/* Returns true when a directory may have an entry of this name, which has n bytes. */
bool text_is_file_name(const char *name, size_t n);
/* Returns 0 to 15, or -1; digits in lower case. */
int text_hex_digit(char c);

#endif
