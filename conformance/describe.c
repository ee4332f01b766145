/* The descriptor, beyond what the runtime asks of it. */
#include <stdbool.h>
#include <string.h>

#include "conformance/kit.h"

static bool has(const struct gradcomp_compressor_v1 *c, uint32_t trait)
{
	return (c->traits & trait) != 0;
}

static bool bit(const struct gradcomp_compressor_v1 *c, gradcomp_pattern p)
{
	return ((c->patterns | c->instead) & GRADCOMP_PATTERN_BIT(p)) != 0;
}

static const char *contradiction(const struct gradcomp_compressor_v1 *c)
{
	if (has(c, GRADCOMP_TRAIT_LOSSLESS) && !bit(c, GRADCOMP_CODED))
		return "trait LOSSLESS is about codes, and pattern CODED is not there";
	if (has(c, GRADCOMP_TRAIT_OWN_MOMENTUM) && has(c, GRADCOMP_TRAIT_ERROR_FEEDBACK))
		return "traits OWN_MOMENTUM and ERROR_FEEDBACK exclude each other";
	if (has(c, GRADCOMP_TRAIT_OWN_MOMENTUM) && !c->state_arrays)
		return "trait OWN_MOMENTUM keeps its memory in the last state array, and there is none";
	if (c->keeps_error && !has(c, GRADCOMP_TRAIT_ERROR_FEEDBACK))
		return "keeps_error() is there and trait ERROR_FEEDBACK is not";
	if (c->state_arrays > STATES_MAX)
		return "there are more than 8 state arrays";
	if (c->merge && !bit(c, GRADCOMP_MERGED))
		return "merge() is there and pattern MERGED is not";
	if (c->code && !bit(c, GRADCOMP_CODED))
		return "code() is there and pattern CODED is not";
	if (c->instead & ~0xfu)
		return "`instead` has bits that are no pattern";
	for (size_t i = 0; i < sizeof c->reserved / sizeof c->reserved[0]; i++)
		if (c->reserved[i])
			return "a reserved word at the end is not zero";
	if (!*c->info.version || !*c->info.licence || !*c->info.summary)
		return "version, summary and licence want text";
	if (strchr(c->info.summary, '\n'))
		return "the summary has more than one line";
	return NULL;
}

void describe_notes(const struct gradcomp_compressor_v1 *plugin, kit_result *out)
{
	const char *wrong = contradiction(plugin);
	if (wrong)
		kit_note(out, RULE_DESCRIPTOR, RESULT_FAIL, "%s", wrong);
}
