/* The constants of plugins that other releases built: of both kinds, at every length from the first to beyond today's,
 * with something else behind; and what a plugin says it needs of the host. */
#include <string.h>

#include "base/first_sizes.h"
#include "gradcomp/collective.h"
#include "gradcomp/compressor.h"
#include "plugin/descriptor.h"
#include "plugin/operators_v1.h"
#include "tests/support/tap.h"

enum { BEYOND = 64 };

/* A constant with what lies behind it. */
typedef union exported {
	descriptor d;
	unsigned char byte[sizeof(descriptor) + BEYOND];
} exported;

static const size_t first[] = {FIRST_SIZE(gradcomp_compressor_v1), FIRST_SIZE(gradcomp_collective_v1)};
static const size_t today[] = {sizeof(struct gradcomp_compressor_v1), sizeof(struct gradcomp_collective_v1)};
static gradcomp_error e;

static void any(void)
{
}

/* Makes what both kinds cannot do without; every other function of the first length is there, too. */
static exported made(gradcomp_plugin_kind kind, uint32_t abi, size_t bytes)
{
	void (*function)(void) = any;
	exported x;
	memset(&x, 0, sizeof x);
	x.d.info = (gradcomp_plugin_info){.abi_version = abi,
	                                  .struct_size = (uint32_t)bytes,
	                                  .name = "old",
	                                  .version = "1",
	                                  .summary = "of another release",
	                                  .licence = "MIT"};
	size_t from = kind == GRADCOMP_KIND_COMPRESSOR ? offsetof(struct gradcomp_compressor_v1, check)
	                                               : offsetof(struct gradcomp_collective_v1, check);
	size_t to = kind == GRADCOMP_KIND_COMPRESSOR ? offsetof(struct gradcomp_compressor_v1, reserved) : first[kind];
	for (size_t at = from; at < to; at += sizeof function)
		memcpy(x.byte + at, &function, sizeof function);
	if (kind == GRADCOMP_KIND_COMPRESSOR)
		x.d.compressor.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED);
	else
		x.d.collective.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_SHARD;
	memset(x.byte + bytes, 0xa5, sizeof x.byte - bytes);
	return x;
}

static gradcomp_status read_it(gradcomp_plugin_kind kind, const exported *x, descriptor *out)
{
	return descriptor_read(kind, "old", "old.so", x, sizeof x->byte, out, &e);
}

static int zero(const void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)p)[i])
			return 0;
	return 1;
}

static void lengths(gradcomp_plugin_kind kind, const char *word)
{
	int wrong = 0, tried = 0;
	for (size_t bytes = first[kind]; bytes <= today[kind]; bytes += 8, tried++)
		for (uint32_t abi = 1; abi <= GRADCOMP_ABI_VERSION; abi++) {
			exported x = made(kind, abi, bytes);
			descriptor out;
			memset(&out, 0xff, sizeof out);
			wrong += read_it(kind, &x, &out) || memcmp(&out, &x, bytes) ||
			         !zero((char *)&out + bytes, sizeof out - bytes);
		}
	ok(!wrong && tried, "%s: of %zu to %zu bytes each is read, and what it lacks is zero", word, first[kind],
	   today[kind]);
	exported x = made(kind, 1, first[kind] - 8);
	descriptor out;
	is_int(read_it(kind, &x, &out), GRADCOMP_ERR_ABI, "%s: shorter than the first", word);
	char says[80];
	snprintf(says, sizeof says, "struct_size: found %zu, expected %zu to", first[kind] - 8, first[kind]);
	like(e.text, says, "... says both");
}

static void longer(gradcomp_plugin_kind kind, const char *word)
{
	static const gradcomp_need needs[] = {GRADCOMP_NEED(operators, copy_if)};
	exported x = made(kind, GRADCOMP_ABI_VERSION + 1, today[kind] + 16);
	descriptor out;
	is_int(read_it(kind, &x, &out), GRADCOMP_ERR_ABI, "%s: newer, and silent about its needs", word);
	char says[80];
	snprintf(says, sizeof says, "abi_version: found %d, expected at most %d", GRADCOMP_ABI_VERSION + 1,
	         GRADCOMP_ABI_VERSION);
	like(e.text, says, "... is refused with both numbers");
	x.d.info.needs = needs;
	x.d.info.nneeds = 1;
	is_int(read_it(kind, &x, &out), 0, "%s: newer, and in need of nothing that is not here: %s", word, e.text);
	is_int(out.info.struct_size, (long)today[kind], "... has today's length here");
}

/* One field of each structure that the host hands out, and its last. */
static void needs(void)
{
#define LAST(structure) \
	{ \
#structure ".what_is_to_come", sizeof(struct gradcomp_##structure) + 8, \
		{ \
			0, 0 \
		} \
	}
	static const gradcomp_need here[] = {GRADCOMP_NEED(host, operators_on), GRADCOMP_NEED(operators, dct_back),
	                                     GRADCOMP_NEED(links, multicast),   GRADCOMP_NEED(layout, device),
	                                     GRADCOMP_NEED(bucket, numel),      GRADCOMP_NEED(work, hold),
	                                     GRADCOMP_NEED(measured, reserved), GRADCOMP_NEED(codec, decode_add),
	                                     GRADCOMP_NEED(merger, merge),      GRADCOMP_NEED(exchange, server_error)};
	static const gradcomp_need absent[] = {LAST(host),
	                                       LAST(operators),
	                                       LAST(links),
	                                       LAST(layout),
	                                       LAST(bucket),
	                                       LAST(work),
	                                       LAST(measured),
	                                       LAST(codec),
	                                       LAST(merger),
	                                       LAST(exchange),
	                                       {"tensors.colour", 8, {0, 0}},
	                                       {"", 0, {0, 0}}};
	exported x = made(GRADCOMP_KIND_COMPRESSOR, GRADCOMP_ABI_VERSION, today[0]);
	descriptor out;
	x.d.info.needs = here;
	x.d.info.nneeds = sizeof here / sizeof *here;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), 0, "everything that is here may be needed: %s", e.text);
	x.d.info.nneeds = 1;
	for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
		char says[80];
		x.d.info.needs = &absent[i];
		is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), GRADCOMP_ERR_ABI, "'%s' is needed and not here",
		       absent[i].name);
		snprintf(says, sizeof says, "the plugin needs %s, which this gradcomp ", absent[i].name);
		like(e.text, says, "... says so");
	}
	x.d.info.needs = NULL;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), GRADCOMP_ERR_ABI, "rows without a table");
	like(e.text, "nneeds: found 1 without a table", "... are told");
	x.d.info.nneeds = 257;
	x.d.info.needs = here;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), GRADCOMP_ERR_ABI, "more rows than are read");
	static const gradcomp_need nameless[1];
	x.d.info.nneeds = 1;
	x.d.info.needs = nameless;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), GRADCOMP_ERR_ABI, "a row without a name");
	like(e.text, "row 0 has no name", "... is told");
	static const gradcomp_need old = {"operators.dct_back", sizeof(gradcomp_operators_v1), {0, 0}};
	x.d.info.needs = &old;
	x.d.info.abi_version = 2;
	x.d.compressor.traits = GRADCOMP_TRAIT_CUDA;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), 0, "ABI 2 needs the last of its operators: %s", e.text);
	is_int(out.compressor.traits, 0, "... on the host, where it has operators");
	x.d.info.abi_version = 1;
	x.d.info.needs = here;
	is_int(read_it(GRADCOMP_KIND_COMPRESSOR, &x, &out), GRADCOMP_ERR_ABI, "ABI 1 has no needs");
}

int main(void)
{
	for (int kind = 0; kind < 2; kind++) {
		const char *word = kind == GRADCOMP_KIND_COMPRESSOR ? "a compressor" : "a collective";
		lengths((gradcomp_plugin_kind)kind, word);
		longer((gradcomp_plugin_kind)kind, word);
	}
	needs();
	return done_testing();
}
