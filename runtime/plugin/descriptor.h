/* The constant a plugin exports, held to what abi.h, compressor.h and
 * collective.h promise the runtime, before anything in it is used. */
#ifndef PLUGIN_DESCRIPTOR_H
#define PLUGIN_DESCRIPTOR_H

#include "gradcomp/collective.h"
#include "gradcomp/compressor.h"
#include "gradcomp/gradcomp.h"

/* A descriptor of whatever release, in today's length: what the plugin does not have is zero. */
typedef union descriptor {
	gradcomp_plugin_info info; /* the first member of both */
	struct gradcomp_compressor_v1 compressor;
	struct gradcomp_collective_v1 collective;
} descriptor;

/* Copies and checks it. `exported` bytes of the symbol at `from` are there to be read. `name` is the
 * file's, without ".so". ERR_ABI names the field, what it holds and what it should. */
gradcomp_status descriptor_read(gradcomp_plugin_kind kind, const char *name, const char *path, const void *from,
                                size_t exported, descriptor *out, gradcomp_error *err);

/* Returns the status of a compressor's `function`, whose text is in *own, zeroed before. A failure without a text
 * is given one; a status above 0, which peers would not take for one, is a failure. */
gradcomp_status descriptor_compressor_status(const struct gradcomp_compressor_v1 *c, const char *function,
                                             gradcomp_status st, const gradcomp_error *own, gradcomp_error *err);

#endif
