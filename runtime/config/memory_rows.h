/* Parameters that every compressor with an error memory takes, though its table has none of them: how this library
 * keeps that memory (step/error_memory.h). They stand behind the plugin's own, which does not know of them. A SPEC in
 * full leaves out those that have their default, so that it reads as it did before there were any. */
#ifndef CONFIG_MEMORY_ROWS_H
#define CONFIG_MEMORY_ROWS_H

#include "gradcomp/compressor.h"

#include <stdbool.h>

typedef enum memory_row { MEMORY_ROWS_FORM, MEMORY_ROWS_AVERAGE, MEMORY_ROWS } memory_row;
typedef enum memory_form { MEMORY_F32, MEMORY_BF16, MEMORY_I8, MEMORY_FORMS } memory_form;

/* Returns whether this library has added the row to a plugin's table. */
bool memory_rows_has(const gradcomp_param *row);
/* The compressor's table with those rows behind its own; NULL: no memory. The same table where the compressor keeps no
 * error memory, or has parameters of its own that are called so. Else it
 * is for memory_rows_free(), and lives as long as the compressor. */
const gradcomp_param *memory_rows_join(const struct gradcomp_compressor_v1 *c, uint32_t *nrows);
void memory_rows_free(const gradcomp_plugin_info *info);
/* How the values of a SPEC ask for error memory to be kept: *average is the share of the newest. */
memory_form memory_rows_asked(const gradcomp_plugin_info *info, const gradcomp_value *values, float *average);
/* Returns whether they ask for anything but a float a number, all of it the newest. */
bool memory_rows_special(const gradcomp_plugin_info *info, const gradcomp_value *values);
/* Returns the bytes that each of many numbers takes in a form. */
double memory_rows_bytes(memory_form form);

#endif
