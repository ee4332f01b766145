/* Policies (gradcomp/gradcomp.h): their SPECs are held against the plugins that are installed. */
#include "api/policy_calls.h"

#include <string.h>

#include "base/error.h"
#include "base/first_sizes.h"
#include "coder/coder_spec.h"
#include "plugin/spec_table.h"

#define SHARDS ((1u << GRADCOMP_POLICY_ALL_GATHER) | (1u << GRADCOMP_POLICY_REDUCE_SCATTER))

/* Finds out what the SPEC of an entry can do. */
static gradcomp_status check_entry(const config *c, const char *collective, policy_entry *e, uint32_t number,
                                   gradcomp_error *err)
{
	gradcomp_error inner = {0};
	gradcomp_status st;
	if (!strcmp(e->spec, "auto") || !strncmp(e->spec, "auto:", 5))
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"policy, entry %u: 'auto' chooses for the tensors of a model, which a policy does not know: "
			"name a compressor, or attach the model",
			number + 1);
	if (e->collective)
		collective = e->collective;
	st = coder_check(c, e->spec, collective, &inner);
	/* A compressor without a code for runs of numbers may do for all-reduces. */
	if (st == GRADCOMP_ERR_UNSUPPORTED && !(e->named & SHARDS)) {
		const plugin *p[2];
		const spec *s[2];
		spec_table specs;
		spec_table_init(&specs, c);
		e->operations = 1u << GRADCOMP_POLICY_ALL_REDUCE;
		st = spec_table_job(&specs, e->spec, collective, p, s, &inner);
		spec_table_clear(&specs);
	}
	return st ? error_set(err, st, "policy, entry %u '%s': %s", number + 1, e->selector, inner.text) : GRADCOMP_OK;
}

gradcomp_status policy_read(const config *c, const char *text, const char *collective, gradcomp_policy **out,
                            gradcomp_error *err)
{
	gradcomp_policy *p = NULL;
	gradcomp_status st = policy_parse(text ? text : config_str(c, SET_GRADCOMP_COMPRESSOR), &p, err);
	for (uint32_t i = 0; !st && i < p->nentries; i++)
		st = check_entry(c, collective, &p->entries[i], i, err);
	if (!st)
		st = policy_check_hidden(p, err);
	if (st) {
		policy_free(p);
		p = NULL;
	}
	*out = p;
	return st;
}

gradcomp_status gradcomp_policy_create(const char *text, gradcomp_policy **out, gradcomp_error *err)
{
	config *c;
	gradcomp_status st;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "gradcomp_policy_create: out is NULL");
	*out = NULL;
	st = config_load(NULL, &c, err);
	if (st)
		return st;
	st = policy_read(c, text, NULL, out, err);
	config_free(c);
	return st;
}

void gradcomp_policy_free(gradcomp_policy *policy)
{
	policy_free(policy);
}

int gradcomp_policy_is(const char *text)
{
	return text && policy_is(text);
}

const char *gradcomp_policy_text(const gradcomp_policy *policy)
{
	return policy->text;
}

uint32_t gradcomp_policy_entries(const gradcomp_policy *policy)
{
	return policy->nentries;
}

gradcomp_status gradcomp_policy_get(const gradcomp_policy *policy, uint32_t number, gradcomp_policy_entry *entry,
                                    gradcomp_error *err)
{
	if (!policy || !entry || number >= policy->nentries)
		return error_set(err, GRADCOMP_ERR_INVALID, "a policy has no entry %u: it has %u, from 0", number,
		                 policy ? policy->nentries : 0);
	const uint32_t size = entry->struct_size;
	if (size < FIRST_SIZE(gradcomp_policy_entry))
		return error_set(err, GRADCOMP_ERR_INVALID, "an entry of %u bytes: must be %d or more", size,
		                 FIRST_SIZE(gradcomp_policy_entry));
	const policy_entry *e = &policy->entries[number];
	gradcomp_policy_entry all = {.struct_size = size,
	                             .number = number,
	                             .selector = e->selector,
	                             .spec = e->spec,
	                             .collective = e->collective,
	                             .roles = e->roles,
	                             .operations = e->operations,
	                             .name = e->name};
	memcpy(entry, &all, size < sizeof all ? size : sizeof all);
	return GRADCOMP_OK;
}

int gradcomp_policy_match(const gradcomp_policy *policy, const gradcomp_policy_call *call)
{
	if (!policy || !call || call->struct_size < FIRST_SIZE(gradcomp_policy_call))
		return -1;
	int found = policy_find(policy, call);
	return found >= 0 && strcmp(policy->entries[found].spec, "none") != 0 ? found : -1;
}
