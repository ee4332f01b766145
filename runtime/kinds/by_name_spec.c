#include "base/error.h"
#include "config/name_rules.h"
#include "kinds/by_name.h"

bool by_name_requested(const config *c, const char *compressor)
{
	return name_rules_is(compressor ? compressor : config_str(c, SET_GRADCOMP_COMPRESSOR));
}

gradcomp_status by_name_check(spec_table *specs, const char *compressor, const char *collective, gradcomp_error *err)
{
	const char *text = compressor ? compressor : config_str(specs->config, SET_GRADCOMP_COMPRESSOR);
	const plugin *plugins[2];
	const spec *values[2];
	gradcomp_error inner;
	name_rules rules;
	gradcomp_status st = name_rules_parse(text, &rules, err);
	for (uint32_t i = 0; !st && i < rules.n; i++) {
		const name_rule *rule = &rules.rule[i];
		st = spec_table_job(specs, rule->spec, rule->collective ? rule->collective : collective, plugins,
		                    values, &inner);
		if (st)
			error_set(err, st, "SPECs by name, rule %u '%.60s': %s", i + 1, rule->glob, inner.text);
	}
	name_rules_clear(&rules);
	return st;
}
